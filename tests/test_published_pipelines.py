"""Published maximum loads: equal requests that are sent at once are simulated, not a steady state."""

from __future__ import annotations

import pandas as pd
import pytest

import llmviewer as lv
from llmviewer.calibrate import simulated, systems
from llmviewer.calibrate.e2e_rows import case_of
from llmviewer.calibrate.predict import PredictionOptions

#: A row of TensorRT-LLM's overview of v1.0 (https://nvidia.github.io/TensorRT-LLM/performance/perf-overview.html).
ROW = {
    "id": "one", "source": "trtllm-overview-v1.0", "engine": "tensorrt-llm", "engine_version": "1.0",
    "model": "meta-llama/Llama-3.3-70B-Instruct", "chip": "rtx-pro-6000-server", "chips": 2, "tp": 1, "pp": 2,
    "dp": 1, "ep": "", "mode": "aggregated", "quantization": "nvfp4", "kv_dtype": "fp8", "input_len": 2048,
    "output_len": 128, "concurrency": "", "request_rate": "", "arrivals": "all at once, max load",
    "metric": "output_tokens_per_s", "statistic": "mean", "value": 813.0, "note": "",
}  # fmt: skip


def test_a_pipeline_whose_requests_come_at_once_is_simulated() -> None:
    (row,) = systems.predict(pd.DataFrame([ROW]), PredictionOptions()).to_dict("records")
    made = lv.simulate(
        "llama-3.3-70b", "rtx-pro-6000-server", engine="trtllm", quantization="nvfp4", kv_cache_dtype="fp8",
        pipeline_parallel_size=2, burst=True, requests=3000, input_len=2048, output_len=128,
    )  # fmt: skip
    assert row["predicted"] == pytest.approx(made.to_dict()["output_tokens_per_s"], rel=0.02)
    assert row["low80"] < ROW["value"] < row["high80"]
    assert row["predicted"] == pytest.approx(ROW["value"], rel=0.1)


def test_prompts_longer_than_the_usual_step_have_a_step_of_their_own() -> None:
    (row,) = systems.predict(
        pd.DataFrame([ROW | {"input_len": 20000, "output_len": 2000, "value": 319.0}]), PredictionOptions()
    ).to_dict("records")
    assert row["predicted"] == pytest.approx(319.0, rel=0.2)


def test_a_burst_without_stages_or_a_known_number_of_requests_is_a_steady_state() -> None:
    offline = ROW | {"source": "mlperf-v4.1"}
    assert simulated.is_simulated(ROW) and simulated.is_simulated(ROW | {"pp": 1}) and simulated.is_simulated(offline)
    assert not simulated.is_simulated(offline | {"pp": 1})
    assert not simulated.is_simulated(offline | {"pp": ""})


@pytest.mark.parametrize(
    ("lengths", "requests"),
    [((128, 128), 30000), ((128, 2048), 3000), ((128, 4096), 1500), ((1000, 2000), 1500), ((20000, 2000), 1000)],
)
def test_an_overview_sends_as_many_requests_as_its_page_says(lengths: tuple[int, int], requests: int) -> None:
    row = ROW | {"input_len": lengths[0], "output_len": lengths[1]}
    case = case_of(systems.request_of(row) | {"device": row["chip"]})
    assert simulated.load_of(row, case)["requests"] == requests


#: Experts on four cards, of the same page, whose commands for such models state `enable_attention_dp: true`.
EXPERTS = ROW | {
    "model": "Qwen/Qwen3-30B-A3B", "chips": 4, "tp": 4, "pp": 1, "engine": "trtllm", "engine_version": "v1.0",
    "note": "MoE: attention DP enabled in the published options; ep not stated",
}  # fmt: skip


def test_overviews_before_1_0_ran_the_pytorch_backend_without_attention_data_parallelism() -> None:
    before = EXPERTS | {"engine_version": "v0.21"}
    new, old = (case_of(systems.request_of(row) | {"device": row["chip"]}) for row in (EXPERTS, before))
    assert (new.engine, new.layout.text) == ("trtllm", "dp 4, ep 4")
    assert (old.engine, old.layout.text) == ("trtllm", "tp 4")
    assert systems.engine_of(before | {"engine_version": "v0.17"}) == "trtllm 0.17"
    assert systems.engine_of(before | {"source": "other"}) == "trtllm 0.21"


def test_experts_over_pcie_are_served_as_fast_as_published() -> None:
    """Four cards exchange the tokens of all over PCIe: 25,131 tokens/s for 1,000 + 2,000, 4,311 for 2,048 + 128."""
    published = {(1000, 2000): 25131.0, (2048, 128): 4311.0}
    rows = [
        EXPERTS | {"input_len": prompt, "output_len": answer, "value": value}
        for (prompt, answer), value in published.items()
    ]
    for row in systems.predict(pd.DataFrame(rows), PredictionOptions()).to_dict("records"):
        assert row["predicted"] == pytest.approx(row["value"], rel=0.1)
        assert row["low80"] < row["value"] < row["high80"]
