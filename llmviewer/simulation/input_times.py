"""Times of an encoder-decoder under load: passes over whole inputs, and decode steps of those that have been read."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from llmviewer.analysis.encoders import check_encoder
from llmviewer.analysis.evaluation import evaluate
from llmviewer.api.configuration import Configuration
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Group, Request, Step
from llmviewer.serving.generation import AUTOREGRESSIVE
from llmviewer.simulation.cache_capacity import cache_capacity
from llmviewer.simulation.pass_tables import every_whole, whole_knots
from llmviewer.simulation.requests import Requests
from llmviewer.simulation.step_times import check


@frozen(eq=False)
class InputTimes:
    """Times of the passes of one replica [s], for inputs of one length.

    first: number of inputs -> a pass that reads them and makes their first tokens.  short, rise: number of sequences ->
    a decode step after their first token, and what one more token of each adds, linear up to the longest answer.
    """

    input_len: int
    first: list[float] = field(repr=False)
    short: list[float] = field(repr=False)
    rise: list[float] = field(repr=False)
    request_s: float
    tokens_per_round: float = 1.0

    def decode_line(self, sequences: int, context: float) -> tuple[float, float, float]:
        """Time of a decode step as a line over the total context, inputs included: value at 0, slope, and end."""
        rise = self.rise[sequences]
        return self.short[sequences] - rise * self.input_len, rise / sequences, float("inf")

    def mixed_s(self, sequences: int, context: float, tokens: int, pairs: float, prompts: int) -> float:
        """Time of a pass over the inputs of `prompts` requests; no sequence decodes beside them."""
        return self.first[prompts]

    def shared_s(self, sequences: float, tokens: float) -> float:
        """No work is shared: ranks of an encoder-decoder do not step together."""
        return 0.0

    def stages(self, sequences: int, tokens: int) -> tuple[float, ...]:
        """One stage: an encoder-decoder has no pipeline."""
        return (1.0,)


def input_times(one: Configuration, sample: Requests) -> InputTimes:
    """Times of an encoder-decoder for the inputs of a load.  Raises UserError for inputs of several lengths."""
    lengths, longest = np.unique(sample.input_len), int(sample.output_len.max())
    if len(lengths) > 1:
        raise UserError(f"{one.model.name} is simulated with inputs of one length; give --input-len a whole number")
    length, room = int(lengths[0]), cache_capacity(one)
    request = Request(batch_size=np.ones(1), input_len=np.full(1, length), output_len=np.full(1, longest))
    check_encoder(one.model, one.system, request, np.inf)
    check(one, reads_inputs=True)
    if one.system.generation is not AUTOREGRESSIVE:
        raise UserError(f"simulate: speculation on {one.model.name} is not simulated; remove --speculative")

    def every(most: int, generated: float) -> Array:
        number = whole_knots(max(most, 1), 8, 8, stairs=True)
        return np.array(every_whole(number, _pass_s(one, number, generated, length)))

    last = float(max(longest - 1, 2))
    short, long = (every(room.max_sequences, generated) for generated in (1.0, last))
    return InputTimes(
        input_len=length,
        first=every(room.token_budget // length, 0.0).tolist(),
        short=short.tolist(),
        rise=((long - short) / (last - 1.0)).tolist(),
        request_s=float(np.max(one.system.request_s(short[1]))),
    )


def _pass_s(one: Configuration, number: Array, generated: Count, length: int) -> Array:
    """Time of passes of sequences after so many tokens [s]; without any, over their inputs too."""
    ones = np.ones(len(number))
    group = Group(
        batch_size=number,
        new_tokens=ones,
        cached_tokens=generated * ones,
        logit_positions=ones,
        input_len=length * ones,
    )
    return np.asarray(evaluate(one.model, one.system, Step((group,))).time_s * ones)
