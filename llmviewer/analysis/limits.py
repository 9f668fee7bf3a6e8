"""Largest batch, longest context and most concurrent requests that fit in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from llmviewer.analysis.cache_blocks import CacheBlocks
from llmviewer.analysis.capacity import memory_of
from llmviewer.analysis.engine_limits import blocks_of_engine
from llmviewer.analysis.memory import Memory
from llmviewer.analysis.search import Search, search
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array
from llmviewer.core.workload import Request
from llmviewer.models.fields import ABSENT_CONTEXT
from llmviewer.models.model import Model
from llmviewer.serving.kv_cache import KvCache
from llmviewer.serving.prompts import prompt_thresholds

#: Upper bound of every search.
SEARCH_LIMIT = 2.0**32
#: Size of the request that varies, and a search over it that is sent the memory at its candidates.
Question: TypeAlias = tuple[str, Search]


def assumptions(model: Model, system: System, token_budget: float = np.inf) -> dict[str, str | float | None]:
    """Facts on which the largest batch and context depend, by name; None means no limit or not stated.

    token_budget: most tokens of a prefill pass, which sets the activations; None: all prompts together.  engine: it
    sets the default budget.  gpu_memory_utilization: fraction of the memory.  model_max_context_len: the context that
    the model was built for, which memory alone does not enforce.
    """
    return {
        "token_budget": None if np.isinf(token_budget) else int(token_budget),
        "engine": system.engine.name,
        "gpu_memory_utilization": system.memory_utilization,
        "model_max_context_len": None if model.max_context >= ABSENT_CONTEXT else int(model.max_context),
    }


def largest_sizes(
    model: Model, system: System, request: Request, token_budget: float = np.inf, known: Memory | None = None
) -> dict[str, float]:
    """Largest batch, longest input_len + output_len and most concurrent requests of this request (one point).

    The batch keeps the request's lengths, the context its batch and output_len.  known: memory of the request.
    """
    guesses = (math.nan, math.nan) if known is None else _guesses(request, known)
    starts, output = _starts(system, request, token_budget), float(np.max(system.batching.padded(request).output_len))
    dip = _dip(system.kv_cache)
    questions: dict[str, Question] = {
        "max_batch_size": ("batch_size", search(SEARCH_LIMIT, guess=guesses[0], room_of=_room)),
        "max_context_len": ("input_len", search(SEARCH_LIMIT, starts=starts, guess=guesses[1], dip=dip, room_of=_room)),
    }
    concurrent: dict[str, Question] = {
        "max_concurrent_requests": (
            "batch_size",
            _most_concurrent(system, request, token_budget, blocks_of_engine(model, system.one_replica())),
        )
    }
    memory = partial(memory_of, model, token_budget=token_budget)
    if system.parallelism.data == 1:
        found = _answers(partial(memory, system), request, questions | concurrent)
    else:
        found = _answers(partial(memory, system), request, questions)
        found |= _answers(partial(memory, system.one_replica()), request, concurrent)
    found["max_concurrent_requests"] *= system.parallelism.data
    found["max_context_len"] += output if found["max_context_len"] else 0.0
    return found


def _guesses(request: Request, known: Memory) -> tuple[float, float]:
    """Batch and prompt that fill the memory if the cache grows with the tokens and activations with the prompts."""
    cache, activations, room = (
        float(np.max(x)) for x in (known.kv_cache_bytes, known.activations_bytes, known.room_bytes)
    )
    batch, prompt, output = (
        float(np.max(getattr(request, name))) for name in ("batch_size", "input_len", "output_len")
    )
    per_token = cache / (prompt + output - 1.0) + activations / prompt
    return batch + room * batch / (cache + activations), prompt + room / per_token


def _room(memory: Memory) -> Array:
    return np.asarray(memory.room_bytes)


def _answers(
    memory: Callable[[Request], Memory], request: Request, questions: Mapping[str, Question]
) -> dict[str, float]:
    """Answers to all questions, which share the evaluations of the graph."""
    asked = {name: next(question) for name, (_, question) in questions.items()}
    answers: dict[str, float] = {}
    while asked:
        known = memory(_varied(request, [(questions[name][0], values) for name, values in asked.items()]))
        start = 0
        for name, values in tuple(asked.items()):
            stop = start + len(values)
            try:
                asked[name] = questions[name][1].send(known.at(slice(start, stop)))
            except StopIteration as found:
                answers[name] = found.value
                del asked[name]
            start = stop
    return {name: answers[name] for name in questions}


def _varied(request: Request, sizes: Sequence[tuple[str, Array]]) -> Request:
    """The request (one point) at all points of `sizes`, which give the values of one field each."""

    def column(field: str) -> Array:
        own = getattr(request, field)
        return np.concatenate([values if field == name else np.full(len(values), own) for name, values in sizes])

    return Request(batch_size=column("batch_size"), input_len=column("input_len"), output_len=column("output_len"))


def _starts(system: System, request: Request, token_budget: float) -> Array:
    """Prompt lengths from which memory rises: under a token budget it falls where a pass holds one prompt less."""
    starts = 1.0 + np.append(0.0, prompt_thresholds(float(np.max(request.batch_size)), token_budget, system.kv_cache))
    branches = system.generation.branches
    if branches is None:
        return starts
    output = float(np.max(system.batching.padded(request).output_len))
    return np.union1d(starts, 1.0 + branches.prompt_thresholds(request.batch_size, output, token_budget))


def _dip(cache: KvCache) -> float:
    """Distance within which a longer prompt may need less memory, as one more whole page of it is found in the cache.

    A share h of n more tokens, in pages of b, leaves more than n (1 - h) - b more tokens to prefill.  At most 64 pages.
    """
    return (cache.block_size - 1.0) / max(1.0 - cache.hit_rate, 1.0 / 64.0) if cache.hit_rate else 0.0


def _most_concurrent(system: System, request: Request, token_budget: float, blocks: CacheBlocks | None) -> Search:
    """Requests of full length whose caches fit together in one replica: floor((cache budget - shared prefix) / cache of
    one request).

    Activations are those of one step of an engine that admits prompts one after another: as many whole prompts as the
    token budget allows, one where there is none.  vLLM logs it as "Maximum concurrency" (for its longest context).
    blocks: the layout of an engine's cache, whose whole blocks and windows then decide.
    """
    new = request.input_len - system.kv_cache.prefix_hit(request.input_len)
    together = 1.0 if token_budget == np.inf else float(np.maximum(np.floor(token_budget / new), 1.0))
    memories = yield np.array([1.0, 2.0, together])
    first, both, _ = memories.kv_cache_bytes
    own, budget = both - first, memories.kv_cache_budget_bytes[2]
    if blocks is not None and system.engine.memory is not None:
        context = request.input_len + request.output_len
        return float(np.max(np.floor(blocks.concurrency(budget, context, system.engine.memory.tokens))))
    if not own:  # no layer has a cache
        return np.inf
    return float(np.maximum(np.floor((budget - (first - own)) / own), 0.0))
