"""Tables of what engines log at start-up: read by their columns, predicted, scored and fitted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from llmviewer.calibrate import engine_logs, fit_memory, judge
from llmviewer.calibrate.log_scores import log_scores, optimism
from llmviewer.cli import main

COLUMNS = {
    "engine": "vllm", "engine_version": "0.19.0", "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100-80GB",
    "tp": "1", "dtype": "bfloat16", "quantization": "", "kv_dtype": "auto", "utilization": 0.95,
    "max_model_len": 8192, "quantity": "weights_gib", "value": 15.0, "unit": "GiB", "source_url": "",
}  # fmt: skip


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([{**COLUMNS, **row} for row in rows])


def predicted(**row: Any) -> float:
    found = engine_logs.predict(table(row)).iloc[0]
    assert not found["reason"], found["reason"]
    return float(found["predicted"])


def test_weights_of_a_row() -> None:
    """8.03 B parameters x 2 byte + 32 MiB of rotary tables."""
    assert predicted() == pytest.approx((8030261248 * 2 + 32 * 2**20) / 2**30, rel=1e-4)


def test_concurrency_is_that_of_the_longest_context() -> None:
    tokens = predicted(quantity="kv_tokens")
    assert predicted(quantity="max_concurrency") == pytest.approx(tokens / 8192)
    assert predicted(quantity="max_concurrency", max_model_len=2048) == pytest.approx(tokens / 2048)


def test_a_pipeline_stands_beside_the_tensor_group() -> None:
    """32 layers in 4 stages: a quarter of the cache per token on the fullest of them."""
    assert predicted(tp="1 pp4", quantity="kv_tokens") > 3.5 * predicted(quantity="kv_tokens")


def test_formats_of_checkpoints_are_read_from_their_names() -> None:
    rows = ("RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic", "redhatai/Llama-3.3-70B-Instruct-quantized.w8a8")
    eight = [predicted(model=name, tp="2", quantization="compressed-tensors") for name in rows]
    assert eight[0] == pytest.approx(eight[1], rel=0.01) and eight[0] < 36


def test_rows_that_cannot_be_predicted_say_why() -> None:
    found = engine_logs.predict(
        table(
            {"quantity": "init_non_torch_gib"},
            {"model": "nobody/unknown"},
            {"engine_version": "0.1"},
            {"gpu": "H100-80GB?", "quantity": "kv_tokens"},
            {"gpu": "H100-80GB?"},
            {"quantity": "colour"},
            {"engine": "sglang", "quantity": "kv_tokens"},
        )
    )
    words = ("no part of its budget", "unknown model", "is not known", "not sure of the chip", "", "unknown quantity")
    assert all(word in reason for word, reason in zip(words, found["reason"], strict=False))
    assert found["predicted"].notna().tolist() == [False, False, False, False, True, False, False]


def test_validate_scores_by_quantity_and_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "logs.csv"
    table({}, {"value": 16.5}, {"quantity": "init_non_torch_gib"}).to_csv(path, index=False)
    document = judge.document(judge.predict_tables([path], "", None))
    (score,) = document["memory"]
    assert (score["quantity"], score["on"], score["rows"]) == ("weights_gib", "one device", 2)
    assert document["not_predicted"] == {engine_logs.NOT_PREDICTED["init_non_torch_gib"]: 1}
    assert main(["calibrate", "validate", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "weights_gib" in printed and "Optimism" in printed and "no part of its budget" in printed


def test_optimism_is_the_error_towards_more_room() -> None:
    """Weights predicted 10 % too small, and a KV budget predicted 10 % too large; the other way round it is none."""
    frame = table({"value": 10.0}, {"quantity": "kv_tokens", "value": 10.0})
    frame = frame.assign(predicted=[9.0, 11.0], devices=1)
    assert [score.optimism for score in log_scores(frame)] == pytest.approx([0.1, 0.1])
    assert optimism("weights_gib", (frame["value"] * 0.0 + 0.1).to_numpy()) == 0.0


MODELS = ("Llama-3.1-8B", "Qwen2.5-7B", "gemma-7b", "Qwen3-0.6B", "gemma-2-9b", "Qwen3-8B", "Llama-3.2-1B")


def test_a_fit_recovers_the_constants_of_planted_logs() -> None:
    """Peaks of sampling in seven models under known constants, memory outside torch of one and of two devices."""
    rows = [{**COLUMNS, "model": name, "quantity": "activation_gib", "value": 1.0} for name in MODELS]
    rows += [{**COLUMNS, "tp": "2", "quantity": "non_torch_gib", "value": 3.0}]
    (first, found), *_ = fit_memory.observations(rows, "vllm").items()
    start = found[0].one.configuration.system.engine.memory
    assert start is not None and first == "0.19"
    truth = replace(start, logit_bytes=15.5, token_hidden=1.4, sampler_gib=0.1)
    planted = [
        replace(row, logged={name: row.parts(truth).activations / 2**30 for name in row.logged})
        for row in found
        if "activation_gib" in row.logged
    ]
    solved = fit_memory.solve(start, [*planted, *(row for row in found if row.tensor == 2)])
    assert solved.logit_bytes == pytest.approx(15.5, rel=1e-6)
    assert (solved.token_hidden, solved.sampler_gib) == pytest.approx((1.4, 0.1), rel=1e-4)
    assert (solved.alone_gib, solved.group_gib) == (start.alone_gib, 3.0)


def test_groups_over_pcie_are_fitted_apart_from_those_over_nvlink() -> None:
    """Memory outside torch of two, four and eight devices by link; every further device adds 0.1 GiB on both."""
    logged = {
        ("A100-80GB-SXM", 2): 2.0,
        ("A100-80GB-SXM", 4): 2.2,
        ("A100-80GB-SXM", 8): 2.6,
        ("L40S", 2): 0.4,
        ("L40S", 4): 0.6,
        ("L40S", 8): 1.0,
    }
    rows = [
        {**COLUMNS, "gpu": chip, "tp": str(devices), "quantity": "non_torch_gib", "value": value}
        for (chip, devices), value in logged.items()
    ]
    (_, found), *_ = fit_memory.observations(rows, "vllm").items()
    start = found[0].one.configuration.system.engine.memory
    assert start is not None
    for kept in (found, [row for row in found if row.is_over_pcie or row.tensor == 2]):
        solved = fit_memory.solve(start, kept)
        assert (solved.group_gib, solved.pcie_group_gib, solved.member_gib) == pytest.approx((2.0, 0.4, 0.1))


def test_left_out_models_score_a_fit() -> None:
    rows = [{**COLUMNS, "model": name, "quantity": "activation_gib", "value": 2.2} for name in MODELS[:3]]
    (_, found), *_ = fit_memory.observations(rows, "vllm").items()
    start = found[0].one.configuration.system.engine.memory
    assert start is not None
    logged = [replace(row, logged={"activation_gib": row.parts(start).activations / 2**30}) for row in found]
    errors = fit_memory.held_out_errors(start, logged)["activation_gib"]["one device"]
    assert errors["rows"] == 3 and errors["mape"] < 1e-3
