"""Blocks of KV cache of one replica, from the memory that `analyze` prints, and the other limits of its scheduler."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor, isfinite

import numpy as np

from llmviewer.analysis.capacity import memory_and_graph, memory_of, step_tokens
from llmviewer.analysis.limits import blocks_of_engine
from llmviewer.analysis.system import System
from llmviewer.api.configuration import Configuration
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph
from llmviewer.core.workload import Request
from llmviewer.models.config import ABSENT_CONTEXT
from llmviewer.models.model import Model

#: Tokens of a block where no option says otherwise: vLLM's default (--block-size),
#: https://docs.vllm.ai/en/latest/configuration/engine_args.html
BLOCK_TOKENS = 16
#: Sequences and tokens of a step where the engine states no limit: vLLM's defaults for servers,
#: https://github.com/vllm-project/vllm/blob/main/vllm/engine/arg_utils.py (get_batch_defaults)
MAX_SEQUENCES, TOKEN_BUDGET = 1024, 8192
#: Longest sequence of a model that states none [token], and sequences of a cache that stores nothing.
UNSTATED_CONTEXT, UNLIMITED = 2**20, 2**20
#: Context of a request whose length is not given [token].
TYPICAL_CONTEXT = 4096.0


@frozen
class CacheCapacity:
    """Limits of the scheduler of one replica.

    blocks: of KV cache; 0 where the weights do not fit.  block_tokens: tokens of a block.  sequence_blocks: blocks that
    a sequence occupies beside those of its tokens (recurrent state, windows).  max_sequences: that run concurrently.
    token_budget: most tokens of a step; pass_tokens: of a forward pass, of which a step may run several.  max_context:
    most tokens of a sequence.
    """

    blocks: int
    block_tokens: int
    sequence_blocks: int
    max_sequences: int
    token_budget: int
    pass_tokens: int
    max_context: int


@frozen
class _Growth:
    """Bytes of one sequence's cache: own bytes at a length, and those of each block of more tokens.

    graph: of the passes of one device, where all devices have the same.
    """

    own: float
    block: float
    budget: float
    graph: Graph | None


def cache_capacity(configuration: Configuration, context: float = TYPICAL_CONTEXT) -> CacheCapacity:
    """Limits of one replica for requests of `context` tokens, prompt and answer together.

    Blocks are those of a cache that grows linearly around this length: a layer whose window is shorter counts as a
    state of the sequence, one whose window is longer as if it had none.  Where nothing grows, one block holds a whole
    sequence.  At this length as many requests fit as `analyze` says (max_concurrent_requests).
    """
    system, budget = _alone(configuration), configuration.token_budget
    engine, longest = system.engine, _max_context(configuration)
    tokens = budget if isfinite(budget) else float(TOKEN_BUDGET)
    size = int(system.kv_cache.block_size) if system.kv_cache.block_size > 1.0 else BLOCK_TOKENS
    length = size * max(ceil(min(context, longest) / size), 2)
    growth = _growth(configuration, system, float(length), float(size))
    if growth.block <= 0.0:
        size, state = longest, 0
        each = 1.0
    else:
        state = ceil(max(growth.own / growth.block - length / size, 0.0) - 1e-9)
        each = length / size + state
    blocks = floor(_concurrency(configuration.model, system, growth, float(length)) * each + 1e-9)
    if (allocated := configuration.system.engine.allocated_tokens) and growth.block > 0.0:
        blocks = min(blocks, floor(allocated / length * each))
    return CacheCapacity(
        blocks=blocks,
        block_tokens=size,
        sequence_blocks=state,
        max_sequences=int(engine.max_num_seqs) if isfinite(engine.max_num_seqs) else MAX_SEQUENCES,
        token_budget=int(step_tokens(system, tokens)),
        pass_tokens=int(tokens),
        max_context=longest,
    )


def block_bytes(configuration: Configuration) -> float:
    """Bytes that one more block of a sequence takes on each device of a replica; 0 where the cache has none."""
    room = cache_capacity(configuration)
    length = room.block_tokens * max(ceil(min(TYPICAL_CONTEXT, room.max_context) / room.block_tokens), 2)
    growth = _growth(configuration, _alone(configuration), float(length), float(room.block_tokens))
    return max(growth.block, 0.0)


def _max_context(configuration: Configuration) -> int:
    """Most tokens of a sequence: the engine's limit, else the model's."""
    model, engine = configuration.model, configuration.system.engine
    return int(engine.slot_context or (model.max_context if model.max_context < ABSENT_CONTEXT else UNSTATED_CONTEXT))


def _alone(configuration: Configuration) -> System:
    """One replica whose sequences find nothing in its cache, as the event loop counts what they share."""
    system = configuration.system.one_replica().unallocated()
    return replace(system, kv_cache=replace(system.kv_cache, hit_rate=0.0, shared=False, cascade=False))


def _growth(configuration: Configuration, system: System, length: float, size: float) -> _Growth:
    """The cache of one sequence of `length` tokens in one replica, the system.  size: tokens of a block."""
    tokens = configuration.token_budget
    together = max(floor(tokens / length), 1.0) if isfinite(tokens) else 1.0
    batch, prompt = np.array([1.0, 2.0, 1.0, 2.0, together]), length - np.array([0.0, 0.0, size, size, 0.0])
    request = Request(batch_size=batch, input_len=prompt, output_len=np.ones(5))
    graph = None
    if system.split is None and system.parallelism.pipeline == 1:
        memory, graph = memory_and_graph(configuration.model, system, request, configuration.token_budget)
    else:
        memory = memory_of(configuration.model, system, request, configuration.token_budget)
    one, two, less, both, _ = np.broadcast_to(memory.kv_cache_bytes, 5)
    own, shorter = float(two - one), float(both - less)
    budget = float(np.broadcast_to(memory.kv_cache_budget_bytes, 5)[4]) - float(one - own)
    return _Growth(own=own, block=own - shorter, budget=max(budget, 0.0), graph=graph)


def _concurrency(model: Model, system: System, growth: _Growth, length: float) -> float:
    """Sequences of `length` tokens whose caches fit, as a fraction; in the layout of the engine's blocks if known."""
    layout, memory = blocks_of_engine(model, system, growth.graph), system.engine.memory
    if layout is not None and memory is not None:
        return float(np.max(layout.concurrency(growth.budget, length, memory.tokens)))
    return growth.budget / growth.own if growth.own else float(UNLIMITED)
