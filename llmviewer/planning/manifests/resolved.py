"""Limits on which a prediction rests, stated in a launch: longest context, limits of a step, share of the memory.

An engine takes other defaults on other chips and in other versions, and does not start with a context that its cache
does not hold; a launch therefore leaves none of them open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np

from llmviewer.core.errors import UserError
from llmviewer.planning.manifests.serving import Serving

#: Field of Serving -> option of the prediction.
OPTIONS = {
    "tensor": "tensor_parallel_size",
    "pipeline": "pipeline_parallel_size",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "dtype": "dtype",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_fraction": "kv_cache_free_gpu_memory_fraction",
    "enforce_eager": "enforce_eager",
}
#: Options of a run that change the memory and pass unchanged.
PASSED = ("speculative", "link", "kv_block_size")
#: Blocks of engines have multiples of so many tokens.
BLOCK = 16
#: Digits of a share of the memory.
DIGITS = 3


def with_limits(serving: Serving, model: str, options: Mapping[str, Any]) -> Serving:
    """A pool with the limits on which its prediction rests; a model or layout that cannot be predicted gets a note.

    model: as the user named it.  options: of the run.
    """
    words = {name: getattr(serving, field) for field, name in OPTIONS.items()}
    words |= {name: options[name] for name in PASSED if options.get(name) and (name != "speculative" or serving.draft)}
    if serving.expert > 1:
        words |= {"data_parallel_size": serving.data, "expert_parallel_size": serving.expert}
    version = f"=={serving.engine_version}" if serving.engine_version else ""
    words = {name: value for name, value in words.items() if value is not None}
    try:
        return _stated(serving, model, {**words, "engine": f"{serving.engine}{version}"})
    except UserError:
        note = "limits of memory are not stated: this model and layout cannot be predicted here"
        return replace(serving, notes=(*serving.notes, note))


def _stated(serving: Serving, model: str, words: dict[str, Any]) -> Serving:
    """The pool with limits from the memory of one device."""
    from llmviewer.analysis.capacity import memory_of
    from llmviewer.analysis.limits import largest_sizes, most_tokens
    from llmviewer.api.configuration import configuration
    from llmviewer.core.workload import Request

    one = configuration(model, serving.hardware, **words)
    prompt = min(one.token_budget, one.model.max_context)
    system, request = one.system.one_replica(), Request(batch_size=1.0, input_len=prompt, output_len=1.0)
    memory = memory_of(one.model, system, request, one.token_budget)
    longest = most_tokens(one.model, system, memory)
    if system.drafters and longest is not None:
        longest = min(longest, int(largest_sizes(one.model, system, request, one.token_budget)["max_context_len"]))
    own, preset = system.engine.memory, system.engine
    found: dict[str, Any] = {
        "max_model_len": _rounded(longest, one.model.max_context),
        "max_num_batched_tokens": _whole(own.tokens if own else one.token_budget),
        "max_num_seqs": _whole(own.sequences if own else preset.max_num_seqs),
        **_share(serving, memory, system.memory_utilization),
    }
    unstated = {name: value for name, value in found.items() if value and getattr(serving, name) is None}
    refused = longest is not None and longest < max(serving.max_model_len or 1, 1)
    notes = (f"the cache holds {longest:,} tokens of one sequence, fewer than it is started with",) if refused else ()
    return replace(serving, **unstated, notes=(*serving.notes, *notes))


def _share(serving: Serving, memory: Any, utilization: float) -> dict[str, float | None]:
    """The share of the memory in the engine's own terms: of all of it, of weights and cache, or of what is free."""
    cache = float(np.max(memory.kv_cache_budget_bytes))
    capacity, weights = (float(np.max(size)) for size in (memory.capacity_bytes, memory.weights_bytes))
    if serving.engine == "sglang":
        return {"gpu_memory_utilization": _cut((weights + cache) / capacity)}
    if serving.engine == "trtllm":
        free = float(np.max(memory.left_by_others(memory.capacity_bytes)))
        return {"kv_fraction": _cut(cache / free) if free else None}
    return {"gpu_memory_utilization": utilization}


def _cut(share: float) -> float:
    """A share, rounded down."""
    return float(np.floor(share * 10.0**DIGITS)) / 10.0**DIGITS


def _whole(count: float) -> int | None:
    return int(count) if isfinite(count) else None


def _rounded(longest: int | None, context: float) -> int | None:
    """A length in whole blocks, or the model's own context."""
    return longest if longest is None or longest >= context else longest // BLOCK * BLOCK
