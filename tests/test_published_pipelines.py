"""Published maximum loads of pipelines: equal requests that are sent at once are simulated, not a steady state."""

from __future__ import annotations

import pandas as pd
import pytest

import llmviewer as lv
from llmviewer.calibrate import simulated, systems
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
        pipeline_parallel_size=2, burst=True, requests=simulated.AT_ONCE_REQUESTS, input_len=2048, output_len=128,
    )  # fmt: skip
    assert row["predicted"] == pytest.approx(made.to_dict()["output_tokens_per_s"], rel=0.02)
    assert row["low80"] < ROW["value"] < row["high80"]
    assert row["predicted"] == pytest.approx(ROW["value"], rel=0.1)


def test_prompts_longer_than_the_usual_step_have_a_step_of_their_own() -> None:
    (row,) = systems.predict(
        pd.DataFrame([ROW | {"input_len": 20000, "output_len": 2000, "value": 319.0}]), PredictionOptions()
    ).to_dict("records")
    assert row["predicted"] == pytest.approx(319.0, rel=0.2)


def test_without_stages_the_steady_state_answers() -> None:
    assert simulated.is_simulated(ROW)
    assert not simulated.is_simulated(ROW | {"pp": 1})
    assert not simulated.is_simulated(ROW | {"pp": ""})
