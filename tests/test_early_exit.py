"""Early exit and skipped layers: depth of a batch, cost of the checks, and the cache of skipped layers."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmviewer import models
from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core.errors import UserError
from llmviewer.core.ir import WORK_FIELDS, Block, Graph, Operator, Pass, Role, check
from llmviewer.core.workload import Step, chunk, decode, mixed, prefill, verify
from llmviewer.hardware import specs
from llmviewer.techniques.compression.prune import fewer_layers
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.parallel.shard import Sharding, shard
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from llmviewer.techniques.sparsity.early_exit import EarlyExit, Fill, early_exit, parse, skip_layers
from llmviewer.techniques.sparsity.exits import Confidence, Exits, StepTokens, exit_checks
from tests.representative import REPRESENTATIVE

from .answers import analyze

load = functools.cache(models.load)
LAYER_7B = 4 * 4096**2 + 3 * 4096 * 11008  # weights of the matrices of one of Llama-2-7B's 32 layers
HEAD_7B = 32000 * 4096


def graph(name: str, step: Step, text: str, *between: Pass) -> Graph:
    """The graph after the checks, other passes, and the exits."""
    plan = parse(text)
    built = exit_checks(plan.exits, plan.confidence, jump=plan.jump)(load(name).graph(step))
    for change in between:
        built = change(built)
    return early_exit(plan)(built)


def layers(graph: Graph) -> list[Block]:
    return [block for block in graph.blocks if block.is_layer]


def weights_read(graph: Graph, block: str = "") -> Any:
    return sum(
        op.read_bytes(Role.WEIGHT) * b.repeats for b, op in graph if b.name == block or (not block and b.is_layer)
    )


def operator(graph: Graph, block: str, name: str) -> Operator:
    return next(op for b, op in graph if b.name == block and op.name == name)


def decoded(**options: Any) -> float:
    return float(analyze("llama-2-7b", "a6000", input_len=64, output_len=2, **options).analysis.tpot_s[0])


# --- depth ------------------------------------------------------------------------------------------------------------


def test_two_exits_read_8_layers_always_and_24_with_their_probability() -> None:
    """70 % exit Llama-2-7B after 8 of 32 layers: 8 + 0.3 x 24 = 15.2 layers.  With 4 sequences, one continues with
    1 - 0.7^4 = 0.7599: 8 + 0.7599 x 24 = 26.24 layers."""
    norms = 2 * 4096
    for batch, depth in ((1.0, 15.2), (4.0, 8 + (1 - 0.7**4) * 24)):
        read = weights_read(graph("llama-2-7b", decode(batch, 100.0), "two-exit=8:0.7,kv=none"))
        assert read == pytest.approx(depth * (LAYER_7B + norms) * 2)


def test_depths_of_several_exits_add_up() -> None:
    """30 % exit after 8, 40 % after 16: 8 + 0.7 x 8 + 0.3 x 16 = 18.4 layers."""
    reach = parse("exits=16:0.4/8:0.3").exits.reach(32)
    assert sum(reach) == pytest.approx(18.4)
    assert reach[7] == 1.0 and reach[8] == pytest.approx(0.7) and reach[16] == pytest.approx(0.3)


@pytest.mark.parametrize("mean", [0.05, 0.3, 0.6, 0.95])
def test_a_mean_is_a_geometric_depth_with_that_mean(mean: float) -> None:
    """Each layer ends the same share of remaining sequences: reach l+1 / reach l is constant, the first always runs."""
    reach = np.array(Exits(mean=mean).reach(40))
    assert reach.mean() == pytest.approx(mean) and reach[0] == 1.0
    assert np.allclose(reach[1:] / reach[:-1], reach[1])


def test_a_batch_goes_as_deep_as_its_deepest_sequence() -> None:
    """One token continues with probability 0.3, one of 2 with 0.51, one of 8 with 0.942."""
    requested = StepTokens(tokens=np.array([1.0, 2.0, 8.0]), logits=np.array([1.0, 2.0, 8.0]))
    assert requested.deepest(0.3) == pytest.approx([0.3, 0.51, 1 - 0.7**8])


def test_only_steps_with_logits_for_every_token_exit_early() -> None:
    """Decode and verification do; a prefill, a chunk, and a batch with a chunk in it run all layers."""
    text = "two-exit=8:0.7,kv=none"
    for step, tokens in ((decode(2.0, 9.0), 2), (verify(1.0, 9.0, 3.0), 4)):
        assert weights_read(graph("llama-2-7b", step, text)) == pytest.approx(
            (8 + (1 - 0.7**tokens) * 24) * (LAYER_7B + 8192) * 2
        )
    for step in (prefill(1.0, 9.0), chunk(1.0, 9.0, 9.0), mixed(chunk(1.0, 64.0, 0.0), decode(7.0, 9.0))):
        exits, plain = graph("llama-2-7b", step, text), load("llama-2-7b").graph(step)
        assert weights_read(exits) == weights_read(plain)
        assert sum(op.flops * b.repeats for b, op in exits) == sum(op.flops * b.repeats for b, op in plain)


def test_exits_count_layers_by_their_index() -> None:
    """Gemma 2 alternates windowed and full layers: an exit after 1 of its 26 layers runs one windowed layer."""
    found = graph("gemma-2-2b", decode(1.0, 100.0), "two-exit=1:1.0,kv=none")
    plain = load("gemma-2-2b").graph(decode(1.0, 100.0))
    ratios = [sum(op.flops for op in a.operators) / sum(op.flops for op in b.operators)
              for a, b in zip(layers(found), layers(plain), strict=True)]  # fmt: skip
    assert ratios == pytest.approx([1 / 13, 0.0])


def test_exits_of_a_depth_pruned_model_count_the_remaining_layers() -> None:
    """Half of Gemma 2's 26 layers: 13 remain, and an exit after 1 runs 1."""
    pruned = graph("llama-2-7b", decode(1.0, 9.0), "mean=0.5", fewer_layers(0.5))
    assert [(block.name, block.repeats) for block in pruned.blocks][1::2] == [("layer", 16), ("exit_check", 15)]
    blocks = [
        replace(block, repeats=times) for block, times in zip(layers(load("gemma-2-2b")._graph()), (7, 6), strict=True)
    ]
    numbers = layer_numbers(blocks)
    assert [len(n) for n in numbers] == [7, 6] and sorted(numbers[0] + numbers[1]) == list(range(13))


# --- checks -----------------------------------------------------------------------------------------------------------


def test_a_classifier_is_two_products_of_the_hidden_state() -> None:
    """4096 x 2 weights for each of the first 31 layers: 2 x 4096 x 2 FLOP, and a softmax of two."""
    built = exit_checks(Exits(mean=0.6), Confidence.CLASSIFIER, jump=False)(load("llama-2-7b").graph(decode(3.0, 9.0)))
    block = built.blocks[-1]
    assert (block.name, block.repeats) == ("exit_check", 31)
    assert operator(built, "exit_check", "exit_classifier").matmul_flops == 3 * 2 * 4096 * 2
    stored = [sum(t.elements * times for t, times in g.stored_weights()) for g in (load("llama-2-7b")._graph(), built)]
    assert stored[1] - stored[0] == 31 * 4096 * 2


def test_softmax_confidence_runs_the_head_for_every_checked_layer_and_stores_nothing() -> None:
    """One token that never exits: 1 check reads 32000 x 4096 weights and the final norm's 4096."""
    found = graph("llama-2-7b", decode(1.0, 9.0), "two-exit=8:0.5,confidence=softmax")
    assert weights_read(found, "exit_check") == 2 * (HEAD_7B + 4096)
    assert operator(found, "exit_check", "exit_confidence").vector_flops == 5 * 32000
    stored = [sum(t.elements * n for t, n in g.stored_weights()) for g in (load("llama-2-7b")._graph(), found)]
    assert stored[0] == stored[1]


def test_tokens_that_exit_have_the_logits_of_their_last_check() -> None:
    """70 % exit by the softmax after layer 8: the check runs the head for all, the end of the pass for 30 % again."""
    found = graph("llama-2-7b", decode(1.0, 9.0), "two-exit=8:0.7,confidence=softmax")
    assert weights_read(found, "head") == pytest.approx(0.3 * 2 * (HEAD_7B + 4096))
    assert weights_read(found, "exit_check") == 2 * (HEAD_7B + 4096)
    jumping = graph("llama-2-7b", decode(1.0, 9.0), "two-exit=8:0.7,confidence=softmax,jump")
    assert weights_read(jumping, "head") == 2 * (HEAD_7B + 4096)  # of the state that the jump changed


def test_a_tied_head_is_stored_once_too() -> None:
    found = graph("llama-3.2-1b", decode(1.0, 9.0), "mean=0.5,confidence=softmax")
    assert sum(t.elements * n for t, n in found.stored_weights()) == load("llama-3.2-1b").parameters


def test_similarity_is_three_inner_products() -> None:
    found = graph("llama-2-7b", decode(1.0, 9.0), "two-exit=8:0.5,confidence=similarity")
    assert operator(found, "exit_check", "exit_confidence").vector_flops == 6 * 4096


def test_checks_run_only_in_layers_that_the_batch_reaches() -> None:
    """Exits after 8 (0.6) and 16: the first check always runs, the second for 40 %: each runs 0.7 times on average."""
    found = graph("llama-2-7b", decode(1.0, 9.0), "exits=8:0.6/16:0.2")
    assert operator(found, "exit_check", "exit_classifier").matmul_flops == pytest.approx(0.7 * 2 * 4096 * 2)


def test_prefill_has_no_confidence_checks() -> None:
    found = graph("llama-2-7b", prefill(1.0, 9.0), "mean=0.5,confidence=softmax,jump")
    for block in found.blocks[-2:]:
        assert sum(op.flops for op in block.operators) == sum(op.traffic_bytes for op in block.operators) == 0


def test_running_the_head_after_every_layer_costs_more_than_exits_save() -> None:
    """The survey, section 4.1.1: the confidence of every layer diminishes the benefit.  Llama-2-7B: lm_head has 0.65 of
    a layer's weights, so 0.6 x 32 layers with as many checks are 0.6 x 32 x 1.65 = 31.6 layers, and keys and values of
    the others 0.4 x 32 x 0.166 = 2.1, for 32.65 without exits; a classifier is nearly free, and two exits need only one
    check."""
    plain, every = decoded(), decoded(early_exit="mean=0.6,confidence=softmax")
    assert plain < every < 1.05 * plain
    assert decoded(early_exit="mean=0.6,confidence=classifier") < 0.7 * plain
    assert decoded(early_exit="two-exit=8:0.53,confidence=softmax") < 0.7 * plain  # 0.6 of the layers as well


def test_exiting_tokens_run_one_of_the_stored_jump_matrices() -> None:
    """70 % exit after 8: 0.7 x 4096 x 4096 weights; two exits store two matrices and run one."""
    one = graph("llama-2-7b", decode(1.0, 9.0), "two-exit=8:0.7,jump")
    two = graph("llama-2-7b", decode(1.0, 9.0), "exits=8:0.3/16:0.4,jump")
    for found in (one, two):
        assert weights_read(found, "exit_jump") == pytest.approx(0.7 * 4096**2 * 2)
    stored = [next(t.elements * n for t, n in g.stored_weights() if t.name == "exit_jump.weight") for g in (one, two)]
    assert stored == [4096**2, 2 * 4096**2]


# --- the cache of skipped layers --------------------------------------------------------------------------------------


def test_propagation_still_makes_keys_and_values_in_skipped_layers() -> None:
    """k_proj and v_proj run in all 32 layers: (1 - 15.2 / 32) x 32 x 2 x 4096^2 weights more than without."""
    filled, empty = (graph("llama-2-7b", decode(1.0, 100.0), f"two-exit=8:0.7,kv={kv}") for kv in ("propagate", "none"))
    assert weights_read(filled) - weights_read(empty) == pytest.approx((32 - 15.2) * (2 * 4096**2 + 4096) * 2)
    for name in ("k_proj", "v_proj"):
        assert operator(filled, "layer", name).flops == 2 * 4096**2
    assert operator(filled, "layer", "q_proj").flops == pytest.approx(15.2 / 32 * 2 * 4096**2)
    written = [sum(op.write_bytes(Role.CACHE) for op in layers(g)[0].operators) for g in (filled, empty)]
    assert written[0] == 2 * 4096 * 2 and written[1] == pytest.approx(15.2 / 32 * written[0])


def test_of_a_fused_matrix_propagation_runs_the_columns_of_keys_and_values() -> None:
    """Phi-3-mini: q, k and v of 3072 each, so 2/3 of qkv_proj always and 1/3 for 16 layers of 32."""
    found = graph("phi-3-mini", decode(1.0, 9.0), "two-exit=16:1.0")
    assert operator(found, "layer", "qkv_proj").flops == pytest.approx((2 / 3 + 1 / 3 * 0.5) * 2 * 3072 * 9216)


def test_recomputation_defers_flops_and_saves_reads() -> None:
    plain = load("llama-2-7b").graph(decode(1.0, 100.0))
    found = graph("llama-2-7b", decode(1.0, 100.0), "two-exit=8:0.7,kv=recompute")
    for before, after in zip(layers(plain)[0].operators, layers(found)[0].operators, strict=True):
        assert after.flops == before.flops
        for role in (Role.WEIGHT, Role.CACHE):
            assert after.read_bytes(role) == pytest.approx(15.2 / 32 * before.read_bytes(role))


def test_recurrent_layers_cannot_skip_a_token() -> None:
    with pytest.raises(UserError, match="kv=recompute"):
        graph("mamba-2.8b", decode(1.0, 9.0), "mean=0.5")
    check(graph("mamba-2.8b", decode(1.0, 9.0), "mean=0.5,kv=recompute"))


# --- relations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["mean=1", "exits=8:0", "two-exit=8:0.0,jump"])
def test_zero_exit_probability_changes_nothing(text: str) -> None:
    plain = analyze("llama-2-7b", "a6000", output_len=4).to_dict()
    assert analyze("llama-2-7b", "a6000", output_len=4, early_exit=text).to_dict() == plain
    assert analyze("llama-2-7b", "a6000", output_len=4, skip_layers="0.0").to_dict() == plain


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_every_layer_of_a_model_has_an_index(name: str) -> None:
    found = layers(load(name).graph(decode(1.0, 9.0)))
    numbers = sorted(n for block in found for n in (block.numbers or range(block.repeats)))
    assert numbers == list(range(sum(block.repeats for block in found)))


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_work_falls_with_the_exit_probability_and_is_never_negative(name: str) -> None:
    """Half exit after half of the layers, with recomputation; the footprint stays, later passes accept the graph."""
    step = decode(2.0, 300.0)
    plain = load(name).graph(step)
    total = sum(block.repeats for block in layers(plain))
    last = None
    for chance in (0.0, 0.5, 1.0):
        found = graph(name, step, f"exits={total // 2}:{chance},kv=recompute")
        check(found)
        read = weights_read(found)
        assert read > 0 and (last is None or read < last)
        last = read
    assert all(np.all(getattr(op, field) >= 0) for _, op in found for field in WORK_FIELDS)
    stored = [
        sum(t.elements * n for t, n in g.stored_weights() if not t.name.startswith("exit")) for g in (plain, found)
    ]
    assert stored[0] == stored[1]


@pytest.mark.parametrize("name", REPRESENTATIVE)
@pytest.mark.parametrize("confidence", ["classifier", "softmax"])
def test_later_passes_accept_the_graph_with_checks(name: str, confidence: str) -> None:
    """Quantized (except the checks), flash, split over two devices: every operator input was written by another."""
    for scheme, step in (("w4a16", decode(2.0, 100.0)), ("w8a8", prefill(1.0, 9.0))):
        passes = [quantize(parse_scheme(scheme)), flash_attention(specs.load("h100-sxm"))]
        text = f"mean=0.5,jump,kv=recompute,confidence={confidence}"
        check(graph(name, step, text, *passes))
        try:
            halves = shard(Sharding(tensor=2))(load(name).graph(step))
        except UserError:
            continue  # heads do not divide
        assert halves
        check(graph(name, step, text, *passes, shard(Sharding(tensor=2))))


def test_collectives_of_a_skipped_layer_are_skipped() -> None:
    found = graph("llama-2-7b", decode(1.0, 9.0), "two-exit=8:1.0,kv=none", shard(Sharding(tensor=2)))
    full = shard(Sharding(tensor=2))(load("llama-2-7b").graph(decode(1.0, 9.0)))
    name = "attn_all_reduce"
    assert operator(found, "layer", name).traffic_bytes == 0.25 * operator(full, "layer", name).traffic_bytes


@pytest.mark.parametrize("confidence", ["classifier", "softmax"])
@pytest.mark.parametrize(
    "other", [{"fusion": "all"}, {"sequence_parallel": "on"}, {"fusion": "all", "quantization": "w8a8"}], ids=str
)
def test_two_exits_after_half_of_the_layers_halve_the_time_of_the_layers(other: Any, confidence: str) -> None:
    """With any other technique, all tokens exit Llama-2-7B after 16 layers in decode, and none in prefill."""
    options = {"output_len": 2, "tensor_parallel_size": 2, "batch_size": 2, **other}
    plain = analyze("llama-2-7b", "a100-80gb-sxm", **options)
    early = analyze(
        "llama-2-7b", "a100-80gb-sxm", early_exit=f"two-exit=16:1,kv=none,confidence={confidence}", **options
    )
    assert early.analysis.ttft_s == plain.analysis.ttft_s
    before, after = (
        sum(row["time_s"] * row["layers"] for row in r.stage("decode")["operators"] if row["block"] == "layer")
        for r in (plain, early)
    )
    assert after == pytest.approx(before / 2)


def test_a_point_of_a_sweep_is_bit_identical_to_the_single_point() -> None:
    options: dict[str, Any] = {"output_len": 4, "early_exit": "mean=0.6,confidence=softmax,jump"}
    batches = [1, 3, 64]
    sweep = analyze("llama-2-7b", "a6000", batch_size=batches, **options)
    for at, batch in enumerate(batches):
        single = analyze("llama-2-7b", "a6000", batch_size=batch, **options)
        assert sweep.metrics(at) == single.metrics() and sweep.stage("decode", at) == single.stage("decode")


def test_prefill_and_memory_equal_those_of_the_full_model() -> None:
    plain = analyze("llama-2-7b", "a6000", output_len=4)
    early = analyze("llama-2-7b", "a6000", output_len=4, early_exit="two-exit=8:0.7,confidence=softmax")
    assert early.analysis.ttft_s == plain.analysis.ttft_s and early.analysis.tpot_s < plain.analysis.tpot_s
    assert early.memory["total_bytes"] == plain.memory["total_bytes"]


def test_skipping_a_quarter_of_the_layers_skips_a_quarter_of_their_time() -> None:
    """The survey, section 4.1: the time falls in proportion in prefill and decode; embedding and head stay.

    Kernels of layers that run are as long as ever, so that measured times fall like those of the roofline.
    """
    for stage, efficiency in itertools.product(("prefill", "decode"), ("ideal", "calibrated")):
        plain, skipped = (
            analyze("llama-2-7b", "a6000", output_len=2, skip_layers=text, efficiency=efficiency).stage(stage)
            for text in ("0", "0.25")
        )
        for before, after in zip(plain["operators"], skipped["operators"], strict=True):
            share = 0.75 if before["block"] == "layer" else 1.0
            assert after["time_s"] == pytest.approx(share * before["time_s"])
            assert after["traffic_bytes"] == pytest.approx(share * before["traffic_bytes"])
    shares = [weights_read(skip_layers(s)(load("mixtral-8x7b").graph(decode(1.0, 9.0)))) for s in (0.0, 0.5, 0.9)]
    assert shares == sorted(shares, reverse=True)


def test_each_replica_exits_by_its_own_batch() -> None:
    two = decoded(early_exit="mean=0.6", data_parallel_size=2, batch_size=2)
    assert two == decoded(early_exit="mean=0.6", batch_size=1)


# --- option texts -----------------------------------------------------------------------------------------------------


def test_option_texts_are_parsed() -> None:
    plan = parse("mean=0.6, confidence=softmax, kv=none, jump")
    assert plan == EarlyExit(exits=Exits(mean=0.6), confidence=Confidence.SOFTMAX, fill=Fill.NONE, jump=True)
    assert parse("mean=0.9..0.4,tau=2").exits == Exits(mean=0.9, end=0.4, tau=2.0)
    assert parse("mean=0.6,kv=recompute,deficient=8").deficient == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("confidence=softmax", "no exits are given"),
        ("mean=2", "mean is '2'; allowed"),
        ("mean=0.5,exits=8:0.1", "exclude each other"),
        ("exits=8", "not an exit"),
        ("exits=8:0.7/16:0.7", "up to 1"),
        ("exits=8:0.1/8:0.1", "different layers"),
        ("two-exit=8:0.1/9:0.1", "one layer"),
        ("mean=0.5,confidence=softmx", "softmax"),
        ("mean=0.5,jump=1", "jump"),
        ("mean", "mean=..."),
        ("maen=0.5", "mean"),
        ("exits=32:0.5", "1 to 31"),
        ("mean=0.01", "less than one layer"),
        ("mean=0.9..0.01", "less than one layer"),
        ("mean=0.9..2", "mean is '2'; allowed"),
        ("mean=0.9,tau=2", "0.9..0.4"),
        ("mean=0.9..0.4,tau=-1", "tau is '-1'; allowed"),
        ("mean=0.9,deficient=4", "kv=recompute"),
        ("mean=0.9,kv=recompute,deficient=0", "deficient is '0'; allowed"),
        ("mean=0.9,kv=pipeline", "pipeline_parallel_size"),
    ],
)
def test_a_wrong_text_is_an_error_that_states_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        analyze("llama-2-7b", "a6000", early_exit=text)


def test_a_kernel_that_runs_only_at_some_points_has_outputs_there() -> None:
    """A fused kernel's counts are zero at points where it does not run."""
    swept = analyze("llama-3.1-8b", "h200", batch_size=[1, 64], output_len=2, fusion="all", early_exit="mean=0.6")
    single = analyze("llama-3.1-8b", "h200", batch_size=64, output_len=2, fusion="all", early_exit="mean=0.6")
    assert swept.analysis.tpot_s[1] == single.analysis.tpot_s[0]


def test_keys_and_values_of_exited_tokens_are_offloaded_too() -> None:
    """They are transferred like all others; only the copy that attention would read is saved."""
    found = [
        analyze("llama-2-7b", "a6000", output_len=2, offload="kv=1", early_exit=text).stage("decode")
        for text in ("none", "mean=0.5")
    ]
    taken = [
        sum(row["time_s"] * row["layers"] for row in stage["operators"] if row["name"] == "store_kv") for stage in found
    ]
    assert taken[0] == pytest.approx(taken[1])
