"""The matrix memories of xLSTM: parameters, states and FLOPs by hand."""

from __future__ import annotations

import pytest

from llmviewer.core.dtypes import get_dtype
from llmviewer.core.workload import decode
from llmviewer.layers.linear_attention import MatrixLstm
from llmviewer.models.load import from_fields

#: 2 heads with keys of 16 and values of 32 elements.
LAYER = MatrixLstm(hidden=64, heads=2, key_width=32, value_width=64, dtype=get_dtype("bf16"))
XLSTM_7B = {
    "model_type": "xlstm", "embedding_dim": 4096, "num_blocks": 32, "num_heads": 8, "vocab_size": 50304,
    "qk_dim_factor": 0.5, "v_dim_factor": 1.0, "ffn_proj_factor": 2.667, "ffn_round_up_to_multiple_of": 64,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def test_a_head_stores_a_matrix_a_normalizer_and_a_maximum_in_32_bits() -> None:
    (state,) = LAYER.states()
    assert state.per_sequence == 2 * (16 * 32 + 16 + 1)
    assert state.dtype.bits == 32


def test_a_token_updates_and_reads_every_element_of_the_memory() -> None:
    """4 FLOP an element: decay and outer product, product with the query; the state is read and written once."""
    graph = from_fields(XLSTM_7B).graph(decode(3.0, 100.0))
    rule = next(op for _, op in graph if op.name == "recurrence")
    elements = 8 * (256 * 512 + 256 + 1)
    assert rule.recurrence_flops == 3 * 4 * elements
    moved = sum(
        a.elements * a.tensor.dtype.bytes for a in (*rule.reads, *rule.writes) if a.tensor.name == "recurrent_state"
    )
    assert moved == 2 * 3 * elements * 4


def test_the_cache_of_xlstm_7b_does_not_grow_with_the_context() -> None:
    """32 layers x 8 heads x (256 x 512 + 256 + 1) x 4 byte = 128.3 MiB a sequence."""
    model = from_fields(XLSTM_7B)
    states = [state for block in model.graph(decode(1.0, 1.0)).blocks for state in block.states * int(block.repeats)]
    assert all(not state.per_token for state in states)
    assert sum(state.per_sequence * state.dtype.bytes for state in states) == pytest.approx(128.25 * 2**20, rel=1e-3)


def test_xlstm_7b_has_the_parameters_of_its_matrices() -> None:
    """Layer: q, k h h / 2, v, gate, out h h, 16 gates with biases, three norms; MLP 3 h x 10944; two tables, a norm."""
    h = 4096
    layer = 2 * h * h // 2 + 3 * h * h + 16 * h + 16 + 3 * h + 3 * h * 10944
    model = from_fields(XLSTM_7B)
    assert model.parameters == 32 * layer + 2 * 50304 * h + h
    assert round(model.parameters / 1e9, 2) == 6.87
