"""Mixtures of experts in the declarative form: which fields count, which layers are dense, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from llmviewer.core.errors import UserError
from llmviewer.core.ir import Operator
from llmviewer.core.workload import decode
from llmviewer.models.load import from_fields

LONGCAT: dict[str, Any] = {
    "model_type": "longcat_flash", "hidden_size": 128, "vocab_size": 256, "num_layers": 2, "num_attention_heads": 4,
    "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "ffn_hidden_size": 256, "expert_ffn_hidden_size": 64, "n_routed_experts": 512, "zero_expert_num": 256,
    "moe_topk": 12, "dtype": "bfloat16",
}  # fmt: skip
ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5_moe", "hidden_size": 128, "vocab_size": 256, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256, "moe_intermediate_size": 64,
    "moe_num_experts": 8, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_start_index": 1, "moe_layer_end_index": 4,
    "dtype": "bfloat16",
}  # fmt: skip
HUNYUAN: dict[str, Any] = {
    "model_type": "hunyuan_v1_moe", "hidden_size": 128, "vocab_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64, "num_experts": 8, "moe_topk": [2, 2], "dtype": "bfloat16",
}  # fmt: skip


def operators(fields: dict[str, Any], batch: float = 1.0) -> list[tuple[str, Operator, int]]:
    graph = from_fields(fields).graph(decode(batch, 10.0))
    return [(block.name, operator, block.repeats) for block, operator in graph]


def layers_with(fields: dict[str, Any], name: str) -> int:
    return sum(repeats for _, operator, repeats in operators(fields) if operator.name == name)


def test_zero_experts_take_their_share_of_the_choices() -> None:
    """12 of 768 experts are chosen, 512 of them have weights: 8 rows per token; the router scores all 768."""
    found = {operator.name: operator for _, operator, _ in operators(LONGCAT, batch=3.0)}
    assert found["expert_down_proj"].matmul_flops == pytest.approx(2 * 3 * 8 * 128 * 64)
    assert found["router"].matmul_flops == 2 * 3 * 128 * 768


def test_a_longcat_layer_has_two_attentions_two_dense_parts_and_one_set_of_experts() -> None:
    assert layers_with(LONGCAT, "o_proj") == layers_with(LONGCAT, "down_proj") == 4
    assert layers_with(LONGCAT, "router") == 2


def test_ernie_has_experts_from_its_start_to_its_end_index() -> None:
    assert layers_with(ERNIE, "router") == 4
    assert layers_with(ERNIE, "down_proj") == 2


def test_a_correction_that_ernie_stores_as_a_weight_is_a_parameter() -> None:
    """4 layers with 8 values each."""
    plain = from_fields(ERNIE).parameters
    fewer = from_fields({**ERNIE, "moe_layer_end_index": 3}).parameters
    dense, expert = 3 * 128 * 256, 3 * 128 * 64
    assert plain - fewer == (8 + 1) * expert + 128 * 8 + 8 - dense


def test_one_number_of_experts_per_layer_is_read_if_all_are_equal() -> None:
    assert layers_with(HUNYUAN, "router") == 2
    with pytest.raises(UserError, match="field 'moe_topk' differs between layers"):
        from_fields({**HUNYUAN, "moe_topk": [2, 4]})


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(UserError, match="'expert_twist'"):
        from_fields({**ERNIE, "expert_twist": 3})


def test_qwen3_moe_without_head_dim_divides_the_hidden_size() -> None:
    """transformers' default config: 2,048 / 32 = 64 elements per head."""
    fields = {
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
        "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "vocab_size": 151936,
    }  # fmt: skip
    assert from_fields(fields).parameters == 15_350_731_776
