"""Fit of power shares: known shares are found again, and rows that cannot be compared are named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmviewer.calibrate import fit_power, power_rows
from llmviewer.core.errors import UserError

pd = pytest.importorskip("pandas")
pytest.importorskip("scipy")

KNOWN = fit_power.shares((0.25, 0.9, 0.6))


def rows_of(model: str, tp: str, **changes: Any) -> list[dict[str, Any]]:
    """Power, TTFT and TPOT of a static batch, as the table of whole systems has them."""
    shared = {
        "source": "some-profile", "engine": "vllm", "engine_version": "0.2 (2023)", "chip": "a100-80gb-sxm",
        "model": model, "chips": float(tp), "tp": tp, "pp": 1.0, "mode": "aggregated", "quantization": "fp16",
        "input_len": 512.0, "output_len": 16.0, "concurrency": 2.0, "arrivals": "static batch", "statistic": "mean",
        "note": "",
    } | changes  # fmt: skip
    name = f"{model}:{tp}:{shared['input_len']:g}:{shared['concurrency']:g}"
    values = {"power": ("gpu_power_share_of_tdp", 0.5), "ttft": ("ttft_s", 0.4), "tpot": ("tpot_s", 0.05)}
    return [
        shared | {"id": f"{name}:{end}", "metric": metric, "value": value} for end, (metric, value) in values.items()
    ]


def wall_rows(system: str = "H200x8_TRT_MaxQ", chip: str = "h200") -> list[dict[str, Any]]:
    """Wall power of a server, and the rate of the same submission."""
    shared = {
        "source": "mlperf-v4.1", "engine": "trtllm", "engine_version": "TensorRT 10.2.0", "chip": chip,
        "model": "meta-llama/Llama-2-70b-chat-hf", "chips": 8.0, "mode": "aggregated", "quantization": "fp16",
        "output_len": 64.0, "arrivals": "all at once", "statistic": "mean", "note": "",
    }  # fmt: skip
    return [
        shared | {"id": f"power:NVIDIA:{system}:llama2:Offline:W", "metric": "system_power_w", "value": 5600.0},
        shared
        | {"id": f"v4.1:closed:NVIDIA:{system}:llama2:Offline:tok", "metric": "output_tokens_per_s", "value": 2e4},
    ]


def runs(rows: Sequence[dict[str, Any]]) -> list[power_rows.GpuRun]:
    """The runs of rows, with the power that the known shares draw."""
    found, left_out = power_rows.gpu_runs(rows)
    assert left_out == []
    times = [(run.ttft_s * scale, run.tpot_s * scale) for run, scale in zip(found, (1.0, 1.2, 1.5, 2.0), strict=False)]
    return [
        power_rows.GpuRun(
            analysis=run.analysis,
            share=fit_power.gpu_share(run, KNOWN, (ttft, tpot)),
            ttft_s=ttft,
            tpot_s=tpot,
            steps=run.steps,
            group=run.group,
        )
        for run, (ttft, tpot) in zip(found, times, strict=True)
    ]


def test_known_shares_are_found_again() -> None:
    found = fit_power.fit(
        runs(
            [
                *rows_of("meta-llama/Llama-2-7b-hf", "1"),
                *rows_of("meta-llama/Llama-2-7b-hf", "1", concurrency=32.0, input_len=64.0),
                *rows_of("meta-llama/Llama-2-13b-hf", "1", input_len=128.0),
                *rows_of("meta-llama/Llama-2-13b-hf", "2", concurrency=1.0),
            ]
        )
    )
    assert (found.idle, found.compute, found.memory) == pytest.approx((0.25, 0.9, 0.6), abs=2e-3)


def test_an_engine_without_cuda_graphs_launches_kernels_one_by_one() -> None:
    ((old,), _), ((new,), _) = (
        power_rows.gpu_runs(rows_of("meta-llama/Llama-2-7b-hf", "1", engine_version=version))
        for version in ("0.2 (2023)", "0.6")
    )
    assert old.predicted_s[1] > 1.4 * new.predicted_s[1]


def test_a_run_longer_than_the_context_is_left_out_with_the_reason() -> None:
    found, left_out = power_rows.gpu_runs(rows_of("meta-llama/Llama-2-7b-hf", "1", input_len=4096.0))
    assert found == []
    assert "longer than the model's context" in left_out[0]


def test_a_server_has_the_limit_of_its_submission() -> None:
    ((run,), left_out) = power_rows.wall_runs(wall_rows())
    assert left_out == []
    assert (run.limit_w, run.tokens_per_s, run.chips) == (500.0, 2e4, 8)
    assert run.analysis.system.chip.power_limit_w == 500.0
    # 8 x 500 W of GPUs, and (5600 - 4000) / 8 / 700 beside each of them
    assert fit_power.server_share([run], KNOWN) == pytest.approx(1600 / 8 / 700, abs=0.02)


def test_a_server_without_limit_runs_at_board_power() -> None:
    ((run,), _) = power_rows.wall_runs(wall_rows("H200x8_TRT"))
    assert (run.limit_w, run.analysis.system.chip.power_limit_w) == (700.0, None)


def test_servers_that_cannot_be_compared_are_left_out_with_the_reason() -> None:
    assert "limit of this submission is not known" in power_rows.wall_runs(wall_rows(chip="b200"))[1][0]
    assert "no row has the lengths" in power_rows.wall_runs(wall_rows()[:1])[1][0]


def test_scoring_prints_tables_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "published.csv"
    pd.DataFrame([*rows_of("meta-llama/Llama-2-7b-hf", "1"), *wall_rows()]).to_csv(table, index=False)
    fit_power.main(table, "--score")
    printed = capsys.readouterr().out
    assert "| 1 | measured times |" in printed
    assert "| H200x8_TRT_MaxQ:llama2:Offline | 500 W | 5,600 W |" in printed
    assert list(tmp_path.iterdir()) == [table]


def test_a_table_without_power_and_an_unknown_mode_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "published.csv"
    pd.DataFrame(rows_of("meta-llama/Llama-2-7b-hf", "1")[1:]).to_csv(table, index=False)
    with pytest.raises(UserError, match="no rows of power"):
        fit_power.main(table, "--score")
    with pytest.raises(UserError, match="unknown option '--scor'"):
        fit_power.main(table, "--scor")
