"""Operators outside attention: FLOPs and bytes from their sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.core.dtypes import DTYPES, grouped_int
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Operator, Role, Tensor, whole
from llmviewer.ops.attention import rope
from llmviewer.ops.elementwise import activate, activation, add, embedding, gated, layer_norm, rms_norm
from llmviewer.ops.gemm import GemmShape, Linear

FP16 = DTYPES["fp16"]
size = st.integers(1, 10**5)


def tensor(elements: float, name: str = "x") -> Tensor:
    return Tensor(name=name, elements=elements, dtype=FP16)


def linear(tokens: float, k: float, n: float, **more: object) -> Operator:
    layer = Linear(name="proj", in_features=k, out_features=n, dtype=FP16, **more)  # type: ignore[arg-type]
    return layer.operator(tensor(tokens * k), tokens)


@given(m=size, n=size, k=size)
def test_a_linear_layer_is_two_flops_per_multiply_add_and_moves_each_matrix_once(m: int, n: int, k: int) -> None:
    operator = linear(float(m), k, n)
    assert operator.matmul_flops == 2 * m * n * k
    assert operator.vector_flops == 0
    assert operator.traffic_bytes == 2 * (m * k + k * n + m * n)
    assert operator.shape.m == m and isinstance(operator.shape, GemmShape)


def test_a_bias_adds_a_vector_flop_per_output_and_is_read() -> None:
    with_bias, without = linear(10.0, 64, 32, bias=True), linear(10.0, 64, 32)
    assert with_bias.vector_flops == 10 * 32
    assert with_bias.matmul_flops == without.matmul_flops
    assert with_bias.traffic_bytes - without.traffic_bytes == 2 * 32


def test_quantizing_weights_shrinks_only_their_stored_bits() -> None:
    """4096 x 4096 at 4 + 16/128 bits: 8.65 MB instead of 33.6; inputs and outputs stay, and so do the units."""
    layer = Linear(name="proj", in_features=4096, out_features=4096, dtype=grouped_int(4))
    operator = layer.operator(tensor(4096.0), 1.0)
    assert operator.read_bytes(Role.WEIGHT) == 4096 * 4096 * 4.125 / 8
    assert operator.read_bytes(Role.ACTIVATION) == operator.write_bytes(Role.ACTIVATION) == 2 * 4096
    assert operator.compute == "fp16"


def test_a_grouped_matmul_reads_chosen_experts_and_stores_all() -> None:
    layer = Linear(name="proj", in_features=64, out_features=32, dtype=FP16, experts=8)
    operator = layer.operator(tensor(6 * 64.0), 6.0, active=3.0)
    assert operator.read_bytes(Role.WEIGHT) == 2 * 3 * 64 * 32
    assert layer.weight.elements == 8 * 64 * 32
    assert operator.matmul_flops == 2 * 6 * 64 * 32


@given(tokens=size, width=size)
def test_a_norm_reads_its_weights(tokens: int, width: int) -> None:
    """RMSNorm: 7 FLOP per element and one weight; LayerNorm: 8, weight and bias."""
    x = tensor(float(tokens) * width)
    rms, layer = rms_norm("n", width, FP16).operator(x, tokens), layer_norm("n", width, FP16).operator(x, tokens)
    assert (rms.vector_flops, layer.vector_flops) == (7 * tokens * width, 8 * tokens * width)
    assert rms.traffic_bytes == 2 * (2 * tokens * width + width)
    assert layer.traffic_bytes == 2 * (2 * tokens * width + 2 * width)
    assert rms.matmul_flops == layer.matmul_flops == 0


def test_a_norm_per_head_has_one_weight_for_all_heads() -> None:
    operator = rms_norm("q_norm", 128, FP16, rows=32).operator(tensor(10 * 4096.0), 10.0)
    assert operator.vector_flops == 7 * 10 * 4096
    assert operator.read_bytes(Role.WEIGHT) == 2 * 128


def test_a_residual_sum_reads_two_inputs() -> None:
    operator = add("attn_add", tensor(4096.0), tensor(4096.0, "y"), 1.0)
    assert operator.flops == 4096
    assert operator.traffic_bytes == 2 * 3 * 4096


def test_silu_times_up_is_five_flops_including_one_exponential() -> None:
    gate, up, y = tensor(11008.0, "gate"), tensor(11008.0, "up"), tensor(11008.0, "mlp_act")
    operator = gated("mlp_act", (whole(gate), whole(up)), y, 1.0, activation("silu"))
    assert operator.vector_flops == 5 * 11008
    assert operator.special_ops == 11008
    assert operator.traffic_bytes == 2 * 3 * 11008


def test_gelu_is_eight_flops_including_one_exponential() -> None:
    operator = activate("mlp_act", tensor(100.0), 1.0, activation("gelu"))
    assert (operator.vector_flops, operator.special_ops) == (800, 100)


def test_relu_needs_no_exponential() -> None:
    operator = activate("mlp_act", tensor(100.0), 1.0, activation("relu"))
    assert (operator.vector_flops, operator.special_ops) == (100, 0)


def test_an_unknown_activation_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"unknown activation 'sillu'.*did you mean 'silu'"):
        activation("sillu")


def test_rope_is_six_flops_per_rotated_pair() -> None:
    """A head of 128 has 64 pairs: 4 multiplications and 2 additions each."""
    x, y = tensor(128.0), tensor(128.0, "rope")
    assert rope("rope", (whole(x),), (whole(y),), 1.0, 64.0).vector_flops == 6 * 64


def test_an_embedding_lookup_gathers_rows_without_matmul_flops() -> None:
    """32,000 rows are stored, 5 are read."""
    table = Tensor(name="embedding.weight", elements=32000.0 * 4096, dtype=FP16, role=Role.WEIGHT)
    operator = embedding("embedding", (table,), tensor(5 * 4096.0, "embedding"), 5.0)
    assert operator.flops == 0
    assert operator.traffic_bytes == 2 * (5 * 4096 + 5 * 4096)


@given(sizes=st.lists(size, min_size=1, max_size=5))
def test_operator_counts_may_be_arrays_of_points(sizes: list[int]) -> None:
    tokens = np.array(sizes, dtype=np.float64)
    layer = Linear(name="proj", in_features=4096, out_features=11008, dtype=FP16, bias=True)
    many = layer.operator(tensor(tokens * 4096), tokens)  # type: ignore[arg-type]
    for at, count in enumerate(tokens):
        single = layer.operator(tensor(count * 4096), float(count))
        assert (many.flops[at], many.traffic_bytes[at]) == (single.flops, single.traffic_bytes)
