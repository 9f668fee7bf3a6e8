"""Compression of keys over tokens (DeepSeek-V4): one cached entry for every `rate` tokens, a gated sum over them.

Source: https://github.com/huggingface/transformers, models/deepseek_v4/modeling_deepseek_v4.py
"""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Operator, Role, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.ops.attention import SOFTMAX_FLOPS
from llmviewer.ops.elementwise import elementwise
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import rms_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """Entries of `dim` elements.  overlap: an entry also covers the `rate` tokens before its own, with other weights.

    prefix: of the names of operators and caches (`compressed`, `index`).
    """

    hidden: int
    dim: int
    rate: int
    dtype: Dtype
    overlap: bool = False
    prefix: str = "compressed"

    @property
    def _width(self) -> int:
        return self.dim * (2 if self.overlap else 1)

    @property
    def cache_name(self) -> str:
        """Name of the cache of entries."""
        return f"{self.prefix}_cache"

    def states(self) -> tuple[State, ...]:
        """The entries, dim / rate elements per token; and projections of tokens that fill no entry yet, per sequence.

        With overlap the last whole group of tokens is kept as well.
        """
        kept = 2.0 * self.rate * (self._width + (self.dim if self.overlap else 0))
        return (
            State(name=self.cache_name, dtype=self.dtype, per_token=self.dim / self.rate),
            State(name=f"{self.prefix}_pending", dtype=self.dtype, per_sequence=kept),
        )

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Projections of values and gates, softmax over an entry's tokens, weighted sum, norm into the cache."""
        tokens = step.tokens
        value, gate = (self._linear(name).operator(x, tokens) for name in ("kv_proj", "gate_proj"))
        stored = float(self.rate * self._width)
        bias = Tensor(name=f"{self.prefix}_position.weight", elements=stored, dtype=self.dtype, role=Role.WEIGHT)
        entries = tokens / self.rate
        y = Tensor(name=f"{self.prefix}_pool", elements=entries * self.dim, dtype=x.dtype)
        per_entry = self._width * self.rate / self.dim * (SOFTMAX_FLOPS + 3.0)  # bias, product, sum
        reads = (whole(value.output), whole(gate.output), whole(bias))
        pool = elementwise(y.name, reads, y, tokens, flops=per_entry, special=self._width * self.rate / self.dim)
        norm = rms_norm(f"{self.prefix}_norm", self.dim, self.dtype)
        return value, gate, pool, norm.operator(y, entries, (whole(self.cached(y.elements)),))

    def cached(self, elements: Count) -> Tensor:
        """The cache of entries, or a part of it."""
        return Tensor(name=self.cache_name, elements=elements, dtype=self.dtype, role=Role.CACHE)

    def _linear(self, name: str) -> Linear:
        full = f"{self.prefix}_{name}"
        return Linear(name=full, in_features=self.hidden, out_features=self._width, dtype=self.dtype)
