"""Methods of early exit: policy networks, depths that fall over an answer, limited recomputation, encoders."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer import models
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Role
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.techniques.sparsity.early_exit import early_exit, parse
from llmviewer.techniques.sparsity.exits import Exits, exit_checks, forced

from .answers import analyze

load = functools.cache(models.load)


def graph(name: str, step: Step, text: str) -> Graph:
    plan = parse(text)
    return early_exit(plan)(exit_checks(plan.exits, plan.confidence, jump=plan.jump)(load(name).graph(step)))


def layers_read(name: str, step: Step, text: str) -> float:
    """Number of layers whose weights a step reads."""

    def read(built: Graph) -> Any:
        return sum(op.read_bytes(Role.WEIGHT) * block.repeats for block, op in built if block.is_layer)

    plain = load(name).graph(step)
    depth = sum(block.repeats for block in plain.blocks if block.is_layer)
    return float(read(graph(name, step, text)) / read(plain) * depth)


# --- ConsistentEE's policy network ------------------------------------------------------------------------------------


def test_a_policy_network_is_hidden_32_1_with_gelu_and_sigmoid() -> None:
    """Llama-2-7B: 4096 x 32 + 32 and 32 + 1 weights behind each of 31 layers; 2 x (4096 x 32 + 32) matmul FLOP per
    token, and on the vector units 32 + 1 for biases, 8 x 32 for GELU and 4 for the sigmoid."""
    built = exit_checks(Exits(mean=0.6), parse("mean=0.6,confidence=policy").confidence, jump=False)(
        load("llama-2-7b").graph(decode(3.0, 9.0))
    )
    block = built.blocks[-1]
    assert (block.name, block.repeats) == ("exit_check", 31)
    assert sum(op.matmul_flops for op in block.operators) == 3 * 2 * (4096 * 32 + 32)
    assert sum(op.vector_flops for op in block.operators) == 3 * (32 + 1 + 8 * 32 + 4)
    stored = [sum(t.elements * n for t, n in g.stored_weights()) for g in (load("llama-2-7b")._graph(), built)]
    assert stored[1] - stored[0] == 31 * (4096 * 32 + 32 + 32 + 1)


def test_a_policy_network_costs_a_little_more_than_a_classifier_and_far_less_than_the_head() -> None:
    times = [
        analyze("llama-2-7b", "a6000", output_len=2, early_exit=f"mean=0.6,confidence={name}").analysis.tpot_s[0]
        for name in ("classifier", "policy", "softmax")
    ]
    assert times[0] < times[1] < 1.01 * times[0] < 0.7 * times[2]


@pytest.mark.parametrize("other", [{"fusion": "all"}, {"quantization": "w8a8"}, {"tensor_parallel_size": 2}], ids=str)
def test_a_policy_network_runs_beside_other_techniques(other: dict[str, Any]) -> None:
    chip = "a100-80gb-sxm"
    plain, early = (
        analyze("llama-2-7b", chip, output_len=2, early_exit=text, **other).analysis.tpot_s[0]
        for text in ("none", "mean=0.6,confidence=policy")
    )
    assert early < plain


# --- depth that falls over the answer ---------------------------------------------------------------------------------


def test_the_share_falls_as_calms_threshold_does() -> None:
    """From 0.9 to 0.4, tau 4, a quarter into the answer: (e^-1 - e^-4) / (1 - e^-4) = 0.35609 is left of the
    difference; its mean over the answer is 1/4 - e^-4 / (1 - e^-4) = 0.23134."""
    exits = Exits(mean=0.9, end=0.4)
    assert exits.share(np.array([0.0, 0.25, 1.0])) == pytest.approx([0.9, 0.4 + 0.5 * 0.35609, 0.4], abs=1e-5)
    assert exits.share() == pytest.approx(0.4 + 0.5 * 0.23134, abs=1e-5)
    places = (np.arange(10_000) + 0.5) / 10_000
    for tau in (0.0, 0.5, 4.0, 30.0):
        line = Exits(mean=0.9, end=0.4, tau=tau)
        assert np.mean(line.share(places)) == pytest.approx(line.share(), abs=1e-6)


def test_every_step_runs_the_layers_of_its_place_in_the_answer() -> None:
    """A straight line from 1 to 0.5 over five tokens: the steps of tokens 1 to 4 run 0.9, 0.8, 0.7 and 0.6 of the
    layers, each with the cache of its own context; embedding and head stay."""
    options: dict[str, Any] = {"input_len": 64, "output_len": 5, "batch_size": 4}
    plain = analyze("llama-2-7b", "a6000", **options).analysis
    early = analyze(
        "llama-2-7b", "a6000", early_exit="mean=1..0.5,tau=0,confidence=position,kv=none", **options
    ).analysis
    layers = sum(
        np.broadcast_to(row.timing.time_s, 6) * row.block.repeats
        for row in plain.evaluation.rows
        if row.block.name == "layer"
    )
    steps = np.broadcast_to(plain.passes.time_s, 6)[2:] - (1 - np.array([0.9, 0.8, 0.7, 0.6])) * layers[2:]
    assert np.broadcast_to(early.passes.time_s, 6)[2:] == pytest.approx(steps)
    assert early.decode_s[0] == pytest.approx(steps.sum()) and early.ttft_s == plain.ttft_s


def test_shallow_steps_at_the_end_spare_the_longest_caches() -> None:
    """0.6 of the layers on average both times; at the end of the answer the cache is 17 times as long."""
    falls, rises = (
        analyze(
            "llama-2-7b",
            "a100-80gb-sxm",
            input_len=32,
            output_len=512,
            batch_size=64,
            early_exit=f"mean={share},tau=0,confidence=position,kv=none",
        ).analysis.decode_s[0]
        for share in ("0.9..0.3", "0.3..0.9")
    )
    assert falls < 0.95 * rises


def test_the_step_shown_runs_the_mean_over_the_answer_and_a_sweep_equals_its_points() -> None:
    options: dict[str, Any] = {"output_len": 4, "early_exit": "mean=0.9..0.4"}
    sweep = analyze("llama-2-7b", "a6000", batch_size=[1, 5], **options)
    for at, batch in enumerate((1, 5)):
        single = analyze("llama-2-7b", "a6000", batch_size=batch, **options)
        assert sweep.metrics(at) == single.metrics() and sweep.stage("decode", at) == single.stage("decode")
    mean = 0.4 + 0.5 * (0.25 - np.exp(-4) / (1 - np.exp(-4)))
    same = analyze("llama-2-7b", "a6000", output_len=4, early_exit=f"mean={mean}")
    shown = [one.stage("decode", 0)["time_s"] for one in (sweep, same)]
    assert shown[0] == pytest.approx(shown[1], rel=1e-4)


def test_pipelines_know_the_place_in_the_answer_too() -> None:
    options: dict[str, Any] = {"input_len": 64, "output_len": 16, "pipeline_parallel_size": 2}
    times = [
        analyze("llama-2-7b", "a6000", early_exit=f"mean={share},kv=pipeline", **options).analysis.tpot_s[0]
        for share in ("0.9", "0.9..0.4", "0.4")
    ]
    assert times[0] > times[1] > times[2]


# --- position decides (SkipDecode) ------------------------------------------------------------------------------------


def test_a_position_ends_all_sequences_of_a_batch_after_the_same_layer_and_needs_no_check() -> None:
    """Half of 32 layers for any batch; if each sequence exits by itself, 64 of them rarely let a layer out."""
    for batch in (1.0, 64.0):
        step = decode(batch, 9.0)
        assert layers_read("llama-2-7b", step, "mean=0.5,confidence=position,kv=none") == pytest.approx(16.0)
    assert layers_read("llama-2-7b", decode(64.0, 9.0), "mean=0.5,kv=none") > 28.0
    found = graph("llama-2-7b", decode(1.0, 9.0), "mean=0.5,confidence=position")
    assert "exit_check" not in {block.name for block in found.blocks}


# --- limited recomputation (EE-LLM) -----------------------------------------------------------------------------------


def test_after_so_many_early_exits_a_step_runs_all_layers() -> None:
    """0.7 exit after 8 layers; at most two in a row: one step in 1 + 0.7 + 0.49 = 2.19 is a full one, not 0.3."""
    text = "two-exit=8:0.7,kv=recompute"
    assert layers_read("llama-2-7b", decode(1.0, 9.0), text) == pytest.approx(8 + 0.3 * 24)
    limited = layers_read("llama-2-7b", decode(1.0, 9.0), f"{text},deficient=2")
    assert limited == pytest.approx(8 + 24 / 2.19)
    every = layers_read("llama-2-7b", decode(1.0, 9.0), "two-exit=8:1,kv=recompute,deficient=3")
    assert every == pytest.approx(8 + 24 / 4)


def test_forced_passes_are_those_of_the_events() -> None:
    """Steps that run 8 (0.5), 16 (0.3) or all 32 layers (0.2); after three early ones in a row the next is full."""
    early, waiting, ran = np.random.default_rng(3).choice([8, 16, 32], 50_000, p=[0.5, 0.3, 0.2]), 0, 0.0
    for depth in early:
        full = depth == 32 or waiting == 3
        waiting = 0 if full else waiting + 1
        ran += 32 if full else depth
    runs = forced([1.0 if layer < 8 else 0.5 if layer < 16 else 0.2 for layer in range(32)], 3)
    assert sum(runs) == pytest.approx(ran / len(early), rel=0.01)


# --- encoders ---------------------------------------------------------------------------------------------------------


def test_sequences_of_an_encoder_exit_as_wholes() -> None:
    """BERT: half exit after 6 of 12 layers: 6 + 0.5 x 6; of two sequences one goes on with 0.75: 6 + 0.75 x 6."""
    for batch, depth in ((1.0, 9.0), (2.0, 10.5)):
        assert layers_read("bert-base", prefill(batch, 128.0), "two-exit=6:0.5") == pytest.approx(depth)
    found = graph("bert-base", prefill(2.0, 128.0), "two-exit=6:0.5")
    (check,) = (op for block, op in found if op.name == "exit_classifier")
    assert check.matmul_flops == 2 * 2 * 768 * 2  # of the first row of each sequence


@pytest.mark.parametrize("name", ["bge-m3", "dit-xl-2"])
def test_models_without_rows_to_classify_do_not_exit(name: str) -> None:
    with pytest.raises(UserError, match="without rows of logits"):
        analyze(name, "a6000", output_len=1, early_exit="mean=0.6")


# --- published --------------------------------------------------------------------------------------------------------


def test_deebert_saves_up_to_40_percent_of_the_time() -> None:
    """DeeBERT, arXiv 2004.12993: up to about 40 % of BERT-base's time, of one sequence at a time.

    With 0.6 of the layers on average we save 31 %: the catalogue's BERT has the head of a masked language model, 5 % of
    the time, which DeeBERT's classifier replaces, and 11 checks take 3 % more.
    """
    times = [
        lv.analyze("bert-base", "v100", input_len=128, output_len=1, early_exit=text).analysis.ttft_s[0]
        for text in ("none", "mean=0.6")
    ]
    assert 0.28 < 1 - times[1] / times[0] < 0.40


@pytest.mark.parametrize(("share", "published", "ours"), [("0.75..0.25", 2.0, 1.95), ("0.3..0.1", 5.0, 4.56)])
def test_skipdecode_doubles_to_quintuples_the_speed(share: str, published: float, ours: float) -> None:
    """SkipDecode, arXiv 2307.02628: 2 to 5 times the speed with OPT-6.7B, by exits at the same falling depth for all
    sequences of a batch, without recomputation.  With a half and a fifth of the layers on average, what remains is the
    embedding and the head of 50,272 columns: 2 and 9 % less than published."""
    text = f"mean={share},tau=0,confidence=position,kv=none"
    plain, early = (
        lv.analyze("opt-6.7b", "a100-80gb-sxm", input_len=512, early_exit=one).analysis.tpot_s[0]
        for one in ("none", text)
    )
    assert plain / early == pytest.approx(ours, abs=0.02) and 0.9 * published < plain / early < published


def test_ee_llms_factor_of_two_needs_exits_before_the_half() -> None:
    """EE-LLM, arXiv 2312.04916: often twice the speed.  Its 7B model has exits after 8 and 16 of 32 layers and runs on
    four stages of A100-80GB (examples/ee_training/7B.sh); confidence is the largest softmax probability.

    The shares of tokens at each exit are not known to us.  If all take the second exit, we say 1.97, with the first one
    3.8: for a factor of 2 some tokens exit after 8 layers, as with 60 % there and 20 % after 16.
    """
    plain, *early = (
        lv.analyze(
            "llama-2-7b",
            "a100-80gb-sxm",
            input_len=512,
            pipeline_parallel_size=4,
            early_exit=f"exits={exits},confidence=softmax,kv=pipeline" if exits else "none",
        ).analysis.tpot_s[0]
        for exits in ("", "16:1", "8:0.6/16:0.2", "8:1")
    )
    late, mixed, soon = (plain / one for one in early)
    assert 1.9 < late < 2.0 < mixed < 2.2
    assert 3.6 < soon < 4.0


class TestReport:
    """Depth and speed of early exit in the answer: 70 % of the tokens exit after 8 of 32 layers."""

    def found(self, batch: int, **options: Any) -> Any:
        return lv.analyze("llama-2-7b", "a100", batch_size=batch, output_len=16, **options)

    @pytest.mark.parametrize("batch", [1, 4])
    def test_depth_by_hand_and_speed_beside_all_layers(self, batch: int) -> None:
        """One of 4 tokens runs on with probability 1 - 0.7^4."""
        own, plain = self.found(batch, early_exit="two-exit=8:0.7,kv=recompute"), self.found(batch)
        said = own.to_dict()["early_exit"]
        assert said["layers"] == 32 and said["token_layers"] == pytest.approx(8 + 0.3 * 24)
        assert said["step_layers"] == pytest.approx(8 + (1 - 0.7**batch) * 24)
        assert (said["time_s"], said["plain_time_s"]) == pytest.approx((own.tpot_s, plain.tpot_s), rel=1e-12)
        assert said["speedup"] == pytest.approx(plain.tpot_s / own.tpot_s, rel=1e-12)

    def test_without_early_exit_there_is_none(self) -> None:
        assert self.found(1).to_dict()["early_exit"] is None

    def test_a_pipeline_and_an_encoder_have_it_too(self) -> None:
        staged = self.found(1, early_exit="exits=8:0.4/16:0.3,kv=pipeline", pipeline_parallel_size=4)
        plain = self.found(1, pipeline_parallel_size=4)
        assert staged.to_dict()["early_exit"]["plain_time_s"] == pytest.approx(plain.tpot_s, rel=1e-12)
        encoder = lv.analyze("bert-base", "a100", input_len=128, output_len=1, early_exit="mean=0.5")
        assert encoder.to_dict()["early_exit"]["token_layers"] == pytest.approx(6.0)

    def test_the_page_says_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["--hardware", "a100", "--batch-size", "4", "--early-exit", "two-exit=8:0.7,kv=recompute"]
        assert main(["analyze", "llama-2-7b", *words]) == 0
        printed = capsys.readouterr().out
        assert "a token runs 15.2 of 32 layers, the deepest of a step 26.2" in printed
        assert "the speed of all layers" in printed
