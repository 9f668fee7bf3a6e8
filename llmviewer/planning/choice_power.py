"""Power of a sized configuration, from the energy of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmviewer import api
from llmviewer.analysis.power import energy_of
from llmviewer.analysis.power_shares import board_watts, shares_of
from llmviewer.api.configuration import configuration
from llmviewer.planning.options import Question
from llmviewer.planning.screen import Candidate
from llmviewer.planning.verification import Answer
from llmviewer.simulation.call import BATCHING
from llmviewer.timing.engine_serving import ENGINE

#: A pool: its point, and replicas.
Part = tuple[Candidate, int]


def watts_of(asked: Question, parts: Sequence[Part], answer: Answer) -> float | None:
    """Mean power of all devices under the load [W], spare ones included; None where no power is published.

    Every device draws its idle power all the time; each request adds the energy of its work.  Of two pools, prompts add
    theirs to the first and answers to the second.  At most the power of all devices at full load.
    """
    workload, spare = asked.workload, int(asked.words["spare"])
    found = [_work(asked, part, answer) for part, _ in parts]
    first, last = found[0], found[-1]
    if first is None or last is None:
        return None
    joules = first.per_input_token * workload.input_len + last.per_output_token * workload.output_len
    idle = sum(work.idle_w * part.screened.devices * (count + spare) for work, (part, count) in _pairs(found, parts))
    most = sum(count * part.screened.devices * part.screened.watts for part, count in parts)
    return min(idle + workload.rate * joules, max(most, idle))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Energy of tokens beyond idle power [J], and the idle power of a device [W]."""

    per_input_token: float
    per_output_token: float
    idle_w: float


def _pairs(found: Sequence[_Work | None], parts: Sequence[Part]) -> list[tuple[_Work, Part]]:
    return [(work, part) for work, part in zip(found, parts, strict=True) if work is not None]


def _work(asked: Question, part: Candidate, answer: Answer) -> _Work | None:
    """Energy of tokens at the mean number of running sequences of a rank."""
    words = {"engine": ENGINE, "batching": BATCHING, **part.words}
    one = configuration(asked.model, part.screened.hardware, **words)
    lengths = (max(round(size), 1) for size in (asked.workload.input_len, asked.workload.output_len))
    shares = shares_of(one.system.chip)
    answered = one.answer(api.request(max(round(answer.running) * part.screened.ranks, 1), *lengths))
    energy = energy_of(answered.analysis, shares)
    if energy is None or shares is None:
        return None
    idle_w = shares.idle * float(np.max(board_watts(one.system.chip)[0]))
    working = max(1.0 - idle_w * part.screened.devices / float(energy.watts[0]), 0.0)
    return _Work(
        per_input_token=working * float(energy.joules_per_prompt_token[0]),
        per_output_token=working * float(energy.joules_per_answer_token[0]),
        idle_w=idle_w,
    )
