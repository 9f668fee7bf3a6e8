"""Waiting of requests in a queue, split from the time of their first token: an estimate, which results do not state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmviewer.calibrate.diagnosis.parts import REST, Part
from llmviewer.calibrate.diagnosis.wording import short, told
from llmviewer.calibrate.e2e_rows import case_of
from llmviewer.calibrate.readers.run import Arrivals
from llmviewer.core.errors import UserError
from llmviewer.simulation.call import simulate

QUEUE = "queue"
#: Most requests that are simulated: the queue of a steady load does not depend on more.
MOST_REQUESTS = 500
#: Completed over arriving requests per second below which a queue grows; a short run's last requests end late.
GROWING = 0.8
UNKNOWN = "an estimate: the result does not state how long requests waited"


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
