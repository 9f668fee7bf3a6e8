"""Evaluation of one model's passes for tables: which passes are priced, and of which operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from llmviewer.analysis.evaluation import Evaluation, evaluate
from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.core.counts import Array, Count, total
from llmviewer.core.ir import Graph, Operator
from llmviewer.core.workload import Group, Step
from llmviewer.models.model import Model
from llmviewer.ops.attention import AttentionShape
from llmviewer.serving.generation import PassShape
from llmviewer.timing.engine import ENGINE_ROUTING

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Largest passes of a table: sequences, prompt tokens of a pass, and tokens of a sequence."""

    sequences: int
    tokens: int
    context: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """Operators that are priced alone, and constants of the engine that are paid with them."""

    operators: frozenset[Name]
    constants: tuple[str, ...] = ()


def prompts(batch: Count, new: Array, cached: Count, logits: Count = 0.0) -> Group:
    """Prompts of `new` tokens after `cached` ones."""
    ones = np.ones(len(new))
    return Group(batch_size=batch * ones, new_tokens=new, cached_tokens=cached * ones, logit_positions=logits * ones)


#: No prompt at all, beside which attention of other groups runs as in a pass with prompts.
NO_PROMPT = Group(batch_size=0.0, new_tokens=64.0, cached_tokens=0.0, logit_positions=0.0)


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: the sorted operators are kept
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
        kernels = one.sum(lambda row: row.timing.time_s)
        added = total(seconds for name, seconds in one.served if name not in HIDDEN_TERMS)
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

        engine = self.system.engine
        if engine.constants or engine.unit_bytes or engine.ungrouped or engine.draft_us:
            constants = {name: engine.constants[name] for name in selection.constants if name in engine.constants}
            ungrouped = 0.0 if mixed else engine.ungrouped
            engine = replace(engine, constants=constants, unit_bytes=0.0, draft_us=0.0, ungrouped=ungrouped)
        passes = tuple(one for one in self.system.passes if one.name != ENGINE_ROUTING)
        return replace(
            self.system, engine=engine, passes=(*passes, AppliedTechnique(name="selection", make=lambda _: kept))
        )

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
        """Operators with their times in passes of 64 tokens.

        One prompt, without and with tokens before it; 64 sequences, without and with; a long context; rows of logits.
        """
        columns = ((1, 64, 0, 0), (1, 64, 3000, 0), (64, 1, 0, 0), (64, 1, 3000, 0), (1, 64, 2e5, 0), (1, 64, 0, 64))
        batch, new, cached, logits = np.array(columns, dtype=np.float64).T
        group = Group(batch_size=batch, new_tokens=new, cached_tokens=cached, logit_positions=logits)
        found: Evaluation = evaluate(self.model, self.system, Step((replace(group, kept=self.system.kv_cache.kept),)))
        times, operators = {}, {}
        for row in found.rows:
            name = (row.block.name, row.operator.name)
            times[name] = np.broadcast_to(np.asarray(row.timing.time_s, dtype=np.float64), len(batch))
            operators[name] = row.operator
        return times, operators


def _is_attention(operator: Operator) -> bool:
    return isinstance(operator.shape, AttentionShape)
