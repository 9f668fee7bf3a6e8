"""Diagnosis against a wrong chip, model or work, of eager engines, and of recordings of different length."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.api.configuration import configuration
from llmviewer.calibrate.diagnosis.annotation import Stated, step_of, work_of
from llmviewer.calibrate.diagnosis.call import diagnosis_of
from llmviewer.calibrate.diagnosis.pricing import priced
from llmviewer.calibrate.diagnosis.recording import Mark, Recording
from llmviewer.calibrate.diagnosis.suspects import PORTABLE
from llmviewer.calibrate.diagnosis.wording import short, told
from llmviewer.core.workload import Step
from llmviewer.reports import diagnosis_page
from tests.planted import CASES, Case, recorded, runs_of

DENSE = CASES["dense vLLM on Hopper"]


def _recording(
    case: Case = DENSE, *, slower: float = 1.0, wait_s: float | None = None, late_s: float = 0.0
) -> Recording:
    """The recording of a case.  slower: factor of all kernels.  wait_s: before every kernel.  late_s: before passes."""
    passes = runs_of(case, np.random.default_rng(0))
    for runs in passes:
        runs[:] = [
            replace(run, seconds=run.seconds * slower, wait_s=wait_s if wait_s and at else run.wait_s)
            for at, run in enumerate(runs)
        ]
        runs[0] = replace(runs[0], wait_s=runs[0].wait_s + late_s)
    return recorded(case, passes)[0]


def _diagnosed(recording: Recording, stated: Stated = Stated(), **changes: Any) -> dict[str, Any]:  # noqa: B008
    words: dict[str, Any] = {"model": DENSE.model, "hardware": DENSE.hardware, "engine": DENSE.engine} | changes
    chosen = configuration(words.pop("model"), words.pop("hardware"), **words)
    return diagnosis_of(recording, chosen, stated, "planted").to_dict()


def _step(mark: str) -> Step:
    """The pass that a mark states."""
    work = work_of(mark)
    assert work is not None
    return step_of(work, Stated())


def _parts(answer: dict[str, Any]) -> dict[str, float]:
    return {part["name"]: part["amount_s"] for part in answer["parts"]}


@pytest.mark.parametrize("passes", [2, 3, 10])
def test_neither_prediction_nor_gaps_depend_on_the_length_of_a_recording(passes: int) -> None:
    """3 ms late before every pass: 3 ms between passes, whether one of two passes is followed or nine of ten."""
    answer = _diagnosed(_recording(replace(DENSE, passes=passes), late_s=3e-3))
    assert answer["predicted_s"] == pytest.approx(_diagnosed(_recording())["predicted_s"], rel=1e-12)
    assert _parts(answer)["gaps between passes"] == pytest.approx(3e-3, rel=1e-3)
    assert answer["followed"] == passes - 1


def test_a_pass_alone_says_that_the_next_one_is_missing() -> None:
    answer = _diagnosed(_recording(replace(DENSE, passes=1)))
    assert "no pass follows" in str(diagnosis_page.of_document(answer))
    assert "gaps between passes" not in _parts(answer)


def test_launches_one_by_one_that_are_predicted_are_no_difference() -> None:
    """The gaps between kernels are the predicted ones: nothing is late, and no suspect asks for CUDA graphs."""
    case = replace(DENSE, engine="vllm", eager=True)
    chosen = configuration(case.model, case.hardware, engine="vllm", enforce_eager=True)
    planned = float(priced(chosen, [_step(case.mark)]).within_s[0])
    assert planned > 1e-3
    kernels = len(_recording(replace(case, passes=1)).kernels)
    recording = _recording(case, wait_s=planned / (kernels - 1))
    answer = _diagnosed(recording, engine="vllm", enforce_eager=True)
    assert abs(_parts(answer)["gaps within passes"]) < 0.01 * answer["measured_s"]
    assert not [one for one in answer["suspects"] if "CUDA graphs" in one["try"]]
    late = _diagnosed(_recording(case, wait_s=3.0 * planned / (kernels - 1)), engine="vllm", enforce_eager=True)
    assert _parts(late)["gaps within passes"] == pytest.approx(2.0 * planned, rel=0.01)
    assert f"{told(planned)} predicted" in late["suspects"][0]["text"]
    assert "remove --enforce-eager" not in late["suspects"][0]["try"]


def test_an_engines_own_kernels_are_time_of_operators_not_of_gaps() -> None:
    """llama.cpp's own matrix-vector kernels replace those of PyTorch: its terms are products and launches alone."""
    chosen = configuration("llama-3.1-8b", "m3-max", engine="llama.cpp", quantization="q4_k_m")
    found = priced(chosen, [_step("execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk512sqsq1sqsk512)")])
    kernels = sum(float(one.seconds[0]) for one in found.operators)
    whole = float(np.max(found.evaluation.time_s))
    assert kernels + float(found.within_s[0]) + float(found.between_s[0]) == pytest.approx(whole, rel=1e-12)
    launches = dict(found.evaluation.served)["launch"]
    assert float(found.within_s[0]) == pytest.approx(float(np.max(launches)), rel=1e-12)
    assert float(found.between_s[0]) == 0.0


def test_another_chip_is_said_and_suspected() -> None:
    recording = replace(_recording(), device="NVIDIA H100 80GB HBM3")
    assert not _diagnosed(recording)["warnings"]
    answer = _diagnosed(recording, hardware="a100")
    said = "the recording is of NVIDIA H100 80GB HBM3 (h100-sxm), and the prediction is of a100-80gb-sxm"
    assert answer["warnings"] == [said]
    assert answer["suspects"][0]["text"] == said
    assert answer["suspects"][0]["try"] == "--hardware h100-sxm"
    assert answer["suspects"][0]["amount_s"] == pytest.approx(answer["difference_s"])


def test_kernels_below_the_roofline_are_of_another_chip_model_format_or_number_of_devices() -> None:
    """Kernels three times as fast as calibrated ones, whose products reach more than a third of the roofline."""
    (said,) = _diagnosed(_recording(slower=1.0 / 3.0))["warnings"]
    assert said.startswith("products with weights take ")
    assert said.endswith("the least that h100-sxm can take: wrong chip, model, format or number of devices")
    assert not _diagnosed(_recording(slower=0.95))["warnings"]


@pytest.mark.parametrize(("seconds", "doubts"), [(0.05, 1), (1.1, 0)])
def test_a_result_below_the_roofline_is_of_another_run(seconds: float, doubts: int, tmp_path: Path) -> None:
    """8.03e9 parameters of 2 byte over 3.35 TB/s are 4.8 ms: 128 tokens in 50 ms were not of it."""
    path = tmp_path / "latency.json"
    times = {"avg_latency": seconds, "latencies": [seconds] * 3, "percentiles": {"50": seconds}}
    path.write_text(json.dumps(times), encoding="utf-8")
    sizes = {"batch_size": 8, "input_len": 1025, "output_len": 129}
    answer = lv.diagnose(str(path), "llama-3.1-8b", "h100", engine="vllm", **sizes)
    assert ["wrong chip, model, format or number of devices" in text for text in answer.warnings] == [True] * doubts
    assert ["wrong chip" in one.text for one in answer.suspects[:1]] == [True] * doubts


@pytest.mark.parametrize("device", ["", "planted", "../h100.yaml", "NVIDIA Something 9000", "0"])
def test_a_device_without_a_spec_is_no_doubt(device: str) -> None:
    assert not _diagnosed(replace(_recording(slower=4.0), device=device), hardware="a100")["warnings"]


def test_operators_on_the_cpu_against_a_device_are_said() -> None:
    """A recording of operators of the framework on the CPU, for which the profiler names no device."""
    answer = _diagnosed(replace(_recording(slower=3.0), on_host=True))
    said = "the recording has operators on the CPU and no kernels of a device, and the prediction is of h100-sxm"
    assert answer["warnings"] == [said]
    assert answer["suspects"][0]["text"] == said


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("", "the recording has kernels of a device, and the prediction is of the CPU xeon-platinum-8480"),
        ("NVIDIA H100 80GB HBM3", "the recording is of NVIDIA H100 80GB HBM3 (h100-sxm), and the prediction is of"),
    ],
)
def test_kernels_of_a_device_against_a_cpu_are_said(device: str, said: str) -> None:
    cpu = {"hardware": "xeon-platinum-8480", "engine": "vllm"}
    (warning,) = _diagnosed(replace(_recording(), device=device), **cpu)["warnings"]
    assert warning.startswith(said)
    assert not _diagnosed(replace(_recording(slower=20.0), on_host=True), **cpu)["warnings"]


def test_a_smaller_model_of_the_family_is_said() -> None:
    answer = _diagnosed(_recording(), model="llama-3.2-1b")
    (said,) = answer["warnings"]
    assert "may not be the model that ran" in said
    assert "attention in 16 layers" in said
    assert answer["suspects"][0]["text"] == said


@pytest.mark.parametrize(
    ("inputs", "said"), [(5120.0, "have 5,120 inputs, and those of llama-3.1-8b have 4,096, 14,336"), (4096.0, "")]
)
def test_matrix_products_of_other_sizes_are_of_another_model(inputs: float, said: str) -> None:
    """llama-3.1-8b multiplies 4,096 and 14,336 inputs; products of two activations have any size."""
    recording = _recording(replace(DENSE, passes=1))
    linear = {"shape": (32.0, inputs, 4096.0), "operator": "aten::mm"}
    other = {"shape": (32.0, 128.0, 77.0), "operator": "aten::bmm"}
    kernels = tuple(replace(one, **(linear if "nvjet" in one.name else other)) for one in recording.kernels)
    answer = _diagnosed(replace(recording, kernels=kernels))
    assert [one for one in answer["warnings"] if said and said in one] == answer["warnings"]
    assert bool(answer["warnings"]) == bool(said)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (Stated(requests=8.0), "--batch-size is 8, and the marks state 32 requests in a pass, which are compared"),
        (Stated(length=100.0), "--input-len is 100, and the marks state 2,001 keys of a request, which are compared"),
        (Stated(stage="prefill"), "--stage is prefill, and the marks are of decode passes, which are compared"),
        (
            Stated(requests=64.0, length=2000.0, stage="decode"),
            "--batch-size is 64, and the marks state 32 requests in a pass",
        ),
        (Stated(requests=32.0, length=2000.0), ""),
    ],
)
def test_work_against_the_marks_is_said(stated: Stated, said: str) -> None:
    assert _diagnosed(_recording(), stated)["warnings"] == ([said] if said else [])


def test_less_work_than_stated_is_a_suspect_with_its_sign() -> None:
    answer = _diagnosed(_recording(), Stated(requests=64.0, length=2000.0, stage="decode"))
    suspect = answer["suspects"][0]
    assert suspect["text"].startswith("the recorded passes have less work than stated: the marks state 32 requests")
    assert suspect["amount_s"] == _parts(answer)["different work"] < 0.0
    assert "−" in str(diagnosis_page.of_document(answer)[1])


def test_shapes_that_state_other_work_are_named_as_shapes() -> None:
    """Matrix products of 512 rows, where 32 sequences of one token are stated; without marks nothing is left out."""
    recording = _recording(replace(DENSE, passes=1))
    shaped = tuple(replace(one, shape=(512.0, 4096.0, 4096.0)) for one in recording.kernels)
    answer = _diagnosed(
        replace(recording, kernels=shaped, marks=()), Stated(requests=32.0, length=2000.0, stage="decode")
    )
    assert answer["warnings"] == ["the shapes of matrix products have 512 tokens in a pass, and the options state 32"]
    suspect = next(one for one in answer["suspects"] if "work than stated" in one["text"])
    assert "the shapes of matrix products have 512 tokens" in suspect["text"]
    assert "leave out" not in suspect["try"]


def test_one_factor_on_all_kernels_is_one_suspect() -> None:
    answer = _diagnosed(_recording(slower=1.5))
    first, *others = answer["suspects"]
    assert first["text"] == "all kernels take about 1.5 times their predicted time"
    assert "clock or power" in first["try"]
    assert first["amount_s"] > 0.9 * answer["difference_s"]
    assert not [one for one in others if "x its predicted time" in one["text"]]
    assert "all kernels" not in str(_diagnosed(_recording())["suspects"])


def test_gaps_before_one_operator_name_it() -> None:
    passes = runs_of(DENSE, np.random.default_rng(0))
    for runs in passes:
        runs[:] = [replace(run, wait_s=50e-6) if run.operator == "attention" else run for run in runs]
    suspect = _diagnosed(recorded(DENSE, passes)[0])["suspects"][0]
    assert "mostly before attention" in suspect["text"]


def test_many_kernels_of_an_operator_are_counted() -> None:
    """Eight times the three kernels of routing in each of 48 layers, where one is predicted."""
    case = CASES["experts"]
    passes = runs_of(case, np.random.default_rng(0))
    for runs in passes:
        runs[:] = [one for run in runs for one in [run] * (8 if run.operator == "router_softmax" else 1)]
    answer = diagnosis_of(recorded(case, passes)[0], case.configuration, Stated(), "planted").to_dict()
    suspect = next(one for one in answer["suspects"] if one["text"].startswith("router_softmax"))
    assert suspect["text"].endswith("above the 80 % interval: 1,152 kernels where 48 are predicted")
    assert suspect["try"].startswith("one kernel that does the work of all")


def test_collectives_of_devices_that_are_not_stated_name_the_option() -> None:
    """Four devices ran and one is stated: the all-reduces of a pass have no operator, and are no failure to match."""
    case = CASES["sharded"]
    recording, truth = recorded(case, runs_of(case, np.random.default_rng(0)))
    alone = configuration(case.model, case.hardware, engine=case.engine)
    answer = diagnosis_of(recording, alone, Stated(), "planted").to_dict()
    pairs = zip(recording.kernels, truth, strict=True)
    seconds = sum(one.seconds for one, true in pairs if "all_reduce" in true)
    assert answer["unmatched_s"] == 0.0
    assert answer["unpredicted_s"] == pytest.approx(seconds / case.passes, rel=0.01)
    assert any("--tensor-parallel-size" in one["try"] for one in answer["suspects"])


def test_flash_attention_2_is_no_portable_kernel() -> None:
    assert not PORTABLE.search("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4")
    assert PORTABLE.search("_fwd_kernel")
    assert PORTABLE.search("kernel_unified_attention_2d")


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0.6, "50 % longer; most of it in attention (+600 ms)"),
        (0.4, "50 % longer; the largest part of it in attention (+400 ms)"),
        (3.0, "50 % longer; attention (+3.00 s) is more than that, and other parts make up for it"),
    ],
)
def test_the_verdict_says_how_much_of_the_difference_a_part_is(amount: float, words: str) -> None:
    """Three seconds measured, two predicted; other parts add up to the rest."""
    parts = [
        {"name": name, "kind": "operator", "amount_s": seconds, "outside_interval": True}
        for name, seconds in (("attention", amount), *((f"other{at}", (1.0 - amount) / 3.0) for at in range(3)))
    ]
    assert diagnosis_page.verdict({"measured_s": 3.0, "predicted_s": 2.0, "parts": parts}).endswith(words)


@pytest.mark.parametrize(
    ("value", "text"), [(1.523, "1.5"), (13.14, "13"), (401.0, "400"), (1550.0, "1,600"), (26_894.0, "27,000")]
)
def test_factors_have_no_exponent(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.524, "1.52 s"), (26.4e-6, "26.4 µs"), (3.1e-3, "3.1 ms"), (0.0, "0 s"), (5e-9, "5 ns")]
)
def test_times_in_evidence_have_the_units_of_tables(seconds: float, text: str) -> None:
    assert told(seconds) == text


def test_marks_of_prompts_of_other_length_are_compared_with_new_tokens() -> None:
    case = replace(DENSE, stage="prefill", requests=2.0, tokens=1024.0, passes=1)
    answer = _diagnosed(_recording(case), Stated(length=4096.0))
    said = "--input-len is 4096, and the marks state 1,024 new tokens of a request, which are compared"
    assert answer["warnings"] == [said]
    unknown = replace(_recording(case), marks=(Mark(name="step[EXTEND bs=2 toks=2048]", start_s=0.0, end_s=9.0),))
    assert _diagnosed(unknown, Stated(length=1024.0))["warnings"] == []
