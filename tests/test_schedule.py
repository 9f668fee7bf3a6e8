"""Schedules: forward passes of a request, and their evaluation in chunks."""

from dataclasses import replace

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.core.workload import Request
from llmviewer.hardware import specs
from llmviewer.serving.prompts import prompt_thresholds
from llmviewer.serving.schedule import schedule

from .answers import analyze


def test_equal_passes_are_stored_once_with_their_number():
    # 8 prompts of 1024 under a budget of 2048 tokens: four passes of two prompts
    plan = schedule(Request(batch_size=8.0, input_len=1024.0, output_len=1.0), 2048.0)
    assert plan.prefill(np.full(2, 3.0)).tolist() == [12.0]


@pytest.mark.parametrize("budget", [512, 1024, 2048, 3000, 8192])
def test_a_token_budget_changes_no_matmul_flops_of_linear_layers_and_never_shortens_prefill(budget):
    joint = analyze("llama-2-7b", "a6000", batch_size=8)
    split = analyze("llama-2-7b", "a6000", batch_size=8, max_num_batched_tokens=budget)
    gemms = [
        sum(row["flops"] * row["layers"] for row in result.stage("prefill")["operators"] if row["name"] == "q_proj")
        for result in (joint, split)
    ]
    assert gemms[0] == gemms[1] == 8 * 1024 * 2 * 4096 * 4096 * 32
    assert split.metrics()["ttft_s"] >= joint.metrics()["ttft_s"]


@pytest.mark.parametrize(
    "sizes",
    [
        {"output_len": 10**9},
        {"input_len": 10**9, "max_num_batched_tokens": 1},
        {"batch_size": [1] * 10**5, "output_len": 100},
        {"batch_size": [1] * 150_000, "output_len": 1},
    ],
)
def test_too_many_passes_are_rejected_before_they_are_scheduled(sizes):
    with pytest.raises(lv.UserError, match=r"takes [\d,]+ forward passes; allowed: at most (1,048,576|262,144)"):
        analyze("llama-2-7b", "a6000", **sizes)


@pytest.mark.parametrize("budget", [0, 700])
@pytest.mark.parametrize("model", ["llama-2-7b", "gemma-2-2b", "deepseek-v2-lite"])
def test_passes_evaluated_in_chunks_are_bit_identical(monkeypatch, model, budget):
    requested = {"batch_size": [1, 3], "input_len": 1000, "output_len": [600, 1], "max_num_batched_tokens": budget}
    whole = analyze(model, "a6000", **requested)
    monkeypatch.setattr("llmviewer.serving.schedule.MAX_PASSES_AT_ONCE", 100)
    pieces = analyze(model, "a6000", **requested)
    assert len(pieces.analysis.evaluation.time_s) < 100 < len(whole.analysis.evaluation.time_s)
    for point in range(2):
        assert pieces.to_dict(point) == whole.to_dict(point)
    assert pieces.to_frame().equals(whole.to_frame())


@pytest.mark.parametrize(
    "options",
    [
        {"speculative": "medusa,heads=4"},  # heads take the same time in all passes
        {"speculative": "draft=tinyllama-1.1b,tokens=3,acceptance=0.8"},
        {"offload": "weights=0.4,kv=0.5"},
        {"offload": "weights=0.4,compute=host"},
        {"batching": "continuous"},
        {"batching": "continuous", "pipeline_parallel_size": "2"},
        {"batching": "chunked"},
        {"batching": "disaggregated"},
    ],
    ids=str,
)
def test_chunked_evaluation_with_techniques_is_bit_identical(monkeypatch, options):
    requested = {"batch_size": 2, "input_len": 1000, "output_len": 600, **options}
    whole = analyze("llama-2-7b", "h100", **requested).to_dict()
    monkeypatch.setattr("llmviewer.serving.schedule.MAX_PASSES_AT_ONCE", 100)
    assert analyze("llama-2-7b", "h100", **requested).to_dict() == whole


def test_hypothetical_chips_keep_their_figures_in_every_chunk(monkeypatch):
    chip = specs.load("a6000")
    chips = replace(chip, bandwidth_bytes_per_s=chip.bandwidth_bytes_per_s * np.array([1.0, 2.0]))
    whole = analyze("llama-2-7b", chips, output_len=300).to_frame()
    monkeypatch.setattr("llmviewer.serving.schedule.MAX_PASSES_AT_ONCE", 100)
    assert analyze("llama-2-7b", chips, output_len=300).to_frame().equals(whole)


@pytest.mark.parametrize("prompt", [511, 512, 513, 1023, 1024, 1025, 4000])
def test_chunks_add_up_to_the_prompt_and_only_the_last_computes_logits(prompt):
    group = schedule(Request(batch_size=3.0, input_len=float(prompt), output_len=1.0), 512.0).step.groups[0]
    chunks = slice(0, -1)  # the decode step shown comes last
    new, cached, logits = group.new_tokens[chunks], group.cached_tokens[chunks], group.logit_positions[chunks]
    if prompt > 512:
        assert new.sum() == prompt
        assert (new <= 512).all()
    assert list(cached) == [512 * i for i in range(len(new))] or prompt < 512
    assert list(logits[:-1]) == [0] * (len(new) - 1) or prompt < 512
    assert logits[-1] == 1


def test_a_chunked_prefill_shows_summed_rows_and_other_dimensions_unchanged():
    """4096 tokens in chunks of 1000: q_proj makes 4096 x 4096; the last of five chunks multiplies with 4096 keys."""
    found = analyze("llama-2-7b", "a6000", input_len=4096, max_num_batched_tokens=1000, attention="eager")
    shapes = {row["name"]: row["output_shape"] for row in found.stage("prefill")["operators"]}
    assert shapes["q_proj"] == [4096, 4096]
    assert shapes["qk_matmul"] == [4096, 32, 4096]
    assert shapes["lm_head"] == [1, 32000]


@pytest.mark.parametrize(("batch", "budget"), [(1, 8192), (5, 100), (7, 1000), (64, 512), (1000, 64)])
def test_memory_falls_only_when_fewer_prompts_fit_a_pass(batch, budget):
    lengths = np.arange(1, budget + 2)
    together = np.minimum(budget // lengths, batch)
    assert prompt_thresholds(batch, budget).tolist() == [n for n in lengths[:-1] if together[n] < together[n - 1]]
