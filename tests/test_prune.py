"""Pruning: stored and skipped work, and equality of a pruned graph with the graph of a smaller model."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer import models
from llmviewer.analysis.memory import cache_bytes
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Role, check
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.hardware import specs
from llmviewer.layers.attention import Attention
from llmviewer.layers.feed_forward import DenseAndSparse, Mlp, Moe
from llmviewer.layers.mla import Mla
from llmviewer.models.model import Model
from llmviewer.techniques.compression.narrow import fewer_heads, narrower_feed_forward, nearest_size
from llmviewer.techniques.compression.prune import fewer_layers, two_of_four, unstructured
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.parallel.shard import Sharding, shard
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from tests.answers import answer, operators
from tests.representative import REPRESENTATIVE

from .answers import analyze

load = functools.cache(models.load)
A100 = specs.load("a100-80gb-sxm")
STEPS = (prefill(2.0, 33.0), decode(4.0, 100.0))
#: Weights of the matrices of the 32 layers of Llama-2-7B.
MATRICES = 32 * (4 * 4096**2 + 3 * 4096 * 11008)


def total(graph: Graph, field: str) -> Any:
    return sum(getattr(op, field) * block.repeats for block, op in graph)


def stored_bytes(graph: Graph) -> float:
    return float(sum(t.elements * t.dtype.bytes * n for t, n in graph.stored_weights()))


def halved_feed_forward(part: Any) -> Any:
    """A feed-forward part built with half the channels."""
    if isinstance(part, Mlp):
        return replace(part, intermediate=part.intermediate // 2)
    if isinstance(part, Moe):
        shared = halved_feed_forward(part.shared) if part.shared else None
        return replace(part, expert=halved_feed_forward(part.expert), shared=shared)
    if isinstance(part, DenseAndSparse):
        return replace(part, dense=halved_feed_forward(part.dense), sparse=halved_feed_forward(part.sparse))
    return part


def halved_heads(part: Any) -> Any:
    """A mixer built with half the heads."""
    if isinstance(part, Attention):
        return replace(part, heads=part.heads // 2, kv_heads=part.kv_heads // 2)
    return replace(part, heads=part.heads // 2) if isinstance(part, Mla) else part


def same_work(left: Graph, right: Graph) -> None:
    """True if all operators have the same work, bytes and shapes."""
    for (_, a), (_, b) in zip(left, right, strict=True):
        assert (a.name, a.compute, a.inputs) == (b.name, b.compute, b.inputs)
        for what in ("traffic_bytes", "matmul_flops", "vector_flops", "special_ops", "masked_flops"):
            assert np.allclose(getattr(a, what), getattr(b, what), rtol=1e-12, atol=1e-6), (a.name, what)
        assert np.allclose(np.ravel(a.output_shape[1]), np.ravel(b.output_shape[1])), a.name
        assert (a.name, stored(a)) == (b.name, stored(b))
    assert cache_bytes(left, 777.0) == pytest.approx(cache_bytes(right, 777.0), rel=1e-12)


def stored(operator: Any) -> list[tuple[str, float]]:
    weights = (a.tensor for a in operator.reads if a.tensor.role is Role.WEIGHT)
    return [(t.name, round(float(t.elements), 6)) for t in weights]


def plain_model(name: str) -> Model:
    """The model in 16 bits; formats of quantized checkpoints go by layer and are tested separately."""
    return replace(load(name), checkpoint=lambda graph: graph)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_half_the_channels_equal_a_model_of_half_the_intermediate_size(name: str) -> None:
    model = plain_model(name)
    built = replace(
        model, layers=tuple(replace(x, feed_forward=halved_feed_forward(x.feed_forward)) for x in model.layers)
    )
    for step in STEPS:
        same_work(narrower_feed_forward(0.5)(model.graph(step)), built.graph(step))


def has_one_kv_head(model: Model) -> bool:
    return any(isinstance(x.mixer, Attention) and x.mixer.kv_heads == 1 for x in model.layers)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_half_the_heads_equal_a_model_of_half_the_heads(name: str) -> None:
    model = plain_model(name)
    if has_one_kv_head(model):
        with pytest.raises(UserError, match="one KV head serves all query heads"):
            fewer_heads(0.5)(model.graph(STEPS[0]))
        return
    odd = any(isinstance(x.mixer, Attention) and x.mixer.kv_heads % 2 for x in model.layers)
    if odd:
        pytest.skip("an odd number of KV heads has no half")
    built = replace(model, layers=tuple(replace(x, mixer=halved_heads(x.mixer)) for x in model.layers))
    for step in STEPS:
        same_work(fewer_heads(0.5)(model.graph(step)), built.graph(step))


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_depth_keeps_the_requested_number_of_layers_and_approximate_proportions(name: str) -> None:
    before = load(name).graph(STEPS[1])
    after = fewer_layers(0.75)(before)
    layers = {block.name: block.repeats for block in before.blocks if block.is_layer}
    kept = {block.name: block.repeats for block in after.blocks if block.is_layer}
    assert sum(kept.values()) == nearest_size(sum(layers.values()), 0.75)
    share = sum(kept.values()) / sum(layers.values())
    assert all(abs(kept.get(block, 0) - times * share) < 1 for block, times in layers.items())


@pytest.mark.parametrize("name", REPRESENTATIVE)
@pytest.mark.parametrize(
    "make", [two_of_four(A100), unstructured(0.5), narrower_feed_forward(0.75)], ids=["2:4", "unstructured", "width"]
)
def test_every_operator_input_is_still_written_by_another(name: str, make: Any) -> None:
    for scheme in ("none", "w4a16", "w8a8"):
        low = make(quantize(parse_scheme(scheme))(load(name).graph(STEPS[1])))
        check(low)
        flash = flash_attention(A100)(low)
        check(flash)
        assert all(np.all(np.asarray(op.flops) >= 0) and np.all(op.traffic_bytes >= 0) for _, op in flash)
        if name in ("llama-2-7b", "mixtral-8x7b", "deepseek-v2-lite"):
            check(shard(Sharding(tensor=2))(flash))


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_2_of_4_stores_half_the_bits_and_one_more_bit_per_weight(name: str) -> None:
    """Every matrix of a layer: elements x bits -> elements x (bits / 2 + 1), and half its products."""
    before = load(name).graph(STEPS[1])
    after = two_of_four(A100)(before)
    for (block, a), (_, b) in zip(before, after, strict=True):
        changed = len(a.reads) != len(b.reads)
        assert not (changed and not block.is_layer)
        if changed:
            (matrix,) = (x.tensor for x in a.reads if x.tensor.name.endswith(".weight"))
            sparse = [x.tensor for x in b.reads if x.tensor.name.startswith(matrix.name.removesuffix(".weight") + ".")]
            bits = sum(t.elements * t.dtype.bits for t in sparse if not t.name.endswith(".bias"))
            assert bits == matrix.elements * (matrix.dtype.bits / 2 + 1)
            assert np.all(b.matmul_flops == a.matmul_flops / 2)


def test_2_of_4_in_16_bit_is_0_5625_and_in_int8_0_625() -> None:
    """Llama-2-7B: 6.476e9 weights of matrices; 2 bytes become 1.125, 1 byte 0.625 (NVIDIA A100 whitepaper)."""
    graph = load("llama-2-7b").graph(decode(1.0, 9.0))
    for scheme, dense, share in (("none", 2.0, 0.5625), ("w8a8", 1.0, 0.625)):
        low = quantize(parse_scheme(scheme))(graph)
        saved = stored_bytes(low) - stored_bytes(two_of_four(A100)(low))
        assert saved == MATRICES * dense * (1 - share)


def test_2_of_4_doubles_the_speed_of_a_compute_bound_product_and_no_other() -> None:
    """q_proj of Llama-2-7B over 4096 tokens on an A100: 2 x 4096^3 / 312e12 = 0.4405 ms dense; attention as before."""
    dense, sparse = (
        operators(answer("llama-2-7b", "a100", input_len=4096, prune=p), "prefill") for p in ("none", "2:4")
    )
    assert dense["q_proj"]["time_s"] == pytest.approx(2 * 4096**3 / 312e12)
    assert sparse["q_proj"]["time_s"] == pytest.approx(dense["q_proj"]["time_s"] / 2)
    assert sparse["attention"]["time_s"] == dense["attention"]["time_s"]
    assert sparse["lm_head"] == dense["lm_head"]


@pytest.mark.parametrize(
    ("chip", "name", "dense_us", "sparse_us"),
    [
        ("a100-80gb-pcie", "o_proj", 260.342, 165.417),
        ("a100-80gb-pcie", "down_proj", 1324.544, 892.088),
        ("h100-pcie", "o_proj", 103.750, 73.690),
        ("h100-pcie", "down_proj", 545.756, 367.271),
    ],
)
def test_calibrated_2_of_4_gains_what_sparse_kernels_do(
    chip: str, name: str, dense_us: float, sparse_us: float
) -> None:
    """bf16 products of Qwen2.5-7B over 2,048 rows, cuBLASLt and cuSPARSELt: https://github.com/bcacdwk/vllmbench,
    slidesparse/benchmark_kernel/cu*/alg_search_results/*/BF16/alg_search_Qwen2.5-7B-FP8*.csv."""
    request: dict[str, Any] = {"efficiency": "calibrated", "input_len": 2048, "output_len": 1}
    dense, sparse = (
        operators(answer("qwen2.5-7b", chip, prune=p, **request), "prefill")[name]["time_s"] for p in ("none", "2:4")
    )
    assert dense / sparse == pytest.approx(dense_us / sparse_us, rel=0.10)


def test_2_of_4_on_a_chip_without_sparse_units_is_rejected() -> None:
    with pytest.raises(UserError, match=r"v100-32gb-sxm publishes no sparse rate"):
        analyze("llama-2-7b", "v100", prune="2:4").to_dict()


def test_4_bit_floats_keep_their_dense_rate() -> None:
    """Sparse nvfp4 is 4/3 of dense on a GB300 and missing on an MI350X, so bytes shrink but matmul time does not."""
    chip = specs.load("b200")
    low = quantize(parse_scheme("nvfp4"))(load("llama-2-7b").graph(STEPS[0]))
    assert total(two_of_four(chip)(low), "matmul_flops") == total(low, "matmul_flops")


def test_unstructured_half_stores_9_of_16_bits_and_keeps_all_flops() -> None:
    graph = load("llama-2-7b").graph(decode(1.0, 9.0))
    sparse = unstructured(0.5)(graph)
    assert stored_bytes(graph) - stored_bytes(sparse) == MATRICES * (16 - 9) / 8
    assert total(sparse, "flops") == total(graph, "flops")


def test_a_bitmap_that_saves_nothing_is_not_stored() -> None:
    """5 % of 16 bits are 0.8 bits, less than the one bit of the bitmap."""
    graph = load("llama-2-7b").graph(decode(1.0, 9.0))
    assert stored_bytes(unstructured(0.05)(graph)) == stored_bytes(graph)
    sizes = [stored_bytes(unstructured(s)(graph)) for s in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert sizes == sorted(sizes, reverse=True)


def test_llama_2_70b_keeps_six_of_eight_kv_heads_with_their_query_heads() -> None:
    """heads=0.75: 48 query heads over 6 KV heads; the cache is 6/8 of 327,680 bytes per token."""
    graph = fewer_heads(0.75)(load("llama-2-70b").graph(decode(1.0, 9.0)))
    (shape,) = {
        (op.shape.heads, float(op.shape.kv_heads)) for _, op in graph if type(op.shape).__name__ == "AttentionShape"
    }  # type: ignore[attr-defined]
    assert shape == (48.0, 6.0)
    assert cache_bytes(graph, 1.0) == 327_680 * 6 / 8


@pytest.mark.parametrize(
    "text", ["none", "width=1", "depth=1.0", "heads=1", "unstructured=0", "width=1+heads=1", "unstructured=0+depth=1"]
)
def test_pruning_nothing_changes_nothing(text: str) -> None:
    pruned, as_it_is = (answer("qwen1.5-moe-a2.7b", "a100", prune=p, batch_size=3) for p in (text, "none"))
    for key in ("stages", "memory", "metrics", "passes"):
        assert pruned[key] == as_it_is[key]


@pytest.mark.parametrize("text", ["2:4", "unstructured=0.6", "width=0.7", "heads=0.5", "depth=0.5", "width=0.5+2:4"])
def test_a_point_of_a_sweep_is_bit_identical_to_the_single_point(text: str) -> None:
    sweep = analyze("qwen1.5-moe-a2.7b", "a100", prune=text, batch_size=[1, 7], input_len=[99, 1000])
    for at, (batch, length) in enumerate(((1, 99), (7, 1000))):
        single = analyze("qwen1.5-moe-a2.7b", "a100", prune=text, batch_size=batch, input_len=length)
        assert sweep.analysis.ttft_s[at] == single.analysis.ttft_s[0]
        assert sweep.analysis.tpot_s[at] == single.analysis.tpot_s[0]


def test_matformer_half_is_width_half() -> None:
    """Llama-2-7B: 5504 of 11008 channels; 32 x 3 x 4096 x 5504 weights of 2 bytes are removed."""
    slice_, narrow, whole = (
        answer("llama-2-7b", "a6000", **options) for options in ({"matformer": "0.5"}, {"prune": "width=0.5"}, {})
    )
    assert slice_["stages"] == narrow["stages"] and slice_["memory"] == narrow["memory"]
    gone = whole["memory"]["weights_bytes"] - slice_["memory"]["weights_bytes"]
    assert gone == 32 * 3 * 4096 * 5504 * 2
    assert answer("llama-2-7b", "a6000", matformer="1")["stages"] == whole["stages"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prune": "4:8"}, r"unknown prune '4:8'; allowed: 2:4, depth=0.5"),
        ({"prune": "width"}, r"unknown prune 'width'"),
        ({"prune": "width=1.5"}, r"prune: width is '1.5'; allowed: a number from 0.01 to 1"),
        ({"prune": "unstructured=1"}, r"prune: unstructured is '1'; allowed: a number from 0 to 0.99"),
        ({"prune": "width=0.5+"}, r"unknown prune ''"),
        ({"matformer": "2"}, r"matformer: share is '2'; allowed"),
    ],
)
def test_a_wrong_parameter_is_a_one_line_error_that_states_what_is_allowed(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        analyze("llama-2-7b", "a100", **options)
    assert "\n" not in str(caught.value)


def test_all_groups_of_a_step_are_pruned_equally() -> None:
    mixed = Step((*prefill(1.0, 40.0).groups, *decode(3.0, 70.0).groups))
    model = plain_model("llama-2-70b")
    built = replace(model, layers=tuple(replace(x, mixer=halved_heads(x.mixer)) for x in model.layers))
    same_work(fewer_heads(0.5)(model.graph(mixed)), built.graph(mixed))


def test_fewer_heads_of_latent_attention_need_no_other_matrix_rate() -> None:
    """Operators without products keep a plain zero: a chip without fp32 products runs the pruned model as the whole."""
    whole = lv.analyze("deepseek-v2-lite", "groq-lpu", efficiency="ideal", output_len=2)
    pruned = lv.analyze("deepseek-v2-lite", "groq-lpu", efficiency="ideal", output_len=2, prune="heads=0.5")
    assert pruned.metrics()["ttft_s"] < whole.metrics()["ttft_s"]
