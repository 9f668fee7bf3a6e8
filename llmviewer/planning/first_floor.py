"""First floor of `size` for one chip: all structures screened, the best of each, pairs of pools, and what rejects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llmviewer.api import build
from llmviewer.planning.gates import Gate
from llmviewer.planning.late_gates import late_gate
from llmviewer.planning.options import STEP_LIMITS, Question
from llmviewer.planning.pools import Pair, pairs
from llmviewer.planning.screen import Candidate, Screened, candidates, fastest, screened
from llmviewer.planning.space import Refusal, structures

#: Points of one structure that are kept for simulation, and pairs of pools of a chip.
MOST_POINTS, MOST_PAIRS = 2, 2
#: Devices of one structure where the user sets no limit.
MOST_DEVICES = 72


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChipScreen:
    """Findings of the first floor for one chip.

    ordered: the best points of each structure and pairs of pools, those first that the steady state prefers.  gates:
    of the structures that are rejected.  points: number of points that were priced.
    """

    hardware: str
    structures: tuple[Screened, ...]
    ordered: tuple[Candidate | Pair, ...]
    gates: tuple[Gate, ...]
    points: int


def points_of(asked: Question, one: Screened) -> list[Candidate]:
    """The points of a structure worth a simulation: the fastest for the least latency, else of the fewest replicas."""
    choose = fastest if asked.objective == "latency" else candidates
    return choose(one, asked.workload, asked.bounds)


def screen_chip(asked: Question, hardware: Any) -> ChipScreen:
    """The first floor of one chip.  Raises UserError."""
    done = list(_priced(asked, hardware))
    made = [one for one in done if isinstance(one, Screened)]
    gates = [one for one in done if isinstance(one, Gate)]
    found: list[Candidate | Pair] = []
    for each in made:
        points = points_of(asked, each)
        found += points[:MOST_POINTS] if "disaggregated" not in asked.only else ()
        if not points:
            gates.append(each.gate or late_gate(each, asked.workload, asked.bounds))
    if "continuous" not in asked.only:
        found += pairs(made, asked.workload, asked.bounds)[:MOST_PAIRS]
    found.sort(key=lambda one: one.order(asked.objective, asked.workload))
    return ChipScreen(
        hardware=str(hardware),
        structures=tuple(made),
        ordered=tuple(found),
        gates=tuple(gates),
        points=sum(each.points(asked.bounds) for each in made),
    )


def _priced(asked: Question, hardware: Any) -> Iterator[Screened | Gate]:
    """Every structure of a chip with its curves, or the reason why it has none."""
    price = asked.prices.of(build.chip_of(hardware).name)
    allowed = {name: values for name, values in asked.lists.items() if name not in ("batching", *STEP_LIMITS)}
    limits = {name: asked.lists[name] for name in STEP_LIMITS if name in asked.lists}
    most = int(min(asked.bounds.devices, MOST_DEVICES))
    for one in structures(asked.model, hardware, allowed, most):
        usd = None if price is None else price.usd_per_hour
        done = one if isinstance(one, Refusal) else screened(one, asked.workload, limits, usd)
        if isinstance(done, Refusal):
            yield Gate(constraint="support", margin=None, unit="", text=done.reason)
        else:
            yield done
