"""Tables of one model's passes: which passes and operators are evaluated, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from llmviewer.analysis.evaluation import Evaluation, evaluate
from llmviewer.analysis.system import AppliedTechnique, PipelineExits, System
from llmviewer.core.counts import Array, Count, total
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph, Operator
from llmviewer.core.workload import Group, Step
from llmviewer.layers.mla import Mla, MlaForm
from llmviewer.models.model import Model, with_mla_form
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.collective import is_of_all_ranks
from llmviewer.serving.generation import PassShape
from llmviewer.simulation.pass_tables import (
    DECODE_KNOTS,
    PROMPT_BESIDE,
    PROMPT_KNOTS,
    SHORT_CHUNK,
    Knots,
    Latent,
    ModelTable,
    PartTable,
    Surface,
    between,
    every_whole,
    grid,
    knots,
    surface,
    whole_knots,
)
from llmviewer.timing.engine import ENGINE_ROUTING
from llmviewer.timing.engine_work import launching_s, times_paid

#: Names of an operator: of its block, and its own.
Name = tuple[str, str]
#: Engine's times that kernels hide.
HIDDEN_TERMS = ("host", "drafting")
#: Rows of the times of a pass: all but what hides behind kernels, and kernels alone.
ALL, KERNELS = range(2)
#: Sequences of a pass without sequences: divisions by their number remain possible.
NO_SEQUENCE = 2.0**-20
#: Relative difference of times that is no rounding.
DIFFERENT = 1e-9


@frozen
class Sizes:
    """Largest passes of a table: sequences, prompt tokens of a pass, and tokens of a sequence."""

    sequences: int
    tokens: int
    context: float


@frozen(eq=False)
class Selection:
    """Operators that are priced alone, and constants of the engine that are paid with them."""

    operators: frozenset[Name]
    constants: tuple[str, ...] = ()


def prompts(batch: Count, new: Array, cached: Count, logits: Count = 0.0) -> Group:
    """Prompts of `new` tokens after `cached` ones."""
    ones = np.ones(len(new))
    return Group(batch_size=batch * ones, new_tokens=new, cached_tokens=cached * ones, logit_positions=logits * ones)


#: Cached tokens of the sequences of the passes that tell how pipeline stages share the time of a pass.
STAGE_CONTEXT = 2048.0
#: No prompt at all, beside which attention of other groups runs as in a pass with prompts.
NO_PROMPT = Group(batch_size=0.0, new_tokens=64.0, cached_tokens=0.0, logit_positions=0.0)


@frozen(slots=False, eq=False)  # no slots: the sorted operators are kept
class Passes:
    """A model on a system whose passes are evaluated.  decode: shape of its decode passes."""

    model: Model
    system: System
    decode: PassShape
    sizes: Sizes

    def decoding(self, batch: Array, context: Array) -> Group:
        """Sequences that decode after `context` tokens."""
        shape, ones = self.decode, np.ones(len(batch))
        pairs = shape.attended_new_pairs
        return Group(
            batch_size=batch,
            new_tokens=shape.new_tokens * ones,
            cached_tokens=context + shape.ahead,
            logit_positions=shape.logit_positions * ones,
            attended_new_pairs=None if pairs is None else pairs * ones,
        )

    def times(self, *groups: Group, of: Selection | None = None) -> Array:
        """Times of passes [s], ALL and KERNELS, one column per pass.  of: operators that count; None for all."""
        step = Step(tuple(replace(group, kept=self.system.kv_cache.kept) for group in groups))
        one = evaluate(self.model, self.system if of is None else self._only(of, mixed=len(groups) > 1), step)
        kernels = total(stage.sum(lambda row: row.timing.time_s) for stage in one.each_stage)
        added = total(seconds for stage in one.each_stage for name, seconds in stage.served if name not in HIDDEN_TERMS)
        rows = np.empty((2, np.size(step.tokens)))
        rows[ALL], rows[KERNELS] = kernels + added, kernels
        return rows

    def _only(self, selection: Selection, *, mixed: bool) -> System:
        """The system that runs only some operators; how tokens choose experts does not change them."""

        def kept(graph: Graph) -> Graph:
            return graph.map_blocks(
                lambda block: replace(
                    block, operators=tuple(op for op in block.operators if (block.name, op.name) in selection.operators)
                )
            )

        if (split := self.system.split) is not None:  # devices send what their last layer makes, priced or not
            parts = split.with_each(lambda one: _of_part(one, selection, mixed=mixed))
            return replace(self.system, split=replace(parts, change=kept))
        system = _of_part(self.system, selection, mixed=mixed)
        if system.parallelism.pipeline > 1:  # and so do stages
            return replace(system, exits=PipelineExits(change=lambda _, stages: tuple(map(kept, stages))))
        return replace(system, passes=(*system.passes, AppliedTechnique(name="selection", make=lambda _: kept)))

    def shared(self) -> list[float]:
        """Time of the work on the tokens of all ranks, by the tokens of each rank's pass [s]."""
        passes = evaluate(self.model, self.system, Step((_tokens(self.counts),)))
        return every_whole(self.counts, np.asarray(passes.served_sum(is_of_all_ranks)))

    def stages(self) -> list[tuple[float, ...]]:
        """Shares of a pass on each pipeline stage, by its tokens."""
        each, most = float(np.max(self.decode.new_tokens)), float(self.sizes.sequences)
        batch = np.minimum(self.counts / each, most)
        prompt = prompts(1.0, np.maximum(self.counts - batch * each, 0.0), 0.0)
        step = Step((self.decoding(batch, np.full(len(batch), STAGE_CONTEXT)), prompt))
        times = np.stack(
            [stage.time_s * np.ones(len(batch)) for stage in evaluate(self.model, self.system, step).each_stage]
        )
        shares = [every_whole(self.counts, row) for row in times / times.sum(axis=0)]
        return list(zip(*shares, strict=True))

    @property
    def counts(self) -> Array:
        """Knots of the tokens of a pass."""
        shape, sizes = self.decode, self.sizes
        each = float(np.max(np.maximum(shape.new_tokens, shape.logit_positions)))
        most = int(np.ceil(sizes.sequences * each) + max(sizes.tokens, PROMPT_BESIDE))
        return whole_knots(most, 2048, 128, stairs=True)

    @cached_property
    def attention(self) -> frozenset[Name]:
        """Operators of attention, whose kernels run once for decoding sequences and once for prompts."""
        return frozenset(name for name, operator in self._probe[1].items() if _is_attention(operator))

    @cached_property
    def of_past(self) -> frozenset[Name]:
        """Other operators whose time depends on the tokens before those of the pass."""
        return self._changed(0, 1) | self._changed(2, 3) | self._changed(0, 4)

    @cached_property
    def of_sequences(self) -> frozenset[Name]:
        """Other operators whose time depends on the number of sequences, but not on the tokens before."""
        return self._changed(0, 2) - self.of_past

    @cached_property
    def of_logits(self) -> frozenset[Name]:
        """Other operators whose time depends on the rows of logits."""
        return self._changed(0, 5)

    def _changed(self, one: int, other: int) -> frozenset[Name]:
        """Operators whose times differ between two passes of the probe, attention left out."""
        times, _ = self._probe
        return frozenset(
            name
            for name, found in times.items()
            if abs(found[one] - found[other]) > DIFFERENT * abs(found[one]) and name not in self.attention
        )

    @cached_property
    def _probe(self) -> tuple[Mapping[Name, Array], Mapping[Name, Operator]]:
        """Operators with their times in passes of 64 tokens, on all stages together.

        One prompt, without and with tokens before it; 64 sequences, without and with; a long context; rows of logits.
        """
        columns = ((1, 64, 0, 0), (1, 64, 3000, 0), (64, 1, 0, 0), (64, 1, 3000, 0), (1, 64, 2e5, 0), (1, 64, 0, 64))
        batch, new, cached, logits = np.array(columns, dtype=np.float64).T
        group = Group(batch_size=batch, new_tokens=new, cached_tokens=cached, logit_positions=logits)
        found: Evaluation = evaluate(self.model, self.system, Step((replace(group, kept=self.system.kv_cache.kept),)))
        times: dict[Name, Array] = {}
        operators: dict[Name, Operator] = {}
        for row in (row for stage in found.each_stage for row in stage.rows):
            name = (row.block.name, row.operator.name)
            seconds = np.broadcast_to(np.asarray(row.timing.time_s, dtype=np.float64), len(batch))
            times[name] = seconds + times.get(name, 0.0)
            operators[name] = row.operator
        return times, operators


def _of_part(system: System, selection: Selection, *, mixed: bool) -> System:
    """The system with the constants that are paid with some operators.  mixed: passes with prompts beside decodes."""
    engine = system.engine
    if engine.constants or engine.unit_bytes or engine.ungrouped or engine.draft_us:
        constants = {name: engine.constants[name] for name in selection.constants if name in engine.constants}
        ungrouped = 0.0 if mixed else engine.ungrouped
        engine = replace(engine, constants=constants, unit_bytes=0.0, draft_us=0.0, ungrouped=ungrouped)
    return replace(system, engine=engine, passes=tuple(one for one in system.passes if one.name != ENGINE_ROUTING))


def _is_attention(operator: Operator) -> bool:
    return isinstance(operator.shape, AttentionShape)


#: Sequences of which all numbers are evaluated, then numbers per octave.
SPACING = (16, 8)
#: Forms of latent attention in the order of ModelTable; decode steps alone are never naive, beside prompts they are
#: smooth.
FORMS = {MlaForm.NAIVE: (4, 2), MlaForm.ABSORBED: (16, 4)}
#: Tokens of the passes from which the time of rows of logits is taken.
LOGITS_TOKENS = 4096.0
#: Contexts at which engines change the number of blocks of keys of a task, all of them at knots [token].
BLOCK_CHANGES = (127.0, 4096.0)


def decode_knots(sizes: Sizes) -> Knots:
    """Knots of the mean context of decoding sequences."""
    return knots(sizes.context, DECODE_KNOTS, BLOCK_CHANGES)


@frozen(eq=False)
class _Builder:
    """Tables of the passes of one model in one form of latent attention.

    spacing: sequences of which all numbers are evaluated, then numbers per octave.  counts: knots of tokens.
    past: operators that depend on the past; their times for tokens alone are `with_tokens`.
    """

    passes: Passes
    counts: Array
    past: Selection
    with_tokens: Array
    spacing: tuple[int, int]

    @staticmethod
    def of(passes: Passes, spacing: tuple[int, int], of_past: frozenset[Name]) -> _Builder:
        """The builder of tables that reach the largest passes.  of_past: operators that depend on it in any form."""
        counts = passes.counts
        one_each = prompts(counts, np.ones(len(counts)), 0.0)
        apart = passes.times(one_each, of=Selection(operators=of_past))
        past = Selection(operators=of_past | passes.attention, constants=("sequence",))
        return _Builder(passes=passes, counts=counts, past=past, with_tokens=apart, spacing=spacing)

    def tables(self) -> tuple[PartTable, PartTable]:
        """Tables of all time that does not hide behind kernels, and of kernels alone."""
        tokens = [every_whole(self.counts, row) for row in self.tokens() + self.with_tokens]
        parts = (tokens, self.logits(), self.states(), *self.decodes(), *self.chunks(), self.packed())
        names = ("tokens", "logits", "states", "decodes", "beside", "shared", "chunk", "short", "alone", "packed")
        one, other = (
            PartTable(**{name: part[quantity] for name, part in zip(names, parts, strict=True)})  # type: ignore[index]
            for quantity in (ALL, KERNELS)
        )
        return one, other

    def tokens(self) -> Array:
        """Work on tokens at `counts`: all but what depends on the past or on the number of sequences."""
        group = _tokens(self.counts)
        others = replace(self.past, operators=self.past.operators | self.passes.of_sequences)
        return self.passes.times(group) - self.passes.times(group, of=others)

    def logits(self) -> list[list[float]]:
        """Work on rows of logits beyond that without any."""
        rows = np.append(self.counts, 0.0) / LOGITS_TOKENS
        selection = Selection(operators=self.passes.of_logits, constants=("sampling",))
        found = self.passes.times(prompts(LOGITS_TOKENS, np.ones(len(rows)), 0.0, rows), of=selection)
        return [every_whole(self.counts, row[:-1] - row[-1]) for row in found]

    def states(self) -> list[Surface | None]:
        """Work on sequences and tokens whatever their past, over sequences and tokens less 1."""
        if not self.passes.of_sequences:
            return [None, None]
        most, selection = int(self.passes.sizes.sequences) + 64, Selection(operators=self.passes.of_sequences)
        number, tokens = whole_knots(most, 8, 8, stairs=False), knots(self.counts[-1], DECODE_KNOTS)
        sequences, x = grid(number, tokens)
        found = self.passes.times(prompts(sequences, (x + 1.0) / sequences, 0.0), of=selection)
        return [surface(number, tokens, row) for row in found]

    def decodes(self) -> list[list[Surface]]:
        """Decoding sequences: alone, beside a prompt of no tokens, and further time per prompt token."""
        shape, sizes = self.passes.decode, self.passes.sizes
        number, context = whole_knots(sizes.sequences, *self.spacing, stairs=False), decode_knots(sizes)
        batch, cached = grid(number, context)
        group, known = self.passes.decoding(batch, cached), self._with_tokens(batch * shape.new_tokens)
        alone = self.passes.times(group, of=self.past) - known
        beside = self.passes.times(group, NO_PROMPT, of=self.past) - known
        shared = self._shared(number, context, beside)
        return [[surface(number, context, row) for row in rows] for rows in (alone, beside, shared)]

    def _shared(self, number: Array, context: Knots, beside: Array) -> Array:
        """Further time of decodes and prompt together, per prompt token, from a few numbers of sequences."""
        few = np.unique(np.append(number[number == 4.0 ** np.round(np.log2(number) / 2.0)], number[-1]))
        batch, cached = grid(few, context)
        prompt = prompts(1.0, np.full(1, PROMPT_BESIDE), 0.0)
        tokens = batch * self.passes.decode.new_tokens + PROMPT_BESIDE
        both = self.passes.times(self.passes.decoding(batch, cached), prompt, of=self.past) - self._with_tokens(tokens)
        both = both - (
            self.passes.times(prompt, NO_PROMPT, of=self.past) - self._with_tokens(np.full(1, PROMPT_BESIDE))
        )
        chosen = np.isin(number, few)
        return np.stack(
            [
                between(few, (row.reshape(len(few), -1) - own.reshape(len(number), -1)[chosen]) / PROMPT_BESIDE, number)
                for row, own in zip(both, beside, strict=True)
            ]
        )

    def chunks(self) -> list[list[Surface]]:
        """Tokens of one prompt; and the few that the decode kernel runs, beside other sequences and alone."""
        sizes, found = self.passes.sizes, []
        many = whole_knots(max(sizes.tokens, SHORT_CHUNK + 2), SHORT_CHUNK, 16, stairs=True)
        few = np.arange(1.0, SHORT_CHUNK + 1.0)
        plain, jumping = knots(sizes.context, PROMPT_KNOTS), knots(sizes.context, PROMPT_KNOTS, BLOCK_CHANGES)
        for number, before, others in (
            (many[many > SHORT_CHUNK], plain, (NO_PROMPT,)),
            (few, jumping, (NO_PROMPT,)),
            (few, jumping, ()),
        ):
            new, cached = grid(number, before)
            times = self.passes.times(prompts(1.0, new, cached), *others, of=self.past) - self._with_tokens(new)
            found.append([surface(number, before, row) for row in times])
        return found

    def packed(self) -> list[Surface]:
        """Tokens of several whole prompts of equal length."""
        number, mean = (
            whole_knots(self.passes.sizes.tokens, 1, 2, stairs=False),
            knots(self.passes.sizes.tokens, PROMPT_KNOTS),
        )
        new, length = grid(number, mean)
        length = np.minimum(length + 1.0, new)
        found = self.passes.times(prompts(new / length, length, 0.0), of=self.past) - self._with_tokens(new)
        return [surface(number, mean, row) for row in found]

    def _with_tokens(self, tokens: Array) -> Array:
        return np.stack([np.interp(tokens, self.counts, row) for row in self.with_tokens])


def _tokens(counts: Array) -> Group:
    """Tokens of no sequence."""
    return prompts(NO_SEQUENCE, counts / NO_SEQUENCE, 0.0)


def model_table(passes: Passes) -> ModelTable:
    """Tables of a model's passes."""
    latent, own = _latent(passes.model), passes.system.engine
    factors = {name: value for name, value in own.factors.items() if name != "prompt"}
    longer, after = own.factors.get("prompt", 1.0) - 1.0, own.graph_tokens
    passes = replace(passes, system=replace(passes.system, engine=replace(own, factors=factors)))
    forms = {passes.model: SPACING}
    if latent is not None:
        forms = {with_mla_form(passes.model, form): spacing for form, spacing in FORMS.items()}
    models = [(replace(passes, model=model), spacing) for model, spacing in forms.items()]
    of_past = frozenset[Name]().union(*(one.of_past for one, _ in models))
    builders = [_Builder.of(one, spacing, of_past) for one, spacing in models]
    tables = [builder.tables() for builder in builders]
    waits = _waits(passes)
    return ModelTable(
        steps=tuple(steps for steps, _ in tables),
        kernels=tuple(kernels for _, kernels in tables),
        latent=latent,
        waits=waits,
        waiting=_waiting(waits, tables[0][KERNELS].tokens),
        longer=(longer, after) if longer else None,
        new=float(np.max(passes.decode.new_tokens)),
        rows=float(np.max(passes.decode.logit_positions)),
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


def _waits(passes: Passes) -> tuple[tuple[float, bool, float, float], ...]:
    """Times of the host that kernels hide, as of `ModelTable`."""
    engine, step = passes.system.engine, Step((prompts(1.0, np.ones(1), 0.0),))
    paid = [times_paid(stage.graph, step) for stage in evaluate(passes.model, passes.system, step).each_stage]
    eager_s = sum(float(np.max(launching_s(engine.constants, times))) for times in paid)
    graphs = (engine.graph_tokens, engine.graphs == "decode", engine.graph_context)
    known = ((*graphs, eager_s), (0.0, False, np.inf, engine.draft_us * 1e-6))
    return tuple(one for one in known if one[-1])


def _waiting(waits: tuple[tuple[float, bool, float, float], ...], kernels: list[float]) -> int:
    """Most tokens of a pass whose kernels may take less time than the host."""
    longest = max((seconds for *_, seconds in waits), default=0.0)
    return max((tokens for tokens, seconds in enumerate(kernels) if seconds < longest), default=0) if longest else 0
