"""Advice as a page: a sentence, the changes with gain and risk, the combination step by step, the nearest miss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmviewer.language.quantity import LATENCIES
from llmviewer.planning.advise import Advice
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, plain, right
from llmviewer.reports.why_page import label, value

#: Options that change the numbers of a model.
NUMBERS = ("quantization", "kv_cache_dtype", "speculative")
#: Rows of changes that help but do not suffice.
MOST_BROKEN = 6


def page(found: Advice) -> Page:
    """Returns the page of advice."""
    answer = found.to_dict()
    parts: list[Any] = [Facts(lines=_head(answer))]
    shown = {"Changes, each alone": answer["advice"], "With more devices": answer["more_devices"]}
    more = len(answer["broken"]) - MOST_BROKEN
    title = f"Changes that help and do not suffice{f', {more} more not shown' if more > 0 else ''}"
    shown[title] = answer["broken"][:MOST_BROKEN]
    parts += [_changes(answer, title, rows) for title, rows in shown.items() if rows]
    if len(answer["combination"]["steps"]) > 1:
        parts.append(_combination(answer))
    risks = _risks([row for rows in shown.values() for row in rows])
    if risks:
        parts.append(Facts(lines=risks, title="Published risk for the answers"))
    warnings = tuple(("Warning", plain(text)) for text in answer["warnings"])
    return (*parts, Facts(lines=warnings, emphasis=Emphasis.WARNING)) if warnings else tuple(parts)


def _head(answer: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    best, metric = answer["combination"], answer["metric"]
    now = (
        f"{label(metric)} {value(metric, answer['now'])}{_bounds(metric, answer['interval80'])}{_lacks(answer, answer)}"
    )
    lines = [("Answer", sentence(answer)), ("Now", now)]
    if best["steps"]:
        lines.append(("Run", plain(best["command"])))
    without = answer["tried"] - sum(len(answer[name]) for name in ("advice", "more_devices", "broken"))
    return (*lines, ("Tried", f"{answer['tried']} changes of one option; {without} of them gain less than 2 %"))


def sentence(answer: dict[str, Any]) -> str:
    """Returns what the combination brings in words, or the nearest miss."""
    best, metric = answer["combination"], answer["metric"]
    words = plain(best["text"])
    then = f"{label(metric)} {value(metric, best['then'])}{_bounds(metric, best['interval80'])}"
    if not best["holds"]:
        nearest = f"nearest: {words}: {then}" if words else "nearest: the run as asked"
        return f"nothing that was tried meets the limits; {nearest}{_lacks(answer, best)}"
    if not words:
        return f"nothing that was tried gains 2 %: {then}"
    if answer["holds"]:
        gain = f"{fmt.times(best['gain'])} as fast" if metric in LATENCIES else f"{fmt.times(best['gain'])} as good"
        return f"{words}: {then}, {gain} as now"
    devices = f" on {best['devices']} devices" if best["devices"] > answer["devices"] else ""
    runs = "fits" if not answer["fits"] else "starts" if answer["refusal"] else "meets the limits"
    return f"{words}: {runs}{devices}, with {then}"


def _bounds(metric: str, interval: Sequence[float] | None) -> str:
    if interval is None:
        return ""
    return f" (80 % interval {value(metric, interval[0])} to {value(metric, interval[1])})"


def _lacks(answer: dict[str, Any], one: dict[str, Any]) -> str:
    """Returns how a run misses memory, its start and limits, empty if it holds."""
    found = [plain(one["refusal"])] if one["refusal"] else []
    if not one["fits"]:
        found.append(f"needs {fmt.memory(one['total_bytes'])} of a budget of {fmt.memory(one['budget_bytes'])}")
    for limit in answer["limits"]:
        latency = one[limit["metric"]]
        if latency is not None and latency > limit["limit_s"]:
            over = fmt.signed(round(latency / limit["limit_s"] - 1.0, 3))
            found.append(
                f"{label(limit['metric'])} {fmt.duration(latency)}, limit {fmt.duration(limit['limit_s'])}: {over}"
            )
    return "".join(f"; {text}" for text in found)


def _short(one: dict[str, Any]) -> str:
    """Returns a change without the name of the acceptance that it assumes."""
    return plain(one["text"].partition(",acceptance=")[0])


def _risks(rows: Sequence[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Returns what was published on the quality of answers, by change."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["source"] or row["option"] in NUMBERS:
            source = f" ({row['source']})" if row["source"] else ""
            found.setdefault(f"{plain(row['risk'])}{source}", []).append(_short(row))
    return tuple((changes[0], text) for text, changes in found.items())


def _changes(answer: dict[str, Any], title: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Returns the table of single changes."""
    metric = answer["metric"]

    def cells(one: dict[str, Any]) -> tuple[str, ...]:
        then, interval = value(metric, one["then"]), _interval(metric, one["interval80"] or (None, None))
        return (_short(one), then, fmt.times(one["gain"]), interval, fmt.whole(one["devices"]))

    columns = (left("Change"), right(label(metric)), right("Gain"), right("80 % interval", 1), right("Devices", 2))
    return Table(columns=columns, rows=tuple(Row(cells=cells(one)) for one in rows), title=title)


def _interval(metric: str, interval: Sequence[float | None]) -> str:
    low, high = interval
    if low is None or high is None:
        return fmt.DASH
    return fmt.bounds(low, high) if metric in LATENCIES else f"{value(metric, low)} to {value(metric, high)}"


def _combination(answer: dict[str, Any]) -> Table:
    """Returns the steps of the combination, each on top of those before it."""
    metric = answer["metric"]
    before, rows = answer["now"], [Row(cells=("as asked", value(metric, answer["now"]), ""))]
    for step in answer["combination"]["steps"]:
        then = step["then"]
        ratio = (before / then if answer["less_is_better"] else then / before) if then and before else None
        rows.append(Row(cells=(f"+ {_short(step)}", value(metric, then), fmt.times(ratio))))
        before = then
    columns = (left("Combined, step by step"), right(label(metric)), right("Gain"))
    note = "the best change, then the best on top of it, until none gains 2 %"
    return Table(columns=columns, rows=tuple(rows), title="Combination", note=note)
