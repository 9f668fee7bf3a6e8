"""A dense MLP and experts in parallel: each between its own norms (Gemma 4), or on one input (LongCat-Flash)."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Operator, Tensor
from llmviewer.core.workload import Step
from llmviewer.layers.mlp import Mlp
from llmviewer.layers.moe import Moe
from llmviewer.ops.elementwise import add
from llmviewer.ops.norm import Norm, rms_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseAndSparse:
    """Both parts read the residual stream: norms before each part and the router, norms after each, then the sum."""

    dense: Mlp
    sparse: Moe
    dtype: Dtype

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of both parts and their sum.  x: the residual stream before any norm."""
        before = self._norm("mlp_norm", step, x)
        dense = self.dense.operators(step, before.output)
        dense_out = self._norm("dense_post_norm", step, dense[-1].output)
        router_in, expert_in = self._norm("router_norm", step, x), self._norm("expert_norm", step, x)
        sparse = self.sparse.routed_by(router_in.output, step, expert_in.output)
        sparse_out = self._norm("expert_post_norm", step, sparse[-1].output)
        both = add("branch_add", dense_out.output, sparse_out.output, step.tokens)
        return (before, *dense, dense_out, router_in, expert_in, *sparse, sparse_out, both)

    def _norm(self, name: str, step: Step, x: Tensor) -> Operator:
        return rms_norm(name, self.sparse.hidden, self.dtype).operator(x, step.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortcut:
    """Both parts read the same normalised input and their outputs are added (LongCat-Flash).

    The model adds the experts' output one attention later, so that their communication is hidden; the work is equal.
    """

    dense: Mlp
    sparse: Moe

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of both parts and their sum."""
        sparse, dense = self.sparse.operators(step, x), self.dense.operators(step, x)
        return (*sparse, *dense, add("branch_add", sparse[-1].output, dense[-1].output, step.tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class NormedExperts:
    """Experts with a norm after the sum of routed and shared ones (A.X K1)."""

    sparse: Moe
    norm: Norm

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of the experts and the norm."""
        sparse = self.sparse.operators(step, x)
        return (*sparse, self.norm.operator(sparse[-1].output, step.tokens))
