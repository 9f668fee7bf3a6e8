"""The verdict on a request in five lines: fit, speed, bottleneck, best single change, certainty."""

from __future__ import annotations

from math import inf
from typing import Any

from llmviewer.reports import bottleneck
from llmviewer.reports import format as fmt
from llmviewer.reports.memory_bar import shortage
from llmviewer.reports.page import Emphasis, Facts
from llmviewer.result.verdict import Change, Verdict


def verdict(found: Verdict, answer: dict[str, Any], name: str = "") -> Facts:
    """Returns the five lines.  answer: the analysis object of the verdict's result.  name: of its configuration."""
    fits = bool(answer["memory"]["fits"])
    (label, fit), *others = _without_trials(answer)
    *others, certainty = others
    lines = (
        *((("Configuration", name),) if name else ()),
        (label, fit if fits else f"{fit}; {_remedies(found)}"),
        *others,
        ("Best change", _best(found) if fits else "none tried: the workload has to fit first"),
        certainty,
    )
    return Facts(lines=lines, emphasis=_emphasis(answer))


def at_once(answer: dict[str, Any]) -> Facts:
    """Returns the lines that need no trial of another option, the fit first."""
    return Facts(lines=_without_trials(answer), emphasis=_emphasis(answer))


def of_trials(found: Verdict, answer: dict[str, Any]) -> Facts:
    """Returns the line that the trials of other options add: the best change, or what makes the request fit."""
    if answer["memory"]["fits"]:
        return Facts(lines=(("Best change", _best(found)),))
    return Facts(lines=(("To make it fit", _remedies(found)),))


def _without_trials(answer: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The lines on fit, speed, bottleneck and certainty."""
    return (
        ("Fits" if answer["memory"]["fits"] else "DOES NOT FIT", _fit(answer["memory"])),
        ("Speed", _speed(answer)),
        ("Bottleneck", bottleneck.sentence(answer)),
        ("Certainty", _certainty(answer)),
    )


def _emphasis(answer: dict[str, Any]) -> Emphasis:
    return Emphasis.GROUP if answer["memory"]["fits"] else Emphasis.WARNING


def _fit(memory: dict[str, Any]) -> str:
    if not memory["fits"]:
        return shortage(memory).removeprefix("does not fit: ").partition(";")[0]
    used, budget = fmt.memory(memory["total_bytes"]), fmt.memory(memory["budget_bytes"])
    stored = f"{used} of a budget of {budget} per device"
    if memory["max_concurrent_requests"] is None:  # an encoder
        return f"{stored}; nothing is cached"
    concurrent = fmt.whole(memory["max_concurrent_requests"])
    return f"{stored}; room for {concurrent} requests of this length at once"


def _remedies(found: Verdict) -> str:
    """Returns changes that make a request fit that does not."""
    remedies = " or ".join(map(_remedy, found.remedies))
    return f"it fits with {remedies}" if remedies else "no single change that was tried makes it fit"


def _remedy(change: Change) -> str:
    """A change in words; a pipeline does not say how many devices it needs."""
    return f"{change.option} ({fmt.whole(change.devices)} devices)" if "spatial" in change.words else change.option


def _speed(answer: dict[str, Any]) -> str:
    """Returns decode rate per user and batch, and TTFT, each with its interval; idle slots generate nothing."""
    metrics, batch = answer["metrics"], answer["workload"]["batch_size"]
    ideal = answer["efficiency"]["kind"] == "ideal"
    known = metrics["intervals"]
    first = f"TTFT {fmt.duration(metrics['ttft_s'])}{_range(known.get('ttft_s'))}"
    if metrics["tpot_s"] is None:
        return f"{first}{' at least' if ideal else ''}; no decode steps"
    seconds = [metrics["tpot_s"], *(reversed(known["tpot_s"]["80"]) if known else ())]
    rate, *ends = (fmt.per_second(1.0 / one if one else inf) for one in seconds)
    interval = f" (80 % interval {' to '.join(ends)})" if ends else ""
    busy = batch * (1.0 - (answer["serving"] or {}).get("empty_slots", 0.0))
    whole = f", {fmt.per_second(busy / metrics['tpot_s'])} for the batch" if batch > 1 else ""
    bound = "at most " if ideal else ""
    return f"{bound}{rate} tokens/s per user{interval}{whole} in decode; {first}{' at least' if ideal else ''}"


def _range(levels: dict[str, Any] | None) -> str:
    return f" ({fmt.durations(*levels['80'])})" if levels else ""


def _best(found: Verdict) -> str:
    """Returns the best change on as many devices and the best on more, with the times they bring."""
    named = [change for change in (found.best, found.best_with_more_devices) if change is not None]
    tried = f"tried: {_tried(found)}; quality of the output not judged; llmviewer advise tries more options"
    if not named:
        return f"none of those tried saves 2 % of the request's time ({tried})"
    return (
        f"{'; with more devices '.join(_gain(found, change) for change in named)} ({tried})"
        if found.best
        else (f"none on these devices; with more devices {_gain(found, named[0])} ({tried})")
    )


def _tried(found: Verdict) -> str:
    """Returns the changes that were tried, by option: `--quantization fp8, w4a16, -tp 2`."""
    by_option: dict[str, list[str]] = {}
    for change in found.changes:
        option, _, value = change.option.partition(" ")
        by_option.setdefault(option, []).append(value)
    return ", ".join(f"{option} {', '.join(values)}" for option, values in by_option.items())


def _gain(found: Verdict, change: Change) -> str:
    before, after = found.result, change.result
    times = [
        f"{name} {fmt.duration(_plain(getattr(before, metric)))} → {fmt.duration(_plain(getattr(after, metric)))}"
        for name, metric in (("TPOT", "tpot_s"), ("TTFT", "ttft_s"))
        if _plain(getattr(before, metric)) is not None
    ]
    factor = float(before.e2e_s) / float(after.e2e_s)
    return f"{change.option}: {fmt.times(factor)} as fast ({', '.join(times)})"


def _plain(value: Any) -> float | None:
    number = float(value)
    return None if number != number else number  # noqa: PLR0124


def _certainty(answer: dict[str, Any]) -> str:
    times, kind = answer["provenance"]["times"], answer["efficiency"]["kind"]
    if kind == "ideal":
        return "times are lower bounds from the data sheet; --efficiency calibrated predicts real ones"
    known = answer["metrics"]["intervals"]
    metric = "tpot_s" if answer["metrics"]["tpot_s"] else "ttft_s"
    value = answer["metrics"][metric]
    low, high = (fmt.percent(abs(bound / value - 1.0)) for bound in known[metric]["80"])
    label = metric.removesuffix("_s").upper()
    return f"the measured {label} lies between −{low} and +{high} of this one in 80 % of cases; {times}"
