"""First floor of `size`: every point of a structure in closed form, as arrays.

A point is a token budget, a limit of sequences and a number of replicas; each is priced at a representative step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.planning.curves import curves_of
from llmviewer.planning.space import Refusal, Structure, Words
from llmviewer.planning.steady_state import Curves, Steady, closed, steady
from llmviewer.planning.workload import Workload
from llmviewer.simulation.cache_capacity import MAX_SEQUENCES, TOKEN_BUDGET

#: Token budgets of a step and limits of sequences that are tried beside the engine's own; few beside fewer slots.
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
FEW_SEQUENCES, SEQUENCES = (8, 16), (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
#: Numbers of replicas: each up to the first, then ever larger steps.
EACH_REPLICA, MOST_REPLICAS = 128, 10_000
REPLICAS = np.unique(np.r_[1.0 : EACH_REPLICA + 1, np.round(EACH_REPLICA * 1.02 ** np.arange(1, 222))])
#: Parts of these numbers that are priced one after another, as few replicas are often enough.
FEW_REPLICAS = (4, 32)
#: Points of one structure that are kept for simulation.
MOST_POINTS = 2
#: Rates of one replica among which its capacity is found [1/s], and numbers of users.
RATES = np.geomspace(1e-3, 1e4, 2001)
USERS = np.unique(np.round(np.geomspace(1.0, 1e5, 800)))
#: Pool -> the curves that it has of a structure.
POOLS: Mapping[str, Callable[[Curves], Curves]] = {
    "prompts": lambda curves: curves.of_prompts,
    "answers": lambda curves: curves.of_answers,
}
#: Measure of an objective, devices, dollars per hour, number of options, seconds, options.
Order = tuple[float, float, float, float, float, str]
#: Points of the front that a structure contributes: one per step of this ratio in tokens per second and user.
FRONT_STEPS = 24


@frozen
class Bounds:
    """Most devices and dollars per hour of an answer, infinite where the user sets none, and its spare replicas.

    replicas: most of them, as users of a closed loop keep no more busy.
    """

    devices: float = np.inf
    replicas: float = MOST_REPLICAS
    usd_per_hour: float = np.inf
    spare: int = 0


@frozen(eq=False)
class Screened:
    """A structure with the curves that price its points; it holds no model and passes between processes.

    hardware: as the user names it; chip: its stem, of unlike devices all with + between them. budgets, sequences:
    values of max_num_batched_tokens and max_num_seqs, the engine's own first unless the user lists some; own: the
    engine's. usd: of one device per hour; None where no price is known. watts: its power limit; infinite where it is
    not published. pool: of POOLS; empty for a server that does both.
    """

    hardware: str
    chip: str
    maker: str
    options: Words
    ranks: int
    devices: int
    curves: Curves
    budgets: Array
    sequences: Array
    own: Mapping[str, float]
    usd: float | None
    watts: float = np.inf
    pool: str = ""

    @property
    def is_sum(self) -> bool:
        """Whether its devices are unlike."""
        return "+" in self.chip

    def replicas(self, bounds: Bounds) -> Array:
        """Numbers of replicas that the bounds allow, ascending; at least one."""
        return REPLICAS[: max(int(np.searchsorted(REPLICAS, self.most(bounds), side="right")), 1)]

    def most(self, bounds: Bounds) -> int:
        """Most replicas that the bounds allow, spare ones left out; 0 where they allow none or no price is known."""
        most = min(bounds.devices / self.devices, bounds.replicas, MOST_REPLICAS)
        if np.isfinite(bounds.usd_per_hour):
            most = 0.0 if self.usd is None else min(most, bounds.usd_per_hour / max(self.usd * self.devices, 1e-12))
        return max(int(most + 1e-9) - bounds.spare, 0)

    def serves(self, bounds: Bounds) -> bool:
        """Whether a request fits its cache, and a replica the bounds."""
        return bool(self.curves.slots.any()) and self.most(bounds) > 0

    def at(self, workload: Workload, replicas: Array) -> Steady:
        """The steady state with these numbers of replicas, over budgets x sequences x replicas."""
        counts = np.asarray(replicas, dtype=float)
        if workload.users:
            return self.closed(workload, np.ceil(workload.users / counts))
        rate = workload.rate / (counts * self.ranks)
        return steady(self.curves, workload, rate[None, None, :], self.sequences[None, :, None])

    def closed(self, workload: Workload, users: Array) -> Steady:
        """The steady state with these numbers of users of a replica, over budgets x sequences x users."""
        each = np.ceil(users / self.ranks)
        return closed(self.curves, workload, each[None, None, :], self.sequences[None, :, None])

    def as_pool(self, pool: str) -> Screened:
        """The structure as one of POOLS, with the first budget and limit of sequences; as it is for an empty name."""
        if not pool:
            return self
        curves = POOLS[pool](self.curves.of_first_budget)
        return replace(self, curves=curves, budgets=self.budgets[:1], sequences=self.sequences[:1], pool=pool)

    def points(self, bounds: Bounds) -> int:
        """Number of points within the bounds."""
        return len(self.budgets) * len(self.sequences) * len(self.replicas(bounds))

    def words(self, budget: int, sequences: int) -> dict[str, Any]:
        """Options of a point; the engine's own limits are not repeated."""
        limits = {"max_num_batched_tokens": self.budgets[budget], "max_num_seqs": self.sequences[sequences]}
        changed = {name: int(value) for name, value in limits.items() if value != self.own[name]}
        return {**self.options, **changed}

    def usd_per_hour(self, replicas: float) -> float:
        """Dollars per hour; infinite where no price is known."""
        return np.inf if self.usd is None else self.usd * self.devices * replicas


@frozen
class Candidate:
    """A point of a structure that meets all limits in the steady state, before it is simulated.

    replicas: as few as meet them; spare: beyond those.  words: options of the point.
    ttft_s, tpot_s: at the limited statistics [s].
    prompt_share: of the time of its devices.
    """

    screened: Screened
    words: Words
    replicas: int
    spare: int
    mean_ttft_s: float
    mean_tpot_s: float
    ttft_s: float
    tpot_s: float
    prompt_share: float

    @property
    def devices(self) -> int:
        """Devices of all replicas, spare ones included."""
        return self.screened.devices * (self.replicas + self.spare)

    @property
    def usd_per_hour(self) -> float:
        """Dollars per hour, spare replicas included; infinite where no price is known."""
        return self.screened.usd_per_hour(self.replicas + self.spare)

    @property
    def key(self) -> Words:
        """Options by which candidates are told apart."""
        return self.words

    def order(self, objective: str, workload: Workload) -> Order:
        """The figures that an objective compares in the steady state, less is better."""
        seconds = self.mean_ttft_s + workload.steps * self.mean_tpot_s
        if objective == "latency":
            measure = seconds
        elif objective == "usd-per-token":
            measure = self.usd_per_hour / max(self.capacity(workload) * workload.output_len, 1e-12) / 3600.0
        elif objective == "usd":
            measure = self.usd_per_hour
        else:
            measure = float(self.devices) * (self.screened.watts if objective == "watts" else 1.0)
        fewest = seconds if objective == "watts" else float(len(self.words))  # less time takes less energy
        return measure, float(self.devices), self.usd_per_hour, fewest, seconds, str(self.words)

    def least(self, objective: str, workload: Workload) -> Order:
        """The least figures that it can have in simulation: those of the steady state."""
        return self.order(objective, workload)

    def capacity(self, workload: Workload) -> float:
        """The highest rate of all replicas within the limits [1/s]."""
        return capacity(self.screened, workload) * self.replicas


def screened(
    structure: Structure, workload: Workload, allowed: Mapping[str, Sequence[int]], usd: float | None
) -> Screened | Refusal:
    """The structure with the curves of its passes; a Refusal for what is not priced.

    allowed: values of max_num_batched_tokens and max_num_seqs that the user lists.
    """
    one, chips = structure.configuration, structure.chips
    engine, budget = one.system.engine, one.token_budget
    power_w = [one.system.chip.power_w] if len(chips) == 1 else [chip.power_w for chip in chips]
    own_budget = int(budget) if isfinite(budget) else TOKEN_BUDGET
    own_sequences = int(engine.max_num_seqs) if isfinite(engine.max_num_seqs) else MAX_SEQUENCES
    budgets = _own_first(allowed.get("max_num_batched_tokens"), own_budget, BUDGETS)
    few = FEW_SEQUENCES if own_sequences < SEQUENCES[0] else ()
    sequences = _own_first(allowed.get("max_num_seqs"), own_sequences, (*few, *SEQUENCES))
    try:
        curves = curves_of(structure, workload, budgets)
    except UserError as error:
        return Refusal(hardware=structure.hardware, options=structure.options, reason=error.marked)
    return Screened(
        hardware=str(structure.hardware),
        chip="+".join(chip.name for chip in chips),
        maker=one.chip.maker,
        options=structure.options,
        ranks=structure.ranks,
        devices=structure.devices,
        curves=curves,
        budgets=budgets,
        sequences=sequences,
        own={"max_num_batched_tokens": own_budget, "max_num_seqs": own_sequences},
        usd=usd,
        watts=float(np.mean([np.inf if each is None else float(np.max(each)) for each in power_w])),
    )


def _own_first(listed: Sequence[int] | None, own: int, others: Sequence[int]) -> Array:
    """The engine's own value first, then the values to try; only those that the user lists, if any."""
    values = [float(value) for value in (listed or (own, *others))]
    return np.array(list(dict.fromkeys([own] * (listed is None) + values)), dtype=float)


def candidates(one: Screened, workload: Workload, bounds: Bounds) -> list[Candidate]:
    """The first MOST_POINTS of a structure that need the fewest replicas, those with the engine's own limits first."""
    replicas = one.replicas(bounds)
    if not one.serves(bounds) or (met := _first_met(one, workload, replicas)) is None:
        return []
    least = met[0]
    if least and replicas[least] > replicas[least - 1] + 1.0:
        replicas = np.arange(replicas[least - 1] + 1, replicas[least] + 1)
        met = _first_met(one, workload, replicas)
        assert met is not None  # the last of them meets the limits
    least, found, at = met
    return _points(one, workload, bounds, int(replicas[least]), found, at)


def _first_met(one: Screened, workload: Workload, replicas: Array) -> tuple[int, Steady, int] | None:
    """Index of the first of these numbers of replicas at which a point meets the limits; None for none of them.

    With the steady state of some of them, and its place there.
    """
    for start, end in pairwise((0, *FEW_REPLICAS, len(replicas))):
        found = one.at(workload, replicas[start:end])
        met = (found.excess(workload) <= 1.0).any(axis=(0, 1))
        if met.any():
            at = int(np.argmax(met))
            return start + at, found, at
    return None


def fastest(one: Screened, workload: Workload, bounds: Bounds) -> list[Candidate]:
    """The first MOST_POINTS of a structure with as many replicas as the bounds allow."""
    most = one.most(bounds)
    return _points(one, workload, bounds, most, one.at(workload, np.array([float(most)])), 0) if most else []


def _points(
    one: Screened, workload: Workload, bounds: Bounds, count: int, found: Steady, place: int
) -> list[Candidate]:
    """The points with so many replicas that meet the limits.  found, place: their steady state."""
    excess = found.excess(workload)[..., place]
    rows = np.argwhere(excess <= 1.0).tolist()
    rows.sort(key=lambda at: ((at[0] > 0) + (at[1] > 0), excess[tuple(at)]))
    return [_candidate(one, found, (*at, place), bounds, count) for at in rows[:MOST_POINTS]]


def _candidate(one: Screened, found: Steady, at: tuple[int, ...], bounds: Bounds, count: int) -> Candidate:
    return Candidate(
        screened=one,
        words=one.words(at[0], at[1]),
        replicas=count,
        spare=bounds.spare,
        mean_ttft_s=float(found.mean_ttft_s[at]),
        mean_tpot_s=float(found.mean_tpot_s[at]),
        ttft_s=float(found.ttft_s[at]),
        tpot_s=float(found.tpot_s[at]),
        prompt_share=float(found.prompt_share[at]),
    )


def front(one: Screened, workload: Workload, bounds: Bounds) -> list[Candidate]:
    """Points of a structure within the limits of which none is dominated, by TPOT and number of replicas."""
    replicas = one.replicas(bounds)
    found = one.at(workload, replicas)
    excess = found.excess(workload)
    time = np.where(excess <= 1.0, found.mean_tpot_s, np.inf)
    flat = time.reshape(-1, time.shape[2])
    rows = np.argmin(flat, axis=0)
    best = flat[rows, np.arange(len(replicas))]
    better = np.isfinite(best) & (best < np.minimum.accumulate(np.r_[np.inf, best[:-1]]))
    chosen = np.flatnonzero(better)
    chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, FRONT_STEPS).astype(int))] if len(chosen) else chosen
    points = []
    for index in chosen.tolist():
        at = (*np.unravel_index(rows[index], time.shape[:2]), index)
        points.append(_candidate(one, found, at, bounds, int(replicas[index])))
    return points


def capacity(one: Screened, workload: Workload) -> float:
    """The highest rate of requests that one replica sustains within the limits [1/s]; 0 for none.

    In a closed loop the rate at which it answers as many users as it holds.
    """
    if workload.users:
        found = one.closed(workload, USERS)
        cycles_s = found.mean_ttft_s + workload.steps * found.mean_tpot_s + workload.think_s
        rates = np.where(found.excess(workload) <= 1.0, USERS / cycles_s, 0.0).max(axis=(0, 1))
        return float(rates[np.flatnonzero(rates)[-1]]) if rates.any() else 0.0
    rates = RATES / one.ranks
    found = steady(one.curves, workload, rates[None, None, :], one.sequences[None, :, None])
    met = (found.excess(workload) <= 1.0).any(axis=(0, 1))
    return float(RATES[np.flatnonzero(met)[-1]]) if met.any() else 0.0
