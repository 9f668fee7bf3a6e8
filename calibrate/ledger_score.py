"""Score predictions on the ledger: error of every figure, summary by source, errors of the last release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from llmviewer.calibrate import e2e, ledger
from llmviewer.calibrate.conformal import errors
from llmviewer.calibrate.e2e_rows import RequestCase, version_of
from llmviewer.calibrate.e2e_runs import CaseGroup, evaluate_groups
from llmviewer.calibrate.ledger import PublishedFigure, PublishedTable
from llmviewer.core import data
from llmviewer.core.frozen import frozen
from llmviewer.language import record
from llmviewer.planning.train import train

SCHEMA = "llmviewer.ledger-score/1"
#: Errors of the last release by source.
RECORD = "calibrate/ledger_record.yaml"
RECORD_SCHEMA = "llmviewer.ledger-record/1"
RECORDED = record.keyed(
    schema=record.choice("schema", (RECORD_SCHEMA,)), release=record.filled, mape=record.mapped(record.NUMBER)
)

#: Numbers of a prediction, in the unit of the published figure.
NUMBERS = ("predicted", "low80", "high80", "low95", "high95", "ideal")


@frozen
class ScoredFigure:
    """A published figure and its prediction, in the unit of the figure; NaN with a reason if not predicted.

    ideal: value on the data-sheet roofline.
    """

    source: PublishedTable
    row: PublishedFigure
    predicted: float
    low80: float
    high80: float
    low95: float
    high95: float
    ideal: float
    basis: str
    reason: str

    @property
    def error(self) -> float:
        """predicted / published - 1."""
        return self.predicted / self.row.value - 1.0

    def document(self) -> dict[str, Any]:
        """JSON object of the figure."""
        row = self.row
        return {
            "source": self.source.name,
            "engine": self.source.engine,
            "preset": self.source.preset,
            "hardware": row.hardware,
            "devices": row.devices,
            "model": row.model,
            "quantization": row.quantization,
            "kv_cache_dtype": row.kv_cache_dtype,
            "batching": row.batching,
            "options": dict((*row.options, *row.train)),
            "batch": row.batch,
            "input_len": row.input_len,
            "output_len": row.output_len,
            "metric": row.metric,
            "published": row.value,
            "predicted": _finite_or_none(self.predicted),
            "low80": _finite_or_none(self.low80),
            "high80": _finite_or_none(self.high80),
            "error": _finite_or_none(self.error),
            "ideal": _finite_or_none(self.ideal),
            "basis": self.basis,
            "reason": self.reason,
        }


def _finite_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


def case_of(source: PublishedTable, row: PublishedFigure) -> RequestCase:
    """Case of a published figure; with the engine's version if the source states it and the preset tells it apart."""
    options = {
        "quantization": row.quantization,
        "kv_cache_dtype": row.kv_cache_dtype,
        "tensor_parallel_size": str(row.tp),
        "pipeline_parallel_size": str(row.pp),
        **dict(row.options),
    }
    stated = source.engine == source.preset
    return RequestCase(
        hardware=row.hardware,
        model=row.model,
        engine=source.preset,
        batching=row.batching,
        options=tuple(options.items()),
        batch=float(row.batch or 0),
        input_len=float(row.input_len),
        output_len=float(row.output_len),
        metric="latency_ms" if row.metric == "speedup" else row.metric,
        version=version_of(f"{source.engine} {source.engine_version}", source.preset) if stated else "",
    )


def score(sources: Sequence[PublishedTable]) -> list[ScoredFigure]:
    """Score every figure of these sources, in their order."""
    pairs = list(ledger.rows(tuple(sources)))
    trained = {at: _trained(row) for at, (_, row) in enumerate(pairs) if row.metric == ledger.TRAINING}
    cases = {at: case_of(source, row) for at, (source, row) in enumerate(pairs) if at not in trained}
    baselines = {at: -1 - at for at, (_, row) in enumerate(pairs) if row.metric == "speedup"}
    cases |= {place: case_of(pairs[at][0], pairs[at][1].without_options) for at, place in baselines.items()}
    found = _predictions(cases) | trained
    found |= {at: _speedup(found[at], found[place]) for at, place in baselines.items()}
    return [_scored_figure(source, row, found[at]) for at, (source, row) in enumerate(pairs)]


def _trained(row: PublishedFigure) -> dict[str, Any]:
    """Prediction columns of a training step."""
    asked = {
        name: value for name, value in row.arguments().items() if name not in ("output_len", "kv_cache_dtype")
    } | dict(row.train)
    step, bound = (train(**asked, efficiency=one) for one in ("calibrated", "ideal"))  # type: ignore[arg-type]
    (low80, high80), (low95, high95) = (step.interval(one) for one in (80, 95))
    return {
        **{"predicted": step.tokens_per_s, "ideal": bound.tokens_per_s, "basis": step.basis},
        **{"low80": low80, "high80": high80, "low95": low95, "high95": high95},
    }


def _predictions(cases: Mapping[int, RequestCase]) -> dict[int, dict[str, Any]]:
    """Prediction columns of every case, or the reason why it is not predicted."""
    found: dict[int, dict[str, Any]] = {}
    for part in evaluate_groups(cases):
        columns = e2e.prediction_columns(part) if isinstance(part, CaseGroup) else {}
        for number, at in enumerate(part.places):
            known = {name: values if isinstance(values, str) else values[number] for name, values in columns.items()}
            found[at] = known or {"reason": getattr(part, "reason", "")}
    return found


def _speedup(own: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """Speedup from two predictions of a request's time; its relative interval is that of the time with options."""
    reason = own.get("reason") or baseline.get("reason")
    if reason:
        return {"reason": reason}
    divisors = {
        **{"predicted": "predicted", "ideal": "ideal"},
        **{"low80": "high80", "high80": "low80", "low95": "high95", "high95": "low95"},
    }
    numerators = {name: baseline["ideal" if name == "ideal" else "predicted"] for name in divisors}
    return {**own, **{name: numerators[name] / own[time] for name, time in divisors.items()}}


def _scored_figure(source: PublishedTable, row: PublishedFigure, known: dict[str, Any]) -> ScoredFigure:
    numbers = {name: float(known.get(name, np.nan)) for name in NUMBERS}
    return ScoredFigure(
        source=source, row=row, basis=str(known.get("basis", "")), reason=str(known.get("reason", "")), **numbers
    )


def summary(rows: Iterable[ScoredFigure]) -> dict[str, Any]:
    """Errors and interval coverage of these figures."""
    listed = list(rows)
    known = [one for one in listed if np.isfinite(one.predicted)]
    if not known:
        return {"rows": 0, "not_predicted": len(listed)}
    ratio, roofline_ratio = (
        np.array([one.row.value / getattr(one, name) for one in known]) for name in ("predicted", "ideal")
    )
    inside = [one.low80 <= one.row.value <= one.high80 for one in known]
    found = {name: round(float(value), 4) for name, value in errors(ratio).as_dict().items()}
    return {
        **found,
        "rows": len(known),
        "covered80": round(float(np.mean(inside)), 4),
        "ideal_mape": round(errors(roofline_ratio).mape, 4),
        "not_predicted": len(listed) - len(known),
    }


def document(rows: Sequence[ScoredFigure]) -> dict[str, Any]:
    """JSON document: summary by source, of runs with techniques and of all figures, and every figure."""
    by_source: dict[str, list[ScoredFigure]] = {}
    for one in rows:
        by_source.setdefault(one.source.name, []).append(one)
    sources = [
        {
            "source": name,
            "title": listed[0].source.title,
            "engine": listed[0].source.engine,
            "preset": listed[0].source.preset,
            "hardware": sorted({one.row.hardware for one in listed}),
            "address": listed[0].source.source,
            "conditions": listed[0].source.conditions,
            **summary(listed),
        }
        for name, listed in by_source.items()
    ]
    return {
        "schema": SCHEMA,
        "sources": sources,
        "with_options": summary(one for one in rows if one.row.options and one.row.metric != ledger.TRAINING),
        "total": summary(rows),
        "rows": [one.document() for one in rows],
    }


def recorded_errors() -> dict[str, float]:
    """MAPE of every source at the last release."""
    path = data.folder(RECORD)
    return dict(record.of_file(path.name, RECORDED, data.read_yaml(path))["mape"])


def record_text(found: dict[str, Any]) -> str:
    """Text of RECORD with the current errors, with which the next release is compared."""
    from llmviewer.core.version import __version__

    lines = [f"schema: {RECORD_SCHEMA}", f"release: {__version__}", "mape:"]
    lines += [f"  {source['source']}: {source['mape']:.4f}" for source in found["sources"] if source["rows"]]
    return "\n".join(lines) + "\n"
