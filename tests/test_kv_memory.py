"""KV cache: pages, reservation, prefix hits, eviction, and the memory budgets of engines."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer import api, models
from llmviewer.analysis import analysis
from llmviewer.analysis.capacity import memory_of
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.errors import UserError
from llmviewer.core.ir import State, check
from llmviewer.core.workload import Group, Request
from llmviewer.hardware import specs
from llmviewer.serving.kv_cache import KvCache
from tests.representative import REPRESENTATIVE

from .answers import analyze, answer, operators

GIB = 2.0**30
#: Models with full attention, windows, latent attention, recurrence, both, chunks.
MODELS = (
    "llama-2-7b", "gemma-2-9b", "deepseek-v2-lite", "mamba-2.8b", "jamba-v0.1", "qwen3-next-80b-a3b", "llama-4-scout",
)  # fmt: skip
#: Combinations of cache options.
COMBINATIONS: tuple[dict[str, str], ...] = (
    {"kv_block_size": "16"},
    {"kv_reserve": "4096"},
    {"prefix_cache": "0.5"},
    {"prefix_cache": "0.7,shared", "kv_block_size": "32"},
    {"kv_evict": "0.2"},
    {"kv_cache_free_gpu_memory_fraction": "0.8"},
    {"kv_evict": "0.3", "kv_block_size": "16", "prefix_cache": "0.25", "kv_cache_free_gpu_memory_fraction": "0.5"},
)


def ids(combination: dict[str, str]) -> str:
    return " ".join(f"{name}={text}" for name, text in combination.items())


def memory_result(model: str, chip: str = "h200", **options: Any) -> dict[str, Any]:
    """Memory of a result."""
    return analyze(model, chip, **options).memory


def state(window: float = np.inf) -> State:
    return State(name="k_cache", dtype=DTYPES["int8"], per_token=1.0, window=window)


# pages


def test_a_sequence_allocates_whole_pages() -> None:
    """Llama-2-7B keeps 512 KiB per token; 500 + 127 tokens need 40 pages of 16 = 640 tokens, 13 of them empty."""
    found = memory_result("llama-2-7b", input_len=500, kv_block_size="16")
    assert found["kv_cache_bytes"] == 640 * 512 * 2**10
    assert found["kv_cache_used_bytes"] == 627 * 512 * 2**10
    assert found["kv_cache_waste_bytes"] == 13 * 512 * 2**10


@pytest.mark.parametrize("block", [1, 8, 16, 32, 100])
def test_the_mean_waste_is_half_a_page(block: int) -> None:
    """(block - 1) / 2 tokens, averaged over all context lengths."""
    contexts = np.arange(1.0, 7.0 * block + 1.0)
    kept, _ = KvCache(block_size=float(block)).allocated_tokens(state(), contexts, 0.0)
    assert np.mean(kept - contexts) == (block - 1) / 2


def test_pages_of_16_waste_less_than_4_percent() -> None:
    """arXiv 2309.06180: "near-zero waste", under 4 % in section 1; a ShareGPT request has 161 + 338 tokens."""
    found = memory_result("opt-13b", input_len=161, output_len=338, kv_block_size="16")
    assert 0 < found["kv_cache_waste_bytes"] / found["kv_cache_bytes"] < 0.04


@given(block=st.integers(1, 40), window=st.integers(1, 200), longest=st.integers(1, 400))
def test_a_window_allocates_the_most_pages_it_ever_spans(block: int, window: int, longest: int) -> None:
    """Token positions c - w ... c - 1, page = position // block, for every context c up to the longest."""
    touched = max(len({position // block for position in range(max(c - window, 0), c)}) for c in range(1, longest + 1))
    own, _ = KvCache(block_size=float(block)).allocated_tokens(state(window), float(longest), 0.0)
    assert own == touched * block


def test_gemma_2_rounds_windowed_and_full_layers_to_pages() -> None:
    """21 layers with a window of 4096 tokens, 21 full; 2 x 8 x 256 elements of 2 bytes.  6127 tokens need 383 pages, a
    window of 4096 tokens 256 + 1."""
    found = memory_result("gemma-2-9b", input_len=6000, kv_block_size="16")
    assert found["kv_cache_bytes"] == 21 * (383 * 16 + 257 * 16) * 2 * 8 * 256 * 2
    assert found["kv_cache_used_bytes"] == 21 * (6127 + 4096) * 2 * 8 * 256 * 2


def test_recurrent_state_has_no_pages() -> None:
    plain, paged = (memory_result("mamba-2.8b", kv_block_size=size) for size in ("1", "64"))
    assert paged == plain


# reservations


def test_opt_13b_stores_800_kib_per_token_and_at_most_1_6_gib() -> None:
    """arXiv 2309.06180, section 3: 2 (K, V) x 5120 x 40 layers x 2 bytes = 800 KB per token, 1.6 GB at 2048 tokens."""
    found = memory_result("opt-13b", input_len=161, output_len=338, kv_reserve="max")
    assert found["kv_cache_bytes"] == 2048 * 819200 == 1.5625 * GIB
    assert found["kv_cache_used_bytes"] == 498 * 819200


def test_a_reservation_at_the_maximum_leaves_most_of_the_cache_empty() -> None:
    """A ShareGPT request fills 498 of 2048 tokens: 24.3 %; the paper measures 20.4 % to 38.2 % (Fig. 2)."""
    found = memory_result("opt-13b", input_len=161, output_len=338, kv_reserve="max")
    assert 0.204 < found["kv_cache_used_bytes"] / found["kv_cache_bytes"] < 0.382


def test_a_reservation_shorter_than_the_context_changes_nothing() -> None:
    assert memory_result("gemma-2-9b", kv_reserve="64") == memory_result("gemma-2-9b")


def test_powers_of_two_and_gaps_between_reservations() -> None:
    """Orca (Pow2): 500 + 127 tokens reserve 1,024, of 512 KiB each, which waste 397.

    If 41.6 % of the memory lies in gaps (PagedAttention, figure 2), a sequence takes 512 MiB / 0.584.
    """
    sizes = {"input_len": 500, "output_len": 128}
    found = memory_result("llama-2-7b", kv_reserve="pow2", **sizes)
    assert found["kv_cache_bytes"] == 512 * 1024**2
    gaps = memory_result("llama-2-7b", kv_reserve="pow2,external=0.416", **sizes)
    assert gaps["kv_cache_bytes"] == pytest.approx(512 * 1024**2 / 0.584)
    exact = memory_result("llama-2-7b", kv_reserve="pow2", input_len=513, output_len=512)
    assert exact["kv_cache_bytes"] == 1024 * 512 * 1024
    paged = memory_result("llama-2-7b", kv_block_size="16", **sizes)
    assert paged["max_concurrent_requests"] > found["max_concurrent_requests"] > gaps["max_concurrent_requests"]


def test_a_windowed_layer_reserves_its_window() -> None:
    found = memory_result("gemma-2-9b", input_len=100, output_len=1, kv_reserve="max")
    assert found["kv_cache_bytes"] == 21 * (8192 + 4096) * 2 * 8 * 256 * 2


def test_reservation_changes_nothing_for_a_model_without_a_maximum_context() -> None:
    """Mamba states none and has no KV cache: there is nothing to reserve."""
    assert memory_result("mamba-2.8b", kv_reserve="max") == memory_result("mamba-2.8b")


# prefix hits


def test_a_half_cached_prompt_halves_linear_layers_but_not_attention() -> None:
    """2048 tokens, 1024 cached.  q_proj: 2 x 1024 x 4096^2.  Attention: 1024 x 1024 + 1024 x 1025 / 2 of the
    2048 x 2049 / 2 pairs.  Keys and values of all 2048 tokens are read."""
    plain, found = (answer("llama-2-7b", "a6000", input_len=2048, prefix_cache=rate) for rate in ("0", "0.5"))
    before, after = operators(plain, "prefill"), operators(found, "prefill")
    assert after["q_proj"]["flops"] == 2 * 1024 * 4096**2 == before["q_proj"]["flops"] / 2
    pairs = 1024 * 1024 + 1024 * 1025 // 2
    assert after["attention"]["matmul_flops"] == 2 * 32 * pairs * (128 + 128)
    assert after["k_proj"]["flops"] * 2 == before["k_proj"]["flops"]
    assert after["attention"]["kv_read_bytes"] >= 2 * 2048 * 4096 * 2
    stage = found["stages"]["prefill"]
    assert (stage["new_tokens"], stage["cached_tokens"]) == (1024, 1024)
    assert found["memory"]["kv_cache_bytes"] == plain["memory"]["kv_cache_bytes"]
    assert found["stages"]["decode"] == plain["stages"]["decode"]
    assert found["metrics"]["ttft_s"] < plain["metrics"]["ttft_s"]


@pytest.mark.parametrize(
    ("rate", "prompt", "block", "found"),
    [(0.5, 7, 1, 3), (0.29, 100, 1, 29), (1.0, 100, 1, 99), (0.5, 1000, 16, 496), (1.0, 64, 16, 48), (0.1, 5, 1, 0)],
)
def test_prefix_hits_are_whole_pages_and_never_the_last_token(rate: float, prompt: int, block: int, found: int) -> None:
    assert KvCache(hit_rate=rate, block_size=float(block)).prefix_hit(np.array([float(prompt)])) == found


def test_a_token_budget_splits_the_uncached_part_of_the_prompt() -> None:
    """4096 tokens, 1024 cached, budget 1024: three chunks after 1024, 2048, 3072 cached tokens."""
    system = api.system(specs.load("a6000"), api.options_of({"prefix_cache": "0.25"}))
    request = Request(batch_size=np.ones(1), input_len=np.array([4096.0]), output_len=np.ones(1))
    plan = analysis.analyze(models.load("llama-2-7b"), system, request, 1024.0).schedule
    group = plan.step.groups[0]
    assert list(np.asarray(group.new_tokens)[:3]) == [1024, 1024, 1024]
    assert list(np.asarray(group.cached_tokens)[:3]) == [1024, 2048, 3072]


def test_a_shared_prefix_is_stored_once() -> None:
    """8 sequences of 2048 + 127 tokens, 1024 of them shared: 8 x 1151 + 1024 tokens."""
    found = memory_result("llama-2-7b", input_len=2048, batch_size=8, prefix_cache="0.5,shared")
    assert found["kv_cache_bytes"] == (8 * 1151 + 1024) * 512 * 2**10
    single = memory_result("llama-2-7b", input_len=2048, prefix_cache="0.5,shared")
    assert single["kv_cache_bytes"] == memory_result("llama-2-7b", input_len=2048)["kv_cache_bytes"]


def test_a_prefix_outside_the_window_is_not_stored() -> None:
    """Gemma-2-9B, 6127 tokens, 1000 shared: windowed layers store 4096 tokens per sequence and no prefix."""
    found = memory_result("gemma-2-9b", input_len=6000, batch_size=4, prefix_cache=str(1 / 6) + ",shared")
    assert found["kv_cache_bytes"] == 21 * (4 * (6127 - 1000) + 1000 + 4 * 4096) * 2 * 8 * 256 * 2


# eviction


def test_a_decode_step_reads_the_tokens_kept_by_eviction() -> None:
    """4097 prompt tokens, one fifth kept: the step attends to floor(0.2 x 4096) = 819 cached keys and its own."""
    found = answer("llama-2-7b", "a6000", input_len=4097, kv_evict="0.2", attention="eager")
    step = operators(found, "decode")
    assert step["qk_matmul"]["matmul_flops"] == 2 * 32 * 128 * 820
    assert step["qk_matmul"]["kv_read_bytes"] == 820 * 4096 * 2
    assert found["stages"]["decode"]["cached_tokens"] == 819


def test_eviction_does_not_change_prefill_attention() -> None:
    plain, evicting = (answer("llama-2-7b", "a6000", kv_evict=kept)["stages"]["prefill"] for kept in ("1", "0.2"))
    assert plain == evicting


def test_opt_30b_with_20_percent_stores_a_fifth_of_180_gb() -> None:
    """arXiv 2306.14048, section 1: batch 128, 1024 tokens: 180 GB of cache for 30 billion parameters."""
    sizes: dict[str, Any] = {"batch_size": 128, "input_len": 1024, "output_len": 1}
    whole, fifth = (memory_result("opt-30b", kv_evict=kept, **sizes)["kv_cache_bytes"] for kept in ("1", "0.2"))
    assert whole == pytest.approx(180e9, rel=0.01)
    assert fifth == whole * 204 / 1024


def test_one_token_is_always_kept() -> None:
    assert Group(batch_size=1.0, new_tokens=1.0, cached_tokens=3.0, logit_positions=1.0, kept=0.01).keys() == 2
    assert Group(batch_size=1.0, new_tokens=5.0, cached_tokens=0.0, logit_positions=1.0, kept=0.01).keys() == 5


@given(st.integers(1, 30), st.integers(0, 60), st.integers(1, 25), st.floats(0.05, 1.0))
def test_new_tokens_of_a_chunk_do_not_see_its_evicted_tokens(new: int, cached: int, chunk: int, kept: float) -> None:
    group = Group(batch_size=1.0, new_tokens=float(new), cached_tokens=float(cached), logit_positions=1.0, kept=kept)
    begun = cached % chunk
    left = min(begun, max(int(np.floor(np.round(begun * kept, 6))), 1)) if begun else 0
    pairs = 0
    for position in range(cached, cached + new):
        first = position // chunk * chunk
        pairs += position - max(first, cached) + 1 + (left if first < cached else 0)
    assert group.chunked_pairs(float(chunk)) == pairs


@pytest.mark.parametrize("model", REPRESENTATIVE)
def test_keeping_fewer_tokens_never_adds_work_or_memory(model: str) -> None:
    before: dict[str, Any] | None = None
    for kept in ("1", "0.5", "0.1"):
        found = answer(model, "h200", input_len=9000, output_len=4, kv_evict=kept)
        decode = found["stages"]["decode"]
        now = {name: decode[name] for name in ("flops", "traffic_bytes", "time_s")} | {
            "cache": found["memory"]["kv_cache_bytes"], "tpot_s": found["metrics"]["tpot_s"]
        }  # fmt: skip
        assert before is None or all(0 <= now[name] <= before[name] for name in now), (kept, now, before)
        before = now


# budgets


def test_tensorrt_llm_budgets_a_fraction_of_free_memory() -> None:
    """cache budget = 0.9 (capacity - weights - activations - framework); vLLM's = 0.9 capacity - them."""
    found = memory_result("llama-2-7b", "a100", kv_cache_free_gpu_memory_fraction="0.9")
    others = found["weights_bytes"] + found["activations_bytes"] + found["framework_bytes"]
    assert found["kv_cache_budget_bytes"] == pytest.approx(0.9 * (80 * GIB - others), rel=1e-12)
    assert found["kv_cache_budget_of_total_bytes"] == pytest.approx(0.9 * 80 * GIB - others, rel=1e-12)
    assert found["budget_bytes"] == pytest.approx(others + found["kv_cache_budget_bytes"], rel=1e-12)


def test_a_fraction_of_free_memory_cannot_fit_a_model_larger_than_memory() -> None:
    found = memory_result("llama-2-70b", "a6000", kv_cache_free_gpu_memory_fraction="0.9")
    assert (found["fits"], found["max_batch_size"], found["max_concurrent_requests"]) == (False, 0, 0)
    assert found["kv_cache_budget_bytes"] == 0


def test_opt_13b_has_about_15_700_slots_on_an_a100_of_40_gb() -> None:
    """arXiv 2309.06180, Table 1: 26 GB of parameters, 12 GB of cache, 15.7K slots, counted by requests of one token."""
    slots = memory_result("opt-13b", "a100-40gb-sxm", input_len=1, output_len=1)["max_concurrent_requests"]
    assert slots == pytest.approx(15700, rel=0.03)


def test_max_concurrency_is_the_kv_budget_over_the_cache_per_request() -> None:
    """Llama-2-7B, A6000, 2048 + 127 tokens, steps of 2048: budget 0.9 x 48 GiB - 13.477 GB - activations of one prompt
    - 0.16 GiB, over 2175 x 512 KiB."""
    found = memory_result("llama-2-7b", "a6000", input_len=2048, max_num_batched_tokens=2048)
    activations = 2 * (2048 * 4096 + 3 * 2048 * 11008)
    budget = 0.9 * 48 * GIB - 2 * 6738415616 - activations - 0.16 * GIB
    assert found["max_concurrent_requests"] == budget // (2175 * 512 * 2**10) == 28


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("combination", COMBINATIONS, ids=ids)
def test_max_concurrency_fits_and_one_more_request_does_not(model: str, combination: dict[str, str]) -> None:
    options: dict[str, Any] = {"input_len": 3000, "output_len": 200, "max_num_batched_tokens": 2048, **combination}
    most = memory_result(model, **options)["max_concurrent_requests"]
    if not most:
        assert not memory_result(model, **options)["fits"]
        return
    new = answer(model, "h200", **options)["stages"]["prefill"]["new_tokens"]
    step = memory_result(
        model, batch_size=max(2048 // new, 1), **options
    )  # the most whole prompts that the engine admits
    for requests, fits in ((most, True), (most + 1, False)):
        cache = memory_result(model, batch_size=requests, **options)["kv_cache_bytes"]
        assert (cache <= step["kv_cache_budget_bytes"]) is fits


# relations over models and combinations


@pytest.mark.parametrize("model", REPRESENTATIVE)
def test_identity_parameters_change_nothing(model: str) -> None:
    """Texts that load the technique, which then declares itself inactive."""
    plain = answer(model, "h200", batch_size=3, input_len=777, output_len=3)
    off = {"kv_block_size": "tokens=1", "kv_reserve": "0.0", "prefix_cache": "0.0", "kv_evict": "1.0"}
    found = answer(model, "h200", batch_size=3, input_len=777, output_len=3, **off)
    found["warnings"] = [one for one in found["warnings"] if not one.endswith("not used")]  # of a model without a cache
    assert found == plain


@pytest.mark.parametrize("model", REPRESENTATIVE)
def test_every_cache_option_keeps_graphs_valid_and_waste_within_the_cache(model: str) -> None:
    sizes: dict[str, Any] = {"batch_size": [1, 5], "input_len": [100, 5000], "output_len": [20, 2]}
    for combination in (
        COMBINATIONS[3],
        COMBINATIONS[6],
        {"kv_reserve": "5000", "kv_block_size": "16", "kv_evict": "0.5"},
    ):
        result = analyze(model, "h200", quantization="w8a8", **sizes, **combination)
        check(result.analysis.evaluation.graph)
        memory = result.analysis.memory
        assert np.all(np.asarray(memory.kv_cache_used_bytes) >= 0)
        assert np.all(np.asarray(memory.kv_cache_waste_bytes) >= 0)
        assert np.all(np.asarray(result.analysis.passes.time_s) > 0)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("combination", COMBINATIONS, ids=ids)
def test_max_batch_size_fits_and_one_more_does_not(model: str, combination: dict[str, str]) -> None:
    for budget in (0, 2048):
        options: dict[str, Any] = {"input_len": 1000, "max_num_batched_tokens": budget, **combination}
        most = memory_result(model, **options)["max_batch_size"]
        fits = [not most or bool(analyze(model, "h200", batch_size=most, **options).fits)]
        fits += [bool(analyze(model, "h200", batch_size=most + 1, **options).fits)]
        assert fits == [True, False]


@pytest.mark.parametrize("model", ["llama-2-7b", "gemma-2-9b"])
@pytest.mark.parametrize("combination", COMBINATIONS, ids=ids)
@pytest.mark.parametrize("budget", [0, 300])
def test_max_context_fits_and_one_more_does_not(model: str, combination: dict[str, str], budget: int) -> None:
    options: dict[str, Any] = {"output_len": 10, "batch_size": 8, "max_num_batched_tokens": budget, **combination}
    longest = memory_result(model, "a100", **options)["max_context_len"]
    assert longest > 10
    assert analyze(model, "a100", input_len=longest - 10, **options).fits
    assert not analyze(model, "a100", input_len=longest - 9, **options).fits


@pytest.mark.parametrize("model", ["llama-2-7b", "gemma-2-9b", "deepseek-v2-lite", "jamba-v0.1"])
@pytest.mark.parametrize("combination", COMBINATIONS, ids=ids)
def test_cache_bytes_fall_with_stored_bits(model: str, combination: dict[str, str]) -> None:
    sizes = [
        memory_result(model, input_len=5000, batch_size=2, kv_cache_dtype=dtype, **combination)["kv_cache_bytes"]
        for dtype in ("kv16", "int8", "fp8", "kv4", "kv2")
    ]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=ids)
@pytest.mark.parametrize("budget", [np.inf, 512.0])
def test_memory_computed_separately_equals_that_of_the_analysis(combination: dict[str, str], budget: float) -> None:
    system = api.system(specs.load("h200"), api.options_of(combination))
    request = Request(
        batch_size=np.array([1.0, 7.0, 64.0]),
        input_len=np.array([3.0, 5001.0, 640.0]),
        output_len=np.array([40.0, 1.0, 2.0]),
    )
    for name in ("gemma-2-9b", "deepseek-v2-lite"):
        model = models.load(name)
        single = memory_of(model, system, request, budget)
        within = analysis.analyze(model, system, request, budget).memory
        assert list(np.asarray(single.total_bytes)) == list(np.asarray(within.total_bytes))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("combination", COMBINATIONS, ids=ids)
def test_a_point_of_a_sweep_equals_the_single_point(model: str, combination: dict[str, str]) -> None:
    sizes = [(1, 30, 3), (4, 5000, 2), (16, 700, 1)]
    batch, prompt, output = (list(column) for column in zip(*sizes, strict=True))
    swept = analyze(model, "h200", batch_size=batch, input_len=prompt, output_len=output, **combination)
    for at, (b, s, n) in enumerate(sizes):
        single = analyze(model, "h200", batch_size=b, input_len=s, output_len=n, **combination)
        assert swept.to_dict(at)["stages"] == single.to_dict()["stages"]
        assert swept.to_dict(at)["memory"] == single.to_dict()["memory"]


# option texts


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("kv_block_size", "0", "allowed: a whole number from 1"),
        ("kv_block_size", "16.5", "allowed: a whole number"),
        ("kv_reserve", "most", "allowed: a whole number"),
        ("prefix_cache", "1.5", "from 0 to 1"),
        ("prefix_cache", "0.5,sharde", "shared"),
        ("kv_evict", "0", "from 1e-06 to 1"),
        ("kv_cache_free_gpu_memory_fraction", "1.1", "to 1"),
    ],
)
def test_a_wrong_parameter_is_an_error_that_states_what_is_allowed(option: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        analyze("llama-2-7b", "a6000", **{option: text})


@pytest.mark.parametrize("other", [{"kv_reserve": "max"}, {"kv_evict": "0.5"}])
def test_options_without_prefix_sharing_are_rejected(other: dict[str, str]) -> None:
    with pytest.raises(UserError, match="shared"):
        analyze("llama-2-7b", "a6000", prefix_cache="0.5,shared", **other)


def test_unused_techniques_are_not_imported() -> None:
    code = (
        "import sys, llmviewer as lv; lv.analyze('llama-2-7b', 'a6000').to_json();"
        "print([name for name in sys.modules if 'techniques.kv_cache.' in name])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_the_cache_of_tensorrt_llm_takes_nine_tenths_of_what_all_else_leaves_unless_a_limit_is_stated() -> None:
    """KvCacheConfig, free_gpu_memory_fraction: 0.9 by default (its API reference)."""
    words = {"engine": "trtllm", "batching": "continuous", "quantization": "fp8"}
    asked = {**words, "efficiency": "calibrated"}
    found = memory_result("llama-3.1-70b", "h200", **asked)
    others = found["weights_bytes"] + found["activations_bytes"] + found["framework_bytes"]
    assert found["kv_cache_budget_bytes"] == pytest.approx(0.9 * (found["capacity_bytes"] - others))
    stated = memory_result("llama-3.1-70b", "h200", **asked, gpu_memory_utilization=0.8)
    assert stated["budget_bytes"] == pytest.approx(0.8 * stated["capacity_bytes"])


@pytest.mark.parametrize(("engine", "options"), [("llama.cpp", {"max_model_len": 4096}), ("ollama", {})])
def test_the_longest_reservation_is_that_of_the_model_beside_an_allocated_context(
    engine: str, options: dict[str, int]
) -> None:
    """Ollama on an H100 allocates what the model has too; both are 131,072 tokens of 32 x 2 x 8 x 128 elements."""
    found = lv.analyze("llama-3.1-8b", "h100", engine=engine, kv_reserve="max", **options).memory
    assert found["kv_cache_bytes"] == 131072 * 32 * 2 * 8 * 128 * 2
