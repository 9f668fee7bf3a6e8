"""Times of an engine's steps for a simulation: tables built once per configuration, read in about a microsecond."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import field
from functools import lru_cache
from math import ceil, frexp
from typing import TypeAlias

import numpy as np

from llmviewer.analysis.system import Drafter
from llmviewer.api.configuration import Configuration
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph, Place
from llmviewer.core.workload import decode
from llmviewer.ops.transfer import copy_direction
from llmviewer.simulation.cache_capacity import CacheCapacity, cache_capacity
from llmviewer.simulation.copied_times import CopiedTimes, passes_s
from llmviewer.simulation.pass_tables import Knots, ModelTable
from llmviewer.simulation.table_building import Passes, Sizes, decode_knots, model_table
from llmviewer.techniques.registry import TECHNIQUES

#: Longest context of a table [token]; steps over longer ones are extrapolated.
LONGEST_CONTEXT = 2.0**24
#: Relative distance from a line that is rounding.
STRAIGHT = 1e-6
#: Tokens of each sequence for which a step's time is taken as a line where the host stops waiting for kernels.
SHORT = 16
#: Tokens of a mean over ranks that are rounding.
ROUNDING = 1e-9
#: Configurations whose step times are kept, as searches simulate one under many loads.
KEPT = 8
#: Time of a decode step over its total context: value at 0 [s], slope [s/token], and end [token].
Line: TypeAlias = tuple[float, float, float]


@frozen(eq=False)
class Drafting:
    """A draft model: its tables, its passes in a round, and whether it prefills prompts for a cache of its own."""

    table: ModelTable
    passes: float
    caches: bool


@frozen(eq=False)
class StepTimes:
    """Times of the steps of one replica [s].

    tokens_per_round: expected tokens of one decode step of a sequence, which with speculation is a round of draft
    passes and a verification.  request_s: host time of a request before its first token.  outside_s: of a round,
    outside kernels.  most_tokens: prompt tokens of a step, up to which its time is known; of a longer prompt that runs
    alone, in proportion.  in_passes: a step of more tokens is passes of so many, one after another.  shared: tokens of
    a pass of each rank -> time of the work on those of all ranks; empty where there is one.  stage_shares: tokens of a
    pass -> share of each pipeline stage in its time; empty without a pipeline.  rows: sequences -> segment of their
    mean context -> time of a decode step as a line over the total context, made when first asked; empty where it is
    none.  images_s: passes of a vision tower over the images of a prompt.
    """

    tokens_per_round: float
    request_s: float
    outside_s: float
    target: ModelTable
    drafts: tuple[Drafting, ...]
    means: Knots
    most_tokens: int
    in_passes: bool
    shared: list[float]
    stage_shares: list[tuple[float, ...]]
    rows: list[list[Line | tuple[()] | None] | None] = field(repr=False)
    images_s: float = 0.0

    def decode_s(self, sequences: int, context: float) -> float:
        """Time of one decode step of `sequences` sequences over `context` cached tokens in total [s]."""
        base, rise, _ = self.decode_line(sequences, context)
        return base + rise * context

    def decode_line(self, sequences: int, context: float) -> Line:
        """Time of a decode step as a line over the total context: its value at 0 [s], slope [s/token], and end."""
        mantissa, octave = frexp(context / sequences + 1.0)
        at = 8 * octave + int(16.0 * mantissa) - 16
        row = self.rows[sequences]
        return (row and row[at]) or self._line(sequences, at) or self._short_line(sequences, context)

    def _short_line(self, sequences: int, context: float) -> Line:
        """The line over the next few tokens of each sequence, in a segment that is no line as a whole."""
        ahead = float(SHORT * sequences)
        seconds, later = (self._round_s(sequences, total / sequences) for total in (context, context + ahead))
        rise = (later - seconds) / ahead
        return seconds - rise * context, rise, context + ahead

    def shared_s(self, sequences: float, tokens: float) -> float:
        """Work on the tokens of all ranks in a step [s].  sequences, tokens: mean of the ranks."""
        return self.shared[self._place(self.shared, sequences, tokens)] if self.shared else 0.0

    def stages(self, sequences: int, tokens: int) -> tuple[float, ...]:
        """Shares of a step's time on each pipeline stage."""
        return self.stage_shares[self._place(self.stage_shares, sequences, tokens)]

    def _place(self, by_tokens: Sized, sequences: float, tokens: float) -> int:
        """Index of the tokens of a pass in a list by their number, which ends with the largest pass."""
        return min(ceil(sequences * self.target.new + tokens - ROUNDING), len(by_tokens) - 1)

    def mixed_s(self, sequences: int, context: float, tokens: int, pairs: float, prompts: int) -> float:
        """Time of one step that also prefills prompt tokens [s].

        tokens: prompt tokens, which attend to `pairs` query-key pairs in total.  prompts: those that end in the step,
        one row of logits each.
        """
        if not tokens:
            return self.decode_s(sequences, context)
        return self.images_s * prompts + self._mixed_s(sequences, context, tokens, pairs, prompts)

    def _mixed_s(self, sequences: int, context: float, tokens: int, pairs: float, prompts: int) -> float:
        """The step without the images of its prompts, in passes where it is too long for one."""
        if self.in_passes and tokens > (room := self._room_beside(sequences)):
            return self._passes_s((sequences, context, room), tokens, pairs / tokens, prompts)
        if tokens > self.most_tokens:
            share = tokens / self.most_tokens
            return share * self._mixed_s(sequences, context, self.most_tokens, pairs / share, prompts)
        mean = context / sequences if sequences else 0.0
        seconds = self.target.seconds(sequences, mean, tokens, pairs, prompts)
        if self.drafts:
            seconds += self._drafts_s(sequences, mean, tokens, pairs)
        return seconds

    def _room_beside(self, sequences: int) -> int:
        """Prompt tokens of a pass beside the decoding sequences."""
        return max(self.most_tokens - ceil(sequences * self.target.new), 0)

    def _passes_s(self, decoding: tuple[int, float, int], tokens: int, keys: float, prompts: int) -> float:
        """Time of a step of several passes [s]: the first has the decoding sequences, the last the ends of prompts.

        decoding: sequences, their context, and the prompt tokens beside them.  keys: of a prompt token in the mean.
        """
        sequences, context, first = decoding
        full, last = divmod(tokens - first - 1, self.most_tokens)
        seconds = 0.0
        if first:
            seconds = self._mixed_s(sequences, context, first, keys * first, 0)
        elif sequences:
            seconds = self.decode_s(sequences, context)
        if full:
            seconds += full * self._mixed_s(0, 0.0, self.most_tokens, keys * self.most_tokens, 0)
        return seconds + self._mixed_s(0, 0.0, last + 1, keys * (last + 1), prompts)

    def _drafts_s(self, sequences: int, mean: float, tokens: int, pairs: float) -> float:
        """Draft passes of the decoding sequences, and prompt tokens in the caches of draft models [s]."""
        seconds = self.outside_s if sequences else 0.0
        for draft in self.drafts:
            if sequences:
                seconds += draft.passes * draft.table.seconds(sequences, mean, 0, 0.0, 0)
            if tokens and draft.caches:
                seconds += draft.table.seconds(0, 0.0, tokens, pairs, 0)
        return seconds

    def _round_s(self, sequences: int, mean: float) -> float:
        """A decode step of sequences with `mean` cached tokens each [s]."""
        seconds = self.target.seconds(sequences, mean, 0, 0.0, 0)
        return seconds + self._drafts_s(sequences, mean, 0, 0.0) if self.drafts else seconds

    def _line(self, sequences: int, at: int) -> Line | None:
        """Decode steps of so many sequences within a segment of the mean context, as a line over the total context.

        None where it is no line, as the host stops waiting for kernels within the segment.
        """
        row = self.rows[sequences]
        if row is None:
            row = self.rows[sequences] = [None] * len(self.means.first)
        if row[at] is not None:  # it was found to be none
            return None
        first, last = float(self.means.first[at]), float(self.means.last[at])
        one, middle, other = (self._round_s(sequences, mean) for mean in (first, 0.5 * (first + last), last))
        rise = (other - one) / (last - first)
        is_line = abs(one + other - 2.0 * middle) <= STRAIGHT * middle
        row[at] = line = (one - rise * first, rise / sequences, last * sequences) if is_line else ()
        return line or None


@lru_cache(KEPT)
def step_times(configuration: Configuration) -> StepTimes | CopiedTimes:
    """Times of the steps of one replica of a configuration, those of the last ones kept.

    Raises UserError for what they do not price.
    """
    if _copies_weights(configuration):
        on_device = configuration.with_options({"offload": TECHNIQUES["offload"].default})
        plain = step_times(on_device)
        assert isinstance(plain, StepTimes)
        kernels_s, steps_s = passes_s(configuration, on_device, plain.most_tokens)
        host_s = plain.request_s
        return CopiedTimes(plain=plain, request_s=host_s, kernels_s=kernels_s, steps_s=steps_s, ahead=SHORT)
    check(configuration)
    model, system, capacity = configuration.model, configuration.system, cache_capacity(configuration)
    sizes, generation = _sizes(capacity), system.generation
    passes = Passes(model=model, system=system, decode=generation.shape, sizes=sizes)
    target = model_table(passes)
    return StepTimes(
        tokens_per_round=float(np.max(generation.tokens)),
        request_s=float(np.max(system.request_s(target.seconds(1, 0.0, 0, 0.0, 0)))),
        outside_s=float(np.max(system.outside_kernels_s)),
        target=target,
        drafts=tuple(_drafting(one, sizes) for one in system.drafters),
        means=decode_knots(sizes),
        most_tokens=sizes.tokens,
        in_passes=capacity.pass_tokens < capacity.token_budget,
        shared=passes.shared() if system.parallelism.ranks > 1 else [],
        stage_shares=passes.stages() if system.parallelism.pipeline > 1 else [],
        rows=[None] * (capacity.max_sequences + 1),
    )


def _drafting(one: Drafter, sizes: Sizes) -> Drafting:
    """The tables of a draft model."""
    draft = one.draft
    table = model_table(Passes(model=draft.model, system=one.system, decode=draft.shape, sizes=sizes))
    return Drafting(table=table, passes=float(np.max(draft.passes)), caches=draft.caches)


def _sizes(capacity: CacheCapacity) -> Sizes:
    return Sizes(
        sequences=capacity.max_sequences,
        tokens=capacity.pass_tokens,
        context=min(float(capacity.max_context), LONGEST_CONTEXT) + SHORT,
    )


def check(configuration: Configuration, *, reads_inputs: bool = False) -> None:
    """Raise UserError for models and techniques whose steps are not priced.

    reads_inputs: inputs of an encoder-decoder have passes of their own.
    """
    model, system = configuration.model, configuration.system
    wrong = (
        (
            model.encoder is not None and not reads_inputs,
            f"{model.name} has a decoder beside its encoder; allowed: one pool, by simulate",
        ),
        (
            system.generation.counts_passes,
            "branches and blocks of tokens are not simulated; remove --branches or diffusion",
        ),
        (
            system.parallelism.pipeline > 1 and system.parallelism.microbatches not in (1, system.parallelism.pipeline),
            "a simulated pipeline has a micro-batch per stage; remove microbatches",
        ),
        (
            system.parallelism.pipeline > 1 and system.parallelism.ranks > 1,
            "pipelines of replicas that share experts are not simulated; remove --pipeline-parallel-size or -ep",
        ),
        (
            system.applies("early_exit"),
            "--early-exit is not simulated: tables of times have no steps that exit; allowed: --skip-layers",
        ),
        (len(configuration.candidates) > 1, "several numbers of draft tokens are not simulated; give one"),
        (
            system.policy is not None,
            "what the host computes would depend on the request; state it: -ngl all, or --n-cpu-moe N of experts",
        ),
        (
            system.block or (system.copies_beside and not _computes_experts(configuration)),
            "--offload of layers or caches is not simulated; allowed: experts that the host computes, by --n-cpu-moe N "
            "or --offload experts,compute=host, and in simulate weights=SHARE that is copied",
        ),
        (system.chip.points > 1, "hypothetical chips are not simulated; give one chip"),
    )
    for is_wrong, what in wrong:
        if is_wrong:
            raise UserError(f"simulate: {what}")


def _copies_weights(configuration: Configuration) -> bool:
    """Whether copies of weights are all that the host does for passes on one stage."""
    system = configuration.system
    stated = configuration.techniques["offload"] != TECHNIQUES["offload"].default
    if not stated or system.block or system.drafters or system.policy is not None:
        return False
    if system.parallelism.pipeline > 1 or system.parallelism.ranks > 1 or configuration.model.encoder is not None:
        return False
    graph, cached = _decoding(configuration)
    copies = [bool(copy_direction(one)) for _, one in graph if not one.is_kernel]
    return cached and bool(copies) and all(copies)


def _computes_experts(configuration: Configuration) -> bool:
    """Whether the host computes experts alone: no copy runs beside kernels, and the device has the whole cache.

    Their time depends on the tokens of a step; that of a cache on the host also on where the other tokens are computed.
    """
    graph, cached = _decoding(configuration)
    return cached and not any(copy_direction(operator) for _, operator in graph)


def _decoding(configuration: Configuration) -> tuple[Graph, bool]:
    """The graph of a decode step, and whether the device has the whole cache."""
    graph = configuration.system.prepared(configuration.model.graph(decode(1.0, 0.0)))
    return graph, all(state.place is Place.DEVICE for block in graph.blocks for state in block.states)
