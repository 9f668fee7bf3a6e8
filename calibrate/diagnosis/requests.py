"""Diagnosis of a benchmark's result or of sums of kernels: the figures that add up to a request's or a pass's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.api.configuration import Configuration
from llmviewer.calibrate import judge
from llmviewer.calibrate.diagnosis.diagnosis import Diagnosis
from llmviewer.calibrate.diagnosis.doubts import WORK, Doubt, doubts_of_run, faster_than_possible
from llmviewer.calibrate.diagnosis.parts import OPERATOR, REST, Part
from llmviewer.calibrate.diagnosis.recording import Summary
from llmviewer.calibrate.diagnosis.slots import COMMUNICATION, kind_of
from llmviewer.calibrate.diagnosis.suspects import MOST, Suspect
from llmviewer.calibrate.diagnosis.wording import short, told
from llmviewer.calibrate.e2e_rows import case_of
from llmviewer.calibrate.e2e_runs import POSSIBLE_SHARE
from llmviewer.calibrate.lower_bound import share_of_roofline
from llmviewer.calibrate.readers import files, torch_profiler
from llmviewer.calibrate.readers.run import Arrivals, Stated
from llmviewer.core.errors import UserError, printable
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode
from llmviewer.simulation.call import simulate

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
QUEUE = "queue"
#: Most requests that are simulated: the queue of a steady load does not depend on more.
MOST_REQUESTS = 500
#: Completed over arriving requests per second below which a queue grows; a short run's last requests end late.
GROWING = 0.8
UNKNOWN = "an estimate: the result does not state how long requests waited"
#: Metric of throughput without answers: tokens of prompts per second (llama-bench's pp512).
PROMPT = "prompt_tok_s"
#: Metric of a request -> its part, and seconds per request of a value.
FIRST: dict[str, tuple[str, Callable[[Row, float], float]]] = {
    "ttft_ms": ("first token", lambda row, value: value * 1e-3),
    PROMPT: ("prompt", lambda row, value: row["input_len"] * row["batch"] / value),
}
FURTHER: dict[str, tuple[str, Callable[[Row, float], float]]] = {
    "tpot_ms": ("further tokens", lambda row, value: value * 1e-3 * max(row["output_len"] - 1.0, 0.0)),
    "decode_tok_s": ("further tokens", lambda row, value: row["output_len"] * row["batch"] / value),
}
WHOLE: dict[str, tuple[str, Callable[[Row, float], float]]] = {
    "latency_ms": ("whole request", lambda row, value: value * 1e-3),
    "throughput_tok_s": ("whole request", lambda row, value: row["output_len"] * row["batch"] / value),
}
#: Metric of a profile's table -> its part.
KERNELS = {f"{group}_ms": f"{group.removesuffix('s')} kernels" for group in torch_profiler.GROUPS}
#: Kind of a kernel -> its group; kinds that are not named belong to OTHERS, and "" is unknown.
BESIDE_MODEL = "beside the model"
GROUP_OF = {
    "": "",
    **dict.fromkeys(("matmul", "matmul_part", "experts"), "gemm"),
    **dict.fromkeys(("attention", "attention_part", "index"), "attention"),
    **dict.fromkeys(("all_reduce_norm", *COMMUNICATION), "collective"),
    **dict.fromkeys(("sampling", "prepare", "copy"), BESIDE_MODEL),
}
SIZES = ("batch_size", "input_len", "output_len", "passes", "tensor_parallel_size", "pipeline_parallel_size")
#: Part -> what its lateness means, and what to try.
CAUSES = {
    "first token": (
        "requests wait before or during their prompts",
        "llmviewer simulate with this load for the queue, a larger --max-num-batched-tokens, and the engine's log for "
        "preemptions for want of KV cache",
    ),
    "prompt": (
        "prompts are slower",
        "record a prompt with a profiler (nsys, rocprofv3) and diagnose the trace, which names the operators",
    ),
    QUEUE: (
        "requests wait in the queue",
        "more devices or a lower rate; vLLM's vllm:request_queue_time_seconds states the wait of a running server",
    ),
    "further tokens": (
        "decode steps are slower",
        "record a few of them with the engine's profiler and diagnose the trace, which names the operators",
    ),
    "whole request": (
        "the figure does not tell prompts from answers",
        "save a result with TTFT and TPOT, or a trace of a few steps",
    ),
}
#: An engine whose fitted times are of kernels much older than its builds, and what a faster run is told.
OLD_ENGINE = "llama.cpp"
OLD_TIMES = (
    "the times of llama.cpp are fitted to kernels of 2024, and builds since are faster: a run shorter than predicted "
    "may be an ordinary one"
)


def is_result(path: Path) -> bool:
    """Whether a file is the result of a benchmark, or the table of a profiler."""
    return torch_profiler.is_table(path) or (files.is_benchmark(path) and not _is_trace(path))


def _is_trace(path: Path) -> bool:
    from llmviewer.core.files import head

    begin = head(path, files.HEAD_BYTES)
    return any(word in begin for word in (b'"traceEvents"', b'"schemaVersion"', b'"ph"'))


def diagnosis_of_result(path: Path, stated: Stated) -> Diagnosis:
    """The diagnosis of the first run of a file.  Raises UserError if nothing in it can be predicted."""
    (frame,) = judge.predict_tables([path], stated.hardware, None, stated)
    run = None if torch_profiler.is_table(path) else files.first_run(path)
    doubts = () if run is None else tuple(doubts_of_run(run, stated))
    return _diagnosis(frame, str(path), doubts, None if run is None else run.arrivals)


def diagnosis_of_summary(found: Summary, stated: Stated, chosen: Configuration, source: str) -> Diagnosis:
    """The diagnosis of kernels summed by name, group by group, since their order is lost.

    Without stated passes, their number is that of attention kernels over attention layers.  Raises UserError if the
    user does not state stage, batch size and lengths.
    """
    seconds: dict[str, float] = {}
    for kernel in found.kernels:
        group = GROUP_OF.get(kind_of(kernel.name), torch_profiler.OTHERS)
        seconds[group] = seconds.get(group, 0.0) + kernel.seconds
    beside = seconds.pop(BESIDE_MODEL, 0.0)
    if not stated.passes:
        stated = replace(stated, passes=_passes(found, chosen))
    frame = torch_profiler.predicted_groups(seconds, stated, None, found.program, f"'{source}'")
    made = _diagnosis(frame, source)
    unmatched = seconds.get("", 0.0) / stated.passes
    note = f"{stated.passes} passes; {told(beside / stated.passes)} of a pass are copies, inputs and sampling"
    return replace(made, details={**made.details, "note": note, "unmatched_s": unmatched}, warnings=found.notes)


def _passes(found: Summary, chosen: Configuration) -> int:
    graph = chosen.system.prepared(chosen.model.graph(decode(1.0, 1.0)))
    layers = sum(block.repeats for block, operator in graph if operator.kind is Kind.ATTENTION)
    runs = sum(kernel.count for kernel in found.kernels if kind_of(kernel.name) == "attention")
    return max(round(runs / layers), 1) if layers else 1


def _diagnosis(
    frame: pd.DataFrame, source: str, doubts: tuple[Doubt, ...] = (), arrivals: Arrivals | None = None
) -> Diagnosis:
    """The diagnosis of rows of an end-to-end table with predictions.  arrivals: of the run, if they come at a rate."""
    records: list[dict[str, Any]] = [
        {str(key): value for key, value in row.items()} for row in frame.to_dict("records")
    ]
    rows = [row for row in records if isinstance(row.get("predicted"), float) and not isnan(row["predicted"])]
    chosen = list(_chosen(rows))
    if not chosen:
        reason = next((str(row["reason"]) for row in records if row.get("reason")), "it has none")
        raise UserError(f"'{printable(source)}' has no time that can be compared: {reason}")
    made = [
        part
        for row, one in chosen
        for part in without_queue(_part(row, *one), row, arrivals if row["metric"] == "ttft_ms" else None)
    ]
    doubts = doubts or tuple(islice(_too_fast([row for row, _ in chosen]), 1))
    parts = sorted((part for part in made if part.amount_s), key=lambda part: -abs(part.amount_s))
    measured, predicted = (sum(one[1](row, float(row[name])) for row, one in chosen) for name in ("value", "predicted"))
    first = rows[0]
    metrics = [_metric(row) for row in rows]
    fast = str(first["engine"]).startswith(OLD_ENGINE) and any(one["verdict"] == "fast" for one in metrics)
    return Diagnosis(
        source=source,
        program=str(first["source"]),
        model=str(first["model"]),
        hardware=str(first["device"]),
        engine=str(first["engine"]),
        measured_s=measured,
        predicted_s=predicted,
        parts=tuple(parts),
        suspects=tuple(_suspects(parts, doubts, measured - predicted)),
        details={
            "of": "pass" if str(rows[0]["metric"]) in KERNELS else "request",
            "metrics": metrics,
            "note": str(first.get("note") or ""),
        },
        warnings=(*(doubt.text for doubt in doubts), *((OLD_TIMES,) if fast and not doubts else ())),
    )


def _too_fast(rows: Sequence[Row]) -> Iterator[Doubt]:
    """The doubt of figures that are faster than the roofline of the stated run, the first of them."""
    for row in rows:
        if row["metric"] in KERNELS or not row.get("batch"):
            continue
        share = share_of_roofline(case_of(row, str(row["device"])), float(row["value"]))
        if share > 1.0 / POSSIBLE_SHARE:
            yield faster_than_possible(
                f"{_metric_of(row)} is {short(share)} times as fast as the roofline", row["device"]
            )


def _chosen(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Rows whose times add up, each with its part and its conversion to seconds."""
    by_metric: dict[str, dict[str, Any]] = {}
    for row in rows:
        by_metric.setdefault(_metric_of(row), row)
    kernels = [
        (row, (KERNELS[name], lambda _, value: value * 1e-3)) for name, row in by_metric.items() if name in KERNELS
    ]
    if kernels:
        yield from kernels
        return
    found = [
        next(((by_metric[name], one) for name, one in group.items() if name in by_metric), None)
        for group in (FIRST, FURTHER)
    ]
    if any(found):
        yield from (one for one in found if one is not None)
        return
    yield from ((by_metric[name], one) for name, one in list(WHOLE.items()) if name in by_metric and not found[0])


def _metric_of(row: Row) -> str:
    """Metric of a row; throughput without answers is that of prompts."""
    metric = str(row["metric"])
    return PROMPT if metric == "throughput_tok_s" and not row["output_len"] else metric


def _part(row: dict[str, Any], name: str, seconds: Callable[[Row, float], float]) -> Part:
    value, predicted = (seconds(row, float(row[key])) for key in ("value", "predicted"))
    low, high = sorted(seconds(row, float(row[key])) for key in ("low80", "high80"))
    figures = [short(float(row[key]), 3) for key in ("value", "predicted", "low80", "high80")]
    evidence = "{} {} measured, {} predicted (80 %: {} to {})".format(_metric_of(row), *figures)
    if str(row["metric"]) not in KERNELS:
        evidence += f"; of a request {told(value)}, {told(predicted)} predicted"
    kind = OPERATOR if name in KERNELS.values() else REST
    return Part(name=name, kind=kind, amount_s=value - predicted, outside=not low <= value <= high, evidence=evidence)


def _suspects(parts: Sequence[Part], doubts: Sequence[Doubt], difference: float) -> Iterator[Suspect]:
    """Another chip or model than stated, then parts above their interval, the largest first."""
    grave = [doubt for doubt in doubts if doubt.of != WORK]
    for doubt in grave:
        yield Suspect(text=doubt.text, amount_s=difference, remedy=doubt.remedy)
    for part in [one for one in parts if one.outside and one.amount_s > 0.0][: MOST - len(grave)]:
        cause, remedy = CAUSES.get(part.name, (f"{part.name} take longer than predicted", "a trace of a few passes"))
        yield Suspect(text=f"{cause}: {part.evidence}", amount_s=part.amount_s, remedy=remedy)


def _metric(row: Mapping[str, Any]) -> dict[str, Any]:
    value, low, high = (float(row[name]) for name in ("value", "low80", "high80"))
    verdict = "fine" if low <= value <= high else "slow" if (value > high) != _is_rate(row) else "fast"
    return {
        "metric": _metric_of(row),
        "measured": value,
        "predicted": float(row["predicted"]),
        "interval80": [low, high],
        "verdict": verdict,
    }


def _is_rate(row: Mapping[str, Any]) -> bool:
    return str(row["metric"]).endswith("_s") and "tok" in str(row["metric"])


def stated_of(hardware: str, model: str, options: Mapping[str, Any]) -> Stated:
    """Facts of a run that the user states in the options of `diagnose`.  Raises UserError for another option."""
    given = {name: value for name, value in options.items() if value not in (None, "")}
    for name in given:
        if name not in Stated.__dataclass_fields__:
            raise UserError(f"--{name.replace('_', '-')}: a result or sums of kernels are not compared with it")
    numbers: dict[str, Any] = {name: int(value) for name, value in given.items() if name in SIZES}
    words: dict[str, Any] = {name: str(value) for name, value in given.items() if name not in SIZES}
    return replace(Stated(hardware=hardware, model=model), **numbers, **words)


def without_queue(first: Part, row: Mapping[str, Any], arrivals: Arrivals | None) -> tuple[Part, ...]:
    """The part of the first token, and that of the queue before it if requests arrive at a rate and wait.

    row: of the end-to-end table, with TTFT and its prediction without a queue.
    """
    if arrivals is None or not first.outside or first.amount_s <= 0.0:
        return (first,)
    waiting, evidence = _estimated(row, arrivals)
    queue = min(waiting, first.amount_s)
    if queue <= 0.0:
        return (first,)
    said = f"{evidence}; {UNKNOWN}"
    waited = Part(name=QUEUE, kind=REST, amount_s=queue, outside=True, evidence=said)
    return waited, replace(first, amount_s=first.amount_s - queue)


def _estimated(row: Mapping[str, Any], arrivals: Arrivals) -> tuple[float, str]:
    """Mean time of a request in the queue [s], and from what it follows."""
    behind = backlog_s(arrivals, float(row["value"]) * 1e-3)
    served = arrivals.completed / arrivals.duration_s
    if behind > 0.0:
        text = f"{short(arrivals.rate, 3)} requests arrive per second and {short(served, 3)} are completed"
        return behind, f"{text}, so that the queue grows: {told(behind)} in the mean"
    seconds = _simulated(row, arrivals)
    return seconds, f"{told(seconds)} simulated with random arrivals of {short(arrivals.rate, 3)} requests per second"


def backlog_s(arrivals: Arrivals, first_token_s: float) -> float:
    """Mean wait [s] of a queue that grows evenly (a fluid queue), 0 if requests are completed as they arrive.

    All arrive within completed / rate; what the run takes beyond that and a first token is the wait of the last
    request, and half of it that of the mean one.
    """
    left = arrivals.duration_s - arrivals.completed / arrivals.rate - first_token_s
    return max(0.5 * left, 0.0) if arrivals.completed / arrivals.duration_s < GROWING * arrivals.rate else 0.0


def _simulated(row: Mapping[str, Any], arrivals: Arrivals) -> float:
    """Mean time in the queue of a simulated server [s], 0 if it cannot be simulated."""
    try:
        case = case_of(row)
        options: dict[str, Any] = dict(case.options)
        found = simulate(
            case.model,
            case.hardware,
            engine=case.preset,
            request_rate=arrivals.rate,
            requests=int(min(arrivals.completed, MOST_REQUESTS)),
            input_len=f"{max(case.input_len, 1.0):.0f}",
            output_len=f"{max(case.output_len, 1.0):.0f}",
            **options,
        ).to_dict()
    except UserError:
        return 0.0
    return float(found["queue_s"]["mean"])
