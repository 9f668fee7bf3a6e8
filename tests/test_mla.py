"""Latent attention of DeepSeek-V2-Lite by hand: H = 16 heads, r = 512, nope 128, rope 64, v 128."""

from __future__ import annotations

import numpy as np
import pytest

from llmviewer import models
from llmviewer.core.ir import Graph, Role, check
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.hardware.specs import load as load_chip
from llmviewer.layers.mla import MlaForm
from llmviewer.models.model import Model, with_mla_form
from llmviewer.techniques.kernels.flash_attention import flash_attention

H, R, NOPE, ROPE, V = 16, 512, 128, 64, 128
CACHED, BATCH = 2048, 4


@pytest.fixture(scope="module")
def model() -> Model:
    return models.load("deepseek-v2-lite")


def flops(model: Model, form: MlaForm, step: Step, *names: str) -> float:
    """Matmul FLOPs of these operators in one layer."""
    block = with_mla_form(model, form).graph(step).blocks[1]
    return float(sum(np.sum(op.matmul_flops) for op in block.operators if op.name in names))


def test_the_naive_form_expands_every_key_and_attends_in_full_width(model: Model) -> None:
    keys = CACHED + 1
    step = decode(float(BATCH), float(CACHED))
    assert flops(model, MlaForm.NAIVE, step, "kv_b_proj") == 2 * BATCH * keys * R * H * (NOPE + V)
    assert flops(model, MlaForm.NAIVE, step, "qk_matmul") == 2 * BATCH * keys * H * (NOPE + ROPE)
    assert flops(model, MlaForm.NAIVE, step, "sv_matmul") == 2 * BATCH * keys * H * V


def test_the_absorbed_form_projects_new_tokens_and_attends_in_the_latent(model: Model) -> None:
    keys = CACHED + 1
    step = decode(float(BATCH), float(CACHED))
    assert flops(model, MlaForm.ABSORBED, step, "kv_b_proj") == 2 * BATCH * R * H * (NOPE + V)
    attention = flops(model, MlaForm.ABSORBED, step, "qk_matmul", "sv_matmul")
    assert attention == 2 * BATCH * keys * H * (2 * R + ROPE)


def test_the_cheaper_form_is_absorbed_in_decode_and_naive_in_prefill(model: Model) -> None:
    names = ("kv_b_proj", "qk_matmul", "sv_matmul")
    for step, expected in (
        (decode(1.0, float(CACHED)), MlaForm.ABSORBED),
        (prefill(1.0, float(CACHED)), MlaForm.NAIVE),
    ):
        assert flops(model, MlaForm.CHEAPER, step, *names) == flops(model, expected, step, *names)
        assert flops(model, MlaForm.CHEAPER, step, *names) == min(
            flops(model, MlaForm.NAIVE, step, *names), flops(model, MlaForm.ABSORBED, step, *names)
        )


def test_flash_attention_reads_the_latent_cache_once_in_absorbed_form(model: Model) -> None:
    graph = flash_attention(load_chip("h100-sxm"))(
        with_mla_form(model, MlaForm.ABSORBED).graph(decode(1.0, float(CACHED)))
    )
    check(graph)
    assert cache_read(graph) == (CACHED + 1) * (R + ROPE) * 2  # 16 bit


def cache_read(graph: Graph) -> float:
    """Cache bytes that attention reads in one layer."""
    attention = next(op for _, op in graph if op.kind is Kind.ATTENTION)
    return float(np.sum(attention.read_bytes(Role.CACHE)))


@pytest.mark.parametrize("form", list(MlaForm))
def test_both_forms_store_the_same_weights_and_cache(model: Model, form: MlaForm) -> None:
    changed = with_mla_form(model, form)
    assert changed.parameters == model.parameters
    states = [state for block in changed.graph(decode(1.0, 1.0)).blocks for state in block.states]
    assert {state.per_token for state in states} == {R + ROPE}
