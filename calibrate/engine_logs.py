"""Predict tables of what engines log at start-up: weights, activations, KV budget, KV tokens, concurrency."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.analysis.capacity import memory_of
from llmviewer.analysis.compute_buffers import TABLE_ON_HOST
from llmviewer.analysis.limits import engine_limits
from llmviewer.analysis.memory import Memory
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.calibrate.cells import number
from llmviewer.calibrate.e2e_rows import checkpoint, has_narrow_weights
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.hardware import specs as chips

if TYPE_CHECKING:
    import pandas as pd

#: Columns that make a table one of start-up figures.
LOG_COLUMNS = ("engine", "engine_version", "model", "gpu", "tp", "utilization", "max_model_len", "quantity", "value")
#: Word of the `quantization` column -> --quantization; a word that is not listed is tried as it is.
FORMATS = {
    "compressed-tensors": "",
    "mxfp4": "",
    "fbgemm_fp8": "fbgemm-fp8",
    "fp8-128x128": "",
    "w8a8-int8": "int8",
    "mostly f16": "none",
    "f16": "none",
    "mostly q4_0": "gguf-q4_0",
    "q4_0": "gguf-q4_0",
    "q4_k - medium": "gguf-q4_k_m",
    "mostly q4_k - medium": "gguf-q4_k_m",
    "q5_k - medium": "gguf-q5_k_m",
    "mostly q5_k - medium": "gguf-q5_k_m",
    "mostly q6_k": "gguf-q6_k",
    "mostly q8_0": "gguf-q8_0",
}
#: Quantities that are not predicted -> reason.
NOT_PREDICTED = {"init_non_torch_gib": "memory held before the engine starts to count, no part of its budget"}
#: Quantities that do not depend on the chip, and the chip on which they are predicted if that of a row is unknown.
ALIKE, ANY_CHIP = ("weights_gib", "kv_gib", "kv_bytes_per_token"), "h100-sxm"


@frozen
class Started:
    """An engine that has started: its configuration, memory and limits, and its longest context."""

    configuration: Configuration
    memory: Memory
    limits: Mapping[str, float | None]
    context: float

    def known(self, name: str) -> float:
        """One of the limits.  Raises UserError if it is not known."""
        value = self.limits[name]
        if value is None:
            raise UserError(f"{name} is not known for this engine and model")
        return value

    def part(self, name: str) -> float:
        """One of the parts that only engines with known memory have.  Raises UserError for others."""
        if name not in self.memory.parts:
            raise UserError(f"the {name} of this engine are not known")
        return float(self.memory.parts[name])

    def engine_only(self, value: Any) -> float:
        """A figure that only engines with known memory have.  Raises UserError for others."""
        engine = self.configuration.system.engine
        if engine.memory is None and engine.free_memory is None:
            raise UserError("memory of this engine beside weights and KV cache is not known")
        return float(np.max(value))


def _estimate(one: Started) -> float:
    constants = one.configuration.system.engine.memory
    return one.part("CUDA graphs") * (constants.graph_estimate if constants else 1.0)


#: Quantity of a log -> its prediction, in byte, tokens or requests.
QUANTITIES: dict[str, Callable[[Started], float]] = {
    "weights_gib": lambda one: float(np.max(one.memory.weights_bytes)) - one.memory.parts.get(TABLE_ON_HOST, 0.0),
    "activation_gib": lambda one: one.engine_only(one.memory.activations_bytes),
    "non_torch_gib": lambda one: one.engine_only(one.memory.framework_bytes),
    "cuda_graph_gib": lambda one: one.part("CUDA graphs"),
    "cuda_graph_estimate_gib": _estimate,
    "total_gpu_gib": lambda one: one.engine_only(one.memory.capacity_bytes),
    "kv_available_gib": lambda one: one.engine_only(one.memory.kv_cache_budget_bytes),
    "kv_tokens": lambda one: one.known("kv_cache_tokens"),
    "max_concurrency": lambda one: one.known("max_concurrency"),
    "kv_bytes_per_token": lambda one: float(np.max(one.memory.kv_cache_bytes)) / one.context,
    "kv_gib": lambda one: float(np.max(one.memory.kv_cache_bytes)),
}


def is_log_table(columns: Any) -> bool:
    """Whether these are the columns of a table of start-up figures."""
    return set(LOG_COLUMNS) <= set(columns)


def predict(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with the columns `predicted`, `preset`, `devices` and `reason`; no row is dropped."""
    cache: dict[Hashable, Started | UserError] = {}
    rows = [_row(row, cache) for row in frame.to_dict("records")]
    columns = ("predicted", "preset", "devices", "reason")
    return frame.reset_index(drop=True).assign(**{name: [row[name] for row in rows] for name in columns})


def _row(row: Mapping[Any, Any], cache: dict[Hashable, Started | UserError]) -> dict[str, Any]:
    """The added columns of one row."""
    found: dict[str, Any] = {"predicted": np.nan, "preset": "", "devices": 0, "reason": ""}
    try:
        if number("value", row["value"]) <= 0.0 or math.isnan(float(row["value"])):
            raise UserError("value is not a positive number")
        system = (one := started(row, cache)).configuration.system
        found |= {"preset": system.engine.name, "devices": system.parallelism.devices}
        found["predicted"] = predicted(one, str(row["quantity"]))
    except UserError as error:
        found["reason"] = error.marked
    return found


def predicted(one: Started, quantity: str) -> float:
    """A quantity in the unit of its name.  Raises UserError if it cannot be predicted."""
    if quantity in NOT_PREDICTED:
        raise UserError(NOT_PREDICTED[quantity])
    if quantity not in QUANTITIES:
        raise unknown("quantity", quantity, QUANTITIES)
    return QUANTITIES[quantity](one) / (2.0**30 if quantity.endswith("_gib") else 1.0)


def started(row: Mapping[str, Any], cache: dict[Hashable, Started | UserError]) -> Started:
    """The engine of a row.  cache: of earlier rows.  Raises UserError if it cannot be predicted."""
    model, options = options_of(row)
    gpu = _gpu(row)
    key = (model, gpu, tuple(sorted(options.items())), _context(row))
    if key not in cache:
        try:
            cache[key] = _start(model, gpu, options, _context(row))
        except UserError as error:
            cache[key] = error
    kept = cache[key]
    if isinstance(kept, UserError):
        raise kept
    return kept


def _start(model: str, gpu: str, options: Mapping[str, object], context: float) -> Started:
    one = configuration(model, gpu, **options)
    engine = one.system.engine
    if (known := engine.memory_versions) and known.edge(engine.version):
        span = f"{known.versions[0].first} to {known.newest}"
        raise UserError(f"engine {engine.name}: version {quoted(engine.version)} is not known; known: {span}")
    length = max(context or 1.0, 1.0)
    request = Request(batch_size=1.0, input_len=length, output_len=1.0)
    memory = memory_of(one.model, one.system, request, one.token_budget)
    limits = engine_limits(one.model, one.system, memory)
    return Started(configuration=one, memory=memory, limits=limits, context=length)


def _gpu(row: Mapping[str, Any]) -> str:
    """The chip of a row; for what is stored alike on every chip, a known one where the row names none.

    Raises UserError where the chip matters and is unknown or uncertain ("?").
    """
    name = _text(row, "gpu")
    try:
        if name.endswith("?"):
            raise UserError(f"the source is not sure of the chip: {quoted(name)}")
        return chips.load(name).name
    except UserError:
        if row["quantity"] in ALIKE:
            return ANY_CHIP
        raise


def options_of(row: Mapping[str, Any]) -> tuple[str, dict[str, object]]:
    """Model and options of a row.  Raises UserError for what is not known."""
    model, stored = checkpoint(str(row["model"]))
    tensor, _, pipeline = _text(row, "tp").partition(" pp")
    engine = str(row["engine"])
    options: dict[str, object] = {
        "engine": f"{engine}=={_text(row, 'engine_version')}" if engine == "vllm" else PRESETS.get(engine, engine),
        "quantization": _format(_text(row, "quantization"), stored, model),
        "tensor_parallel_size": f"{number('tp', tensor or '1'):g}",
        "pipeline_parallel_size": f"{number('tp', pipeline or '1'):g}",
        "gpu_memory_utilization": number("utilization", _text(row, "utilization") or "0.9"),
    }
    if _context(row) and engine == "vllm":
        options["max_model_len"] = int(_context(row))
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if _text(row, name):
            options[name] = int(number(name, row[name]))
    return model, options


#: Name of an engine in tables -> its preset.
PRESETS = {"tensorrt-llm": "trtllm"}


def _format(word: str, stored: str, model: str) -> str:
    """--quantization of a row: what the column states, else what the checkpoint's name does."""
    wanted = FORMATS.get(word.lower(), word)
    wanted = wanted or stored
    return "none" if has_narrow_weights(model) else wanted


def _context(row: Mapping[str, Any]) -> float:
    return number("max_model_len", _text(row, "max_model_len") or "0")


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)
