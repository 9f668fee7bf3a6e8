"""Contributions of operators to a metric add up to it, exactly if passes are sequential."""

from __future__ import annotations

import pytest

from llmviewer.result.request_time import ATTRIBUTED_METRICS

from .answers import analyze


@pytest.mark.parametrize("metric", ATTRIBUTED_METRICS)
@pytest.mark.parametrize("model", ["llama-2-7b", "deepseek-v2-lite"])
def test_contributions_add_up_to_the_metric_without_a_remainder(model: str, metric: str) -> None:
    found = analyze(model, "h100", batch_size=2, input_len=512, output_len=4)
    rows = found.attribution(metric)
    assert rows["seconds"].sum() == pytest.approx(found.to_dict()["metrics"][metric])
    assert "rest" not in set(rows["kind"])


def test_an_operator_contributes_the_time_of_all_its_layers() -> None:
    """Llama-2-7b: 32 layers with one q_proj each."""
    found = analyze("llama-2-7b", "h100", input_len=512, output_len=4)
    (layer_s,) = (row["time_s"] for row in found.stage("prefill")["operators"] if row["name"] == "q_proj")
    rows = found.attribution("ttft_s").set_index("name")
    assert rows.loc["q_proj", "seconds"] == pytest.approx(32 * layer_s)
