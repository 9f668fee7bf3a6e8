"""Claims of the survey's text (claims.yaml): their queries, our numbers and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from llmviewer.core.errors import UserError
from llmviewer.reports.survey.ask import SurveyQuery


class Answer(Protocol):
    """A result of `analyze` or `train`."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""


#: Query -> its answer, or the error that says why the configuration is refused.
Outcomes: TypeAlias = Mapping[SurveyQuery, Answer | UserError]
#: Relative tolerances: of counts, bits and memory; of speedups and shares that a paper gives in round numbers.
EXACT, ROUND = 0.05, 0.25
SIZES = ("batch_size", "input_len", "output_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How our value is compared with a claim's limits.  meaning: printed on the page."""

    meaning: str
    holds: Callable[[float, float, float], bool]


#: Rule -> its comparison of our value with the lowest and the highest limit, which are one number for most.
RULES: dict[str, Rule] = {
    "at least": Rule(meaning="not less than the number", holds=lambda ours, low, high: ours >= low),
    "at most": Rule(meaning="not more than the number", holds=lambda ours, low, high: ours <= high),
    "below": Rule(meaning="less than the number", holds=lambda ours, low, high: ours < low),
    "equals": Rule(
        meaning="within 5 % of the number: counts, bits, memory, proportions",
        holds=lambda ours, low, high: abs(ours / low - 1.0) <= EXACT,
    ),
    "about": Rule(
        meaning="within 25 % of the number: what a paper gives as about, almost or up to",
        holds=lambda ours, low, high: abs(ours / low - 1.0) <= ROUND,
    ),
    "between": Rule(
        meaning="in the range, whose ends have 5 % of tolerance",
        holds=lambda ours, low, high: low * (1.0 - EXACT) <= ours <= high * (1.0 + EXACT),
    ),
}


class Finding(Enum):
    """Verdicts on a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "cannot be judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextClaim:
    """One entry of claims.yaml, whose head explains the fields."""

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
    note: str = ""

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
    held = RULES[claim.rule].holds(ours, *claim.limits)
    return Judged(claim=claim, ours=ours, finding=Finding.HOLDS if held else Finding.FAILS)


@cache
def _file() -> Mapping[str, Any]:
    import yaml

    text = Path(__file__).with_name("claims.yaml").read_text(encoding="utf-8")
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


def section_titles() -> Mapping[str, str]:
    """Number of a section of the survey -> its title."""
    titles: Mapping[str, str] = _file()["sections"]
    return titles


@cache
def text_claims() -> tuple[TextClaim, ...]:
    """All claims, in the order of the survey."""
    return tuple(TextClaim(**{name: _frozen(value) for name, value in entry.items()}) for entry in _file()["claims"])


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
