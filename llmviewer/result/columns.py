"""Columns of data frames and CSV files: of a result with one entry per point, of nested fields by dotted names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.core.errors import missing_extra
from llmviewer.hardware import hypothetical
from llmviewer.language.quantity import MEMORY, METRICS

if TYPE_CHECKING:
    import pandas as pd

    from llmviewer.analysis.analysis import Analysis
    from llmviewer.analysis.memory import Memory
    from llmviewer.core.counts import Array, Count
    from llmviewer.hardware.chip import Chip
    from llmviewer.result.figures import Figures

#: Prefix of the columns of figures that are set.
SET = "set."
#: Keys of an interval: level [%] -> lower and upper bound [s].
INTERVAL_LEVELS = {"80", "95"}
#: Column -> field of `Parallelism`: sizes are numbers, also where an option's text says more.
PARALLEL_SIZES = {f"{name}_parallel_size": name for name in ("tensor", "data", "expert", "context", "pipeline")}


def columns(figures: Figures, efficiency: str, techniques: Mapping[str, str]) -> dict[str, Any]:
    """Column name -> array over points.  figures: of the analysis.  efficiency, techniques: as given by the user.

    Texts are the same at all points; their arrays hold one element (strides of zero), which `constant` returns.
    """
    a = figures.analysis
    point = np.ones(a.schedule.points)
    texts = {
        "model": a.model.name,
        "hardware": a.system.hardware,
        "dtype": a.model.dtype.name,
        "efficiency": efficiency,
        "engine": "" if a.calibration is None else a.system.engine.name_on(a.system.chip),
        **techniques,
    }
    found: dict[str, Any] = {name: np.broadcast_to(np.array(text, object), point.shape) for name, text in texts.items()}
    found |= {name: (getattr(a.system.parallelism, size) * point).astype(int) for name, size in PARALLEL_SIZES.items()}
    found |= {
        "microbatches": (a.system.parallelism.microbatches * point).astype(int),
        "batch_size": (a.request.batch_size * point).astype(int),
        "input_len": (a.request.input_len * point).astype(int),
        "output_len": (a.request.output_len * point).astype(int),
        "devices": (a.system.parallelism.devices * point).astype(int),
    }
    found |= {name: figures[name] for name in METRICS}
    found |= {name: values * point for name, values in _round_columns(a).items()}
    found |= {f"{SET}{name}": value * point for name, value in hypothetical.numbers(a.system.chip, techniques).items()}
    found |= {f"total_{name}": values * point for name, values in totals(a).items()}
    return found | _interval_columns(a) | _stage_columns(a) | memory_columns(a.memory, a.system.chip, point)


#: Options whose columns are always there.
ALWAYS_SHOWN = ("quantization", "kv_cache_dtype")


def without_defaults(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame without columns of techniques that every row has at their defaults; files hold all."""
    from llmviewer.techniques.registry import TECHNIQUES  # no column needs it before

    def is_default(name: Any) -> bool:
        return all(str(value) == TECHNIQUES[name].default for value in frame[name].unique())

    optional = [name for name in frame if name in TECHNIQUES and name not in ALWAYS_SHOWN]
    return frame.drop(columns=[name for name in optional if is_default(name)])


def totals(a: Analysis) -> dict[str, Count]:
    """Work [FLOP] and device-memory traffic [byte] of one device in a whole request: prefill and all decode steps.

    Unknown where devices have unlike shares of the layers, and where requests come and go.
    """
    if a.system.split is not None or a.running is not None:
        return {"flops": np.nan, "traffic_bytes": np.nan}
    return {
        "flops": a.of_request(lambda one: one.passes.flops),
        "traffic_bytes": a.of_request(lambda one: one.passes.traffic_bytes),
    }


def figure_text(name: str, value: float) -> str:
    """A figure of a hypothetical chip with its unit.  name: of the figure, or of its column."""
    return hypothetical.amount(name.removeprefix(SET), float(value))


def constant(values: Any) -> str | None:
    """The text that a column of `columns` has at all points; None for numbers."""
    return str(values[0]) if values.dtype == object else None


def parquet_library() -> Any:
    """The module of pyarrow that reads and writes Parquet files.  Raises UserError if it is not installed."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise missing_extra("Parquet files need pyarrow", "parquet") from error
    return parquet


def arrow_table(columns: Mapping[str, Any], shown: Callable[[str], str] = str) -> Any:
    """The columns as an Arrow table; a text is stored once, and NaN is null.  shown: changes texts."""
    import pyarrow as pa

    arrays = {}
    for name, values in columns.items():
        text = constant(values)
        arrays[name] = pa.array(values, from_pandas=True) if text is None else pa.repeat(shown(text), len(values))
    return pa.table(arrays)


def joined(pieces: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    """The columns of one configuration in several pieces, NaN where it lacks one.  names: of the columns, in order."""
    points = sum(len(piece["batch_size"]) for piece in pieces)
    found: dict[str, Any] = {}
    for name in names:
        first = pieces[0].get(name)
        if first is None:
            found[name] = np.full(points, np.nan)
        elif constant(first) is not None:
            found[name] = np.broadcast_to(first[:1], (points,))
        else:
            found[name] = np.concatenate([piece[name] for piece in pieces])
    return found


def flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under dotted names, the bounds of an interval under names like `ttft_low80_s`."""
    flattened: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping) and value.keys() == INTERVAL_LEVELS:
            stem = name.removesuffix("_interval_s").removesuffix("_s")
            for level, bounds in value.items():
                flattened |= {f"{stem}_{end}{level}_s": t for end, t in zip(("low", "high"), bounds, strict=True)}
        elif isinstance(value, Mapping) and value:
            flattened.update(flat(value, f"{prefix}{name}."))
        elif isinstance(value, (list, tuple)):
            flattened[prefix + name] = " ".join(map(str, value))
        else:
            flattened[prefix + name] = value if not isinstance(value, Mapping) else None
    return flattened


def _round_columns(a: Analysis) -> dict[str, Count]:
    """Draft tokens and mean output tokens per round; 0 and 1 for plain decoding."""
    if a.system.scheme is None:
        return {"drafted_tokens": 0.0, "tokens_per_round": 1.0}
    from llmviewer.result import speculation_report

    return {
        "drafted_tokens": speculation_report.drafted_tokens(a),
        "tokens_per_round": speculation_report.tokens_per_round(a),
    }


def _interval_columns(a: Analysis) -> dict[str, Any]:
    """Column name -> bounds of the 80 % intervals of calibrated times; empty for ideal times."""
    if a.calibration is None:
        return {}
    from llmviewer.result import interval

    low, high = interval.LEVELS["80"]
    found = interval.metric_bounds(a)
    found |= {f"{stage}_time_s": interval.stage_bounds(a, stage) for stage in _timed_stages(a)}
    return {
        f"{name.removesuffix('_s')}_{end}80_s": bounds[at]
        for name, bounds in found.items()
        for end, at in (("low", low), ("high", high))
    }


def _timed_stages(a: Analysis) -> tuple[str, ...]:
    """The stages that the model runs; an encoder never decodes."""
    return ("prefill",) if a.model.is_encoder else ("prefill", "decode")


def _stage_columns(a: Analysis) -> dict[str, Any]:
    """Times and counts of prefill and of the decode step shown, by column name."""
    names = ("time_s", "ideal_time_s", "flops", "matmul_flops", "traffic_bytes")
    totals = {name: getattr(a.evaluation, name) for name in names}
    return {
        f"{stage}_{name}": pick(total) if stage in _timed_stages(a) else np.zeros(a.schedule.points)
        for stage, pick in (("prefill", a.schedule.prefill), ("decode", a.schedule.decode))
        for name, total in totals.items()
    }


def memory_columns(memory: Memory, chip: Chip, point: Array) -> dict[str, Any]:
    """Memory use, capacity and bandwidth, by column name.  point: ones, one per point."""
    return {
        **{name: getattr(memory, name) * point for name in (*MEMORY, "capacity_bytes", "budget_bytes")},
        "bandwidth_bytes_per_s": chip.bandwidth_bytes_per_s * point,
        "fits": (memory.fits * point).astype(bool),
    }


def json_parts(chunks: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The JSON document of a sweep, `{"schema", "rows": [...]}`, in parts: one row per line, null for undefined values.

    chunks: columns of points, at least of one."""
    import pandas as pd

    separator = '{"schema": "llmviewer.sweep/1", "rows": [\n'  # with the first rows, after their errors
    for columns in chunks:
        lines = pd.DataFrame(columns).to_json(orient="records", lines=True, double_precision=15).strip()
        yield separator + lines.replace("\n", ",\n")
        separator = ",\n"
    yield "\n]}\n"
