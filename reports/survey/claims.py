"""Claims of the survey and of articles (claims.yaml, documents.yaml): queries, numbers, verdicts, tables."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.reports import format as fmt
from llmviewer.reports import markdown
from llmviewer.reports.page import Row, Table, left, right
from llmviewer.reports.survey.peer import SurveyQuery
from llmviewer.reports.survey.rules import RULES, Finding


class Answer(Protocol):
    """A result of `analyze` or `train`."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""


#: Query -> its answer, or the error that says why the configuration is refused.
Outcomes: TypeAlias = Mapping[SurveyQuery, Answer | UserError]
SIZES = ("batch_size", "input_len", "output_len")


@frozen
class Document:
    """A document other than the survey whose figures are judged.  kind: article, talk."""

    kind: str
    title: str
    url: str


@frozen
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


@frozen
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


TITLE = "The text, claim by claim"
INTRODUCTION = (
    "Every number in the text, and what it says about performance without a figure, in our words. A claim is run as a "
    "user would, with calibrated efficiencies unless the command says ideal; a number with a link is that of the paper "
    "that the survey names. Where the text has words in place of a number, the limit is ours; whether model, chip and "
    "sizes are ours or the source's is said with each. Claims about accuracy or unpublished models cannot be judged, "
    "nor those whose answer follows from a share that nobody stated. How numbers are compared: {rules}."
)
OTHERS = "Other documents, claim by claim"
OTHERS_INTRODUCTION = "What other documents state about sizes and speed, by the same rules. They are {documents}."
#: Finding -> words after the number of claims that have it.
COUNTED = {
    Finding.HOLDS: "hold",
    Finding.EXCEEDED: "exceeded",
    Finding.BOUND: "allowed by a bound",
    Finding.FAILS: "do not hold",
    Finding.OPEN: "cannot be judged",
}
#: Whose model, chip and sizes a claim is run with, as said on the page.
SETTINGS = {"ours": "our setting", "source": "setting of the source"}
#: Unit of claims.yaml -> how a value is written.
UNITS: dict[str, Callable[[float], str]] = {
    "times": fmt.times,
    "percent": fmt.percent,
    "bits": lambda value: f"{fmt.digits(value)} bit",
    "bytes": fmt.traffic,
    "memory": fmt.memory,
    "parameters": fmt.parameters,
    "tokens": lambda value: f"{fmt.whole(value)} tokens",
    "tokens/s": lambda value: f"{fmt.per_second(value)} tokens/s",
    "FLOP/B": lambda value: f"{fmt.intensity(value)} FLOP/B",
}


@frozen
class Part:
    """The claims of the survey's text, or those of the other documents.  introduction: Markdown."""

    anchor: str
    title: str
    introduction: str
    judged: Sequence[Judged]


def parts(judged: Sequence[Judged]) -> list[Part]:
    """The claims of the text, then those of the other documents."""
    rules = "; ".join(f"*{name}*: {rule.meaning}" for name, rule in RULES.items())
    named = ", ".join(f"[{one.title}]({one.url})" if one.url else one.title for one in documents().values())
    survey = [one for one in judged if one.claim.document is None]
    others = [one for one in judged if one.claim.document is not None]
    found = [
        Part(anchor="text", title=TITLE, introduction=INTRODUCTION.format(rules=rules), judged=survey),
        Part(anchor="documents", title=OTHERS, introduction=OTHERS_INTRODUCTION.format(documents=named), judged=others),
    ]
    return [part for part in found if part.judged]


def plain(text: str) -> str:
    """Markdown without emphasis, code marks and addresses of links."""
    return re.sub(r"[*`]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text))


def tally(judged: Sequence[Judged]) -> str:
    """The number of claims by finding."""
    counts = Counter(one.finding for one in judged)
    return ", ".join(f"{counts[finding]} {words}" for finding, words in COUNTED.items() if counts[finding])


def value_text(one: Judged) -> str:
    """Our number with its unit; a dash without one."""
    return fmt.DASH if one.ours is None else UNITS[one.claim.unit](one.ours)


def table(judged: Sequence[Judged]) -> Table:
    """A row per claim."""
    heads = (left("Section"), left("Subject"), left("Claim"), left("By the text"), right("llmviewer"), left("Verdict"))
    rows = [
        Row(cells=(c.section, c.subject, c.says, c.quoted, value_text(one), one.finding.value))
        for one in judged
        for c in (one.claim,)
    ]
    return Table(columns=heads, rows=tuple(rows))


@frozen
class Line:
    """One claim in words.  commands: whose answers give our number, the one compared with last."""

    judged: Judged
    words: str
    commands: tuple[str, ...]


def by_section(judged: Sequence[Judged]) -> Iterator[tuple[str, list[Line]]]:
    """Heading of a section of the survey or of a document, and the lines of its claims."""
    for section, ones in groupby(judged, key=lambda one: one.claim.section):
        yield heading(section), [line(one) for one in ones]


def heading(section: str) -> str:
    """Number and title of a section of the survey, or the title of a document."""
    named = documents().get(section)
    return f"{section} {section_titles()[section]}" if named is None else named.title[:1].upper() + named.title[1:]


def source(claim: TextClaim) -> tuple[str, str]:
    """The source of the number of a claim in words, and its address, which may be empty."""
    if claim.paper:
        return "its paper", claim.paper
    return ("the text", "") if claim.document is None else (f"the {claim.document.kind}", claim.document.url)


def line(one: Judged) -> Line:
    """A claim in words."""
    claim = one.claim
    if claim.figure:
        return Line(judged=one, words=f"see {claim.figure.replace('_', ' ')}", commands=())
    number = value_text(one) if one.ours is not None else ""
    if one.finding is not Finding.OPEN:
        number += f" ({claim.rule} {_limits(one)})"
    elif number:
        number = f"for illustration {number}"
    setting = SETTINGS[claim.setting] if number else ""
    sentences = filter(None, (one.because, ", ".join(filter(None, (number, setting, claim.note)))))
    words = ". ".join(text[:1].upper() + text[1:] for text in sentences)
    return Line(judged=one, words=words, commands=tuple(command(query) for query in reversed(claim.queries)))


def _limits(one: Judged) -> str:
    show = UNITS[one.claim.unit]
    return " and ".join(dict.fromkeys(map(show, one.claim.limits)))


def command(query: SurveyQuery) -> str:
    """The command line of a query."""
    sizes = {name: getattr(query, name)[0] for name in SIZES}
    default = {"batch_size": 1, "input_len": 1024, "output_len": 128}
    words = ["llmviewer", query.command, query.model, "--hardware", query.hardware]
    given: Mapping[str, object] = {**{n: v for n, v in sizes.items() if v != default[n]}, **dict(query.options)}
    for name, value in given.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def as_markdown(judged: Sequence[Judged]) -> Iterator[str]:
    """The parts of both sections: introduction, table, and the claims with their commands."""
    for part in parts(judged):
        yield f"## {part.title}"
        yield part.introduction
        yield f"Of {len(part.judged)} claims {tally(part.judged)}."
        yield markdown.text((table(part.judged),)).strip()
        for title, lines in by_section(part.judged):
            yield f"### {title}"
            yield "\n".join(map(_markdown_line, lines))


def _markdown_line(said: Line) -> str:
    claim = said.judged.claim
    named, url = source(claim)
    article, _, noun = named.partition(" ")
    stated = f"{article} [{noun}]({url})" if url else named
    words = f": {said.words}" if said.words else ""
    commands = f" {', beside '.join(f'`{text}`' for text in said.commands)}" if said.commands else ""
    verdict = said.judged.finding.value.capitalize()
    return f"- {claim.subject}: *{claim.says}* By {stated}: {claim.quoted}. **{verdict}**{words}.{commands}"


def records(judged: Sequence[Judged]) -> list[dict[str, object]]:
    """A row of claims.csv per claim."""
    return [
        {
            "section": one.claim.section,
            "subject": one.claim.subject,
            "claim": one.claim.says,
            "by_the_text": one.claim.quoted,
            "llmviewer": one.ours,
            "unit": one.claim.unit,
            "verdict": one.finding.value,
            "words": said.words,
            "command": said.commands[0] if said.commands else "",
            "beside": said.commands[-1] if len(said.commands) > 1 else "",
        }
        for one in judged
        for said in (line(one),)
    ]
