"""Draft modules: parameters as published, FLOPs of a pass by hand, graph passes as for any model."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pytest

from llmviewer import models
from llmviewer.analysis.memory import weights_bytes
from llmviewer.analysis.system import System
from llmviewer.core import ir
from llmviewer.core.counts import total
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Role
from llmviewer.core.workload import chunk, decode, prefill
from llmviewer.formats.checkpoint import Checkpoint
from llmviewer.hardware import specs
from llmviewer.models.model import Model
from llmviewer.techniques import registry
from llmviewer.techniques.speculation.drafts import with_parts_skipped
from llmviewer.techniques.speculation.features import eagle3_module, eagle_module, mtp_module
from llmviewer.techniques.speculation.heads import Embeddings, block_heads, medusa_heads, speculator_stages
from llmviewer.techniques.speculation.module import TABLES, VOCABULARY

#: name -> draft module of a model.
MODULES: dict[str, Callable[[Model], Model]] = {
    "medusa": lambda target: medusa_heads(target, 4),
    "blockwise": lambda target: block_heads(target, 4, 512),
    "speculator": lambda target: speculator_stages(target, 3, 1024),
    "speculator, tied": lambda target: speculator_stages(target, 3, 1024, Embeddings.SHARED),
    "eagle": eagle_module,
    "eagle3": eagle3_module,
    "eagle3, later passes": lambda target: eagle3_module(target, features=0),
    "mtp": mtp_module,
    "self": lambda target: with_parts_skipped(target, 0.3, 0.5),
}
TECHNIQUES = (
    {"attention": "flash", "quantization": "w4a16", "tensor_parallel_size": "2", "fusion": "all"},
    {"attention": "flash", "quantization": "w8a8-fp8", "tensor_parallel_size": "2", "sequence_parallel": "on"},
)


def prepared(model: Model, batch: float, cached: float, **requested: str) -> Graph:
    """A decode step after the requested techniques."""
    system = System(chip=specs.load("h100-sxm"))
    for change in registry.changes({"attention": "eager", **requested}):
        system = change(system)
    graph = system.prepared(model.graph(decode(batch, cached)))
    ir.check(graph)
    return graph


def own_parameters(model: Model, shared: Collection[str] = VOCABULARY) -> float:
    """Parameters that a module stores itself: all except those named in `shared`."""
    stored = model.graph(decode(1.0, 0.0)).stored_weights()
    return float(sum(tensor.elements * times for tensor, times in stored if tensor.name not in shared))


def matmul_flops(graph: Graph) -> float:
    return float(total(operator.matmul_flops * block.repeats for block, operator in graph))


@pytest.mark.parametrize(
    ("name", "published"),
    [("llama-2-7b", 0.24), ("llama-2-13b", 0.37), ("llama-2-70b", 0.99), ("llama-3-8b", 0.25), ("qwen2-7b", 0.26)],
)
def test_eagle_heads_have_the_published_parameters(name: str, published: float) -> None:
    """https://github.com/SafeAILab/EAGLE: "# EAGLE Parameters", in billions; the table and the head are the model's."""
    assert own_parameters(eagle_module(models.load(name))) / 1e9 == pytest.approx(published, abs=0.005)


def test_an_eagle_head_by_hand() -> None:
    """Llama-2-7b, h 4,096, f 11,008: fc 2 h h + h; attention 4 h h; feed-forward 3 h f; one norm of h."""
    h, f = 4096, 11008
    assert own_parameters(eagle_module(models.load("llama-2-7b"))) == 2 * h * h + h + 4 * h * h + 3 * h * f + h


def test_an_eagle3_head_by_hand() -> None:
    """Llama-3-8b: fc 3 h h; q 2 h x 4,096, k and v 2 h x 1,024, o 4,096 x h; feed-forward 3 h f; norms of the token's
    row, the feature, the feed-forward part and the end; a head of 32,000 rows."""
    h, f = 4096, 14336
    attention = 2 * h * 4096 + 2 * (2 * h * 1024) + 4096 * h
    by_hand = 3 * h * h + attention + 3 * h * f + 4 * h + 32000 * h
    assert own_parameters(eagle3_module(models.load("llama-3-8b")), TABLES) == by_hand
    later = own_parameters(eagle3_module(models.load("llama-3-8b"), features=0), TABLES)
    assert by_hand - later == 3 * h * h


def test_moe_models_are_drafted_by_a_dense_layer() -> None:
    """Qwen3-235B-A22B: 24,576, six times its 4,096 (SpecForge); DeepSeek-V3: the width of its own dense layers."""
    wide = {op.name: op.shape for _, op in eagle3_module(models.load("qwen3-235b-a22b")).graph(decode(1.0, 1.0))}
    assert wide["gate_proj"].n == 24576  # type: ignore[attr-defined]
    own = {op.name: op.shape for _, op in eagle3_module(models.load("deepseek-v3")).graph(decode(1.0, 1.0))}
    assert own["gate_proj"].n == 18432  # type: ignore[attr-defined]
    assert own["q_proj"].n == 56 * 128  # type: ignore[attr-defined]
    assert not any(name.startswith("expert_") for name in (*wide, *own))


def test_medusa_heads_by_hand() -> None:
    """Vicuna-7b's shapes (Llama-2-7b): a head is h h + h and V h; a token takes 2 FLOP per matrix element."""
    h, v = 4096, 32000
    heads = medusa_heads(models.load("llama-2-7b"), 5)
    assert own_parameters(heads, ()) == 5 * (h * h + h + v * h)
    assert matmul_flops(heads.graph(decode(3.0, 100.0))) == 3 * 5 * 2 * (h * h + v * h)
    two_blocks = medusa_heads(models.load("llama-2-7b"), 5, layers=2)
    assert own_parameters(two_blocks, ()) == 5 * (2 * (h * h + h) + v * h)


def test_a_block_of_draft_heads_by_hand() -> None:
    """k = 4 outputs of Llama-2-7b, f = 11,008 each: 4 f (h + 1) + 4 h (4 f + 1), and three rows of the model's head."""
    h, f, v, k = 4096, 11008, 32000, 4
    heads = block_heads(models.load("llama-2-7b"), k, f)
    assert own_parameters(heads) == k * f * (h + 1) + k * h * (k * f + 1)
    assert matmul_flops(heads.graph(decode(1.0, 9.0))) == 2 * (h * k * f + k * f * k * h) + 2 * (k - 1) * v * h


def test_the_speculator_of_llama_2_13b_is_as_large_as_its_checkpoint() -> None:
    """Three heads of 4,096: 1.68 GB of 16-bit weights,
    https://huggingface.co/ibm-fms/llama-13b-accelerator/tree/0f37d3d1bc0e665204992ef63f46312494e80963"""
    h, d, v = 5120, 4096, 32000
    by_hand = 3 * (2 * v * d + 2 * d) + h * d + 2 * d * d
    built = speculator_stages(models.load("llama-2-13b"), 3, d)
    assert own_parameters(built, ()) == by_hand
    assert round(by_hand * 2 / 1e9, 2) == 1.68
    assert matmul_flops(built.graph(decode(1.0, 50.0))) == 2 * (h * d + 2 * d * d + 3 * v * d)


def test_tied_stages_are_stored_once_and_computed_every_time() -> None:
    target, d, v = models.load("llama-3-8b"), 3072, 128256
    own, tied = (speculator_stages(target, 4, d, way) for way in Embeddings)
    assert own_parameters(tied, ()) == 2 * v * d + 2 * d + 4096 * d + d * d
    assert matmul_flops(own.graph(decode(2.0, 7.0))) == matmul_flops(tied.graph(decode(2.0, 7.0)))


def test_the_mtp_module_of_deepseek_v3_has_the_published_parameters() -> None:
    """README_WEIGHTS.md: 11.5e9 parameters of its own, 2.4e9 active with the shared 0.9e9 of table and head each;
    both without eh_proj's 2 x 7,168 x 7,168."""
    module = mtp_module(models.load("deepseek-v3"))
    eh_proj = 2 * 7168 * 7168
    assert (own_parameters(module) - eh_proj) / 1e9 == pytest.approx(11.5, abs=0.05)
    assert (module.active_parameters - eh_proj) / 1e9 == pytest.approx(2.4, abs=0.05)


def test_the_mtp_module_of_mimo_v2_flash_has_the_published_size() -> None:
    """0.33e9 parameters per module, dense, a window of 128 tokens plus its own: arXiv 2601.02780."""
    module = mtp_module(models.load("mimo-v2-flash"))
    assert own_parameters(module) / 1e9 == pytest.approx(0.33, abs=0.005)
    assert {state.window for block in module.graph(decode(1.0, 1.0)).blocks for state in block.states} == {128.0 + 1.0}


def test_a_module_is_stored_in_the_formats_of_the_models_last_layer() -> None:
    """DeepSeek-V3's experts are fp8 there too, eh_proj, table and head are not."""
    weights = {
        tensor.name: tensor.dtype.bits
        for tensor, _ in mtp_module(models.load("deepseek-v3")).graph(decode(1.0, 0.0)).stored_weights()
    }
    assert round(weights["expert_gate_proj.weight"]) == 8
    assert weights["eh_proj.weight"] == weights["lm_head.weight"] == 16


@pytest.mark.parametrize("name", ["llama-2-7b", "falcon-7b", "deepseek-v3", "qwen3-next-80b-a3b"])
def test_skipping_no_layers_is_the_model_and_skipping_half_is_half_its_layers(name: str) -> None:
    target, step = models.load(name), decode(2.0, 100.0)
    whole = target.graph(step)
    assert matmul_flops(with_parts_skipped(target, 0.0, 0.0).graph(step)) == matmul_flops(whole)
    assert weights_bytes(with_parts_skipped(target, 0.0, 0.0).graph(step)) == weights_bytes(whole)
    layers = [block for block in whole.blocks if block.is_layer]
    times = {
        block.name: block.repeats for block in with_parts_skipped(target, 0.5, 0.5).graph(step).blocks if block.is_layer
    }
    assert sum(times.values()) == sum(block.repeats - round(block.repeats * 0.5) for block in layers)


def test_attention_and_feed_forward_parts_are_skipped_independently() -> None:
    """Llama-2-13b without 24 of its 40 attentions and 10 of its feed-forward parts: 16 whole layers and 14 without
    attention."""
    target, step = models.load("llama-2-13b"), decode(1.0, 0.0)
    blocks = {
        block.name: block.repeats
        for block in with_parts_skipped(target, 0.6, 0.25).graph(step).blocks
        if block.is_layer
    }
    assert blocks == {"layer": 16, "layer_mlp": 14}
    h, f, v = 5120, 13824, 32000
    attention = 16 * (4 * h * h + 2 * h)  # scores and values of one pair, 2 h FLOP each
    assert matmul_flops(with_parts_skipped(target, 0.6, 0.25).graph(step)) == 2 * (attention + 30 * 3 * h * f + v * h)


@pytest.mark.parametrize("requested", TECHNIQUES, ids=["w4a16", "w8a8"])
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "gpt-oss-20b", "qwen3-next-80b-a3b", "opt-6.7b"])
def test_graph_passes_apply_to_draft_modules(name: str, kind: str, requested: dict[str, str]) -> None:
    system = System(chip=specs.load("h100-sxm"))
    for change in registry.changes(requested):
        system = change(system)
    module = MODULES[kind](models.load(name))
    for step in (decode(4.0, 100.0), prefill(2.0, 64.0)):
        graph = system.prepared(module.graph(step))
        ir.check(graph)
        assert len({block.name for block in graph.blocks}) == len(graph.blocks)
        for block in graph.blocks:
            assert len({operator.name for operator in block.operators}) == len(block.operators)


@pytest.mark.parametrize("kind", MODULES)
def test_two_devices_compute_and_store_what_one_does_plus_replicated_parts(kind: str) -> None:
    """Replicated: fc, eh_proj, residual blocks, projections of the state, norms."""
    module = MODULES[kind](models.load("llama-2-7b"))
    one, two = prepared(module, 4.0, 99.0), prepared(module, 4.0, 99.0, tensor_parallel_size="2")
    whole = {"fc", "eh_proj", "resblock_proj", "state_proj", "state_proj_first"}

    def shared(graph: Graph) -> float:
        return float(total(op.matmul_flops * block.repeats for block, op in graph if op.name not in whole))

    assert 2.0 * shared(two) == pytest.approx(shared(one), rel=1e-12)
    assert matmul_flops(one) - shared(one) == matmul_flops(two) - shared(two)
    assert weights_bytes(one) / 2 <= weights_bytes(two) < weights_bytes(one)


@pytest.mark.parametrize("kind", MODULES)
def test_a_single_point_equals_the_point_of_a_sweep(kind: str) -> None:
    module = MODULES[kind](models.load("llama-3-8b"))
    batches, cached = np.array([1.0, 8.0, 64.0]), np.array([10.0, 100.0, 1000.0])
    swept = total(op.traffic_bytes * block.repeats for block, op in module.graph(decode(batches, cached)))
    for at in range(3):
        single = module.graph(decode(batches[at], cached[at]))
        assert np.asarray(swept)[at] == total(op.traffic_bytes * block.repeats for block, op in single)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_draft_layers_have_a_cache_and_draft_heads_have_none(kind: str) -> None:
    target = models.load("llama-3-8b")
    states = [state for block in MODULES[kind](target).graph(decode(1.0, 0.0)).blocks for state in block.states]
    assert sum(state.per_token for state in states) == 2 * 1024
    heads = MODULES["medusa"](target).graph(decode(1.0, 0.0))
    assert not [state for block in heads.blocks for state in block.states]


def test_only_mtp_modules_are_quantized_in_a_quantized_checkpoint() -> None:
    target = models.load("deepseek-v3")
    assert isinstance(target.checkpoint, Checkpoint)
    low = [t.name for t, _ in eagle_module(target).graph(decode(1.0, 0.0)).stored_weights() if t.dtype.bits < 16]
    assert not low and all(
        t.role is Role.WEIGHT for t, _ in eagle_module(target).graph(decode(1.0, 0.0)).stored_weights()
    )


@pytest.mark.parametrize("kind", MODULES)
def test_a_chunk_without_logits_has_valid_counts(kind: str) -> None:
    step = chunk(np.array([1.0, 2.0]), np.array([64.0, 1.0]), np.array([0.0, 64.0]))
    for _, operator in MODULES[kind](models.load("llama-3-8b")).graph(step):
        assert all(np.isfinite(dimension).all() for dimension in map(np.asarray, operator.output_shape))


def test_indivisible_draft_heads_are_rejected_like_the_models_heads() -> None:
    with pytest.raises(UserError, match="not 71"):
        prepared(eagle_module(models.load("falcon-7b")), 1.0, 1.0, tensor_parallel_size="2")
