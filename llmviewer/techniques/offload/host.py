"""Work of a forward pass on the host: whole layers, routed experts, attention over its share of the KV cache."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from llmviewer.analysis.memory import has_untied_head
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Place, Role, Tensor
from llmviewer.core.kinds import Kind
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import has_routed_experts, is_routed
from llmviewer.ops.transfer import Direction, blocking_copy, stage
from llmviewer.techniques.offload.places import (
    HIDDEN,
    OffloadShares,
    cache_accesses,
    offloaded_tensor,
    split_layers,
    split_states,
)
from llmviewer.techniques.scaling import map_operators, scale_access, with_probability

#: Suffix of the names of blocks and operators that run on the host.
ON_HOST = " on host"
#: The same of blocks whose experts run there, and of those of which the device computes with copies.
EXPERTS_ON_HOST = ", experts on host"
STREAMED = ", streamed"
FP32_BITS = 32.0


@frozen
class OnHost:
    """The layers that the host computes, wholly or their routed experts.

    chosen: graph -> their numbers.  share: of the routed experts of these layers.  head: an untied head runs on the
    host if all layers do.  streamed_from: tokens of a pass from which the device computes instead, with copies of the
    host's weights and cached keys and values; inf: it never does.
    """

    chosen: Callable[[Graph], Collection[int]]
    share: float = 1.0
    head: bool = True
    streamed_from: float = np.inf


def layers_on_host(moved: OnHost) -> Pass:
    """Run layers, the first of the model, on the host, with their part of the cache.

    Hidden states cross the link before and after these layers.
    An operator on the host takes max(bytes / memory bandwidth, FLOPs / rate of the CPU).
    Source: llama.cpp, --n-gpu-layers, https://github.com/ggml-org/llama.cpp/tree/master/tools/server
    """

    def change(graph: Graph) -> Graph:
        _check_unsharded(graph)
        split, names = split_layers(graph, moved.chosen(graph), ON_HOST)
        if not names:
            return graph
        every = all(block.name in names for block in split.blocks if block.is_layer)
        stream = next(a.tensor for _, op in split for a in op.reads if a.tensor.name == HIDDEN)
        blocks: list[Block] = []
        for block in split.blocks:
            if block.name == names[0]:
                blocks.append(_copy_block("to_host", stream, block, moved))
            head_moves = every and moved.head and block.name == "head" and has_untied_head(graph)
            here = block.name in names
            blocks += _by_tokens(block, _block_on_host(block), moved) if here or head_moves else [block]
            if block.name == names[-1]:
                blocks.append(_copy_block("to_device", stream, block, moved))
        return Graph(blocks=tuple(blocks))

    return change


def experts_on_host(moved: OnHost) -> Pass:
    """Run a share of the routed experts of layers on the host: their matrix products, the operators between these, and
    their part of the weighted sum.  The vector of every token crosses the link, and the sum comes back.

    The experts of the host and those of the device run one after the other.
    Source: KTransformers, https://github.com/kvcache-ai/ktransformers; llama.cpp, --n-cpu-moe,
    https://github.com/ggml-org/llama.cpp/pull/15077
    """

    def change(graph: Graph) -> Graph:
        _check_unsharded(graph)
        if not has_routed_experts(graph):
            raise UserError("--offload experts: this model has no routed experts")
        chosen, layers = moved.chosen(graph), [block for block in graph.blocks if block.is_layer]
        split, names = graph, tuple(block.name for block in layers)
        if len(chosen) < sum(block.repeats for block in layers):
            split, names = split_layers(graph, chosen, EXPERTS_ON_HOST)
        blocks: list[Block] = []
        for block in split.blocks:
            here = block.name in names and any(is_routed(op) and op.runs_on is Place.DEVICE for op in block.operators)
            blocks += _by_tokens(block, _experts_on_host(block, moved.share), moved, is_routed) if here else [block]
        return Graph(blocks=tuple(blocks))

    return change


def _by_tokens(
    block: Block, hosted: Block, moved: OnHost, selects: Callable[[Operator], bool] = lambda _: True
) -> list[Block]:
    """The block as the host runs it for passes of few tokens, and as the device does for those of more.

    selects: operators whose weights are on the host.  The device reads copies, for which every layer waits.
    """
    if moved.streamed_from == np.inf:
        return [hosted]
    tokens = block.operators[0].output_shape[0]
    many = np.where(np.asarray(tokens) >= moved.streamed_from, 1.0, 0.0)
    operators, copied = [], []
    for operator in block.operators:
        weights = [a for a in operator.reads if a.tensor.role is Role.WEIGHT and selects(operator)]
        copied += [replace(a.tensor, elements=a.elements) for a in weights]
        reads = (Access(replace(a.tensor, elements=0.0), a.elements) if a in weights else a for a in operator.reads)
        operators.append(operator.having(reads=tuple(reads)))
    if any(state.place is Place.HOST for state in hosted.states):
        earlier, added = cache_accesses(block, [state.name for state in block.states if state.per_token])
        copied += [replace(a.tensor, elements=a.elements) for a in (*earlier, *added)]
    streamed = replace(
        block,
        name=block.name.removesuffix(EXPERTS_ON_HOST).removesuffix(ON_HOST) + STREAMED,
        operators=(blocking_copy("load_weights", copied), *operators),
        states=(),
        scope=block.scope or hosted.name,
        where=block.where * many,
    )
    few = replace(hosted, scope=block.scope or hosted.name, where=block.where * (1.0 - many))
    return [few, streamed]


def attention_on_host(kv: OffloadShares, copies: float = 0.0) -> Pass:
    """Run attention over the host's share of the cached keys and values on the host: queries cross the link, results
    come back.

    Pairs of new tokens, such as those of a prompt, stay on the device; new keys and values are sent to the host.  Those
    on its disk pass through its memory while the previous layer computes.
    copies: see `_copied_first`.  Source: FlexGen, arXiv 2303.06865, section 4.2 (computation delegation).
    """

    def change(graph: Graph) -> Graph:
        _check_unsharded(graph)
        cached = {state.name for block in graph.blocks for state in block.states if state.per_token}
        moved = graph.map_blocks(lambda block: _attention_on_host(block, kv, cached) if block.is_layer else block)
        return moved.map_blocks(lambda block: map_operators(block, lambda op: _copied_first(op, copies)))

    return change


def _copied_first(operator: Operator, copies: float) -> Operator:
    """Attention on the host that first copies its keys and values, in fp32 and once for every query head.

    Every copy is written and read again.  Llama in Hugging Face Transformers makes one (repeat_kv), FlexGen two: to an
    fp32 workspace, and transposed (mha_gen in https://github.com/FMInference/FlexiGen, flexgen/pytorch_backend.py).
    """
    shape = operator.shape
    if not copies or operator.runs_on is Place.DEVICE or not isinstance(shape, AttentionShape):
        return operator
    repeated = 2.0 * copies * FP32_BITS * shape.heads / shape.kv_heads
    reads = (
        Access(a.tensor, a.elements * (1.0 + repeated / a.tensor.dtype.bits)) if a.tensor.role is Role.CACHE else a
        for a in operator.reads
    )
    return replace(operator, reads=tuple(reads))


def _check_unsharded(graph: Graph) -> None:
    if any(op.kind is Kind.COLLECTIVE for _, op in graph):
        raise UserError(
            "--offload compute=host: layers split over several devices cannot run on the host; use one device"
        )


def _copy_block(name: str, stream: Tensor, layer: Block, moved: OnHost) -> Block:
    """The copy of the hidden states of passes that the host computes."""
    tokens = np.asarray(layer.operators[0].output_shape[0])
    where = layer.where if moved.streamed_from == np.inf else np.where(tokens < moved.streamed_from, 1.0, 0.0)
    return Block(name=name, operators=(blocking_copy(name, (stream,)),), scope="model", where=where)


def on_host(operator: Operator, name: str = "") -> Operator:
    """The operator run by the host: its tensors are in the host's memory.  name: of the operator; empty to keep it."""

    def moved(access: Access) -> Access:
        tensor = access.tensor
        return Access(offloaded_tensor(tensor, Place.HOST) if tensor.place is Place.DEVICE else tensor, access.elements)

    return operator.having(
        name=name or operator.name,
        runs_on=Place.HOST,
        reads=tuple(moved(a) for a in operator.reads if a.tensor.place is not Place.L2),
        writes=tuple(map(moved, operator.writes)),
    )


def _block_on_host(block: Block) -> Block:
    states = tuple(replace(state, place=Place.HOST) for state in block.states)
    return replace(block, operators=tuple(on_host(op) for op in block.operators), states=states)


def _experts_on_host(block: Block, share: float) -> Block:
    routed = [op for op in block.operators if is_routed(op)]
    if not routed:
        return block
    vectors = (routed[-1].output,)  # one sum per token, as wide as the input of the experts
    operators: list[Operator] = []
    for operator in block.operators:
        if operator is routed[0]:
            operators.append(blocking_copy("to_host", vectors))
            operators += (on_host(_share_of(op, share), op.name + ON_HOST) for op in routed)
            operators.append(blocking_copy("to_device", vectors))
        if not is_routed(operator):
            operators.append(operator)
        elif share < 1.0:
            operators.append(_share_of(operator, 1.0 - share))
    return replace(block, operators=tuple(operators))


def _share_of(operator: Operator, share: float) -> Operator:
    """The operator with a share of its work and of its stored weights."""
    if share == 1.0:
        return operator
    partial = with_probability(operator, share)
    pairs = zip(operator.reads, partial.reads, strict=True)
    return replace(
        partial, reads=tuple(scale_access(a, share) if a.tensor.role is Role.WEIGHT else b for a, b in pairs)
    )


def _attention_on_host(block: Block, kv: OffloadShares, cached: Collection[str]) -> Block:
    core = [op for op in block.operators if isinstance(op.shape, AttentionShape) and op.runs_on is Place.DEVICE]
    earlier, added = cache_accesses(block, cached)
    if not core or not earlier:
        return block
    if any(access.tensor.name.startswith("latent") for access in earlier):
        raise UserError("--offload compute=host: attention over cached latents on the host is not modelled; remove kv")
    attended = earlier[0].elements + (added[0].elements if added else 0.0)
    share = kv.share * earlier[0].elements / attended
    queries = replace(core[0].reads[0].tensor, elements=core[0].reads[0].elements * share)
    sent = (queries, *(replace(a.tensor, elements=a.elements * kv.share) for a in added))
    result = replace(core[-1].output, elements=core[-1].output.elements * share)
    operators: list[Operator] = []
    for operator in block.operators:
        if operator is core[0]:
            operators.append(blocking_copy("to_host", sent))
            operators += (on_host(with_probability(op, share), op.name + ON_HOST) for op in core)
            operators.append(blocking_copy("to_device", (result,)))
        operators.append(with_probability(operator, 1.0 - share) if any(operator is op for op in core) else operator)
    if kv.disk:
        operators = [_staged("fetch_kv", earlier, kv, Direction.IN), *operators]
        operators += [_staged("put_kv", added, kv, Direction.OUT)] if added else []
    return replace(block, operators=tuple(operators), states=split_states(block.states, kv))


def _staged(name: str, accesses: list[Access], kv: OffloadShares, direction: Direction) -> Operator:
    """The copy of the disk's part of cached entries to or from the memory of the host."""
    on_disk = (Access(offloaded_tensor(a.tensor, Place.DISK, kv.disk), a.elements * kv.disk) for a in accesses)
    return stage(name, on_disk, direction)
