"""A simulation as a page: its verdict, percentiles of latencies with intervals, throughput and load."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Part, Row, Table, left, plain, right
from llmviewer.simulation.limits import STATISTICS
from llmviewer.simulation.result import METRICS, Simulation

#: Metric -> its name in the table.
NAMES = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT (per request)",
    "itl_s": "ITL (per token)",
    "e2e_s": "E2E",
    "queue_s": "queue",
}
#: Statistics whose intervals the table shows.
SHOWN_INTERVALS = ("mean", "p99")


def page(made: Simulation) -> Page:
    """Returns the page of a simulation."""
    answer = made.to_dict()
    parts: list[Part] = [_verdict(answer), _header(answer)]
    if not answer["saturated"]:
        parts.append(_latencies(answer))
    parts += [_load(answer), *_notes(answer)]
    return tuple(parts)


def _verdict(answer: dict[str, Any]) -> Facts:
    bad = answer["saturated"] or not all(one["holds"] for one in answer["limits"])
    emphasis = Emphasis.WARNING if bad else Emphasis.PLAIN
    return Facts(lines=(("Verdict", verdict_text(answer)),), emphasis=emphasis)


def verdict_text(answer: dict[str, Any]) -> str:
    """Returns whether the server sustains the load and the limits, in a sentence."""
    rate, most = answer["request_rate"], answer["max_request_rate"]
    if answer["saturated"]:
        return (
            f"saturated: {fmt.digits(rate)} requests/s arrive, highest sustainable rate {fmt.digits(most)} requests/s; "
            "the queue grows as long as the load lasts, so that latencies have no meaning"
        )
    if most is not None:
        held = ", ".join(f"{_name(one)} ≤ {fmt.duration(one['limit_s'])}" for one in answer["limits"])
        under = f" under {held}" if held else ""
        if not most:
            return f"no rate meets the limits{under}"
        return f"highest rate {fmt.digits(most)} requests/s{under}: the figures below are at this rate"
    carried = (
        f"sustains {fmt.digits(rate)} requests/s"
        if rate is not None
        else (f"answers {fmt.digits(answer['requests_per_s'])} requests/s")
    )
    return "; ".join((carried, *(_limit_text(answer, one) for one in answer["limits"])))


def _name(limit: dict[str, Any]) -> str:
    return f"{limit['metric'].removesuffix('_s').upper()} {limit['statistic']}"


def _limit_text(answer: dict[str, Any], limit: dict[str, Any]) -> str:
    value = answer[limit["metric"]][limit["statistic"]]
    word = "within" if limit["holds"] else "exceeds"
    return f"{_name(limit)} {fmt.duration(value)} {word} {fmt.duration(limit['limit_s'])}"


def _header(answer: dict[str, Any]) -> Facts:
    requests = f"{answer['requests']:,} requests"
    if answer["replications"] > 1:
        requests += f" in each of {answer['replications']} replications"
    warm_up = (
        f"the first {fmt.duration(answer['warm_up_s'])} cut as warm-up" if answer["warm_up_s"] else "no warm-up cut"
    )
    server = (
        f"{plain(answer['model'])} on {answer['hardware']}, {answer['layout']}; engine {answer['engine']}, scheduler "
        f"{' and '.join(dict.fromkeys(answer['schedulers']))}; efficiency: {answer['efficiency']}"
    )
    return Facts(
        lines=(
            ("Server", server),
            ("Load", plain(answer["workload"])),
            ("Run", f"{requests}, {warm_up}; seed {answer['seed']}"),
        )
    )


def _latencies(answer: dict[str, Any]) -> Table:
    columns = (
        left("Latency"),
        *(right(name) for name in STATISTICS),
        *(right(f"80 % of {name}, {source}", rank=rank) for source, rank in (("calibration", 1), ("replications", 2))
          for name in SHOWN_INTERVALS),
    )  # fmt: skip
    rows = tuple(
        Row(
            cells=(
                NAMES[metric],
                *(fmt.duration(answer[metric][name]) for name in STATISTICS),
                *(_interval(answer["intervals"], source, metric, name)
                  for source in ("calibration", "replications") for name in SHOWN_INTERVALS),
            )
        )
        for metric in METRICS
    )  # fmt: skip
    single = "20 parts of the run" if answer["replications"] == 1 else "replications"
    note = f"80 % intervals: of the calibration's error, and of the scatter of {single}"
    return Table(columns=columns, rows=rows, title="Latencies", note=note)


def _interval(intervals: dict[str, Any], source: str, metric: str, statistic: str) -> str:
    bounds = intervals.get(source, {}).get(metric, {}).get(statistic, {}).get("80", [None, None])
    return fmt.durations(*bounds)


def _load(answer: dict[str, Any]) -> Facts:
    tokens, devices = answer["output_tokens_per_s"], answer["devices"]
    rates = (
        f"{fmt.digits(tokens)} output tokens/s ({fmt.digits(tokens / devices)} per device), "
        f"{fmt.digits(answer['requests_per_s'])} requests/s"
    )
    if answer["limits"] and answer["goodput_requests_per_s"] is not None:
        rates += f", goodput {fmt.digits(answer['goodput_requests_per_s'])} requests/s within the limits"
    busy = (
        f"{fmt.percent(answer['utilization'])} of the time busy; {fmt.digits(answer['running_mean'])} requests run and "
        f"{fmt.digits(answer['waiting_mean'])} wait in the mean"
    )
    cache = f"{fmt.percent(answer['kv_cache_occupancy_mean'])} of its blocks held in the mean, "
    cache += f"{answer['preemptions']:,} preemptions, {fmt.percent(answer['prefix_hit_rate'])} of prompt tokens found"
    return Facts(lines=(("Throughput", rates), ("Replicas", busy), ("KV cache", cache)), title="Load")


def _notes(answer: dict[str, Any]) -> Page:
    lines = [("Refused", f"{count:,} requests {reason}") for reason, count in answer["refused"].items() if count]
    if answer["interrupted"]:
        left_out = answer["requests"] - answer["completed"]
        lines.append(("Interrupted", f"{left_out:,} of {answer['requests']:,} requests had not been answered"))
    lines += [("Note", plain(note)) for note in answer["notes"]]
    return (Facts(lines=tuple(lines), emphasis=Emphasis.WARNING),) if lines else ()
