"""Pipeline parallelism: layers of each pipeline stage, and the tensors that a stage sends to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmviewer.analysis.memory import layers_on_host, weights_bytes
from llmviewer.analysis.system import Drafter, Split, System
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Graph, Tensor, whole
from llmviewer.core.workload import decode
from llmviewer.models.model import Model
from llmviewer.ops.collective import Collective, CollectiveShape, collective
from llmviewer.serving.generation import Generation


def layers_of(stages: int, layers: int) -> list[int]:
    """Number of layers of each pipeline stage, as vLLM distributes them.

    Layers left over go to stages before the last, which has the head
    (https://github.com/vllm-project/vllm/blob/main/vllm/distributed/utils.py).  Raises UserError for more stages than
    layers.
    """
    if stages > layers:
        raise UserError(f"--pipeline-parallel-size {stages}: the model has {layers} layers, at most one stage each")
    least, rest = divmod(layers, stages)
    return [least + (stages - 1 - rest <= stage < stages - 1) for stage in range(stages)]


def layer_numbers(blocks: Sequence[Block]) -> list[list[int]]:
    """Layer numbers of the blocks of each kind, from 0; after pruning in depth the remaining layers are assumed to be
    spread evenly."""
    known = [block.numbers or range(block.repeats) for block in blocks]
    kept = [
        [numbers[at * len(numbers) // block.repeats] for at in range(block.repeats)]
        for block, numbers in zip(blocks, known, strict=True)
    ]
    rank = {number: at for at, number in enumerate(sorted({number for numbers in kept for number in numbers}))}
    return [[rank[number] for number in numbers] for numbers in kept]


def stages_of(graph: Graph, system: System) -> tuple[Graph, ...]:
    """The graph of one device of every pipeline stage: embedding first, head last, a send after the others."""
    count = system.parallelism.pipeline
    if count == 1:
        return (graph,)
    layers = [block for block in graph.blocks if block.is_layer]
    stages = graphs_of_stages(graph, layers_of(count, sum(block.repeats for block in layers)), system)
    return stages if system.exits is None else system.exits.change(graph, stages)


def graphs_of_stages(graph: Graph, sizes: Sequence[int], system: System) -> tuple[Graph, ...]:
    """The graph of one device of every pipeline stage, with `sizes` layers per stage."""
    layers = [block for block in graph.blocks if block.is_layer]
    kind_of = {n: at for at, numbers in enumerate(layer_numbers(layers)) for n in numbers}
    where = graph.blocks.index(layers[0])
    first = [block for block in graph.blocks[:where] if not block.is_layer]
    last = [block for block in graph.blocks[where:] if not block.is_layer]
    stages, done = [], 0
    for stage, size in enumerate(sizes):
        held: dict[int, list[int]] = {}
        for number in range(done, done + size):
            held.setdefault(kind_of[number], []).append(number)
        done += size
        blocks = [
            replace(layers[at], repeats=len(numbers), numbers=tuple(numbers)) for at, numbers in sorted(held.items())
        ]
        ends = last if stage == len(sizes) - 1 else [send(layers[-1], stage, system)]
        stages.append(Graph(blocks=(*(first if stage == 0 else ()), *blocks, *ends)))
    return tuple(stages)


def send(layer: Block, stage: int, system: System) -> Block:
    """The send of one device to its counterpart in the next pipeline stage: tokens x hidden."""
    group = system.parallelism.group
    crosses = (stage * group) // system.chip.near != ((stage + 1) * group) // system.chip.near
    return _send(layer, system, 1.0 if crosses else system.chip.near)


def _send(layer: Block, system: System, near: float) -> Block:
    """A send over the link of the sender, which joins `near` devices: over the network if it joins only one."""
    made = layer.operators[-1].output
    size = made.elements * made.dtype.bytes
    shape = CollectiveShape(
        pattern=Collective.SEND,
        devices=2.0,
        size_bytes=size,
        near=near,
        through_host=system.chip.through_host,
    )
    hidden = Tensor(name="hidden", elements=made.elements, dtype=made.dtype)
    received = replace(hidden, name="send")
    tokens = layer.operators[0].output_shape[0]
    operator = collective("send", (whole(hidden),), (whole(received),), tokens, shape)
    return Block(name="send", operators=(operator,), scope="model")


@frozen(eq=False)
class Device:
    """A device of a split with its part of a graph.

    place: its number in the split.  first, layers: the number of its first layer, and how many it has.  system: on it.
    """

    place: int
    first: int
    layers: int
    system: System
    graph: Graph


def layers_by_share(shares: Sequence[float], layers: int, on_host: int = 0) -> tuple[list[int], int]:
    """Layers of each device by its share, and the device of the head, as llama.cpp divides them.

    on_host: of the layers, the first ones, which the host computes and the first device counts among its own.  The head
    counts as a layer.  Source: load_tensors, https://github.com/ggml-org/llama.cpp/blob/master/src/llama-model.cpp
    """
    ends = np.cumsum(shares) / np.sum(shares)
    here = layers - on_host
    device = np.searchsorted(ends[:-1], np.arange(here + 1) / (here + 1.0), side="right")
    sizes = [int(count) for count in np.bincount(device[:here], minlength=len(shares))]
    sizes[0] += on_host
    return sizes, int(device[-1])


def devices_of(graph: Graph, split: Split) -> tuple[Device, ...]:
    """The devices of a split that hold layers or the head, each with its part.

    graph: of the model before all passes.
    """
    whole = {id(one): one.prepared(graph) for one in split.stages}
    first_graph = whole[id(split.stages[0])]
    hosted = layers_on_host(first_graph)
    sizes, head = layers_by_share(split.shares, hosted["all"], hosted["whole"])
    used = [at for at, size in enumerate(sizes) if size or at == head]
    found, first = [], 0
    for at, after in zip(used, (*used[1:], None), strict=True):
        one = split.stages[at]
        part = _layers_between(whole[id(one)], first, first + sizes[at], hosted["all"])
        if after is not None:
            last = next(block for block in reversed(whole[id(one)].blocks) if block.is_layer)
            near = one.chip.near if split.machines[at] == split.machines[after] else 1.0
            part = Graph(blocks=(*part.blocks, _send(last, one, near)))
        found.append(Device(place=at, first=first, layers=sizes[at], system=one, graph=split.change(part)))
        first += sizes[at]
    return tuple(found)


def _layers_between(graph: Graph, first: int, last: int, layers: int) -> Graph:
    """The blocks of some layers, with the embedding before the first of all layers and the head after the last."""
    of_layers = [block for block in graph.blocks if block.is_layer]
    numbers = dict(zip(map(id, of_layers), layer_numbers(of_layers), strict=True))
    end = max(at for at, block in enumerate(graph.blocks) if block.is_layer)
    blocks = []
    for at, block in enumerate(graph.blocks):
        if block.is_layer:
            own = tuple(number for number in numbers[id(block)] if first <= number < last)
            blocks += [replace(block, repeats=len(own), numbers=own)] if own else []
        elif first == 0 if at < end else last == layers:
            blocks.append(block)
    return Graph(blocks=tuple(blocks))


def fullest_device(devices: Sequence[Device]) -> int:
    """Index of the device whose weights take the largest part of its memory; the last of several."""
    taken = [weights_bytes(one.graph) / float(np.max(one.system.chip.memory_bytes)) for one in devices]
    return max(range(len(devices)), key=lambda at: (taken[at], at))


def of_fullest(split: Split, model: Model) -> System:
    """The system of the fullest device of a split, which all devices are told by."""
    devices = devices_of(model.graph(decode(1.0, 0.0)), split)
    return replace(devices[fullest_device(devices)].system, split=split, policy=None)


def fullest(stages: Sequence[Graph], system: System) -> int:
    """Index of the pipeline stage that stores most weights, draft models included; the last of several."""
    stored = [weights_bytes(stage) for stage in stages]
    stored[-1] += sum(_weights_of_draft(one) for one in system.drafters)
    return max(range(len(stages)), key=lambda at: (stored[at], at))


def _weights_of_draft(one: Drafter) -> float:
    return weights_bytes(_graph(one.draft.model, one.system), one.draft.shared)


def _graph(model: Model, system: System) -> Graph:
    """A decode step, of which only the stored weights matter."""
    return system.prepared(model.graph(decode(1.0, 0.0)))


def stores_drafts(model: Model, system: System) -> bool:
    """Whether the device whose memory is shown stores the draft models, as those of the last pipeline stage do."""
    if system.parallelism.pipeline == 1:
        return True
    stages = stages_of(_graph(model, system), system)
    return fullest(stages, system) == len(stages) - 1


def on_last_stage(generation: Generation, model: Model, system: System) -> Generation:
    """The generation whose drafts share with the target only weights that its last pipeline stage stores.

    Drafts run on the devices of the last stage, where tokens are sampled; one on the target's hidden states has its own
    copy of an embedding that only the first stage stores.
    Source: https://github.com/vllm-project/vllm, vllm/v1/worker/gpu_model_runner.py, vllm/v1/spec_decode/eagle.py
    """
    last = stages_of(_graph(model, system), system)[-1]
    here = {tensor.name for tensor, _ in last.stored_weights()}
    drafts = tuple(
        draft if draft.shared is None else replace(draft, shared=tuple(name for name in draft.shared if name in here))
        for draft in generation.drafts
    )
    return replace(generation, drafts=drafts)
