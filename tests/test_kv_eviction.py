"""Eviction that leaves a number of tokens in each layer's KV cache, the same in all or by layer."""

from __future__ import annotations

from typing import Any

import pytest

import llmviewer as lv
from llmviewer.core.errors import UserError
from llmviewer.core.ir import check
from llmviewer.techniques.kv_cache.eviction import pyramid_limits

#: Bytes of keys and values of a token and layer: Llama-2-7B 2 x 32 heads x 128, Llama-3.1-8B 2 x 8 x 128, both 16 bit.
MHA, GQA = 2 * 32 * 128 * 2, 2 * 8 * 128 * 2


def answer(model: str = "llama-2-7b", hardware: str = "h200", **options: Any) -> dict[str, Any]:
    return lv.analyze(model, hardware, **({"efficiency": "ideal"} | options)).to_dict()


def cache(model: str = "llama-2-7b", **options: Any) -> float:
    """Bytes of the cache of one sequence of 4,096 tokens."""
    found = answer(model, **({"input_len": 4096, "output_len": 1} | options))["memory"]["kv_cache_bytes"]
    assert isinstance(found, float | int)
    return found


def decode(**options: Any) -> dict[str, dict[str, Any]]:
    """Operators of a decode step after 4,096 tokens, by block and name."""
    rows = answer(input_len=4097, **options)["stages"]["decode"]["operators"]
    return {f"{one['block']}.{one['name']}": one for one in rows}


def test_a_decode_step_reads_the_tokens_that_are_left_and_its_own() -> None:
    """1,024 cached keys of 32 heads x 128 and one new one: 2 FLOP per product, 2 bytes per element."""
    step = decode(kv_evict="tokens=1024", attention="eager")
    scores, weighted = step["layer.qk_matmul"], step["layer.sv_matmul"]
    assert scores["matmul_flops"] == weighted["matmul_flops"] == 2 * 32 * 128 * 1025
    assert scores["kv_read_bytes"] == weighted["kv_read_bytes"] == 1025 * 4096 * 2
    assert step["layer.softmax"]["flops"] == 5 * 32 * 1025
    assert decode(kv_evict="tokens=1024")["layer.attention"]["kv_read_bytes"] == 1025 * MHA


def test_layers_store_at_most_their_number_of_tokens() -> None:
    assert cache(kv_evict="tokens=1024") == 32 * 1024 * MHA
    assert cache(kv_evict="tokens=1024+tokens=3000@0-7+1@31") == (23 * 1024 + 8 * 3000 + 4096) * MHA
    assert cache(kv_evict="tokens=1024", input_len=100, output_len=29) == 32 * 128 * MHA


def test_layers_with_numbers_of_their_own_read_those() -> None:
    step = decode(kv_evict="tokens=1024+tokens=3000@0-7")
    assert (step["layer.attention"]["layers"], step["layer@0-7.attention"]["layers"]) == (24, 8)
    assert step["layer@0-7.attention"]["kv_read_bytes"] == 3001 * MHA


def test_a_number_of_tokens_equals_the_share_that_leaves_as_many() -> None:
    """A quarter of 4,096 cached tokens."""
    one, other = (decode(kv_evict=text) for text in ("0.25", "tokens=1024"))
    assert one == other


def test_prefill_attends_to_the_whole_prompt() -> None:
    for attention in ("eager", "flash"):
        plain, evicting = (
            answer(kv_evict=text, attention=attention)["stages"]["prefill"] for text in ("1", "tokens=64")
        )
        assert plain == evicting


def test_more_tokens_than_the_context_change_nothing() -> None:
    plain, evicting = (answer(kv_evict=text) for text in ("1", "tokens=5000"))
    assert (plain["stages"], plain["metrics"]) == (evicting["stages"], evicting["metrics"])
    assert plain["memory"]["kv_cache_bytes"] == evicting["memory"]["kv_cache_bytes"]


def test_windowed_layers_store_at_most_their_window() -> None:
    """Gemma-2-9B: 21 layers with a window of 4,096 tokens and 21 without; 8 heads of 256."""
    bytes_of_token = 2 * 8 * 256 * 2
    sizes: dict[str, Any] = {"input_len": 8000, "kv_evict": "tokens=5000"}
    assert cache("gemma-2-9b", **sizes) == 21 * (4096 + 5000) * bytes_of_token
    assert cache("gemma-2-9b", **sizes | {"kv_evict": "tokens=1000"}) == 42 * 1000 * bytes_of_token


def test_recurrent_layers_keep_their_state() -> None:
    """Jamba: 4 of 32 layers have a cache, 8 heads of 128; the others' states do not depend on the context."""
    states = cache("jamba-v0.1") - 4 * 4096 * GQA
    assert cache("jamba-v0.1", kv_evict="tokens=1000") == states + 4 * 1000 * GQA
    assert cache("mamba-2.8b", kv_evict="tokens=1000") == cache("mamba-2.8b")


# PyramidKV


def test_a_pyramid_falls_by_the_same_step_from_layer_to_layer() -> None:
    """Mean 2,048 = 8 + 2,040: the last layer would keep 2,040 // 20 = 102, the first 4,080 - 102 = 3,978 more than 8;
    the step is (3,978 - 102) // 31 = 125.  The rounding of https://github.com/Zefan-Cai/PyramidKV."""
    limits = pyramid_limits(2048.0, 20.0, 32)
    assert limits == [3986 - 125 * layer for layer in range(32)]
    assert sum(limits) / 32 == pytest.approx(2048, rel=1e-3)
    assert pyramid_limits(128.0, 1.0, 32) == [128.0] * 32
    assert pyramid_limits(128.0, 20.0, 1) == [128.0]


def test_a_pyramid_stores_a_quarter_of_8192_tokens() -> None:
    """The sum of 3,986 - 125 l over 32 layers is 65,552 tokens of 262,144."""
    sizes: dict[str, Any] = {"input_len": 8192}
    stored = cache("llama-3.1-8b", kv_evict="pyramid=2048", **sizes)
    assert stored == 65_552 * GQA == cache("llama-3.1-8b", kv_evict="pyramid=2048:20", **sizes)
    assert stored / cache("llama-3.1-8b", **sizes) == pytest.approx(0.25, rel=1e-3)


def test_a_pyramid_weighs_less_on_the_last_pipeline_stage() -> None:
    """Layers 16 to 31 keep 16 x 3,986 - 125 x 376 tokens; the last stage stores one more norm and is the fullest."""
    options: dict[str, Any] = {"input_len": 8192, "pipeline_parallel_size": 2, "kv_evict": "pyramid=2048"}
    assert cache("llama-3.1-8b", **options) == (16 * 3986 - 125 * 376) * GQA


def test_a_pyramid_takes_the_layers_with_a_cache() -> None:
    """Jamba: layers 4, 12, 20 and 28; s = 992, least 49, most 1,935, step 1,886 // 3 = 628."""
    states = cache("jamba-v0.1") - 4 * 4096 * GQA
    assert cache("jamba-v0.1", kv_evict="pyramid=1000") == states + (4 * 1943 - 628 * 6) * GQA


# relations


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-2-9b", "mixtral-8x7b", "jamba-v0.1"])
@pytest.mark.parametrize("efficiency", ["ideal", "calibrated"])
def test_fewer_tokens_never_add_work_or_memory(model: str, efficiency: str) -> None:
    before: dict[str, float] | None = None
    for text in ("1", "tokens=6000", "tokens=500+tokens=6000@0-1", "tokens=500"):
        found = answer(model, input_len=9000, output_len=4, kv_evict=text, efficiency=efficiency)
        step = found["stages"]["decode"]
        now = {name: step[name] for name in ("flops", "traffic_bytes", "time_s")} | {
            "cache": found["memory"]["kv_cache_bytes"], "tpot_s": found["metrics"]["tpot_s"]
        }  # fmt: skip
        assert before is None or all(0 <= now[name] <= before[name] * (1 + 1e-9) for name in now), (text, now, before)
        before = now


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 4}, {"context_parallel_size": 2}, {"kv_block_size": 16}, {"kv_cache_dtype": "k8v4"},
        {"prefix_cache": "0.5"}, {"fusion": "all"}, {"max_num_batched_tokens": 512}, {"contextual_sparsity": "mlp=0.5"},
    ],
    ids=str,
)  # fmt: skip
def test_graphs_stay_valid_beside_other_options(options: dict[str, Any]) -> None:
    plain = lv.analyze("llama-3.1-8b", "h200", input_len=4096, batch_size=8, **options)
    evicting = lv.analyze("llama-3.1-8b", "h200", input_len=4096, batch_size=8, kv_evict="tokens=512", **options)
    check(evicting.analysis.evaluation.graph)
    before, after = plain.to_dict(), evicting.to_dict()
    assert after["memory"]["kv_cache_bytes"] < before["memory"]["kv_cache_bytes"]
    assert after["metrics"]["tpot_s"] < before["metrics"]["tpot_s"]
    assert after["memory"]["max_batch_size"] >= before["memory"]["max_batch_size"]


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    options: dict[str, Any] = {"input_len": 8192, "kv_evict": "pyramid=1024", "max_num_batched_tokens": 8192}
    most = answer("llama-3.1-8b", **options)["memory"]["max_batch_size"]
    fits = [answer("llama-3.1-8b", batch_size=most + more, **options)["memory"]["fits"] for more in (0, 1)]
    assert fits == [True, False]


def test_a_sweep_equals_its_points() -> None:
    lengths = [100, 1000, 5000]
    swept = lv.analyze("gemma-2-9b", "h200", input_len=lengths, kv_evict="tokens=512+tokens=2000@0-3")
    for at, length in enumerate(lengths):
        single = answer("gemma-2-9b", input_len=length, kv_evict="tokens=512+tokens=2000@0-3", efficiency="calibrated")
        assert swept.to_dict(at)["stages"] == single["stages"]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("deepseek-v2-lite", {"kv_evict": "tokens=9"}, "needs layers that store keys and values"),
        ("llama-4-scout", {"kv_evict": "pyramid=900"}, "allowed: a share, as in kv_evict 0.2"),
        ("bert-base", {"kv_evict": "tokens=9", "output_len": 1}, "no KV cache; not possible: prefix hits and eviction"),
        ("llama-2-7b", {"kv_evict": "tokens=9", "prefix_cache": "0.5,shared"}, "cannot share a prefix"),
        ("llama-2-7b", {"kv_evict": "tokens=9", "branches": "apar,branches=3"}, "kv_evict"),
        ("llama-2-7b", {"kv_evict": "tokens=0"}, "tokens is '0'; allowed: a whole number from 1"),
        ("llama-2-7b", {"kv_evict": "pyramid=8"}, "pyramid is '8'; allowed: a whole number from 9"),
        ("llama-2-7b", {"kv_evict": "pyramid=99:0"}, "beta is '0'; allowed: a whole number from 1"),
        ("llama-2-7b", {"kv_evict": "0.2+tokens=9@0"}, "'0.2' is a share, for all layers alike"),
        ("llama-2-7b", {"kv_evict": "tokens=9+tokens=8@32"}, "there is no layer 32"),
    ],
)
def test_what_eviction_by_number_cannot_do_is_one_line(model: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lv.analyze(model, "h200", **options)
