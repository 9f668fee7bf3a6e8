"""A fitted engine preset as its file: constants, how wrong they were on rows that they did not see, quantiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from llmviewer.calibrate.conformal import errors, quantiles
from llmviewer.core.counts import Array
from llmviewer.timing import engine
from llmviewer.timing.engine import Engine

#: Rows of a metric from which its quantiles are kept.
LEAST_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """A fitted engine, and the ratios measured / predicted of every row when its configuration was held out.

    places: rows of the table.  possible: not below the bound of the data sheet.  apart: the same by what was left out.
    """

    engine: Engine
    places: Array
    ratio: Array
    possible: Array
    bases: Array
    metrics: Array
    apart: Mapping[str, Array]


def summary(outcome: Outcome, chosen: Array) -> dict[str, Any]:
    """Errors of some rows, by what was left out."""
    found: dict[str, Any] = {}
    for name, ratio in outcome.apart.items():
        rows = chosen & np.isfinite(ratio) & outcome.possible
        if rows.any():
            found[name] = errors(ratio[rows]).as_dict()
    return found


def text_of(content: Mapping[str, Any], outcome: Outcome, source: str) -> str:
    """The file of a preset, with what was fitted."""
    fitted = outcome.engine
    error: dict[str, dict[str, Any]] = {}
    residuals: dict[str, dict[str, Any]] = {}
    for metric in sorted({str(metric) for metric in outcome.metrics}):
        for basis in ("fitted", "transferred"):
            rows = (outcome.metrics == metric) & (outcome.bases == basis)
            if rows.any():
                error.setdefault(metric, {})[basis] = summary(outcome, rows)
            rows = rows & np.isfinite(outcome.ratio) & outcome.possible
            if rows.sum() >= LEAST_ROWS:
                residuals.setdefault(metric, {})[basis] = list(quantiles(outcome.ratio[rows]))
    kept = {key: value for key, value in content.items() if key in (*engine.WORDS, *engine.NUMBERS, "borrowed")}
    numbers = {
        "constants": dict(fitted.constants),
        "factors": dict(fitted.factors),
        "interference": fitted.interference,
    }
    numbers |= {"unit_bytes": fitted.unit_bytes, "share": fitted.share} if fitted.unit_bytes else {}
    rows = {"fitted": int(outcome.possible.sum()), "impossible": int(len(outcome.possible) - outcome.possible.sum())}
    whole = {**kept, **numbers, "source": source, "rows": rows, "error": error, "residuals": residuals}
    return yaml.safe_dump(whole, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True)
