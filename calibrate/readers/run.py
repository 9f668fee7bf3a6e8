"""A run of a benchmark program as its file states it, completed by what the user states, as rows of tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmviewer.calibrate.e2e_rows import QUANTIZATIONS, checkpoint, load
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import decode
from llmviewer.hardware import specs
from llmviewer.timing import engine

Record = Mapping[str, Any]

#: Engine names in benchmark files -> engine preset; the first prefix counts.
ENGINE_PREFIXES = {"sglang": "sglang", "vllm": "vllm", "tensorrt": "trtllm", "trt": "trtllm"}


@frozen
class Arrivals:
    """Requests that arrive one after another.  rate: per second.  completed: their number, in duration_s seconds."""

    rate: float
    completed: float
    duration_s: float


@frozen
class BenchmarkRun:
    """One run of a benchmark program; fields that its file does not state are empty or None.

    figures: metric of end-to-end tables -> measured value. batch: mean number of concurrent requests. input_len,
    output_len: mean tokens of a request. tensor: devices of a tensor group. pipeline: devices among which the
    layers are divided. gpu_layers: layers that ran on the device. attention: flash or eager. backend: of llama.cpp.
    token_budget: most tokens of a pass; 0: not stated. arrivals: of a run at a finite rate without a limit of
    concurrent requests, None for others. note: what was derived instead of read.
    """

    program: str
    figures: Mapping[str, float]
    batching: str = "continuous"
    model: str = ""
    hardware: str = ""
    engine: str = ""
    weight_dtype: str = ""
    kv_dtype: str = ""
    batch: float | None = None
    input_len: float | None = None
    output_len: float | None = None
    tensor: int = 1
    pipeline: int = 1
    gpu_layers: float | None = None
    attention: str = ""
    backend: str = ""
    token_budget: int = 0
    arrivals: Arrivals | None = None
    note: str = ""


def number(record: Record, name: str) -> float | None:
    """A field as a positive finite number (the text `inf` and zero count as absent)."""
    try:
        value = float(record.get(name))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return value if 0.0 < value < math.inf else None


def at_path(record: Any, path: str) -> Any:
    """The value at a path of names in an object, such as `config.backend.model`; None where there is none."""
    for part in path.split("."):
        record = record.get(part) if isinstance(record, Mapping) else None
    return record


def figures_of(record: Record, names: Mapping[str, str]) -> dict[str, float]:
    """The figures that a record states.  names: metric -> field."""
    found = {metric: number(record, name) for metric, name in names.items()}
    return {metric: value for metric, value in found.items() if value is not None}


def engine_named(text: object) -> str:
    """Engine preset that a benchmark file names; empty for a name that says only which protocol was used."""
    word = str(text or "").lower()
    return next((preset for start, preset in ENGINE_PREFIXES.items() if word.startswith(start)), "")


def concurrency(rate: float | None, latency_s: float | None, most: float | None) -> tuple[float | None, str]:
    """Mean number of requests in flight by Little's law, completed requests per second x mean latency; and a note.

    most: limit of concurrent requests that the benchmark kept, which arrivals at a finite rate may not reach.
    """
    if rate is None or latency_s is None:
        return most, ""
    mean = rate * latency_s
    if most is not None and mean >= most:
        return most, ""
    return max(mean, 1.0), f"{max(mean, 1.0):.3g} concurrent requests: completed per second x mean latency"


def without_speculation(accepted: float | None) -> None:
    """Raise UserError for a run with speculative decoding, whose draft the file does not state."""
    if accepted is not None and accepted > 1.0:
        raise UserError(
            f"the run used speculative decoding ({accepted:.3g} tokens a step); its draft is not in the file, and "
            "tokens one by one are no prediction of it"
        )


#: Field of Stated -> its meaning and its option in messages.
NEEDED = {
    "hardware": ("the chip", "--hardware NAME"),
    "model": ("the model", "--model NAME"),
    "engine": ("the engine", "--engine NAME"),
    "batch_size": ("the number of concurrent requests", "--batch-size N"),
    "input_len": ("the prompt length", "--input-len N"),
    "output_len": ("the output length", "--output-len N"),
}


@frozen
class Stated:
    """Facts of a benchmark that the user states, which come before those of its file; empty or zero: nothing.

    Names and numbers are those of the options of `analyze`; batch_size is the number of concurrent requests.
    stage, passes: of a profile, prefill or decode, and the number of forward passes that it covers.
    """

    hardware: str = ""
    model: str = ""
    engine: str = ""
    quantization: str = ""
    kv_cache_dtype: str = ""
    tensor_parallel_size: int = 0
    pipeline_parallel_size: int = 0
    batch_size: int = 0
    input_len: int = 0
    output_len: int = 0
    stage: str = ""
    passes: int = 0


def rows(run: BenchmarkRun, stated: Stated, where: str) -> list[dict[str, Any]]:
    """Rows of an end-to-end table, one for each figure of a run.  where: the file, for messages.

    Raises UserError that names the options for what neither the file nor the user states.
    """
    known: dict[str, Any] = {
        "hardware": stated.hardware or run.hardware,
        "model": stated.model or run.model,
        "engine": stated.engine or run.engine,
        "batch_size": stated.batch_size or run.batch,
        "input_len": stated.input_len or run.input_len,
        "output_len": stated.output_len or run.output_len,
    }
    missing = [NEEDED[name] for name, value in known.items() if value is None or value == ""]
    if missing:
        what, options = zip(*missing, strict=True)
        raise UserError(f"{where} ({run.program}) does not state {', '.join(what)}: add {' '.join(options)}")
    _check_names(known, run, stated, where)
    figures = dict(run.figures)
    if "requests_s" in figures:
        figures["throughput_tok_s"] = figures.pop("requests_s") * float(known["output_len"])
    if not figures:
        raise UserError(f"{where} ({run.program}) has no figure that can be compared")
    common = {
        "source": run.program,
        "device": known["hardware"],
        "model": known["model"],
        "engine": known["engine"],
        "preset": known["engine"],
        "tp": stated.tensor_parallel_size or run.tensor,
        "pp": stated.pipeline_parallel_size or run.pipeline,
        "weight_dtype": "" if stated.quantization else run.weight_dtype,
        "quantization": stated.quantization,
        "kv_dtype": stated.kv_cache_dtype or run.kv_dtype,
        "batch": float(known["batch_size"]),
        "batching": run.batching,
        "input_len": float(known["input_len"]),
        "output_len": float(known["output_len"]),
        "note": run.note,
        "attention": run.attention,
        "backend": run.backend,
        "max_num_batched_tokens": float(run.token_budget),
    }
    return [{**common, "metric": metric, "value": value} for metric, value in figures.items()]


def _check_names(known: dict[str, Any], run: BenchmarkRun, stated: Stated, where: str) -> None:
    """Raise UserError for an unknown name, with the option that replaces one of the file."""
    for name, find in (("hardware", specs.load), ("model", checkpoint), ("engine", engine.load)):
        try:
            find(str(known[name]))
        except UserError as error:
            from_file = "" if getattr(stated, name) else f"; {NEEDED[name][1]} replaces what {where} states"
            raise UserError(f"{error.marked}{from_file}") from error
    weights = run.weight_dtype
    if weights and not stated.quantization and weights not in QUANTIZATIONS:
        raise UserError(f"{where}: no stored bits are known for '{weights}'; add --quantization NAME")
    if run.gpu_layers is not None:
        graph = load(checkpoint(str(known["model"]))[0]).graph(decode(1.0, 1.0))
        layers = sum(block.repeats for block in graph.blocks if block.is_layer)
        if run.gpu_layers < layers:
            raise UserError(
                f"{where}: {run.gpu_layers:g} of {layers:g} layers ran on the device; the rest on the processor is not "
                "predicted"
            )
