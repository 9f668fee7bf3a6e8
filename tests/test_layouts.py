"""Layout of a published run: the groups of devices that its row states, contradictions, and impossible figures."""

from __future__ import annotations

from typing import Any

import pytest

from llmviewer import api
from llmviewer.calibrate import e2e, judge
from llmviewer.calibrate.e2e_rows import case_of
from llmviewer.calibrate.e2e_runs import evaluate_groups
from llmviewer.calibrate.layouts import Layout, layout_of
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.core.errors import UserError
from llmviewer.serving.holding import Hold, Until

pd = pytest.importorskip("pandas")
INFERENCEX = "public InferenceX run"


def found(note: str = "", *, has_experts: bool = True, **sizes: Any) -> Layout:
    return layout_of(sizes, note, has_experts=has_experts)


def moe_row(**changes: Any) -> dict[str, Any]:
    return {
        "device": "h200_sxm", "model": "MiniMaxAI/MiniMax-M2.5", "engine": "vllm 0.19", "batch": 64.0, "n_gpus": 8,
        "input_len": 512, "output_len": 16, "metric": "tpot_ms", "value": 1e6, "batching": "continuous", "note": "",
    } | changes  # fmt: skip


def test_sizes_are_read_from_columns_and_notes() -> None:
    assert found(tp=4, pp=2, n_gpus=8) == Layout(tensor=4, pipeline=2)
    assert found("attention_dp=nan; moe_tp=1.0; moe_ep=4.0", tp=4) == Layout(tensor=4, expert=4)
    assert found("moe_ep=4", tp=8, moe_ep=8) == Layout(tensor=8, expert=8)  # the column counts
    assert found(tp=1, dp=8, ep=8, n_gpus=8) == Layout(data=8, expert=8)


def test_attention_replicas_may_be_counted_beside_or_inside_tp() -> None:
    """vLLM: 2 x 4 = 8 devices; SGLang: 8 devices in 4 attention groups of 2."""
    same = Layout(tensor=2, data=4, expert=8)
    assert found(tp=2, attention_dp=4, moe_ep=8, n_gpus=8) == same
    assert found(tp=8, attention_dp=4, moe_ep=8, n_gpus=8) == same


def test_devices_beyond_stated_groups_are_replicas() -> None:
    """Eight devices in groups of 2 x 2 are two replicas; a row that states no group at all says nothing of them."""
    assert found(tp=2, pp=2, n_gpus=8) == Layout(tensor=2, pipeline=2, data=2)
    assert found(tp=1, ep=8, n_gpus=8) == Layout(data=8, expert=8)
    assert found(tp=8, n_gpus=8, has_experts=False) == Layout(tensor=8)


def test_attention_replicas_share_experts_unless_the_row_says_how_these_are_divided() -> None:
    assert found(tp=8, attention_dp=8, n_gpus=8) == Layout(data=8, expert=8)
    assert found(tp=8, attention_dp=8, n_gpus=8, has_experts=False) == Layout(data=8)


def test_inferencex_devices_that_were_multiplied_count_once() -> None:
    """TP 8 and EP 8 of the same 8 devices; with data-parallel attention 8 replicas of one."""
    noted = f"{INFERENCEX}; attention_dp=%s; moe_tp=8.0; moe_ep=8.0"
    assert found(noted % "1.0", n_gpus=64, tp=64) == Layout(tensor=8, expert=8)
    assert found(noted % "64.0", n_gpus=64, tp=1) == Layout(data=8, expert=8)
    assert found(f"{INFERENCEX}; attention_dp=4; moe_tp=1; moe_ep=16", n_gpus=16, tp=4) == Layout(data=4, expert=4)


def test_experts_do_not_matter_to_a_dense_model() -> None:
    assert found("moe_tp=0.0; moe_ep=0.0", tp=2, has_experts=False) == Layout(tensor=2)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"tp": 4, "dp": 1, "n_gpus": 8}, "tp x pp x dp is not n_gpus"),
        ({"tp": 3, "n_gpus": 8}, "tp x pp x dp is not n_gpus"),
        ({"tp": 1, "moe_tp": 4}, "moe_tp x moe_ep is not tp x dp"),
        ({"tp": 8, "moe_tp": 2, "moe_ep": 4}, "both distributed"),
        ({"attention_dp": 8, "moe_tp": 8}, "split by channels"),
        ({"tp": 2.5}, "whole number"),
    ],
)
def test_contradictory_and_unmodelled_layouts_are_refused(sizes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        found(**sizes)


def test_a_row_with_data_parallel_attention_is_predicted_like_analyze() -> None:
    frame = pd.DataFrame([moe_row(tp=1, attention_dp=8, moe_ep=8)])
    row = e2e.predict(frame, PredictionOptions()).iloc[0]
    same = api.analyze(
        "minimax-m2.5", "h200", batch_size=64, input_len=512, output_len=16, efficiency="calibrated", engine="vllm",
        batching="continuous", data_parallel_size=8, expert_parallel_size=8,
    )  # fmt: skip
    assert row.predicted == pytest.approx(float(same.analysis.tpot_s[0]) * 1e3)
    assert row.layout == "dp 8, ep 8"


def test_figures_faster_than_the_roofline_are_left_out_and_counted() -> None:
    """Just above and just below 0.9 of the roofline's time, as a time and as a rate."""
    ideal = e2e.predict(pd.DataFrame([moe_row(tp=8)]), PredictionOptions()).iloc[0].ideal
    rate = {"metric": "throughput_tok_s", "value": 1e-3}
    fastest = e2e.predict(pd.DataFrame([moe_row(tp=8, **rate)]), PredictionOptions()).iloc[0].ideal
    rows = [moe_row(tp=8, value=ideal * share) for share in (0.91, 0.89)]
    rows += [moe_row(tp=8, **rate | {"value": fastest / share}) for share in (0.91, 0.89)]
    frame = e2e.predict(pd.DataFrame(rows), PredictionOptions())
    assert list(frame.predicted.notna()) == [True, False, True, False]
    ((reason, count),) = judge.document([frame])["not_predicted"].items()
    assert count == 2
    assert "less than 0.9 of the time of the roofline" in reason


def test_the_report_scores_every_layout_and_length_of_answers() -> None:
    rows = [moe_row(tp=8), moe_row(tp=8, output_len=300), moe_row(tp=1, attention_dp=8, moe_ep=8)]
    document = judge.document([e2e.predict(pd.DataFrame(rows), PredictionOptions())])
    names = [(score["layout"], score["output_tokens"], score["rows"]) for score in document["layouts"]]
    assert names == [("dp 8, ep 8", "to 256", 1), ("tp 8", "to 2048", 1), ("tp 8", "to 256", 1)]


def test_ranks_of_tensorrt_llm_in_inferencex_hold_prompts_for_each_other() -> None:
    """Its scripts state enable_balance: no rank waits for the prompts of another, as vLLM's ranks do."""
    sizes = {"tp": 1, "attention_dp": 8, "moe_ep": 8, "batch": 256.0, "output_len": 1024, "input_len": 1024}
    rows = [
        moe_row(**sizes, engine=engine, note=note)
        for engine, note in (("trtllm 1.2.0", INFERENCEX), ("trtllm 1.2.0", ""), ("vllm 0.19", INFERENCEX))
    ]
    cases = [case_of(row) for row in rows]
    assert [case.hold for case in cases] == [Hold(steps=60, until=Until.RANKS), None, None]
    assert [case.layout for case in cases] == [Layout(data=8, expert=8)] * 3
    parts = list(evaluate_groups(dict(enumerate(cases))))
    assert [part.analysis.times.ranks for part in parts] == [1, 8, 8]
