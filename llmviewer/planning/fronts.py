"""The Pareto front of configurations that hold in simulation: tokens/s of a user against devices or dollars."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, TypeAlias

from llmviewer.core.errors import UserError
from llmviewer.planning.choices import Choice, capacity_of, choice_of, order_of
from llmviewer.planning.floors import ChipScreen
from llmviewer.planning.options import Question
from llmviewer.planning.screen import Candidate, front
from llmviewer.planning.verification import verified
from llmviewer.planning.workload import Workload
from llmviewer.simulation.parallel import on_all_cores

#: Share of its time per token by which a dearer point must be faster; otherwise idle replicas would make the front.
LEAST_GAIN = 0.01
#: Times the winner's devices or dollars, beyond which a fleet is idle.
MOST_COST = 2.0
#: Rounds in which points that took the place of rejected ones are simulated, and most simulations of each.
ROUNDS, MOST_AT_ONCE = 3, 16
#: Chip, options and replicas.
Key: TypeAlias = tuple[str, str, int]


def front_of(
    asked: Question, screens: Sequence[ChipScreen], held: Sequence[Choice], best: Choice | None
) -> tuple[tuple[Choice, ...], int]:
    """Configurations of which no other is at least as good in both figures, the fastest first, and the runs it took.

    Every one holds in simulation, and a fleet of several replicas costs at most MOST_COST times the winner.
    held: configurations that were
    simulated already.  best: the winner, which is one of the front unless another is better in both figures; None: no
    configuration held, and there is no front.
    """
    if best is None or _cost(asked, best) == float("inf"):
        return (), 0
    most = MOST_COST * _cost(asked, best)
    known: dict[Key, Choice | None] = {_key(one): one for one in held}
    fewest = {_key(one)[:2]: one.servers for one in held if not asked.load.widest}  # with fewer they were rejected
    points = [one for one in _points(asked, screens, most) if one.replicas >= fewest.get(_key(one)[:2], 0)]
    runs = 0
    for _ in range(ROUNDS):
        line = _undominated(asked, _with_runs(points, known, held))
        unknown = [one for one in line if isinstance(one, Candidate)][:MOST_AT_ONCE]
        if not unknown:
            break
        known |= zip(map(_key, unknown), on_all_cores(lambda one: _simulated(asked, one), unknown), strict=True)
        runs += len(unknown)
    simulated = [one for one in known.values() if one is not None and _is_needed(asked, one, most)]
    return _with(asked, best, [one for one in _undominated(asked, simulated) if isinstance(one, Choice)]), runs


def _points(asked: Question, screens: Sequence[ChipScreen], most: float) -> list[Candidate]:
    """Points of one pool within the limits in the steady state and the cost; none if two pools are asked for."""
    if asked.only == "disaggregated":
        return []
    bounds, name = asked.bounds, "devices" if asked.words["front"] == "gpus" else "usd_per_hour"
    fleets = replace(bounds, **{name: min(getattr(bounds, name), most)})
    structures = [each for one in screens for each in one.structures if each.serves(bounds)]
    found = [point for each in structures for point in front(each, asked.workload, fleets)]
    return [one for one in found if _is_needed(asked, one, most) and _cost(asked, one) < float("inf")]


def _is_needed(asked: Question, one: Candidate | Choice, most: float) -> bool:
    """Whether it costs no more than that, or is a single server with its spares."""
    single = one.replicas == 1 if isinstance(one, Candidate) else one.servers == 1 and len(one.parts) == 1
    return _cost(asked, one) <= most or single


def _with_runs(
    points: Sequence[Candidate], known: Mapping[Key, Choice | None], held: Sequence[Choice]
) -> list[Candidate | Choice]:
    """Every point, or its run in place of it where it has one; those whose run was rejected are left out."""
    told = [known.get(_key(one), one) for one in points]
    return [*held, *(one for one in told if one is not None)]


def _undominated(asked: Question, points: Sequence[Candidate | Choice]) -> list[Candidate | Choice]:
    """Points that are faster than all that cost no more, the cheapest first."""
    best_s, found = float("inf"), list[Candidate | Choice]()
    for one in sorted(points, key=lambda one: (_cost(asked, one), one.mean_tpot_s or 0.0, str(_key(one)))):
        if (one.mean_tpot_s or 0.0) < best_s * (1.0 - LEAST_GAIN):
            best_s = one.mean_tpot_s or 0.0
            found.append(one)
    return found


def _simulated(asked: Question, point: Candidate) -> Choice | None:
    """The configuration of a point if it holds in simulation."""
    try:
        answer = verified(asked.model, point, replace(asked.load, widest=True), asked.bounds)
    except UserError:
        return None
    return choice_of(asked, point, answer) if answer.holds else None


def _key(one: Candidate | Choice) -> Key:
    if isinstance(one, Candidate):
        return one.screened.hardware, _words(one.words), one.replicas
    return one.hardware, _words(one.options), one.servers


def _words(options: Mapping[str, Any]) -> str:
    return str(sorted((name, str(value)) for name, value in options.items() if name != "replicas"))


def _cost(asked: Question, one: Candidate | Choice) -> float:
    """Dollars per hour, infinite where no price is known, or devices."""
    if asked.words["front"] == "gpus":
        return float(one.devices)
    return float("inf") if one.usd_per_hour is None else one.usd_per_hour


def _with(asked: Question, best: Choice, line: Sequence[Choice]) -> tuple[Choice, ...]:
    """The fastest first, with the winner in its place unless another one is as good in both figures."""

    def beats(one: Choice, other: Choice) -> bool:
        times = (one.mean_tpot_s or 0.0) <= (other.mean_tpot_s or 0.0)
        return times and _cost(asked, one) <= _cost(asked, other)

    if not any(beats(one, best) for one in line):
        line = [best, *(one for one in line if not beats(best, one))]
    return tuple(sorted(line, key=lambda one: -_cost(asked, one)))


def steady_choices(asked: Question, screens: Sequence[ChipScreen], simulated: Collection[str]) -> list[Choice]:
    """The best point of each chip that was too dear to simulate, in the steady state."""
    points = (
        next((point for point in one.ordered if isinstance(point, Candidate)), None)
        for one in screens
        if one.hardware not in simulated
    )
    found = [_choice(asked, point, asked.workload) for point in points if point is not None]
    return sorted(found, key=order_of(asked.objective))


def _choice(asked: Question, one: Candidate, workload: Workload) -> Choice:
    """A point in the steady state as a configuration."""
    usd, price, users = one.usd_per_hour, asked.prices.of(one.screened.chip), ceil(workload.users / one.replicas)
    cycle_s = one.mean_ttft_s + workload.steps * one.mean_tpot_s + workload.think_s
    rate = users / cycle_s if users else workload.rate / one.replicas
    return Choice(
        model=asked.model_name,
        hardware=one.screened.hardware,
        devices=one.devices,
        replicas=one.replicas + one.spare,
        options=one.words,
        rate=rate,
        users=users,
        ttft_s=one.ttft_s,
        tpot_s=one.tpot_s,
        e2e_s=one.mean_ttft_s + workload.steps * one.mean_tpot_s,
        tokens_per_s=rate * one.replicas * workload.output_len,
        capacity=capacity_of(((one, one.replicas),), workload),
        prompt_share=one.prompt_share,
        spare=one.spare,
        output_len=workload.output_len,
        input_len=workload.input_len,
        usd_per_hour=usd if usd < float("inf") else None,
        price=None if price is None else price.to_dict(),
        mean_tpot_s=one.mean_tpot_s,
        mean_e2e_s=one.mean_ttft_s + workload.steps * one.mean_tpot_s,
        simulated=False,
        parts=((one, one.replicas),),
    )
