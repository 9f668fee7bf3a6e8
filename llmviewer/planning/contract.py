"""Contracts: conditions that predictions must keep, checked line by line (`llmviewer check`, `lv.check`)."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llmviewer.core import arguments, data, files, parsing
from llmviewer.core.answer import Answer
from llmviewer.core.errors import UserError, printable, quoted
from llmviewer.core.frozen import frozen
from llmviewer.language.option import Kind, Option
from llmviewer.language.quantity import unit_of
from llmviewer.planning import contract_line as values
from llmviewer.planning.contract_line import Condition, Subject, Unit, checked, condition, subject

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.check/1"
OWN = {
    "contract": Option(
        kind=Kind.TEXT,
        argument=True,
        help="YAML file: a list of CONFIGURATION: CONDITION.",
        json={
            "type": "array",
            "items": {"type": "object", "additionalProperties": {"type": "string"}},
            "minItems": 1,
            "description": "Lines of a contract: mappings of a configuration to the condition that it must keep.",
        },
    )
}
FORM = "- CONFIGURATION: CONDITION, such as - llama-3.1-8b: kv_cache_bytes_per_token <= 128 KiB"


@frozen
class Line:
    """A line of a contract.  where: its place, for errors.  number: of the line in the file, or of the list's entry."""

    where: str
    number: int
    subject: Subject
    condition: Condition


@frozen
class Checked:
    """A line with the value that it is about [SI].

    unit: as the contract wrote it.  value None: there is none, for a reason.  reason: why a line breaks whatever its
    value.  notes: warnings of the answer.
    """

    number: int
    configuration: str
    condition: Condition
    unit: Unit
    value: float | int | None
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the prediction keeps the condition."""
        return not self.reason and self.value is not None and self.condition.holds(self.value)

    @property
    def difference(self) -> float | None:
        """The value minus the limit [SI]; None without a value."""
        return None if self.value is None else self.value - self.condition.limit

    def to_dict(self) -> dict[str, Any]:
        """The line as an object of the JSON schema."""
        unit = unit_of(self.condition.metric)
        return {
            "line": self.number,
            "configuration": self.configuration,
            "condition": self.condition.text,
            "value": self.value,
            "limit": self.condition.limit,
            "unit": "" if unit.kind == "number" else unit.symbol,
            "holds": self.holds,
            "difference": self.difference,
            "tolerance": self.condition.tolerance,
            "reason": self.reason,
            "notes": list(self.notes),
        }


@frozen(repr=False)
class Check(Answer):
    """A contract whose lines are checked.  source: its file, or `contract`."""

    QUESTION: ClassVar[str] = "check"
    source: str
    lines: tuple[Checked, ...]

    def __repr__(self) -> str:
        return f"<Check: {len(self.lines)} lines, {len(self.broken)} break>"

    @property
    def broken(self) -> tuple[Checked, ...]:
        """Lines that predictions do not keep."""
        return tuple(line for line in self.lines if not line.holds)

    @property
    def holds(self) -> bool:
        """Whether all lines hold."""
        return not self.broken

    def to_dict(self) -> dict[str, Any]:
        """The object of the JSON schema `llmviewer.check/1`."""
        return {"schema": SCHEMA, "holds": self.holds, "lines": [line.to_dict() for line in self.lines]}

    def rows(self) -> list[dict[str, Any]]:
        """One row per line of the contract."""
        return [line.to_dict() for line in self.lines]

    def to_frame(self) -> pd.DataFrame:
        """One row per line of the contract."""
        import pandas as pd

        return pd.DataFrame(self.rows())


def check(contract: str | os.PathLike[str] | Sequence[Mapping[str, str]]) -> Check:
    """Conditions that predictions must keep: values, limits, and which lines hold.

    contract: the path of a YAML file, or a list of mappings {configuration: condition}, such as
    [{"llama-3.1-8b on l40s, vllm": "tpot_s <= 30 ms at batch 8"}].  Raises UserError for wrong input.
    """
    listed = isinstance(contract, (list, tuple))
    source = "contract" if listed else arguments.path_or_name("contract", contract)
    texts = _of_list(contract) if listed else _of_file(source)
    noun = f"{source}, entry" if listed else f"'{printable(source)}', line"
    lines = [_line(f"{noun} {number}", number, *pair) for number, pair in texts]
    if not lines:
        raise UserError(f"'{printable(source)}' has no line; write {FORM}")
    for line in lines:
        with _placed(line.where):
            values.check_names(line.subject, line.condition)
            if line.condition.load:
                checked(line.condition.unit, line.condition.metric)
    return Check(source=source, lines=_checked_lines(lines))


def _of_list(entries: Any) -> Iterator[tuple[int, tuple[str, str]]]:
    for number, entry in enumerate(entries, start=1):
        pairs = list(entry.items()) if isinstance(entry, Mapping) else []
        if len(pairs) != 1 or not all(isinstance(text, str) for text in pairs[0]):
            raise UserError(f"contract, entry {number}: {quoted(entry)}; expected a mapping of one text to another")
        yield number, pairs[0]


def _of_file(path: str) -> Iterator[tuple[int, tuple[str, str]]]:
    files.refuse_named(path)
    text = data.read_text(Path(path).expanduser(), data.MAX_YAML_BYTES, "not a contract")
    try:
        found = parsing.pairs_of_yaml(text)
    except ValueError as error:
        raise UserError(f"'{printable(path)}', {printable(error, 160)} (a contract has lines {FORM})") from error
    return ((number, (key, value)) for number, key, value in found)


def _line(where: str, number: int, configuration: str, text: str) -> Line:
    with _placed(where):
        return Line(where=where, number=number, subject=subject(configuration), condition=condition(text))


@contextmanager
def _placed(where: str) -> Iterator[None]:
    """Begin errors with the place of the line that they are of."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error.marked}") from error


def _checked_lines(lines: Sequence[Line]) -> tuple[Checked, ...]:
    """The lines with their values; each question is answered once, loads last: they take longest."""
    answers: dict[Hashable, Any] = {}
    checks: dict[int, Checked] = {}
    for position in sorted(range(len(lines)), key=lambda one: bool(lines[one].condition.load)):
        own, asked = lines[position].subject, lines[position].condition
        key = (own.model, own.hardware, *map(_key, (own.options, asked.sizes, asked.load)))
        with _placed(lines[position].where):
            if key not in answers:
                answers[key] = values.server(own, asked) if asked.load else values.answer(own, asked.sizes)
            found = values.of_server(answers[key], asked) if asked.load else answers[key].found(asked)
            checks[position] = Checked(
                number=lines[position].number,
                configuration=own.text,
                condition=asked,
                unit=checked(asked.unit, asked.metric),
                value=found.value,
                reason=found.reason,
                notes=found.notes,
            )
    return tuple(checks[position] for position in range(len(lines)))


def _key(words: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(words.items()))
