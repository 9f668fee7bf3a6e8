"""Settings for some of the layers: formats of weights and cache, and widths of feed-forward parts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.core.errors import UserError
from llmviewer.result.explanation.explain import explained
from llmviewer.techniques.layer_settings import layer_settings

#: Weights of the linear layers of one layer of Llama-2-7b: 4 x 4,096^2 + 3 x 4,096 x 11,008.
LINEAR = 202_375_168
#: All other weights, in 16 bit: two tables of 32,000 x 4,096, and 65 norms.
OTHERS = 2 * (2 * 32_000 * 4096 + 65 * 4096)


def analyzed(model: str = "llama-2-7b", **options: Any) -> dict[str, Any]:
    return lv.analyze(model, "a100", **({"efficiency": "ideal"} | options)).to_dict()


def test_the_first_and_last_layers_in_8_bit() -> None:
    """28 layers of 4 + 16/128 bit, 4 of 8 bit."""
    found = analyzed(quantization="w4a16+w8a16@0-1/30-31")
    assert found["memory"]["weights_bytes"] == 28 * LINEAR * 4.125 / 8 + 4 * LINEAR + OTHERS
    blocks = {one["block"]: one["layers"] for one in found["stages"]["decode"]["operators"]}
    assert (blocks["layer"], blocks["layer@0-1/30-31"]) == (28, 4)


def test_a_cache_of_two_formats() -> None:
    """Keys and values of 4,096 numbers: 4 + 32/128 bit in 30 layers, 8 bit in the first two (KVTuner)."""
    found = analyzed(kv_cache_dtype="kv4+fp8@0-1")
    per_token = (30 * 4.25 + 2 * 8.0) / 8 * 2 * 4096
    assert found["memory"]["kv_cache_bytes"] == pytest.approx(per_token * (1024 + 128 - 1))
    assert found["model"]["kv_cache_bytes_per_token"] == per_token


#: KVTuner's setting for Llama-3.1-8B of 3.25 bit on average, keys and values apart (arXiv 2502.04420):
#: https://github.com/KexuanZhang/KVTuner, calibration_presets/Meta-Llama-3.1-8B-Instruct_kivi_KVTuner4_1.yaml
KVTUNER = "k4v2+k2v2@0/4/25/27+k4v4@1-3/7/29/31+k8v4@13/17"


def test_keys_and_values_have_bits_of_their_own() -> None:
    """One of the 8 heads of 128 elements: keys 8 + 32/128 bit, values 4 + 32/128 bit."""
    found = analyzed("llama-3.1-8b", kv_cache_dtype="k8v4")["model"]["kv_cache_bytes_per_token"]
    assert found == 32 * 8 * 128 * (8.25 + 4.25) / 8
    assert (
        analyzed("llama-3.1-8b", kv_cache_dtype="k4v4")["memory"]
        == analyzed("llama-3.1-8b", kv_cache_dtype="kv4")["memory"]
    )


def test_kvtuner_stores_the_bits_that_its_paper_states() -> None:
    """Keys: 4 layers of 2 bit, 2 of 8, 26 of 4; values: 8 of 4 bit, 24 of 2: 208 bit over 64 tensors, 3.25 each."""
    keys, values = 4 * 2 + 2 * 8 + 26 * 4, 8 * 4 + 24 * 2
    assert (keys + values) / 64 == 3.25
    found = analyzed("llama-3.1-8b", kv_cache_dtype=KVTUNER)
    assert found["model"]["kv_cache_bytes_per_token"] == 8 * 128 * (keys + values + 64 * 32 / 128) / 8


def test_mix_n_match_has_a_width_for_every_range() -> None:
    """Feed-forward parts of 3 x 4,096 x 11,008 weights: whole in 8 layers, half in 24."""
    found = analyzed(matformer="0.5+1@0-7")
    narrow = 3 * 4096 * 11_008
    assert found["memory"]["weights_bytes"] == 2 * (32 * 4 * 4096**2 + (8 + 24 * 0.5) * narrow) + OTHERS


@settings(max_examples=30, deadline=None)
@given(first=st.integers(0, 15), length=st.integers(1, 16), formats=st.permutations(["w4a16", "w8a16", "none"]))
def test_bytes_are_those_of_each_layer(first: int, length: int, formats: list[str]) -> None:
    """The weights of n of the 16 layers in one format and of the others in another add up."""
    last = min(first + length - 1, 15)
    count = last - first + 1
    rest, own, _ = formats
    options: dict[str, Any] = {"model": "llama-3.2-1b"}
    found = analyzed(quantization=f"{rest}+{own}@{first}-{last}", **options)["memory"]["weights_bytes"]
    whole = [analyzed(quantization=one, **options)["memory"]["weights_bytes"] for one in (rest, own)]
    assert found == pytest.approx(whole[0] + (whole[1] - whole[0]) * count / 16)


@pytest.mark.parametrize("efficiency", ["ideal", "calibrated"])
@pytest.mark.parametrize(
    ("name", "text", "same"),
    [
        ("quantization", "w4a16+w4a16@0-3", "w4a16"),
        ("quantization", "none+w8a8@0-31", "w8a8"),
        ("kv_cache_dtype", "fp8+fp8@30/2", "fp8"),
        ("matformer", "0.5+0.5@7-9", "0.5"),
    ],
)
def test_one_setting_for_all_layers_is_that_setting(efficiency: str, name: str, text: str, same: str) -> None:
    one, other = (analyzed(**{name: value}, efficiency=efficiency) for value in (text, same))
    assert one["memory"] == other["memory"]
    for metric in ("ttft_s", "tpot_s"):
        assert one["metrics"][metric] == pytest.approx(other["metrics"][metric], rel=1e-12)


def test_the_order_of_ranges_does_not_matter() -> None:
    one, other = (analyzed(quantization=f"w4a16+{text}") for text in ("w8a16@0-1/30-31", "w8a16@30-31/0/1"))
    assert one["metrics"] == other["metrics"] and one["memory"] == other["memory"]


def test_pipeline_stages_have_the_formats_of_their_layers() -> None:
    """The last of two stages stores 16 layers, two of them in 8 bit, the head and the last norm."""
    found = analyzed(quantization="w4a16+w8a16@30-31", pipeline_parallel_size=2)
    stage = 14 * LINEAR * 4.125 / 8 + 2 * LINEAR + 2 * (32_000 * 4096 + 33 * 4096)
    assert found["memory"]["weights_bytes"] == stage


def test_kinds_of_layers_are_split_each() -> None:
    """Layers 0 to 2 of DeepSeek-V2-Lite are a dense one and two with experts."""
    found = analyzed(model="deepseek-v2-lite", quantization="w4a16+w8a16@0-2")
    blocks = {one["block"] for one in found["stages"]["decode"]["operators"]}
    assert len({name for name in blocks if name.endswith("@0-2")}) == 2


@pytest.mark.parametrize("name", ["tpot_s", "memory.weights_bytes", "stages.decode.time_s"])
def test_explained_numbers_add_up(name: str) -> None:
    found = explained(lv.analyze("llama-3.2-1b", "a100", quantization="w4a16+w8a16@0-1"), name)
    assert found.evaluated() == pytest.approx(found.value, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "w4a16+w8a16@32"}, "there is no layer 32; the model has layers 0 to 31"),
        ({"quantization": "w4a16@0-1"}, "names layers; first comes a setting for the others"),
        ({"quantization": "w4a16+w8a16"}, "allowed: SETTING@LAYERS"),
        ({"quantization": "w4a16+w8a16@3-1"}, "allowed: SETTING@LAYERS"),
        ({"quantization": "w4a16+w8a16@0-5+w8a8@5"}, "layer 5 has two settings"),
        ({"quantization": "w4a16+w9a16@5"}, "asks for 9 bits"),
        ({"kv_cache_dtype": "k9v4"}, "KV cache dtype 'k9v4' asks for 9 bits"),
        ({"kv_cache_dtype": "k8"}, "or those of keys and of values, as in k8v4"),
        ({"kv_cache_dtype": "auto+fp8@99"}, "kv_cache_dtype: there is no layer 99"),
        ({"matformer": "1+2@0"}, "matformer"),
    ],
)
def test_wrong_settings_are_one_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lv.analyze("llama-2-7b", "a100", **options)


def test_layers_that_were_split_can_be_split_again() -> None:
    """Layer 0 of Ling mini is dense, so no layer of its kind is left outside the first range."""
    found = analyzed("ling-mini-2.0", matformer="0.5+1@0-7", kv_evict="tokens=1024+tokens=300@0-3")
    blocks = {one["block"]: one["layers"] for one in found["stages"]["decode"]["operators"] if one["name"] == "q_norm"}
    assert sum(blocks.values()) == 20 and blocks["dense@0-7@0-3"] == 1 and blocks["moe@0-7@0-3"] == 3


def test_a_latent_has_one_format() -> None:
    with pytest.raises(UserError, match="keys and values are one cached tensor"):
        analyzed("deepseek-v2-lite", kv_cache_dtype="k8v4")


def test_ranges_are_sets_of_layers() -> None:
    assert layer_settings("--quantization", "w4a16+w8a16@0-1/30")[1].layers == frozenset({0, 1, 30})
