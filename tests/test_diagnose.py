"""Diagnosis of recorded runs: kernels are matched with operators, and planted faults are found and blamed right."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmviewer.calibrate.diagnosis.annotation import Stated, step_of, work_of
from llmviewer.calibrate.diagnosis.assignment import NONE, align, assigned
from llmviewer.calibrate.diagnosis.call import diagnosis_of, engine_of
from llmviewer.calibrate.diagnosis.diagnosis import Diagnosis
from llmviewer.calibrate.diagnosis.recording import Kernel, Mark, Recording, passes_of, timeline
from llmviewer.calibrate.diagnosis.slots import slots_of
from llmviewer.core.errors import UserError
from tests.planted import CASES, FAULTS, Case, Run, evaluate, recorded, runs_of

#: Operators that some engines fuse into others.
OFTEN_FUSED = ("rope", "cache_write", "mlp_act", "expert_act", "expert_combine", "router_softmax", "q_norm")


def _diagnosed(case: Case, fault: str = "", seed: int = 0) -> tuple[dict[str, Any], str]:
    """The diagnosis of a case with a fault planted, and the part that is to blame."""
    rng = np.random.default_rng(seed)
    passes = runs_of(case, rng)
    blamed = FAULTS[fault](passes, case, rng) if fault else ""
    recording, _ = recorded(case, passes)
    return diagnosis_of(recording, case.configuration, Stated(), "planted").to_dict(), blamed


def _shares(case: Case, passes: list[list[Run]]) -> tuple[float, float]:
    """Shares of the kernels' time that are matched, and matched right; kernels without a true operator do not count."""
    recording, truth = recorded(case, passes)
    slots = slots_of(evaluate(case.configuration.model, case.configuration.system, case.step).graph)
    seconds: Counter[str] = Counter()
    names = iter(truth)
    for one in passes_of(recording):
        found = assigned(one.kernels, slots)
        for kernel, operator, true in zip(one.kernels, found.operators, names, strict=False):
            if true:
                seconds["all"] += kernel.seconds  # type: ignore[assignment]
                seconds["matched"] += kernel.seconds * bool(operator)  # type: ignore[assignment]
                seconds["right"] += kernel.seconds * (operator == true)  # type: ignore[assignment]
    return seconds["matched"] / seconds["all"], seconds["right"] / seconds["all"]


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_a_pass_are_matched_with_their_operators(name: str) -> None:
    case = CASES[name]
    assert _shares(case, runs_of(case, np.random.default_rng(0))) == (1.0, 1.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_other_fusions_and_kernels_beside_leave_the_match_right(name: str, seed: int) -> None:
    """Two light operators without kernels, every tenth kernel after one that nobody predicts, products in two parts."""
    rng = np.random.default_rng(seed)
    case = replace(CASES[name], passes=1)
    (runs,) = runs_of(case, rng)
    fused = set(rng.choice(sorted({run.operator for run in runs} & set(OFTEN_FUSED)), size=2, replace=False))
    changed = []
    for run in runs:
        if run.operator in fused:
            continue
        if rng.random() < 0.1:
            changed.append(Run(name="void at::native::vectorized_elementwise_kernel<4>", seconds=2e-6, operator=""))
        changed.append(run)
        if "nvjet" in run.name and rng.random() < 0.2:
            changed.append(replace(run, name="void cublasLt::splitKreduce_kernel<32, 16, int>", seconds=2e-6))
    matched, right = _shares(case, [changed])
    assert matched > 0.98
    assert right > 0.95


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", CASES)
def test_a_planted_fault_is_blamed(name: str, fault: str) -> None:
    answer, blamed = _diagnosed(CASES[name], fault)
    assert max(answer["parts"], key=lambda part: part["amount_s"])["name"] == blamed
    assert answer["suspects"][0]["amount_s"] == max(one["amount_s"] for one in answer["suspects"])
    words = {"gaps between passes": "from one pass to the next", "gaps within passes": "kernels", "extra": ""}
    assert words.get(blamed, "" if blamed == "kernels nobody predicted" else blamed) in answer["suspects"][0]["text"]


@pytest.mark.parametrize("fault", ["", *FAULTS])
@pytest.mark.parametrize("name", ["dense vLLM on Hopper", "experts", "sharded"])
def test_parts_add_up_to_the_difference(name: str, fault: str) -> None:
    answer, _ = _diagnosed(CASES[name], fault, seed=1)
    assert answer["difference_s"] == answer["measured_s"] - answer["predicted_s"]
    total = math.fsum(part["amount_s"] for part in answer["parts"])
    assert total == pytest.approx(answer["difference_s"], abs=1e-12)
    assert answer["busy_s"] + answer["gap_s"] == pytest.approx(answer["measured_s"], rel=1e-9)


def test_without_a_fault_the_prediction_holds() -> None:
    """Kernels last their predicted times with 3 % spread: every operator is fine, and the difference is small."""
    answer, _ = _diagnosed(CASES["dense vLLM on Hopper"])
    verdicts = {one["name"]: one["verdict"] for one in answer["operators"] if one["predicted_s"]}
    assert set(verdicts.values()) == {"fine"}
    assert abs(answer["difference_s"]) < 0.03 * answer["measured_s"]
    assert answer["unmatched_s"] == 0.0


def test_narrow_products_that_fall_back_are_named() -> None:
    case = CASES["fp8"]
    passes = runs_of(case, np.random.default_rng(0))
    wide = "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN"
    for runs in passes:
        runs[:] = [
            replace(run, name=wide, seconds=run.seconds * 2.0) if run.operator == "gate_up_proj" else run
            for run in runs
        ]
    recording, _ = recorded(case, passes)
    suspect = diagnosis_of(recording, case.configuration, Stated(), "planted").suspects[0]
    assert "gate_up_proj" in suspect.text
    assert suspect.remedy.startswith("fp8 was expected and 16-bit kernels ran")


def test_work_other_than_stated_is_a_part() -> None:
    case = CASES["dense vLLM on Hopper"]
    recording, _ = recorded(case, runs_of(case, np.random.default_rng(0)))
    stated = Stated(requests=8.0, length=2000.0, stage="decode")
    parts = {part.name: part for part in diagnosis_of(recording, case.configuration, stated, "planted").parts}
    assert parts["different work"].amount_s > 0.0


def test_kernels_that_no_pattern_knows_are_shown_as_unmatched() -> None:
    case = CASES["dense vLLM on Hopper"]
    passes = runs_of(case, np.random.default_rng(0))
    for runs in passes:
        runs.insert(100, Run(name="zzz_new_thing", seconds=1e-3, operator=""))
    recording, _ = recorded(case, passes)
    answer = diagnosis_of(recording, case.configuration, Stated(), "planted").to_dict()
    assert answer["unmatched_s"] == pytest.approx(1e-3)
    assert {one["name"] for one in answer["kernels"] if one["operator"] is None} == {"zzz_new_thing"}


@pytest.mark.parametrize(
    ("mark", "context", "generation"),
    [
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)", 0, (32, 32, 32785)),
        ("execute_context_2(14721)_generation_3(3)", (2, 14721, math.nan), (3, 3, math.nan)),
        ("step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]", 0, (64, 128, 131072)),
        ("step[EXTEND bs=15 toks=15360]", (15, 15360, math.nan), 0),
        (
            "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
            (1, 5, 8),
            (1, 1, 12),
        ),
        ("[Executor] _forward_step 7: 0 ctx reqs, 61 gen reqs", 0, (61, 61, math.nan)),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", (2, 14721, math.nan), 0),
    ],
)
def test_marks_of_engines_state_their_work(mark: str, context: Any, generation: Any) -> None:
    work = work_of(mark)
    assert work is not None
    for part, expected in ((work.context, context), (work.generation, generation)):
        if expected:
            assert (part.requests, part.new, part.keys) == pytest.approx(expected, nan_ok=True)
        else:
            assert part.requests == 0.0


@pytest.mark.parametrize(
    ("name", "engine"), [("dense vLLM on Hopper", "vllm"), ("AMD", "vllm"), ("experts of SGLang", "sglang")]
)
def test_marks_tell_the_engine(name: str, engine: str) -> None:
    case = CASES[name]
    recording, _ = recorded(case, runs_of(case, np.random.default_rng(0)))
    assert engine_of(recording) == engine
    plain = replace(recording, marks=())
    assert engine_of(plain) == "vllm"
    launched = tuple(replace(kernel, operator="aten::mm") for kernel in recording.kernels)
    assert engine_of(replace(plain, kernels=launched)) == "torch-eager"


def test_a_mark_of_something_else_states_nothing() -> None:
    assert work_of("ProfilerStep#6") is None
    assert work_of("aten::mm") is None


def test_a_group_keeps_the_sums_of_its_mark() -> None:
    """Prompts of 3 and 5 new tokens after 4 and 0: q 8, k 12, q² 34, q·k 3·7 + 5·5 = 46, pairs 3·4 + 6 + 15 = 33."""
    work = work_of("execute_8_context_2(sq8sk12sqsq34sqsk46)_generation_0(sq0sk0sqsq0sqsk0)")
    assert work is not None
    (group,) = step_of(work, Stated()).groups
    assert float(group.tokens) == 8.0
    assert float(group.batch_size * group.attended_pairs()) == pytest.approx(33.0)


def test_marks_without_keys_need_the_stated_length() -> None:
    work = work_of("step[DECODE bs=64]")
    assert work is not None
    with pytest.raises(UserError, match="add input_len N"):
        step_of(work, Stated())
    (group,) = step_of(work, Stated(length=101.0)).groups
    assert (float(group.batch_size), float(group.cached_tokens)) == (64.0, 100.0)


def _kernel(name: str, start: float, seconds: float, **fields: Any) -> Kernel:
    return Kernel(name=name, start_s=start, seconds=seconds, **fields)


def test_busy_time_is_the_union_of_kernels_on_all_streams() -> None:
    """0 to 4, 1 to 3 within it, 3 to 6 beyond it, idle until 8, 8 to 9: busy 7, overlap 2 + 1, gap 2."""
    found = timeline([_kernel("a", 0, 4), _kernel("b", 1, 2), _kernel("c", 3, 3), _kernel("d", 8, 1)])
    assert found.busy_s == 7.0
    assert found.hidden.tolist() == [0.0, 2.0, 1.0, 0.0]
    assert found.gaps.tolist() == [0.0, 0.0, 0.0, 2.0]


def test_kernels_belong_to_the_pass_that_launched_them() -> None:
    """The device is late: the first pass's kernels start after the second pass was launched."""
    marks = tuple(Mark(name=f"execute_context_0(0)_generation_{n}({n})", start_s=n, end_s=n + 0.5) for n in (1, 2))
    kernels = (
        _kernel("before", 0.9, 0.1, launch_s=0.5),
        _kernel("first", 2.1, 0.1, launch_s=1.1),
        _kernel("replayed", 2.3, 0.1),
        _kernel("second", 2.5, 0.1, launch_s=2.1),
        _kernel("after", 3.5, 0.1, launch_s=3.0),
    )
    found = passes_of(Recording(program="x", kernels=kernels, marks=marks))
    assert [[kernel.name for kernel in one.kernels] for one in found] == [
        ["before"], ["first", "replayed"], ["second"], ["after"],
    ]  # fmt: skip
    assert [one.whole for one in found] == [False, True, True, False]
    assert found[1].next_s == 2.5
    assert found[2].next_s is None


def test_alignment_leaves_a_kernel_out_rather_than_break_the_order() -> None:
    case = CASES["dense vLLM on Hopper"]
    slots = slots_of(evaluate(case.configuration.model, case.configuration.system, case.step).graph)
    names = [
        slots[place].operator if place != NONE else "" for place in align(["matmul", "norm", "attention"], slots).places
    ]
    assert names[2] == "attention"
    assert align([], slots).places.tolist() == []


def test_a_recording_without_a_whole_pass_is_refused() -> None:
    case = CASES["dense vLLM on Hopper"]
    recording, _ = recorded(case, runs_of(case, np.random.default_rng(0)))
    late = replace(recording, marks=tuple(replace(one, start_s=99.0, end_s=100.0) for one in recording.marks))
    with pytest.raises(UserError, match="no whole forward pass"):
        diagnosis_of(late, case.configuration, Stated(), "planted")


def test_a_diagnosis_names_its_schema() -> None:
    case = CASES["AMD"]
    recording, _ = recorded(case, runs_of(case, np.random.default_rng(0)))
    found = diagnosis_of(recording, case.configuration, Stated(), "planted")
    assert isinstance(found, Diagnosis)
    answer = found.to_dict()
    assert answer["schema"] == "llmviewer.diagnosis/1"
    assert set(answer["parts"][0]) == {"name", "kind", "amount_s", "outside_interval", "evidence"}
