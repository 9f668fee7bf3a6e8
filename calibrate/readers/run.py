"""A run of a benchmark program, as far as its file states it, and the numbers that every reader needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmviewer.core.errors import UserError

Record = Mapping[str, Any]

#: Engine names in benchmark files -> engine preset; the first prefix counts.
ENGINE_PREFIXES = {"sglang": "sglang", "vllm": "vllm", "tensorrt": "trtllm", "trt": "trtllm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests that arrive one after another.  rate: per second.  completed: their number, in duration_s seconds."""

    rate: float
    completed: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRun:
    """One run of a benchmark program; fields that its file does not state are empty or None.

    figures: metric of end-to-end tables -> measured value.  batch: mean number of concurrent requests.
    input_len, output_len: mean tokens of a request.  pipeline: devices among which the layers are divided.
    gpu_layers: layers that ran on the device.  attention: flash or eager.  token_budget: most tokens of a pass; 0: not
    stated.  arrivals: of a run at a finite rate without a limit of concurrent
    requests, None for others.  note: what was derived instead of read.
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
    pipeline: int = 1
    gpu_layers: float | None = None
    attention: str = ""
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
