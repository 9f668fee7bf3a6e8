"""Memory: weights, cache, peak activations, and the largest request that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer import api, models
from llmviewer.analysis import analysis, limits, memory
from llmviewer.analysis.capacity import memory_of
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.ir import Block, Graph, Operator, Tensor, whole
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Request, decode, prefill
from llmviewer.hardware import specs
from llmviewer.techniques.kernels.flash_attention import flash_attention

from .answers import analyze, answer

GIB = 2.0**30
MB = 1e6


def kernel(name: str, reads: dict[str, float], writes: dict[str, float]) -> Operator:
    def accesses(sizes: dict[str, float]) -> tuple[Any, ...]:
        named = (Tensor(name=name, elements=size, dtype=DTYPES["int8"]) for name, size in sizes.items())
        return tuple(whole(tensor) for tensor in named)

    return Operator(
        name=name, kind=Kind.ELEMENTWISE, reads=accesses(reads), writes=accesses(writes), output_shape=(1.0,)
    )


def test_only_tensors_that_are_read_later_are_live() -> None:
    """a(10) -> b(100) -> c(1), and d reads a and c: at b 10 + 100 are live, at c 10 + 100 + 1, at d 10 + 1 + 7."""
    block = Block(
        name="layer",
        operators=(
            kernel("b", {"a": 10}, {"b": 100}),
            kernel("c", {"b": 100}, {"c": 1}),
            kernel("d", {"a": 10, "c": 1}, {"d": 7}),
        ),
    )
    assert memory.peak_activations(Graph(blocks=(block,))) == 111


def test_the_worst_layer_sets_the_peak_not_the_sum() -> None:
    small = Block(name="small", operators=(kernel("s", {"a": 10}, {"s": 1}),), repeats=80)
    large = Block(name="large", operators=(kernel("l", {"a": 10}, {"l": 500}),))
    assert memory.peak_activations(Graph(blocks=(small, large))) == 510


def test_eager_prefill_peaks_at_the_softmax() -> None:
    """Llama-2-7b, 2048 tokens: residual 16.8 MB, scores 268.4, probabilities 268.4: 553.6 MB."""
    found = answer("llama-2-7b", "a6000", input_len=2048, attention="eager")
    assert found["memory"]["activations_bytes"] == 2 * (2048 * 4096 + 2 * 32 * 2048 * 2048)
    assert found["memory"]["activations_bytes"] == pytest.approx(553.6 * MB, rel=1e-3)


def test_flash_prefill_peaks_at_the_feed_forward_activation() -> None:
    """Llama-2-7b, 2048 tokens: residual 16.8 MB, gate, up and their product 45.1 MB each: 152 MB."""
    found = answer("llama-2-7b", "a6000", input_len=2048)
    assert found["memory"]["activations_bytes"] == 2 * (2048 * 4096 + 3 * 2048 * 11008)
    assert found["memory"]["activations_bytes"] == pytest.approx(152.0 * MB, rel=1e-3)


#: Peak live elements per token in a flash prefill of 2048 tokens, and the operator at the peak.
PEAKS = {
    # expert_act: residual, router weights of 8 experts, gate, up and their product of 2 chosen experts
    "mixtral-8x7b": 4096 + 8 + 3 * 2 * 14336,
    # expert_down_proj: residual, its norm (the shared expert reads it later), router weights, 10 products in and out
    "qwen3-next-80b-a3b": 2048 + 2048 + 512 + 10 * 512 + 10 * 2048,
    # attention in naive form: residual, queries, keys and values of 128 heads, output
    "deepseek-v3": 7168 + 128 * (128 + 64) + 128 * 128 + 128 * 128 + 128 * 128,
    # mlp_act of a layer twice as wide: residual, gate, up, product; the inputs of all 35 layers are also live
    "gemma-4-e2b": 1536 + 3 * 2 * 6144 + 35 * 256,
}


@pytest.mark.parametrize("name", PEAKS)
def test_peak_activations_by_hand(name: str) -> None:
    graph = flash_attention(specs.load("h200"))(models.load(name).graph(prefill(1.0, 2048.0)))
    assert memory.peak_activations(graph) == 2 * 2048 * PEAKS[name]


def test_inputs_of_a_block_are_live_from_its_start() -> None:
    """a(10) -> b(100) -> c(1), and d reads c and e(50), an input of the block: at b 10 + 100 + 50 are live."""
    block = Block(
        name="layer",
        operators=(
            kernel("b", {"a": 10}, {"b": 100}),
            kernel("c", {"b": 100}, {"c": 1}),
            kernel("d", {"c": 1, "e": 50}, {"d": 7}),
        ),
    )
    assert memory.peak_activations(Graph(blocks=(block,))) == 160


def test_keys_and_values_belong_to_the_cache_not_to_activations() -> None:
    model = models.load("llama-2-7b")
    flash = flash_attention(specs.load("a6000"))
    short, long = (memory.peak_activations(flash(model.graph(decode(1.0, c)))) for c in (10.0, 100000.0))
    assert short == long


def test_llama_2_7b_stores_512_kib_per_token_and_2_gib_at_4096() -> None:
    """2 (K, V) x 32 layers x 4096 x 2 bytes."""
    found = answer("llama-2-7b", "a6000", input_len=4000, output_len=97)
    assert found["model"]["kv_cache_bytes_per_token"] == 512 * 2**10 == 2 * 32 * 4096 * 2
    assert found["memory"]["kv_cache_bytes"] == 2 * GIB, "4000 prompt tokens and 96 generated ones"


@pytest.mark.parametrize(
    ("model", "per_token"),
    [
        ("llama-2-70b", 2 * 80 * 8 * 128 * 2),
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2),
        ("qwen2.5-0.5b", 2 * 24 * 2 * 64 * 2),
        ("deepseek-v3", 61 * (512 + 64) * 2),
        ("qwen3-8b", 2 * 36 * 8 * 128 * 2),
    ],
)
def test_cache_per_token(model: str, per_token: int) -> None:
    """2 x layers x KV heads x head_dim x 2 bytes; latent attention: layers x (latent + rotated key) x 2 bytes."""
    assert answer(model, "h200", input_len=8)["model"]["kv_cache_bytes_per_token"] == per_token


@pytest.mark.parametrize(("model", "gigabytes"), [("llama-2-7b", 13.477), ("llama-2-70b", 137.953)])
def test_the_footprint_is_every_parameter_at_16_bit(model: str, gigabytes: float) -> None:
    found = answer(model, "h200")
    assert found["memory"]["weights_bytes"] == 2 * found["model"]["parameters"]
    assert found["memory"]["weights_bytes"] == pytest.approx(gigabytes * 1e9, rel=1e-4)


def test_a_tied_head_is_stored_once() -> None:
    model = models.load("llama-3.2-1b")
    assert memory.weights_bytes(model.graph(prefill(1.0, 8.0))) == 2 * 1235814400


@given(limit=st.integers(0, 2**33), top=st.integers(1, 2**32))
def test_the_largest_that_fits_is_found(limit: int, top: int) -> None:
    found = limits.largest(lambda x: np.asarray(x) <= limit, float(top))
    assert found == min(limit, top)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-12b", "deepseek-v2-lite", "jamba-v0.1"])
@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize(("batch", "budget"), [(1, 8192), (4, 8192), (64, 8192), (7, 1000)])
def test_no_context_longer_than_max_context_fits(name: str, attention: str, batch: int, budget: int) -> None:
    """With a token budget of 8192, four prompts of 2048 share a pass but only three of 2049: memory falls there by
    hundreds of MB.  Capacities are set so that the limit is next to such a step."""
    model = models.load(name)
    on = api.system(specs.load("h200"), api.options_of({"attention": attention, "gpu_memory_utilization": 1.0}))
    lengths = np.unique(np.concatenate((np.arange(1.0, 33.0), np.geomspace(33, 3 * budget, 1500).round())))
    requests = Request(batch_size=batch + 0 * lengths, input_len=lengths, output_len=1 + 0 * lengths)
    needed = np.asarray(memory_of(model, on, requests, float(budget)).total_bytes)
    one = Request(batch_size=float(batch), input_len=1.0, output_len=1.0)
    for capacity in needed[:: len(needed) // 15]:
        chip = replace(on.chip, memory_bytes=float(capacity))
        found = limits.largest_sizes(model, replace(on, chip=chip), one, float(budget))["max_context_len"] - 1.0
        assert found >= lengths[needed <= capacity].max()
        just = np.array([found, found + 1.0])
        requests = Request(batch_size=batch + 0 * just, input_len=just, output_len=1 + 0 * just)
        fits = np.asarray(memory_of(model, on, requests, float(budget)).total_bytes) <= capacity
        assert fits.tolist() == [True, False]


def test_an_engine_on_a_gpu_needs_framework_memory() -> None:
    framework = {
        name: answer("qwen2.5-0.5b", name)["memory"]["framework_bytes"] for name in ("a100", "mi300x", "epyc-9654")
    }
    assert framework == {"a100": 0.16 * GIB, "mi300x": 0.16 * GIB, "epyc-9654": 0}


SYSTEMS = [("llama-2-7b", "a6000"), ("llama-3.1-8b", "l4"), ("deepseek-v2-lite", "a100-40gb-sxm"), ("qwen3-8b", "t4")]


@pytest.mark.parametrize(("model", "chip"), SYSTEMS)
@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("budget", [0, 2048])
def test_max_batch_size_fits_and_one_more_does_not(model: str, chip: str, attention: str, budget: int) -> None:
    options: dict[str, Any] = {"attention": attention, "max_num_batched_tokens": budget, "input_len": 1000}
    most = answer(model, chip, **options)["memory"]["max_batch_size"]
    fits = [not most or bool(analyze(model, chip, batch_size=most, **options).fits)]
    fits += [bool(analyze(model, chip, batch_size=most + 1, **options).fits)]
    assert fits == [True, False]


@pytest.mark.parametrize(("model", "chip"), SYSTEMS)
@pytest.mark.parametrize("budget", [0, 2048])
def test_max_context_fits_and_one_more_does_not(model: str, chip: str, budget: int) -> None:
    options: dict[str, Any] = {"max_num_batched_tokens": budget, "output_len": 100, "batch_size": 2}
    longest = answer(model, chip, **options)["memory"]["max_context_len"]
    if not longest:
        assert not analyze(model, chip, input_len=1, **options).fits
        return
    assert analyze(model, chip, input_len=longest - 100, **options).fits
    assert not analyze(model, chip, input_len=longest - 99, **options).fits


def test_a_model_larger_than_the_memory_fits_at_no_batch_and_no_context() -> None:
    found = answer("llama-2-70b", "a6000")["memory"]
    assert (found["fits"], found["max_batch_size"], found["max_context_len"]) == (False, 0, 0)


def test_memory_parts_add_up_and_are_limited_by_utilization() -> None:
    for utilization in (0.25, 0.3, 0.9, 1.0):
        found = answer("llama-2-7b", "a6000", gpu_memory_utilization=utilization)["memory"]
        parts = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "framework_bytes")
        assert found["total_bytes"] == pytest.approx(sum(found[part] for part in parts), rel=1e-12)
        assert found["fits"] == (found["total_bytes"] <= 48 * GIB * utilization)


def test_chunks_of_a_prompt_need_less_activation_memory() -> None:
    """4 x 4096 tokens together, or at most 512 at a time: activations shrink 32-fold, the cache stays."""
    together = answer("llama-2-7b", "a100", batch_size=4, input_len=4096)["memory"]
    chunked = answer("llama-2-7b", "a100", batch_size=4, input_len=4096, max_num_batched_tokens=512)["memory"]
    assert chunked["activations_bytes"] * 32 == together["activations_bytes"]
    assert chunked["kv_cache_bytes"] == together["kv_cache_bytes"]


points = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 9000), st.integers(1, 300)), min_size=1, max_size=4)


@settings(max_examples=30)
@given(points, st.sampled_from(["llama-2-7b", "qwen3-30b-a3b", "gemma-3-4b"]), st.sampled_from(["flash", "eager"]))
@pytest.mark.parametrize("budget", [np.inf, 512.0])
def test_memory_computed_separately_equals_that_of_the_analysis(
    budget: float, sizes: list[tuple[int, int, int]], name: str, attention: str
) -> None:
    model, on = models.load(name), api.system(specs.load("h200"), api.options_of({"attention": attention}))
    batch, prompt, output = np.array(sizes, dtype=np.float64).T
    request = Request(batch_size=batch, input_len=prompt, output_len=output)
    single = memory_of(model, on, request, budget)
    within = analysis.analyze(model, on, request, budget).memory
    assert list(np.asarray(single.total_bytes)) == list(np.asarray(within.total_bytes))


def test_scores_of_the_last_decode_step_may_be_the_peak() -> None:
    """A prompt of one token, 4096 generated, eager: at the last step 32 heads x 4096 keys, scores and probabilities,
    plus the residual stream of 4096."""
    found = answer("llama-2-7b", "a6000", input_len=1, output_len=4096, attention="eager")
    assert found["memory"]["activations_bytes"] == 2 * (4096 + 2 * 32 * 4096)
