"""Fusion rules: patterns of operators that can be one kernel, and the on-chip memory that they need.

A rule yields candidates: operators of a block with the bytes of the intermediate tile that a unit must store, or with
the reason why they cannot be fused for any sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TypeAlias

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Operator
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.formats.linear import TILE_ROWS, is_quantize
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.collective import Collective, CollectiveShape
from llmviewer.ops.gemm import ADAPTER_PARTS, GemmShape
from llmviewer.techniques.kernels.fusion_flow import Flow, shared_inputs


@frozen(eq=False)
class Candidate:
    """Operators that can be one kernel, by their places in the block.

    tile_bytes: intermediate bytes that one unit stores on the chip.  refused: reason why they cannot be fused.
    exchange: the collective among them, whose kernels fuse only small messages.
    """

    operators: tuple[int, ...]
    tile_bytes: Count = 0.0
    refused: str = ""
    exchange: CollectiveShape | None = None


Match: TypeAlias = Callable[[Flow], Iterator[Candidate]]


@frozen
class FusionRule:
    """A pattern of operators that one kernel replaces.  missing: the reason reported if a graph has no candidate.

    named: applied only if named, not by `all`: kernels that span layers or devices, which few engines have.
    """

    name: str
    summary: str
    source: str
    missing: str
    match: Match
    named: bool = False


#: Columns of an output tile (CUTLASS's default threadblock is 128 x 128).
TILE_COLUMNS = 128.0
#: Rows of the smallest tile that matrix units multiply.
MATRIX_ROWS = 16.0


def _siblings(*sets: tuple[str, ...]) -> Match:
    """Match products of one input, stored as one matrix: the input is read once; no tile is stored.

    The products with A of their adapters are slices of one kernel too, and those with B, each with its own input.
    """

    def match(flow: Flow) -> Iterator[Candidate]:
        for names, part in product(sets, ("", *ADAPTER_PARTS)):
            places = tuple(flow.places[name + part] for name in names if name + part in flow.places)
            if len(places) < len(names):
                continue
            operators = [flow.operators[place] for place in places]
            alike = len({(shared_inputs(op), op.compute) for op in operators}) == 1
            yield Candidate(operators=places, refused="" if alike else "their inputs or formats differ")

    return match


def _linear_activation(flow: Flow) -> Iterator[Candidate]:
    for place, operator in enumerate(flow.operators):
        if operator.kind is Kind.ELEMENTWISE and operator.role is OperatorRole.ACTIVATION:
            linears = [k for k in flow.made_by(place) if flow.operators[k].kind is Kind.GEMM]
            if linears:
                yield Candidate(operators=(linears[-1], place), tile_bytes=_output_tile(flow, linears))


def _output_tile(flow: Flow, linears: list[int]) -> Count:
    """Bytes of a tile of the outputs of linear layers."""
    tile: Count = 0.0
    for place in linears:
        operator = flow.operators[place]
        tile = tile + _rows(operator, TILE_ROWS) * (TILE_COLUMNS * operator.output.dtype.bytes)
    return tile


def _rows(operator: Operator, most: float) -> Count:
    shape = operator.shape
    rows = shape.m / shape.active if isinstance(shape, GemmShape) else operator.output_shape[0]
    return np.minimum(rows, most)


def _bias_residual(flow: Flow) -> Iterator[Candidate]:
    for place, operator in enumerate(flow.operators):
        if not _is_sum(operator):
            continue
        makers = flow.made_by(place)
        linears = [k for k in makers if flow.operators[k].kind is Kind.GEMM]
        if linears:
            yield Candidate(operators=(linears[-1], place), tile_bytes=_output_tile(flow, linears[-1:]))
        elif makers:
            name = flow.operators[makers[-1]].name
            yield Candidate(operators=(makers[-1], place), refused=f"{name} is not a linear layer")


def _is_sum(operator: Operator) -> bool:
    return operator.kind is Kind.ELEMENTWISE and operator.role is OperatorRole.RESIDUAL


def _residual_norm(flow: Flow) -> Iterator[Candidate]:
    for place, operator in enumerate(flow.operators):
        for maker in flow.made_by(place):
            pair = (flow.operators[maker], operator)
            if any(map(_is_sum, pair)) and any(op.kind is Kind.NORM for op in pair):
                yield Candidate(operators=(maker, place), tile_bytes=_row_bytes(pair[0]))


def _row_bytes(operator: Operator) -> Count:
    """Bytes of one row of an operator's output."""
    return operator.output_shape[-1] * operator.output.dtype.bytes


def _norm_linear(flow: Flow) -> Iterator[Candidate]:
    for place, operator in enumerate(flow.operators):
        if operator.kind is not Kind.NORM:
            continue
        chains = list(_to_linears(flow, place))
        plain = [chain for chain in chains if _experts(flow.operators[chain[-1]]) == 1.0]
        if plain:
            linear = flow.operators[plain[0][-1]]
            shape, low = linear.shape, linear.reads[0].tensor.dtype
            assert isinstance(shape, GemmShape)
            yield Candidate(operators=plain[0], tile_bytes=_rows(linear, TILE_ROWS) * (shape.k * low.bytes))
        elif chains:
            yield Candidate(
                operators=chains[0], refused="experts gather rows: a row would be normalised once per expert"
            )


def _to_linears(flow: Flow, place: int) -> Iterator[tuple[int, ...]]:
    """Chains (norm, linear) and (norm, quantize, linear) after `place`, in the order of the block."""
    for reader in flow.read_by(place):
        operator = flow.operators[reader]
        if operator.kind is Kind.GEMM:
            yield place, reader
        elif is_quantize(operator):
            for further in flow.read_by(reader):
                if flow.operators[further].kind is Kind.GEMM:
                    yield place, reader, further


def _experts(linear: Operator) -> float:
    return linear.shape.experts if isinstance(linear.shape, GemmShape) else 1.0


def _quantize(flow: Flow) -> Iterator[Candidate]:
    for place, operator in enumerate(flow.operators):
        for maker in flow.made_by(place) if is_quantize(operator) else ():
            source = flow.operators[maker]
            rowwise = source.kind in (Kind.NORM, Kind.ELEMENTWISE)
            refused = "" if rowwise else f"a tile of {source.name} has no whole row, which the scale needs"
            yield Candidate(operators=(maker, place), tile_bytes=_row_bytes(source), refused=refused)


def _softmax(flow: Flow) -> Iterator[Candidate]:
    for place, operator in enumerate(flow.operators):
        if operator.role is OperatorRole.SCORES:
            shape = operator.shape
            assert isinstance(shape, AttentionShape)
            tile: Count = 0.0
            for group in shape.groups:
                scores = np.minimum(group.new_tokens, MATRIX_ROWS) * group.keys(shape.window)
                tile = np.maximum(tile, scores * operator.output.dtype.bytes)
            yield Candidate(operators=(place, place + 1, place + 2), tile_bytes=tile)


def _qk_norm_rope(flow: Flow) -> Iterator[Candidate]:
    for place, operator in enumerate(flow.operators):
        norms = [k for k in flow.made_by(place) if flow.operators[k].role is OperatorRole.QK_NORM]
        if operator.role is OperatorRole.ROPE and norms:
            tile: Count = 0.0
            for norm in norms:
                tile = tile + _row_bytes(flow.operators[norm])
            yield Candidate(operators=(*norms, place), tile_bytes=tile)


def _rope_attention(flow: Flow) -> Iterator[Candidate]:
    for place, operator in enumerate(flow.operators):
        if operator.role not in (OperatorRole.ATTENTION, OperatorRole.SCORES):
            continue
        shape = operator.shape
        assert isinstance(shape, AttentionShape)
        for maker in flow.made_by(place):
            if flow.operators[maker].role is OperatorRole.ROPE:
                tile = np.minimum(shape.queries(), TILE_ROWS) * (shape.qk_dim * operator.reads[0].tensor.dtype.bytes)
                yield Candidate(operators=(maker, place), tile_bytes=tile)


def _all_reduce(flow: Flow) -> Iterator[Candidate]:
    for place, operator in enumerate(flow.operators):
        shape = operator.shape
        if isinstance(shape, CollectiveShape) and shape.pattern is Collective.ALL_REDUCE:
            for reader in flow.read_by(place):
                if _is_sum(flow.operators[reader]):
                    yield Candidate(operators=(place, reader), exchange=shape)


def _next_norm(flow: Flow) -> Iterator[Candidate]:
    """Nothing within a block: the norm belongs to the layer after it (`fusion_across.py`)."""
    yield from ()


_DEEP_FUSION = "DeepSpeed-Inference Deep-Fusion, arXiv 2207.00032"

#: All rules in the order of application; an earlier rule may fuse operators that a later one could use.
RULES: tuple[FusionRule, ...] = (
    FusionRule(
        name="qkv",
        summary="q, k and v (in latent attention the two down-projections) as one product, their adapters as two",
        source=_DEEP_FUSION,
        missing="no q, k and v projections side by side, or the checkpoint already holds one matrix",
        match=_siblings(("q_proj", "k_proj", "v_proj"), ("q_a_proj", "kv_a_proj"), ("q_proj", "kv_a_proj")),
    ),
    FusionRule(
        name="gate-up",
        summary="gate and up as one product, also in experts and shared experts; their adapters as two",
        source="vLLM MergedColumnParallelLinear",
        missing="no gate and up projections side by side, or the checkpoint already holds one matrix",
        match=_siblings(*((f"{p}gate_proj", f"{p}up_proj") for p in ("", "expert_", "shared_"))),
    ),
    FusionRule(
        name="softmax",
        summary="the eager kernels in one: no scores move, masked pairs are still computed",
        source="arXiv 2402.16363, section 5.1",
        missing="attention is already one kernel (--attention eager has three), or there is none",
        match=_softmax,
    ),
    FusionRule(
        name="linear-activation",
        summary="an activation in the epilogue of the linear layer before it",
        source="arXiv 2402.16363, figure 14",
        missing="no activation follows a linear layer",
        match=_linear_activation,
    ),
    FusionRule(
        name="bias-residual",
        summary="bias and residual sum in the epilogue of the last linear layer of a branch",
        source=_DEEP_FUSION,
        missing="no residual sum",
        match=_bias_residual,
    ),
    FusionRule(
        name="residual-norm",
        summary="a residual sum and the adjacent norm",
        source="vLLM fused_add_rms_norm",
        missing="no residual sum next to a norm within a layer",
        match=_residual_norm,
    ),
    FusionRule(
        name="quantize",
        summary="a norm or activation and the quantization of its output",
        source="vLLM rms_norm_dynamic_per_token_quant",
        missing="no inputs are quantized",
        match=_quantize,
    ),
    FusionRule(
        name="norm-linear",
        summary="a norm in the prologue of the first linear layer that reads it",
        source=_DEEP_FUSION,
        missing="no norm feeds a linear layer",
        match=_norm_linear,
    ),
    FusionRule(
        name="qk-norm-rope",
        summary="norms of queries and keys, rope and the write to the cache",
        source="TensorRT-LLM fused_qk_norm_rope",
        missing="queries and keys are not normalised before rope; rope already writes the cache",
        match=_qk_norm_rope,
    ),
    FusionRule(
        name="rope-attention",
        summary="rope in the prologue of attention",
        source="flash_attn_with_kvcache; replaces DeepSpeed's transposition, which is not an operator here",
        missing="no rope before attention",
        match=_rope_attention,
    ),
    FusionRule(
        name="all-reduce",
        summary="an all-reduce, the residual sum after it, and the kernel that this is part of",
        source="vLLM fuse_allreduce_rms, https://docs.vllm.ai/en/latest/design/fusions/",
        missing="no all-reduce before a residual sum",
        match=_all_reduce,
        named=True,
    ),
    FusionRule(
        name="next-norm",
        summary="the last residual sum of a layer and the first norm of the next one",
        source="vLLM fused_add_rms_norm, LlamaDecoderLayer.forward(hidden_states, residual)",
        missing="no layer ends with a residual sum and begins with a norm",
        match=_next_norm,
        named=True,
    ),
)
