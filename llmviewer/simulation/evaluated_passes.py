"""Evaluation of one model's passes for tables: which passes are priced, and how the tables follow from their times."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.analysis.evaluation import Evaluation, evaluate
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count, total
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Operator
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Group, Step
from llmviewer.layers.mla import Mla, MlaForm
from llmviewer.models.model import Model, with_mla_form
from llmviewer.ops.attention import AttentionShape
from llmviewer.serving.generation import PassShape
from llmviewer.simulation.pass_tables import DECODE_KNOTS, PROMPT_KNOTS, Latent, PartTable, StageTable
from llmviewer.simulation.surfaces import Knots, every_whole, grid, knots, surface, whole_knots
from llmviewer.timing.engine_work import times_paid

#: Engine's times of sequences and their past, and its times that kernels hide.
TERMS_OF_SEQUENCES, HIDDEN_TERMS = ("own attention kernels", "sequence"), ("host", "drafting")
#: Rows of the times of a pass: all but what hides behind kernels, the kernels alone; and how much of both depends on
#: the past of sequences.
ALL, KERNELS, PAST, PAST_KERNELS = range(4)
#: Sequences of a pass without sequences, of which G is made: divisions by their number remain possible.
NO_SEQUENCE = 2.0**-20
#: Tokens of the passes from which the time of rows of logits is taken.
LOGITS_TOKENS = 4096.0
#: Contexts at which engines change the number of blocks of keys of a task, all of them at knots [token].
BLOCK_CHANGES = (127.0, 4096.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Largest passes of a table: sequences, prompt tokens of a pass, and tokens of a sequence."""

    sequences: int
    tokens: int
    context: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passes:
    """A model on a system whose passes are evaluated.  decode: shape of its decode passes."""

    model: Model
    system: System
    decode: PassShape
    sizes: Sizes

    def times(self, batch: Array, new: Count, cached: Count, logits: Count) -> Array:
        """Times of passes of one group each [s]: pipeline stages x ALL ... PAST_KERNELS x passes."""
        ones = np.ones(len(batch))
        return self._times(
            Group(batch_size=batch, new_tokens=new * ones, cached_tokens=cached * ones, logit_positions=logits * ones)
        )

    def decoding(self, batch: Array, context: Array) -> Array:
        """Times of decode passes, as of `times`."""
        shape, ones = self.decode, np.ones(len(batch))
        pairs = shape.attended_new_pairs
        group = Group(
            batch_size=batch,
            new_tokens=shape.new_tokens * ones,
            cached_tokens=context + shape.ahead,
            logit_positions=shape.logit_positions * ones,
            attended_new_pairs=None if pairs is None else pairs * ones,
        )
        return self._times(group)

    def _times(self, group: Group) -> Array:
        step = Step((replace(group, kept=self.system.kv_cache.kept),))
        found = evaluate(self.model, self.system, step)
        return np.stack([_parts(one, np.size(step.tokens)) for one in found.stages or (found,)])


def _parts(one: Evaluation, points: int) -> Array:
    """Times of the passes on one pipeline stage: ALL ... PAST_KERNELS."""
    kernels = one.sum(lambda row: row.timing.time_s)
    past = one.sum(lambda row: row.timing.time_s if _reads_past(row.operator) else 0.0)
    added = total(seconds for name, seconds in one.served if name not in HIDDEN_TERMS)
    own = total(seconds for name, seconds in one.served if name in TERMS_OF_SEQUENCES)
    rows = np.empty((4, points))
    for at, row in enumerate((kernels + added, kernels, past + own, past)):
        rows[at] = row
    return rows


def _reads_past(operator: Operator) -> bool:
    return operator.kind is Kind.ATTENTION or isinstance(operator.shape, AttentionShape)


def decode_knots(sizes: Sizes) -> Knots:
    """Knots of the mean context of decoding sequences."""
    return knots(sizes.context, DECODE_KNOTS, BLOCK_CHANGES)


def part_tables(passes: Passes) -> list[list[PartTable]]:
    """Tables of all time and of kernels, for each pipeline stage."""
    shape, sizes = passes.decode, passes.sizes
    by_number = _ByNumber.of(passes)
    sequences, context = whole_knots(sizes.sequences, 16, 4, stairs=False), decode_knots(sizes)
    batch, cached = grid(sequences, context)
    decodes = passes.decoding(batch, cached)[:, :PAST] - by_number.at(
        batch * shape.new_tokens, batch * shape.logit_positions
    )

    prompts, before = whole_knots(sizes.tokens, 17, 8, stairs=True), knots(sizes.context, PROMPT_KNOTS)
    new, cached = grid(prompts, before)
    chunk = passes.times(np.ones(len(new)), new, cached, 0.0)[:, :PAST] - by_number.at(new, 0.0)

    several, mean = whole_knots(sizes.tokens, 1, 2, stairs=False), knots(sizes.tokens, PROMPT_KNOTS)
    new, length = grid(several, mean)
    length = np.minimum(length + 1.0, new)
    packed = passes.times(new / length, length, 0.0, 0.0)[:, :PAST] - by_number.at(new, 0.0)
    return [
        [
            PartTable(
                tokens=every_whole(by_number.knots, by_number.tokens[stage, quantity]),
                logits=every_whole(by_number.knots, by_number.logits[stage, quantity]),
                decodes=surface(sequences, context, decodes[stage, quantity]),
                chunk=surface(prompts, before, chunk[stage, quantity]),
                packed=surface(several, mean, packed[stage, quantity]),
            )
            for quantity in (ALL, KERNELS)
        ]
        for stage in range(len(decodes))
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ByNumber:
    """Times that depend on one number, at knots: stages x ALL, KERNELS x knots."""

    knots: Array
    tokens: Array
    logits: Array

    @staticmethod
    def of(passes: Passes) -> _ByNumber:
        """Times of tokens and of rows of logits."""
        shape, sizes = passes.decode, passes.sizes
        most = int(np.ceil(sizes.sequences * max(shape.new_tokens, shape.logit_positions))) + sizes.tokens  # type: ignore[type-var]
        counts = whole_knots(most, 512, 32, stairs=True)
        few = np.full(len(counts), NO_SEQUENCE)
        tokens = passes.times(few, counts / NO_SEQUENCE, 0.0, 0.0)
        rows = passes.times(np.full(len(counts) + 1, LOGITS_TOKENS), 1.0, 0.0, np.append(counts, 0.0) / LOGITS_TOKENS)
        return _ByNumber(
            knots=counts, tokens=tokens[:, :PAST] - tokens[:, PAST:], logits=rows[:, :PAST, :-1] - rows[:, :PAST, -1:]
        )

    def at(self, tokens: Array, logits: Count) -> Array:
        """Times of passes with so many tokens and rows of logits."""
        rows = np.where(logits > 0.0, logits, 0.0)
        zero, start = np.append(0.0, self.knots), np.zeros((*self.logits.shape[:2], 1))
        known = np.concatenate((start, self.logits), axis=2)
        return np.stack(
            [
                [np.interp(tokens, self.knots, g) + np.interp(rows, zero, h) for g, h in zip(*stage, strict=True)]
                for stage in zip(self.tokens, known, strict=True)
            ]
        )


def stage_tables(passes: Passes) -> tuple[StageTable, ...]:
    """Tables of a model's passes on each pipeline stage."""
    latent = _latent(passes.model)
    forms = (
        [passes]
        if latent is None
        else [replace(passes, model=with_mla_form(passes.model, form)) for form in (MlaForm.NAIVE, MlaForm.ABSORBED)]
    )
    tables = [part_tables(one) for one in forms]
    return tuple(
        StageTable(
            steps=tuple(of_form[stage][ALL] for of_form in tables),
            kernels=tuple(of_form[stage][KERNELS] for of_form in tables),
            latent=latent,
            waits=waits,
            waiting=_waiting(waits, tables[0][stage][KERNELS].tokens),
            new=float(np.max(passes.decode.new_tokens)),
            rows=float(np.max(passes.decode.logit_positions)),
        )
        for stage, waits in enumerate(_waits(passes))
    )


def _latent(model: Model) -> Latent | None:
    """The choice between forms of latent attention; None for models without it or with a fixed form."""
    found = {
        Latent(
            up=float(one.kv_rank * (one.nope_dim + one.v_dim)),
            extra=2.0 * one.kv_rank - one.nope_dim - one.v_dim,
            window=one.window,
            selected=one.selected,
        )
        for one in (layer.mixer for layer in model.layers)
        if isinstance(one, Mla) and one.form is MlaForm.CHEAPER
    }
    if len(found) > 1:
        raise UserError(f"simulate: {model.name} has latent attention of several sizes; give --latent-attention")
    return next(iter(found), None)


def _waits(passes: Passes) -> list[tuple[tuple[float, float], ...]]:
    """Times of the host that kernels hide, for each pipeline stage: in passes of more tokens than -> seconds."""
    engine, one = passes.system.engine, np.ones(1)
    step = Step((Group(batch_size=one, new_tokens=one, cached_tokens=0.0 * one, logit_positions=one),))
    found = evaluate(passes.model, passes.system, step)
    eager = engine.constants.get("eager", 0.0) * 1e-6
    return [
        tuple(
            (above, seconds)
            for above, seconds in (
                (engine.graph_tokens, eager * float(times_paid(stage.graph, step)["launch"])),
                (0.0, engine.draft_us * 1e-6),
            )
            if seconds
        )
        for stage in found.stages or (found,)
    ]


def _waiting(waits: tuple[tuple[float, float], ...], kernels: list[float]) -> int:
    """Most tokens of a pass whose kernels may take less time than the host."""
    longest = max((seconds for _, seconds in waits), default=0.0)
    return max((tokens for tokens, seconds in enumerate(kernels) if seconds < longest), default=0) if longest else 0
