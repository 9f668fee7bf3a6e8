"""Rows of published end-to-end figures: parsing, prediction or reason for none, and fits on synthetic rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmviewer import api
from llmviewer.calibrate import e2e, e2e_rows, e2e_runs, engine_file, engine_rows, fit_engines
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.core.errors import UserError
from llmviewer.timing import engine

pd = pytest.importorskip("pandas")
SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "measured" / "e2e.csv"
ANY = PredictionOptions()


def row(**changes: Any) -> dict[str, Any]:
    """A synthetic row, of a value that no roofline forbids."""
    value = 1e6 if str(changes.get("metric", "_ms")).endswith("_ms") else 0.01
    return {
        "device": "h100_sxm", "tp": 1.0, "pp": 1.0, "model": "meta-llama/Meta-Llama-3-8B", "weight_dtype": "fp16",
        "kv_dtype": np.nan, "engine": "vllm 0.12", "batch": 8.0, "input_len": 512, "output_len": 64,
        "metric": "tpot_ms", "value": value, "note": "serving with continuous batching",
    } | changes  # fmt: skip


def predicted(**changes: Any) -> Any:
    """The prediction of one row."""
    return e2e.predict(pd.DataFrame([row(**changes)]), ANY).iloc[0]


@pytest.mark.parametrize(
    ("text", "note", "preset"),
    [
        ("gpt-fast (torch.compile)", "", "gpt-fast"),
        ("llama.cpp (May 2024, layer split)", "", "llama.cpp-2024"),
        ("llama.cpp b7000", "", "llama.cpp"),
        ("Deepspeed-MII", "", "deepspeed-mii"),
        ("TensorRT-LLM 0.9.0", "", "trtllm-cpp"),
        ("TensorRT-LLM", "", "trtllm-cpp"),
        ("TensorRT-LLM 1.0", "", "trtllm"),
        ("trtllm 1.0.0rc3", "", "trtllm"),
        ("sglang 0.5.1.post1", "", "sglang"),
        ("vllm nan", "serving with continuous batching", "vllm"),
        ("vLLM", "static batch", "vllm-v0"),
        ("vllm 0.5.4", "", "vllm-v0"),
    ],
)
def test_engines_are_matched_by_name_prefix(text: str, note: str, preset: str) -> None:
    assert e2e_rows.preset_of(text, note) == preset


def test_a_quantized_checkpoint_keeps_its_formats() -> None:
    message = {"weight_dtype": "fp8", "model": "MiniMaxAI/MiniMax-M2.5"}
    assert dict(e2e_rows.case_of(row(**message)).options)["quantization"] == "none"
    assert dict(e2e_rows.case_of(row(weight_dtype="fp8")).options)["quantization"] == "fp8"


@pytest.mark.parametrize(
    ("dtype", "quantization"), [("int4_wo", "w4a16"), ("int8_wo", "w8a16"), ("fp4", "nvfp4"), ("q8_0", "q8_0")]
)
def test_formats_of_weights_alone_leave_inputs_in_16_bits(dtype: str, quantization: str) -> None:
    assert dict(e2e_rows.case_of(row(weight_dtype=dtype)).options)["quantization"] == quantization


def test_the_name_of_a_checkpoint_gives_its_format() -> None:
    case = e2e_rows.case_of(row(model="Qwen/Qwen3-235B-A22B-FP8", weight_dtype=np.nan))
    assert case.model == "qwen3-235b-a22b"
    assert dict(case.options)["quantization"] == "fp8-block"


def test_notes_set_expert_parallelism() -> None:
    note = "attention_dp=nan; moe_tp=1.0; moe_ep=4.0; moe_dtype=nan; serving with continuous batching"
    case = e2e_rows.case_of(row(model="Qwen/Qwen3-235B-A22B-FP8", tp=4.0, note=note))
    assert dict(case.options)["expert_parallel_size"] == "4"
    assert case.batching == "continuous"


def test_a_static_row_is_predicted_like_analyze() -> None:
    found = predicted(metric="ttft_ms", note="static batch", engine="vllm 0.12")
    same = api.analyze(
        "llama-3-8b",
        "h100-sxm",
        batch_size=8,
        input_len=512,
        output_len=64,
        efficiency="calibrated",
        engine="vllm==0.12",
    )
    assert found.predicted == pytest.approx(float(same.analysis.ttft_s[0]) * 1e3)


def test_a_continuous_row_is_predicted_like_analyze() -> None:
    same = api.analyze(
        "llama-3-8b", "h100-sxm", batch_size=8, input_len=512, output_len=64, efficiency="calibrated",
        engine="vllm==0.12", batching="continuous",
    )  # fmt: skip
    assert predicted().predicted == pytest.approx(float(same.analysis.tpot_s[0]) * 1e3)


def test_metrics_of_one_run_are_consistent() -> None:
    static = {"note": "static batch", "batch": 8.0}
    latency = predicted(metric="latency_ms", **static).predicted
    assert predicted(metric="throughput_tok_s", **static).predicted == pytest.approx(8 * 64 / latency * 1e3)


def test_intervals_are_nested_and_contain_the_prediction() -> None:
    for metric in ("tpot_ms", "throughput_tok_s"):
        found = predicted(metric=metric)
        assert 0 < found.low95 <= found.low80 <= found.high80 <= found.high95
        assert found.ideal > 0


def test_rates_are_below_and_times_above_the_data_sheet() -> None:
    assert predicted(metric="tpot_ms").predicted > predicted(metric="tpot_ms").ideal
    assert predicted(metric="throughput_tok_s").predicted < predicted(metric="throughput_tok_s").ideal


def test_an_unstated_batch_size_is_the_largest_that_fits() -> None:
    unsaid = {"batch": np.nan, "metric": "throughput_tok_s", "note": "maximum load, in-flight batching"}
    assert predicted(**unsaid).predicted > predicted(metric="throughput_tok_s").predicted


def test_prefill_only_and_decode_only_rows_are_llama_bench() -> None:
    message = {
        "engine": "llama.cpp (May 2024)",
        "note": "",
        "batch": 1.0,
        "weight_dtype": "q4_k_m",
        "device": "rtx4090",
    }
    prompt = predicted(metric="throughput_tok_s", input_len=1024, output_len=0, **message)
    tokens = predicted(metric="decode_tok_s", input_len=0, output_len=512, **message)
    assert prompt.predicted > 10 * tokens.predicted > 0


@pytest.mark.parametrize(
    ("engine", "output_len", "quantization"),
    [
        ("llama.cpp (May 2024, layer split)", 0, "q4_k_m-a16"),
        ("llama.cpp (September 2023)", 0, "q4_k_m-a16"),
        ("llama.cpp (May 2024, layer split)", 128, "q4_k_m"),
        ("llama.cpp (June 2024)", 0, "q4_k_m"),
        ("llama.cpp", 0, "q4_k_m"),
    ],
)
def test_only_prompts_of_old_builds_of_llama_cpp_are_multiplied_in_16_bit(
    engine: str, output_len: int, quantization: str
) -> None:
    case = e2e_rows.case_of(row(engine=engine, weight_dtype="q4_k_m", output_len=output_len, note=""))
    assert dict(case.options)["quantization"] == quantization


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "h999"}, "unknown chip"),
        ({"model": "acme/none"}, "unknown model"),
        ({"engine": "tgi"}, "unknown engine"),
        ({"weight_dtype": "fp3"}, "unknown weight_dtype"),
        ({"metric": "joules"}, "unknown metric"),
        ({"tp": 3.0}, "3"),
    ],
)
def test_unpredictable_rows_are_returned_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    found = predicted(**changes)
    assert np.isnan(found.predicted)
    assert reason in found.reason


def test_no_row_is_dropped_or_reordered() -> None:
    frame = pd.DataFrame([row(), row(engine="tgi"), row(batch=4.0)], index=[7, 3, 5])
    found = e2e.predict(frame, ANY)
    assert list(found.index) == [7, 3, 5]
    assert list(found.reason.ne("")) == [False, True, False]
    assert found.predicted.iloc[0] > found.predicted.iloc[2] > 0


def test_a_missing_column_and_an_impossible_value_are_named() -> None:
    with pytest.raises(UserError, match="engine"):
        e2e.predict(pd.DataFrame([row()]).drop(columns="engine"), ANY)
    assert predicted(value=-1.0).reason == "value is not a number above 0"


def test_fitting_recovers_the_constants_of_generated_rows() -> None:
    """Rows generated with only 900 us per step and 40 us per sequence are fitted with these."""
    made = fit_engines.with_values(engine.load("vllm-v0"), {"step": 900.0, "sequence": 40.0})
    sizes = [(1.0, 128), (16.0, 128), (64.0, 128), (1.0, 512), (16.0, 512), (64.0, 512)]
    rows = [
        row(engine="vLLM", note="static batch", metric="latency_ms", batch=b, input_len=n, output_len=n)
        for b, n in sizes
    ]
    cases = dict(enumerate(map(e2e_rows.case_of, rows)))
    (group,) = e2e_runs.evaluate_groups(cases, e2e_runs.EvaluationOptions(presets=lambda name: made))
    assert isinstance(group, e2e_runs.CaseGroup)
    (trial,) = fit_engines.make_trials(cases, group.values(group.analysis.times))
    kept = [np.ones(len(sizes), dtype=bool)]
    found = fit_engines.solve(engine.load("vllm-v0"), ("step", "sequence"), [trial], kept)
    assert dict(found.constants) == pytest.approx({"step": 900.0, "sequence": 40.0}, rel=1e-2)
    apart = fit_engines.solve(engine.load("vllm-v0"), ("step",), [trial], kept, {"sequence": 40.0})
    assert dict(apart.constants) == pytest.approx({"step": 900.0, "sequence": 40.0}, rel=1e-2)


def test_a_fitted_preset_round_trips() -> None:
    preset = fit_engines.with_values(engine.load("vllm"), {"step": 12.0, "gemm": 1.5})
    ones = np.ones(12)
    outcome = engine_file.EngineFit(
        engine=preset, places=ones, ratio=np.linspace(0.9, 1.1, 12), possible=ones > 0, bases=np.array(["fitted"] * 12),
        metrics=np.array(["tpot_ms"] * 12), held_out_ratios={"model": ones}, host_share=ones,
        cases=(e2e_rows.case_of(row()),) * 12,
    )  # fmt: skip
    import yaml

    content = {"title": "x", "kernels": "vllm", "graph_tokens": 8.0, "constants": {}, "source": "x"}
    read = engine.parse("x", yaml.safe_load(engine_file.text_of(content, {"": outcome, "cdna3": outcome}, "here")))
    assert (read.constants, read.factors, read.graph_tokens) == ({"step": 12.0}, {"gemm": 1.5}, 8.0)
    assert read.residuals["tpot_ms"]["fitted"][0] == pytest.approx(0.9)
    assert read.of_generation("cdna3").constants == {"step": 12.0}
    assert read.of_generation("hopper") == read


@pytest.fixture(scope="module")
def shared() -> Any:
    if not SHARED.is_file():
        pytest.skip("../shared/measured/e2e.csv is not here")
    return e2e.predict(pd.read_csv(SHARED), ANY)


@pytest.mark.parametrize(
    ("checkpoint", "quantization"),
    [
        ("Qwen/Qwen3-235B-A22B-FP8", "fp8-block"),  # by the model's maker: a scale per block
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"),  # converted afterwards: a scale per tensor
        ("Qwen/Qwen3-32B", "fp8"),
    ],
)
def test_the_owner_of_an_fp8_checkpoint_tells_how_it_is_scaled(checkpoint: str, quantization: str) -> None:
    found = e2e_rows.case_of(row(model=checkpoint, weight_dtype="fp8"))
    assert dict(found.options)["quantization"] == quantization


def test_every_published_row_is_predicted_or_has_a_reason(shared: Any) -> None:
    assert (shared.predicted.notna() == shared.reason.eq("")).all()
    assert shared.predicted.notna().mean() > 0.95


@pytest.mark.parametrize(
    ("preset", "metric", "bound"),
    [
        ("vllm", "tpot_ms", 0.11),
        ("sglang", "tpot_ms", 0.10),
        ("trtllm", "tpot_ms", 0.14),
        ("vllm-v0", "latency_ms", 0.16),
        ("trtllm-cpp", "latency_ms", 0.15),
        ("gpt-fast", "decode_tok_s", 0.12),
        ("llama.cpp-2024", "decode_tok_s", 0.20),
        ("deepspeed-mii", "latency_ms", 0.20),
    ],
)
def test_errors_by_engine_stay_below_loose_bounds(shared: Any, preset: str, metric: str, bound: float) -> None:
    """Errors on rows of the kinds that presets are fitted on, and on all rows at most 1.4 times the bound."""
    rows = shared[(shared.preset == preset) & (shared.metric == metric)]
    over = rows.value / rows.ideal  # a run that stopped early is not a measurement
    rows = rows[(over > 0.95) if metric.endswith("_ms") else (over < 1.05)]
    error = (rows.predicted / rows.value - 1.0).abs()
    tests = (*engine_rows.UNUSED_ROWS, lambda row: "gpt-oss" in str(row["model"]))
    known = [not any(test(row) for test in tests) for row in rows.to_dict("records")]
    assert error[known].mean() < bound
    assert error.mean() < 1.4 * bound or preset == "llama.cpp-2024"  # a broken build is among its rows


@pytest.mark.parametrize(
    ("model", "dtype", "quantization"),
    [
        ("deepseek-ai/DeepSeek-R1", "nvfp4", "nvfp4"),  # the checkpoint has 8 bits
        ("deepseek-ai/DeepSeek-R1", "fp8", "none"),
        ("MiniMaxAI/MiniMax-M2.5", "nvfp4", "nvfp4"),
        ("openai/gpt-oss-120b", "nvfp4", "none"),  # its experts have 4 bits already
        ("openai/gpt-oss-120b", "fp8", "none"),
    ],
)
def test_only_fewer_bits_than_stored_requantize_a_checkpoint(model: str, dtype: str, quantization: str) -> None:
    assert dict(e2e_rows.case_of(row(model=model, weight_dtype=dtype)).options)["quantization"] == quantization


@pytest.mark.parametrize(("dtype", "cache"), [("fp8", "fp8"), ("nvfp4", "fp8"), ("bf16", "auto")])
def test_nvidias_checkpoints_keep_the_cache_in_8_bit(dtype: str, cache: str) -> None:
    found = row(engine="TensorRT-LLM 1.0", device="b200_sxm", model="meta-llama/Llama-3.3-70B", weight_dtype=dtype)
    assert dict(e2e_rows.case_of(found).options)["kv_cache_dtype"] == cache


@pytest.mark.parametrize(
    ("engine", "device", "model", "cache"),
    [
        ("trtllm 1.1", "h200_sxm", "openai/gpt-oss-120b", "fp8"),
        ("sglang 0.5", "b200_sxm", "deepseek-ai/DeepSeek-R1", "fp8"),
        ("sglang 0.5", "h200_sxm", "deepseek-ai/DeepSeek-R1", "auto"),
        ("vllm 0.11", "h200_sxm", "meta-llama/Llama-3.1-70B", "fp8"),
        ("vllm 0.19", "b200_sxm", "openai/gpt-oss-120b", "fp8"),
        ("vllm 0.19", "h200_sxm", "openai/gpt-oss-120b", "auto"),
    ],
)
def test_runs_of_inferencex_have_the_cache_of_their_scripts(engine: str, device: str, model: str, cache: str) -> None:
    found = row(engine=engine, device=device, model=model, weight_dtype=np.nan, note="public InferenceX run")
    assert dict(e2e_rows.case_of(found).options)["kv_cache_dtype"] == cache
    assert dict(e2e_rows.case_of(found | {"kv_dtype": "bf16"}).options)["kv_cache_dtype"] == "auto"
