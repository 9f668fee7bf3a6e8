"""Published figures of whole systems: what a steady state predicts, and what is left out with a counted reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer import api
from llmviewer.calibrate import judge, systems
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.reports import ledger_page
from llmviewer.reports.page import Table

pd = pytest.importorskip("pandas")


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a minute in place of ten, in a search for the largest rate."""
    monkeypatch.setattr("llmviewer.simulation.traffic.LEAST_S", 60.0)
    monkeypatch.setattr("llmviewer.simulation.traffic.LEAST_REQUESTS", 500)


def row(**changes: Any) -> dict[str, Any]:
    """A static batch of an old vLLM."""
    return {
        "source": "some-profile", "engine": "vllm", "engine_version": "0.2 (2023)", "chip": "h100-sxm",
        "model": "meta-llama/Llama-2-70b-hf", "chips": 8.0, "tp": "8", "pp": 1.0, "mode": "aggregated",
        "quantization": "fp16",
        "input_len": 512.0, "output_len": 16.0, "concurrency": 4.0, "arrivals": "static batch", "metric": "ttft_s",
        "statistic": "median of 5", "value": 1.0, "note": "",
    } | changes  # fmt: skip


def predicted(*rows: dict[str, Any]) -> Any:
    return systems.predict(pd.DataFrame(list(rows)), PredictionOptions())


def test_seconds_of_a_system_are_predicted_like_analyze() -> None:
    found = predicted(row()).iloc[0]
    same = api.analyze(
        "llama-2-70b", "h100-sxm", batch_size=4, input_len=512, output_len=16, tensor_parallel_size=8,
        efficiency="calibrated", engine="vllm-v0", quantization="none",
    )  # fmt: skip
    assert found.predicted == pytest.approx(float(same.analysis.ttft_s[0]) * 1e3)
    assert (found.value, found.preset) == (1000.0, "vllm-v0")


def test_pools_of_a_disaggregated_system_are_its_instances() -> None:
    pools = {
        "mode": "disaggregated", "prefill_workers": 2.0, "decode_workers": 1.0, "tp": "2/2", "chips": 6.0,
        "engine": "sglang", "engine_version": "latest", "arrivals": "closed loop, 500 prompts", "statistic": "mean",
        "metric": "output_tokens_per_s", "concurrency": 8.0,
    }  # fmt: skip
    found = predicted(row(**pools)).iloc[0]
    same = lv.simulate(
        "llama-2-70b", "h100-sxm", concurrency=8, burst=True, requests=500, input_len=512, output_len=16,
        tensor_parallel_size=2, batching="disaggregated,prefill=2,decode=1", engine="sglang", quantization="none",
    )  # fmt: skip
    assert found.predicted == pytest.approx(500 * 16 / same.records.finish_s.max())
    assert found.low80 < found.predicted < found.high80
    contradiction = predicted(row(**pools | {"chips": 8.0}), row(**pools | {"tp": "2/4"}))
    assert list(contradiction.reason.str.contains("tp x workers is not chips|different sizes")) == [True, True]


def test_a_submission_runs_as_replicas_of_the_smallest_group_that_fits() -> None:
    """69 GB of FP8 weights are above 0.6 x 86 GB: 4 times 2 devices; below 0.6 x 151 GB of an H200: 8 times 1."""
    offline = {
        "source": "mlperf-v4.1", "engine": "trtllm", "engine_version": "TensorRT 10.2.0, CUDA 12.4", "tp": None,
        "pp": None, "input_len": None, "output_len": 290.0, "concurrency": None, "arrivals": "all at once",
        "statistic": "mean", "metric": "output_tokens_per_s",
    }  # fmt: skip
    found = predicted(row(**offline), row(**offline | {"chip": "h200"}))
    assert list(found.layout) == ["tp 2, dp 4", "dp 8"]
    assert list(found.preset) == ["trtllm-cpp", "trtllm-cpp"]
    assert (found.predicted > 1000.0).all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arrivals": "now and then"}, "unknown arrivals"),
        ({"statistic": "p99"}, "percentiles"),
        ({"arrivals": "Poisson", "source": "mlperf", "request_rate": 1.0}, "its largest rate is judged"),
        ({"arrivals": "closed loop", "metric": "system_power_w"}, "power and energy"),
        ({"metric": "system_power_w"}, "power and energy"),
        ({"note": "power capped"}, "power cap"),
        ({"input_len": None}, "input_len is not stated"),
        ({"chips": 12.0}, "contradicts itself"),
        ({"chip": "h999"}, "unknown chip"),
        ({"chips": float("nan")}, "number of chips"),
        ({"value": -1.0}, "value is not a number above 0"),
        ({"note": "nominal 512/4096; lengths random"}, "failed run"),
    ],
)
@pytest.mark.usefixtures("short_runs")
def test_what_no_steady_state_predicts_is_left_out_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    found = predicted(row(**changes), row())
    assert list(found.predicted.notna()) == [False, True]
    assert found.reason.str.contains(reason).iloc[0]


@pytest.mark.usefixtures("short_runs")
def test_the_largest_rate_of_a_submission_is_that_of_one_replica_times_their_number() -> None:
    server = {
        "source": "mlperf-v4.1", "engine": "trtllm", "engine_version": "TensorRT 10.2.0, CUDA 12.4", "tp": None,
        "pp": None, "input_len": None, "output_len": 290.0, "concurrency": None, "arrivals": "Poisson",
        "statistic": "mean", "metric": "output_tokens_per_s", "chip": "h200", "request_rate": 80.0,
    }  # fmt: skip
    one, eight = (predicted(row(**server | {"chips": chips})).iloc[0] for chips in (1.0, 8.0))
    assert eight.predicted == pytest.approx(8.0 * one.predicted)
    assert one.low80 < one.predicted < one.high80


@pytest.mark.parametrize(("chip", "preset"), [("h200", "tensorrt-llm"), ("b200", "trtllm")])
def test_the_compiled_runtime_of_tensorrt_is_of_chips_before_blackwell(chip: str, preset: str) -> None:
    assert systems.engine_of(row(engine="trtllm", engine_version="TensorRT 10.1.0, CUDA 12.7", chip=chip)) == preset


def test_percentiles_of_a_burst_are_those_of_all_its_requests() -> None:
    burst = {"arrivals": "closed loop, all at once", "metric": "ttft_s", "concurrency": 4.0}
    found = predicted(row(**burst, statistic="p50"), row(**burst, statistic="p99"), row(**burst, statistic="mean"))
    same = lv.simulate(
        "llama-2-70b", "h100-sxm", concurrency=4, burst=True, requests=40, input_len=512, output_len=16,
        tensor_parallel_size=8, engine="vllm-v0", quantization="none",
    )  # fmt: skip
    assert found.predicted.tolist()[:2] == pytest.approx(np.quantile(same.records.ttft_s, [0.5, 0.99]).tolist())
    assert found.predicted.tolist()[2] == pytest.approx(same.records.ttft_s.mean())


def test_validate_tells_tables_of_systems_by_their_columns_and_counts_every_row(tmp_path: Path) -> None:
    path = tmp_path / "published.csv"
    pd.DataFrame([row(), row(metric="tpot_s", value=0.1), row(arrivals="Poisson"), row(statistic="p90")]).to_csv(path)
    document = judge.document(judge.predict_tables([path], "", None))
    assert document["total"]["rows"] == 2
    assert sum(document["not_predicted"].values()) == 2


def test_figures_of_whole_systems_are_shown_with_dashes_for_what_they_do_not_state() -> None:
    """A largest rate has no lengths of its own and no roofline."""
    figure = {
        "model": "x", "device": "mi300x", "preset": "vllm-v0", "metric": "throughput_tok_s",
        "measured": 900.0, "predicted": 1000.0, "interval_80": (800.0, 1200.0),
        "ideal": float("nan"), "difference": 0.11, "verdict": "as predicted",
    }  # fmt: skip
    table = ledger_page.parts([figure, figure | {"input_len": float("nan"), "output_len": 128.0}])[0]
    assert isinstance(table, Table)
    first, second = (row.cells for row in table.rows)
    assert (first[2:4], second[2:4]) == (("–", "–"), ("–", "128"))
    assert first[7] == "–"
