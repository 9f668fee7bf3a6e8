"""The best configuration of another kind beside a winner: one pool beside two, wider weights beside few bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from llmviewer.planning.choices import Choice, order_of
from llmviewer.planning.first_floor import ChipScreen, points_of
from llmviewer.planning.options import Question
from llmviewer.planning.screen import Candidate
from llmviewer.planning.second_floor import simulated
from llmviewer.planning.space import has_few_bits

#: Candidates that are simulated where none of the kind was.
MOST_TRIED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The best configuration of the other kind.

    ratio: its objective over the winner's, devices where a price is missing; None where none holds.
    """

    ratio: float | None = None
    other: Choice | None = None


def against(asked: Question, screens: Sequence[ChipScreen], held: Sequence[Choice], best: Choice) -> dict[str, Against]:
    """Kind of the other configuration -> it: `aggregated` beside two pools, `wider` beside weights of few bits.

    held: configurations that hold in simulation, best first; where none of them is of the kind, the first candidates
    on the winner's chips are simulated.
    """
    found: dict[str, Against] = {}
    if len(best.parts) == 2:
        chips = set(best.hardware.split("+"))
        one_pool = [one for one in held if len(one.parts) == 1 and one.hardware in chips]
        found["aggregated"] = _compared(asked, best, one_pool or _tried(asked, screens, best, lambda one: True))
    if best.has_few_bits:
        wide = [one for one in held if not one.has_few_bits]
        found["wider"] = _compared(asked, best, wide or _tried(asked, screens, best, _is_wide))
    return found


def _is_wide(one: Candidate) -> bool:
    return not has_few_bits(str(one.words.get("quantization", "none")))


def _tried(
    asked: Question, screens: Sequence[ChipScreen], best: Choice, wanted: Callable[[Candidate], bool]
) -> list[Choice]:
    """Configurations of one pool on the winner's chips, simulated here, best first."""
    chips = best.hardware.split("+")
    structures = [each for one in screens if one.hardware in chips for each in one.structures]
    points = [one for each in structures for one in points_of(asked, each)[:1] if wanted(one)]
    points.sort(key=lambda one: one.order(asked.objective, asked.workload))
    choices = simulated(asked, best.hardware, points[:MOST_TRIED]).choices
    return sorted(choices, key=order_of(asked.objective))


def _compared(asked: Question, best: Choice, others: Sequence[Choice]) -> Against:
    if not others:
        return Against()
    other = others[0]
    ours, theirs = (one.order(asked.objective)[0] for one in (best, other))
    if not (isfinite(ours) and isfinite(theirs) and ours > 0.0):
        ours, theirs = float(best.devices), float(other.devices)
    return Against(ratio=theirs / ours, other=other)
