"""GGUF headers of published models: their fields, as llama.cpp writes them, lead to the model of their config.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmviewer import models
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.core.ir import BUFFER
from llmviewer.core.workload import decode
from llmviewer.models.gguf_config import FAMILIES
from llmviewer.models.gguf_formats import LAYER_NAMES, MODEL_NAMES, WHOLE_NAMES
from llmviewer.models.model import Model
from llmviewer.result.describe import cache_growth
from tests.gguf_files import written

pytest.importorskip("gguf")
STEP = decode(1.0, 0.0)
Config = Mapping[str, Any]
Extra = Callable[[Config], dict[str, Any]]


def renamed(**names: str) -> Extra:
    """Fields of the header by fields of the config: `expert_count="num_experts"`; __ in a name is a point."""
    return lambda config: {name.replace("__", "."): config[field] for name, field in names.items()}


ROUTED = {"expert_count": "n_routed_experts", "expert_used_count": "num_experts_per_tok"}
WIDTH = {"expert_feed_forward_length": "moe_intermediate_size"}
DENSE = {"expert_shared_count": "n_shared_experts", "leading_dense_block_count": "first_k_dense_replace"}
LOCAL = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
OWN_WIDTH = {"expert_feed_forward_length": "intermediate_size"}
LLAMA4 = {"feed_forward_length": "intermediate_size_mlp", "interleave_moe_layer_step": "interleave_moe_layer_step"}
WINDOW = {"attention__sliding_window": "sliding_window"}
LINEAR = {
    "ssm__conv_kernel": "linear_conv_kernel_dim",
    "ssm__state_size": "linear_key_head_dim",
    "ssm__group_count": "linear_num_key_heads",
    "ssm__time_step_rank": "linear_num_value_heads",
}
MIX = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok", **WIDTH}
DENSE_BAILING = {"expert_shared_count": "num_shared_experts", "leading_dense_block_count": "first_k_dense_replace"}
GPT2 = {"embedding_length": "n_embd", "block_count": "n_layer", "attention__head_count": "n_head"}
GPT2 |= {"context_length": "n_positions"}
BLOOM = {"embedding_length": "n_embed", "block_count": "n_layer", "context_length": "seq_length"}
CHATGLM = {"block_count": "num_layers", "context_length": "seq_length", "feed_forward_length": "ffn_hidden_size"}
CHATGLM |= {"attention__head_count_kv": "multi_query_group_num"}
MOSAIC = {"embedding_length": "d_model", "block_count": "n_layers", "attention__head_count": "n_heads"}
LLADA = {"context_length": "max_sequence_length", "feed_forward_length": "mlp_hidden_size"}
LLADA |= {"attention__head_count_kv": "n_kv_heads"}
STATE = {"ssm__conv_kernel": "conv_kernel", "ssm__state_size": "state_size"}
QWEN = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok", **WIDTH}
SHARED = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}


def delta(**names: str) -> Extra:
    def fields(config: Config) -> dict[str, Any]:
        inner = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        interval = config.get("full_attention_interval", 4)
        return {**renamed(**LINEAR, **names)(config), "ssm.inner_size": inner, "full_attention_interval": interval}

    return fields


def latent(config: Config) -> dict[str, Any]:
    """The absorbed form: one KV head of the latent, and the widths of the heads beside it."""
    rope, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    q_rank = {"attention.q_lora_rank": config["q_lora_rank"]} if config["q_lora_rank"] else {}
    return {
        **renamed(**ROUTED, **WIDTH, **DENSE)(config),
        **q_rank,
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rope,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rope,
    }


def dbrx(config: Config) -> dict[str, Any]:
    experts = config["ffn_config"]
    return {
        **renamed(**MOSAIC, context_length="max_seq_len")(config),
        "attention.head_count_kv": config["attn_config"]["kv_n_heads"],
        "feed_forward_length": experts["ffn_hidden_size"],
        "expert_count": experts["moe_num_experts"],
        "expert_used_count": experts["moe_top_k"],
    }


def mixer(inner: str) -> Extra:
    names = {"conv_kernel": "mamba_d_conv", "state_size": "mamba_d_state", "group_count": "mamba_n_groups"}
    names |= {"time_step_rank": "mamba_n_heads", "inner_size": inner}
    return lambda config: {f"ssm.{theirs}": config[ours] for theirs, ours in names.items()}


def granite_hybrid(config: Config) -> dict[str, Any]:
    """A list of KV heads by layer; the width of the shared expert is that of all, as there are no others."""
    inner, heads = config["mamba_n_heads"] * config["mamba_d_head"], config["num_key_value_heads"]
    kv = [heads if kind == "attention" else 0 for kind in config["layer_types"]]
    return {
        **mixer("inner")({**config, "inner": inner}),
        "attention.head_count_kv": kv,
        "feed_forward_length": config["shared_intermediate_size"],
    }


def mamba2(config: Config) -> dict[str, Any]:
    names = {"ssm__group_count": "n_groups", "ssm__inner_size": "intermediate_size", "ssm__time_step_rank": "num_heads"}
    return {**renamed(**STATE, **names)(config), "attention.head_count": 0, "feed_forward_length": 0}


def nemotron_h(config: Config) -> dict[str, Any]:
    names = {"ssm__conv_kernel": "conv_kernel", "ssm__state_size": "ssm_state_size", "ssm__group_count": "n_groups"}
    kinds, kv = config["hybrid_override_pattern"], config["num_key_value_heads"]
    return {
        **renamed(**names, ssm__time_step_rank="mamba_num_heads")(config),
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        "attention.key_length": config["attention_head_dim"],
        "attention.head_count_kv": [kv if kind == "*" else 0 for kind in kinds],
        "feed_forward_length": [config["intermediate_size"] if kind == "-" else 0 for kind in kinds],
    }


def gemma4(config: Config) -> dict[str, Any]:
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    of_full = config["num_global_key_value_heads"] or config["num_key_value_heads"]
    experts = {**LOCAL, **WIDTH, "expert_count": "num_experts", "expert_used_count": "top_k_experts"}
    return {
        **(renamed(**experts)(config) if config["enable_moe_block"] else {}),
        "attention.key_length": config["global_head_dim"],
        "attention.value_length": config["global_head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": sliding,
        "attention.head_count_kv": [config["num_key_value_heads"] if one else of_full for one in sliding],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
    }


#: architecture -> (model, fields beside those of all architectures)
PUBLISHED: dict[str, tuple[str, Extra]] = {
    "apertus": ("apertus-8b", renamed()),
    "bailingmoe2": ("ling-mini-2.0", renamed(**MIX, **DENSE_BAILING)),
    "bloom": ("bloom-7b1", renamed(**BLOOM)),
    "chatglm": ("chatglm3-6b", renamed(**CHATGLM)),
    "cohere2": ("command-r7b", renamed(**WINDOW)),
    "command-r": ("aya-23-8b", renamed()),
    "dbrx": ("dbrx", dbrx),
    "deepseek2": ("deepseek-v2-lite", latent),
    "dots1": ("dots.llm1", renamed(**ROUTED, **WIDTH, **DENSE)),
    "dream": ("dream-7b", renamed()),
    "ernie4_5": ("ernie-4.5-0.3b", renamed()),
    "ernie4_5-moe": (
        "ernie-4.5-21b-a3b",
        renamed(
            expert_count="moe_num_experts",
            expert_used_count="moe_k",
            expert_shared_count="moe_num_shared_experts",
            leading_dense_block_count="moe_layer_start_index",
            interleave_moe_layer_step="moe_layer_interval",
            **WIDTH,
        ),
    ),
    "exaone4": ("exaone-4.0-32b", renamed(**WINDOW)),
    "falcon-h1": ("falcon-h1-3b", mixer(inner="mamba_d_ssm")),
    "gemma": ("gemma-2b", renamed()),
    "gemma2": ("gemma-2-2b", renamed(**WINDOW)),
    "gemma3": ("gemma-3-1b", renamed(**WINDOW)),
    "gemma4": ("gemma-4-31b", gemma4),
    "glm4": ("glm-4-32b-0414", renamed()),
    "glm4moe": ("glm-4.5-air", renamed(**ROUTED, **WIDTH, **DENSE)),
    "gpt2": ("gpt2-xl", renamed(**GPT2)),
    "gptneox": ("pythia-1.4b", renamed()),
    "gpt-oss": ("gpt-oss-20b", renamed(**LOCAL, **OWN_WIDTH, **WINDOW)),
    "granite": ("granite-3.1-8b", renamed()),
    "granitehybrid": ("granite-4.0-h-1b", granite_hybrid),
    "hunyuan-dense": ("hunyuan-7b", renamed()),
    "internlm2": ("internlm2-7b", renamed()),
    "llada": ("llada-8b", renamed(**MOSAIC, **LLADA)),
    "llama4": ("llama-4-scout", renamed(**LOCAL, **OWN_WIDTH, **LLAMA4)),
    "mamba": ("mamba-130m", renamed(**STATE, ssm__inner_size="d_inner", ssm__time_step_rank="time_step_rank")),
    "mamba2": ("mamba-codestral-7b", mamba2),
    "minimax-m2": ("minimax-m2", renamed(**LOCAL, **OWN_WIDTH)),
    "mpt": ("mpt-7b", renamed(**MOSAIC, context_length="max_seq_len")),
    "nemotron": ("minitron-4b", renamed()),
    "nemotron_h": ("nemotron-h-8b", nemotron_h),
    "olmo2": ("olmo-2-7b", renamed()),
    "olmoe": ("olmoe-1b-7b", renamed(expert_count="num_experts", expert_used_count="num_experts_per_tok")),
    "phi2": ("phi-2", renamed()),
    "phimoe": ("phi-3.5-moe", renamed(**LOCAL, **WINDOW)),
    "qwen2": ("qwen2-7b", renamed()),
    "qwen2vl": ("qwen2.5-vl-7b", renamed()),
    "qwen35": ("qwen3.5-27b", delta()),
    "qwen35moe": ("qwen3.5-35b-a3b", delta(**QWEN, **SHARED)),
    "qwen3": ("qwen3-4b", renamed()),
    "qwen3moe": ("qwen3-30b-a3b", renamed(**QWEN)),
    "qwen3next": ("qwen3-next-80b-a3b", delta(**QWEN, **SHARED)),
    "qwen3vl": ("qwen3-vl-4b", renamed()),
    "qwen3vlmoe": ("qwen3-vl-30b-a3b", renamed(**QWEN)),
    "seed_oss": ("seed-oss-36b", renamed()),
    "smollm3": ("smollm3-3b", renamed()),
    "stablelm": ("stablelm-3b", renamed()),
    "starcoder": ("starcoder", lambda config: {**renamed(**GPT2)(config), "attention.head_count_kv": 1}),
    "starcoder2": ("starcoder2-15b", renamed()),
}
COMMON = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
}


def config_of(stem: str) -> dict[str, Any]:
    config = data.read_yaml(data.folder("model_configs") / f"{stem}.yaml")["config"]
    return {**config, **config.get("text_config", {})}


def shapes_of(model: Model) -> dict[str, tuple[int, ...]]:
    """Tensors of the file: their names in llama.cpp and as many elements as the weights of the model."""
    found: dict[str, tuple[int, ...]] = {}
    for block in model.graph(STEP).blocks:
        for name, tensor in block.weights().items():
            operator, _, part = name.replace(BUFFER, ".bias").rpartition(".")
            size = int(np.max(tensor.elements))
            if name in WHOLE_NAMES:
                found.update({f"blk.{at}.{WHOLE_NAMES[name]}": (size,) for at in block.numbers or range(block.repeats)})
                continue
            if operator == "embedding":
                found["token_embd.weight"] = (model.hidden, size // model.hidden)
            for layer in block.numbers or range(block.repeats) if block.is_layer else ():
                found[f"blk.{layer}.{LAYER_NAMES.get(operator, operator)}.{part}"] = (size,)
            if not block.is_layer and operator != "embedding":
                found[f"{MODEL_NAMES.get(operator, operator)}.{part}"] = (size,)
    return found


@pytest.mark.parametrize("architecture", PUBLISHED)
def test_a_published_model_is_read_from_its_header(architecture: str, tmp_path: Path) -> None:
    stem, extra = PUBLISHED[architecture]
    config, plain = config_of(stem), models.load(stem)
    config = {k: v for k, v in config.items() if k != "quantization_config"}
    common = {theirs: config[ours] for theirs, ours in COMMON.items() if config.get(ours)}
    path = written(tmp_path / "x.gguf", shapes_of(plain), lambda _: "F16", {**common, **extra(config)}, architecture)
    loaded = models.load(str(path))
    assert loaded.parameters == plain.parameters and loaded.active_parameters == plain.active_parameters
    assert loaded.notes == ()
    growth = [cache_growth(model.graph(STEP)) for model in (loaded, plain)]
    if architecture == "starcoder2":  # its header states no window, and llama.cpp uses none
        growth = [{**one, "kv_cache_bytes_per_token_beyond_windows": 0} for one in growth]
    assert growth[0] == growth[1]


#: Architectures without a model in model_configs/ or with one whose config names other widths.
UNPUBLISHED = {
    "arcee",
    "baichuan",
    "deepseek",
    "exaone",
    "falcon",
    "granitemoe",
    "hunyuan-moe",
    "lfm2",
    "lfm2moe",
    "olmo",
    "orion",
    "xverse",
}


def test_every_architecture_is_walked_or_listed() -> None:
    assert set(PUBLISHED) | UNPUBLISHED == set(FAMILIES) and not set(PUBLISHED) & UNPUBLISHED


@pytest.mark.parametrize("architecture", ["gpt-oss", "deepseek2", "gemma4"])
def test_a_header_that_leaves_fields_out_has_those_of_the_class_and_says_so(architecture: str, tmp_path: Path) -> None:
    fields = {"embedding_length": 256, "block_count": 2, "attention.head_count": 4, "attention.head_count_kv": 2}
    fields |= {"context_length": 4096, "feed_forward_length": 512}
    shapes = {"token_embd.weight": (256, 1000), "output_norm.weight": (256,)}
    loaded = models.load(str(written(tmp_path / "x.gguf", shapes, lambda _: "F16", fields, architecture)))
    assert loaded.parameters > math.prod(shapes["token_embd.weight"])
    assert any("the file holds 256,256 parameters" in note for note in loaded.notes)


@pytest.mark.parametrize(
    "base",
    [
        {"!general.base_model.0.repo_url": "https://huggingface.co/openbmb/MiniCPM3-4B"},
        {"!general.base_model.0.organization": "Openbmb", "!general.base_model.0.name": "MiniCPM3 4B"},
    ],
)
def test_an_unknown_architecture_has_the_shapes_of_its_base_model(base: dict[str, Any], tmp_path: Path) -> None:
    plain = models.load("minicpm3-4b")
    loaded = models.load(str(written(tmp_path / "x.gguf", shapes_of(plain), lambda _: "F16", base, "minicpm3")))
    assert loaded.parameters == plain.parameters and len(loaded.notes) == 1
    assert loaded.notes[0].endswith("are those of its base model, minicpm3-4b; its formats are its tensors'")


@pytest.mark.parametrize("name", ["../../etc", "https://huggingface.co/my-lab/unheard-of"])
def test_a_base_model_that_is_not_known_is_no_help(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "x.gguf", {}, lambda _: "F16", {"!general.base_model.0.repo_url": name}, "minicpm3")
    with pytest.raises(UserError, match="unknown GGUF architecture 'minicpm3'"):
        models.load(str(path))
