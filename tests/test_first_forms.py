"""Configs as first checkpoints have them, and layers of different sizes: parameters as published or by hand."""

from __future__ import annotations

from typing import Any

import pytest

from llmviewer.core.errors import UserError
from llmviewer.models.load import from_fields
from tests.certificate.our_counts import published_config

#: Sizes that most of these configs state in the same words.
COMMON: dict[str, Any] = {"hidden_act": "silu", "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}


def usual(model_type: str, hidden: int, width: int, layers: int, heads: int, vocabulary: int) -> dict[str, Any]:
    return {
        **COMMON,
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
    }


REFINED_WEB = {
    "hidden_size": 4544,
    "n_head": 71,
    "n_layer": 32,
    "vocab_size": 65024,
    "bias": False,
    "parallel_attn": True,
}
CHATGLM = {
    "model_type": "chatglm", "hidden_size": 4096, "inner_hidden_size": 16384, "num_attention_heads": 32,
    "num_layers": 28, "vocab_size": 130528, "max_sequence_length": 2048, "position_encoding_2d": True,
}  # fmt: skip
OPENELM = {
    "model_type": "openelm", "model_dim": 1280, "head_dim": 64, "num_transformer_layers": 16, "vocab_size": 32000,
    "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4, "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
    "ffn_multipliers": [0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13, 2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0],
    "max_context_length": 2048, "share_input_output_layers": True,
}  # fmt: skip
OLMO_1B = {
    "model_type": "olmo", "d_model": 2048, "mlp_ratio": 8, "n_heads": 16, "n_layers": 16, "vocab_size": 50280,
    "embedding_size": 50304, "max_sequence_length": 2048, "weight_tying": True,
}  # fmt: skip
SANTACODER = {
    "model_type": "gpt2", "attention_head_type": "multiquery", "n_embd": 2048, "n_head": 16, "n_inner": 8192,
    "n_layer": 24, "n_positions": 2048, "vocab_size": 49280,
}  # fmt: skip
DEEPSEEK_MOE = {
    **usual("deepseek", 2048, 10944, 28, 16, 102400), "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
}  # fmt: skip

#: model_type -> the one whose layout and fields it has.
ALIKE = {"deepseek_ocr2_text": "deepseek", "hunyuan_vl_text": "hunyuan_v1_dense", "minimax_m1": "minimax_text_01"}


@pytest.mark.parametrize(
    ("fields", "published"),
    [
        ({**REFINED_WEB, "model_type": "RefinedWebModel", "multi_query": True}, 6_921_720_704),
        (
            {
                **REFINED_WEB, "model_type": "RefinedWeb", "hidden_size": 8192, "n_head": 128, "n_head_kv": 8,
                "n_layer": 60,
            },
            41_303_293_952,
        ),
        (CHATGLM, 6_173_286_400),
        (OPENELM, 271_527_168),
        (OLMO_1B, 1_176_764_416),
        (SANTACODER, 1_124_886_528),
        ({"d_model": 2560, "n_layer": 64, "vocab_size": 50277, "ssm_cfg": {}}, 2_768_345_600),
        (
            {
                "d_model": 2560, "n_layer": 64, "vocab_size": 50277, "ssm_cfg": {"layer": "Mamba2"},
                "pad_vocab_size_multiple": 16, "attn_layer_idx": [], "d_intermediate": 0,
            },
            2_702_599_680,
        ),
        (DEEPSEEK_MOE, 16_375_728_128),
    ],
)  # fmt: skip
def test_a_first_form_has_the_published_parameters(fields: dict[str, Any], published: int) -> None:
    assert from_fields(fields).parameters == published


def test_latent_attention_can_be_off() -> None:
    """With `use_mla` off, DeepSeek-V2 has plain attention: 4 h h a layer in place of the latent's matrices."""
    section = {**DEEPSEEK_MOE, "model_type": "deepseek_v2", "use_mla": False, "kv_lora_rank": None, "q_lora_rank": None}
    assert from_fields(section).parameters == 16_375_728_128


def test_layers_found_by_a_search_have_their_own_sizes() -> None:
    """h 64, 8 heads of 8: one layer with 2 KV heads and f = ceil256(2 x 3 x 64 / 3 = 128), one without attention."""
    first = {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 3.0}}
    second = {"attention": {"no_op": True}, "ffn": {"ffn_mult": 7.0}}
    fields = {**usual("nemotron-nas", 64, 1, 2, 8, 100), "block_configs": [first, second]}
    attention = 2 * 64 * 64 + 2 * 64 * 16 + 64
    mlps = 3 * 64 * 256 + 64 + 3 * 64 * 512 + 64
    assert from_fields({**fields, "intermediate_size": None}).parameters == attention + mlps + 2 * 100 * 64 + 64


def test_groups_of_key_value_heads_may_differ_between_layers() -> None:
    """DeciLM: q, o h h; k, v h times 8 elements for each of 1 and 4 heads."""
    fields = {**usual("deci", 64, 128, 2, 8, 100), "num_key_value_heads_per_layer": [1, 4]}
    layers = 2 * (2 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 2 * 64 * 8 * (1 + 4)
    assert from_fields(fields).parameters == layers + 2 * 100 * 64 + 64


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {**usual("deci", 64, 128, 2, 8, 100), "num_key_value_heads_per_layer": [1]},
            "a positive number for each of 2",
        ),
        (
            {
                **usual("nemotron-nas", 64, 1, 1, 8, 100),
                "block_configs": [{"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}}],
            },
            "replace_with_linear is set, which is not supported",
        ),
        ({**usual("nemotron-nas", 64, 1, 1, 8, 100), "block_configs": [3]}, "must give n_heads_in_group"),
        ({"d_model": 64, "n_layer": 2, "vocab_size": 100, "ssm_cfg": {}, "attn_layer_idx": [1]}, "attn_layer_idx"),
        ({"d_model": 64, "n_layer": 2, "vocab_size": 100, "ssm_cfg": {"layer": "Mamba3"}}, "'Mamba3' is not supported"),
        ({**usual("qwen2", 64, 128, 2, 8, 100), "attention_bias": False}, "attention_bias"),
        ({"ffn_embed_dim": 128, "hidden_dim": 32, "n_head": 4, "model_type": "opt"}, "a summary by llm-analysis"),
    ],
)
def test_what_a_first_form_cannot_say_is_one_line(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        from_fields(fields)


def test_eagle_2_is_a_vision_model_and_no_draft_head() -> None:
    fields = {
        "model_type": "eagle_chat",
        "architectures": ["Eagle2ChatModel"],
        "llm_config": {**usual("qwen2", 64, 128, 2, 8, 100), "num_key_value_heads": 8},
        "vision_config": {},
    }
    assert "only the language model is counted" in from_fields(fields).notes[-1]


def test_a_chat_model_of_remote_code_has_its_head() -> None:
    """InternVLChatModel ends in `Model` and is no embedder: the head of its language model counts."""
    inner = {**usual("internlm2", 64, 128, 2, 8, 100), "num_key_value_heads": 8}
    fields = {"model_type": "internvl_chat", "architectures": ["InternVLChatModel"], "llm_config": inner}
    assert from_fields(fields).parameters == from_fields(inner).parameters


@pytest.mark.parametrize(("kind", "kv_heads"), [("multihead_attention", 8), ("multiquery_attention", 1)])
def test_mpt_may_have_one_key_value_head(kind: str, kv_heads: int) -> None:
    """h 64, 8 heads of 8: q, o h h, k, v 8 h for each KV head, MLP 2 x 4 h h, two norms h; final norm, table."""
    fields = {
        "model_type": "mpt", "d_model": 64, "n_heads": 8, "n_layers": 2, "max_seq_len": 32, "vocab_size": 100,
        "attn_config": {"attn_type": kind},
    }  # fmt: skip
    layer = 2 * 64 * 64 + 2 * 64 * 8 * kv_heads + 8 * 64 * 64 + 2 * 64
    assert from_fields(fields).parameters == 2 * layer + 64 + 100 * 64


@pytest.mark.parametrize(
    ("model_type", "inner", "parameters"),
    [
        ("glm_ocr", "glm_ocr_text", 373_359_616),
        ("paddleocr_vl", "paddleocr_vl_text", 360_748_032),
    ],
)
def test_vision_models_for_documents_have_the_parameters_of_their_class(
    model_type: str, inner: str, parameters: int
) -> None:
    """Parameters of the language model of transformers' class with its default config."""
    sizes = {
        "glm_ocr_text": {**usual(inner, 1024, 4096, 16, 16, 59392), "num_key_value_heads": 8},
        "paddleocr_vl_text": {
            **usual(inner, 1024, 3072, 18, 16, 103424), "num_key_value_heads": 2, "head_dim": 128,
            "tie_word_embeddings": True,
        },
    }  # fmt: skip
    assert from_fields({"model_type": model_type, "text_config": sizes[inner]}).parameters == parameters


@pytest.mark.parametrize(("model_type", "other"), ALIKE.items())
def test_another_name_of_an_architecture_counts_alike(model_type: str, other: str) -> None:
    fields = {
        "deepseek": DEEPSEEK_MOE,
        "hunyuan_v1_dense": {**usual("", 64, 160, 2, 8, 100), "num_key_value_heads": 4, "head_dim": 8},
        "minimax_text_01": published_config("minimax-text-01"),
    }[other]
    named, known = (from_fields({**fields, "model_type": name}) for name in (model_type, other))
    assert named.parameters == known.parameters > 0
    assert named.active_parameters == known.active_parameters


def test_grok_1_has_its_published_size() -> None:
    """https://github.com/xai-org/grok-1: 314 B without the table: 64 layers of 8 experts, attention and router."""
    fields = {**usual("grok-1", 6144, 32768, 64, 48, 131072), "num_key_value_heads": 8, "num_experts": 8}
    matrices = 64 * (8 * 3 * 6144 * 32768 + 2 * 6144 * 6144 + 2 * 6144 * 1024 + 6144 * 8)
    assert int(matrices / 1e9) == 314
    assert from_fields(fields).parameters == matrices + 131072 * 6144 + (64 * 4 + 1) * 6144


def test_molmo_has_a_table_of_its_own_for_pictures() -> None:
    """Qwen2 by other names, whose `intermediate_size` counts gate and up, and 128 rows for tokens of pictures."""
    fields = {
        "model_type": "molmo", "hidden_size": 64, "intermediate_size": 320, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 100, "qkv_bias": True,
        "max_position_embeddings": 128,
    }  # fmt: skip
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 64 + 2 * 32 + 3 * 64 * 160 + 2 * 64
    assert from_fields(fields).parameters == 2 * layer + 64 + 2 * 100 * 64 + 128 * 64
