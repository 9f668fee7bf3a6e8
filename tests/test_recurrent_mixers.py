"""Recurrent mixers: one layer calculated by hand, and the cost of the state."""

from __future__ import annotations

import numpy as np
import pytest

from llmviewer import models
from llmviewer.core.dtypes import get_dtype
from llmviewer.core.ir import Block, Operator, Role
from llmviewer.core.workload import Step, decode, mixed, prefill
from llmviewer.models.model import Model
from llmviewer.ops.conv import ShortConv

BF16 = get_dtype("bf16")


def _block(model: Model, name: str, step: Step) -> Block:
    return next(block for block in model.graph(step).blocks if block.name == name)


def _operator(block: Block, name: str) -> Operator:
    return next(operator for operator in block.operators if operator.name == name)


def _recurrence(model: str, block: str, step: Step) -> Operator:
    return _operator(_block(models.load(model), block, step), "recurrence")


def test_mamba_updates_and_reads_every_state_element_for_four_flops() -> None:
    # 5120 channels x 16 elements, 2 x 48 tokens
    assert _recurrence("mamba-2.8b", "mamba", prefill(2.0, 48.0)).recurrence_flops == 4 * 5120 * 16 * 96


def test_mamba_2_has_one_state_row_per_channel_and_one_decay_per_head() -> None:
    # 128 heads x 64 channels x 128 elements
    scan = _recurrence("mamba-codestral-7b", "mamba", decode(1.0, 100.0))
    assert scan.recurrence_flops == 4 * 128 * 64 * 128
    assert scan.special_ops == 128 * 3  # exponential and logarithm of the time step, the decay


def test_delta_rule_reads_the_state_twice_and_updates_it_once() -> None:
    # 32 value heads x 128 x 128
    assert _recurrence("qwen3-next-80b-a3b", "linear", decode(8.0, 100.0)).recurrence_flops == 6 * 8 * 32 * 128 * 128


def test_lightning_attention_keeps_a_square_per_head() -> None:
    assert _recurrence("minimax-text-01", "linear", decode(1.0, 100.0)).recurrence_flops == 4 * 64 * 128 * 128


@pytest.mark.parametrize(
    ("model", "block"), [("mamba-2.8b", "mamba"), ("qwen3-next-80b-a3b", "linear"), ("minimax-text-01", "linear")]
)
def test_state_is_read_and_written_once_per_sequence(model: str, block: str) -> None:
    step = mixed(prefill(3.0, 500.0), decode(4.0, 9000.0))
    operator = _recurrence(model, block, step)
    state = 7 * _block(models.load(model), block, step).states[0].per_sequence * 2
    assert operator.read_bytes(Role.CACHE) == operator.write_bytes(Role.CACHE) == state


def test_context_changes_no_operator_of_a_recurrent_layer() -> None:
    short, long = (_block(models.load("mamba-2.8b"), "mamba", decode(1.0, cached)) for cached in (1.0, 1e6))
    assert [op.flops for op in short.operators] == [op.flops for op in long.operators]
    assert [op.traffic_bytes for op in short.operators] == [op.traffic_bytes for op in long.operators]


def test_convolution_is_two_flops_per_tap_and_keeps_kernel_columns() -> None:
    conv = ShortConv(channels=10, kernel=4, dtype=BF16)
    x = _operator(_block(models.load("mamba-2.8b"), "mamba", prefill(2.0, 3.0)), "in_proj").output
    operator = conv.operator(prefill(2.0, 3.0), x)
    assert operator.conv_flops == 2 * 4 * 10 * 6
    assert conv.state().per_sequence == 40
    assert operator.write_bytes(Role.CACHE) == 2 * 40 * 2


def test_recurrent_state_size_does_not_depend_on_context() -> None:
    block = _block(models.load("nemotron-h-8b"), "mamba", decode(1.0, 1.0))
    contexts = np.array([1.0, 1e6])
    assert [state.resident_bytes(contexts[0]) for state in block.states] == [
        state.resident_bytes(contexts[1]) for state in block.states
    ]
