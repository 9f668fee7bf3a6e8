"""Architectures outside the library's list of causal models, held to classes of equal shapes: remote code, text parts.

A class of equal shapes has its own parameters and products, so these counts are as exact as those of the library's.
"""

from __future__ import annotations

from typing import Any

import pytest

from llmviewer.models.load import from_fields
from tests.certificate.equivalents import EQUIVALENTS
from tests.certificate.errors import UnavailableError
from tests.certificate.library_defaults import default_config
from tests.certificate.our_counts import our_decode, our_prefill
from tests.certificate.torch_counts import TorchCounts, count_decode, count_prefill, parameter_count, reduced

PROMPT, CACHED, BATCH = 48, 40, 2
SMALL: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
#: Remote code, and a text part whose default has no head_dim: model_type -> the fields of its checkpoints, small sizes.
STATED: dict[str, dict[str, Any]] = {
    "Dream": {"num_key_value_heads": 2, "mask_token_id": 151666, "use_sliding_window": False},
    "Yi": {"num_key_value_heads": 2},
    "aquila": {},
    "bailing_moe_v2": {
        "num_key_value_heads": 2, "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1,
        "moe_intermediate_size": 96, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "use_qk_norm": True,
        "use_qkv_bias": False, "use_bias": False, "moe_router_enable_expert_bias": True,
    },
    "exaone": {"num_layers": 3, "num_key_value_heads": 2, "activation_function": "silu"},
    "internlm": {"bias": True},
    "mimo": {"num_key_value_heads": 2, "num_nextn_predict_layers": 1, "attention_bias": True},
    "orion": {"num_key_value_heads": 4},
    "qwen": {"kv_channels": 64, "no_bias": True},
    "qwen3_omni_moe_text": {
        "num_key_value_heads": 2, "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 96, "decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": [],
    },
    "skywork": {},
    "solar": {"num_key_value_heads": 2, "sliding_window": 32},
    "stablelm_epoch": {"num_key_value_heads": 4, "rope_pct": 0.25, "use_qkv_bias": True},
    "xverse": {},
}  # fmt: skip
#: Text parts of multimodal models, with the defaults of their config classes.
TEXT_PARTS = (
    *("emu3_text_model", "glm4v_moe_text", "glm4v_text", "mllama_text_model", "qwen2_5_omni_text"),
    *("granite4_vision_text", "granite_docling_text", "mistral4"),
    *("paddleocr_vl_text", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3_vl_moe_text", "qwen3_vl_text"),
)


@pytest.fixture(params=[*STATED, *TEXT_PARTS])
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param not in STATED:
        return default_config(request.param)
    fields = {**SMALL, "model_type": request.param, **STATED[request.param]}
    return {
        name: value for name, value in fields.items() if not ("num_layers" in fields and name == "num_hidden_layers")
    }


def test_parameters_equal_those_of_the_class(config: dict[str, Any]) -> None:
    try:
        expected = parameter_count(config)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    assert from_fields(config).parameters == expected


def test_matmul_flops_equal_those_of_the_class(config: dict[str, Any]) -> None:
    try:
        small = reduced(config)
        prefill, decode = count_prefill(small, BATCH, PROMPT), count_decode(small, BATCH, CACHED)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    for ours, theirs in ((our_prefill(small, BATCH, PROMPT), prefill), (our_decode(small, BATCH, CACHED), decode)):
        assert (ours.linear, ours.attention, ours.lm_head) == _headings(theirs)


def _headings(counts: TorchCounts) -> tuple[int, int, int]:
    return counts.linear, counts.attention, counts.lm_head


def test_telechat_has_biases_on_the_last_matrices_only() -> None:
    """Two layers of 4 x 64^2 + 64 attention, 3 x 64 x 160 + 64 MLP, two norms; tied table, and a last norm."""
    fields = {
        "model_type": "telechat", "hidden_size": 64, "ffn_hidden_size": 160, "n_layer": 2, "n_head": 4,
        "vocab_size": 100, "tie_word_embeddings": True,
    }  # fmt: skip
    layer = 4 * 64 * 64 + 64 + 3 * 64 * 160 + 64 + 2 * 64
    assert from_fields(fields).parameters == 2 * layer + 100 * 64 + 64


def test_step_3_has_the_316_billion_parameters_that_its_makers_print() -> None:
    """https://huggingface.co/stepfun-ai/step3: 316 B in the language model, 38 B for a token without embeddings."""
    fields = {
        "model_type": "step3_text", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
        "num_attention_heads": 64, "num_attention_groups": 1, "head_dim": 256, "share_q_dim": 2048,
        "vocab_size": 128815, "moe_num_experts": 48, "moe_top_k": 3, "moe_intermediate_size": 5120,
        "share_expert_dim": 5120, "max_seq_len": 65536, "moe_layers_enum": ",".join(map(str, range(4, 60))),
    }  # fmt: skip
    model = from_fields(fields)
    assert round(model.parameters / 1e9) == 316
    assert round((model.active_parameters - 128815 * 7168) / 1e9) == 38


def test_every_equivalent_is_compared() -> None:
    """`bailing_moe`, `llada` and the wrappers of Qwen's text parts are rows of the certificate."""
    assert set(EQUIVALENTS) <= {*STATED, *TEXT_PARTS, "bailing_moe", "llada", "qwen2_vl", "qwen2_5_vl"}
