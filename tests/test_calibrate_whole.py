"""Whole models are validated against the interval that `analyze` prints for them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llmviewer.api import analyze
from llmviewer.calibrate import whole
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.core import data

MODEL = "llama-3.1-8b"
TOKENS = 2048


@pytest.mark.parametrize("stage", ["prefill", "decode"])
@pytest.mark.parametrize("hardware", ["h200", "l40s"])
def test_the_scored_interval_of_a_model_equals_the_printed_one(hardware: str, stage: str) -> None:
    """Kernels of the H200 were measured; those of the L40S are transferred, and their deviations add up."""
    pandas = pytest.importorskip("pandas")
    config = data.read_yaml(data.folder("model_configs") / f"{MODEL}.yaml")["config"]
    row = {
        "device": hardware, "engine": "torch 2.11", "model": MODEL, "config": config, "dtype": "bfloat16",
        "graph": False, "stage": stage, "batch": 4, "seq": TOKENS, "context": TOKENS, "latency_us": 1e5,
    }  # fmt: skip
    scored = whole.predict(pandas.DataFrame([row]), "model", PredictionOptions()).iloc[0]

    answer = analyze(MODEL, hardware, batch_size=4, input_len=TOKENS, output_len=2, engine="torch", fusion="none")
    printed = json.loads(answer.to_json())["stages"][stage]
    assert scored["predicted_us"] == pytest.approx(printed["time_s"] * 1e6, rel=1e-9)
    for level, bounds in printed["time_interval_s"].items():
        ends = scored[[f"low{level}_us", f"high{level}_us"]].to_numpy(dtype=np.float64)
        assert ends == pytest.approx(np.array(bounds) * 1e6, rel=1e-9)
