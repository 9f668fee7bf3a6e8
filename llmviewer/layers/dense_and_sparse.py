"""A dense MLP and experts in parallel, each between its own norms (Gemma 4)."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Operator, Tensor
from llmviewer.core.workload import Step
from llmviewer.layers.mlp import Mlp
from llmviewer.layers.moe import Moe
from llmviewer.ops.elementwise import add
from llmviewer.ops.norm import rms_norm


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
