"""A budget of bits per weight: formats by layer or by matrix that store it with the least error (LQ-LoRA)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer import models
from llmviewer.core import files
from llmviewer.core.errors import UserError
from llmviewer.techniques.quantization.allocation import least_error
from llmviewer.techniques.quantization.budget import allocated

#: Weights of the linear layers of one layer of Llama-2-7B, and bytes of all others, two tables and 65 norms in 16 bit.
ATTENTION, FEED_FORWARD = 4096**2, 4096 * 11_008
LINEAR = 4 * ATTENTION + 3 * FEED_FORWARD
OTHERS = 2 * (2 * 32_000 * 4096 + 65 * 4096)
#: A model of two layers of 7 matrices, without embeddings worth counting.
SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 160,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 100,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "float16",
}  # fmt: skip
MATRICES = {
    "q_proj": 64 * 64, "k_proj": 64 * 32, "v_proj": 64 * 32, "o_proj": 64 * 64,
    "gate_proj": 64 * 160, "up_proj": 64 * 160, "down_proj": 64 * 160,
}  # fmt: skip


def weights_bytes(quantization: str, model: Any = "llama-2-7b", **options: Any) -> float:
    found = lv.analyze(model, "a100", quantization=quantization, efficiency="ideal", **options).to_dict()
    size = found["memory"]["weights_bytes"]
    assert isinstance(size, float | int)
    return size


# the program


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 20), min_size=3, max_size=3)), max_size=6),
    bits=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    share=st.floats(0.0, 1.0),
)
def test_no_choice_within_the_budget_has_less_error(
    rows: list[tuple[int, list[int]]], bits: list[int], share: float
) -> None:
    """Against all 3^n choices of n matrices."""
    sizes = np.array([[count * b for b in bits] for count, _ in rows], dtype=np.float64).reshape(-1, 3)
    errors = np.array([row for _, row in rows], dtype=np.float64).reshape(-1, 3)
    least, most = sizes.min(axis=1).sum(), sizes.max(axis=1).sum()
    capacity = float(np.floor(least + share * (most - least)))
    at = np.arange(len(rows))
    chosen = least_error(sizes, errors, capacity)
    assert sizes[at, chosen].sum() <= capacity
    choices = (list(one) for one in itertools.product(range(3), repeat=len(rows)))
    assert errors[at, chosen].sum() == min(errors[at, one].sum() for one in choices if sizes[at, one].sum() <= capacity)


def test_equal_matrices_have_their_larger_formats_first() -> None:
    sizes, errors = np.tile([2.0, 4.0, 8.0], (5, 1)), np.tile([9.0, 3.0, 2.0], (5, 1))
    assert least_error(sizes, errors, 17.0) == [1, 1, 1, 0, 0]


# without errors


def test_a_budget_mixes_the_two_formats_around_it() -> None:
    """n layers of 3.125 bit and 32 - n of 2.125: n <= 32 x (2.75 - 2.125) = 20."""
    found = lv.analyze("llama-2-7b", "a100", quantization="budget=2.75:w2a16/w3a16/w4a16").to_dict()
    assert found["passes"][0] == "quantize(w3a16+w2a16@20-31)"
    assert found["memory"]["weights_bytes"] == LINEAR * (20 * 3.125 + 12 * 2.125) / 8 + OTHERS
    assert found["memory"]["weights_bytes"] - OTHERS == 32 * LINEAR * 2.75 / 8
    assert "without a file of errors all layers count alike" in found["warnings"][0]


@pytest.mark.parametrize(
    ("budget", "formats"),
    [
        ("2.2:w2a16/w3a16", "w2a16+w3a16@0-1"),  # 2.1875 bit; with a third layer 2.21875
        ("2.125:w2a16/w3a16", "w2a16"),
        ("9:w2a16/w3a16", "w3a16"),
        ("5:w8a8-fp8/w4a8-fp8", "w4a8-fp8+w8a8-fp8@0-6"),  # 4.125 + 7 x 3.875 / 32 = 4.973 bit
        ("3.9:w2a16/w3a16/w4a16", "w4a16+w3a16@24-31"),  # 3.125 + 24 / 32 = 3.875 bit, not 2 and 4 bit
    ],
)
def test_a_budget_is_the_settings_that_it_is_listed_as(budget: str, formats: str) -> None:
    one, other = (
        lv.analyze("llama-2-7b", "h100", quantization=text).to_dict() for text in (f"budget={budget}", formats)
    )
    assert one["passes"] == other["passes"] and one["passes"][0] == f"quantize({formats})"
    assert (one["memory"], one["metrics"]) == (other["memory"], other["metrics"])


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v2-lite", "jamba-v0.1", "mixtral-8x7b", "gemma-2-9b"])
def test_weights_meet_the_budget(model: str) -> None:
    """Bytes above those of 2.125 bit are at most the budget's, and one layer more would exceed it."""
    least, most = (weights_bytes(name, model) for name in ("w2a16", "w4a16"))
    count = (most - least) * 8 / 2.0  # weights of the linear layers: 4.125 - 2.125 bit
    layers = sum(layer.repeats for layer in models.load(model).layers)
    found = weights_bytes("budget=3:w2a16/w4a16", model)
    assert 0 <= least + count * (3 - 2.125) / 8 - found <= 2 * (most - least) / layers


def test_lq_lora_fits_llama_2_70b_in_27_gb() -> None:
    """arXiv 2311.12023, abstract: 2.75 bit, 2.85 with the low-rank parts, 27 GB of GPU memory.

    The low-rank parts of rank 64: 80 layers x 64 x (sum of rows and columns of 7 matrices = 161,792) numbers, 0.097 bit
    per weight if they have 8 bit; ours have 16."""
    rank = 80 * 64 * (2 * 16_384 + 2 * 9216 + 3 * 36_864)
    linear = 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28_672)
    others = 2 * (2 * 32_000 * 8192 + 161 * 8192)
    assert 2.75 + 8 * rank / linear == pytest.approx(2.85, abs=0.01)
    found = weights_bytes("budget=2.75:w2a16/w3a16/w4a16", "llama-2-70b", lora="rank=64")
    assert found == linear * 2.75 / 8 + 2 * rank + others
    assert found == pytest.approx(27e9, rel=0.05)


# with errors


def table(seed: int) -> dict[str, dict[str, float]]:
    """Random errors of the matrices of SMALL, named as in its checkpoint."""
    draw = np.random.default_rng(seed)
    part = {name: "mlp" if "_proj" in name and len(name) > 6 else "self_attn" for name in MATRICES}
    return {
        f"model.layers.{layer}.{part[name]}.{name}": {"w2a16": float(draw.random()), "w4a16": float(draw.random() / 9)}
        for layer in range(2)
        for name in MATRICES
    }


@pytest.mark.parametrize("seed", range(4))
def test_measured_errors_choose_a_format_for_every_matrix(tmp_path: Path, seed: int) -> None:
    """Against all 2^14 choices; the bytes are those of the chosen bits."""
    path = tmp_path / "errors.yaml"
    path.write_text(yaml.safe_dump(table(seed)))
    errors = np.array([[row["w2a16"], row["w4a16"]] for row in table(seed).values()])
    counts = np.array([*MATRICES.values()] * 2)
    wide = np.array(list(itertools.product((0, 1), repeat=14)))
    bits = (2.125 + 2.0 * wide) @ counts
    fits = bits <= 3.1 * counts.sum()
    sums = np.where(wide, errors[:, 1], errors[:, 0]).sum(axis=1)
    best = int(np.flatnonzero(fits)[np.argmin(sums[fits])])
    chosen = weights_bytes(f"budget=3.1:w2a16/w4a16:{path}", SMALL)
    assert chosen == weights_bytes("w2a16", SMALL) + (bits[best] - 2.125 * counts.sum()) / 8


def test_a_table_of_layers_gives_whole_layers_a_format(tmp_path: Path) -> None:
    """Layers 30 and 31 gain most from 4 bit: 2.125 + 2 x 2 / 32 = 2.25 bit."""
    path = tmp_path / "errors.json"
    path.write_text(json.dumps({layer: {"w2a16": 1.0 + layer, "w4a16": 1.0} for layer in range(32)}))
    assert allocated(models.load("llama-2-7b"), f"budget=2.25:w2a16/w4a16:{path}") == "w2a16+w4a16@30-31"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"0": {"w2a16": 1}}, "error of w4a16: expected a finite number from 0, got null"),
        ({"0": {"w2a16": 1, "w4a16": -1}}, "error of w4a16: expected a finite number from 0, got -1"),
        ({"0": {"w2a16": 1, "w4a16": True}}, "error of w4a16: expected a finite number from 0, got true"),
        ({"q_proj": {"w2a16": 1, "w4a16": 1}}, "is no layer or matrix"),
        ({"0": 3}, "is no layer or matrix with the error of each format"),
        ({"0": {"w2a16": 1, "w4a16": 0}}, "the errors of 1.q_proj are missing"),
        ({str(n): {"w2a16": 1, "w4a16": 0} for n in range(3)}, "unknown layer or matrix '2'"),
        ({"0": {"w2a16": 1, "w4a16": 0}, "a.0": {"w2a16": 1, "w4a16": 0}}, "is there twice"),
    ],
)
def test_a_wrong_table_is_one_line(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = tmp_path / "errors.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as found:
        weights_bytes(f"budget=3:w2a16/w4a16:{path}", SMALL)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget=2.75", "allowed: budget=BITS:FORMAT/FORMAT"),
        ("budget=two:w2a16/w4a16", "budget is 'two'; allowed: a number from 0.5"),
        ("budget=2:w2a16/w3a16", "no format has 2 bits or fewer; w2a16 has 2.125"),
        ("budget=3:w2a16/none", "'none' cannot be allocated"),
        ("budget=3:w2a16kv8", "'w2a16kv8' cannot be allocated"),
        ("budget=3:w2a16/w4a16:no-such-file.yaml", "cannot read 'no-such-file.yaml'"),
    ],
)
def test_a_wrong_budget_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        weights_bytes(text)


def test_an_encoder_decoder_has_no_budget() -> None:
    with pytest.raises(UserError, match=r"t5-v1\.1-base is an encoder-decoder"):
        weights_bytes("budget=3:w2a16/w4a16", "t5-v1.1-base")


def test_visitors_of_a_server_name_no_files(tmp_path: Path) -> None:
    with files.only_package_data(), pytest.raises(UserError):
        weights_bytes(f"budget=3:w2a16/w4a16:{tmp_path / 'errors.yaml'}")


def test_a_draft_with_layers_of_its_target_has_their_formats() -> None:
    result = lv.analyze(
        "llama-2-7b", "a100", quantization="budget=3:w2a16/w4a16",
        speculative="self,tokens=3,acceptance=0.7,attention=0.5,mlp=0.5",
    )  # fmt: skip
    (drafter,) = result.analysis.system.drafters
    assert drafter.system.passes[0].name == result.analysis.system.passes[0].name == "quantize(w2a16+w4a16@0-13)"


# operators


def test_an_operator_has_a_format_of_its_own() -> None:
    """down_proj of 32 layers in 8 bit, and q_proj of layers 0 to 3; the others in 4 + 16/128."""
    wide = 32 * FEED_FORWARD + 4 * ATTENTION
    stored = ((32 * LINEAR - wide) * 4.125 + wide * 8) / 8 + OTHERS
    assert weights_bytes("w4a16+w8a16@down_proj/0-3.q_proj") == stored
    blocks = {
        one["block"]: one["layers"]
        for one in lv.analyze("llama-2-7b", "a100", quantization="w4a16+w8a16@down_proj/0-3.q_proj").to_dict()[
            "stages"
        ]["decode"]["operators"]
    }
    assert (blocks["layer"], blocks["layer@0-3"]) == (28, 4)


def test_an_operator_wins_over_its_layer() -> None:
    """Layers 0 and 1 in 8 bit but for down_proj, which has 2 + 16/128 everywhere."""
    rest = LINEAR - FEED_FORWARD
    stored = (2 * rest * 8 + 30 * rest * 4.125 + 32 * FEED_FORWARD * 2.125) / 8 + OTHERS
    assert weights_bytes("w4a16+w8a16@0-1+w2a16@down_proj") == stored


@pytest.mark.parametrize("text", ["w8a8+w8a8@down_proj", "w8a8+w8a8@0-31.q_proj/up_proj", "fp16+w8a8@0-31+w8a8@q_proj"])
def test_operators_of_one_format_are_that_format(text: str) -> None:
    one, other = (lv.analyze("llama-2-7b", "a100", quantization=name).to_dict() for name in (text, "w8a8"))
    assert one["memory"] == other["memory"]
    assert one["metrics"]["tpot_s"] == pytest.approx(other["metrics"]["tpot_s"], rel=1e-12)


def test_an_input_is_quantized_for_the_operators_that_read_it_quantized() -> None:
    rows = lv.analyze("llama-2-7b", "a100", quantization="w8a16+w8a8@down_proj").to_dict()["stages"]["decode"]
    classes = {one["name"]: one["compute_dtype"] for one in rows["operators"]}
    assert (classes["down_proj"], classes["up_proj"]) == ("int8", "fp16")
    assert "mlp_act_quantize" in classes and "mlp_norm_quantize" not in classes


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("quantization", "w4a16+w8a16@dwn_proj", "unknown operator 'dwn_proj'.*did you mean 'down_proj'"),
        ("quantization", "w4a16+w8a16@40.q_proj", "there is no layer 40"),
        ("quantization", "w4a16+w8a16@q_proj+w2a16@0.q_proj", "q_proj of layer 0 has two settings"),
        ("quantization", "w4a16+w8a16@0.q_proj+w2a16@q_proj", "q_proj has two settings"),
        ("quantization", "w4a16+w8a16kv8@q_proj", "'w8a16kv8' is for more than operators"),
        ("kv_cache_dtype", "auto+fp8@q_proj", "operators cannot have settings of their own"),
    ],
)
def test_wrong_operators_are_one_line(option: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        lv.analyze("llama-2-7b", "a100", **{option: text})
