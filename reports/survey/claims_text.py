"""The claims of the survey's text as a table, and as lines with the commands that give our numbers."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from llmviewer.reports import format as fmt
from llmviewer.reports import markdown
from llmviewer.reports.page import Row, Table, left, right
from llmviewer.reports.survey.ask import SurveyQuery
from llmviewer.reports.survey.claims import RULES, SIZES, Finding, Judged, section_titles

TITLE = "The text, claim by claim"
INTRODUCTION = (
    "Every number in the text, and what it says about performance without a figure, in our words. A claim is run as a "
    "user would, with calibrated efficiencies unless the command says ideal; a number with a link is that of the paper "
    "that the survey names. Where the text has words in place of a number, the limit is ours. Claims about accuracy, "
    "training or unpublished models cannot be judged. How numbers are compared: {rules}."
)
#: Unit of claims.yaml -> how a value is written.
UNITS: dict[str, Callable[[float], str]] = {
    "times": fmt.times,
    "percent": fmt.percent,
    "bits": lambda value: f"{fmt.digits(value)} bit",
    "bytes": fmt.traffic,
    "parameters": fmt.parameters,
    "tokens": lambda value: f"{fmt.whole(value)} tokens",
    "tokens/s": lambda value: f"{fmt.per_second(value)} tokens/s",
    "FLOP/B": lambda value: f"{fmt.intensity(value)} FLOP/B",
}


def introduction() -> str:
    """The paragraph before the claims, with the rules of comparison."""
    return INTRODUCTION.format(rules="; ".join(f"*{name}*: {rule.meaning}" for name, rule in RULES.items()))


def tally(judged: Sequence[Judged]) -> str:
    """The number of claims by finding."""
    counts = Counter(one.finding for one in judged)
    return f"{counts[Finding.HOLDS]} hold, {counts[Finding.FAILS]} do not, {counts[Finding.OPEN]} cannot be judged"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One claim in words.  commands: whose answers give our number, the one compared with last."""

    judged: Judged
    words: str
    commands: tuple[str, ...]


def by_section(judged: Sequence[Judged]) -> Iterator[tuple[str, list[Line]]]:
    """Heading of a section of the survey, and the lines of its claims."""
    for number, ones in groupby(judged, key=lambda one: one.claim.section):
        yield f"{number} {section_titles()[number]}", [line(one) for one in ones]


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
    sentences = filter(None, (one.because, ", ".join(filter(None, (number, claim.note)))))
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
    """The parts of the section: introduction, table, and the claims with their commands."""
    yield f"## {TITLE}"
    yield introduction()
    yield f"Of {len(judged)} claims {tally(judged)}."
    yield markdown.text((table(judged),)).strip()
    for heading, lines in by_section(judged):
        yield f"### {heading}"
        yield "\n".join(map(_markdown_line, lines))


def _markdown_line(said: Line) -> str:
    claim = said.judged.claim
    source = f"its [paper]({claim.paper})" if claim.paper else "the text"
    words = f": {said.words}" if said.words else ""
    commands = f" {', beside '.join(f'`{text}`' for text in said.commands)}" if said.commands else ""
    verdict = said.judged.finding.value.capitalize()
    return f"- {claim.subject}: *{claim.says}* By {source}: {claim.quoted}. **{verdict}**{words}.{commands}"


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
