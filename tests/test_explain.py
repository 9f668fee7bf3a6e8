"""Explanations: every leaf has a source, and the arithmetic of every tree gives the number of the document again."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.language.quantity import METRICS
from llmviewer.result.explanation.explain import explained
from llmviewer.result.explanation.memory import NAMES
from llmviewer.result.explanation.node import TOLERANCE, Node, evaluated, folded, smooth_max
from llmviewer.result.result import Result
from llmviewer.techniques.registry import TECHNIQUES, load
from tests.answers import refusal

CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama-3.1-8b", "h100-sxm", {}),
    ("llama-3.1-8b", "h100-sxm", {"efficiency": "ideal"}),
    ("qwen3-30b-a3b", "h200", {"engine": "vllm", "batch_size": 16}),
    ("deepseek-v3", "h200", {"engine": "sglang", "tensor_parallel_size": 8}),
    ("mamba-2.8b", "a6000", {}),
    ("gpt-oss-20b", "mi300x", {"engine": "vllm", "batching": "continuous", "batch_size": 32}),
    ("llama-3.1-70b", "h100-sxm", {"engine": "trtllm", "tensor_parallel_size": 4, "quantization": "fp8"}),
    ("gemma-2-9b", "l40s", {"engine": "vllm", "max_num_batched_tokens": 512}),
    ("llama-3.1-8b", "m4-max", {"engine": "llama.cpp", "batching": "continuous", "batch_size": 4, "input_len": 3000}),
    ("glm-4.7-flash", "h100-sxm", {}),  # latent attention whose expanded keys are as wide as its values
)
NUMBERS = (*METRICS, *(f"memory.{name}" for name in NAMES), "stages.prefill.time_s", "stages.decode.time_s")


def _wrong(result: Result, document: dict[str, Any]) -> list[str]:
    """Numbers whose tree does not give the number of the document, or has a leaf without a source."""
    found = []
    for number in NUMBERS:
        shown = _shown(document, number)
        if shown is None:
            continue
        tree = explained(result, number)
        again = abs(tree.evaluated() - tree.value) <= TOLERANCE * abs(tree.value)
        same = abs(tree.value - shown) <= TOLERANCE * abs(shown)
        sourced = all(node.source for node in tree.root.walk() if not node.formula)
        if not (again and same and sourced):
            found.append(f"{number}: {shown} in the document, {tree.value} explained, {tree.evaluated()} evaluated")
    return found


def _shown(document: dict[str, Any], number: str) -> float | None:
    first, _, rest = number.partition(".")
    if first == "memory":
        return document["memory"].get(rest)  # type: ignore[no-any-return]
    if first == "stages":
        return document["stages"][rest.partition(".")[0]]["time_s"]  # type: ignore[no-any-return]
    return METRICS[number].of(document["metrics"])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("model", "chip", "options"), CASES)
def test_every_number_is_given_again(model: str, chip: str, options: dict[str, Any]) -> None:
    result = lv.analyze(model, chip, **options)
    assert _wrong(result, result.to_dict()) == []


@pytest.mark.parametrize("name", TECHNIQUES)
def test_numbers_with_every_technique_are_given_again(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The tree of the JSON document alone, without our own classes, gives the number that `analyze` prints."""
    words = shlex.split(load(name).example)[2:]
    assert main(["analyze", *words, "--format", "json", "--no-fit-check"]) == 0
    document = json.loads(capsys.readouterr().out)
    own = [word for word in words if word != "--no-fit-check"]
    for number in ("ttft_s", "tpot_s", "e2e_s", "memory.total_bytes", "stages.decode.time_s"):
        shown = _shown(document, number)
        if shown is None:
            continue
        assert main(["explain", number, *own, "--format", "json"]) == 0
        tree = json.loads(capsys.readouterr().out)
        assert tree["schema"] == "llmviewer.explanation/1"
        assert tree["value"] == pytest.approx(shown, rel=1e-9)
        assert evaluated(_node(tree)) == pytest.approx(shown, rel=1e-9)
        assert all(node.source for node in _node(tree).walk() if not node.formula)


def _node(tree: dict[str, Any]) -> Node:
    return Node(
        name=tree["name"],
        value=tree["value"],
        unit=tree["unit"],
        formula=tree["formula"],
        values=tree["values"],
        source=tree["source"],
        children=tuple(map(_node, tree["children"])),
    )


@pytest.mark.parametrize(("model", "chip", "options"), CASES[:5])
@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_every_operator_is_given_again(model: str, chip: str, options: dict[str, Any], stage: str) -> None:
    result = lv.analyze(model, chip, **options)
    prefix = "stages.prefill.operators" if stage == "prefill" else "operators"
    for row in result.to_dict()["stages"][stage]["operators"]:
        for field in ("time_s", "traffic_bytes"):
            tree = explained(result, f"{prefix}.{row['name']}.{field}")
            assert tree.evaluated() == pytest.approx(tree.value, rel=1e-9, abs=1e-30), (row["name"], field)


def test_an_operator_of_each_kind_of_layer_is_explained_by_the_name_of_the_block() -> None:
    """Cross-attention of T5 XXL reads 8,192 keys and values of 64 heads of 64, self-attention those of one token."""
    result = lv.analyze("t5-v1.1-xxl", "h200", input_len=8192)
    rows = {row["block"]: row for row in result.stage("decode")["operators"] if row["name"] == "attention"}
    for block in ("decoder_self", "decoder_cross"):
        for field in ("time_s", "traffic_bytes"):
            found = explained(result, f"operators.{block}.attention.{field}")
            assert found.value == pytest.approx(rows[block][field], rel=1e-12)
            assert found.warnings == result.warnings
    read = {
        node.name: node.value
        for node in explained(result, "operators.decoder_cross.attention.traffic_bytes").root.children
    }
    assert read["reads k_cache"] == read["reads v_cache"] == 8192 * 64 * 64 * 2


def test_the_short_name_of_an_operator_of_several_blocks_says_which_is_meant() -> None:
    found = lv.explain("operators.attention.time_s", "t5-v1.1-xxl", "h200")
    assert found.root.name == "decoder_self.attention.time_s"
    (said,) = (text for text in found.warnings if "decoder_cross" in text)
    assert "that of decoder_self" in said
    assert "operators.decoder_cross.attention.time_s" in said


def test_an_operator_of_one_kind_of_layer_has_the_same_number_by_both_names() -> None:
    short, full = (lv.explain(f"operators.{name}.time_s", "llama-2-7b", "a6000") for name in ("q_proj", "layer.q_proj"))
    assert short.value == full.value
    assert short.warnings == full.warnings


def test_a_linear_layer_by_hand() -> None:
    """Ideal q_proj of Llama-2-7b, one token: (4096² + 2 · 4096) · 2 byte over 768 GB/s of an A6000."""
    found = lv.explain("operators.q_proj.time_s", "llama-2-7b", "a6000", efficiency="ideal")
    memory = next(child for child in found.root.children if child.name == "memory_s")
    assert memory.value == pytest.approx((4096**2 + 2 * 4096) * 2 / 768e9, rel=1e-12)
    assert found.value == memory.value
    sources = [node.source for node in found.root.walk()]
    assert any(source.startswith("https://") for source in sources)


def test_constants_name_the_fit_with_its_rows_and_error() -> None:
    found = lv.explain("operators.o_proj.time_s", "llama-3.1-8b", "h100-sxm", engine="vllm")
    share = next(node for node in found.root.walk() if node.source.startswith("share of the bandwidth"))
    assert "gemm/bf16/vllm (measured, of h100-sxm" in share.source
    assert "rows, error" in share.source


def test_a_folded_tree_keeps_the_sum() -> None:
    root = lv.explain("tpot_s", "llama-3.1-8b", "h100-sxm", engine="vllm").root
    cut = folded(root, 3, 1)
    assert len(cut.children) == 4
    assert cut.children[-1].name.endswith("others")
    assert sum(child.value for child in cut.children) == pytest.approx(root.value, rel=1e-12)


def test_a_smooth_maximum_by_hand() -> None:
    """(3² + 4²)^(1/2) = 5."""
    assert smooth_max(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert smooth_max(0.0, 0.0, 2.0) == 0.0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("foo llama-2-7b --hardware h100", "unknown number 'foo'"),
        ("tpot llama-2-7b --hardware h100", "did you mean 'tpot_s'"),
        ("memory.weight llama-2-7b --hardware h100", "unknown part of the memory 'weight'"),
        ("operators.q_pro.time_s llama-2-7b --hardware h100", "did you mean 'q_proj'"),
        ("operators.q_proj.cost llama-2-7b --hardware h100", "unknown number of an operator 'cost'"),
        ("operators.layr.q_proj.time_s llama-2-7b --hardware h100", "unknown operator 'layr.q_proj'"),
        (
            "operators.decoder_cros.attention.time_s t5-v1.1-xxl --hardware h200",
            "did you mean 'decoder_cross.attention'",
        ),
        (
            "tpot_s llama-2-7b --hardware h100 --output-len 1",
            "tpot_s is undefined: no pass follows the one of the first token",
        ),
        ("tpot_s", "explain needs a model"),
        ("tpot_s llama-2-7b", "explain needs --hardware"),
        ("tpot_s llama-2-7b --hardware h100 --depth 0", "depth"),
    ],
)
def test_wrong_lines_are_refused(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(["explain", *shlex.split(line)], capsys)


def test_an_undefined_number_is_an_error_in_python() -> None:
    with pytest.raises(UserError, match="undefined"):
        lv.explain("tpot_s", "llama-2-7b", "h100", output_len=1)


@pytest.mark.parametrize("kind", ["table", "json", "csv", "markdown"])
def test_the_command_answers_in_every_format(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "tpot_s", "llama-3.2-1b", "--hardware", "h100", "--format", kind]) == 0
    assert "gate_proj" in capsys.readouterr().out
