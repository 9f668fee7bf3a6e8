"""The analysis as a whole: the survey's example to the byte, totals, points and sweeps, exact decode steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer import models
from llmviewer.analysis.evaluation import evaluate
from llmviewer.core.workload import decode, prefill
from llmviewer.hardware import specs

from .answers import analyze, answer, operators, roofline_of

SURVEY: dict[str, Any] = {"batch_size": 1, "input_len": 2048, "attention": "eager"}
#: Models with windows, chunks, experts, latent attention, recurrence, quantized checkpoints.
VARIED = """
    llama-2-7b qwen3-30b-a3b deepseek-v2-lite jamba-v0.1 qwen3.5-9b gemma-3-4b gpt-oss-20b llama-4-scout bloom-7b1
    mamba-2.8b minimax-text-01 deepseek-v3
""".split()
MOE = models.load("qwen3-30b-a3b")
LATENT = models.load("deepseek-v2-lite")
DENSE = models.load("llama-2-7b")


@pytest.fixture(scope="module")
def survey() -> dict[str, Any]:
    """Llama-2-7b on an RTX A6000, sequence 2048, batch 1, fp16, eager attention (arXiv 2402.16363, table 1)."""
    return answer("llama-2-7b", "a6000", **SURVEY)


def test_survey_prefill_q_proj(survey: dict[str, Any]) -> None:
    """2 x 2048 x 4096^2 FLOP; (2 x 2048 x 4096 + 4096^2) x 2 bytes; compute-bound at 154.8 TFLOP/s."""
    row = operators(survey, "prefill")["q_proj"]
    assert row["flops"] == 68_719_476_736
    assert row["traffic_bytes"] == 67_108_864
    assert row["arithmetic_intensity"] == 1024
    assert row["bound"] == "compute"
    assert row["attainable_flops_per_s"] == pytest.approx(154.8e12)


def test_survey_decode_q_proj(survey: dict[str, Any]) -> None:
    """2 x 4096^2 FLOP; (4096^2 + 2 x 4096) x 2 bytes; memory-bound at 768 GB/s."""
    row = operators(survey, "decode")["q_proj"]
    assert row["flops"] == 33_554_432
    assert row["traffic_bytes"] == 33_570_816
    assert row["arithmetic_intensity"] == pytest.approx(1.0, abs=1e-3)
    assert row["bound"] == "memory"
    assert row["time_s"] == pytest.approx(33_570_816 / 768e9)


@pytest.mark.parametrize(
    ("stage", "name", "gflop", "megabytes", "bound"),
    [
        ("prefill", "gate_proj", 184.68, 152.0, "compute"),
        ("prefill", "qk_matmul", 34.36, 302.0, "memory"),
        ("prefill", "sv_matmul", 34.36, 302.0, "memory"),
        ("prefill", "softmax", 0.671, 536.9, "memory"),
        ("prefill", "down_proj", 184.68, 152.0, "compute"),
        ("decode", "gate_proj", 0.0902, 90.2, "memory"),
        ("decode", "qk_matmul", 0.0168, 16.9, "memory"),
        ("decode", "sv_matmul", 0.0168, 16.9, "memory"),
    ],
)
def test_survey_per_layer(
    survey: dict[str, Any], stage: str, name: str, gflop: float, megabytes: float, bound: str
) -> None:
    row = operators(survey, stage)[name]
    assert row["layers"] == 32
    assert row["flops"] == pytest.approx(gflop * 1e9, rel=3e-3)
    assert row["traffic_bytes"] == pytest.approx(megabytes * 1e6, rel=3e-3)
    assert row["bound"] == bound


def test_the_decode_stage_attends_to_input_len_keys(survey: dict[str, Any]) -> None:
    stage = survey["stages"]["decode"]
    assert (stage["new_tokens"], stage["cached_tokens"]) == (1, 2047)
    assert operators(survey, "decode")["qk_matmul"]["output_shape"] == [1, 32, 2048]


MODELS = ["llama-2-7b", "llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b", "gemma-3-4b", "jamba-v0.1"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_stage_totals_are_operators_times_layers(model: str, attention: str) -> None:
    found = answer(model, "h100", batch_size=3, input_len=777, attention=attention)
    for stage in found["stages"].values():
        for quantity in ("flops", "matmul_flops", "traffic_bytes"):
            assert stage[quantity] == pytest.approx(
                sum(row[quantity] * row["layers"] for row in stage["operators"]), rel=1e-14
            )
        for quantity in ("time_s", "ideal_time_s"):
            assert stage[quantity] == pytest.approx(
                sum(row[quantity] * row["layers"] for row in stage["operators"]), rel=1e-12
            )


def test_integer_totals_are_exact(survey: dict[str, Any]) -> None:
    for stage in survey["stages"].values():
        for quantity in ("flops", "matmul_flops", "traffic_bytes"):
            assert stage[quantity] == sum(row[quantity] * row["layers"] for row in stage["operators"])


@pytest.mark.parametrize("model", MODELS)
def test_columns_by_role_add_up_to_the_traffic(model: str) -> None:
    columns = ("weight_read", "activation_read", "activation_write", "kv_read", "kv_write")
    for stage in answer(model, "h100", batch_size=3, input_len=777)["stages"].values():
        for row in stage["operators"]:
            assert row["traffic_bytes"] == pytest.approx(sum(row[f"{column}_bytes"] for column in columns)), row["name"]


point = st.tuples(st.integers(1, 512), st.integers(1, 20000), st.integers(1, 40))


def same_bits(left: Any, right: Any) -> bool:
    """True if equal, or both NaN (TPOT of a single output token)."""
    return left == right or (left != left and right != right)  # noqa: PLR0124


@cache
def loaded(name: str) -> models.Model:
    return models.load(name)


@pytest.mark.parametrize("name", VARIED)
@settings(max_examples=8)
@given(
    points=st.lists(point, min_size=2, max_size=6),
    chip=st.sampled_from(["a6000", "h100-sxm", "mi300x"]),
    attention=st.sampled_from(["flash", "eager"]),
    budget=st.sampled_from([0, 2048]),
    scheme=st.sampled_from(["none", "w4a16", "w8a8kv8"]),
)
def test_a_single_point_and_the_same_point_of_a_sweep_are_bit_identical(
    name: str, points: list[tuple[int, int, int]], chip: str, attention: str, budget: int, scheme: str
) -> None:
    options: dict[str, Any] = {"attention": attention, "max_num_batched_tokens": budget, "quantization": scheme}
    model = loaded(name)
    batches, prompts, outputs = (list(column) for column in zip(*points, strict=True))
    sweep = analyze(model, chip, batch_size=batches, input_len=prompts, output_len=outputs, **options)
    columns = sweep.columns()
    for at, (batch, prompt, output) in enumerate(points):
        single = analyze(model, chip, batch_size=batch, input_len=prompt, output_len=output, **options)
        for column, values in single.columns().items():
            assert same_bits(values[0], columns[column][at]), column
        for stage in ("prefill", "decode"):
            assert single.stage(stage) == sweep.stage(stage, at)


@pytest.mark.parametrize("name", models.names())
def test_every_model_has_finite_times_and_is_faster_with_flash_attention(name: str) -> None:
    """A single token, a medium and a long batch, on chips with many and few published figures; encoders one pass."""
    sizes: dict[str, Any] = {"batch_size": [1, 3, 64], "input_len": [1, 1000, 8000], "output_len": [2, 5, 3]}
    metrics = ["ttft_s", "e2e_s", "prefill_traffic_bytes"]
    if loaded(name).is_encoder:
        sizes.update(input_len=[1, 100, 512], output_len=1)
    else:
        metrics += ["tpot_s", "decode_traffic_bytes"]
    for chip in ("h100-sxm", "tpu-v5e"):
        flash, eager = (analyze(loaded(name), chip, attention=kind, **sizes).columns() for kind in ("flash", "eager"))
        for metric in metrics:
            assert np.isfinite(flash[metric]).all() and (flash[metric] > 0).all(), metric
            assert (flash[metric] <= eager[metric]).all(), metric
        for found in (flash, eager):
            assert (found["prefill_mfu"] <= 1).all() and not (found["decode_mbu"] > 1).any()


def step_time(model: models.Model, chip: str, step: Any, attention: str) -> float:
    """Time of one forward pass, evaluated separately [s]."""
    on = roofline_of(chip, attention=attention)
    rows = evaluate(model, on, step).rows
    return float(sum(np.asarray(row.timing.time_s).reshape(-1)[0] * row.block.repeats for row in rows))


@pytest.mark.parametrize("model", [DENSE, MOE, LATENT], ids=lambda model: model.name)
@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_tpot_is_the_mean_of_single_steps(model: models.Model, attention: str) -> None:
    """12 output tokens, prompt of 100: 11 steps over 100 ... 110 cached tokens; prefill gives the first token."""
    found = analyze(model, "a6000", batch_size=4, input_len=100, output_len=12, attention=attention).metrics()
    steps = [step_time(model, "a6000", decode(4.0, 100.0 + i), attention) for i in range(11)]
    assert found["tpot_s"] == pytest.approx(np.mean(steps), rel=1e-12)
    assert found["ttft_s"] == pytest.approx(step_time(model, "a6000", prefill(4.0, 100.0), attention), rel=1e-12)
    assert found["e2e_s"] == pytest.approx(found["ttft_s"] + sum(steps), rel=1e-12)


def test_a_single_output_token_has_no_tpot() -> None:
    found = answer("llama-2-7b", "a6000", output_len=1)["metrics"]
    assert found["tpot_s"] is None
    assert found["e2e_s"] == found["ttft_s"]


def test_throughput_is_batch_tokens_over_end_to_end_time() -> None:
    found = answer("llama-2-7b", "a6000", batch_size=16, input_len=512, output_len=128)["metrics"]
    assert found["output_tokens_per_s"] == pytest.approx(16 * 128 / found["e2e_s"])
    assert found["output_tokens_per_s_per_user"] == pytest.approx(128 / found["e2e_s"])


def test_utilizations_are_fractions_of_the_data_sheet() -> None:
    """MFU: causal matmul FLOPs over time x 312 TFLOP/s; MBU: weights and cache over time x 2039 GB/s."""
    found = answer("llama-2-7b", "a100", input_len=2048, attention="flash")
    prefill_stage = found["stages"]["prefill"]
    mfu = prefill_stage["matmul_flops"] / (prefill_stage["time_s"] * 312e12)
    assert found["metrics"]["prefill_mfu"] == pytest.approx(mfu)
    assert 0.9 < found["metrics"]["prefill_mfu"] < 1
    assert 0.99 < found["metrics"]["decode_mbu"] < 1


def test_bandwidth_utilization_uses_the_real_decode_steps() -> None:
    """Prompt 2048, 3 tokens: the real steps read 2049 and 2050 keys, as shown for prompts of 2049 and 2050."""
    requested = {"batch_size": 64, "quantization": "w4a16"}
    shown = [answer("llama-2-7b", "a100", input_len=n, **requested)["stages"]["decode"] for n in (2049, 2050)]
    read = sum(
        (row["weight_read_bytes"] + row["kv_read_bytes"]) * row["layers"]
        for stage in shown
        for row in stage["operators"]
    )
    found = answer("llama-2-7b", "a100", input_len=2048, output_len=3, **requested)["metrics"]
    assert found["decode_mbu"] == pytest.approx(read / (sum(stage["time_s"] for stage in shown) * 2039e9), rel=1e-12)
    single = answer("llama-2-7b", "a100", input_len=2048, output_len=1, **requested)["metrics"]
    assert single["decode_mbu"] is None, "one output token takes no decode step"


def test_mfu_divides_every_flop_by_the_peak_of_its_own_dtype() -> None:
    """w8a8 on the A100: projections at 624 TOPS, attention and head at 312.  With 312 for all, MFU would exceed 1; the
    formats of decode or of other points of a sweep do not matter."""
    found = analyze("qwen3-30b-a3b", "a100", batch_size=64, input_len=[1, 8000], quantization="w8a8")
    for at in range(2):
        stage = found.stage("prefill", at)
        peaks = {"int8": 624e12, "bf16": 312e12, "fp32": 1.0}
        least = sum(row["matmul_flops"] * row["layers"] / peaks[row["compute_dtype"]] for row in stage["operators"])
        assert found.columns()["prefill_mfu"][at] == pytest.approx(least / stage["time_s"])
        assert least <= stage["time_s"]
        assert found.to_dict(at)["roofline"]["compute_dtype"] == "int8"


def test_masked_pairs_of_eager_attention_are_not_model_flops() -> None:
    flash, eager = (answer("llama-2-7b", "a100", input_len=2048, attention=a) for a in ("flash", "eager"))
    useful = [found["metrics"]["prefill_mfu"] * found["metrics"]["ttft_s"] for found in (flash, eager)]
    assert useful[0] == pytest.approx(useful[1], rel=1e-12)


chunks = st.integers(1, 3000)


@settings(max_examples=20)
@given(batch=st.integers(1, 8), prompt=st.integers(1, 3000), budget=chunks, model=st.sampled_from([DENSE, MOE]))
def test_chunked_prefill_keeps_flops_of_linear_layers_and_of_flash_attention(
    batch: int, prompt: int, budget: int, model: models.Model
) -> None:
    whole, split = (
        analyze(model, "a100", batch_size=batch, input_len=prompt, output_len=1, max_num_batched_tokens=tokens)
        for tokens in (0, budget)
    )
    together, parts = (result.stage("prefill") for result in (whole, split))
    assert parts["matmul_flops"] == pytest.approx(together["matmul_flops"], rel=1e-12)
    for left, right in zip(together["operators"], parts["operators"], strict=True):
        assert left["matmul_flops"] == pytest.approx(right["matmul_flops"], rel=1e-12), left["name"]
    assert parts["traffic_bytes"] >= together["traffic_bytes"] * (1 - 1e-12), "weights are read again"
    assert whole.columns()["kv_cache_bytes"] == split.columns()["kv_cache_bytes"]


@settings(max_examples=15)
@given(batch=st.integers(1, 64), prompt=st.integers(1, 4096), output=st.integers(2, 64))
def test_a_larger_batch_takes_longer_and_yields_more(batch: int, prompt: int, output: int) -> None:
    found = analyze(MOE, "h200", batch_size=[batch, batch + 1], input_len=prompt, output_len=output).columns()
    assert found["ttft_s"][0] <= found["ttft_s"][1]
    assert found["tpot_s"][0] <= found["tpot_s"][1]
    assert found["output_tokens_per_s"][0] <= found["output_tokens_per_s"][1] * (1 + 1e-12)


def test_moe_reads_the_expected_number_of_distinct_experts() -> None:
    """128 experts, 8 per token: one token uses 8, 64 tokens 128 (1 - (1 - 8/128)^64) = 125.9; FLOPs are 64 x 8."""
    one, many = (
        {row["name"]: row for row in answer("qwen3-30b-a3b", "h200", batch_size=b)["stages"]["decode"]["operators"]}
        for b in (1, 64)
    )
    expert = 2 * 2048 * 768
    assert one["expert_up_proj"]["weight_read_bytes"] == pytest.approx(8 * expert)
    assert many["expert_up_proj"]["weight_read_bytes"] == pytest.approx(128 * (1 - (1 - 8 / 128) ** 64) * expert)
    assert many["expert_up_proj"]["matmul_flops"] == 64 * 8 * 2 * 2048 * 768


@pytest.mark.parametrize(
    "speculative",
    [
        "draft=llama-3.2-1b,tokens=best,acceptance=0.7",
        "tree,draft=llama-3.2-1b,widths=2/2/1",
        "eagle,tokens=best,acceptance=0.7",
        "medusa",
        "pass,tokens=3,acceptance=0.5",
    ],
)
def test_a_draft_runs_on_the_hypothetical_chip_of_its_point(speculative: str) -> None:
    h100, factors = specs.load("h100"), (1.0, 8.0, 0.5)
    several = replace(h100, bandwidth_bytes_per_s=np.array(factors) * h100.bandwidth_bytes_per_s)
    sizes = {"batch_size": 64, "input_len": 500, "output_len": 4, "speculative": speculative}
    together = analyze("llama-3.1-8b", several, **sizes)
    for at, factor in enumerate(factors):
        one = replace(h100, bandwidth_bytes_per_s=factor * h100.bandwidth_bytes_per_s)
        assert together.to_dict(at) == analyze("llama-3.1-8b", one, **sizes).to_dict()


@pytest.mark.parametrize("figure", ["bandwidth_bytes_per_s", "memory_bytes", "l2_bytes", "units", "matrix_flops_per_s"])
def test_a_hypothetical_chip_in_an_array_matches_the_single_chip(figure: str) -> None:
    """H100s with one figure times 1 and 2: the second result equals that of a single chip with twice as much."""
    chip, name = specs.load("h100"), "gemma-3-12b"

    def times(factor: Any) -> Any:
        value = getattr(chip, figure)
        return {dtype: rate * factor for dtype, rate in value.items()} if isinstance(value, Mapping) else value * factor

    both, single = (replace(chip, **{figure: times(factor)}) for factor in (np.array([1.0, 2.0]), 2.0))
    found, expected = (analyze(name, c, input_len=40000, batch_size=8) for c in (both, single))
    assert found.to_dict(1) == expected.to_dict()
    assert found.columns()["ttft_s"][1] == expected.columns()["ttft_s"][0]


def test_totals_are_the_prefill_and_every_decode_step() -> None:
    """A step after n tokens reads the cache of n + 1, and the one shown of an input of n + 1 has n + 1 keys."""
    found = lv.analyze("llama-3.1-8b", "h100", batch_size=2, input_len=100, output_len=6)
    steps = [
        lv.analyze("llama-3.1-8b", "h100", batch_size=2, input_len=101 + step, output_len=2).stage("decode")
        for step in range(5)
    ]
    for name in ("flops", "traffic_bytes"):
        by_hand = found.stage("prefill")[name] + sum(step[name] for step in steps)
        assert found.to_dict()["totals"][name] == pytest.approx(by_hand, rel=1e-12)
        assert found.columns()[f"total_{name}"][0] == pytest.approx(by_hand, rel=1e-12)
    assert lv.analyze("llama-3.1-8b", "h100", batching="continuous").to_dict()["totals"] == {
        "flops": None,
        "traffic_bytes": None,
    }
