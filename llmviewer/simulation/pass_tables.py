"""Tables of the times of one model's forward passes, as a sum of parts that depend on few numbers each.

A pass of decoding sequences and prompt tokens takes

    G(tokens) + H(rows of logits) + D(sequences, context) + A(prompt tokens, tokens before them)

where G is all work on tokens alone, and D and A are what attention and other work on a sequence's past add to it: an
engine runs their kernels one after another.  D and A are measured as differences of evaluated passes, so a pass of
decodes alone and a chunk alone are exact at knots, whatever their operators are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.analysis.evaluation import Evaluation, evaluate
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count, total
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Group, Step
from llmviewer.models.model import Model
from llmviewer.serving.generation import PassShape
from llmviewer.simulation.surfaces import Surface, coordinates, every_whole, grid, surface, whole_knots
from llmviewer.timing.engine_work import times_paid

#: Kinds of kernels whose time depends on the past of a sequence or on the number of sequences.
KINDS_OF_SEQUENCES = (Kind.ATTENTION, Kind.SOFTMAX, Kind.RECURRENCE, Kind.CONV)
#: Times of the engine that depend on sequences or their past, and those that kernels hide.
TERMS_OF_SEQUENCES, HIDDEN_TERMS = ("own attention kernels", "sequence"), ("host", "drafting")
#: Knots of contexts per octave, in decode steps and in prompts.
DECODE_KNOTS, PROMPT_KNOTS = 4, 2
#: Tokens of the passes from which the time of rows of logits is taken.
LOGITS_TOKENS = 4096.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Largest passes of a table: sequences, prompt tokens of a pass, and tokens of a sequence."""

    sequences: int
    tokens: int
    context: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartTable:
    """One quantity of passes as a sum of parts [s]; see the module.

    tokens, logits: lists over whole numbers.  decodes: over sequences and mean context.  chunk: one prompt's tokens
    over those before them.  packed: tokens of several whole prompts over their mean length.
    """

    tokens: list[float]
    logits: list[float]
    decodes: Surface
    chunk: Surface
    packed: Surface

    def seconds(self, size: tuple[int, int], sequences: int, context: float, prompt: int, pairs: float) -> float:
        """The quantity of a pass.  size: all tokens, rows of logits.  context: mean of the sequences.

        pairs: that the prompt tokens attend to; fewer than one prompt of so many tokens has means several prompts.
        """
        tokens, logits = size
        seconds = self.tokens[tokens] + self.logits[logits]
        if sequences:
            seconds += self.decodes(sequences, context)
        if prompt:
            keys = pairs / prompt
            before = keys - 0.5 * (prompt + 1)
            seconds += self.chunk(prompt, before) if before >= 0.0 else self.packed(prompt, 2.0 * keys - 2.0)
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passes:
    """A model on a system whose passes are evaluated for tables.  decode: shape of its decode passes."""

    model: Model
    system: System
    decode: PassShape
    sizes: Sizes

    def evaluated(self, batch: Array, new: Count, cached: Count, logits: Count) -> Array:
        """Times of passes of one group each [s]: rows ALL ... SEQUENCE_KERNELS, one column per pass."""
        return _parts(evaluate(self.model, self.system, Step((self._group(batch, new, cached, logits),))), len(batch))

    def decoding(self, batch: Array, context: Array) -> Array:
        """Times of decode passes, as of `evaluated`."""
        shape, ones = self.decode, np.ones(len(batch))
        group = self._group(batch, shape.new_tokens * ones, context + shape.ahead, shape.logit_positions * ones)
        if shape.attended_new_pairs is not None:
            group = replace(group, attended_new_pairs=shape.attended_new_pairs * ones)
        return _parts(evaluate(self.model, self.system, Step((group,))), len(batch))

    def _group(self, batch: Array, new: Count, cached: Count, logits: Count) -> Group:
        ones = np.ones(len(batch))
        return Group(
            batch_size=batch,
            new_tokens=new * ones,
            cached_tokens=cached * ones,
            logit_positions=logits * ones,
            kept=self.system.kv_cache.kept,
        )

    @property
    def host_s(self) -> float:
        """Time of the host to launch a pass without a CUDA graph [s]."""
        step = Step((Group(batch_size=1.0, new_tokens=1.0, cached_tokens=0.0, logit_positions=1.0),))
        one = evaluate(self.model, self.system, step)
        return self.system.engine.constants.get("eager", 0.0) * 1e-6 * float(times_paid(one.graph, step)["launch"])


#: Rows of evaluated times: all but what hides behind kernels, the kernels alone, and work on sequences in both.
ALL, KERNELS, SEQUENCES, SEQUENCE_KERNELS = range(4)


def _parts(one: Evaluation, points: int) -> Array:
    kernels = one.sum(lambda row: row.timing.time_s)
    own = one.sum(lambda row: row.timing.time_s if row.operator.kind in KINDS_OF_SEQUENCES else 0.0)
    added = total(seconds for name, seconds in one.served if name not in HIDDEN_TERMS)
    beside = total(seconds for name, seconds in one.served if name in TERMS_OF_SEQUENCES)
    rows = np.empty((4, points))
    rows[:] = np.stack(np.broadcast_arrays(kernels + added, kernels, own + beside, own, np.zeros(points))[:4])
    return rows


def part_tables(passes: Passes) -> tuple[PartTable, PartTable]:
    """Tables of all time that does not hide behind kernels, and of kernels alone."""
    sizes, shape = passes.sizes, passes.decode
    most = int(np.ceil(sizes.sequences * max(shape.new_tokens, shape.logit_positions))) + sizes.tokens
    counts = whole_knots(most, 512, 32, stairs=True)
    tokens = passes.evaluated(np.ones(len(counts)), counts, 0.0, 0.0)
    tokens = tokens[:2] - tokens[2:]
    many = np.full(len(counts), LOGITS_TOKENS)
    rows = passes.evaluated(np.append(many, LOGITS_TOKENS), 1.0, 0.0, np.append(counts, 0.0) / LOGITS_TOKENS)[:2]
    rows = rows[:, :-1] - rows[:, -1:]

    def excess(found: Array, all_tokens: Array, logits: Count) -> Array:
        """Evaluated times less those of tokens and rows of logits."""
        return np.stack(
            [
                found[at]
                - np.interp(all_tokens, counts, tokens[at])
                - np.interp(logits, counts, rows[at]) * (logits > 0.0)
                for at in (ALL, KERNELS)
            ]
        )

    sequences = whole_knots(sizes.sequences, 16, 4, stairs=False)
    context = coordinates(sizes.context, DECODE_KNOTS)
    batch, cached = grid(sequences, context)
    decodes = excess(passes.decoding(batch, cached), batch * shape.new_tokens, batch * shape.logit_positions)

    prompts = whole_knots(sizes.tokens, 17, 8, stairs=True)
    before = coordinates(sizes.context, PROMPT_KNOTS)
    new, cached = grid(prompts, before)
    chunk = excess(passes.evaluated(np.ones(len(new)), new, cached, 0.0), new, 0.0)

    few = whole_knots(sizes.tokens, 1, 2, stairs=False)
    lengths = coordinates(sizes.tokens, PROMPT_KNOTS)
    new, length = grid(few, lengths)
    each = np.minimum(length + 1.0, new)
    packed = excess(passes.evaluated(new / each, each, 0.0, 0.0), new, 0.0)
    return tuple(
        PartTable(
            tokens=every_whole(counts, tokens[at]),
            logits=[0.0, *every_whole(counts, rows[at])[1:]],
            decodes=surface(sequences, context, decodes[at], DECODE_KNOTS),
            chunk=surface(prompts, before, chunk[at], PROMPT_KNOTS),
            packed=surface(few, lengths, packed[at], PROMPT_KNOTS),
        )
        for at in (ALL, KERNELS)
    )
