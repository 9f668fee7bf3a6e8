"""Measured layers and small models, predicted by our own model of the row's config: the loop from kernels to models.

Nothing is fitted on these rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer import api
from llmviewer.analysis.evaluation import Evaluation, evaluate
from llmviewer.analysis.system import System
from llmviewer.calibrate.predict import OTHERS, PREDICTED, SHORT_US, PredictionOptions
from llmviewer.calibrate.tables import engine_of
from llmviewer.core import dtypes
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.models.load import parse
from llmviewer.timing import engine
from llmviewer.timing.calibrated import Calibrated, calibrated
from llmviewer.timing.engine import KERNELS, Engine

if TYPE_CHECKING:
    import pandas as pd

#: What launches the kernels of rows without a CUDA graph, where a preset says what that costs; whose kernels it runs.
EAGER = "torch"
UNFUSED = "-unfused"
#: Columns that must hold one value in a group: one model, one stage, one way to launch.
CHOICES = ("device", "engine", "model", "dtype", "graph", "stage", "layers")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictedStage:
    """Seconds of passes: predicted, bounds (95 and 80 %), on the data sheet's roofline."""

    predicted: Array
    bounds: Array
    ideal: Array


def predict(frame: pd.DataFrame, table: str, asked: PredictionOptions) -> pd.DataFrame:
    """Rows of `block` or `model` with the columns that predictions of kernels have; none is dropped."""
    answered = unanswered(frame, "")
    words = frame[["model", "dtype", "stage"]].astype(str).agg(" ".join, axis=1)
    answered["counted_as"] = f"{table} " + words + np.where(frame["graph"].astype(bool), " graph", "")
    layers = [config.get("num_hidden_layers", 0) if isinstance(config, Mapping) else 0 for config in frame["config"]]
    for _, group in frame.assign(layers=layers).groupby(list(CHOICES), dropna=False, sort=True):
        try:
            priced, basis = _priced(group, table, asked)
        except UserError as error:
            answered.loc[group.index, "reason"] = str(error)
            continue
        low95, low80, high80, high95 = priced.bounds
        for name, seconds in zip(PREDICTED, (priced.predicted, low80, high80, low95, high95), strict=True):
            answered.loc[group.index, name] = seconds * 1e6
        answered.loc[group.index, "ideal_us"] = priced.ideal * 1e6
        answered.loc[group.index, "regime"] = np.where(
            group["latency_us"] < SHORT_US, "< 20 us", str(group["stage"].iloc[0])
        )
        answered.loc[group.index, "basis"] = basis
    return answered


def unanswered(frame: pd.DataFrame, reason: str) -> pd.DataFrame:
    """The rows with empty columns of predictions."""
    empty: dict[str, Any] = dict.fromkeys((*PREDICTED, OTHERS[0]), np.nan)
    return frame.assign(**empty, **dict.fromkeys(OTHERS[1:-1], ""), reason=reason, counted_as="")


def _priced(group: pd.DataFrame, table: str, asked: PredictionOptions) -> tuple[PredictedStage, str]:
    first = group.iloc[0]
    on = asked.hardware or str(first["device"]).replace("_", "-")
    chip = on if isinstance(on, Chip) else specs.load(on)
    if not isinstance(first["config"], Mapping):
        raise UserError("rows without the config of their model")
    model = parse(first["config"], str(first["model"]), dtype=dtypes.named(str(first["dtype"])).name)
    serving = served_by(chip, graph=bool(first["graph"]), host=str(first["device"]) == "cpu")
    efficiency = calibrated(chip, engine_of(first["engine"]) + UNFUSED, asked.own)
    plain = api.system(chip, api.options_of({"efficiency": "ideal"}))
    system = replace(plain, efficiency=efficiency, engine=serving)
    evaluation = evaluate(model, system, _step(group))
    priced = _sums(evaluation, system, efficiency, len(group), alone=table == "block")
    found = dict.fromkeys(f"{known.basis} ({known.chip})" for known in efficiency.known.values())
    return priced, f"{', '.join(found)}; engine {serving.name}"


def served_by(chip: Chip, *, graph: bool, host: bool) -> Engine:
    """The engine of rows: a processor and a CUDA graph launch nothing beside the kernels that were timed."""
    return engine.load(EAGER) if not graph and not host and EAGER in engine.names() else KERNELS


def _step(group: pd.DataFrame) -> Step:
    batch = group["batch"].to_numpy(dtype=np.float64)
    if group["stage"].iloc[0] == "prefill":
        return prefill(batch, group["seq"].to_numpy(dtype=np.float64))
    return decode(batch, group["context"].to_numpy(dtype=np.float64) - 1.0)


def _sums(
    evaluation: Evaluation, system: System, efficiency: Calibrated, points: int, *, alone: bool
) -> PredictedStage:
    """Over all operators; alone: those of the layers, without embedding, last norm and head.

    Kernels of one fit err together, different fits apart, as in llmviewer.interval.
    """
    ones = np.ones(points)
    predicted, ideal, off = 0.0 * ones, 0.0 * ones, dict[str, Array]()
    for row in evaluation.rows:
        if alone and row.block.scope == "model":
            continue
        seconds = row.timing.time_s * float(row.block.repeats) * ones
        ratios = efficiency.interval(row.operator, system.chip, row.timing)
        fit = efficiency.basis(row.operator).fit.key
        off[fit] = off.get(fit, 0.0) + (ratios - 1.0) * seconds
        predicted, ideal = predicted + seconds, ideal + row.ideal.time_s * float(row.block.repeats)
    if alone:
        launched = sum(row.block.repeats for row in evaluation.rows if row.block.scope != "model")
        host = system.engine.constants.get("eager", 0.0) * 1e-6 * launched
        predicted = np.maximum(predicted, host)
    else:
        predicted = predicted + sum(term for _, term in evaluation.served)
    spread = np.sqrt(sum(deviation**2 for deviation in off.values()))
    signs = np.array([-1.0, -1.0, 1.0, 1.0])[:, None]
    return PredictedStage(predicted=predicted, bounds=np.maximum(predicted + signs * spread, 0.0), ideal=ideal)


def described(answered: pd.DataFrame, table: str) -> list[dict[str, Any]]:
    """Rows as a report lists them [us]; error: predicted / measured - 1, None where nothing was predicted."""
    found = []
    for _, row in answered.iterrows():
        known = bool(np.isfinite(row["predicted_us"]))
        tokens = row["seq"] if row["stage"] == "prefill" else row["context"]
        measured, predicted = float(row["latency_us"]), float(row["predicted_us"])
        found.append({
            "table": table, "model": str(row["model"]), "layers": int(row["config"]["num_hidden_layers"]),
            "dtype": str(row["dtype"]), "stage": str(row["stage"]), "graph": bool(row["graph"]),
            "batch": int(row["batch"]), "tokens": int(tokens), "stable": bool(row.get("stable", True)),
            "measured_us": measured, "predicted_us": round(predicted, 3) if known else None,
            "interval_80_us": [round(float(row[name]), 3) for name in ("low80_us", "high80_us")] if known else None,
            "error": round(predicted / measured - 1.0, 4) if known else None, "basis": str(row["basis"]),
            "reason": str(row["reason"]),
        })  # fmt: skip
    return found


def flat(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows as a file of columns keeps them: configs as text, without single samples."""
    changed = frame.drop(columns=[name for name in ("samples_us",) if name in frame.columns])
    return changed.assign(config=[json.dumps(config) for config in frame["config"]])
