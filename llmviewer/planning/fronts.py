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


def front_of(asked: Question, points: Sequence[Candidate]) -> tuple[Choice, ...]:
    """Points within the limits of which no other is at least as good in both figures, the fastest first."""
    workload = asked.workload
    with_prices = asked.words["front"] == "usd"
    kept = [one for one in points if not with_prices or one.usd_per_hour < float("inf")]

    def cost(one: Candidate) -> float:
        return one.usd_per_hour if with_prices else float(one.devices)

    best_s, found = float("inf"), []
    for one in sorted(kept, key=lambda one: (cost(one), one.mean_tpot_s, len(one.words), str(one.words))):
        if one.mean_tpot_s < best_s * (1.0 - LEAST_GAIN):
            best_s = one.mean_tpot_s
            found.append(one)
    return tuple(_choice(asked, one, workload) for one in reversed(found))


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
