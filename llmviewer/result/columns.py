"""Points as columns: what sweeps write and frames hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.core.counts import Count

#: What fills the memory, and metrics of Analysis, that every view shows.
PARTS = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "framework_bytes", "total_bytes")
RESULT_METRICS = ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "prefill_mfu", "decode_mbu")


def columns(a: Analysis, efficiency: str, techniques: Mapping[str, str]) -> dict[str, Any]:
    """Arrays over points, by column name.  efficiency, techniques: as asked for."""
    points = a.schedule.points
    point = np.ones(points)
    found: dict[str, Any] = {
        "model": [a.model.name] * points,
        "hardware": [a.system.chip.name] * points,
        "dtype": [a.model.dtype.name] * points,
        "efficiency": [efficiency] * points,
        "engine": ["" if a.calibration is None else a.system.engine.name] * points,
        **{name: [text] * points for name, text in techniques.items()},
        "batch_size": (a.request.batch_size * point).astype(int),
        "input_len": (a.request.input_len * point).astype(int),
        "output_len": (a.request.output_len * point).astype(int),
        "devices": (a.system.parallelism.devices * point).astype(int),
    }
    found |= {name: np.asarray(getattr(a, name)) * point for name in RESULT_METRICS}
    found |= {name: values * point for name, values in _round(a).items()}
    rate = found["output_tokens_per_s"]
    found["output_tokens_per_s_per_user"] = rate / found["batch_size"]
    found["output_tokens_per_s_per_device"] = rate / a.system.parallelism.devices
    return found | _bounds(a) | _stages(a) | _memory(a)


def _round(a: Analysis) -> dict[str, Count]:
    """Tokens guessed in a round and tokens it brings in the mean; of plain decoding 0 and 1."""
    if a.system.scheme is None:
        return {"drafted_tokens": 0.0, "tokens_per_round": 1.0}
    from llmviewer.result import speculation_report

    return {
        "drafted_tokens": speculation_report.drafted_tokens(a),
        "tokens_per_round": speculation_report.tokens_per_round(a),
    }


def _bounds(a: Analysis) -> dict[str, Any]:
    """Ends of the 80 % intervals of calibrated times, by column name."""
    if a.calibration is None:
        return {}
    from llmviewer.result import interval

    low, high = interval.LEVELS["80"]
    found = interval.of_metrics(a)
    found |= {f"{stage}_time_s": interval.of_stage(a, stage) for stage in ("prefill", "decode")}
    return {
        f"{name.removesuffix('_s')}_{end}80_s": bounds[at]
        for name, bounds in found.items()
        for end, at in (("low", low), ("high", high))
    }


def _stages(a: Analysis) -> dict[str, Any]:
    """Times and counts of prefill and of the decode step shown."""
    return {
        f"{stage}_{name}": pick(getattr(a.evaluation, name))
        for stage, pick in (("prefill", a.schedule.prefill), ("decode", a.schedule.decode))
        for name in ("time_s", "flops", "matmul_flops", "traffic_bytes")
    }


def _memory(a: Analysis) -> dict[str, Any]:
    """What memory holds and allows."""
    point = np.ones(a.schedule.points)
    return {
        **{name: getattr(a.memory, name) * point for name in (*PARTS, "capacity_bytes", "budget_bytes")},
        "bandwidth_bytes_per_s": a.system.chip.bandwidth_bytes_per_s * point,
        "fits": (a.memory.fits * point).astype(bool),
    }
