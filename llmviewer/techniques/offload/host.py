"""What a host computes of a pass: whole layers, the routed experts, attention over the cache it holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Place, Role, Tensor
from llmviewer.core.kinds import Kind
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import is_routed
from llmviewer.ops.transfer import blocking_copy
from llmviewer.techniques.offload.places import HIDDEN, OffloadShares, cache_accesses, split_states, offloaded_tensor, has_untied_head, split_layers
from llmviewer.techniques.parallel.share import part
from llmviewer.techniques.sparsity.expected_work import running

#: Ends the names of kinds of layers, and of operators, that the host runs.
ON_HOST = " on host"


def layers_on_host(share: float) -> Pass:
    """The host runs the first ceil(share x layers) layers, with their part of the cache; the stream of hidden states
    crosses the link before and after.  With all layers goes a head that has a matrix of its own.

    An operator there takes the longer of its bytes over the memory's bandwidth and its FLOPs over the CPU's rate.
    Source: llama.cpp, --n-gpu-layers, https://github.com/ggml-org/llama.cpp/tree/master/tools/server
    """

    def change(graph: Graph) -> Graph:
        _sharded(graph)
        split, away = split_layers(graph, share, ON_HOST)
        if not away:
            return graph
        stream = next(a.tensor for _, op in split for a in op.reads if a.tensor.name == HIDDEN)
        blocks: list[Block] = []
        for block in split.blocks:
            if block.name == away[0]:
                blocks.append(_handing("to_host", stream))
            all_there = share == 1.0 and block.name == "head" and has_untied_head(graph)
            blocks.append(_block_there(block) if block.name in away or all_there else block)
            if block.name == away[-1] and not all_there:
                blocks.append(_handing("to_device", stream))
        return Graph(blocks=tuple(blocks))

    return change


def experts_on_host(share: float) -> Pass:
    """The host runs the given share of the routed experts: their products, what stands between them, their part of the
    weighted sum.  Every token's vector crosses the link, and the sum comes back.

    The host's experts and the device's own run one after the other.
    Source: KTransformers, https://github.com/kvcache-ai/ktransformers
    """

    def change(graph: Graph) -> Graph:
        _sharded(graph)
        if not any(is_routed(op) for _, op in graph):
            raise UserError("--offload experts: this model has no routed experts")
        return graph.map_blocks(lambda block: _experts_there(block, share))

    return change


def attention_on_host(kv: OffloadShares) -> Pass:
    """The host attends to its share of the cached keys and values: queries cross the link, results come back.

    Pairs among the new tokens of a pass, such as a prompt's, stay on the device; new keys and values are handed over.
    Source: FlexGen, arXiv 2303.06865, section 4.2 (computation delegation).
    """

    def change(graph: Graph) -> Graph:
        _sharded(graph)
        cached = {state.name for block in graph.blocks for state in block.states if state.per_token}
        return graph.map_blocks(lambda block: _attended(block, kv, cached) if block.is_layer else block)

    return change


def _sharded(graph: Graph) -> None:
    if any(op.kind is Kind.COLLECTIVE for _, op in graph):
        raise UserError("--offload compute=host: what several devices share no host computes; use one device")


def _handing(name: str, stream: Tensor) -> Block:
    return Block(name=name, operators=(blocking_copy(name, (stream,)),), scope="model")


def on_host(operator: Operator, name: str = "") -> Operator:
    """The operator as the host runs it: all it reads and writes is in the host's memory."""

    def at(access: Access) -> Access:
        tensor = access.tensor
        return Access(offloaded_tensor(tensor, Place.HOST) if tensor.place is Place.DEVICE else tensor, access.elements)

    return replace(
        operator,
        name=name or operator.name,
        runs_on=Place.HOST,
        reads=tuple(at(a) for a in operator.reads if a.tensor.place is not Place.L2),
        writes=tuple(map(at, operator.writes)),
    )


def _block_there(block: Block) -> Block:
    states = tuple(replace(state, place=Place.HOST) for state in block.states)
    return replace(block, operators=tuple(on_host(op) for op in block.operators), states=states)


def _experts_there(block: Block, share: float) -> Block:
    routed = [op for op in block.operators if is_routed(op)]
    if not routed:
        return block
    vectors = (routed[-1].output,)  # a sum for every token, as wide as what its experts are given
    operators: list[Operator] = []
    for operator in block.operators:
        if operator is routed[0]:
            operators.append(blocking_copy("to_host", vectors))
            operators += (on_host(_some(op, share), op.name + ON_HOST) for op in routed)
            operators.append(blocking_copy("to_device", vectors))
        if not is_routed(operator):
            operators.append(operator)
        elif share < 1.0:
            operators.append(_some(operator, 1.0 - share))
    return replace(block, operators=tuple(operators))


def _some(operator: Operator, share: float) -> Operator:
    """The operator with a share of its work and of its stored weights."""
    if share == 1.0:
        return operator
    some = running(operator, share)
    pairs = zip(operator.reads, some.reads, strict=True)
    return replace(some, reads=tuple(part(a, share) if a.tensor.role is Role.WEIGHT else b for a, b in pairs))


def _attended(block: Block, kv: OffloadShares, cached: Collection[str]) -> Block:
    core = [op for op in block.operators if isinstance(op.shape, AttentionShape) and op.runs_on is Place.DEVICE]
    old, made = cache_accesses(block, cached)
    if not core or not old:
        return block
    if any(access.tensor.name.startswith("latent") for access in old):
        raise UserError("--offload compute=host: attention over a cache of latents is not modelled there; leave out kv")
    every = old[0].elements + (made[0].elements if made else 0.0)
    share = kv.share * old[0].elements / every
    queries = replace(core[0].reads[0].tensor, elements=core[0].reads[0].elements * share)
    sent = (queries, *(replace(a.tensor, elements=a.elements * kv.share) for a in made))
    result = replace(core[-1].output, elements=core[-1].output.elements * share)
    operators: list[Operator] = []
    for operator in block.operators:
        if operator is core[0]:
            operators.append(blocking_copy("to_host", sent))
            operators += (on_host(running(op, share), op.name + ON_HOST) for op in core)
            operators.append(blocking_copy("to_device", (result,)))
        operators.append(running(operator, 1.0 - share) if any(operator is op for op in core) else operator)
    return replace(block, operators=tuple(operators), states=split_states(block.states, kv))
