"""Kernels of passes that engines fuse, reorder and split in their own ways find their operators."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmviewer.calibrate.diagnosis.annotation import Stated
from llmviewer.calibrate.diagnosis.assignment import assigned, turns_of
from llmviewer.calibrate.diagnosis.call import diagnosis_of
from llmviewer.calibrate.diagnosis.kineto import recording as kineto
from llmviewer.calibrate.diagnosis.recording import Kernel, Mark
from llmviewer.calibrate.diagnosis.slots import kind_of
from tests.planted import as_trace
from tests.served import cases, served, setup

NAMES = Path(__file__).with_name("data") / "kernel_names.csv"
#: Least shares of the kernels' time that are assigned, and assigned right.
ASSIGNED, RIGHT = 0.98, 0.95
COMPILED, LATENT = "compiled, mixed batch", "latent attention of FlashMLA, layouts of scales"
PROMPTS = "execute_4096_context_4(sq4096sk4096sqsq4194304sqsk4194304)_generation_0(sq0sk0sqsq0sqsk0)"
#: Kernels of one pass of a draft layer after the model's own sampling, and of one layer of an encoder of images.
DRAFT = """other_models 12 nvjet_tst_64x16_64x16_4x1_v_bz_TNT
other_models 14 nvjet_tst_64x8_64x16_4x1_v_bz_TNT
other_models 3 void vllm::rotary_embedding_kernel<c10::BFloat16, true>
other_models 3 void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>
other_models 14 void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90
other_models 9 nvjet_tst_64x8_64x16_4x1_v_bz_TNT
other_models 80 nvjet_tst_128x32_64x8_2x1_v_bz_TNT
other_models 40 nvjet_tst_128x32_64x8_2x1_v_bz_TNT
other_models 100 nvjet_tst_128x32_64x8_2x1_v_bz_TNN
"""
ENCODER = """other_models 9 triton_red_fused__to_copy_mean_mul_pow_rsqrt_1
other_models 100 nvjet_tst_192x192_64x4_1x2_h_bz_coopB_bias_TNT
other_models 100 void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<80, 128, 64, 4, false, false>
other_models 60 nvjet_tst_192x192_64x4_1x2_h_bz_coopB_bias_TNT
other_models 150 nvjet_tst_192x192_64x4_1x2_h_bz_coopB_bias_TNT
other_models 9 void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl
other_models 80 nvjet_tst_192x192_64x4_1x2_h_bz_coopB_bias_TNT
"""


def _check(shares: tuple[float, float]) -> None:
    assert shares[0] >= ASSIGNED
    assert shares[1] >= RIGHT


def _case(**changes: Any) -> dict[str, Any]:
    return cases()[COMPILED] | changes


def _rows() -> list[list[str]]:
    with NAMES.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file, delimiter="|") if row]


@pytest.mark.parametrize(("kind", "name"), _rows())
def test_names_of_kernels_tell_their_kind(kind: str, name: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize("title", cases())
def test_kernels_of_served_passes_find_their_operators(title: str) -> None:
    _check(served(cases()[title]).shares())


def test_a_draft_after_the_pass_is_another_model() -> None:
    _check(served(_case(after=cases()[COMPILED]["after"] + 3 * DRAFT)).shares())


def test_an_encoder_before_the_pass_is_another_model() -> None:
    _check(served(_case(before=20 * ENCODER + cases()[COMPILED]["before"])).shares())


@pytest.mark.parametrize("marks", ["", "ProfilerStep#"])
def test_passes_without_work_in_their_marks_are_told_apart(marks: str) -> None:
    """Three equal passes take the time of one each, with or without torch.profiler's own marks around them."""
    case = _case(mark=cases()["adapters"]["mark"])
    made = served(case, passes=3)
    named = tuple(replace(one, name=f"{marks}{n}") for n, one in enumerate(made.recording.marks)) if marks else ()
    plain = made.changed(lambda kernel: kernel, marks=named)
    _check(plain.shares())
    stated = Stated(requests=32.0, length=2048.0, stage="decode")
    answer = diagnosis_of(plain.recording, setup(case), stated, "served").to_dict()
    assert answer["passes"] == 3
    assert answer["kernel_s"] == pytest.approx(sum(one.seconds for one in made.recording.kernels) / 3)


def test_many_unmarked_passes_are_told_apart() -> None:
    """Eight passes and a part of a ninth, more than are aligned at a time: eight are compared."""
    case = _case(mark=cases()["adapters"]["mark"])
    made = served(case, passes=9)
    end = made.recording.kernels[-1].end_s - 10e-3
    cut = made.changed(lambda kernel: kernel if kernel.start_s < end else None, marks=())
    _check(cut.shares())
    stated = Stated(requests=32.0, length=2048.0, stage="decode")
    assert diagnosis_of(cut.recording, setup(case), stated, "served").to_dict()["passes"] == 8


def test_a_pass_that_was_cut_off_is_left_out() -> None:
    case = _case()
    made = served(case, passes=3)
    last = made.recording.kernels[-1].end_s - 10e-3
    answer = diagnosis_of(
        made.changed(lambda kernel: kernel if kernel.start_s < last else None).recording, setup(case), Stated(), "cut"
    ).to_dict()
    assert answer["passes"] == 2
    assert "1 pass that was recorded in part is left out" in answer["warnings"]


@pytest.mark.parametrize("operator", ["o_proj", "attention", "gate_up_proj"])
def test_an_unknown_name_is_known_by_its_place_in_every_layer(operator: str) -> None:
    made = served(_case())
    longest = {
        kernel.name
        for kernel, true in zip(made.recording.kernels, made.truth, strict=True)
        if true == operator and kernel.seconds > 50e-6
    }
    renamed = made.changed(lambda one: replace(one, name="zzz_new_thing") if one.name in longest else one)
    _check(renamed.shares())


def test_a_kernel_out_of_order_stays_with_the_nearest_operator() -> None:
    """Inputs of shared experts are quantized after the router; no kernel quantizes the output of rope."""
    made = served(cases()[LATENT])
    found = assigned(made.recording.kernels, made.slots)
    assert "attention_quantize" in found.operators
    assert "rope_quantize" not in found.operators


def test_queries_of_prompts_are_told_from_the_expansion_of_the_cache() -> None:
    """One product after both norms, with the layout of its scales before it, is that of queries, not of the cache."""
    expanded = "kv_b_proj 25 nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT\nattention 90 kernel_unified_attention_2d"
    layers = {
        name: "\n".join(
            expanded if "splitkv_mla_kernel" in line else line
            for line in text.splitlines()
            if not line.startswith("kv_b_proj") and "mla_combine" not in line
        )
        for name, text in cases()[LATENT]["layers"].items()
    }
    made = served(cases()[LATENT] | {"mark": PROMPTS, "layers": layers})
    _check(made.shares())
    found = assigned(made.recording.kernels, made.slots).operators
    pairs = zip(made.truth, found, made.recording.kernels, strict=True)
    assert {name for true, name, one in pairs if true == "q_b_proj" and "gemm" in one.name} == {"q_b_proj"}


def test_kernels_of_a_side_stream_stay_together() -> None:
    """b runs beside a of the main stream, and d follows it there while c runs; f begins after e has run between."""
    spans = {"a": (0, 4, 7), "b": (1, 2, 8), "c": (4, 9, 7), "d": (5, 6, 8), "e": (9, 10, 7), "f": (11, 12, 8)}
    spans["g"] = (12, 13, 7)
    kernels = [
        Kernel(name=name, start_s=start, seconds=end - start, stream=stream)
        for name, (start, end, stream) in spans.items()
    ]
    assert "".join(kernels[turn].name for turn in turns_of(kernels)) == "abdcefg"


def test_ranks_in_one_file_are_told_apart() -> None:
    """Two ranks with the same numbers of launches: the busier one with its own marks, once."""
    made = served(_case())
    events = as_trace(made.recording)["traceEvents"]
    other = [event | {"pid": event["pid"] + 10, "ts": event["ts"] + 3.0, "dur": event["dur"] * 0.9} for event in events]
    found = kineto({"traceEvents": _tracks(events, 1) + _tracks(other, 2)})
    assert len(found.kernels) == len(made.recording.kernels)
    assert [mark.name for mark in found.marks] == [_case()["mark"]]
    assert "2 devices" in found.notes[0]


def _tracks(events: list[dict[str, Any]], rank: int) -> list[dict[str, Any]]:
    """The events of a rank with its host process and its device as tracks of their own."""
    return [event | {"pid": f"rank{rank}-{'device' if event['cat'] == 'kernel' else 'host'}"} for event in events]


def test_adapters_are_predicted_only_if_stated() -> None:
    """Eight kernels of adapters in each of 32 layers: nobody's without the option, those of the products with it."""
    case = cases()["adapters"]
    recording = served(case).recording
    seconds = sum(one.seconds for one in recording.kernels if kind_of(one.name) == "lora")
    plain = diagnosis_of(recording, setup(case), Stated(), "served").to_dict()
    assert plain["unpredicted_s"] == pytest.approx(seconds, rel=0.05)
    assert "state the adapters" in plain["suspects"][0]["try"]
    stated = diagnosis_of(recording, setup(case | {"options": {"lora": "16"}}), Stated(), "served").to_dict()
    placed = sum(one["measured_s"] or 0.0 for one in stated["operators"] if "_lora_" in one["name"])
    assert placed == pytest.approx(seconds)


def test_marks_of_a_draft_are_not_passes_of_the_model() -> None:
    made = served(_case(), passes=2)
    first, second = made.recording.marks
    draft = Mark(name="step[DRAFT_EXTEND_V2 bs=4 toks=8]", start_s=second.start_s, end_s=second.end_s)
    answer = diagnosis_of(
        made.changed(lambda kernel: kernel, marks=(first, draft)).recording, setup(_case()), Stated(), "draft"
    )
    assert answer.to_dict()["phases"] == {"mixed": 1}
