import numpy as np
import pytest

import llmviewer as lv
from llmviewer.schedule import schedule
from llmviewer.workload import Request


def test_equal_passes_of_one_kind_count_as_often_as_they_run():
    # 8 prompts of 1024 under a budget of 2048 tokens: four passes of two prompts
    plan = schedule(Request(batch_size=8.0, input_len=1024.0, output_len=1.0), 2048.0)
    assert plan.prefill(np.full(2, 3.0)).tolist() == [12.0]


@pytest.mark.parametrize("budget", [512, 1024, 2048, 3000, 8192])
def test_a_token_budget_changes_no_matmul_flops_of_linear_layers_and_never_shortens_prefill(budget):
    joint = lv.analyze("llama-2-7b", "a6000", batch_size=8)
    split = lv.analyze("llama-2-7b", "a6000", batch_size=8, max_num_batched_tokens=budget)
    gemms = [
        sum(row["flops"] * row["layers"] for row in result.stage("prefill")["operators"] if row["name"] == "q_proj")
        for result in (joint, split)
    ]
    assert gemms[0] == gemms[1] == 8 * 1024 * 2 * 4096 * 4096 * 32
    assert split.metrics()["ttft_s"] >= joint.metrics()["ttft_s"]


@pytest.mark.parametrize(
    "sizes",
    [
        {"output_len": 10**8},
        {"input_len": 10**9, "max_num_batched_tokens": 1},
        {"batch_size": [1] * 10**5, "output_len": 100},
    ],
)
def test_more_passes_than_memory_holds_are_refused_before_they_are_laid_out(sizes):
    with pytest.raises(lv.UserError, match="forward passes; allowed: at most 2,000,000"):
        lv.analyze("llama-2-7b", "a6000", **sizes)


@pytest.mark.parametrize("prompt", [511, 512, 513, 1023, 1024, 1025, 4000])
def test_chunks_are_the_whole_prompt_and_the_last_one_asks_for_logits(prompt):
    group = schedule(Request(batch_size=3.0, input_len=float(prompt), output_len=1.0), 512.0).step.groups[0]
    chunks = slice(0, -1)  # the decode step shown comes last
    new, cached, logits = group.new_tokens[chunks], group.cached_tokens[chunks], group.logit_positions[chunks]
    if prompt > 512:
        assert new.sum() == prompt
        assert (new <= 512).all()
    assert list(cached) == [512 * i for i in range(len(new))] or prompt < 512
    assert list(logits[:-1]) == [0] * (len(new) - 1) or prompt < 512
    assert logits[-1] == 1
