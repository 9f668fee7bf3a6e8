"""Look-ups in embedding tables, which read only the rows of the tokens."""

from __future__ import annotations

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import Access, Operator, Tensor, whole
from llmviewer.core.kinds import Kind


def embedding(name: str, tables: tuple[Tensor, ...], y: Tensor, tokens: Count, *, flops: float = 0.0) -> Operator:
    """The sum of one row per table and token.  flops: per element of `y` (sums, a scale)."""
    return Operator(
        name=name,
        kind=Kind.EMBEDDING,
        reads=tuple(Access(table, y.elements) for table in tables),
        writes=(whole(y),),
        output_shape=(tokens, y.elements / np.maximum(tokens, 1.0)),  # a chunk has no rows of logits
        vector_flops=y.elements * flops if flops else 0.0,
    )
