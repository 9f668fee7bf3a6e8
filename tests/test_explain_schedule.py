"""Explained latencies of drafts, pipelines and shared replicas: parts are real quantities and leave no rest."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.planning.why_line import side
from llmviewer.result.explanation.explain import explained
from llmviewer.result.explanation.node import TOLERANCE, Node
from llmviewer.result.result import Result
from llmviewer.techniques.registry import TECHNIQUES, load

CHIP = "llama-3.1-8b --hardware h100-sxm --output-len 16"
DRAFT = "--speculative draft=llama-3.2-1b,tokens=4,acceptance=0.8"
LINES = (
    f"{CHIP} {DRAFT}",
    f"{CHIP} {DRAFT} --engine vllm",
    f"{CHIP} --speculative medusa",
    f"{CHIP} --speculative medusa --batching chunked --batch-size 16",
    f"{CHIP} -pp 4",
    f"{CHIP} -pp 4 --efficiency ideal",
    f"{CHIP} -pp 4,microbatches=8 --batch-size 8",
    f"{CHIP} -pp 4,microbatches=2 --batch-size 3 --max-num-batched-tokens 300",
    f"{CHIP} -pp 2,microbatches=4 --batch-size 8 {DRAFT}",
    f"{CHIP} -pp 2,microbatches=2 --batch-size 8 --speculative draft=llama-3.1-8b,tokens=4,acceptance=0.8",
    f"{CHIP} -pp 4 --batching continuous --batch-size 64 {DRAFT}",
    f"{CHIP} -pp 4 --batching chunked --batch-size 64 --engine vllm {DRAFT}",
    f"{CHIP} --batching continuous --batch-size 16",
    f"{CHIP} --batching continuous --batch-size 16 --engine sglang",
    f"{CHIP} --batching continuous --batch-size 2000 --input-len 4k --engine vllm",
    f"{CHIP} --batching chunked --batch-size 16",
    f"{CHIP} --batching chunked --batch-size 3000 --input-len 2k --engine vllm",
    f"{CHIP} --batching disaggregated,prefill=1,decode=1 --batch-size 64",
    f"{CHIP} --batching disaggregated,prefill=4,decode=1 --batch-size 640 --engine vllm {DRAFT}",
    "opt-30b --hardware t4 --offload weights=0.7,gpu_batches=3 --batch-size 12 --output-len 4",
    "llama-3.2-1b --hardware h100 --output-len 40000 -pp 4,microbatches=8 --batch-size 8",
    f"llama-3.1-8b --hardware h100 --output-len 40000 {DRAFT}",
)


def _analyzed(line: str) -> Result:
    one = side(line)
    sizes = {name: one.words[name] for name in ("batch_size", "input_len", "output_len")}
    return lv.analyze(one.model, one.hardware, **sizes, **one.options)


def _faults(result: Result) -> list[str]:
    """Latencies whose tree has a rest or a leaf without a source, or does not give the number again."""
    found = []
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        if np.isnan(getattr(result, metric)):  # an encoder generates nothing
            continue
        tree = explained(result, metric)
        nodes = list(tree.root.walk())
        rest = [node.name for node in nodes if node.name == "rest_s"]
        bare = [node.name for node in nodes if not node.formula and not node.source]
        if rest or bare or abs(tree.evaluated() - float(getattr(result, metric))) > TOLERANCE * tree.value:
            found.append(f"{metric}: {tree.evaluated()} for {tree.value}, {rest} {bare}")
    return found


@pytest.mark.parametrize("line", LINES)
def test_a_latency_is_the_sum_of_real_quantities(line: str) -> None:
    assert _faults(_analyzed(line)) == []


@pytest.mark.parametrize("name", TECHNIQUES)
def test_no_technique_leaves_a_rest(name: str) -> None:
    words = [word for word in shlex.split(load(name).example)[2:] if word != "--no-fit-check"]
    result = _analyzed(shlex.join(words))
    assert _faults(result) == []


def _child(node: Node, name: str) -> Node:
    return next(child for child in node.children if child.name == name)


def test_a_token_with_drafts_is_a_verification_and_draft_passes_over_the_tokens_of_a_round() -> None:
    """4 drafts accepted by 0.8: 1 + 0.8 + 0.64 + 0.512 + 0.4096 = 3.3616 tokens; drafts run as the model alone."""
    result = _analyzed(f"{CHIP} {DRAFT}")
    root = explained(result, "tpot_s").root
    draft = _child(root, "draft: llama-3.2-1b")
    alone = float(lv.analyze("llama-3.2-1b", "h100-sxm", output_len=16).tpot_s)
    assert _child(draft, "tokens_per_round").value == pytest.approx(3.3616)
    assert _child(draft, "pass_s").value == pytest.approx(alone, rel=1e-4), "drafts run 1.5 tokens further on average"
    assert draft.value == pytest.approx(4 * _child(draft, "pass_s").value / 3.3616, rel=1e-9)
    assert {child.name for child in _child(draft, "pass_s").children} >= {"layer.down_proj", "head.lm_head"}
    assert _child(root, "verification").value + draft.value == pytest.approx(float(result.tpot_s), rel=1e-9)


def test_medusa_heads_are_operators_of_the_draft() -> None:
    heads = _child(explained(_analyzed(f"{CHIP} --speculative medusa"), "tpot_s").root, "draft: Medusa, 4 heads")
    names = {child.name for child in _child(heads, "pass_s").children}
    assert {"medusa_resblock.resblock_proj", "medusa_head.lm_head"} <= names


def test_prefill_of_a_pipeline_is_the_slowest_stage_for_all_micro_batches_and_a_bubble() -> None:
    """8 micro-batches on 4 stages: 8 times the slowest stage, and once each of the three others."""
    result = _analyzed(f"{CHIP} -pp 4,microbatches=8 --batch-size 8")
    slowest, fill = explained(result, "ttft_s").root.children
    stages = [float(stage.time_s[0]) for stage in result.analysis.evaluation.stages]
    assert _child(slowest, "micro_batches").value == 8.0
    assert slowest.value == pytest.approx(8 * max(stages), rel=1e-9)
    assert fill.value == pytest.approx(sum(stages) - max(stages), rel=1e-9)
    assert [child.name for child in fill.children] == ["stage 1", "stage 2", "stage 3"]
    assert all(node.name.startswith("stage 2: ") for node in fill.children[1].children)


def test_tokens_of_continuous_batching_wait_for_the_prompts_of_others() -> None:
    """16 sequences: the prompts of the 15 others run between the 15 tokens after the first one, or before it."""
    result = _analyzed(f"{CHIP} --batching continuous --batch-size 16 --engine sglang")
    root = explained(result, "tpot_s").root
    others, before = _child(root, "others' prompts between tokens"), _child(root, "that is before the first token")
    times = result.analysis.times
    assert others.value == pytest.approx(float(times.others_s[0]) / 15, rel=1e-9)
    assert before.value == pytest.approx(-float(times.ahead_s[0]) / 15, rel=1e-9)
    assert 0.0 < -before.value < others.value
    assert _child(_child(others, "others_s"), "next_s").children


def test_chunked_batching_has_pure_and_mixed_steps() -> None:
    result = _analyzed(f"{CHIP} --batching chunked --batch-size 4")
    facts: dict[str, Any] = dict(result.analysis.times.facts())
    root = explained(result, "tpot_s").root
    mixed = _child(root, "mixed steps")
    steps = mixed.values["mixed"] / mixed.values["tokens"]
    assert mixed.value == pytest.approx(steps * float(facts["mixed_step_s"][0]), rel=1e-9)


def test_early_exit_in_a_pipeline_names_what_is_left() -> None:
    result = lv.analyze("llama-2-7b", "a100", output_len=4, pipeline_parallel_size=4, early_exit="mean=0.5,kv=pipeline")
    (rest,) = [node for node in explained(result, "tpot_s").root.children if node.name == "rest_s"]
    assert "exit early in a pipeline" in rest.source


@pytest.mark.parametrize("more", [{}, {"speculative": "draft=llama-3.2-1b,tokens=4,acceptance=0.8"}])
def test_decode_steps_of_a_utilization_have_what_early_exit_leaves(more: dict[str, Any]) -> None:
    result = lv.analyze(
        "llama-2-7b", "a100", output_len=4, pipeline_parallel_size=4, early_exit="mean=0.5,kv=pipeline", **more
    )
    tree = explained(result, "decode_mbu")
    assert tree.value == pytest.approx(float(result.decode_mbu), rel=1e-9)
    assert tree.evaluated() == pytest.approx(tree.value, rel=1e-9)
