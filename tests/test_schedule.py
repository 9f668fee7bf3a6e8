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
