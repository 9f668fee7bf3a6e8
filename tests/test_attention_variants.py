"""Differential attention and attention with a dynamic mask, by hand: 32 heads of 64, 8 key-value heads, 1 query."""

from __future__ import annotations

from llmviewer.core.dtypes import DTYPES
from llmviewer.core.ir import Block, Graph, Operator, Tensor, check
from llmviewer.core.workload import decode
from llmviewer.layers.attention import Attention
from llmviewer.layers.attention_variants import DifferentialAttention, DynamicMaskAttention, varied

FP16 = DTYPES["fp16"]
PLAIN = Attention(hidden=2048, heads=32, kv_heads=8, head_dim=64, rotary_dim=64, dtype=FP16)
KEYS = 100
STEP = decode(1.0, float(KEYS - 1))


def operators(attention: Attention) -> dict[str, Operator]:
    hidden = Tensor(name="hidden", elements=STEP.tokens * 2048.0, dtype=FP16)
    block = Block(name="layer", operators=attention.operators(STEP, hidden))
    check(Graph(blocks=(block,)))
    return {operator.name: operator for operator in block.operators}


def test_differential_attention_computes_scores_and_values_twice_over_the_same_cache() -> None:
    """Scores 2 x 2 x 32 x 100 x 64; the cache is read once; the difference leaves 32 heads of 64 to project."""
    variant = varied(PLAIN, DifferentialAttention)
    ours, plain = operators(variant), operators(PLAIN)
    for name in ("qk_matmul", "sv_matmul"):
        assert ours[name].matmul_flops == 2 * plain[name].matmul_flops == 2 * 2 * 32 * KEYS * 64
    assert [state.per_token for state in variant.states()] == [8 * 64, 8 * 64]
    assert ours["attn_difference"].writes[0].elements == 32 * 64
    assert ours["attn_group_norm"].vector_flops == 7 * 32 * 64
    assert ours["o_proj"].matmul_flops == plain["o_proj"].matmul_flops


def test_a_dynamic_mask_multiplies_all_cached_values_at_every_step() -> None:
    """One bias per key and key-value head: 2 x 100 keys x 512 values x 8 heads, with 100 x 512 values read."""
    ours, plain = operators(varied(PLAIN, DynamicMaskAttention)), operators(PLAIN)
    assert ours["mask_proj"].matmul_flops == 2 * KEYS * (8 * 64) * 8
    assert ours["mask_proj"].reads[0].elements == KEYS * 8 * 64
    assert ours["softmax"].vector_flops == plain["softmax"].vector_flops + 32 * KEYS
