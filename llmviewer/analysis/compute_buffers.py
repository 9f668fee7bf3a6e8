"""Memory of a device under llama.cpp: compute buffers of a micro-batch, the table of tokens, an allocated KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from llmviewer.analysis import memory
from llmviewer.analysis.engine_parts import intermediate_values
from llmviewer.analysis.memory import Memory, has_untied_head
from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.ir import Block, Graph, Place
from llmviewer.core.workload import Request
from llmviewer.models.model import Model
from llmviewer.ops.attention import AttentionShape

#: Part of the weights that the host stores instead of the device, a negative number of bytes.
TABLE_ON_HOST = "table of tokens"
#: Bytes of an intermediate number, and of an entry of the mask: fp32, which FlashAttention reads as fp16 besides.
NUMBER, MASK, FLASH_MASK = 4.0, 4.0, 6.0
#: Vectors of the hidden state's width that a token has in a layer beside its scores.
VECTORS = 4.0
#: Copies of its inputs that each of several devices has, so that they run one after another without waiting.
COPIES = 4.0


def as_ggml_counts(here: Memory, model: Model, system: System, graph: Graph, request: Request) -> Memory:
    """The memory with compute buffers, the cells of the cache that are allocated, and the table of tokens on the host.

    Where device and host share one memory, the table stays in it.
    """
    free, table = system.engine.free_memory, 0.0
    assert free is not None
    if system.chip.host_link_rate is not None and has_untied_head(graph):
        table = memory.weights_bytes(Graph(blocks=tuple(block for block in graph.blocks if block.name == "embedding")))
    return replace(
        here,
        weights_bytes=here.weights_bytes - table,
        kv_cache_bytes=np.maximum(here.kv_cache_bytes, allocated_cache_bytes(graph, system)),
        activations_bytes=compute_buffer_bytes(model, system, graph, request),
        framework_bytes=free.context_bytes(system.chip) or here.framework_bytes,
        parts={**here.parts, **({TABLE_ON_HOST: -table} if table else {})},
    )


def allocated_cache_bytes(graph: Graph, system: System) -> Count:
    """Bytes of the cache that is allocated at start-up, whatever requests need; 0 where no context is stated."""
    engine = system.engine
    if not engine.allocated_tokens:
        return 0.0

    def allocated(block: Block) -> Block:
        states = (replace(one, window=engine.window_cells(one.window)) for one in block.states)
        return replace(block, states=tuple(states))

    whole = replace(graph, blocks=tuple(map(allocated, graph.blocks)))
    cells = engine.allocated_tokens / engine.streams
    cache = replace(system.kv_cache, reserve=0.0)  # of requests, which are counted apart
    return engine.streams * memory.shares_of_cache(whole, cache, cells, 0.0)[0]


def compute_buffer_bytes(model: Model, system: System, graph: Graph, request: Request) -> Count:
    """Bytes that ggml's allocator reserves for the largest graph: logits of a whole micro-batch, or a layer.

    u tokens of a micro-batch, c of the context, h heads, d hidden: the larger of 4 u (vocabulary + d), of attention
    4 u (h c + c + 4 d) with its matrix of scores, or u (6 c + 16 d) without, and of the feed-forward part.
    """
    context = request.input_len + request.output_len
    context = np.maximum(context, system.engine.slot_context or 0.0)
    tokens = np.minimum(system.engine.max_num_batched_tokens, context)
    hidden = float(model.hidden)
    flash = system.applies("flash")
    several = system.parallelism.pipeline > 1
    mask = (FLASH_MASK if flash else MASK) + (COPIES - 1.0) * MASK * several
    vectors = VECTORS + COPIES * several
    sizes: list[Count] = []
    for block in (one for one in graph.blocks if one.is_layer):
        values, _ = intermediate_values(block, hidden)
        sizes.append(NUMBER * tokens * (values + hidden))
        for heads, window in _heads(block):
            keys = np.minimum(context, window + tokens)
            scores = 0.0 if flash else NUMBER * heads * keys
            sizes.append(tokens * (scores + mask * keys + NUMBER * vectors * hidden))
    if any(block.name == "head" and _is_on_device(block) for block in graph.blocks):
        sizes.append(NUMBER * tokens * (model.embedding.vocabulary + hidden))
    largest: Count = np.max(np.stack([size * np.ones_like(context) for size in sizes]), axis=0)
    return largest


def _heads(block: Block) -> Iterator[tuple[float, float]]:
    """Heads and windows of the attention kernels that the device runs."""
    for operator in block.operators:
        if isinstance(operator.shape, AttentionShape) and operator.runs_on is Place.DEVICE:
            yield float(operator.shape.heads), operator.shape.window


def _is_on_device(block: Block) -> bool:
    return any(operator.runs_on is Place.DEVICE for operator in block.operators)
