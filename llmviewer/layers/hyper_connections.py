"""Several residual streams, mixed before and after every part of a layer (hyper-connections, DeepSeek-V4, Hunyuan 4).

Source: Manifold-constrained hyper-connections, arXiv 2512.24880;
https://github.com/huggingface/transformers, models/deepseek_v4/modeling_deepseek_v4.py
"""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Operator, Role, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import Step
from llmviewer.ops.elementwise import Activation, elementwise, elementwise_as
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm, NormKind

#: Per mixing weight: scale, bias and sigmoid.
WEIGHT_FLOPS = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnection:
    """`count` streams of `hidden` elements.

    A projection of all streams gives each token its weights: `count` to collapse the streams into a part's input,
    `count` to spread the part's output; and with `mixes`, count x count to mix the streams among themselves, made
    doubly stochastic by `iterations` of Sinkhorn's normalisation.  scales: stored factors of these groups of weights.
    """

    hidden: int
    count: int
    dtype: Dtype
    mixes: bool = True
    iterations: int = 0
    spreads: bool = True

    @property
    def _weights(self) -> int:
        """Weights per token."""
        return self.count * (1 + self.spreads) + (self.count**2 if self.mixes else 0)

    def widened(self, x: Tensor) -> Tensor:
        """The residual stream as a tensor of all streams."""
        return Tensor(name=x.name, elements=x.elements * self.count, dtype=x.dtype)

    def collapse(self, name: str, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Norm, projection, weights, and the weighted sum of the streams.  x: all streams."""
        tokens, width, weights = step.tokens, self.hidden * self.count, self._weights
        norm = Norm(name=f"{name}_hc_norm", kind=NormKind.RMS, width=width, parameters=0, dtype=self.dtype)
        normed = norm.operator(x, tokens)
        linear = Linear(name=f"{name}_hc_proj", in_features=width, out_features=weights, dtype=self.dtype)
        logits = linear.operator(normed.output, tokens)
        scales = 1 + self.spreads + self.mixes
        stored = Tensor(
            name=f"{name}_hc_base.weight", elements=float(weights + scales), dtype=self.dtype, role=Role.WEIGHT
        )
        y = Tensor(name=f"{name}_hc_weights", elements=tokens * (1.0 * weights), dtype=x.dtype)
        sinkhorn = 4.0 * self.iterations * self.count**2 / weights if self.mixes else 0.0
        reads = (whole(logits.output), whole(stored))
        made = elementwise(y.name, reads, y, tokens, flops=WEIGHT_FLOPS + sinkhorn, special=1.0)
        out = Tensor(name=f"{name}_hc_collapse", elements=tokens * (1.0 * self.hidden), dtype=x.dtype)
        return normed, logits, made, elementwise(out.name, (whole(x), whole(y)), out, tokens, flops=2.0 * self.count)

    def spread(self, name: str, tokens: Count, x: Tensor, out: Tensor, weights: Tensor) -> Operator:
        """The sum of mixed streams and the spread output.  x: all streams.  out: the part's output."""
        y = Tensor(name=f"{name}_add", elements=x.elements, dtype=x.dtype)
        work = Activation(2.0 + (2.0 * self.count if self.mixes else 0.0), 0.0)
        return elementwise_as(OperatorRole.RESIDUAL, y.name, (whole(x), whole(out), whole(weights)), y, tokens, work)
