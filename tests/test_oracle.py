"""Reference counts of twelve models, generated once with the library's code and stored outside the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmviewer.analysis.memory import cache_bytes
from llmviewer.core.ir import Graph
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.hardware.specs import load as load_chip
from llmviewer.layers.mla import MlaForm
from llmviewer.models.load import parse
from llmviewer.models.model import Model, with_mla_form
from llmviewer.result.describe import cache_growth
from llmviewer.techniques.kernels.flash_attention import flash_attention

ORACLE = Path(__file__).resolve().parent.parent.parent / "shared" / "oracle" / "models.json"
TRUTHS: list[dict[str, Any]] = json.loads(ORACLE.read_text()) if ORACLE.exists() else []


@pytest.fixture(params=TRUTHS, ids=lambda truth: truth["name"])
def truth(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
def model(truth: dict[str, Any]) -> Model:
    return parse(truth["config"], truth["name"], dtype="fp16")


def flops(graph: Graph, *kinds: Kind) -> float:
    """Matmul FLOPs in the layers of operators of these kinds."""
    return float(sum(op.matmul_flops * b.repeats for b, op in graph if op.kind in kinds and op.name != "lm_head"))


def matmul(model: Model, step: Step) -> float:
    return float(sum(op.matmul_flops * block.repeats for block, op in model.graph(step)))


def is_latent(truth: dict[str, Any]) -> bool:
    return "mla_absorbed_total_formula" in truth["flops"]["decode_b1_ctx2048"]


def test_parameters(truth: dict[str, Any], model: Model) -> None:
    assert model.parameters == truth["params"]["total"]
    assert model.active_parameters == truth["params"]["active_per_token"]


def test_cache(truth: dict[str, Any], model: Model) -> None:
    growth, kv = cache_growth(model.graph(decode(1.0, 0.0))), truth["kv"]
    assert growth["kv_cache_bytes_per_token"] == kv["bytes_per_token_fp16"]
    assert growth["kv_cache_bytes_per_token_beyond_windows"] == kv["bytes_per_token_fp16_unwindowed_layers_only"]
    assert growth["state_bytes_per_sequence"] == kv["state_bytes_per_sequence_fp16"]
    for context in (4096, 32768):
        graph = model.graph(decode(1.0, float(context)))
        assert cache_bytes(graph, float(context)) == kv[f"cache_bytes_b1_ctx{context}"]


def test_prefill_flops(truth: dict[str, Any], model: Model) -> None:
    expected = truth["flops"]["prefill_b1_s2048"]
    graph = model.graph(prefill(1.0, 2048.0))
    assert flops(graph, Kind.GEMM) == expected["linear"]
    assert flops(graph, Kind.ATTENTION) == expected["attention_full_square"]
    fused = flash_attention(load_chip("h100-sxm"))(graph)
    assert flops(fused, Kind.ATTENTION) == expected["attention_causal_windowed_formula"]
    total = float(sum(op.matmul_flops * block.repeats for block, op in fused))
    assert total == expected["total_causal_last_position"]


@pytest.mark.parametrize("batch", [1, 8])
def test_decode_flops(truth: dict[str, Any], model: Model, batch: int) -> None:
    expected = truth["flops"][f"decode_b{batch}_ctx2048"]
    step = decode(float(batch), 2048.0)
    if is_latent(truth):
        assert matmul(model, step) == expected["mla_absorbed_total_formula"]
        assert matmul(with_mla_form(model, MlaForm.NAIVE), step) == expected["mla_counter_total_reexpanding_cache"]
        return
    graph = model.graph(step)
    assert flops(graph, Kind.GEMM) == expected["linear"]
    assert flops(graph, Kind.ATTENTION) == expected["attention"]
    assert matmul(model, step) == expected["total"]


def test_a_sweep_over_batches_gives_the_same_counts(truth: dict[str, Any], model: Model) -> None:
    many = [op.matmul_flops for _, op in model.graph(decode(np.array([1.0, 8.0]), 2048.0))]
    for index, batch in enumerate((1.0, 8.0)):
        one = [op.matmul_flops for _, op in model.graph(decode(batch, 2048.0))]
        assert [float(np.broadcast_to(m, 2)[index]) for m in many] == [float(o) for o in one]


if not TRUTHS:
    pytestmark = pytest.mark.skip(reason="no shared/oracle/models.json beside the repository")
