"""Adaptive layer norm of diffusion transformers (adaLN-Zero): scales, shifts and gates made from a conditioning vector.

Source: Scalable Diffusion Models with Transformers, section 3.2, https://arxiv.org/abs/2212.09748; `DiTBlock` and
`FinalLayer` in https://github.com/facebookresearch/DiT/blob/main/models.py.
"""

from __future__ import annotations

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.decoder import Mixer
from llmviewer.layers.feed_forward import Mlp
from llmviewer.ops.elementwise import activate, activation, bare_layer_norm, elementwise
from llmviewer.ops.gemm import Linear

#: Sum of the embeddings of time step and class, one vector per image, which every layer reads.
CONDITIONING = "conditioning"
#: Vectors of a block (shift, scale and gate of both parts) and of the final layer (shift and scale).
BLOCK_VECTORS, FINAL_VECTORS = 6, 2


@frozen
class Modulation:
    """The `vectors` of `hidden` elements that one matrix makes from the conditioning of every image.

    prefix: of the operators' names (`final_`).
    """

    hidden: int
    vectors: int
    dtype: Dtype
    prefix: str = ""

    @property
    def linear(self) -> Linear:
        """The matrix, with a bias."""
        name, width = f"{self.prefix}adaln_proj", self.vectors * self.hidden
        return Linear(name=name, in_features=self.hidden, out_features=width, dtype=self.dtype, bias=True)

    def operators(self, step: Step) -> tuple[Operator, ...]:
        """SiLU and the matrix over one row per image."""
        x = Tensor(name=CONDITIONING, elements=step.sequences * (1.0 * self.hidden), dtype=self.dtype)
        act = activate(f"{self.prefix}adaln_act", x, step.sequences, activation("silu"))
        return act, self.linear.operator(act.output, step.sequences)

    def normed(self, name: str, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """LayerNorm without weights, then x * (1 + scale) + shift: 2 FLOP per element."""
        norm = bare_layer_norm(f"{name}_norm", self.hidden, self.dtype).operator(x, step.tokens)
        return norm, self._with_vectors(f"{name}_modulate", step, norm.output, 2)

    def gated(self, name: str, step: Step, x: Tensor) -> Operator:
        """The product of a part's output and its gate: 1 FLOP per element."""
        return self._with_vectors(f"{name}_gate", step, x, 1)

    def _with_vectors(self, name: str, step: Step, x: Tensor, count: int) -> Operator:
        """An operator that reads `count` vectors per image and does one FLOP with each for every element of `x`."""
        rows: Count = step.sequences * (1.0 * self.vectors * self.hidden)
        scales = Tensor(name=self.linear.name, elements=rows, dtype=self.dtype)
        read = Access(scales, step.sequences * (1.0 * count * self.hidden))
        y = Tensor(name=name, elements=x.elements, dtype=x.dtype)
        return elementwise(name, (whole(x), read), y, step.tokens, flops=1.0 * count)


@frozen
class ModulatedMixer:
    """The first part of a DiT block: makes the block's vectors, then norm, attention and gate."""

    modulation: Modulation
    mixer: Mixer

    def states(self) -> tuple[State, ...]:
        """The state of the attention: none, since every token sees all tokens of the pass."""
        return self.mixer.states()

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of the part; the gate is the last."""
        before = (*self.modulation.operators(step), *self.modulation.normed("attn", step, x))
        part = self.mixer.operators(step, before[-1].output)
        return (*before, *part, self.modulation.gated("attn", step, part[-1].output))


@frozen
class ModulatedMlp:
    """The second part of a DiT block: norm, feed-forward part and gate, with the vectors that the first part made."""

    modulation: Modulation
    mlp: Mlp

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of the part; the gate is the last."""
        before = self.modulation.normed("mlp", step, x)
        part = self.mlp.operators(step, before[-1].output)
        return (*before, *part, self.modulation.gated("mlp", step, part[-1].output))
