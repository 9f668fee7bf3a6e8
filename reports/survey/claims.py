"""Claims of the survey's text (claims.yaml) and of articles (documents.yaml): queries, our numbers and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from llmviewer.core.errors import UserError
from llmviewer.reports.survey.ask import SurveyQuery
from llmviewer.reports.survey.rules import RULES, Finding


class Answer(Protocol):
    """A result of `analyze` or `train`."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""


#: Query -> its answer, or the error that says why the configuration is refused.
Outcomes: TypeAlias = Mapping[SurveyQuery, Answer | UserError]
SIZES = ("batch_size", "input_len", "output_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document other than the survey whose figures are judged.  kind: article, talk."""

    kind: str
    title: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextClaim:
    """One entry of claims.yaml or documents.yaml; the head of the former explains the fields."""

    section: str
    subject: str
    says: str
    quoted: str
    paper: str = ""
    figure: str = ""
    cannot: str = ""
    run: Mapping[str, Any] = field(default_factory=dict)
    change: Mapping[str, Any] = field(default_factory=dict)
    of: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    measure: str = "value"
    scale: float = 1.0
    unit: str = ""
    rule: str = ""
    limit: float | tuple[float, float] = 0.0
    setting: str = "ours"
    note: str = ""

    @property
    def document(self) -> Document | None:
        """The document that states the claim; None is the survey."""
        return documents().get(self.section)

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest limit."""
        return self.limit if isinstance(self.limit, tuple) else (self.limit, self.limit)

    @property
    def queries(self) -> tuple[SurveyQuery, ...]:
        """The query with the change; before it the one without, if the claim compares both."""
        if not self.of:
            return ()
        changed = query({**self.run, **self.change})
        return (changed,) if self.measure == "value" else (query(self.run), changed)

    def ours(self, results: Sequence[Answer]) -> float:
        """Our number.  results: of `queries`."""
        values = [total(result.to_dict(), self.of) / _divisor(result, self.over) for result in results]
        if self.measure == "speedup":
            values = values[::-1]
        return self.scale * (values[0] if len(values) == 1 else values[1] / values[0])


def query(keywords: Mapping[str, Any]) -> SurveyQuery:
    """The query with these keywords of `analyze`, or of the command that is among them."""
    named = {name: keywords[name] for name in ("model", "hardware", "command") if name in keywords}
    sizes: dict[str, Any] = {"output_len": (128,)}  # the default of `analyze`, which figures do not have
    sizes |= {name: (int(keywords[name]),) for name in SIZES if name in keywords}
    options = tuple((name, value) for name, value in keywords.items() if name not in (*SIZES, *named))
    return SurveyQuery(options=options, **named, **sizes)


def _divisor(result: Answer, paths: Sequence[str]) -> float:
    return total(result.to_dict(), paths) if paths else 1.0


def total(answer: Mapping[str, Any], paths: Sequence[str]) -> float:
    """The sum of the numbers at these paths of an answer's JSON; those of an operator count for all its layers."""
    return sum(_number(answer, path) for path in paths)


def _number(answer: Any, path: str) -> float:
    found, layers = answer, 1.0
    for key in path.split("."):
        if isinstance(found, list):  # operators
            found = next(operator for operator in found if operator["name"] == key)
            layers = float(found["layers"])
        else:
            found = found[key]
    return layers * float(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim with our number (None without one) and the finding.  because: why it cannot be judged."""

    claim: TextClaim
    ours: float | None
    finding: Finding
    because: str = ""


def judge(claim: TextClaim, outcomes: Outcomes, figures: Mapping[tuple[str, str], bool]) -> Judged:
    """The finding on a claim.

    figures: name of a figure and words of its claim -> whether that one holds.
    """
    if claim.figure:
        held = figures[claim.figure, claim.says]
        return Judged(claim=claim, ours=None, finding=Finding.HOLDS if held else Finding.FAILS)
    found = [outcomes[asked] for asked in claim.queries]
    refused = next((outcome for outcome in found if isinstance(outcome, UserError)), None)
    if refused is not None:
        return Judged(claim=claim, ours=None, finding=Finding.OPEN, because=f"refused: {refused}")
    ours = claim.ours([outcome for outcome in found if not isinstance(outcome, UserError)]) if found else None
    if claim.cannot or ours is None:
        return Judged(claim=claim, ours=ours, finding=Finding.OPEN, because=claim.cannot)
    return Judged(claim=claim, ours=ours, finding=RULES[claim.rule].finding(ours, *claim.limits))


@cache
def _file(name: str) -> Mapping[str, Any]:
    import yaml

    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


def section_titles() -> Mapping[str, str]:
    """Number of a section of the survey -> its title."""
    titles: Mapping[str, str] = _file("claims.yaml")["sections"]
    return titles


@cache
def documents() -> Mapping[str, Document]:
    """Name in a claim's `section` -> the document."""
    return {name: Document(**fields) for name, fields in _file("documents.yaml")["documents"].items()}


@cache
def text_claims() -> tuple[TextClaim, ...]:
    """All claims: those of the survey in its order, then those of the other documents."""
    entries = [entry for name in ("claims.yaml", "documents.yaml") for entry in _file(name)["claims"]]
    return tuple(TextClaim(**{name: _frozen(value) for name, value in entry.items()}) for entry in entries)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
