"""Attention of encoder-decoders: biases by relative position, and cross attention over an encoder's output."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmviewer.core.ir import Operator, Role, State, Tensor, whole
from llmviewer.core.kinds import TIED, OperatorRole
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention
from llmviewer.ops.attention import AttentionInputs, AttentionShape, eager


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeAttention(Attention):
    """Attention whose scores have a bias by the distance of query and key, from a table of `buckets` rows (T5).

    shared: all layers read the table of the first one; otherwise each has its own (UMT5).
    """

    buckets: int
    shared: bool

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The usual operators; the softmax adds the biases, with the whole table in its cache."""
        name = f"{TIED if self.shared else ''}relative_bias.weight"
        table = Tensor(name=name, elements=1.0 * self.buckets * self.heads, dtype=self.dtype, role=Role.WEIGHT)
        return tuple(
            replace(op, reads=(*op.reads, whole(table))) if op.role is OperatorRole.SOFTMAX else op
            for op in Attention.operators(self, step, x)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention(Attention):
    """Attention of new tokens over the keys and values of an encoder's input, which `InputKeys` has cached."""

    causal: bool = False

    def states(self) -> tuple[State, ...]:
        """The cache of the input: as long as the input, whatever has been generated."""
        _, k, v = self._widths
        keys = State(name="k_cache", dtype=self.dtype, per_token=k, of_input=True)
        return (keys, State(name="v_cache", dtype=self.dtype, per_token=v, of_input=True))

    def shape(self, step: Step) -> AttentionShape:
        """Every query sees the whole input."""
        over = Step(tuple(group.over_input for group in step.groups))
        return Attention.shape(self, over)

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The projection of the queries, eager attention over the cached input, the output projection."""
        shape = self.shape(step)
        query = self._product("q_proj", self._widths[0], x, step.tokens)
        k, v = (
            whole(Tensor(name=name, elements=shape.keys() * (1.0 * width), dtype=self.dtype, role=Role.CACHE))
            for name, width in zip(("k_cache", "v_cache"), self._widths[1:], strict=True)
        )
        core = eager(shape, AttentionInputs(q=query.output, k=(k,), v=(v,)))
        return (query, *core, *self._after(step.tokens, core[-1].output, (query,)))

    def input_keys(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The projections of the input's keys and values into the cache.  step: of the input."""
        made = []
        for name, width in zip(("k", "v"), self._widths[1:], strict=True):
            elements = step.tokens * (1.0 * width)
            cache = Tensor(name=f"{name}_cache", elements=elements, dtype=self.dtype, role=Role.CACHE)
            made.append(self._product(f"{name}_proj", width, x, step.tokens, (whole(cache),)))
        return tuple(made)
