"""Parse rows of published figures into cases: names and numbers that `llmviewer.analyze` takes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llmviewer import models
from llmviewer.core import data
from llmviewer.core.arguments import MAX_WHOLE_NUMBER
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.ir import Role
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode
from llmviewer.hardware import specs
from llmviewer.models import suffixes
from llmviewer.models.model import Model

#: Required columns, and allowed values of `metric`.
REQUEST_COLUMNS = ("device", "model", "engine", "input_len", "output_len", "metric", "value")
REQUEST_METRICS = ("ttft_ms", "tpot_ms", "decode_tok_s", "throughput_tok_s", "latency_ms")
#: Sizes that have no mean.
WHOLE_COLUMNS = ("tp", "pp")
#: Prefix of an engine's name in tables -> preset; the first match counts.
ENGINE_PRESETS: dict[str, str] = {
    "gpt-fast": "gpt-fast",
    "llama.cpp": "llama.cpp",
    "deepspeed": "deepspeed-mii",
    "sglang": "sglang",
    "vllm 0.2": "vllm-v0",
    "vllm 0.3": "vllm-v0",
    "vllm 0.4": "vllm-v0",
    "vllm 0.5": "vllm-v0",
    "vllm 0.6": "vllm-v0",
    "vllm ": "vllm",
    "trtllm": "trtllm",
    "tensorrt-llm 1": "trtllm",
    "tensorrt-llm": "trtllm-cpp",
    "torch.compile": "torch-compile",
    "torch": "torch-eager",
}
#: Weight dtype of a table -> --quantization; for 16 bits the checkpoint's own format.
QUANTIZATIONS = {
    "fp16": "none",
    "bf16": "none",
    "float16": "none",
    "bfloat16": "none",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "fp8-block": "fp8-block",
    "int8": "int8",
    "int4": "w4a16",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "q4_k_m": "q4_k_m-a16",
    "q8_0": "q8_0",
}
#: Engines whose benchmark feeds the same synthetic tokens to all sequences of a static batch, which then select the
#: same experts (Mixtral at batch 16 takes a third longer than at batch 1; with distinct prompts, three times as long).
IDENTICAL_PROMPT_ENGINES = ("trtllm-cpp", "deepspeed-mii")
#: Suffix of a checkpoint's name -> format of its weights.  FP8 checkpoints of model makers have a scale per block;
#: those of ONE_SCALE_OWNERS, converted afterwards, one per tensor or row.
CHECKPOINT_SUFFIXES = {"-fp8": "fp8-block", "-fp8-dynamic": "fp8", "-nvfp4": "nvfp4", "-fp4": "nvfp4", "-bf16": "none"}
ONE_SCALE_OWNERS = ("nvidia", "neuralmagic", "redhatai", "amd", "meta-llama")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCase:
    """A run and the metric published for it.

    batch: concurrent sequences, or users under continuous batching; 0: as many as the KV cache has room for.
    options: fields of Options and techniques.  Cases with the same `run` are evaluated together.
    """

    hardware: str
    model: str
    engine: str
    batching: str
    options: tuple[tuple[str, str], ...]
    batch: float
    input_len: float
    output_len: float
    metric: str

    @property
    def run(self) -> tuple[Any, ...]:
        """Everything except sizes and metric."""
        return (self.hardware, self.model, self.engine, self.batching, self.options)

    @property
    def devices(self) -> int:
        """Number of devices: tensor-parallel x pipeline-parallel size."""
        given = dict(self.options)
        return int(given.get("tensor_parallel_size", "1")) * int(given.get("pipeline_parallel_size", "1"))


def case_of(row: Mapping[str, Any], device: str = "") -> RequestCase:
    """Case of a row, on its own device or on `device`.  Raises UserError if it cannot be predicted."""
    note = str(row.get("note") or "")
    engine = _text(row, "preset") or preset_of(str(row["engine"]), note)
    if row["metric"] not in REQUEST_METRICS:
        raise unknown("metric", row["metric"], REQUEST_METRICS)
    hardware = device or str(row["device"])
    chip = specs.load(hardware)
    name, stored = checkpoint(str(row["model"]))
    weights = _text(row, "quantization") or quantization_of(row.get("weight_dtype"), stored, name)
    weights = "w8a16" if (weights, engine) == ("int8", "gpt-fast") else weights  # its int8 is weight-only
    batching = "continuous" if _continuous(row, note) else "static"
    tensor, pipeline = (max(int(_size(row, key, 1.0)), 1) for key in ("tp", "pp"))
    options = {
        "quantization": weights,
        "kv_cache_dtype": cache_dtype_of(row.get("kv_dtype"), weights, engine),
        "tensor_parallel_size": str(tensor),
        "pipeline_parallel_size": str(pipeline),
        "expert_parallel_size": str(_expert_parallel_size(note, tensor)),
    }
    if engine in IDENTICAL_PROMPT_ENGINES and batching == "static" and has_experts(name):
        options["expert_skew"] = "10"
    prompt, output = (float(round(_size(row, key))) for key in ("input_len", "output_len"))  # means may be fractions
    if prompt + output < 1:
        raise UserError(f"input_len {prompt:g} and output_len {output:g} are not a valid request")
    return RequestCase(
        hardware=hardware if data.user_path(hardware) else chip.name,
        model=name,
        engine=engine,
        batching=batching,
        options=tuple(options.items()),
        batch=_size(row, "batch", 0.0),
        input_len=prompt,
        output_len=output,
        metric=str(row["metric"]),
    )


def preset_of(text: str, note: str = "") -> str:
    """Preset of an engine: `trtllm 1.2.0rc6` -> `trtllm`; vLLM without version on static batches -> `vllm-v0`."""
    word = text.lower().strip()
    if word.startswith("vllm") and (word == "vllm" and "serving" not in note):
        return "vllm-v0"
    for start, preset in ENGINE_PRESETS.items():
        if f"{word} ".startswith(start):
            return preset
    raise unknown("engine", text, sorted(set(ENGINE_PRESETS.values())))


def checkpoint(name: str) -> tuple[str, str]:
    """Known model name of a checkpoint, or the user's path, and the weight format stated in its name.

    Requantized checkpoints keep the model's name under another owner (`nvidia/Llama-3.3-70B-Instruct-FP8`), and so do
    folders on the machine of a benchmark (`/models/Llama-3.3-70B-Instruct`).
    """
    if data.user_path(name):
        return name, "none"
    last = name.rpartition("/")[2]
    known = last if not _is_known(name) and _is_known(last) else name
    loaded = load(known)
    found = suffixes.resolve(known) if loaded.named_format else None
    stored = next((word for suffix, word in CHECKPOINT_SUFFIXES.items() if known.lower().endswith(suffix)), None)
    if stored == "fp8-block" and name.lower().startswith(ONE_SCALE_OWNERS):
        stored = "fp8"
    return (str(loaded.name), "none") if found is None or stored is None else (found.stem, stored)


def _is_known(name: str) -> bool:
    try:
        return bool(load(name))
    except UserError:
        return False


@lru_cache(maxsize=64)
def load(name: str) -> Model:
    """Load a model, cached."""
    return models.load(name)


def quantization_of(dtype: object, stored: str, model: str) -> str:
    """--quantization for a table's weight dtype; a checkpoint published with narrow weights stays as it is."""
    word = "" if _is_missing(dtype) else str(dtype).lower()
    if not word:
        return stored
    if word not in QUANTIZATIONS:
        raise unknown("weight_dtype", dtype, QUANTIZATIONS)
    quantization = stored if (word, stored) == ("fp8", "fp8-block") else QUANTIZATIONS[word]
    return "none" if quantization != "none" and has_narrow_weights(model) else quantization


@lru_cache(maxsize=256)
def has_narrow_weights(name: str) -> bool:
    """Whether the checkpoint stores linear-layer weights in fewer than 12 bits."""
    graph = load(name).graph(decode(1.0, 1.0))
    stored = (
        access.tensor.dtype.bits
        for _, operator in graph
        if operator.kind is Kind.GEMM
        for access in operator.reads
        if access.tensor.role is Role.WEIGHT
    )
    return min(stored, default=16.0) < 12.0


@lru_cache(maxsize=256)
def has_experts(name: str) -> bool:
    """Whether the model routes tokens to experts."""
    return any(operator.name == "router" for _, operator in load(name).graph(decode(1.0, 1.0)))


def cache_dtype_of(dtype: object, weights: str, engine: str) -> str:
    """--kv-cache-dtype of a row; TensorRT-LLM's published fp8 checkpoints also use an fp8 cache."""
    if not _is_missing(dtype):
        word = str(dtype).lower()
        return "auto" if word in ("fp16", "bf16", "float16", "bfloat16", "auto") else word
    return "fp8" if weights == "fp8" and engine in ("trtllm", "trtllm-cpp") else "auto"


def _continuous(row: Mapping[str, Any], note: str) -> bool:
    batching = row.get("batching")
    if not _is_missing(batching):
        return str(batching) == "continuous"
    return "continuous batching" in note or "in-flight batching" in note


def _expert_parallel_size(note: str, tensor: int) -> int:
    """Expert-parallel size: the tensor-parallel size or 1.

    Sources that state attention_dp in addition to the same number of tensor-parallel devices and one expert group
    publish times of the tensor-parallel group with expert parallelism (vLLM --enable-expert-parallel).
    """
    found = {key: number(key, match) for key, match in re.findall(r"(attention_dp|moe_ep)=([\d.]+)", note)}
    expert_parallel = found.get("moe_ep", 1.0) > 1.0 or found.get("attention_dp", 1.0) > 1.0
    return tensor if expert_parallel else 1


def _text(row: Mapping[str, Any], name: str) -> str:
    """A column as text; empty if the table does not have it or leaves it empty."""
    return "" if _is_missing(row.get(name)) else str(row[name])


def _is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _size(row: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A size of a run; `default` for an empty cell.  Raises UserError for one that no run has."""
    value = row.get(key)
    if _is_missing(value) and default is not None:
        return default
    size = number(key, value)
    if not (size == 0.0 or 1.0 <= size <= MAX_WHOLE_NUMBER) or (key in WHOLE_COLUMNS and size % 1.0):
        raise UserError(
            f"{key} is neither 0 nor a {'whole ' * (key in WHOLE_COLUMNS)}number from 1 to {MAX_WHOLE_NUMBER:,}"
        )
    return size


def number(key: str, value: object) -> float:
    """The number in a cell.  Raises UserError, without the value, so that equal faults are counted together."""
    try:
        return float(str(value))
    except ValueError as error:
        raise UserError(f"{key} is not a number") from error
