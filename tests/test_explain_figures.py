"""Explained utilizations, work, bytes and limits: trees of every other number that `analyze` prints."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.result.explanation.explain import explained
from llmviewer.result.explanation.figures import OPERATOR_FIGURES, STAGE_FIGURES
from llmviewer.result.explanation.memory import LIMITS
from llmviewer.result.explanation.node import Node

DRAFT = "draft=llama-3.2-1b,tokens=4,acceptance=0.8"
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama-3.1-8b", "h100-sxm", {"engine": "vllm", "batch_size": 4}),
    ("llama-3.1-8b", "h100-sxm", {"efficiency": "ideal", "attention": "eager"}),
    ("llama-3.1-8b", "h100-sxm", {"speculative": DRAFT, "quantization": "fp8"}),
    ("llama-3.1-8b", "h100-sxm", {"pipeline_parallel_size": "4,microbatches=8", "batch_size": 8}),
    ("qwen3-30b-a3b", "h200", {"batch_size": 16, "tensor_parallel_size": 2}),
    ("mamba-2.8b", "a6000", {}),
    ("gpt-oss-20b", "mi300x", {"engine": "vllm", "batching": "chunked", "batch_size": 32}),
    ("opt-30b", "t4", {"offload": "weights=0.9", "output_len": 4}),
)


def _is_given_again(root: Node, again: float, shown: float) -> None:
    assert root.value == pytest.approx(shown, rel=1e-9, abs=1e-30)
    assert again == pytest.approx(shown, rel=1e-9, abs=1e-30)
    assert [node.name for node in root.walk() if not node.formula and not node.source] == []


@pytest.mark.parametrize(("model", "chip", "options"), CASES)
def test_utilizations_are_given_again(model: str, chip: str, options: dict[str, Any]) -> None:
    result = lv.analyze(model, chip, **options)
    for name in ("prefill_mfu", "decode_mfu", "decode_mbu"):
        tree = explained(result, name)
        _is_given_again(tree.root, tree.evaluated(), result.metrics()[name])


@pytest.mark.parametrize(("model", "chip", "options"), CASES)
@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_figures_of_a_stage_are_given_again(model: str, chip: str, options: dict[str, Any], stage: str) -> None:
    result = lv.analyze(model, chip, **options)
    for figure in STAGE_FIGURES:
        tree = explained(result, f"stages.{stage}.{figure}")
        _is_given_again(tree.root, tree.evaluated(), result.stage(stage)[figure])


@pytest.mark.parametrize(("model", "chip", "options"), CASES)
def test_figures_of_every_operator_are_given_again(model: str, chip: str, options: dict[str, Any]) -> None:
    result = lv.analyze(model, chip, **options)
    rows: dict[str, dict[str, Any]] = {}
    for row in result.stage("decode")["operators"]:
        rows.setdefault(row["name"], row)
    for name, row in rows.items():
        for figure in OPERATOR_FIGURES:
            if row[figure] is not None and row["traffic_bytes"]:
                tree = explained(result, f"operators.{name}.{figure}")
                _is_given_again(tree.root, tree.evaluated(), row[figure])


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 300, "efficiency": "ideal"},
        {"max_num_batched_tokens": 300, "attention": "eager"},
        {"pipeline_parallel_size": "2,microbatches=4", "batch_size": 8},
    ],
)
def test_figures_of_an_operator_are_those_of_all_passes_of_prefill(options: dict[str, Any]) -> None:
    """1,024 tokens in passes of 300, 300, 300 and 124, and prompts in four micro-batches."""
    result = lv.analyze("llama-3.1-8b", "h100-sxm", **options)
    for row in result.stage("prefill")["operators"]:
        for figure in OPERATOR_FIGURES:
            tree = explained(result, f"stages.prefill.operators.{row['block']}.{row['name']}.{figure}")
            _is_given_again(tree.root, tree.evaluated(), row[figure])


def test_a_weight_is_read_in_every_pass_of_prefill() -> None:
    """q_proj of Llama-2-7b: 1,024 tokens in two passes read its 4096 x 4096 weights of 2 byte twice."""
    result = lv.analyze("llama-2-7b", "a6000", max_num_batched_tokens=512)
    assert explained(result, "stages.prefill.operators.q_proj.weight_read_bytes").value == 2 * 4096 * 4096 * 2
    assert explained(result, "stages.prefill.operators.q_proj.flops").value == 2 * 1024 * 4096 * 4096
    time = explained(result, "stages.prefill.operators.q_proj.time_s").root
    assert (time.formula, time.values["passes"]) == ("passes * shown_s", pytest.approx(2.0))


@pytest.mark.parametrize("name", ["stages.decode.time_s", "stages.decode.flops", "operators.q_proj.time_s"])
def test_decode_steps_of_an_encoder_are_refused(name: str) -> None:
    result = lv.analyze("bert-base", "a6000", output_len=1)
    with pytest.raises(UserError, match=r"has no decode steps.*stages\.prefill"):
        explained(result, name)
    assert explained(result, "stages.prefill.operators.q_proj.time_s").value > 0.0


def test_work_of_a_linear_layer_by_hand() -> None:
    """q_proj of Llama-2-7b on 3 sequences: 2 x 3 x 4096 x 4096 FLOP, and 4096 x 4096 weights of 2 byte."""
    result = lv.analyze("llama-2-7b", "a6000", batch_size=3)
    assert explained(result, "operators.q_proj.flops").value == 2 * 3 * 4096 * 4096
    assert explained(result, "operators.q_proj.weight_read_bytes").value == 4096 * 4096 * 2


def test_a_utilization_of_prefill_by_hand() -> None:
    """Llama 3.1 8B, 1024 tokens: projections and feed-forward of 32 layers, causal attention, one row of logits."""
    tree = lv.explain("prefill_mfu", "llama-3.1-8b", "h100-sxm", efficiency="ideal")
    at_peak, prefill = tree.root.children
    (products,) = at_peak.children
    flops, peak = products.children
    linear = 2 * 1024 * 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    attention = 32 * 2 * 2 * 4096 * 1024 * 1025 / 2
    assert flops.value == pytest.approx(linear + attention + 2 * 4096 * 128256)
    assert peak.value == pytest.approx(989.4e12, rel=1e-3)
    assert peak.source.startswith("https://")
    assert tree.value == pytest.approx(flops.value / peak.value / prefill.value)


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_those_of_the_document(name: str) -> None:
    result = lv.analyze("llama-3.1-8b", "h100-sxm", engine="vllm", batch_size=4)
    assert explained(result, f"memory.{name}").value == pytest.approx(float(result.memory[name]))


def test_one_sequence_more_than_the_largest_batch_exceeds_the_budget() -> None:
    root = lv.explain("memory.max_batch_size", "llama-3.1-8b", "h100-sxm").root
    fits, exceeds, budget = (child.value for child in root.children)
    assert fits <= budget < exceeds


def test_sizes_beside_a_limit_of_millions_of_tokens_differ() -> None:
    result = lv.analyze("mamba-2.8b", "h100", speculative="draft=mamba-130m,tokens=4,acceptance=0.8", output_len=8)
    fits, exceeds, _ = (child.name for child in explained(result, "memory.max_context_len").root.children)
    (at, beyond) = (int(name.removeprefix("total_bytes at input_len ")) for name in (fits, exceeds))
    assert beyond == at + 1 > 1_000_000


def test_an_unknown_limit_is_an_error() -> None:
    with pytest.raises(UserError, match="is not known here"):
        lv.explain("memory.kv_cache_tokens", "llama-3.1-8b", "h100-sxm")


def test_the_command_explains_a_utilization(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("explain decode_mbu llama-3.2-1b --hardware h100 --format json")) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "decode_mbu"
    assert main(shlex.split("explain memory.max_batch_size llama-3.2-1b --hardware h100")) == 0
