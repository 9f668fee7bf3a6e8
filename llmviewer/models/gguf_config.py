"""From the fields of a GGUF header to those of a config.json, by architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.core.errors import UserError, printable, quoted, unknown
from llmviewer.models import gguf_recurrent
from llmviewer.models.gguf_source import DROPPED, Family, Names, Source

if TYPE_CHECKING:
    from llmviewer.models.gguf_header import Header


#: Field of config.json -> field of the header.
_EXPERT: Names = {"num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length"}
WINDOW: Names = {"sliding_window": "attention.sliding_window"}
_SHARED: Names = {"n_shared_experts": "expert_shared_count", "first_k_dense_replace": "leading_dense_block_count"}
_ROUTED: Names = {"n_routed_experts": "expert_count", **_EXPERT, **_SHARED}
_LOCAL: Names = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_LINEAR: Names = {
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "full_attention_interval": "full_attention_interval",
}
_EXPERTS: Names = {"num_experts": "expert_count", **_EXPERT}
_QWEN_EXPERTS: Names = {"shared_expert_intermediate_size": "expert_shared_feed_forward_length", **_EXPERTS}
#: Names of other configs -> fields of all architectures that they stand for.
_GPT: Names = {"num_hidden_layers": "n_layer", "num_attention_heads": "num_attention_heads"}
_GPT2: Names = {
    **{"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
    "max_position_embeddings": "n_positions",
}
_MOSAIC: Names = {
    **{"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    "max_position_embeddings": "max_seq_len",
}
#: Architectures whose keys are a latent, and those whose layers may differ in a field.
LATENT, PER_LAYER = ("deepseek2",), ("gemma4", "lfm2", "lfm2moe", "granitehybrid", "nemotron_h")


def _family(model_type: str, *names: Names, **fields: Any) -> Family:
    """A family whose header states the fields in `names`; `fields` are the same in all its models."""

    def read(source: Source) -> dict[str, Any]:
        stated = {ours: value for each in names for ours, value in source.renamed(each).items()}
        return {"model_type": model_type, **fields, **stated}

    return read


def _with(*families: Family) -> Family:
    """A family with further fields; later ones replace earlier ones."""
    return lambda source: {name: value for each in families for name, value in each(source).items()}


def _biases(source: Source) -> dict[str, Any]:
    return {"attention_bias": source.has("attn_q.bias")}


def _parallel(source: Source) -> dict[str, Any]:
    """GPT-NeoX: attention and MLP side by side, unless the header says otherwise; one KV head per head."""
    stated = source.get("use_parallel_residual")
    return {} if stated is None else {"use_parallel_residual": bool(stated)}


def _head_bias(source: Source) -> dict[str, Any]:
    return {"lm_head_bias": "output.bias" in source.tensors}


def _qk_norms(source: Source) -> dict[str, Any]:
    return {"use_qk_norm": source.has("attn_q_norm.weight")}


def _predicted(source: Source) -> dict[str, Any]:
    """The number of layers without those of multi-token prediction, which the file counts too."""
    predicted = source.get("nextn_predict_layers")
    return {"num_hidden_layers": source.get("block_count") - predicted} if predicted else {}


def _expert_widths(source: Source) -> dict[str, Any]:
    """Experts whose width is the config's `intermediate_size`."""
    return source.renamed({"intermediate_size": "expert_feed_forward_length"})


def _deepseek2(source: Source) -> dict[str, Any]:
    """DeepSeek-V2 and V3: keys and values of a latent; files with the absorbed form state it as one KV head."""
    rope = source.get("rope.dimension_count")
    key = source.get("attention.key_length_mla") or source.get("attention.key_length")
    value = source.get("attention.value_length_mla") or source.get("attention.value_length")
    corrected = any(name.endswith("exp_probs_b.bias") for name in source.tensors)
    fields = {
        "model_type": "deepseek_v3" if corrected else "deepseek_v2",
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope if rope and key else None,
        "v_head_dim": value,
        "num_key_value_heads": source.get("attention.head_count"),
        **_predicted(source),
        **source.renamed({"kv_lora_rank": "attention.kv_lora_rank", **_ROUTED}),
    }
    if not source.get("expert_count"):
        fields["first_k_dense_replace"] = source.get("block_count")
    stated = {name: value for name, value in fields.items() if value is not None}
    return {**stated, "head_dim": None, "q_lora_rank": source.get("attention.q_lora_rank")}


def _gemma4(source: Source) -> dict[str, Any]:
    """Gemma 4: layers with a window have their own head size, others one tensor for keys and values if it says so."""
    pattern, heads = source.listed("attention.sliding_window_pattern"), source.listed("attention.head_count_kv")
    widths = source.listed("feed_forward_length")
    full = pattern.index(False) if False in pattern else -1
    of_full = heads[full] if heads and full >= 0 else None
    shared = source.get("attention.shared_kv_layers") or 0
    fields = {
        "model_type": "gemma4_text",
        "global_head_dim": source.get("attention.key_length"),
        "head_dim": source.get("attention.key_length_swa"),
        "hidden_size_per_layer_input": source.get("embedding_length_per_layer_input") or 0,
        "num_kv_shared_layers": shared,
        "layer_types": [("sliding" if one else "full") + "_attention" for one in pattern] or None,
        "enable_moe_block": bool(source.get("expert_count")),
        "num_experts": source.get("expert_count"),
        "top_k_experts": source.get("expert_used_count"),
        "moe_intermediate_size": source.get("expert_feed_forward_length"),
        "attention_k_eq_v": full >= 0 and f"blk.{full}.attn_v.weight" not in source.tensors,
        "num_key_value_heads": next((n for n, one in zip(heads, pattern, strict=False) if one), of_full),
        "num_global_key_value_heads": of_full,
        "intermediate_size": widths[0] if widths else None,
        "use_double_wide_mlp": len(set(widths)) > 1,
        **source.renamed(WINDOW),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _lfm2(source: Source) -> dict[str, Any]:
    """LFM2: layers without KV heads are short convolutions."""
    heads = source.listed("attention.head_count_kv")
    kinds = ["full_attention" if count else "conv" for count in heads]
    return {
        "block_auto_adjust_ff_dim": False,
        **source.renamed({"conv_L_cache": "shortconv.l_cache"}),
        **({"layer_types": kinds, "num_key_value_heads": max(heads)} if any(heads) else {}),
    }


def _olmo2(source: Source) -> dict[str, Any]:
    """OLMo 2, and OLMo 3 if there is a window."""
    window = source.renamed(WINDOW)
    return {"model_type": "olmo3" if window else "olmo2", **window}


def _falcon(source: Source) -> dict[str, Any]:
    heads = source.get("attention.head_count_kv")
    return {
        "model_type": "falcon",
        "num_kv_heads": heads,
        "multi_query": heads == 1,
        "new_decoder_architecture": source.has("attn_norm_2.weight") or (heads or 1) > 1,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
    }


def _renamed(model_type: str, names: Names, **fields: Any) -> Family:
    """A family whose config has other names for the fields of all architectures.  names: that name -> its own."""

    def read(source: Source) -> dict[str, Any]:
        stated = source.renamed(COMMON)
        own = {theirs: stated[ours] for ours, theirs in names.items() if ours in stated}
        return {"model_type": model_type, **dict.fromkeys(stated, DROPPED), **own, **fields}

    return read


def _chatglm(source: Source) -> dict[str, Any]:
    """ChatGLM and GLM-4: fused q, k, v with a bias, a few KV heads."""
    stated = source.renamed(COMMON)
    heads, hidden = stated["num_attention_heads"], stated["hidden_size"]
    return {
        "padded_vocab_size": source.size("token_embd.weight", 1),
        "vocab_size": DROPPED,
        "kv_channels": stated.get("head_dim", hidden // heads),
        "multi_query_group_num": stated.get("num_key_value_heads", heads),
        "add_qkv_bias": source.has("attn_qkv.bias"),
    }


def _dbrx(source: Source) -> dict[str, Any]:
    """DBRX: fields of attention and experts in sections of their own."""
    stated = source.renamed(COMMON)
    attention = {"kv_n_heads": stated.get("num_key_value_heads"), "clip_qkv": source.get("attention.clamp_kqv")}
    experts = {"moe_num_experts": "expert_count", "moe_top_k": "expert_used_count"}
    return {
        "attn_config": attention,
        "ffn_config": {"ffn_hidden_size": stated.get("intermediate_size"), **source.renamed(experts)},
    }


def _mpt(source: Source) -> dict[str, Any]:
    """MPT: ALiBi, and KV heads in a section of their own."""
    heads = {"attn_type": "grouped_query_attention", "kv_n_heads": source.get("attention.head_count_kv")}
    clip = {"clip_qkv": source.get("attention.clamp_kqv"), "alibi": True}
    return {"attn_config": {**clip, **(heads if heads["kv_n_heads"] else {})}}


def _value_heads(source: Source) -> dict[str, Any]:
    """The width of the value heads of a gated delta rule."""
    inner, heads = source.get("ssm.inner_size"), source.get("ssm.time_step_rank")
    return {"linear_value_head_dim": inner // heads} if inner and heads else {}


#: `general.architecture` of llama.cpp -> the fields in addition to those of all architectures.
FAMILIES: dict[str, Family] = {
    "apertus": _family("apertus"),
    "arcee": _family("arcee"),
    "baichuan": _family("baichuan"),
    "bailingmoe2": _with(
        _family(
            "bailing_moe",
            {"num_shared_experts": "expert_shared_count", "first_k_dense_replace": "leading_dense_block_count"},
            _EXPERTS,
            moe_router_enable_expert_bias=True,
        ),
        _qk_norms,
        _predicted,
    ),
    "bloom": _renamed("bloom", {**_GPT, "hidden_size": "n_embed", "max_position_embeddings": "seq_length"}),
    "chatglm": _with(
        _renamed(
            "chatglm",
            {
                **{"hidden_size": "hidden_size", "num_hidden_layers": "num_layers"},
                **{"num_attention_heads": "num_attention_heads", "intermediate_size": "ffn_hidden_size"},
                "max_position_embeddings": "seq_length",
            },
            **{"multi_query_attention": True, "add_bias_linear": False, "rmsnorm": True, "post_layer_norm": True},
        ),
        _chatglm,
    ),
    "cohere2": _family("cohere2", WINDOW),
    "command-r": _with(_family("cohere"), _qk_norms),
    "dbrx": _with(_renamed("dbrx", {**_MOSAIC}), _dbrx),
    "deepseek": _with(_family("deepseek", _ROUTED), _predicted),
    "deepseek2": _deepseek2,
    "dots1": _with(_family("dots1", _ROUTED), _predicted),
    "dream": _family("Dream"),
    "ernie4_5": _family("ernie4_5"),
    "ernie4_5-moe": _family(
        "ernie4_5_moe",
        {"moe_num_experts": "expert_count", "moe_k": "expert_used_count"},
        {"moe_intermediate_size": "expert_feed_forward_length", "moe_num_shared_experts": "expert_shared_count"},
        {"moe_layer_start_index": "leading_dense_block_count", "moe_layer_interval": "interleave_moe_layer_step"},
    ),
    "exaone4": _family("exaone4", WINDOW),
    "exaone": _family("exaone"),
    "falcon": _falcon,
    "falcon-h1": gguf_recurrent.falcon_h1,
    "gemma": _family("gemma"),
    "gemma2": _family("gemma2", WINDOW),
    "gemma3": _family("gemma3_text", WINDOW),
    "gemma4": _gemma4,
    "glm4": _with(_family("glm4"), _biases),
    "glm4moe": _with(_family("glm4_moe", _ROUTED), _biases, _qk_norms, _predicted),
    "gpt2": _renamed("gpt2", _GPT2),
    "gptneox": _with(_family("gpt_neox"), _parallel),
    "gpt-oss": _with(_family("gpt_oss", _LOCAL, WINDOW), _expert_widths),
    "granite": _family("granite"),
    "granitehybrid": gguf_recurrent.granite_hybrid,
    "granitemoe": _family("granitemoe", _LOCAL),
    "hunyuan-dense": _with(_family("hunyuan_v1_dense"), _qk_norms),
    "hunyuan-moe": _with(
        _family(
            "hunyuan_v1_moe",
            {
                "num_experts": "expert_count",
                "moe_topk": "expert_used_count",
                "num_shared_expert": "expert_shared_count",
            },
            {"moe_intermediate_size": "expert_feed_forward_length"},
        ),
        _qk_norms,
    ),
    "internlm2": _family("internlm2", bias=False),
    "lfm2": _with(_family("lfm2"), _lfm2),
    "lfm2moe": _with(
        _family("lfm2_moe", {"num_experts": "expert_count", "num_dense_layers": "leading_dense_block_count"}, _EXPERT),
        _lfm2,
    ),
    "llada": _renamed(
        "llada", {**_MOSAIC, "max_position_embeddings": "max_sequence_length", "intermediate_size": "mlp_hidden_size"}
    ),
    "llama4": _with(
        _family(
            "llama4_text",
            _LOCAL,
            {"intermediate_size_mlp": "feed_forward_length", "interleave_moe_layer_step": "interleave_moe_layer_step"},
        ),
        _expert_widths,
    ),
    "mamba": gguf_recurrent.mamba,
    "mamba2": gguf_recurrent.mamba2,
    "minimax-m2": _with(_family("minimax_m2", _LOCAL), _expert_widths, _qk_norms),
    "mpt": _with(_renamed("mpt", _MOSAIC, no_bias=True, norm_type="low_precision_layernorm"), _mpt),
    "nemotron": _family("nemotron"),
    "nemotron_h": gguf_recurrent.nemotron_h,
    "olmo": _family("olmo"),
    "olmo2": _olmo2,
    "olmoe": _with(_family("olmoe", _EXPERTS), _expert_widths),
    "orion": _family("orion"),
    "phi2": _family("phi"),
    "phimoe": _with(_family("phimoe", _LOCAL, WINDOW), _biases, _head_bias),
    "qwen2": _family("qwen2"),
    "qwen2vl": _family("qwen2"),
    "qwen3": _family("qwen3"),
    "qwen35": _with(_family("qwen3_5_text", _LINEAR), _value_heads),
    "qwen35moe": _with(_family("qwen3_5_moe_text", _LINEAR, _QWEN_EXPERTS), _value_heads),
    "qwen3moe": _family("qwen3_moe", _EXPERTS),
    "qwen3next": _with(_family("qwen3_next", _LINEAR, _QWEN_EXPERTS), _value_heads),
    "qwen3vl": _family("qwen3"),
    "qwen3vlmoe": _family("qwen3_moe", _EXPERTS),
    "seed_oss": _family("seed_oss", attention_bias=True, attention_out_bias=False),
    "smollm3": _family("smollm3"),
    "stablelm": lambda source: {"model_type": "stablelm", "use_qkv_bias": source.has("attn_q.bias")},
    "starcoder": _renamed("gpt_bigcode", {**_GPT2, "intermediate_size": "n_inner"}, multi_query=True),
    "starcoder2": _family("starcoder2"),
    "xverse": _family("xverse"),
}


#: Field of config.json -> field of the header below its architecture, for all architectures.
COMMON = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
}


def _llama(source: Source) -> dict[str, Any]:
    """Llama, and Mixtral if there are experts."""
    biases = {"attention_bias": "blk.0.attn_q.bias" in source.tensors}
    experts = source.get("expert_count")
    if not experts:
        return {"model_type": "llama", **biases}
    chosen = source.get("expert_used_count")
    return {"model_type": "mixtral", "num_local_experts": experts, "num_experts_per_tok": chosen, **biases}


def _mistral(source: Source) -> dict[str, Any]:
    return {"model_type": "mistral", "sliding_window": source.get("attention.sliding_window")}


def _qwen2_moe(source: Source) -> dict[str, Any]:
    """Qwen1.5 and 2 with experts; older files do not state the experts' widths, but the tensors have them."""
    return {
        "model_type": "qwen2_moe",
        "num_experts": source.get("expert_count"),
        "moe_intermediate_size": source.size("blk.0.ffn_up_exps.weight", 1),
        "shared_expert_intermediate_size": source.size("blk.0.ffn_up_shexp.weight", 1),
        "num_experts_per_tok": source.get("expert_used_count"),
    }


def _phi3(source: Source) -> dict[str, Any]:
    """Phi-3 and 4; a window of 0 is none, and some sizes rotate a part of each head."""
    sizes = [source.get(name) for name in ("rope.dimension_count", "attention.head_count", "embedding_length")]
    stated = all(isinstance(size, int) and size > 0 for size in sizes)
    partial = {"partial_rotary_factor": sizes[0] * sizes[1] / sizes[2]} if stated else {}
    return {"model_type": "phi3", "sliding_window": source.get("attention.sliding_window") or None, **partial}


#: `general.architecture` of llama.cpp -> the fields in addition to COMMON.
ARCHITECTURES: dict[str, Callable[[Source], dict[str, Any]]] = {
    "llama": _llama,
    "mistral3": _mistral,
    "phi3": _phi3,
    "qwen2moe": _qwen2_moe,
    **FAMILIES,
}


def fields(header: Header, path: Path) -> dict[str, Any]:
    """The fields of config.json that the header describes.  Raises UserError."""
    source = Source(header, f"'{printable(path)}'")
    if source.architecture not in ARCHITECTURES:
        raise unknown("GGUF architecture", source.architecture, ARCHITECTURES, where=source.where)
    by_layer = [name for name in COMMON if source.architecture in PER_LAYER and source.differs(COMMON[name])]
    stated = source.renamed({name: field for name, field in COMMON.items() if name not in by_layer})
    key, value = stated.get("head_dim"), source.get("attention.value_length")
    if value not in (None, key) and source.architecture not in LATENT:
        raise UserError(
            f"{source.where}: keys of {quoted(key)} and values of {quoted(value)} elements; supported: equal"
        )
    found = {
        "architectures": [f"{source.architecture} (GGUF)"],
        "torch_dtype": "float16",
        "vocab_size": source.size("token_embd.weight", 1),
        "tie_word_embeddings": "output.weight" not in source.tensors,
        **stated,
        **ARCHITECTURES[source.architecture](source),
    }
    return {name: one for name, one in found.items() if one is not DROPPED}
