"""A copy of the checkout in which the tests run with one fault at a time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.prove.faults import ROOT, Fault

#: Checks the `old` text of every fault, so a planted fault always turns it red.
OWN_TEST = "tests/test_prove.py"
#: `FAILED tests/test_ops.py::test_name[case] - message` in pytest's summary.
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py::[^\s\[]+(?:\[.*?\])?)(?: - |$)", flags=re.MULTILINE)
#: Exit statuses of pytest; it is INTERRUPTED by an error during collection, or by `-x` with several workers.
PASSED, SOME_FAILED, INTERRUPTED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Checkout:
    """A copy of the files that git tracks or does not ignore.  path: its folder."""

    path: Path

    @staticmethod
    def copied(path: Path) -> Checkout:
        """A new copy at `path`; links stay links, so `llmviewer/reports` leads to the copy's own `reports`."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout.split("\0")  # fmt: skip
        for name in filter(None, listed):
            source, target = ROOT / name, path / name
            if source.is_symlink() or source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        checkout = Checkout(path)
        checkout._compile()
        checkout._check_imports()
        return checkout

    def _compile(self) -> None:
        """Compile to byte code validated by source hash, because a fault may keep time and size of a file.

        No other byte code is written.
        """
        words = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "llmviewer", "reports", "calibrate"]
        self._python(*words).check_returncode()

    def _check_imports(self) -> None:
        """Raise RuntimeError unless Python imports the package from the copy; .venv leads to the original."""
        code = "import llmviewer, llmviewer.reports as r, tests; print(llmviewer.__file__, r.__file__, tests.__file__)"
        ran = self._python("-c", code)
        files = [Path(file) for file in ran.stdout.split()]
        if len(files) != 3 or not all(file.resolve().is_relative_to(self.path.resolve()) for file in files):
            raise RuntimeError(f"the copy in {self.path} does not import its own package: {ran.stdout}{ran.stderr}")

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        """Plant the fault; remove it at the end."""
        file = self.path / fault.path
        right = file.read_text(encoding="utf-8")
        file.write_text(fault.planted(right), encoding="utf-8")
        try:
            yield
        finally:
            file.write_text(right, encoding="utf-8")

    def failed_tests(self, *arguments: str) -> list[str]:
        """Tests that fail when pytest runs with these arguments.  Raises RuntimeError if it cannot run them."""
        options = ("-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", f"--ignore={OWN_TEST}")
        ran = self._python("-m", "pytest", *arguments, *options)
        failed = FAILED.findall(ran.stdout)
        if ran.returncode not in (PASSED, SOME_FAILED, INTERRUPTED) or bool(failed) != (ran.returncode != PASSED):
            raise RuntimeError(f"pytest {' '.join(arguments)} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        return failed

    def first_failed(self, files: Sequence[str]) -> str:
        """The first failing test of these files, else of the whole suite; "" if everything passes."""
        named = self.failed_tests("-x", "-n", "0", *files)
        failed = named or self.failed_tests("-x", "-n", "auto")
        return failed[0] if failed else ""

    def _python(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.path), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, *words], cwd=self.path, env=environment, capture_output=True, text=True, check=False
        )
