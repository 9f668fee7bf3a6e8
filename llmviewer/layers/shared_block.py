"""Zamba's layers with a transformer block whose weights all such layers share (arXiv 2405.16712, 2411.15242).

The block reads the residual stream beside the embeddings; its output, through a matrix of the layer's own, is added to
the input of the layer's Mamba part.  The weights are stored `copies` times and read at every call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Role, State, Tensor
from llmviewer.core.kinds import TIED
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention
from llmviewer.layers.decoder import Mixer
from llmviewer.layers.feed_forward import Mlp
from llmviewer.ops.elementwise import add, rms_norm
from llmviewer.ops.gemm import GemmShape, Linear


@frozen
class SharedBlockMixer:
    """A mixer of attention and MLP with shared weights, then `mamba` on the sum of their output and the input.

    Its own norm before `mamba` replaces the layer's: the residual stream itself is not changed by the shared block.
    adapter_rank: of each layer's own low-rank additions to gate_up_proj, and to q, k, v if `adapts_attention`; 0: none.
    """

    attention: Attention
    mlp: Mlp
    mamba: Mixer
    dtype: Dtype
    adapter_rank: int = 0
    adapts_attention: bool = False

    def states(self) -> tuple[State, ...]:
        """The states of the attention and of the Mamba part."""
        return (*self.attention.states(), *self.mamba.states())

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The shared block with the layer's adapters, the layer's matrix, the sum, the norm, the Mamba part."""
        tokens, hidden = step.tokens, self.mlp.hidden
        shared = self._transformer(step, x)
        linear = Linear(name="shared_linear", in_features=hidden, out_features=hidden, dtype=self.dtype)
        project = linear.operator(shared[-1].output, tokens)
        both = add("shared_add", x, project.output, tokens)
        norm = rms_norm("attn_norm", hidden, self.dtype).operator(both.output, tokens)
        return (*shared, project, both, norm, *self.mamba.operators(step, norm.output))

    def _transformer(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of the shared block: no sum within it."""
        tokens, wide = step.tokens, self.attention.input_width
        doubled = Tensor(name=x.name, elements=tokens * (1.0 * wide), dtype=x.dtype)
        before = rms_norm("shared_norm", wide, self.dtype).operator(doubled, tokens)
        attend = self.attention.operators(step, before.output)
        after = rms_norm("mlp_norm", self.mlp.hidden, self.dtype).operator(attend[-1].output, tokens)
        feed = self.mlp.operators(step, after.output)
        qkv = ("q_proj", "k_proj", "v_proj") if self.adapts_attention else ()
        mixed = self._adapted(step, before.output, wide, attend, qkv)
        gate_up = ("gate_up_proj",) if self.adapter_rank else ()
        fed = self._adapted(step, after.output, self.mlp.hidden, feed, gate_up)
        return (*_tied((before,)), *mixed, *_tied((after,)), *fed)

    def _adapted(
        self, step: Step, x: Tensor, width: int, operators: tuple[Operator, ...], names: tuple[str, ...]
    ) -> tuple[Operator, ...]:
        """The shared operators; before each one in `names`, this layer's adapter, whose output it adds to its own.

        width: elements of a token of their input `x`.
        """
        done: list[Operator] = []
        for operator in operators:
            (shared,) = _tied((operator,))
            if operator.name not in names:
                done.append(shared)
                continue
            down, up = self._adapter(operator, step, x, width)
            added = up.output.elements
            reads = (*shared.reads, Access(up.output, added))
            done += (down, up, replace(shared, reads=reads, vector_flops=shared.vector_flops + added))
        return tuple(done)

    def _adapter(self, operator: Operator, step: Step, x: Tensor, width: int) -> tuple[Operator, Operator]:
        assert isinstance(operator.shape, GemmShape)
        name = operator.name.removesuffix("_proj")
        sizes = (("down", width, self.adapter_rank), ("up", self.adapter_rank, operator.shape.n))
        down, up = (
            Linear(name=f"{name}_adapter_{side}", in_features=into, out_features=out, dtype=self.dtype)
            for side, into, out in sizes
        )
        first = down.operator(x, step.tokens)
        return first, up.operator(first.output, step.tokens)


def _tied(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """The operators with their weights called by a name that marks them as shared."""
    return tuple(replace(operator, reads=tuple(map(_shared, operator.reads))) for operator in operators)


def _shared(access: Access) -> Access:
    tensor = access.tensor
    return replace(access, tensor=tensor.called(TIED + tensor.name)) if tensor.role is Role.WEIGHT else access
