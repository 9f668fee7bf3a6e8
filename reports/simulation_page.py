"""A simulation as a page: its verdict, latencies with percentiles, throughput, load, and notes."""

from __future__ import annotations

from typing import Any

from llmviewer.language.quantity import SERVED
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right
from llmviewer.simulation.result import MOST_TURNS, Simulation

MEANINGS = (
    "TTFT, E2E: from arrival; TPOT: mean time per token of each request; ITL: each time between two tokens; Queue: from"
    " arrival to the first prompt token"
)
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
#: Intervals of the table: source, statistic, heading, rank.
INTERVALS = (
    ("calibration", "p99", "p99, 80 %", 1),
    ("calibration", "mean", "Mean, 80 %", 2),
    ("replications", "mean", "Mean, runs", 3),
    ("replications", "p99", "p99, runs", 4),
)
#: Share of the KV cache from which it is what bounds a server.
FULL = 0.9
#: Share of the requests of a saturated run from which their preemptions say the same.
OFTEN = 0.02


def page(found: Simulation) -> Page:
    """Returns the page of a simulation."""
    return of_document(found.to_dict())


def of_document(answer: dict[str, Any]) -> Page:
    """Returns the page of the document of a simulation."""
    first = (Facts(lines=(("Verdict", verdict(answer)),)), _header(answer))
    if not answer["completed"]:
        return (*first, *_warnings(answer))
    return (
        *first,
        _latencies(answer),
        *_turns(answer),
        *_limits(answer),
        _load(answer),
        _sources(answer),
        *_warnings(answer),
    )


def verdict(answer: dict[str, Any]) -> str:
    """Returns whether the load is sustained and all limits hold, and what bounds it."""
    begun = f"interrupted after {fmt.whole(answer['completed'])} answers; " if answer["interrupted"] else ""
    return begun + "; ".join(filter(None, (_judged(answer), _searched(answer), _bound(answer))))


def _judged(answer: dict[str, Any]) -> str:
    if answer["saturated"]:
        p99 = ", ".join(f"{SERVED[name].label} {fmt.duration(answer[name]['p99'])}" for name in ("ttft_s", "tpot_s"))
        rate = fmt.per_second(answer["requests_per_s"])
        return f"saturated: more requests arrive than the {rate}/s that are answered; p99 of this run {p99}"
    if not answer["completed"]:
        return "no request is answered: " + (", ".join(_refused(answer)) or "none arrives")
    if not answer["limits"]:
        p99 = ", ".join(f"{SERVED[name].label} {fmt.duration(answer[name]['p99'])}" for name in ("ttft_s", "tpot_s"))
        return f"sustained: {fmt.per_second(answer['requests_per_s'])} requests/s with p99 of {p99}"
    broken = [one for one in answer["limits"] if not one["holds"]]
    told = ", ".join(f"{_limit(one)} is {fmt.duration(_value(answer, one))}" for one in broken or answer["limits"])
    return f"{'a limit does not hold' if broken else 'all limits hold'}: {told}"


def _limit(one: dict[str, Any]) -> str:
    return f"{SERVED[one['metric']].label} {one['statistic']} (limit {fmt.duration(one['limit_s'])})"


def _value(answer: dict[str, Any], one: dict[str, Any]) -> float | None:
    found: float | None = answer[one["metric"]][one["statistic"]]
    return found


def _searched(answer: dict[str, Any]) -> str:
    """Returns the highest rate that a search has found."""
    rate = answer["max_request_rate"]
    if rate is None:
        return ""
    within = " within the limits" if answer["limits"] else ""
    if not rate:
        return f"no rate is sustained{within}"
    bounds = answer["intervals"].get("calibration", {}).get("max_request_rate")
    spread = "" if bounds is None else f" (80 %: {' to '.join(map(fmt.per_second, bounds['80']))})"
    ends = "" if answer.get("beyond") is None else f"; limited by {ending(answer['beyond'])}"
    return f"highest rate{within}: {fmt.per_second(rate)} requests/s{spread}{ends}"


def ending(beyond: dict[str, Any]) -> str:
    """Returns what a run just above the highest rate does not keep."""
    at = f"at {fmt.per_second(beyond['request_rate'])} requests/s"
    if not beyond["broken"]:
        return f"the server: {at} its queue grows, {_bound(beyond)}"
    told = (
        f"{SERVED[one['metric']].label} {one['statistic']}, {fmt.duration(one['value_s'])}" for one in beyond["broken"]
    )
    return f"{', '.join(told)} {at}"


def _bound(answer: dict[str, Any]) -> str:
    """Returns what keeps requests waiting: the KV cache, or the steps themselves."""
    if not answer["completed"] or answer.get("beyond"):
        return ""
    full, preempted = fmt.percent(round(answer["kv_cache_occupancy_mean"], 3)), answer["preemptions"]
    often = answer["saturated"] and preempted > OFTEN * answer["completed"]
    if answer["kv_cache_occupancy_mean"] >= FULL or often:
        return f"the KV cache bounds it ({full} full)"
    if answer["saturated"]:
        return f"the time of steps bounds it, not the KV cache ({full} full)"
    return f"the KV cache is {full} full{' in the mean, and all of it at times' if preempted else ''}"


def _header(answer: dict[str, Any]) -> Facts:
    engine = f"{answer['engine']}, " if answer["efficiency"] == "calibrated" else ""
    policies = " and ".join(dict.fromkeys(answer["schedulers"]))
    return Facts(
        lines=(
            ("Model", answer["model"]),
            ("Hardware", f"{answer['hardware']}: {answer['layout']}"),
            ("Engine", f"{engine}scheduler {policies}; efficiency: {answer['efficiency']}"),
            ("Workload", answer["workload"]),
        )
    )


def _latencies(answer: dict[str, Any]) -> Table:
    shown = [one for one in INTERVALS if _is_known(answer, *one[:2])]
    heads = (
        left("Latency"),
        *(right("Mean" if name == "mean" else name, 0) for name in STATISTICS),
        *(right(title, rank) for _, _, title, rank in shown),
    )
    rows = [
        Row(
            cells=(
                one.label,
                *(fmt.duration(answer[name][statistic]) for statistic in STATISTICS),
                *(_interval(answer, source, name, statistic) for source, statistic, _, _ in shown),
            )
        )
        for name, one in SERVED.items()
    ]
    grows = "; saturated: they grow with the length of the run" if answer["saturated"] else ""
    title = "Latencies of a saturated run" if answer["saturated"] else "Latencies"
    return Table(columns=heads, rows=tuple(rows), title=title, note=MEANINGS + grows)


def _turns(answer: dict[str, Any]) -> tuple[Table, ...]:
    """Returns what each turn of the sessions costs; nothing of other loads."""
    rows = answer.get("turns", [])
    if not rows:
        return ()
    names = {name: SERVED[name].label for name in ("ttft_s", "tpot_s", "e2e_s")}
    heads = (right("Turn"), right("Requests", 1), right("Prompt"), right("Found"), *map(right, names.values()))
    cells = (
        (
            f"{one['turn']}{' on' if one['turn'] == MOST_TURNS else ''}",
            *(fmt.whole(round(one[name])) for name in ("requests", "input_len", "cached_tokens")),
            *(fmt.duration(one[name]) for name in names),
        )
        for one in rows
    )
    note = "means; Found: tokens of the prompt that the cache holds, which are not computed again"
    return (Table(columns=heads, rows=tuple(Row(cells=one) for one in cells), title="Turns", note=note),)


def _is_known(answer: dict[str, Any], source: str, statistic: str) -> bool:
    found = answer["intervals"].get(source, {}).get("ttft_s", {})
    return statistic in found and found[statistic]["80"][0] is not None


def _interval(answer: dict[str, Any], source: str, name: str, statistic: str) -> str:
    found = answer["intervals"][source].get(name)
    return fmt.DASH if found is None else fmt.bounds(*found[statistic]["80"])


def _limits(answer: dict[str, Any]) -> tuple[Table, ...]:
    """Returns the limits with their values; nothing without limits."""
    if not answer["limits"]:
        return ()
    rows = [
        Row(
            cells=(
                f"{SERVED[one['metric']].label} {one['statistic']}",
                fmt.duration(_value(answer, one)),
                fmt.duration(one["limit_s"]),
                "yes" if one["holds"] else "NO",
            )
        )
        for one in answer["limits"]
    ]
    heads = (left("Limit of"), right("Value"), right("Limit"), left("Holds"))
    return (Table(columns=heads, rows=tuple(rows), title="Limits"),)


def _load(answer: dict[str, Any]) -> Facts:
    devices, tokens = answer["devices"], answer["output_tokens_per_s"]
    offered = "" if answer["request_rate"] is None else f"; {fmt.per_second(answer['request_rate'])} arrive"
    shared = f"; {fmt.per_second(tokens / devices)} per device" if devices > 1 else ""
    goodput = answer["goodput_requests_per_s"]
    kept = (("Goodput", f"{fmt.per_second(goodput)} requests/s", "requests within all limits"),)
    return Facts(
        title="Throughput and load",
        lines=(
            ("Throughput", f"{fmt.per_second(answer['requests_per_s'])} requests/s", f"answered{offered}"),
            ("", f"{fmt.per_second(tokens)} tokens/s", f"output tokens{_bounds(answer)}{shared}"),
            *(kept if answer["limits"] and goodput is not None else ()),
            ("Running", fmt.digits(answer["running_mean"]), "requests, mean over time"),
            ("Waiting", fmt.digits(answer["waiting_mean"]), "requests, mean over time"),
            ("Busy", fmt.share(answer["utilization"]), "share of the time in which a replica works"),
            (
                "KV cache",
                fmt.share(answer["kv_cache_occupancy_mean"]),
                f"of its blocks in use, mean over time; {_times(answer['preemptions'], 'preemption')}; "
                f"{fmt.percent(round(answer['prefix_hit_rate'], 3))} of prompt tokens found in it{_tiers(answer)}",
            ),
        ),
    )


def _tiers(answer: dict[str, Any]) -> str:
    """Returns the share of the prompt tokens that each tier of the cache had; nothing without tiers."""
    shares = answer.get("prefix_hit_rates", {}).items()
    return f" ({', '.join(f'{name} {fmt.percent(round(share, 3))}' for name, share in shares)})" if shares else ""


def _bounds(answer: dict[str, Any]) -> str:
    """Returns the interval of the output tokens per second, after a space; nothing for ideal times."""
    known = answer["intervals"]["calibration"].get("output_tokens_per_s")
    return "" if known is None else f" (80 %: {' to '.join(map(fmt.per_second, known['80']))})"


def _times(count: int, noun: str) -> str:
    return f"{fmt.whole(count)} {noun}{'' if count == 1 else 's'}" if count else f"no {noun}s"


def _sources(answer: dict[str, Any]) -> Facts:
    """Returns which requests count and where intervals come from."""
    count, runs, cut = fmt.whole(answer["requests"]), answer["replications"], answer["warm_up_s"]
    warm_up = f"the first {fmt.duration(cut)} are warm-up, which statistics leave out" if cut else "no warm-up is cut"
    several = f", {runs} replications" if runs > 1 else ""
    parts = "the replications" if runs > 1 else "twenty parts of the run"
    lines = [("Requests", f"{count} arrive, {fmt.whole(answer['completed'])} are answered; {warm_up}")]
    known = {
        "80 %: errors of the calibration": bool(answer["intervals"]["calibration"]),
        f"runs: scatter of {parts}, at 80 %": _is_known(answer, "replications", "mean"),
    }
    if any(known.values()):
        lines.append(("Intervals", "; ".join(text for text, is_known in known.items() if is_known)))
    lines.append(("Random", f"seed {answer['seed']}{several}"))
    return Facts(title="Sources", lines=tuple(lines), emphasis=Emphasis.FAINT)


def _warnings(answer: dict[str, Any]) -> tuple[Facts, ...]:
    """Returns refused requests by reason, and the notes."""
    cut = "throughput and load are too low where replicas were simulated one after another"
    interrupted = (f"interrupted: requests that were not simulated are left out; {cut}",) * answer["interrupted"]
    lines = tuple(("Warning", text) for text in (*interrupted, *_refused(answer), *answer["notes"]))
    return (Facts(lines=lines, emphasis=Emphasis.WARNING),) if lines else ()


def _refused(answer: dict[str, Any]) -> list[str]:
    """Returns the refused requests by reason."""
    reasons = {reason: number for reason, number in answer["refused"].items() if number}
    return [f"{fmt.whole(n)} request{'s' if n > 1 else ''} refused as {reason}" for reason, n in reasons.items()]
