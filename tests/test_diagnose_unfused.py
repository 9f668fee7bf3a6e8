"""Recordings of attention on an unfused backend: scores, softmax and values, where one kernel is predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmviewer.calibrate.diagnosis.annotation import Stated
from llmviewer.calibrate.diagnosis.assignment import with_unfused_attention
from llmviewer.calibrate.diagnosis.call import diagnosis_of
from tests.planted import CASES, NAMES, Run, recorded, runs_of
from tests.served import cases, served, setup

EAGER, UNFUSED = "transformers, eager attention", "attention on an unfused backend"
PRODUCT = NAMES["vllm"]["matmul"][0]
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, c10::BFloat16, float, float"
SCALING = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<c10::BFloat16"


def _answer(passes: int) -> dict[str, Any]:
    case = cases()[EAGER]
    recording = served(case, passes=passes).recording
    return diagnosis_of(recording, setup(case), Stated(**case["stated"]), "served").to_dict()


@pytest.mark.parametrize("passes", [1, 3])
def test_unfused_attention_is_matched_and_suspected(passes: int) -> None:
    """Eight kernels in each of 32 layers: two products, softmax, and the scaling, mask and conversions between."""
    answer = _answer(passes)
    assert answer["passes"] == passes
    assert answer["unmatched_s"] == 0.0
    suspect = answer["suspects"][0]
    assert suspect["text"].startswith("attention takes ")
    assert UNFUSED in suspect["text"]
    assert "FlashAttention" in suspect["try"]
    named = {one["name"]: one for one in answer["operators"]}
    assert named["o_proj"]["measured_s"] == pytest.approx(32 * 220e-6, rel=0.1)


@pytest.mark.parametrize("name", ["dense vLLM on Hopper", "experts", "sharded", "norms of queries, SGLang"])
def test_unfused_attention_of_a_served_model_is_suspected(name: str) -> None:
    """Every attention of a marked pass as a product, its scaling, softmax and another product, over four times as long.

    The scaling is one of the kernels beside it that nobody predicted.
    """
    passes = runs_of(CASES[name], np.random.default_rng(0))
    for runs in passes:
        runs[:] = [part for run in runs for part in _apart(run)]
    recording, truth = recorded(CASES[name], passes)
    answer = diagnosis_of(recording, CASES[name].configuration, Stated(), "planted").to_dict()
    assert UNFUSED in answer["suspects"][0]["text"]
    pairs = zip(recording.kernels, truth, strict=True)
    seconds = sum(one.seconds for one, true in pairs if true == "attention" and one.name != SCALING)
    named = {one["name"]: one for one in answer["operators"]}
    assert named["attention"]["measured_s"] == pytest.approx(seconds / len(passes), rel=1e-6)
    assert all(one["verdict"] != "no kernel" for one in answer["operators"])


def _apart(run: Run) -> list[Run]:
    """The kernels of one attention apart; other kernels as they are."""
    if run.operator != "attention":
        return [run]
    if "Combine" in run.name or "MergeStates" in run.name:
        return []
    shares = {PRODUCT: 1.5, SCALING: 0.5, SOFTMAX: 1.0}
    return [
        replace(run, name=name, seconds=run.seconds * shares[name]) for name in (PRODUCT, SCALING, SOFTMAX, PRODUCT)
    ]


def test_fused_attention_and_routers_are_not_taken_for_unfused_attention() -> None:
    """A kernel of attention keeps its one place; softmax and choice of experts between products are of a router."""
    slots = served(cases()[EAGER]).slots
    three = len(slots) + 2 * 32
    assert len(with_unfused_attention(slots, 32 * ["matmul", "elementwise", "sampling", "matmul"])) == three
    assert len(with_unfused_attention(slots, ["attention", *32 * ["matmul", "sampling", "matmul"]])) == len(slots)
    assert len(with_unfused_attention(slots, 32 * ["matmul", "sampling", "sampling", "matmul"])) == len(slots)
    assert len(with_unfused_attention(slots, 31 * ["matmul", "sampling", "matmul"])) == len(slots)
