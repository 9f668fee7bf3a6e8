"""Times of an engine's steps for a simulation: tables built once per configuration, read in about a microsecond."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import frexp

import numpy as np

from llmviewer.api.configuration import Configuration
from llmviewer.core.errors import UserError
from llmviewer.simulation.cache_capacity import CacheCapacity, cache_capacity
from llmviewer.simulation.pass_tables import DECODE_KNOTS, PartTable, Passes, Sizes, part_tables

#: Longest context of a table [token]; steps over longer ones are extrapolated.
LONGEST_CONTEXT = 2.0**24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimes:
    """Times of the steps of one replica [s].

    tokens_per_round: expected tokens of one decode step of a sequence.  request_s: host time of a request before its
    first token.  host_s: time of the host to launch a step of more than graph_tokens tokens, which has no CUDA graph
    and takes at least as long.  steps, kernels: all time but the host's wait, and that of kernels.  rows: sequences ->
    time of a decode step over their total context, made when first asked for.
    """

    tokens_per_round: float
    request_s: float
    host_s: float
    graph_tokens: float
    steps: PartTable
    kernels: PartTable
    rows: list[list[tuple[float, float, float]] | None] = field(repr=False)

    def decode_s(self, sequences: int, context: float) -> float:
        """Time of one decode step of `sequences` sequences over `context` cached tokens in total [s]."""
        base, rise, _ = self.decode_line(sequences, context)
        return base + rise * context

    def decode_line(self, sequences: int, context: float) -> tuple[float, float, float]:
        """That time as a line over the total context: its value at 0 [s], its slope [s/token], where it ends."""
        mantissa, octave = frexp(context / sequences + 1.0)
        row = self.rows[sequences] or self._row(sequences)
        return row[DECODE_KNOTS * octave + int(2 * DECODE_KNOTS * mantissa) - 2 * DECODE_KNOTS]

    def mixed_s(self, sequences: int, context: float, tokens: int, pairs: float, prompts: int) -> float:
        """Time of one step that also prefills prompt tokens [s].

        tokens: prompt tokens, which attend to `pairs` query-key pairs in total.  prompts: those that end in the step,
        one row of logits each.
        """
        if not tokens:
            return self.decode_s(sequences, context)
        size, mean = (sequences + tokens, sequences + prompts), context / sequences if sequences else 0.0
        seconds = self.steps.seconds(size, sequences, mean, tokens, pairs)
        if size[0] > self.graph_tokens:
            waiting = self.host_s - self.kernels.seconds(size, sequences, mean, tokens, pairs)
            return seconds + waiting if waiting > 0.0 else seconds
        return seconds

    def _row(self, sequences: int) -> list[tuple[float, float, float]]:
        """Decode steps of so many sequences: per segment of the mean context, k0 + k1 x total context."""
        mean, size = self.steps.decodes.knots[:-1], (sequences, sequences)
        steps, kernels = (
            np.array([table.seconds(size, sequences, x, 0, 0.0) for x in mean]) for table in (self.steps, self.kernels)
        )
        if sequences > self.graph_tokens:
            steps = steps + np.maximum(self.host_s - kernels, 0.0)
        context = np.array(mean) * sequences
        rise = np.diff(steps) / np.diff(context)
        bases = steps[:-1] - rise * context[:-1]
        row = list(zip(bases.tolist(), rise.tolist(), context[1:].tolist(), strict=True))
        self.rows[sequences] = row
        return row


def step_times(configuration: Configuration) -> StepTimes:
    """Times of the steps of one replica of a configuration.  Raises UserError for what they do not price."""
    check(configuration)
    model, system, capacity = configuration.model, configuration.system, cache_capacity(configuration)
    passes = Passes(model=model, system=system, decode=system.generation.shape, sizes=_sizes(capacity))
    steps, kernels = part_tables(passes)
    return StepTimes(
        tokens_per_round=1.0,
        request_s=system.engine.request_s,
        host_s=passes.host_s,
        graph_tokens=system.engine.graph_tokens,
        steps=steps,
        kernels=kernels,
        rows=[None] * (capacity.max_sequences + 1),
    )


def _sizes(capacity: CacheCapacity) -> Sizes:
    return Sizes(
        sequences=capacity.max_sequences,
        tokens=capacity.token_budget,
        context=min(float(capacity.max_context), LONGEST_CONTEXT),
    )


def check(configuration: Configuration) -> None:
    """Raise UserError for models and techniques whose steps are not priced."""
    model, system = configuration.model, configuration.system
    wrong = (
        (model.is_encoder or model.encoder is not None, f"{model.name} is no decoder-only model; allowed: decoders"),
        (system.generation.branches is not None, "--branches is not simulated; remove it"),
        (system.parallelism.pipeline > 1, "--pipeline-parallel-size is not simulated; use tensor parallelism"),
        (bool(system.drafters), "speculation is not simulated; remove it"),
        (system.copies_beside or system.policy is not None, "--offload is not simulated; remove it"),
        (system.chip.points > 1, "hypothetical chips are not simulated; give one chip"),
    )
    for is_wrong, what in wrong:
        if is_wrong:
            raise UserError(f"simulate: {what}")
