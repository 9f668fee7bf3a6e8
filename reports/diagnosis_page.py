"""A diagnosis as a page: the difference in a sentence, suspects, operators, and the parts of the difference."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Align, Column, Emphasis, Facts, Page, Row, Table, left, plain, right
from llmviewer.reports.stage_table import share_bar

#: Verdict on an operator -> terminal colour; the cell's text also states it.
VERDICTS = {"slow": "bold red", "host": "yellow", "unpredicted": "magenta", "fast": "cyan", "fine": "green"}
OPERATORS = (
    left("Operator"),
    right("Kernels", rank=1),
    right("Measured"),
    right("Predicted"),
    right("80 %", rank=1),
    right("Ratio", rank=2),
    right("Idle before", rank=3),
    Column(title="Verdict", align=Align.LEFT, styles=VERDICTS),
    left("Longest kernel", rank=4),
)
METRICS = (
    left("Metric"),
    right("Measured"),
    right("Predicted"),
    right("80 %"),
    Column(title="Verdict", align=Align.LEFT, styles=VERDICTS),
)
PARTS = (
    left("Part"),
    right("Time"),
    right("Of measured"),
    left("Outside 80 %", rank=1),
    Column(title="Share of measured time", align=Align.LEFT, rank=2, visual=True),
    left("Evidence", rank=3),
)
#: Longest name of a kernel in the table, and most parts that are listed one by one [characters, rows].
NAME, MOST_PARTS = 32, 14
#: Least share of the measured time of a part that is listed by itself.
LEAST_SHARE = 1e-3
#: Share of the difference from which on a part is most of it, and beyond which others make up for some of it.
MOST_OF_IT, MORE = 0.5, 0.1
MEANING = (
    ("fine", "measured within the 80 % interval of the prediction"),
    ("slow, fast", "above or below it"),
    ("host", "the device waits before its kernels for more than half of their time"),
    ("unpredicted", "kernels of the engine, or of another model, beside this one"),
    ("no kernel", "fused into another operator, or not run"),
)


def page(found: Any) -> Page:
    """Returns the page of a diagnosis."""
    return of_document(found.to_dict())


def of_document(answer: dict[str, Any]) -> Page:
    """Returns the page of the document of a diagnosis."""
    parts: list[Any] = [Facts(lines=(("Verdict", verdict(answer)), *_recording(answer)))]
    if answer["suspects"]:
        parts.append(_suspects(answer))
    if "metrics" in answer:
        return (*parts, _metrics(answer), _parts(answer))
    verdicts = Facts(lines=MEANING, title="Verdicts", emphasis=Emphasis.FAINT)
    return (*parts, _operators(answer), _parts(answer), verdicts)


def verdict(answer: dict[str, Any]) -> str:
    """Returns measured and predicted time in a sentence, with the largest part of their difference."""
    measured, predicted = answer["measured_s"], answer["predicted_s"]
    times = f"a {answer.get('of', 'pass')} takes {fmt.duration(measured)}, {fmt.duration(predicted)} predicted"
    if not predicted or not answer["parts"]:
        return times
    side = "longer" if measured > predicted else "shorter"
    largest = max(answer["parts"], key=lambda part: part["amount_s"] * (1 if measured > predicted else -1))
    share = fmt.percent(abs(measured / predicted - 1.0))
    inside = ", inside its 80 % interval" if largest["kind"] == "operator" and not largest["outside_interval"] else ""
    named = f"{largest['name']} ({_signed(largest['amount_s'])}{inside})"
    return f"{times}: {share} {side}; {_how_much(largest['amount_s'], measured - predicted).format(named)}"


def _how_much(amount: float, difference: float) -> str:
    """Returns how much of a difference a part is, in words around its name."""
    ratio = amount / difference if difference else 0.0
    if ratio > 1.0 + MORE:
        return "{} is more than that, and other parts make up for it"
    return "most of it in {}" if ratio > MOST_OF_IT else "the largest part of it in {}"


def _recording(answer: dict[str, Any]) -> list[tuple[str, str]]:
    predicted = ("Predicted", plain(f"{answer['model']} on {answer['hardware']}, {answer['engine']}"))
    if "metrics" in answer:
        note = f"; {answer['note']}" if answer["note"] else ""
        return [("Measured", plain(f"{answer['source']} ({answer['program']}){note}")), predicted]
    if "note" in answer:
        return [("Measured", plain(f"{answer['source']} ({answer['program']}): {answer['note']}")), predicted]
    phases = ", ".join(f"{fmt.whole(count)} {phase}" for phase, count in answer["phases"].items())
    plural = "es" if answer["passes"] > 1 else ""
    per_pass = "; all times are means per pass" if answer["passes"] > 1 else ""
    return [
        ("Recorded", plain(f"{answer['source']} ({answer['program']}): {phases} pass{plural}{per_pass}")),
        predicted,
        ("Matched", _matched(answer)),
        ("Device", f"busy {fmt.duration(answer['busy_s'])}, idle {fmt.duration(answer['gap_s'])}{_alone(answer)}"),
    ]


def _matched(answer: dict[str, Any]) -> str:
    """Returns the share of the kernels' time of which it is known what runs, and what has no operator or name."""
    beside, unmatched = answer.get("unpredicted_s", 0.0), answer["unmatched_s"]
    told = f"{fmt.percent(answer['assigned_share'])} of the kernels' time"
    told += f", {fmt.duration(beside)} of it in kernels that nobody predicted" if beside else ""
    return told + (f"; {fmt.duration(unmatched)} unmatched" if unmatched else "")


def _alone(answer: dict[str, Any]) -> str:
    """Returns what is not compared because no recorded pass is followed by another one."""
    return "" if answer["followed"] else "; no pass follows, so the time to the next one is not compared"


def _suspects(answer: dict[str, Any]) -> Facts:
    lines = tuple((_amount(one["amount_s"]), plain(f"{one['text']}. Try: {one['try']}.")) for one in answer["suspects"])
    return Facts(lines=lines, title="Suspects", emphasis=Emphasis.WARNING)


def _metrics(answer: dict[str, Any]) -> Table:
    rows = tuple(
        Row(
            cells=(
                one["metric"],
                *(fmt.digits(one[name]) for name in ("measured", "predicted")),
                "–".join(fmt.digits(bound) for bound in one["interval80"]),
                one["verdict"],
            )
        )
        for one in answer["metrics"]
    )
    return Table(columns=METRICS, rows=rows, title="Figures")


def _operators(answer: dict[str, Any]) -> Table:
    shown = [one for one in answer["operators"] if one["kernels"] or one["predicted_s"]]
    rows = tuple(_operator(one, answer["passes"]) for one in shown)
    title = "Operators, over all " + ("samples" if "note" in answer else "layers of a pass")
    return Table(columns=OPERATORS, rows=rows, title=title)


def _operator(one: dict[str, Any], passes: int) -> Row:
    measured, predicted, bounds = one["measured_s"], one["predicted_s"], one["interval80"]
    ratio = measured / predicted if measured and predicted else None
    cells = (
        one["name"],
        fmt.digits(sum(one["kernels"].values()) / passes),
        fmt.duration(measured) if measured is not None else fmt.DASH,
        fmt.duration(predicted) if predicted is not None else fmt.DASH,
        fmt.bounds(*bounds) if bounds and predicted else fmt.DASH,
        fmt.times(ratio) if ratio is not None else fmt.DASH,
        fmt.duration(one["gap_s"]) if one["gap_s"] else fmt.DASH,
        one["verdict"],
        plain(next(iter(one["kernels"]), fmt.DASH).removeprefix("void "))[:NAME],
    )
    return Row(cells=cells, emphasis=Emphasis.PLAIN if one["kernels"] else Emphasis.FAINT)


def _parts(answer: dict[str, Any]) -> Table:
    """Returns the parts of measured − predicted, largest first, and their sum."""
    least = LEAST_SHARE * answer["measured_s"]
    listed = [one for one in answer["parts"][:MOST_PARTS] if abs(one["amount_s"]) >= least]
    rest = answer["parts"][len(listed) :]
    rows = [_part(one, answer["measured_s"]) for one in listed]
    if rest:
        amount = sum(one["amount_s"] for one in rest)
        other = {"name": f"{len(rest)} others", "amount_s": amount, "outside_interval": False, "evidence": ""}
        rows.append(_part(other, answer["measured_s"]))
    total = ("measured − predicted", _signed(answer["difference_s"]), "", "", "", "")
    return Table(columns=PARTS, rows=tuple(rows), total=total, title="Parts of the difference")


def _part(one: dict[str, Any], measured: float) -> Row:
    share = one["amount_s"] / measured
    cells = (
        one["name"],
        _signed(one["amount_s"]),
        fmt.signed(share),
        "yes" if one["outside_interval"] else "",
        share_bar(min(abs(share), 1.0)),
        plain(one["evidence"]),
    )
    return Row(cells=cells)


def _amount(seconds: float) -> str:
    """Returns the time that a suspect explains; where the run is shorter than predicted, with its sign."""
    return fmt.duration(seconds) if seconds >= 0.0 else _signed(seconds)


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0.0 else '−'}{fmt.duration(abs(seconds))}"
