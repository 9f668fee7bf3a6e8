"""Memory that an engine takes beside checkpoint and KV cache: its profiling run, framework, CUDA graphs, tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Graph, Operator
from llmviewer.formats.linear import is_weight_matrix
from llmviewer.hardware.chip import Chip
from llmviewer.layers.attention import Attention
from llmviewer.layers.mla import Mla
from llmviewer.models.config import ABSENT_CONTEXT
from llmviewer.models.model import Model
from llmviewer.ops.gemm import GemmShape, has_routed_experts, is_routed
from llmviewer.timing.engine import KERNELS_ONLY
from llmviewer.timing.engine_memory import EngineMemory

#: Maker -> fraction of a chip's stated memory that its driver reports where no source says how much.  NVIDIA: the least
#: of the GPUs without ECC in GDDR (RTX 5090: 31.37 of 32 GiB), rounded down.  Apple: the GPU's default limit
#: (recommendedMaxWorkingSetSize: https://github.com/ggml-org/llama.cpp/issues/3213).
REPORTED_SHARE = {"NVIDIA": 0.98, "Apple": 0.75}
#: PyTorch's allocator: segments of large blocks, size from which a block has segments of its own, rest that stays.
SEGMENT_BYTES, LARGE_BYTES, UNSPLIT_BYTES = 2.0 * 2**20, 10.0 * 2**20, 2.0**20
#: Weights that engines join -> name of the joined matrix.
JOINED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
#: Format of experts that engines pad.
PADDED_FORMAT = "mxfp4"


@frozen
class EngineParts:
    """Bytes that an engine takes on one device.

    activations: peak of its profiling run, the larger of `sampler` and `layer`.  outside_torch: CUDA context and
    libraries.  graphs: CUDA graphs.  weights: name -> bytes in addition to the checkpoint's language model.
    """

    sampler: float
    layer: float
    vision: float
    outside_torch: float
    graphs: float
    weights: dict[str, float] = field(default_factory=dict)

    @property
    def activations(self) -> float:
        """Peak of the profiling run [byte]."""
        return max(self.sampler, self.layer) + self.vision


def reported_bytes(chip: Chip) -> Count:
    """Capacity of a chip as its driver reports it to an engine; less than the data sheet's."""
    if chip.reported_memory_bytes is not None:
        return chip.reported_memory_bytes
    return chip.memory_bytes * REPORTED_SHARE.get(chip.maker, 1.0)


def capacity_bytes(system: System) -> Count:
    """Memory of a device: what its driver reports to an engine; without one, what the data sheet states."""
    chip = system.chip
    return chip.memory_bytes if system.engine.name == KERNELS_ONLY.name else reported_bytes(chip)


def engine_parts(model: Model, system: System, graph: Graph, constants: EngineMemory) -> EngineParts:
    """The parts on one device.  graph: of this device, at any step."""
    tensor = system.parallelism.tensor
    layers = sum(block.repeats for block in graph.blocks if block.is_layer)
    routed = has_routed_experts(graph)
    gib = constants.graph_gib + constants.graph_layer_gib * layers + constants.graph_expert_gib * routed
    return EngineParts(
        sampler=sampler_bytes(model, constants),
        layer=layer_bytes(model, system, graph, constants),
        vision=constants.vision_gib * 2.0**30 * bool(model.vision_parameters),
        outside_torch=constants.outside_torch_gib(tensor, system.chip.default_link) * 2.0**30,
        graphs=gib * 2.0**30,
        weights={
            "rotary tables": rotary_bytes(model),
            "allocator's rounding": rounding_bytes(graph),
            "padding of MXFP4 experts": padding_bytes(model, graph, constants.expert_multiple),
        },
    )


def sampler_bytes(model: Model, constants: EngineMemory) -> float:
    """Peak of sampling one token for each of the most sequences: logits of the whole vocabulary on every device."""
    sequences = min(constants.sequences, constants.tokens)
    logits = sequences * model.embedding.vocabulary * constants.logit_bytes
    hidden = constants.tokens * model.hidden * model.dtype.bytes * constants.token_hidden
    return logits + hidden + constants.sampler_gib * 2.0**30


def layer_bytes(model: Model, system: System, graph: Graph, constants: EngineMemory) -> float:
    """Peak of the largest layer on max_num_batched_tokens tokens."""
    widest = 0.0
    for block in graph.blocks:
        values, routed = intermediate_values(block, float(model.hidden))
        hidden = constants.layer_hidden
        hidden += constants.exchange_hidden if routed and system.parallelism.tensor > 1 else 0.0
        widest = max(widest, values + hidden * model.hidden if block.is_layer else 0.0)
    return constants.tokens * model.dtype.bytes * widest


def intermediate_values(block: Block, hidden: float) -> tuple[float, bool]:
    """Values per token of a block's feed-forward part on one device, and whether it routes tokens to experts.

    Gate, up and their product are alive at once; experts also keep their sorted inputs and outputs.
    """
    gated = any("gate" in operator.name and operator.name.endswith("_proj") for operator in block.operators)
    rows = next((_shape(op).m for op in block.operators if op.name == "router"), 1.0)
    total, routed = 0.0, False
    for operator in block.operators:
        if not operator.name.endswith("down_proj") or not isinstance(operator.shape, GemmShape):
            continue
        own = (3.0 if gated else 2.0) * float(np.max(operator.shape.k))
        if is_routed(operator):
            routed = True
            own = (own + 2.0 * hidden) * float(np.max(operator.shape.m / rows))
        total += own
    return total, routed


def _shape(operator: Operator) -> GemmShape:
    assert isinstance(operator.shape, GemmShape)
    return operator.shape


def rotary_bytes(model: Model) -> float:
    """Tables of cosines and sines over the model's maximum context, one per width of rotated heads."""
    mixers = [layer.mixer for layer in model.layers]
    widths = {mixer.rotary_dim for mixer in mixers if isinstance(mixer, Attention)}
    widths |= {mixer.rope_dim for mixer in mixers if isinstance(mixer, Mla)}
    return sum(widths) * model.max_context * model.dtype.bytes if model.max_context < ABSENT_CONTEXT else 0.0


def rounding_bytes(graph: Graph) -> float:
    """Bytes that PyTorch's allocator adds to large weights: whole segments of 2 MiB, of which 1 MiB or less is not
    split off (https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp).

    Engines store q, k, v and gate, up as one matrix each.
    """
    added = 0.0
    for block in graph.blocks:
        joined: dict[str, float] = {}
        for name, tensor in block.weights().items():
            if name.endswith(".weight"):
                size = float(tensor.elements) * tensor.dtype.bytes
                joined[_joined(name)] = joined.get(_joined(name), 0.0) + size
        for size in joined.values():
            rest = -size % SEGMENT_BYTES
            added += rest * block.repeats if size >= LARGE_BYTES and rest <= UNSPLIT_BYTES else 0.0
    return added


def _joined(name: str) -> str:
    """Name of the matrix that an engine stores for a weight."""
    for part, whole in JOINED.items():
        name = name.replace(part, whole)
    return name


def padding_bytes(model: Model, graph: Graph, multiple: tuple[float, float]) -> float:
    """Bytes that padding adds to experts in MXFP4.

    multiple: intermediate and hidden sizes are padded to multiples of these.
    """
    added = 0.0
    for block, operator in _padded(graph):
        shape = _shape(operator)
        inside, hidden = (shape.k, shape.n) if operator.name.endswith("down_proj") else (shape.n, shape.k)
        inside /= 2.0 if "gate_up" in operator.name else 1.0
        grown = _up(inside, multiple[0]) * _up(hidden, multiple[1]) / (inside * hidden)
        stored = (access.tensor for access in operator.reads if is_weight_matrix(access))
        added += (grown - 1.0) * block.repeats * sum(float(t.elements) * t.dtype.bytes for t in stored)
    return added


def _padded(graph: Graph) -> Iterator[tuple[Block, Operator]]:
    """Operators with experts in MXFP4, and their blocks."""
    for block, operator in graph:
        formats = {access.tensor.dtype.name for access in operator.reads if is_weight_matrix(access)}
        if is_routed(operator) and isinstance(operator.shape, GemmShape) and PADDED_FORMAT in formats:
            yield block, operator


def _up(size: float, multiple: float) -> float:
    return float(np.ceil(size / multiple) * multiple)


def vision_bytes(model: Model, system: System) -> float:
    """Bytes of a vision tower and its projector in 16 bit, split over a tensor group."""
    return model.vision_parameters * 2.0 / system.parallelism.tensor
