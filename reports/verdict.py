"""The verdict on a request in five lines: fit, speed, bottleneck, best single change, certainty."""

from __future__ import annotations

from math import inf
from typing import Any

from llmviewer.language.quantity import LATENCIES
from llmviewer.reports import bottleneck
from llmviewer.reports import format as fmt
from llmviewer.reports.memory_bar import doubt, shortage
from llmviewer.reports.page import Emphasis, Facts
from llmviewer.reports.serving import WHOLE_BATCH, is_whole_batch, kernels_alone
from llmviewer.result.costs import GIVEN
from llmviewer.result.result import Change, Verdict


def verdict(found: Verdict, answer: dict[str, Any], name: str = "") -> Facts:
    """Returns the five lines.  answer: the analysis object of the verdict's result.  name: of its configuration."""
    memory = answer["memory"]
    fits = bool(memory["fits"])
    label, stored = _fitting(answer)
    speed, limit, certainty = _times(answer)
    lines = (
        *((("Configuration", name),) if name else ()),
        *_refusal(memory),
        (label, stored if fits else f"{stored}; {_remedies(found)}"),
        *_host(memory),
        speed,
        limit,
        *_cost(answer),
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
    """The lines on the start, if the engine refuses it, on fit, speed, bottleneck, certainty, and costs if asked."""
    memory = answer["memory"]
    return (*_refusal(memory), _fitting(answer), *_host(memory), *_times(answer), *_cost(answer))


def _refusal(memory: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return (("WILL NOT START", memory["refusal"]),) if memory["refusal"] else ()


def _fitting(answer: dict[str, Any]) -> tuple[str, str]:
    """Whether the request fits, with the doubt of it."""
    memory = answer["memory"]
    label = "At the edge" if memory["at_edge"] else "Fits" if memory["fits"] else "DOES NOT FIT"
    return (label, _fit(memory) + _doubt(answer))


def _host(memory: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The computer beside the device, which decides on the speed of what is offloaded to it."""
    if not (memory["host_bytes"] or memory["disk_bytes"]):
        return ()
    size = memory["host_capacity_bytes"]
    used = f"{fmt.memory(memory['host_bytes'])} offloaded" + (f" to its {fmt.memory(size)}" if size else "")
    disk = f", {fmt.memory(memory['disk_bytes'])} to its disk {memory['disk']}" if memory["disk_bytes"] else ""
    layers = memory["host_layers"]
    parts = [(layers["whole"], ""), (layers["part"], "parts of ")]
    computed = " and ".join(f"{what}{count} of {layers['all']} layers" for count, what in parts if count)
    computes = f" computes {computed}" if computed else ""
    return (("Host", f"{memory['host']}{computes}: {used}{disk}; another with host=NAME"),)


def _times(answer: dict[str, Any]) -> tuple[tuple[str, str], tuple[str, str], tuple[str, str]]:
    return (
        ("Speed", _speed(answer)),
        ("Bottleneck", bottleneck.sentence(answer)),
        ("Certainty", _certainty(answer)),
    )


#: Figures of a sentence on costs, and what follows them.
COSTS = {
    "usd_per_million_output_tokens": " per million output tokens",
    "joules_per_output_token": " per output token",
    "grams_co2_per_million_output_tokens": " g of CO2 per million",
}


def _cost(answer: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The line on money and energy of a run whose prices, API or electricity are stated."""
    found, price = answer["metrics"], answer["provenance"]["price"]
    share = found["break_even_utilization"]
    stated = price is not None and price["source"] == GIVEN
    if not stated and share is None and found["grams_co2_per_million_output_tokens"] is None:
        return ()
    words = [f"{fmt.told(name, found[name])}{more}" for name, more in COSTS.items() if found[name] is not None]
    if price is not None and found["usd_per_hour"] is not None:
        words[0] += f" at ${fmt.figure('usd_per_hour', found['usd_per_hour'])} an hour ({price['term']})"
    if share is not None:
        month = found["break_even_tokens_per_month"]
        least = (
            "never" if month is None else f"from {fmt.figure('break_even_tokens_per_month', month)} tokens a month on"
        )
        words.append(f"cheaper than the API {least} ({fmt.percent(share)} of the hours at this load)")
    return (("Cost", "; ".join(words)),)


def _emphasis(answer: dict[str, Any]) -> Emphasis:
    memory = answer["memory"]
    return Emphasis.GROUP if memory["fits"] and not memory["refusal"] else Emphasis.WARNING


def _fit(memory: dict[str, Any]) -> str:
    if not memory["fits"] and not memory["at_edge"]:
        return shortage(memory).removeprefix("does not fit: ").partition(";")[0]
    used, budget = fmt.memory(memory["total_bytes"]), fmt.memory(memory["budget_bytes"])
    stored = f"{used} of a budget of {budget} per device{doubt(memory)}"
    if memory["max_concurrent_requests"] is None:  # an encoder
        return f"{stored}; nothing is cached"
    count = max(memory["max_concurrent_requests"], memory["max_batch_size"] or 0)  # the first as the engine reserves
    return f"{stored}; room for {fmt.whole(count)} request{'' if count == 1 else 's'} of this length at once"


def _doubt(answer: dict[str, Any]) -> str:
    """The mark of a fit that depends on layers of which the checkpoint's name states no format."""
    unsure = any(warning.startswith("unsure whether it fits") for warning in answer["warnings"])
    return "; unsure, as a warning says" if unsure else ""


def _remedies(found: Verdict) -> str:
    """Returns changes that make a request fit that does not."""
    remedies = " or ".join(map(_remedy, found.remedies))
    return f"it fits with {remedies}" if remedies else "no single change that was tried makes it fit"


def _remedy(change: Change) -> str:
    """A change in words; a pipeline does not say how many devices it needs."""
    return f"{change.option} ({fmt.whole(change.devices)} devices)" if "spatial" in change.words else change.option


def _speed(answer: dict[str, Any]) -> str:
    """Returns decode rate per user and batch, and TTFT, each with its interval and whose they are.

    They are those of the kernels, and of the usual engine or why it has none; or those of the stated engine.
    """
    efficiency, served, unknown = answer["efficiency"], answer.get("served"), answer.get("served_unknown")
    if efficiency["kind"] == "ideal":
        return _rates(answer, answer["metrics"], bound="at most ")
    alone = kernels_alone(answer)
    is_named = not alone or not efficiency["engine_title"].startswith(efficiency["engine"])
    by = f"as {efficiency['engine_title']} serves it" if is_named else "by its kernels"
    texts = [_rates(answer, answer["metrics"], by)]
    if served is not None:
        by = f"as {served['engine_title']} serves it"
        room = "" if served["fits"] or not answer["memory"]["fits"] else ", where it does not fit"
        texts.append(f"{_rates(answer, served, by, again=True)}{room}")
    texts += [f"no figure of an engine: {unknown}"] if unknown else []
    texts += [f"TTFT is the {WHOLE_BATCH}"] if is_whole_batch(answer) and (served or not alone) else []
    return "; ".join(texts)


def _rates(answer: dict[str, Any], found: dict[str, Any], by: str = "", bound: str = "", *, again: bool = False) -> str:
    """Returns the rates of decode and TTFT by these figures; idle slots generate nothing.

    found: metrics.  by: whose they are.  again: units stand in the text before it.
    """
    batch, known = answer["workload"]["batch_size"], found["intervals"]
    of, level = f" {by}" if by else "", "" if again else "80 % interval "
    first = f"TTFT {fmt.duration(found['ttft_s'])}{_range(known.get('ttft_s'))}{' at least' if bound else ''}"
    if found["tpot_s"] is None:
        return f"{first}{of}{'' if again else ', no decode steps'}"
    seconds = [found["tpot_s"], *(reversed(known["tpot_s"]["80"]) if known else ())]
    rate, *ends = (fmt.per_second(1.0 / one if one else inf) for one in seconds)
    interval = f" ({level}{' to '.join(ends)})" if ends else ""
    busy = batch * (1.0 - (answer["serving"] or {}).get("empty_slots", 0.0))
    whole = f", {fmt.per_second(busy / found['tpot_s'])} for the batch" if batch > 1 else ""
    unit, stage = ("", "") if again else (" tokens/s per user", " in decode")
    return f"{bound}{rate}{unit}{of}{interval}{whole}{stage}, {first}"


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
        f"{LATENCIES[metric].label} {' → '.join(fmt.duration(_plain(getattr(one, metric))) for one in (before, after))}"
        for metric in ("tpot_s", "ttft_s")
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
    label = LATENCIES[metric].label
    return f"the measured {label} lies between −{low} and +{high} of this one in 80 % of cases; {times}"
