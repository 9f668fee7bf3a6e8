"""Explained kernels: every level of every family gives its number again, and names all constants that matter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.analysis.evaluation import TimedOperator
from llmviewer.core.data import folder
from llmviewer.core.errors import UserError
from llmviewer.result.explanation.metrics import Question
from llmviewer.result.explanation.node import Node, evaluated
from llmviewer.result.explanation.times import operator_time
from llmviewer.result.explanation.work import Pass
from llmviewer.result.result import Result
from llmviewer.timing.kernels.families import FAMILIES, families_of
from llmviewer.timing.profile import FOLDER
from llmviewer.timing.roofline import time_operator

#: A dense model, experts, latent attention, attention beside a state space, and windows; on several devices.
MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama-3.1-8b", {"tensor_parallel_size": 2}),
    ("gpt-oss-20b", {}),
    ("deepseek-v3", {"tensor_parallel_size": 8}),
    ("falcon-h1-7b", {}),
    ("gemma-2-9b", {"batching": "continuous"}),
)
CHIPS = (*sorted(path.stem for path in folder(FOLDER).glob("*.yaml")), "mi300x", "rtx-4090")
WAYS: tuple[dict[str, Any], ...] = (
    {"engine": "vllm", "batch_size": 4},
    {"engine": "sglang", "batch_size": 32, "quantization": "fp8", "input_len": 4000},
    {"engine": "trtllm", "batch_size": 1, "kv_cache_dtype": "fp8"},
    {"engine": "torch", "batch_size": 2, "quantization": "awq", "attention": "eager"},
)


def _results(chip: str, ways: Sequence[dict[str, Any]] = WAYS) -> Iterator[Result]:
    for model, options in MODELS:
        for way in ways:
            try:
                yield lv.analyze(model, chip, **options, **way)
            except UserError:  # an engine or a format that the chip or the model lacks
                continue


def _trees(result: Result) -> Iterator[tuple[TimedOperator, Pass, Node]]:
    """Every operator in the pass shown of both stages."""
    one = Question(analysis=result.analysis, point=0)
    for index in one.shown.values():
        shown = one.at_pass(index)
        for row in result.analysis.evaluation.rows:
            if shown.at(row.timing.time_s) > 0.0:
                yield row, shown, operator_time(row, shown)


def _wrong(tree: Node) -> list[str]:
    """Numbers that their formulas do not give from the numbers below them, and leaves without a source."""
    found = []
    for node in tree.walk():
        level = replace(node, children=tuple(replace(child, formula="") for child in node.children))
        if abs(evaluated(level) - node.value) > 1e-9 * abs(node.value):
            found.append(f"{node.name} = {node.formula}")
        if not node.formula and not node.source:
            found.append(node.name)
    return found if abs(evaluated(tree) - tree.value) <= 1e-9 * tree.value else [*found, tree.name]


@pytest.mark.parametrize("chip", CHIPS)
def test_every_level_of_every_kernel_is_given_again(chip: str) -> None:
    """Chips take turns with one of the ways each, and the H100 runs all."""
    ways = WAYS if chip == "h100-sxm" else WAYS[CHIPS.index(chip) % len(WAYS) :: len(WAYS)]
    assert [
        (row.operator.name, bad)
        for one in _results(chip, ways)
        for row, _, tree in _trees(one)
        if (bad := _wrong(tree))
    ] == []


def test_constants_of_every_family_have_their_fit() -> None:
    sources = {
        node.source
        for one in _results("h100-sxm", WAYS[::3])
        for _, _, tree in _trees(one)
        for node in tree.walk()
        if not node.formula
    }
    told = {family: [text for text in sources if f"calibration {family}/" in text] for family in FAMILIES}
    assert all(told.values()), told
    assert [text for texts in told.values() for text in texts if not re.search(r"\(.+, of [\w-]+", text)] == []


@pytest.mark.parametrize("chip", ["h100-sxm", "l40s", "mi300x"])
@pytest.mark.parametrize("way", WAYS[:3])
def test_every_constant_that_matters_is_in_the_tree(chip: str, way: dict[str, Any]) -> None:
    """A constant that changes the time of an operator if it is two percent larger is a leaf of the operator's tree.

    Discrete settings choose a branch, which the tree shows instead.
    """
    for model, options in MODELS[:3]:
        try:
            result = lv.analyze(model, chip, **options, **way)
        except UserError:
            continue
        for row, shown, tree in _trees(result):
            assert _moving(row, shown) <= _fitted(tree), (model, row.operator.name)


def test_a_norm_by_hand() -> None:
    """One row of 4096 elements on an H100: 3 tensors of 8 KiB through one unit of 11.366 byte per cycle of 1.98 GHz.

    Data in the L2 make that 1.6532 times as fast, and the shortest kernel takes 1.9498 us (vLLM's norms were
    not measured, its conversions were).
    """
    tree = lv.explain("operators.final_norm.time_s", "llama-3.1-8b", "h100-sxm", engine="vllm").root
    assert tree.value == pytest.approx(3 * 8192 / (11.366 * 1.98e9) / 1.6532 + 1.9498e-6, rel=1e-12)
    leaves = {node.name: node for node in tree.walk() if not node.formula}
    assert (leaves["unit"].value, leaves["unit"].unit) == (11.366, "byte/cycle")
    assert leaves["unit"].source.startswith(
        "throughput of one unit: calibration streaming/quantize/vllm (assumed, of h1"
    )


def _fitted(tree: Node) -> set[str]:
    return {re.sub(r"_\d+$", "", node.name) for node in tree.walk() if "calibration " in node.source}


def _moving(row: TimedOperator, shown: Pass) -> set[str]:
    """Constants of the operator's fits that change its time."""
    own, operator = shown.calibration, row.operator
    assert own is not None
    if not operator.is_kernel:
        return set()
    moving = set()
    for family in families_of(operator):
        found = own.select_fit(family, operator)
        settings = {one.name for one in FAMILIES[found.fit.family].constants if one.choices}
        for name, value in found.fit.constants.items():
            fit = replace(found.fit, constants={**found.fit.constants, name: value * 1.02})
            key = f"{family}/{FAMILIES[family].variant(operator)}"
            changed = replace(own, selected={**own.selected, key: replace(found, fit=fit)})
            seconds = shown.at(time_operator(operator, shown.chip, changed, row.traffic_bytes).time_s)
            if abs(seconds / shown.at(row.timing.time_s) - 1.0) > 1e-9 and name not in settings:
                moving.add(name)
    return moving


def test_rates_of_the_host_come_from_its_data_sheet_and_from_what_was_measured() -> None:
    """Experts on the host and on its disk: every rate names a page, none the code that divides by it."""
    leaves = {
        leaf.name: leaf.source
        for offload in ("experts,host=xeon-6454s-ddr5", "experts,to=disk", "experts,instructions=avx512")
        for _, _, tree in _trees(lv.analyze("mixtral-8x7b", "a6000", offload=offload, input_len=4096))
        for leaf in tree.walk()
        if not leaf.formula
    }
    assert not any("roofline.py" in source for source in leaves.values())
    rates = ("host_bandwidth", "bf16_host_matrix_rate", "fp32_host_matrix_rate", "disk_read_bytes_per_s")
    assert all("https://" in leaves[name] for name in (*rates, "memory_share", "matrix_share", "link_share"))


def test_constants_of_the_code_are_explained_by_their_comments() -> None:
    """Each says what it is; those without a comment of their own name the function that uses them."""
    leaves = {
        leaf.name: leaf.source
        for _, _, tree in _trees(lv.analyze("llama-3.1-8b", "h100-sxm"))
        for leaf in tree.walk()
        if not leaf.formula
    }
    assert leaves["requested_per_clock"].startswith(
        "Bytes that a unit requests per clock; the more bandwidth a unit has"
    )
    assert leaves["exponent"].endswith("(timing/kernels/power.py: usual_share)")
    assert not [name for name, source in leaves.items() if source.startswith(("constant (", "timing/"))]
