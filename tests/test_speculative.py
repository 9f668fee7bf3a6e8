"""Draft models: properties of every pair of models, and published statements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer import models
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.result import speculation_report
from llmviewer.result.timeline.timeline import timeline
from llmviewer.serving.generation import Draft, Generation
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.drafts import draft_round

from .answers import analyze, answer

#: Models and small draft models.
PAIRS = (
    ("llama-2-70b", "tinyllama-1.1b"),
    ("llama-3.1-8b", "llama-3.2-1b"),
    ("qwen3-32b", "qwen3-0.6b"),
    ("gemma-2-27b", "gemma-2-2b"),
    ("mixtral-8x7b", "mistral-7b"),
    ("deepseek-v2-lite", "qwen2.5-0.5b"),
    ("opt-30b", "opt-125m"),
    ("mamba-2.8b", "mamba-130m"),
)
SIZES: dict[str, Any] = {"batch_size": [1, 3, 64], "input_len": 300, "output_len": 9}


def speculative(draft: str, tokens: object = 4, acceptance: object = 0.8, **more: object) -> str:
    words = {"draft": draft, "tokens": tokens, "acceptance": acceptance, **more}
    return ",".join(f"{name}={value}" for name, value in words.items())


def without_option_texts(found: dict[str, Any]) -> dict[str, Any]:
    """A result without the texts of the requested options."""
    return {name: value for name, value in found.items() if name not in ("passes", "generation")}


@pytest.mark.parametrize(("model", "draft"), PAIRS)
class TestEveryPair:
    def test_no_draft_tokens_equal_plain_decoding_bit_for_bit(self, model: str, draft: str) -> None:
        plain, none = (
            analyze(model, "h100", **SIZES),
            analyze(model, "h100", speculative=speculative(draft, 0), **SIZES),
        )
        for point in range(3):
            assert without_option_texts(none.to_dict(point)) == without_option_texts(plain.to_dict(point))

    def test_time_per_token_falls_with_acceptance(self, model: str, draft: str) -> None:
        rates = (0.0, 0.3, 0.6, 0.9, 1.0)
        times = [
            analyze(model, "h100", speculative=speculative(draft, 4, rate), **SIZES).analysis.tpot_s for rate in rates
        ]
        assert (np.diff(np.array(times), axis=0) < 0).all()

    def test_with_full_acceptance_a_round_yields_one_token_more_than_drafted(self, model: str, draft: str) -> None:
        found = answer(model, "h100", speculative=speculative(draft, 5, 1))["generation"]
        assert found["tokens_per_round"] == 6 == found["new_tokens"]

    def test_a_verification_computes_every_token_and_costs_at_least_a_step(self, model: str, draft: str) -> None:
        found = answer(model, "h100", speculative=speculative(draft, 4), batch_size=3)
        plain = answer(model, "h100", batch_size=3)
        for one, other in zip(*(answered["stages"]["decode"]["operators"] for answered in (found, plain)), strict=True):
            if one["name"] in ("o_proj", "lm_head", "out_proj"):
                assert one["matmul_flops"] == 5 * other["matmul_flops"]
        assert found["stages"]["decode"]["time_s"] > plain["stages"]["decode"]["time_s"]
        assert found["generation"]["pass_s"] == pytest.approx(found["stages"]["decode"]["time_s"], rel=1e-12)

    def test_memory_contains_both_models_and_both_caches(self, model: str, draft: str) -> None:
        """300 + 9 - 1 tokens, plus 4 that may be rejected; recurrent layers store a state before and after each."""
        sizes = {"batch_size": 3, "input_len": 300}
        found = answer(model, "h100", speculative=speculative(draft, 4), output_len=9, **sizes)["memory"]
        one, other = (answer(name, "h100", output_len=13, **sizes)["memory"] for name in (model, draft))
        assert found["weights_bytes"] == one["weights_bytes"] + other["weights_bytes"]
        states = 5 if model.startswith("mamba") else 1
        assert found["kv_cache_bytes"] == states * (one["kv_cache_bytes"] + other["kv_cache_bytes"])

    def test_a_single_point_equals_the_point_of_a_sweep(self, model: str, draft: str) -> None:
        for tokens in (3, "best"):
            words = speculative(draft, tokens)
            together = analyze(model, "h100", speculative=words, **SIZES).analysis
            for at, batch in enumerate(SIZES["batch_size"]):
                single = analyze(model, "h100", speculative=words, **SIZES | {"batch_size": batch}).analysis
                assert single.tpot_s[0] == together.tpot_s[at] and single.ttft_s[0] == together.ttft_s[at]

    def test_the_best_number_of_draft_tokens_is_never_slower_than_another(self, model: str, draft: str) -> None:
        best = analyze(model, "h100", speculative=speculative(draft, "best"), **SIZES).analysis.tpot_s
        for tokens in (0, 1, 2, 4, 8, 16):
            other = analyze(model, "h100", speculative=speculative(draft, tokens), **SIZES).analysis.tpot_s
            assert (best <= other * (1 + 1e-12)).all()


def test_the_specinfer_talk_example() -> None:
    """A draft at 0.1 of the cost, five tokens drafted, three accepted: 5 x 0.1 + 1 = 1.5 for 3 tokens, a speedup of 2.

    The talk counts only accepted tokens; with the bonus token, which we always count, a round yields 4 and the speedup
    is 2.67.
    """
    one = np.ones(1)
    for tokens, gain in ((3.0, 2.0), (4.0, 4.0 / 1.5)):
        model = models.load("opt-125m")
        round_ = Generation(tokens=tokens, drafts=(Draft(name="small", model=model, passes=5.0),))
        assert one / round_.per_token(one, [0.1 * one]) == pytest.approx(gain)


def test_expected_tokens_match_the_paper() -> None:
    """Leviathan et al., equation 1: (1 - 0.8^5) / (1 - 0.8) = 3.3616 tokens for four drafted."""
    draft = Draft(name="small", model=models.load("opt-125m"))
    found = draft_round(draft, 4.0, Acceptance(rates=(0.8,)))
    assert found.tokens == pytest.approx(3.3616)
    assert found.drafts[0].passes == 4.0 and found.drafts[0].shape.ahead == 1.5  # 0, 1, 2, 3 tokens longer
    assert found.shape.new_tokens == found.shape.logit_positions == 5.0


def test_a_round_is_the_sum_of_its_passes_at_every_position() -> None:
    """Five tokens after the first, at positions 300 ... 304: each (verification + 2 passes of the draft) / E."""
    words = speculative("llama-3.2-1b", 2, 0.5)
    found = analyze("llama-3.1-8b", "h100", input_len=300, output_len=6, speculative=words)
    expected = 0.0
    for position in range(300, 305):
        of = {"input_len": position + 1, "output_len": 1}
        verified = answer("llama-3.1-8b", "h100", speculative=words, **of)
        lower, upper = (
            answer("llama-3.2-1b", "h100", **of | {"input_len": position + 1 + later})["stages"]["decode"]["time_s"]
            for later in (0, 1)
        )
        expected += (verified["stages"]["decode"]["time_s"] + lower + upper) / 1.75
    assert found.analysis.tpot_s[0] == pytest.approx(expected / 5, rel=1e-9)


class TestLlama70b:
    """Llama-2-70b on eight H100, a draft of 1.1 B with acceptance 0.7."""

    def found(self, batch: int, **more: object) -> dict[str, Any]:
        words = speculative("tinyllama-1.1b", 4, 0.7, **more)
        return answer(
            "llama-2-70b", "h100", batch_size=batch, input_len=1024, tensor_parallel_size=8, speculative=words
        )["generation"]

    def test_speculation_gains_more_at_batch_1_than_at_256(self) -> None:
        gains = {batch: self.found(batch)["speedup"] for batch in (1, 256)}
        assert gains[1] > 2.0 and gains[256] < 0.6 * gains[1]

    def test_plain_decoding_is_faster_beyond_the_break_even_batch_size(self) -> None:
        pays = self.found(1)["pays_up_to_batch_size"]
        assert 64 <= pays < 1024
        assert self.found(pays)["speedup"] >= 0.99 and self.found(pays + 8)["speedup"] < 1.01

    def test_the_best_number_of_drafted_tokens_falls_with_the_batch(self) -> None:
        best = [
            answer(
                "llama-2-70b",
                "h100",
                batch_size=batch,
                input_len=512,
                tensor_parallel_size=8,
                speculative=speculative("tinyllama-1.1b", "best", 0.7),
            )["generation"]["drafted_tokens"]
            for batch in (1, 16, 64, 256, 1024)
        ]
        assert best == sorted(best, reverse=True) and best[0] > best[-1] == 0

    def test_the_draft_is_sharded_like_the_model_by_default(self) -> None:
        shared, whole = (self.found(1, **more)["drafts"][0] for more in ({}, {"tensor_parallel_size": 1}))
        assert whole["weights_bytes"] > 7 * shared["weights_bytes"]
        assert whole["pass_s"] > shared["pass_s"]


@pytest.mark.parametrize("more", [{"sequence_parallel": "on"}, {"expert_parallel_size": 4}], ids=str)
def test_a_draft_on_one_device_has_no_context_or_expert_parallelism(more: dict[str, Any]) -> None:
    words = {"tensor_parallel_size": 4, "input_len": 64, "output_len": 2}
    single, combined = (
        answer(
            "mixtral-8x7b", "h200", speculative=speculative("llama-3.2-1b", tensor_parallel_size=1), **words, **extra
        )
        for extra in ({}, more)
    )
    assert single["generation"]["drafts"] == combined["generation"]["drafts"]


def test_a_draft_keeps_its_own_formats() -> None:
    """The draft has its own checkpoint; --quantization applies to the model."""

    def of_the_draft(**more: str) -> float:
        words = {"quantization": "w4a16", "input_len": 64, "output_len": 2}
        found = answer("llama-3.1-8b", "h100", speculative=speculative("llama-3.2-1b", **more), **words)
        return float(found["generation"]["drafts"][0]["weights_bytes"])

    plain, narrow = of_the_draft(), of_the_draft(quantization="w4a16")
    assert plain == 2 * models.load("llama-3.2-1b").parameters > 1.5 * narrow


def test_capacity_of_replicas_includes_the_drafts_cache() -> None:
    one, two = (
        answer("llama-3.1-8b", "h100", speculative=speculative("llama-3.2-1b"), data_parallel_size=replicas)["memory"]
        for replicas in (1, 2)
    )
    assert two["max_concurrent_requests"] == 2 * one["max_concurrent_requests"]


def test_the_best_number_of_draft_tokens_uses_the_requests_tensor_placement() -> None:
    """FlexGen places tensors for every number tried: with streamed weights more draft tokens pay off."""
    words = {"batch_size": 64, "input_len": 64, "output_len": 8}
    found = {
        tokens: analyze(
            "llama-2-70b", "h100", speculative=f"ngram,tokens={tokens},acceptance=0.4", offload="flexgen", **words
        ).analysis.tpot_s[0]
        for tokens in (0, 1, 2, 4, 8, "best")
    }
    assert found["best"] <= min(found.values()) * (1.0 + 1e-9)


def test_recurrent_layers_store_a_state_per_rejectable_token() -> None:
    """Qwen3.5-397B, 45 recurrent layers of 2 MiB: 90 MiB per sequence, 360 MiB for three draft tokens and 1.3 GiB for a
    tree of 14 (https://github.com/vllm-project/vllm/issues/54080); plus columns of convolutions, 5 %.

    A verification writes all of them and reads one.
    """
    plain, three, tree = (
        answer("qwen3.5-397b-a17b", "h200", input_len=1000, output_len=8, tensor_parallel_size=1, speculative=text)
        for text in ("none", "mtp,tokens=3,acceptance=0.8", "rest,nodes=14,depth=3")
    )
    for found, tokens in ((three, 3), (tree, 14)):
        more = found["memory"]["kv_cache_bytes"] - plain["memory"]["kv_cache_bytes"]
        assert more == pytest.approx(tokens * 90 * 2**20, rel=0.09)
        (one, other) = (
            next(row for row in of["stages"]["decode"]["operators"] if row["name"] == "recurrence")
            for of in (plain, found)
        )
        assert other["kv_write_bytes"] == (tokens + 1) * one["kv_write_bytes"] == (tokens + 1) * 2**21
        assert other["kv_read_bytes"] == one["kv_read_bytes"]
    assert three["stages"]["prefill"] == plain["stages"]["prefill"]


def test_a_distilled_draft_is_rejected_less_often() -> None:
    """Half of the rejections are removed: 0.6 becomes 0.8."""
    raised, direct = (
        answer("llama-3.1-8b", "h100", speculative=words)["generation"]["tokens_per_round"]
        for words in (
            speculative("llama-3.2-1b", 4, 0.6, distilled=0.5),
            speculative("llama-3.2-1b", 4, 0.8),
        )
    )
    assert raised == pytest.approx(direct)


def test_options_compose_in_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "analyze llama-3.1-70b --hardware h100 --quantization w4a16 -tp 4 --kv-block-size 16 --batch-size 8 "
        "--speculative draft=llama-3.2-1b,tokens=4,acceptance=0.8 --batching continuous"
    )
    assert main(words.split()) == 0
    shown = capsys.readouterr().out
    assert "Generation: speculative" in shown and "llama-3.2-1b: 4 passes" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("draft=llama-3.2-1b,tokens=4", "acceptance is missing"),
        ("draft=llama-3.2-1b,acceptance=0.8", "write speculative draft=NAME,tokens=..."),
        ("draft=llama-3.2-1b,tokens=4,acceptance=1.2", "rates from 0 to 1"),
        ("draft=llama-3.2-1b,tokens=-1,acceptance=0.5", "a whole number from 0"),
        ("draft=llama-3.2-1x,tokens=4,acceptance=0.5", "llama-3.2-1b"),
        ("draft=llama-3.2-1b,tokns=4,acceptance=0.5", "tokens"),
        ("drat=llama-3.2-1b,tokens=4", "draft"),
        ("tokens=4", "method of speculative"),
    ],
)
def test_bad_options_are_a_one_line_error(words: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        analyze("llama-3.1-8b", "h100", speculative=words)
    assert "\n" not in str(error.value)


class TestPipeline:
    """Draft models run on the devices of the last stage, after its share of the verification pass."""

    @pytest.mark.parametrize("words", ["draft=tinyllama-1.1b,tokens=4,acceptance=0.7", "eagle,tokens=4", "medusa"])
    def test_a_round_is_a_verification_through_all_stages_and_the_drafts_of_one(self, words: str) -> None:
        sizes = {"input_len": 256, "output_len": 1, "tensor_parallel_size": 2}
        whole, staged = (
            answer("llama-2-13b", "h100", speculative=words, pipeline_parallel_size=stages, **sizes)["generation"]
            for stages in (1, 4)
        )
        assert [one["pass_s"] for one in staged["drafts"]] == [one["pass_s"] for one in whole["drafts"]]
        drafts = sum(one["passes"] * one["pass_s"] for one in staged["drafts"])
        round_s = staged["pass_s"] + drafts + staged["extra_s"]
        assert staged["token_s"] == pytest.approx(round_s / staged["tokens_per_round"], rel=1e-12)
        assert staged["pass_s"] > whole["pass_s"]  # sends between stages

    def test_the_last_stage_stores_the_draft(self) -> None:
        # 16 layers and an embedding or a head of the same size on both stages
        words = {"input_len": 256, "output_len": 2, "pipeline_parallel_size": 2}
        plain, drafted = (
            answer("llama-2-7b", "h100", speculative=one, **words)["memory"]["weights_bytes"]
            for one in ("none", speculative("tinyllama-1.1b", 1, 0.7))
        )
        assert drafted - plain == pytest.approx(2 * models.load("tinyllama-1.1b").parameters, rel=1e-4)

    def test_a_draft_smaller_than_a_layer_does_not_make_the_last_stage_the_fullest(self) -> None:
        # 32 layers as 11, 11 and 10: 0.25 GB of the draft are less than the 0.40 GB of the missing layer
        words = {"input_len": 256, "output_len": 2, "pipeline_parallel_size": 3}
        plain, drafted = (
            answer("llama-2-7b", "h100", speculative=one, **words)["memory"]["weights_bytes"]
            for one in ("none", speculative("opt-125m", 1, 0.7))
        )
        assert drafted == plain

    def test_a_drafter_on_hidden_states_stores_the_embedding_that_only_the_first_stage_has(self) -> None:
        # vLLM loads it apart: 32,000 x 4,096 numbers of 2 bytes; the head is on the last stage and is shared
        one, two = (
            answer("llama-2-7b", "h100", speculative="eagle,tokens=4", input_len=256, pipeline_parallel_size=stages)
            for stages in (1, 2)
        )
        weights = [of["generation"]["drafts"][0]["weights_bytes"] for of in (one, two)]
        assert weights[1] - weights[0] == 32000 * 4096 * 2

    def test_a_self_drafting_model_runs_through_all_stages(self) -> None:
        text = "self,attention=0,mlp=0,tokens=2,acceptance=0.8"
        one, four = (
            answer("llama-2-7b", "h100", speculative=text, input_len=256, pipeline_parallel_size=stages)["generation"]
            for stages in (1, 4)
        )
        assert one["drafts"][0]["pass_s"] < four["drafts"][0]["pass_s"]  # three sends
        assert four["drafts"][0]["pass_s"] == pytest.approx(four["plain_token_s"], rel=0.01)

    @pytest.mark.parametrize(
        ("words", "bottleneck"),
        [("draft=tinyllama-1.1b,tokens=8,acceptance=0.7", "drafts"), ("ngram,tokens=4,acceptance=0.7", "stages")],
    )
    def test_micro_batches_share_the_last_stage_with_their_drafts(self, words: str, bottleneck: str) -> None:
        """Four micro-batches of two sequences: a round takes the four times of the busiest stage, which is the last one
        with its eight draft passes, or one way through all stages and drafts, whichever is longer."""
        staged = {"batch_size": 8, "output_len": 1, "pipeline_parallel_size": "4,microbatches=4"}
        found = analyze("llama-2-13b", "h100", input_len=256, speculative=words, **staged).analysis
        own, at = found.passes, found.schedule.prefill_passes
        drafts = sum(draft.passes * float(np.asarray(one.passes.time_s)[at]) for draft, one in found.drafts)
        assert all(one.schedule.step.groups[0].batch_size[at] == 2.0 for _, one in found.drafts)
        through, busiest, last = (float(np.asarray(one)[at]) for one in (own.time_s, own.busiest_s, own.last_s))
        round_s = max(through + drafts, 4 * busiest, 4 * (last + drafts)) + float(found.system.outside_kernels_s)
        assert found.token_s[0] == pytest.approx(round_s / float(found.system.generation.tokens), rel=1e-12)
        assert (last + drafts > busiest) == (bottleneck == "drafts")

    def test_one_micro_batch_of_a_sequence_each_is_a_sequence_alone(self) -> None:
        words = {"speculative": "eagle,tokens=4", "input_len": 256, "pipeline_parallel_size": "2,microbatches=4"}
        one, split = (analyze("llama-2-13b", "h100", batch_size=size, **words).analysis for size in (1, 4))
        assert one.tpot_s[0] < split.tpot_s[0] < 4 * one.tpot_s[0]

    def test_a_timeline_of_overlapping_drafts_is_refused(self) -> None:
        words = {"speculative": "eagle,tokens=4", "pipeline_parallel_size": "2,microbatches=4", "batch_size": 8}
        found = analyze("llama-2-7b", "h100", output_len=4, **words)
        with pytest.raises(UserError, match="overlap and are not drawn; use microbatches=1"):
            timeline(found.analysis, 2)


def test_the_report_states_the_limit_of_the_break_even_search() -> None:
    from llmviewer.reports import generation

    assert generation.MAX_BATCH_SIZE == speculation_report.MAX_BATCH_SIZE


@pytest.mark.parametrize(
    ("target", "draft", "warnings"),
    [
        ("llama-2-70b", "llama-3.2-1b", 1),  # 32,000 and 128,256 tokens
        ("llama-2-70b", "tinyllama-1.1b", 0),
        ("qwen2.5-7b", "qwen2.5-0.5b", 0),  # 152,064 and 151,936: padding
    ],
)
def test_a_draft_with_other_tokens_than_its_target_is_warned_of(target: str, draft: str, warnings: int) -> None:
    drafting = f"draft={draft},tokens=4,acceptance=0.7"
    found = lv.analyze(target, "h200", tensor_parallel_size=2, output_len=2, speculative=drafting).warnings
    assert sum("engines verify drafts of one vocabulary only" in warning for warning in found) == warnings
