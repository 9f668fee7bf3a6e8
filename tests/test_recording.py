"""Recorded programs: the same bits as the computation, and none where the computation cannot be repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from llmviewer import api
from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import evaluate
from llmviewer.core.recording import Programs, record

X, Y = np.array([1.0, 2.0, 5.0]), np.array([0.1, 0.2, 0.7])


def compute(columns: Sequence[Any]) -> tuple[Any, ...]:
    """Operators, functions, a table of two rows, its rows stacked again, and sums that are never read."""
    x, y = columns
    unused = x * 100.0 + y
    table = np.maximum(x * np.array([[2.0], [3.0]]), 1.0 / y)
    whole, rest = np.divmod(x, 2.0)
    assert isinstance(unused, np.ndarray)
    turned = np.stack([table[1], table[0]])
    return np.minimum.reduce(turned) + np.where(rest > 0.0, x**0.5, -whole), 3.0 - (x + y) * (x + y)


@pytest.mark.parametrize("columns", [(X, Y), (Y, X), (np.arange(1.0, 9.0), np.arange(1.0, 9.0) / 7.0)])
def test_a_program_gives_the_bits_of_its_computation_on_other_numbers_and_lengths(columns: Any) -> None:
    program = record(compute, (X, Y))
    assert program is not None
    found = program.run(columns)
    assert found is not None
    for one, expected in zip(found, compute(columns), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(expected).tobytes()


def test_a_program_holds_what_its_results_need_and_each_operation_once() -> None:
    program = record(lambda columns: [(columns[0] + columns[1]) * (columns[0] + columns[1])], (X, Y))
    unread = record(lambda columns: [(columns[0] * 7.0, columns[0] + columns[1])[1]], (X, Y))
    assert program is not None
    assert unread is not None
    assert (len(program.calls), len(unread.calls)) == (2, 1)  # one sum and one product; one sum


def test_zeros_of_both_signs_are_different_constants() -> None:
    program = record(lambda columns: [columns[0] * 0.0, columns[0] * -0.0], (X,))
    assert program is not None
    plus, minus = program.run((X,)) or ()
    assert not np.signbit(plus).any()
    assert np.signbit(minus).all()


@pytest.mark.parametrize(
    "computation",
    [
        lambda columns: [columns[0] if np.any(columns[0] > 4.0) else columns[1]],
        lambda columns: [columns[0] * float(np.max(columns[0]))],
    ],
    ids=["a branch", "a float"],
)
def test_a_program_refuses_inputs_from_which_python_would_read_something_else(
    computation: Callable[[Any], list[Any]],
) -> None:
    program = record(computation, (X, Y))  # the largest is 5, so there is one above 4
    assert program is not None
    assert program.run((X[::-1], Y)) is not None
    assert program.run((Y, X)) is None  # the largest is 0.7


@pytest.mark.parametrize(
    "computation",
    [
        lambda columns: [columns[0] * len(columns[0])],
        lambda columns: [columns[0] * columns[0].size],
        lambda columns: [np.asarray(columns[0]) + 1.0],
        lambda columns: [columns[0] * np.array([float(one) for one in np.ravel(columns[0]).tolist()])],
        lambda columns: [np.maximum.reduce([columns[0], columns[1]])],
        lambda columns: [columns[0] + len(f"{columns[0]:.3f}")],
        lambda columns: [1.0],
    ],
    ids=["length", "size", "a plain copy", "a list", "a list of arrays", "text", "no array"],
)
def test_what_reads_arrays_in_other_ways_is_not_recorded(computation: Callable[[Any], list[Any]]) -> None:
    assert record(computation, (X, Y)) is None


def test_a_program_whose_results_differ_from_those_of_the_computation_is_not_kept() -> None:
    def changes_in_place(columns: Sequence[Any]) -> list[Any]:
        total = alias = columns[0] + 0.0
        total += 1.0
        return [alias]

    known = Programs()
    for _ in range(3 * Programs.RUNS_BEFORE):
        known.note("key", changes_in_place, (X,), changes_in_place((X,)))
    assert record(changes_in_place, (X,)) is not None
    assert known.run("key", (X,)) is None


def test_a_computation_with_several_branches_has_a_program_for_each() -> None:
    def branches(columns: Sequence[Any]) -> list[Any]:
        return [columns[0] * 2.0 if np.any(columns[0] > 4.0) else columns[0] * 3.0]

    known = Programs()
    for column in (X, Y):  # 5 is above 4, 0.7 is not
        assert known.run("key", (column,)) is None
        for _ in range(Programs.RUNS_BEFORE):
            known.note("key", branches, (column,), branches((column,)))
    assert [known.run("key", (column,))[0][2] for column in (X, Y, X)] == [10.0, 0.7 * 3.0, 10.0]  # type: ignore[index]


#: Model, chip and options of configurations of many kinds.
CONFIGURATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("llama-2-7b", "a6000", {}),
    "ideal": ("llama-2-7b", "a6000", {"efficiency": "ideal"}),
    "windows, experts and sinks": ("gpt-oss-120b", "h100-sxm", {"engine": "vllm"}),
    "latent attention": ("deepseek-v3", "h200", {"quantization": "w4a16"}),
    "chunked attention": ("llama-4-scout", "b200", {"efficiency": "ideal"}),
    "states": ("nemotron-h-8b", "h100-sxm", {}),
    "tensor parallel": ("qwen3-30b-a3b", "h100-sxm", {"tensor_parallel_size": 2}),
    "pipeline": ("llama-2-70b", "a100-80gb-sxm", {"pipeline_parallel_size": "4,microbatches=4"}),
    "draft": ("llama-2-70b", "h100-sxm", {"speculative": "draft=tinyllama-1.1b,tokens=4,acceptance=0.7"}),
    "chunked batching": ("llama-2-13b", "h100-sxm", {"batching": "chunked,tokens=512"}),
    "offloading": ("opt-30b", "rtx-4090", {"offload": "weights=0.5"}),
}


def models_of(found: Analysis) -> list[Analysis]:
    """The analysis of the target, and those of its drafts."""
    return [found, *(own for _, own in found.drafts)]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_answers_of_a_configuration_that_is_recorded_have_the_bits_of_its_graph(name: str) -> None:
    model, chip, options = CONFIGURATIONS[name]
    found = api.configuration(model, chip, **options)
    for number in range(Programs.RUNS_BEFORE):
        found.answer(api.request(1 + number, 300 + number, 9))
    recorded = 0
    for sizes in ((3, 700, 4), (33, 40, 12), (2, 3000, 2)):
        for one in models_of(found.answer(api.request(*sizes)).analysis):
            recorded += "evaluation" not in vars(one.passes) and not one.passes.evaluated.cache_info().currsize  # type: ignore[attr-defined]
            expected = evaluate(one.model, one.system, one.schedule.step).passing_s
            for times, exact in zip(
                (one.passes.time_s, one.passes.busiest_s, one.passes.last_s), expected, strict=True
            ):
                assert np.asarray(times).tobytes() == np.asarray(exact).tobytes()
    assert recorded


def test_a_recorded_answer_gives_its_operators_when_asked() -> None:
    options: dict[str, Any] = {"output_len": 5, "efficiency": "ideal"}
    answers = [
        api.analyze("llama-3-8b", "h100-sxm", batch_size=2, input_len=77, **options)
        for _ in range(Programs.RUNS_BEFORE + 1)
    ]
    assert answers[-1].to_json() == answers[0].to_json()


def test_a_changed_copy_of_a_system_has_no_program() -> None:
    from dataclasses import replace

    system = api.configuration("llama-2-7b", "a6000").system
    system.programs.note("key", lambda columns: [columns[0] + 1.0], (X,), [X + 1.0])
    assert replace(system, memory_utilization=0.5).programs is not system.programs
