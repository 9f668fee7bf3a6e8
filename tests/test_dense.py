"""Entries of dense architectures: published sizes from sparse configs, kinds of layers, and weights beside them."""

from __future__ import annotations

from typing import Any

import pytest

from llmviewer.core.errors import UserError
from llmviewer.core.ir import check
from llmviewer.core.workload import decode, prefill
from llmviewer.layers.attention import Attention
from llmviewer.models.load import from_fields
from llmviewer.models.model import Model
from tests.certificate.errors import UnavailableError
from tests.certificate.library_defaults import default_config
from tests.certificate.our_counts import our_prefill
from tests.certificate.torch_counts import count_prefill, parameter_count, reduced

#: Parameters that the models' cards or checkpoints state, and configs with the fields that their authors published.
PUBLISHED: dict[int, dict[str, Any]] = {
    2_651_307_520: {  # GPT-Neo 2.7B
        "model_type": "gpt_neo", "hidden_size": 2560, "num_heads": 20, "num_layers": 32,
        "attention_types": [[["global", "local"], 16]], "intermediate_size": None,
    },
    1_644_515_328: {  # StableLM 2 1.6B
        "model_type": "stablelm", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "vocab_size": 100352, "use_qkv_bias": True,
    },
    7_721_324_544: {  # Qwen-7B: `intermediate_size` is the width of gate and up together
        "model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128, "no_bias": True,
    },
    2_779_683_840: {  # Phi-2 in the form of 2023
        "model_type": "phi-msft", "n_embd": 2560, "n_head": 32, "n_layer": 32, "n_inner": None, "rotary_dim": 32,
        "vocab_size": 51200,
    },
    2_724_880_896: {  # MiniCPM-2B
        "model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760, "num_attention_heads": 36,
        "num_hidden_layers": 40, "vocab_size": 122753, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
    },
    7_818_448_896: {  # EXAONE 3.5 7.8B
        "model_type": "exaone", "hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8,
        "num_layers": 32, "activation_function": "silu", "tie_word_embeddings": False,
    },
    36_151_104_512: {  # Seed-OSS 36B
        "model_type": "seed_oss", "hidden_size": 5120, "tie_word_embeddings": False,
    },
    8_804_241_408: {  # InternLM3 8B: every size is the class's default
        "model_type": "internlm3", "bias": False, "qkv_bias": False,
    },
    8_053_338_176: {  # Apertus 8B: two learned numbers per activation
        "model_type": "apertus", "intermediate_size": 21504, "num_key_value_heads": 8,
    },
    6_888_095_744: {"model_type": "olmo"},  # OLMo 7B
}  # fmt: skip


@pytest.mark.parametrize("parameters", PUBLISHED)
def test_sparse_configs_have_the_published_parameters(parameters: int) -> None:
    assert from_fields(PUBLISHED[parameters]).parameters == parameters


@pytest.mark.parametrize("model_type", ["hunyuan_v1_dense", "ministral"])
def test_classes_that_ask_for_head_dim_agree_once_it_is_stated(model_type: str) -> None:
    try:
        config = {**default_config(model_type), "head_dim": 128}
        theirs = parameter_count(config)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    assert from_fields(config).parameters == theirs


def test_gpt_1_agrees_in_a_prefill() -> None:
    """Its code keeps no cache, so that there is no decoding step to compare."""
    try:
        config = reduced(default_config("openai-gpt"))
        theirs = count_prefill(config, 2, 48)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    ours = our_prefill(config, 2, 48)
    assert (ours.linear, ours.attention, ours.lm_head) == (theirs.linear, theirs.attention, theirs.lm_head)


def kinds(**fields: Any) -> dict[str, tuple[float, int, tuple[int, ...]]]:
    """Window, rotated elements and layer numbers of every kind of layer."""
    found = {}
    for layer in from_fields(fields).layers:
        assert isinstance(layer.mixer, Attention)
        found[layer.name] = (layer.mixer.window, layer.mixer.rotary_dim, layer.numbers)
    return found


def test_exaone_4_has_rope_only_in_layers_with_a_window() -> None:
    expected = {"sliding_rope": (4096.0, 128, (0, 1, 2)), "full_nope": (float("inf"), 0, (3,))}
    assert kinds(model_type="exaone4", num_hidden_layers=4, sliding_window_pattern="LLLG") == expected
    assert kinds(model_type="exaone4", num_hidden_layers=4) == expected
    assert kinds(model_type="exaone4", num_hidden_layers=2, sliding_window=None) == {
        "layer": (float("inf"), 128, (0, 1))
    }


def test_gpt_neo_repeats_its_groups_of_types() -> None:
    fields = {"model_type": "gpt_neo", "num_layers": 4, "attention_types": [[["global"], 1], [["local"], 3]]}
    assert kinds(**fields) == {"full": (float("inf"), 0, (0,)), "sliding": (256.0, 0, (1, 2, 3))}


def test_granite_with_windows_has_no_rope_where_its_base_is_zero() -> None:
    fields = {"model_type": "granite_swa", "num_hidden_layers": 2, "layer_rope_theta": [0, 10000.0]}
    assert kinds(**fields) == {"full_nope": (float("inf"), 0, (0,)), "sliding_rope": (128.0, 128, (1,))}


def test_only_the_last_layer_of_japanese_gpt_neox_has_a_bias() -> None:
    one, two = (from_fields({"model_type": "gpt_neox_japanese", "num_hidden_layers": n}) for n in (1, 2))
    per_layer = 12 * 2560**2 + 4 * 2560  # matrices and two norms
    assert two.parameters - one.parameters == per_layer
    assert from_fields({"model_type": "gpt_neox_japanese"}).layers[-1].numbers == (31,)


def test_layers_with_cross_attention_are_stored_and_not_run() -> None:
    """Llama 3.2 Vision 11B without an image: 32 of 40 layers run; those left out hold 1.745 billion parameters."""
    whole, text = from_fields({"model_type": "mllama_text_model"}), decode(1.0, 100.0)
    plain = from_fields({"model_type": "mllama_text_model", "num_hidden_layers": 32, "cross_attention_layers": []})
    skipped = 8 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336 + 2 * 4096 + 2 * 128 + 2)
    assert whole.parameters - plain.parameters == skipped == 1_744_898_064
    assert sum(layer.repeats for layer in whole.layers) == 32
    assert matmul(whole, text) == matmul(plain, text)


def matmul(model: Model, step: Any) -> float:
    graph = model.graph(step)
    check(graph)
    return float(sum(operator.matmul_flops * block.repeats for block, operator in graph))


def test_stacks_that_run_again_are_stored_once() -> None:
    """HRM-Text: 2 x 3 runs of the low stack and 2 of the high one, of 16 layers each; 128 KV caches."""
    model = from_fields({"model_type": "hrm_text"})
    layer = 5 * 1536**2 + 3 * 1536 * 4096
    assert model.parameters == 2 * 16 * layer + 2 * 151808 * 1536 + 1536
    assert sum(each.repeats for each in model.layers) == 128
    step = prefill(1.0, 1.0)
    linear = sum(op.matmul_flops * block.repeats for block, op in model.graph(step) if "proj" in op.name)
    assert linear == 128 * 2 * layer


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "exaone4", "sliding_window_pattern": "LXG"}, "letter of sliding_window_pattern 'X'"),
        ({"model_type": "gpt_neo", "attention_types": 7}, "must list pairs of types and repeats"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 1]]}, "must list 24 layers"),
        ({"model_type": "granite_swa", "layer_rope_theta": [1]}, "must list 24 layers"),
        ({"model_type": "qwen", "intermediate_size": 22017}, "not even"),
        ({"model_type": "diffllama", "num_key_value_heads": 1}, "must be even"),
        ({"model_type": "doge", "is_moe": True}, "'is_moe' is true; supported: False"),
        ({"model_type": "mllama_text_model", "cross_attention_layers": list(range(40))}, "leaves no layer for text"),
        ({"model_type": "gemma4_text", "per_layer_config": {"5": {"head_dim": 512}}}, "must list the layers with full"),
        ({"model_type": "gemma4_text", "per_layer_config": {"5": {"width": 1}}}, "may state only head_dim and"),
    ],
)
def test_fields_that_make_no_sense_are_one_line(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as raised:
        from_fields(fields)
    assert words in str(raised.value) and "\n" not in str(raised.value)
