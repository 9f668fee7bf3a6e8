"""Power of a sized configuration, from the energy of its requests."""

from __future__ import annotations

from collections.abc import Sequence

from llmviewer import api
from llmviewer.api.configuration import configuration
from llmviewer.planning.options import Question
from llmviewer.planning.power import Energy, request_power
from llmviewer.planning.screen import Candidate
from llmviewer.planning.verification import Answer
from llmviewer.simulation.call import BATCHING, ENGINE

#: A pool: its point, and replicas.
Part = tuple[Candidate, int]


def watts_of(asked: Question, parts: Sequence[Part], answer: Answer) -> float | None:
    """Mean power of the devices under the load [W], spare ones left out; None where no power is published.

    Of two pools, the energy of prompts is that of the first and the energy of answers that of the second; at most the
    power of all devices at full load.
    """
    found = [_energy(asked, part, answer) for part, _ in parts]
    workload = asked.workload
    first, last = found[0], found[-1]
    if first is None or last is None:
        return None
    joules = (
        float(first.joules_per_input_token[0]) * workload.input_len
        + float(last.joules_per_output_token[0]) * workload.output_len
    )
    most = sum(count * part.screened.devices * part.screened.watts for part, count in parts)
    return min(workload.rate * joules, most)


def _energy(asked: Question, part: Candidate, answer: Answer) -> Energy | None:
    """Energy at the mean number of running sequences of a rank."""
    words = {"engine": ENGINE, "batching": BATCHING, **part.words}
    one = configuration(asked.model, part.screened.hardware, **words)
    sizes = (max(round(answer.running) * part.screened.ranks, 1), asked.workload.input_len, asked.workload.output_len)
    return request_power(one.answer(api.request(*(max(round(size), 1) for size in sizes))))
