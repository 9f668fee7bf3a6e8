"""Largest batch, longest context and most concurrent requests in memory; KV tokens as engines report them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from llmviewer.analysis.capacity import CacheBlocks, cache_blocks, memory_of, resolved_reservation
from llmviewer.analysis.evaluation import graph_of_device, largest_passes_of
from llmviewer.analysis.memory import Memory, shares_of_cache
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.ir import Graph
from llmviewer.core.workload import Request
from llmviewer.models.config import ABSENT_CONTEXT
from llmviewer.models.model import Model
from llmviewer.serving.generation import AUTOREGRESSIVE
from llmviewer.serving.kv_cache import DEFAULT_KV_CACHE, KvCache
from llmviewer.serving.prompts import prompt_thresholds
from llmviewer.timing.engine import AtStart

#: Yields ascending candidates, is sent what is known of them, and ends with the largest that fits.
Search: TypeAlias = Generator[Array, Any, float]
#: Candidates of a round.
CANDIDATES = 64.0
#: Candidates around the number at which the room is expected to end.
NEIGHBOURS = np.arange(-16.0, 17.0)
NO_STARTS = np.zeros(0)
#: Sizes of `largest_sizes`.
LARGEST = ("max_batch_size", "max_context_len", "max_concurrent_requests")


def largest(fits: Callable[[Array], object], limit: float, low: float = 0.0) -> float:
    """The largest whole number up to `limit` for which `fits` holds, `low` where none above it does.

    fits: array of candidates -> array of truth values, true up to some number and false beyond it.
    """
    searching = search(limit, low, room_of=lambda fit: np.where(np.asarray(fit, dtype=bool), 1.0, -1.0))
    try:
        candidates = next(searching)
        while True:
            candidates = searching.send(fits(candidates))
    except StopIteration as found:
        return float(found.value)


def search(
    limit: float,
    low: float = 0.0,
    *,
    starts: Array = NO_STARTS,
    guess: float = math.nan,
    dip: float = 0.0,
    room_of: Callable[[Any], Array] = np.asarray,
) -> Search:
    """Search for the largest whole number up to `limit` with room, `low` where none above it has.

    room_of: what is sent -> the room at each candidate; negative where it does not fit.  There is room up to some
    number and none beyond it; or from each of `starts` (low + 1 and others) up to some number before the next.  Beyond
    the end, single numbers may have room again within `dip` of one another.
    Half of the candidates are around the number at which the room ends if it falls evenly, at first around `guess`: one
    round finds an answer near the guess, and two find it where the room falls evenly.
    """
    tried, room = np.array([low, limit + 1.0]), np.array([np.inf, -np.inf])  # infinite: unknown
    while True:
        last = int(np.flatnonzero(room >= 0.0)[-1])
        (low, high), (left, lacking) = tried[last : last + 2].tolist(), room[last : last + 2].tolist()
        if high - low <= 1.0:
            return (yield from _beyond_dips(low, dip, room_of)) if dip and low < limit else low
        if math.isfinite(left - lacking):
            guess = low + (high - low) * (left / (left - lacking))
        between = np.sort(np.concatenate((_candidates(low, high, guess), starts)))
        tried = np.concatenate(([low], between, [high]))
        room = np.concatenate(([left], room_of((yield between)), [lacking]))
        if starts.size:
            tried, room = _from_last_start(tried, room, starts)
            starts = NO_STARTS


def _from_last_start(tried: Array, room: Array, starts: Array) -> tuple[Array, Array]:
    """The numbers from the last of the starts that has room to the next, with their room."""
    begun = tried[np.isin(tried, starts) & (room >= 0.0)]
    if not begun.size:
        return tried[:2], room[:2]
    end = starts[starts > begun[-1]].min(initial=tried[-1])
    inside = (tried >= begun[-1]) & (tried < end)
    return np.r_[tried[inside], end], np.r_[room[inside], -np.inf]


def _beyond_dips(low: float, dip: float, room_of: Callable[[Any], Array]) -> Search:
    """The last number with room that is within `dip` of another one, from `low` on."""
    while True:
        near = low + np.arange(1.0, dip + 1.0)
        fitting = near[room_of((yield near)) >= 0.0]
        if not fitting.size:
            return low
        low = float(fitting[-1])


def _candidates(low: float, high: float, guess: float) -> Array:
    """Numbers strictly within a gap: all, or spread evenly, geometrically while the gap spans magnitudes."""
    if high - low <= CANDIDATES:
        return np.arange(low + 1.0, high)
    inner = np.arange(1.0, CANDIDATES + 1.0) / (CANDIDATES + 1.0)
    start = max(low, 0.5)
    spread = start * (high / start) ** inner if high / start > CANDIDATES else low + (high - low) * inner
    if low <= guess < high:
        spread = np.concatenate((spread[::2], guess + NEIGHBOURS))
    return np.floor(np.clip(spread, low + 1.0, high - 1.0))


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
        "engine": system.engine.program.name if system.engine.program else system.engine.name,
        "gpu_memory_utilization": system.memory_utilization,
        "model_max_context_len": None if model.max_context >= ABSENT_CONTEXT else int(model.max_context),
    }


def largest_sizes(
    model: Model,
    system: System,
    request: Request,
    token_budget: float = np.inf,
    known: Memory | None = None,
    names: Collection[str] = LARGEST,
) -> dict[str, float]:
    """Largest batch, longest input_len + output_len and most concurrent requests of this request (one point).

    The batch keeps the request's lengths, the context its batch and output_len.  known: memory of the request.  names:
    of LARGEST that are asked for.
    """
    system = system.unallocated()
    guesses = (math.nan, math.nan) if known is None else _guesses(request, known)
    starts, output = _starts(system, request, token_budget), float(np.max(system.batching.padded(request).output_len))
    dip, (batch, context, most) = _dip(system.kv_cache), LARGEST
    questions: dict[str, Question] = {
        batch: ("batch_size", search(SEARCH_LIMIT, guess=guesses[0], room_of=_room)),
        context: ("input_len", search(SEARCH_LIMIT, starts=starts, guess=guesses[1], dip=dip, room_of=_room)),
    }
    questions = {name: one for name, one in questions.items() if name in names}
    concurrent: dict[str, Question] = {}
    if most in names:
        blocks = blocks_of_engine(model, system.one_replica())
        concurrent = {most: ("batch_size", _most_concurrent(system, request, token_budget, blocks))}
    memory = partial(memory_of, model, token_budget=token_budget)
    if system.parallelism.data == 1:
        found = _answers(partial(memory, system), request, questions | concurrent)
    else:
        found = _answers(partial(memory, system), request, questions)
        found |= _answers(partial(memory, system.one_replica()), request, concurrent)
    if most in found:
        found[most] *= system.parallelism.data
    if found.get(context):
        found[context] += output
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


def layout_of_engine(model: Model, system: System, graph: Graph | None = None) -> CacheBlocks | str:
    """The layout of the engine's KV cache on one device, or why it is not known.

    graph: of any passes of the device where it is known, as what a layer stores depends on none.
    """
    if system.engine.memory is None:
        return "the memory of this engine is not known"
    if system.kv_cache != DEFAULT_KV_CACHE or system.generation.counts_passes:
        return "options of the KV cache replace the engine's own blocks"
    if system.drafters:
        return "blocks of a draft model's layers are not known"
    return cache_blocks(graph_of_engine(model, system) if graph is None else graph)


def blocks_of_engine(model: Model, system: System, graph: Graph | None = None) -> CacheBlocks | None:
    """The layout of the engine's KV cache on one device; None if it is not known or another policy replaces it."""
    found = layout_of_engine(model, system, graph)
    return found if isinstance(found, CacheBlocks) else None


def graph_of_engine(model: Model, system: System) -> Graph:
    """The graph of one device at the smallest request."""
    plan = largest_passes_of(model, system, Request(batch_size=1.0, input_len=1.0, output_len=1.0), np.inf)
    return graph_of_device(model, system, plan)


def at_start(model: Model, system: System, memory: Memory) -> dict[str, Any]:
    """Figures that an engine reports at start-up, whether it starts, and doubt about what fits (one point)."""
    layout = layout_of_engine(model, system)
    return {
        **engine_limits(model, system, memory, layout),
        **start_limits(model, system, memory, layout),
        **edge_limits(system, memory),
    }


def engine_limits(
    model: Model, system: System, memory: Memory, layout: CacheBlocks | str | None = None
) -> dict[str, Any]:
    """Longest context, tokens that the KV cache holds and requests of the longest context in it (one point).

    layout: that of layout_of_engine, if it is known already.  None where the engine's memory or the longest context is
    not known; kv_cache_tokens_unknown says why.
    """
    longest = longest_context(model, system)
    layout, constants = layout or layout_of_engine(model, system), system.engine.memory
    names = ("max_model_len", "kv_cache_tokens", "max_concurrency", "kv_cache_tokens_unknown")
    if isinstance(layout, str) or constants is None:
        return dict(zip(names, (longest, None, None, layout), strict=True))
    budget = memory.kv_cache_budget_bytes
    tokens, concurrency = float(np.max(layout.capacity_tokens(budget))), None
    if longest is not None:
        concurrency = float(np.max(layout.concurrency(budget, longest, constants.tokens)))
        tokens = float(np.floor(concurrency * longest)) if constants.tokens_of_requests else tokens
    return dict(zip(names, (longest, tokens, concurrency, None), strict=True))


def longest_context(model: Model, system: System) -> float | None:
    """The longest context that an engine serves: --max-model-len, else the model's; None if neither is stated."""
    return system.engine.slot_context or (model.max_context if model.max_context < ABSENT_CONTEXT else None)


def start_limits(model: Model, system: System, memory: Memory, layout: CacheBlocks | str) -> dict[str, Any]:
    """Whether the engine starts with its longest context (one point): `starts`, `max_model_len_to_start`, `refusal`.

    starts: None where the engine's rule, its cache or the longest context is not known.  refusal: its reason in words.
    """
    starts, most = _start(model, system, memory, layout)
    refusal, context = None, longest_context(model, system)
    if starts is False:
        at = f" at {context:,.0f} tokens" if most else ""
        advice = f"pass --max-model-len {most} or less" if most else "no memory is left for the cache of one sequence"
        program = system.engine.program
        refusal = f"{program.title if program else system.engine.product} refuses to start{at}: {advice}"
    return {"starts": starts, "max_model_len_to_start": most, "refusal": refusal}


def _start(model: Model, system: System, memory: Memory, layout: CacheBlocks | str) -> tuple[bool | None, int | None]:
    """Whether the engine starts, and most tokens with which it does; None where they are not known or not limited."""
    engine, context = system.engine, longest_context(model, system)
    if engine.start is AtStart.UNKNOWN or context is None:
        return None, None
    if system.drafters:  # their caches come on top: what does not start without them does not start
        alone = replace(system, scheme=None, generation=AUTOREGRESSIVE, drafters=())
        starts, most = _start(model, alone, memory, layout_of_engine(model, alone))
        return (starts, most) if starts is False else (None, None)
    needed, allocates = _needed(model, system, layout), engine.start is AtStart.ALLOCATES
    budget = float(np.max(memory.left_by_others(memory.capacity_bytes) if allocates else memory.kv_cache_budget_bytes))
    if budget and (engine.start is AtStart.SHORTENS or not needed(1.0)):
        return True, None
    most = _largest(needed, budget, int(max(context, min(model.max_context, ABSENT_CONTEXT))))
    if allocates and engine.max_model_len is None:
        return None, most
    return most >= context, most


def edge_limits(system: System, memory: Memory) -> dict[str, Any]:
    """Doubt about the total (one point) [byte], and whether it decides if the total fits.

    The doubt is the largest error, over published logs of vLLM, of what is not counted from shapes: activations of the
    profiling run, memory outside PyTorch and CUDA graphs (docs/reference/memory.md).  None for engines without such
    constants.
    """
    constants = system.engine.memory
    if constants is None:
        return {"uncertainty_bytes": None, "at_edge": None}
    doubt = float(
        np.max(
            constants.activations_spread * memory.activations_bytes
            + constants.framework_spread * memory.framework_bytes
            + constants.graphs_spread * memory.cuda_graphs_bytes
        )
    )
    margin = float(np.max(memory.budget_bytes - memory.total_bytes))
    return {"uncertainty_bytes": doubt, "at_edge": abs(margin) <= doubt}


def most_tokens(model: Model, system: System, memory: Memory) -> int | None:
    """Tokens of the longest sequence that the cache holds, up to the longest context; None if none is stated."""
    context = longest_context(model, system)
    if context is None:
        return None
    needed = _needed(model, system, layout_of_engine(model, system))
    return _largest(needed, float(np.max(memory.kv_cache_budget_bytes)), int(context))


def _needed(model: Model, system: System, layout: CacheBlocks | str) -> Callable[[float], float]:
    """Bytes of the cache that an engine reserves for one sequence, by its tokens."""
    constants = system.engine.memory
    if isinstance(layout, CacheBlocks) and constants is not None:
        return lambda tokens: float(layout.blocks_of(tokens, constants.tokens)) * layout.block_bytes
    graph = graph_of_engine(model, system)
    cache = resolved_reservation(model, system.kv_cache, graph)

    def stored(tokens: Count) -> float:
        return float(np.max(shares_of_cache(graph, cache, tokens, 0.0)[0]))

    return stored


def _largest(needed: Callable[[float], float], budget: float, most: int) -> int:
    """Most tokens, up to `most`, whose cache fits in a budget."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(float(middle)) <= budget else (low, middle - 1)
    return low
