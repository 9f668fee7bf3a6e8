"""The Pareto front of all screened configurations: tokens per second of a user against devices or dollars."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from llmviewer.planning.choices import Choice, capacity_of, order_of
from llmviewer.planning.first_floor import ChipScreen
from llmviewer.planning.options import Question
from llmviewer.planning.screen import Candidate
from llmviewer.planning.workload import Workload

#: Share of its time per token by which a dearer point must be faster; otherwise idle replicas would make the front.
LEAST_GAIN = 0.01


def front_of(asked: Question, points: Sequence[Candidate], best: Choice | None) -> tuple[Choice, ...]:
    """Points within the limits of which no other is at least as good in both figures, the fastest first.

    best: the best configuration, which is one of them unless another is better in both figures; None: no configuration
    held in simulation, and there is no front.  Points in the steady state are left out that cost less than the least
    that held in simulation.
    """
    if best is None:
        return ()
    least = _cost(asked, best) if asked.objective == asked.words["front"] else 0.0
    kept = [one for one in points if least <= _cost(asked, one) < float("inf")]
    best_s, found = float("inf"), []
    for one in sorted(kept, key=lambda one: (_cost(asked, one), one.mean_tpot_s, len(one.words), str(one.words))):
        if one.mean_tpot_s < best_s * (1.0 - LEAST_GAIN):
            best_s = one.mean_tpot_s
            found.append(one)
    return _with(asked, best, [_choice(asked, one, asked.workload) for one in reversed(found)])


def _cost(asked: Question, one: Candidate | Choice) -> float:
    """Dollars per hour, infinite where no price is known, or devices."""
    if asked.words["front"] == "gpus":
        return float(one.devices)
    return float("inf") if one.usd_per_hour is None else one.usd_per_hour


def _with(asked: Question, best: Choice, front: Sequence[Choice]) -> tuple[Choice, ...]:
    """A front with the best configuration in its place, unless it has a point that is as good in both figures."""

    def beats(one: Choice, other: Choice) -> bool:
        times = (one.mean_tpot_s or 0.0) <= (other.mean_tpot_s or 0.0)
        return times and _cost(asked, one) <= _cost(asked, other)

    if _cost(asked, best) == float("inf") or any(beats(one, best) for one in front):
        return tuple(front)
    kept = [one for one in front if not beats(best, one)]
    return tuple(sorted((best, *kept), key=lambda one: -_cost(asked, one)))


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
    usd, price = one.usd_per_hour, asked.prices.of(one.screened.chip)
    return Choice(
        model=asked.model_name,
        hardware=one.screened.hardware,
        devices=one.devices,
        replicas=one.replicas + one.spare,
        options=one.words,
        rate=workload.rate / one.replicas,
        ttft_s=one.ttft_s,
        tpot_s=one.tpot_s,
        e2e_s=one.mean_ttft_s + workload.steps * one.mean_tpot_s,
        tokens_per_s=workload.rate * workload.output_len,
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
