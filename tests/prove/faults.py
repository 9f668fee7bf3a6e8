"""The wrong formulas to plant, read from `faults/*.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = Path(__file__).resolve().parent / "faults"
#: Files of faults in the order of the page: counts of operators, times and memory, techniques and answers, decisions.
FILES = ("counts", "times", "answers", "decisions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One wrong formula.

    what: the mistake in words.  path: file in the checkout.  old, new: the code and its wrong replacement.
    tests: the test files that are most likely to notice; they run first.  Of slow files only one test: `file::test`.
    """

    name: str
    what: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def paths(self) -> list[str]:
        """The tests as pytest takes them: `tests/test_ops.py`, `tests/test_cli.py::test_name`."""
        parts = (name.partition("::") for name in self.tests)
        return [f"tests/{file}.py{separator}{test}" for file, separator, test in parts]

    def planted(self, text: str) -> str:
        """The text of the file with the fault.  Raises ValueError unless `old` occurs exactly once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"fault {self.name}: {self.old!r} occurs {found} times in {self.path}; expected: once")
        return text.replace(self.old, self.new)


def read_faults() -> tuple[Fault, ...]:
    """All faults, file by file.  Raises ValueError for a name that occurs twice."""
    texts = ((FOLDER / f"{name}.yaml").read_text(encoding="utf-8") for name in FILES)
    rows = [row for text in texts for row in yaml.safe_load(text)]
    faults = tuple(Fault(**{**row, "tests": tuple(row["tests"].split())}) for row in rows)
    names = [fault.name for fault in faults]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two faults are called {', '.join(sorted(repeated))}")
    return faults


def select(names: list[str]) -> tuple[Fault, ...]:
    """The faults of these names, or all.  Raises ValueError for an unknown name and for a fault that does not fit."""
    known = {fault.name: fault for fault in read_faults()}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown fault {', '.join(unknown)}; known: {', '.join(known)}")
    selected = [known[name] for name in names or known]
    for fault in selected:
        fault.planted((ROOT / fault.path).read_text(encoding="utf-8"))
    return tuple(selected)
