"""Predict measured layers and small models from the config of each row: validation from kernels to models.

These rows are never fitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer import api
from llmviewer.analysis.evaluation import Evaluation, evaluate
from llmviewer.analysis.system import System
from llmviewer.calibrate.predict import KERNEL_INFO_COLUMNS, KERNEL_PREDICTION_COLUMNS, SHORT_US, PredictionOptions
from llmviewer.calibrate.sources import WHOLE_TABLES, TableSource
from llmviewer.calibrate.tables import engine_of
from llmviewer.calibrate.usable import usable_rows
from llmviewer.core import dtypes
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.models.load import parse
from llmviewer.result import interval
from llmviewer.timing import engine
from llmviewer.timing.calibrated import Calibrated, calibrated
from llmviewer.timing.engine import KERNELS_ONLY, Engine

if TYPE_CHECKING:
    import pandas as pd

#: Engine preset of rows without a CUDA graph, and suffix of the engine whose kernels are used.
EAGER_ENGINE = "torch"
UNFUSED_SUFFIX = "-unfused"
#: Columns that are constant within a group: one model, one stage, one launch mode.
GROUP_COLUMNS = ("device", "engine", "model", "dtype", "graph", "stage", "layers")


@frozen(eq=False)
class PredictedStage:
    """Times of forward passes [s]: predicted, interval bounds (shape (4, points)), data-sheet roofline."""

    predicted: Array
    bounds: Array
    ideal: Array


def predict(frame: pd.DataFrame, table: str, options: PredictionOptions) -> pd.DataFrame:
    """Rows of `block` or `model` with the prediction columns of kernel tables; no row is dropped."""
    usable, reasons = usable_rows(frame, table)
    predictions = without_predictions(frame, "")
    predictions.loc[reasons.index, "reason"] = reasons
    if usable.empty:
        return predictions
    words = usable[["model", "dtype", "stage"]].agg(" ".join, axis=1)
    graph = np.where(usable["graph"].astype(bool), " graph", "")
    predictions.loc[usable.index, "counted_as"] = f"{table} " + words + graph
    layers = [_layers_in(config) for config in usable["config"]]
    for _, group in usable.assign(layers=layers).groupby(list(GROUP_COLUMNS), dropna=False, sort=True):
        try:
            priced, basis = _predict_group(group, table, options)
        except UserError as error:
            predictions.loc[group.index, "reason"] = error.marked
            continue
        low95, low80, high80, high95 = priced.bounds
        for name, seconds in zip(
            KERNEL_PREDICTION_COLUMNS, (priced.predicted, low80, high80, low95, high95), strict=True
        ):
            predictions.loc[group.index, name] = seconds * 1e6
        predictions.loc[group.index, "ideal_us"] = priced.ideal * 1e6
        predictions.loc[group.index, "regime"] = np.where(
            group["latency_us"] < SHORT_US, "< 20 us", str(group["stage"].iloc[0])
        )
        predictions.loc[group.index, "basis"] = basis
    return predictions


def _layers_in(config: object) -> int:
    """Number of layers that a config states; 0 if it states none."""
    layers = config.get("num_hidden_layers") if isinstance(config, Mapping) else None
    return layers if isinstance(layers, int) else 0


def without_predictions(frame: pd.DataFrame, reason: str) -> pd.DataFrame:
    """The rows with empty prediction columns."""
    empty: dict[str, Any] = dict.fromkeys((*KERNEL_PREDICTION_COLUMNS, KERNEL_INFO_COLUMNS[0]), np.nan)
    return frame.assign(**empty, **dict.fromkeys(KERNEL_INFO_COLUMNS[1:-1], ""), reason=reason, counted_as="")


def _predict_group(group: pd.DataFrame, table: str, options: PredictionOptions) -> tuple[PredictedStage, str]:
    first = group.iloc[0]
    on = options.hardware or str(first["device"]).replace("_", "-")
    chip = on if isinstance(on, Chip) else specs.load(on)
    if not isinstance(first["config"], Mapping):
        raise UserError("rows without the config of their model")
    model = parse(first["config"], str(first["model"]), dtype=dtypes.get_dtype(str(first["dtype"])).name)
    engine_preset = engine_for(chip, graph=bool(first["graph"]), host=str(first["device"]) == "cpu")
    efficiency = calibrated(chip, engine_of(first["engine"]) + UNFUSED_SUFFIX, options.profile)
    plain = api.system(chip, api.options_of({"efficiency": "ideal"}))
    system = replace(plain, efficiency=efficiency, engine=engine_preset)
    evaluation = evaluate(model, system, _step(group))
    if table == "block":
        evaluation = _layers_only(evaluation, engine_preset)
    priced = _predicted(evaluation, system, efficiency, len(group))
    found = dict.fromkeys(f"{known.basis} ({known.chip})" for known in efficiency.selected.values())
    return priced, f"{', '.join(found)}; engine {engine_preset.name}"


def engine_for(chip: Chip, *, graph: bool, host: bool) -> Engine:
    """Engine of rows: CPUs and CUDA graphs have no launch time in addition to the timed kernels."""
    return engine.load(EAGER_ENGINE) if not graph and not host and EAGER_ENGINE in engine.names() else KERNELS_ONLY


def _step(group: pd.DataFrame) -> Step:
    batch = group["batch"].to_numpy(dtype=np.float64)
    if group["stage"].iloc[0] == "prefill":
        return prefill(batch, group["seq"].to_numpy(dtype=np.float64))
    return decode(batch, group["context"].to_numpy(dtype=np.float64) - 1.0)


def _predicted(evaluation: Evaluation, system: System, efficiency: Calibrated, points: int) -> PredictedStage:
    """Times of an evaluation; the interval is the one that `analyze` prints for a stage."""

    def per_point(count: Count) -> Array:
        return np.asarray(count * np.ones(points))

    ratios = interval.bound_ratios(evaluation, efficiency, system.chip)
    predicted = per_point(evaluation.time_s)
    bounds = interval.sum_bounds(evaluation, efficiency, ratios, per_point, predicted)
    return PredictedStage(predicted=predicted, bounds=bounds, ideal=per_point(evaluation.ideal_time_s))


def _layers_only(evaluation: Evaluation, engine_preset: Engine) -> Evaluation:
    """The evaluation without embedding, last norm and head; engine time is what the host takes to launch the rest."""
    layers = replace(evaluation, rows=tuple(row for row in evaluation.rows if row.block.is_layer), served=())
    launch_s = engine_preset.constants.get("eager", 0.0) * 1e-6 * sum(row.block.repeats for row in layers.rows)
    waiting = np.maximum(launch_s - layers.time_s, 0.0)
    return replace(layers, served=(("host", waiting),))


def rows(sources: Sequence[TableSource], options: PredictionOptions) -> Iterator[dict[str, Any]]:
    """Measured layers and models beside their predictions, as rows of a report."""
    for source in sources:
        for table in WHOLE_TABLES:
            if table in source.tables:
                yield from report_rows(predict(source.tables[table], table, options), table)


def report_rows(predictions: pd.DataFrame, table: str) -> list[dict[str, Any]]:
    """Rows of a report [us].  error: predicted / measured - 1, None if not predicted."""
    found = []
    for _, row in predictions.iterrows():
        known = bool(np.isfinite(row["predicted_us"]))
        tokens = row["seq"] if row["stage"] == "prefill" else row["context"]
        measured, predicted = float(row["latency_us"]), float(row["predicted_us"])
        found.append({
            "table": table, "model": str(row["model"]), "layers": _layers_in(row["config"]),
            "dtype": str(row["dtype"]), "stage": str(row["stage"]), "graph": bool(row["graph"]),
            "batch": int(row["batch"]), "tokens": int(tokens), "stable": bool(row.get("stable", True)),
            "measured_us": measured, "predicted_us": round(predicted, 3) if known else None,
            "interval_80_us": [round(float(row[name]), 3) for name in ("low80_us", "high80_us")] if known else None,
            "error": round(predicted / measured - 1.0, 4) if known else None, "basis": str(row["basis"]),
            "reason": str(row["reason"]),
        })  # fmt: skip
    return found


def without_samples(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows for a CSV or Parquet file: configs as JSON text, single samples removed."""
    changed = frame.drop(columns=[name for name in ("samples_us",) if name in frame.columns])
    return changed.assign(config=[json.dumps(config) for config in frame["config"]])
