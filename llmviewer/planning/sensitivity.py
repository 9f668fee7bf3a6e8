"""How the highest rate of a configuration changes with the lengths of requests, and the replicas with the rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import ceil, inf

from llmviewer.api.configuration import on_devices
from llmviewer.core.errors import UserError
from llmviewer.planning.capacities import rate_with_lengths
from llmviewer.planning.choices import Choice, capacity_of
from llmviewer.planning.options import Question
from llmviewer.planning.screen import Bounds, Candidate, screened
from llmviewer.planning.space import Refusal, Structure
from llmviewer.planning.verification import verified
from llmviewer.planning.workload import Workload
from llmviewer.simulation.call import BATCHING
from llmviewer.simulation.parallel import on_all_cores
from llmviewer.timing.engine_serving import ENGINE

#: Changes of the load that are tried.
CHANGES: Mapping[str, float] = {"-25 %": 0.75, "+25 %": 1.25}
LENGTHS = ("input_len", "output_len")


def sensitivity(asked: Question, best: Choice) -> dict[str, dict[str, float]]:
    """Highest rates within the limits [1/s] by length and its change; by change of the rate, the replicas it needs.

    In a closed loop they are numbers of users.
    Both are found by simulations: the rates as `simulate --find-rate` finds them, the replicas as those of the answer.
    """
    load = "concurrency" if asked.load.users else "request_rate"
    names = [*_lengths(asked), *([load] if len(best.parts) == 1 else [])]
    tried = list(product(names, CHANGES))
    values = on_all_cores(lambda one: _changed(asked, best, *one), tried)
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for (name, change), value in zip(tried, values, strict=True):
        if value is not None:
            found[name][change] = value
    return {name: changes for name, changes in found.items() if len(changes) == len(CHANGES)}


def _lengths(asked: Question) -> tuple[str, ...]:
    """Lengths that can change: prompts that share blocks with others keep theirs, and so do turns of sessions."""
    if asked.traffic.sessions is not None:
        return ()
    trace = asked.traffic.trace
    return LENGTHS[1:] if trace is not None and trace.prefixes else LENGTHS


def _changed(asked: Question, best: Choice, name: str, change: str) -> float | None:
    """The rate or the replicas after a change; None where no number of replicas holds."""
    factor = CHANGES[change]
    if name in ("request_rate", "concurrency"):
        return _replicas(asked, best, factor)
    workload = replace(asked.workload, **{name: max(getattr(asked.workload, name) * factor, 1.0)})
    steady = _capacity(asked, best, workload) / max(best.capacity, 1e-12) * best.highest_rate / best.servers
    rate = rate_with_lengths(asked, best, name, factor, steady or best.rate)
    return rate * best.servers / best.in_a_server if rate < inf else None


def _replicas(asked: Question, best: Choice, factor: float) -> float | None:
    """Replicas that hold at the rate times a factor, spare ones included."""
    (point, count), load = best.parts[0], replace(asked.load, widest=False)
    if load.users:
        load = replace(load, users=max(round(factor * load.users), 1))
    elif load.rate is None:
        load = replace(load, words={**load.words, "speed_up": factor * asked.words["speed_up"]})
    else:
        load = replace(load, rate=factor * load.rate)
    candidate = replace(point, replicas=max(ceil(factor * count - 1e-9), 1))
    answer = verified(asked.model, candidate, load, Bounds())
    return float(answer.replicas + point.spare) if answer.holds else None


def _capacity(asked: Question, best: Choice, workload: Workload) -> float:
    """The highest rate in the steady state [1/s], near which simulations search; 0 where it has none."""
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
        hardware=one.hardware, options=one.options, configuration=on_devices(asked.model, one.hardware, **words)
    )
    limits = {"max_num_batched_tokens": [int(v) for v in one.budgets], "max_num_seqs": [int(v) for v in one.sequences]}
    again = screened(structure, workload, limits, one.usd)
    if isinstance(again, Refusal):
        raise UserError(again.reason)
    return replace(point, screened=again.as_pool(one.pool))
