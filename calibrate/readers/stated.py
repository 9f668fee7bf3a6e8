"""Runs of benchmark files as rows of end-to-end tables, completed by what the user states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmviewer.calibrate.e2e_rows import QUANTIZATIONS, checkpoint, load
from llmviewer.calibrate.readers.run import BenchmarkRun
from llmviewer.core.errors import UserError
from llmviewer.core.workload import decode
from llmviewer.hardware import specs
from llmviewer.timing import engine

#: Field of Stated -> its meaning and its option in messages.
NEEDED = {
    "hardware": ("the chip", "--hardware NAME"),
    "model": ("the model", "--model NAME"),
    "engine": ("the engine", "--engine NAME"),
    "batch_size": ("the number of concurrent requests", "--batch-size N"),
    "input_len": ("the prompt length", "--input-len N"),
    "output_len": ("the output length", "--output-len N"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
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
        "tp": stated.tensor_parallel_size or 1,
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
