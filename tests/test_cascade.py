"""Cascade attention: the keys that all sequences have in common are read once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.core.errors import UserError

KERNELS = ("attention_prefix", "attention", "attention_combine")


@cache
def operators(stage: str = "decode", model: str = "llama-2-7b", **options: Any) -> dict[str, dict[str, Any]]:
    found = lv.analyze(model, "a100", **({"efficiency": "ideal"} | options)).to_dict()
    return {one["name"]: one for one in found["stages"][stage]["operators"]}


def test_common_keys_are_read_once() -> None:
    """Llama-2-7b, 4,096 numbers per key, 16 bit; 32 sequences with 4,096 keys, of which 3,686 are a common prefix.

    The first kernel reads 3,686 keys and values instead of 32 x 3,686, the second the other 410 of each sequence.
    Both have the same queries, and partial results of 128 + 2 fp32 numbers per head instead of outputs.
    """
    sizes: dict[str, Any] = {"batch_size": 32, "input_len": 4096}
    found = operators(prefix_cache="0.9,cascade", **sizes)
    per_key, queries = 2 * 4096 * 2, 32 * 4096 * 2
    prefix, own, merged = (found[name] for name in KERNELS)
    assert prefix["kv_read_bytes"] == 3686 * per_key
    assert own["kv_read_bytes"] == 32 * 410 * per_key
    partials = 32 * 32 * (128 + 2) * 4
    assert prefix["activation_read_bytes"] == own["activation_read_bytes"] == queries
    assert prefix["activation_write_bytes"] == own["activation_write_bytes"] == partials
    assert (merged["activation_read_bytes"], merged["activation_write_bytes"]) == (2 * partials, queries)
    plain = operators(prefix_cache="0.9,shared", **sizes)["attention"]
    assert plain["kv_read_bytes"] == 32 * 4096 * per_key


@pytest.mark.parametrize("stage", ["prefill", "decode"])
@settings(max_examples=25, deadline=None)
@given(batch=st.integers(2, 200), prompt=st.integers(16, 9000), share=st.floats(0.1, 1.0))
def test_a_cascade_multiplies_the_same_pairs(stage: str, batch: int, prompt: int, share: float) -> None:
    sizes: dict[str, Any] = {"batch_size": batch, "input_len": prompt, "model": "llama-3.2-1b"}
    plain = operators(stage, prefix_cache=f"{share},shared", **sizes)["attention"]
    found = operators(stage, prefix_cache=f"{share},cascade", **sizes)
    total = sum(found[name]["matmul_flops"] for name in KERNELS[:2])
    assert total == pytest.approx(plain["matmul_flops"], rel=1e-12)
    assert sum(found[name]["kv_read_bytes"] for name in KERNELS[:2]) <= plain["kv_read_bytes"] * (1 + 1e-12)


def test_one_sequence_has_nothing_in_common() -> None:
    """The kernel over the prefix does not run, and the other one is that of a plain prefix hit."""
    plain = operators(prefix_cache="0.5", input_len=1000)["attention"]
    found = operators(prefix_cache="0.5,cascade", input_len=1000)
    assert found["attention"]["traffic_bytes"] == plain["traffic_bytes"]
    assert found["attention"]["time_s"] == plain["time_s"]
    assert not {"attention_prefix", "attention_combine"} & set(found)


def test_layers_with_a_window_run_no_cascade() -> None:
    found = operators(model="gemma-2-2b", prefix_cache="0.5,cascade", batch_size=8, input_len=8192)
    assert {"attention", "attention_prefix"} <= set(found)
    layers = lv.analyze("gemma-2-2b", "a100", batch_size=8, input_len=8192, prefix_cache="0.5,cascade").to_dict()
    blocks = {one["block"] for one in layers["stages"]["decode"]["operators"] if one["name"] == "attention_prefix"}
    assert len(blocks) == 1


def test_a_point_of_a_sweep_is_the_same_call() -> None:
    batches, options = [1, 4, 64], {"prefix_cache": "0.8,cascade", "efficiency": "calibrated", "input_len": 2048}
    swept = lv.analyze("llama-3.1-8b", "h100", batch_size=batches, **options)
    single = [float(lv.analyze("llama-3.1-8b", "h100", batch_size=one, **options).tpot_s) for one in batches]
    assert np.asarray(swept.tpot_s) == pytest.approx(single, rel=1e-12)


def test_the_published_speedup_is_below_the_bound() -> None:
    """FlashInfer, H100 SXM: a prefix of 32,768 tokens and 256 sequences run 26 x as fast as without the cascade
    (https://flashinfer.ai/2024/02/02/cascade-inference.html).  The bound has no launches and no merging in memory."""
    times = []
    for prefix in ("0.99225", "0.99225,cascade"):
        options = {"batch_size": 256, "input_len": 33024, "output_len": 2, "prefix_cache": prefix}
        found = lv.analyze("llama-2-7b", "h100-sxm", efficiency="ideal", **options).to_dict()
        decode = found["stages"]["decode"]["operators"]
        times.append(sum(one["time_s"] for one in decode if one["name"] in KERNELS))
    assert 26 < times[0] / times[1] < 256


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "eager"}, "use attention flash"),
        ({"attention": "flash-decoding"}, "split by themselves"),
        ({"kv_reserve": "max"}, "cannot share a prefix"),
        ({"kv_reserve": "pow2"}, "cannot share a prefix"),
    ],
)
def test_what_cannot_share_a_prefix_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lv.analyze("llama-2-7b", "a100", prefix_cache="0.5,cascade", **options)
