"""Layers of hybrids: gated convolution, parallel mixers, per-channel decays, RG-LRU, WKV, shared blocks, by hand."""

from __future__ import annotations

from typing import Any

from llmviewer.core.ir import Block, Operator, Role, check
from llmviewer.core.workload import decode, prefill
from llmviewer.models.load import from_fields
from llmviewer.models.model import Model
from tests.test_hybrid_configs import CONFIGS


def _model(case: str, **fields: Any) -> Model:
    return from_fields({**CONFIGS[case], **fields})


def _block(model: Model, name: str, batch: float = 1.0) -> Block:
    graph = model.graph(decode(batch, 100.0))
    return next(block for block in graph.blocks if block.name == name)


def _operator(block: Block, name: str) -> Operator:
    return next(operator for operator in block.operators if operator.name == name)


def _state_bytes(block: Block) -> float:
    return sum(state.per_sequence * state.dtype.bytes for state in block.states)


def test_every_operator_reads_what_an_earlier_one_has_written() -> None:
    for case in CONFIGS:
        check(_model(case).graph(prefill(2.0, 16.0)))


def test_gated_convolution_keeps_only_its_last_columns() -> None:
    block = _block(_model("lfm2 with its older names"), "conv", batch=5.0)
    assert _state_bytes(block) == 1024 * 3 * 2  # channels x kernel x bytes
    conv = _operator(block, "conv")
    assert conv.conv_flops == 2 * 3 * 1024 * 5
    assert conv.vector_flops == 0  # no activation; the two gates are a product per element each
    assert _operator(block, "conv_gate").vector_flops == 1024 * 5


def test_adjusted_width_is_two_thirds_rounded_up_to_a_multiple() -> None:
    # 2/3 of 6656 is 4437; the next multiple of 256 is 4608
    up = _operator(_block(_model("lfm2 with its older names"), "conv"), "up_proj")
    assert up.output_shape[1] == 4608


def test_parallel_mixers_keep_a_cache_and_a_recurrent_state() -> None:
    block = _block(_model("falcon_h1 with a norm and biases"), "layer")
    assert [state.name for state in block.states] == ["recurrent_state", "conv_state", "k_cache", "v_cache"]
    # 24 heads x 32 x 256 elements; 768 channels and 2 groups x 256 for each of B and C, 4 columns
    assert _state_bytes(block) == 2 * (24 * 32 * 256 + 4 * (768 + 2 * 2 * 256))


def test_kimi_delta_has_a_square_state_per_head_and_a_decay_per_channel() -> None:
    block = _block(_model("kimi_linear with the published fields"), "linear_moe")
    rule = _operator(block, "recurrence")
    assert rule.recurrence_flops == 6 * 8 * 64 * 64  # heads x head_dim x head_dim
    assert rule.special_ops == 8 * 64 * 3 + 8  # softplus and exponential per channel, sigmoid per head
    assert _state_bytes(block) == 2 * (8 * 64 * 64 + 3 * 8 * 64 * 4)


def test_rg_lru_has_one_state_element_per_channel_and_gates_in_blocks() -> None:
    block = _block(_model("recurrent_gemma with one key-value head"), "recurrent")
    assert _operator(block, "recurrence").recurrence_flops == 4 * 512
    assert _operator(block, "input_gate").matmul_flops == 2 * 512 * (512 // 4)
    assert _state_bytes(block) == 2 * (512 + 4 * 512)


def test_rwkv_keeps_three_averages_and_two_tokens() -> None:
    block = _block(_model("rwkv with one sequence"), "layer", batch=3.0)
    assert _state_bytes(block) == 2 * (3 * 256 + 2 * 256)
    moved = sum(float(operator.read_bytes(Role.CACHE)) for operator in block.operators)
    assert moved == 3 * _state_bytes(block)
    assert _operator(block, "recurrence").recurrence_flops == 3 * 4 * 3 * 256


def test_shared_block_is_stored_once_per_copy_and_read_at_every_call() -> None:
    case = "zamba2 with two shared blocks and adapters"
    one, two = (_model(case, num_mem_blocks=copies) for copies in (1, 2))
    # attention: 4 matrices; its norm; MLP with biases and the norm before it
    attention, norms = 3 * 512 * 512 + 512 * 256, 512 + 256
    mlp = 256 * 2048 + 2048 + 1024 * 256 + 256
    assert two.parameters - one.parameters == attention + norms + mlp
    read = [float(_operator(_block(model, "hybrid"), "q_proj").read_bytes(Role.WEIGHT)) for model in (one, two)]
    assert read == [2 * 512 * 512] * 2
    assert _block(two, "hybrid").repeats == 4
