"""Gemma 3n's residual streams by hand: 4 streams of 2048, a LAuReL branch of rank 64, 10 tokens."""

from __future__ import annotations

import pytest

from llmviewer.core.ir import Operator, check
from llmviewer.core.workload import prefill
from llmviewer.models.load import from_fields
from llmviewer.models.model import Model

TOKENS, WIDTH, STREAMS = 10, 2048, 4


@pytest.fixture(scope="module")
def model() -> Model:
    return from_fields({"model_type": "gemma3n_text"})


def block(model: Model, index: int) -> dict[str, Operator]:
    graph = model.graph(prefill(1.0, float(TOKENS)))
    check(graph)
    return {operator.name: operator for operator in graph.blocks[index].operators}


def test_a_layer_predicts_and_corrects_all_streams(model: Model) -> None:
    """Prediction: 4 x 4 coefficients per token mix 4 streams (2 x 4 + 1 FLOP per element); correction: 3 FLOP."""
    layer = block(model, 1)
    assert layer["altup_prediction_coefs"].matmul_flops == 2 * TOKENS * STREAMS * STREAMS**2
    assert layer["altup_correction_coefs"].matmul_flops == 2 * TOKENS * STREAMS * STREAMS
    assert layer["altup_predicted"].vector_flops == (2 * STREAMS + 1) * TOKENS * STREAMS * WIDTH
    assert layer["altup_predicted"].reads[0].elements == TOKENS * STREAMS * WIDTH
    assert layer["altup_corrected"].vector_flops == 3 * TOKENS * STREAMS * WIDTH
    assert layer["altup_add"].vector_flops == TOKENS * (STREAMS - 1) * WIDTH


def test_prediction_and_correction_share_their_router(model: Model) -> None:
    weights = model.graph(prefill(1.0, 1.0)).blocks[1].weights()
    assert weights["altup_router.weight"].elements == WIDTH * STREAMS
    assert sum("router" in name for name in weights) == 2  # the matrix and its norm


def test_streams_are_made_after_the_embedding_and_merged_before_the_norm(model: Model) -> None:
    """Three square matrices at each end: 2 x 3 x 10 x 2048 x 2048 FLOP."""
    for index, name in ((0, "altup_projection"), (-1, "altup_unembed_projection")):
        ops = block(model, index)
        flops = sum(op.matmul_flops for key, op in ops.items() if key.startswith(name))
        assert flops == 2 * 3 * TOKENS * WIDTH**2


def test_the_low_rank_branch_runs_beside_attention(model: Model) -> None:
    layer = block(model, 1)
    assert layer["laurel_left"].matmul_flops == layer["laurel_right"].matmul_flops == 2 * TOKENS * WIDTH * 64


def test_sparse_activations_are_more_work_and_no_other_matrices(model: Model) -> None:
    """The first 10 of 35 layers: 6 FLOP more per element of the activation; the last 15 share their caches."""
    sparse, dense = block(model, 1), block(model, 3)
    assert sparse["mlp_act"].vector_flops - dense["mlp_act"].vector_flops == 6 * TOKENS * 16384
    assert sparse["down_proj"].matmul_flops == dense["down_proj"].matmul_flops
    assert sum(layer.repeats for layer in model.layers if "sparse" in layer.name) == 10
    assert sum(layer.repeats for layer in model.layers if "shared" in layer.name) == 15
