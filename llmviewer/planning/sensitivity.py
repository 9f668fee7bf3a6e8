"""How the capacity of a configuration changes with the lengths of requests, and the replicas with the rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.api.configuration import configuration
from llmviewer.core.errors import UserError
from llmviewer.planning.choices import Choice, capacity_of
from llmviewer.planning.options import Question
from llmviewer.planning.screen import Candidate, screened
from llmviewer.planning.space import Refusal, Structure
from llmviewer.planning.workload import Workload
from llmviewer.simulation.call import BATCHING, ENGINE

#: Changes of the load that are tried.
CHANGES: Mapping[str, float] = {"-25 %": 0.75, "+25 %": 1.25}


def sensitivity(asked: Question, best: Choice) -> dict[str, dict[str, float]]:
    """Highest rates within the limits [1/s] by length and its change; by change of the rate, the replicas it needs."""
    workload = asked.workload
    found: dict[str, dict[str, float]] = {
        name: {
            change: _capacity(asked, best, replace(workload, **{name: max(getattr(workload, name) * factor, 1.0)}))
            for change, factor in CHANGES.items()
        }
        for name in ("input_len", "output_len")
    }
    if len(best.parts) == 1 and best.capacity:
        point, count = best.parts[0]
        each = best.capacity / count
        found["request_rate"] = {
            change: float(-(-workload.rate * factor // each)) + point.spare for change, factor in CHANGES.items()
        }
    return found


def _capacity(asked: Question, best: Choice, workload: Workload) -> float:
    try:
        parts = tuple((_again(asked, point, workload), count) for point, count in best.parts)
    except UserError:
        return 0.0
    return capacity_of(parts, workload)


def _again(asked: Question, point: Candidate, workload: Workload) -> Candidate:
    """The point of a candidate with the curves of another workload."""
    one = point.screened
    words = {"engine": ENGINE, "batching": BATCHING, **one.options}
    structure = Structure(
        hardware=one.hardware, options=one.options, configuration=configuration(asked.model, one.hardware, **words)
    )
    limits = {"max_num_batched_tokens": [int(v) for v in one.budgets], "max_num_seqs": [int(v) for v in one.sequences]}
    again = screened(structure, workload, limits, one.usd)
    if isinstance(again, Refusal):
        raise UserError(again.reason)
    return replace(point, screened=again.as_pool(one.pool))
