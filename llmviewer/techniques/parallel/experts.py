"""Expert parallelism: each device stores whole experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import Access, Operator, Role
from llmviewer.ops.gemm import GemmShape
from llmviewer.techniques.parallel.sharding import Sharding, check_divisible
from llmviewer.techniques.scaling import scale_access, scale_axis, scale_work
from llmviewer.techniques.sparsity.expert_skew import busiest_rank_experts, distinct_experts


def active_experts(shape: GemmShape, replicas: int) -> Count:
    """Distinct experts of the tokens of d replicas with as many tokens each: N (1 - (1 - a/N)^d)."""
    if replicas == 1:
        return shape.active
    return shape.experts * (1.0 - np.power(1.0 - shape.active / shape.experts, replicas))


def busiest_share(shape: GemmShape, sharding: Sharding) -> Count:
    """Share of all rows and of all active experts on the busiest device.

    It is 1/e, or one expert if fewer than e are active; with skewed popularity, the share of the most popular experts.
    """
    if shape.popularity is not None:
        return float(busiest_rank_experts(shape.popularity, sharding.expert).sum() / shape.popularity.sum())
    return np.maximum(1.0 / sharding.expert, 1.0 / np.maximum(active_experts(shape, sharding.data), 1.0))


def busiest_active_experts(shape: GemmShape, sharding: Sharding) -> Count:
    """Distinct experts that the busiest device reads."""
    if shape.popularity is not None:
        own = shape.m / shape.popularity.sum() if shape.unrelated is None else shape.unrelated
        tokens = sharding.data * own
        return distinct_experts(busiest_rank_experts(shape.popularity, sharding.expert), tokens)
    return active_experts(shape, sharding.data) * busiest_share(shape, sharding)


def dispatch_share(shape: GemmShape, sharding: Sharding) -> Count:
    """Rows on the busiest device, per row of one replica."""
    return sharding.data * busiest_share(shape, sharding)


def split_experts(
    operator: Operator, shape: GemmShape, sharding: Sharding, rows: Mapping[str, Count]
) -> tuple[Operator, Count]:
    """A device's part of a grouped product with its own experts, and its share of the rows of one replica."""
    check_divisible(operator.name, shape.experts, sharding.expert, "experts")
    share = dispatch_share(shape, sharding)
    active = busiest_active_experts(shape, sharding)

    def read(access: Access) -> Access:
        tensor = access.tensor
        if tensor.role is not Role.WEIGHT:
            return scale_access(access, rows[tensor.name]) if tensor.name in rows else access
        stored = replace(tensor, elements=tensor.elements / sharding.expert)
        return Access(stored, tensor.elements * (active / shape.experts))

    new = replace(
        scale_axis(scale_work(operator, share), 0, share),
        reads=tuple(map(read, operator.reads)),
        writes=tuple(scale_access(a, share) for a in operator.writes),
        shape=replace(
            shape,
            m=shape.m * share,
            experts=shape.experts / sharding.expert,
            active=active,
            routed=shape.m * (1.0 * sharding.data),
        ),
    )
    return new, share
