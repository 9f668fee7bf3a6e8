"""No published figure is faster than the roofline of the data sheet, but for those that stand in a list."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from llmviewer.calibrate import ledger, ledger_score
from llmviewer.calibrate.lower_bound import share_of_roofline

from .answers import analyze
from .published_bounds import ideal_command, reason_of, share_of_row

#: Rows that the roofline bounds: a speedup is a ratio, and a run without a batch has as many sequences as fit; training
#: steps have a test of their own (test_ledger_score.py).
BOUNDED = [
    (source, row)
    for source, row in ledger.rows(ledger.load())
    if row.metric not in ("speedup", ledger.TRAINING) and row.batch is not None
]


def test_every_figure_of_the_ledger_takes_at_least_the_time_of_the_roofline() -> None:
    found = [
        (source.name, row, share_of_roofline(ledger_score.case_of(source, row), row.value)) for source, row in BOUNDED
    ]
    faster = {(name, row.key): share for name, row, share in found if share > 1.0}
    known = {(name, row.key) for name, row, _ in found if reason_of(asdict(row) | {"source": name}, "ledger")}
    assert set(faster) <= known, "no reason is known"
    assert len(BOUNDED) > 350 and len(known) == 4
    assert max(faster.values()) < 1.35


def test_a_command_of_an_engine_becomes_one_of_the_roofline() -> None:
    row = {"command": "llmviewer analyze m --engine vllm --enforce-eager --max-model-len 9 -tp 2", "format": "fp8"}
    assert ideal_command(row) == ["analyze", "m", "-tp", "2", "--efficiency", "ideal", "--format", "json"]
    assert "mxfp4_moe" in ideal_command(row | {"format": "mxfp4"})


def test_shares_are_roofline_time_over_published_time() -> None:
    """8 sequences x 1 token in 0.02 s are 400 tokens/s; 2,048 tokens x 8 in 2 s are 8,192 tokens/s."""
    answer = {
        "metrics": {"tpot_s": 0.02, "ttft_s": 2.0, "e2e_s": 3.0},
        "workload": {"batch_size": 8, "output_len": 51},
        "output_tokens_per_s": 100.0,
    }
    rows = {("decode", "200"): 0.5, ("prefill:2048", "4096"): 0.5, ("tpot", "40"): 0.5, ("request", "68"): 0.5}
    for (take, value), share in rows.items():
        assert share_of_row({"kind": "analyze", "take": take, "value": value}, answer) == pytest.approx(share)
    assert share_of_row({"kind": "simulate", "take": "out", "value": "120"}, answer) == pytest.approx(1.2)
    assert share_of_row({"kind": "simulate", "take": "tpot", "value": "120"}, answer) is None


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "torch-eager", "trtllm"])
def test_the_roofline_has_no_habits_of_an_engine(engine: str) -> None:
    """An engine's eager attention, micro-batches and kernels take at least as long as the roofline of fused kernels."""
    sizes = {"input_len": 8192, "output_len": 64, "batch_size": 4}
    bound = analyze("llama-3.1-8b", "h100", **sizes, fusion="all")
    assert not bound.analysis.system.engine.constants
    served = analyze("llama-3.1-8b", "h100", **sizes, efficiency="calibrated", engine=engine)
    for name in ("prefill", "decode"):
        assert bound.stage(name)["ideal_time_s"] <= served.stage(name)["ideal_time_s"] * (1.0 + 1e-9)
    assert float(bound.ttft_s) <= float(served.ttft_s) and float(bound.tpot_s) <= float(served.tpot_s)
