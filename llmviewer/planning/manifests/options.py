"""Options of `simulate` as fields of a launch: which become flags, which describe the load, which no engine has."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.planning.manifests import speculation
from llmviewer.planning.manifests.speculation import Draft
from llmviewer.timing import engine

ENGINES = ("vllm", "sglang", "trtllm")
#: Options of the load, of the prediction and of the wires; the engine is launched alike whatever they are.
NOT_LAUNCHED = frozenset(
    """request_rate concurrency trace burst rate_curve arrivals input_len output_len lengths sessions speed_up duration
    requests seed warm_up replications find_rate ttft tpot e2e timeline format output router link network expert_skew
    prefix_cache kv_tiers efficiency profile ignore_field trace_model pools batching batch_size
    replicas""".split()
)
#: Option -> field of Serving and the type of its value.
FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "tensor_parallel_size": ("tensor", int),
    "pipeline_parallel_size": ("pipeline", int),
    "data_parallel_size": ("data", int),
    "expert_parallel_size": ("expert", int),
    "quantization": ("quantization", str),
    "kv_cache_dtype": ("kv_cache_dtype", str),
    "dtype": ("dtype", str),
    "max_model_len": ("max_model_len", int),
    "max_num_seqs": ("max_num_seqs", int),
    "max_num_batched_tokens": ("max_num_batched_tokens", int),
    "gpu_memory_utilization": ("gpu_memory_utilization", float),
    "kv_cache_free_gpu_memory_fraction": ("kv_fraction", float),
    "kv_block_size": ("kv_block_size", int),
    "power_limit": ("power_limit", str),
}
#: Options of which 0 means that there is no limit.
NO_LIMIT = {"max_num_batched_tokens": 0}
#: Engines of older generations, whose flags differ -> their name.
OLDER = {"vllm-v0": "vLLM before 0.8", "trtllm-cpp": "TensorRT-LLM before 1.0"}


def fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Serving that the options set.  Raises UserError for an option that cannot be launched."""
    found: dict[str, Any] = dict(_engine(str(options.get("engine") or "vllm")))
    for name, value in options.items():
        if name in FIELDS:
            field, kind = FIELDS[name]
            found[field] = _value(name, value, kind)
        elif name == "enforce_eager":
            found["enforce_eager"] = True
        elif name == "speculative":
            found["draft"] = _draft(str(value))
        elif name not in NOT_LAUNCHED and name != "engine":
            allowed = sorted((*FIELDS, "enforce_eager", "speculative", "engine", "pools", "batching"))
            raise unknown(
                "launch option", name, allowed, hint="it changes the prediction, but no engine has it as a flag"
            )
    return found | _batching(str(options.get("batching") or "continuous"))


def _draft(text: str) -> Draft | None:
    found = speculation.parse(text)
    return replace(found, model=hub_id(found.model)) if found and found.model else found


def _value(name: str, value: Any, kind: Callable[[str], Any]) -> Any:
    text = str(value).strip()
    if name == "pipeline_parallel_size":  # engines choose the number of micro-batches
        text = text.partition(",")[0]
    if kind is str:
        return text
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    low, high, noun = (NO_LIMIT.get(name, 1), math.inf, "a whole number") if kind is int else (1e-9, 1, "a number")
    if not low <= number <= high:
        bounds = f"of at least {low}" if kind is int else "above 0, up to 1"
        raise UserError(f"{name} is {quoted(text)}; expected {noun} {bounds}")
    return number


def _engine(text: str) -> dict[str, str]:
    name, version = engine.preset_and_version(text)
    if name in OLDER:
        raise UserError(f"engine {name} is {OLDER[name]}, whose flags are not emitted; allowed: {', '.join(ENGINES)}")
    if name not in ENGINES:
        raise unknown("engine of a manifest", name, ENGINES)
    return {"engine": name, "engine_version": version}


def _batching(text: str) -> dict[str, Any]:
    name, _, rest = text.partition(",")
    if name == "chunked":
        tokens = re.search(r"tokens=(\d+)", rest)
        return {"mixed": True} | ({"max_num_batched_tokens": int(tokens[1])} if tokens else {})
    if name not in ("continuous", "disaggregated"):
        raise unknown("batching of a manifest", name, ("continuous", "chunked", "disaggregated"))
    return {}


def pools(options: Mapping[str, Any]) -> dict[str, Any]:
    """The pools of `--pools` or `--batching disaggregated` by role, prefill first; empty if there is one pool."""
    from llmviewer.simulation.fleets import pools_of

    text = str(options.get("pools") or "")
    name, _, rest = str(options.get("batching") or "").partition(",")
    if name == "disaggregated":
        counts = {part.partition("=")[0]: part.partition("=")[2] for part in rest.split(",")}
        text = ",".join(f"{role}={counts.get(role, '1')}" for role in ("prefill", "decode"))
    return {} if not text else {role: pools_of(text)[0][role] for role in ("prefill", "decode")}


def hub_id(model: str) -> str:
    """The Hub id of a model in model_configs/; a Hub id or a path stays.  Raises UserError if none is known."""
    if model.startswith("-"):
        raise UserError(f"model {quoted(model)} would be read as a flag; write the path as './{model}'")
    if "/" in model:
        return model.removesuffix("/config.json")  # engines take the folder
    from llmviewer.models import card, file_names

    if file_names.named_file(model):
        raise UserError(f"model {quoted(model)} is a name of Ollama's; give the Hub id, or the path of the file")
    found = card.read(model)
    page = re.match(r"https://huggingface\.co/([\w.-]+/[\w.-]+)", found.source, re.ASCII)
    names = ([page[1]] if page else []) + [name for name in found.aliases if "/" in name]
    if not names:
        raise UserError(f"no Hub id is known of model {quoted(model)}; give the Hub id, or the path of the checkpoint")
    return names[0]


def chip(name: str) -> tuple[str, str]:
    """File stem and maker of a chip.  Raises UserError."""
    from llmviewer.hardware import specs

    found = specs.load(name)
    return found.name, found.maker
