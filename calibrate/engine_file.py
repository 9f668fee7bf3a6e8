"""Text of a fitted engine preset: constants, held-out errors and interval quantiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from llmviewer.calibrate.conformal import errors, quantiles
from llmviewer.calibrate.e2e_rows import RequestCase
from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen
from llmviewer.timing.engine import Engine

#: Fewest rows of a metric for which quantiles are stored.
MIN_ROWS_FOR_QUANTILES = 10
#: Fewest models of the rows of older versions whose residuals are stored: of fewer, one model out says little.
MIN_MODELS_OF_VERSION = 4
#: Keys that a fit writes, and those that it leaves as they are, at the end.
FITTED = ("constants", "factors", "error", "residuals", "scope", "rows", "generations", "versions")
PARTS = ("memory", "rounds", "serves")


@frozen(eq=False)
class EngineFit:
    """A fitted engine, and measured / predicted of every row with its model held out, or else its configuration.

    places: row numbers in the table.  possible: not faster than the data-sheet roofline.
    held_out_ratios: the same ratios by what was held out (configuration, model, device).
    cases: the rows.  host_share: share of their time that the engine adds to kernels.
    """

    engine: Engine
    places: Array
    ratio: Array
    possible: Array
    bases: Array
    metrics: Array
    held_out_ratios: Mapping[str, Array]
    cases: tuple[RequestCase, ...]
    host_share: Array


def error_summary(fit: EngineFit, chosen: Array) -> dict[str, Any]:
    """Errors of the chosen rows, by what was held out."""
    found: dict[str, Any] = {}
    for name, ratio in fit.held_out_ratios.items():
        rows = chosen & np.isfinite(ratio) & fit.possible
        if rows.any():
            found[name] = errors(ratio[rows]).as_dict()
    return found


def text_of(content: Mapping[str, Any], fits: Mapping[str, EngineFit], source: str) -> str:
    """YAML of a preset with fitted constants, errors and quantiles.

    fits: generation of chips, or first of older versions -> fit to its rows; "": to all other rows.
    """
    kept = {key: value for key, value in content.items() if key not in (*FITTED, *PARTS)}
    fitted = fits[""].engine
    numbers = {"unit_bytes": fitted.unit_bytes} if fitted.unit_bytes else {}
    numbers |= _shares(fitted)
    possible = np.concatenate([fit.possible for fit in fits.values()])
    rows = {"fitted": int(possible.sum()), "impossible": int((~possible).sum())}
    whole = {**kept, **numbers, "source": source, "rows": rows, **_figures(fits[""])}
    versions = {first: {"source": own["source"]} for first, own in content.get("versions", {}).items()}
    versions |= {first: versions[first] | _of_version(fits[first], fitted) for first in versions if first in fits}
    chips = {name: fit for name, fit in fits.items() if name and name not in versions}
    stated = content.get("generations", {})
    others = {name: own for name, own in stated.items() if name not in chips} | {
        name: {key: value for key, value in stated.get(name, {}).items() if key not in FITTED}
        | {"ungrouped": fit.engine.ungrouped, **_shares(fit.engine), **_figures(fit, tuple(fits.values()))}
        for name, fit in chips.items()
    }
    whole |= {"generations": others} if others else {}
    whole |= {"versions": versions} if versions else {}
    whole |= {key: content[key] for key in PARTS if key in content}
    return yaml.safe_dump(whole, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True)


def _shares(fitted: Engine) -> dict[str, float]:
    """Shares of the chip's rates that an engine's own products reach, where it has such kernels."""
    whole = {"share": fitted.share, "integer_share": fitted.integer_share}
    return {name: value for name, value in whole.items() if value and fitted.unit_bytes}


def _of_version(fit: EngineFit, newest: Engine) -> dict[str, Any]:
    """Figures of older versions; constants that are those of the newest versions are left out."""
    own = _figures(fit)
    every = dict.fromkeys((*newest.constants, *own["constants"]))
    constants = {name: own["constants"].get(name, 0.0) for name in every}
    differing = {name: value for name, value in constants.items() if value != newest.constants.get(name)}
    few = len({case.model for case in fit.cases}) < MIN_MODELS_OF_VERSION
    runs = {} if few else {"residuals": own["residuals"], "scope": own["scope"]}
    return {"constants": differing, "error": own["error"], **runs}


def _figures(fit: EngineFit, pool: Sequence[EngineFit] = ()) -> dict[str, Any]:
    """Constants and factors of a fit, and its errors and quantiles by metric and origin of the kernels.

    pool: fits whose quantiles, of all of them together, stand for those of too few rows.
    """
    error: dict[str, dict[str, Any]] = {}
    residuals: dict[str, dict[str, Any]] = {}
    scope: dict[str, dict[str, Any]] = {}
    for metric in sorted({str(metric) for metric in fit.metrics}):
        for basis in ("fitted", "transferred", "afar"):
            rows = (fit.metrics == metric) & (fit.bases == basis)
            if rows.any() and (summary := error_summary(fit, rows)):
                error.setdefault(metric, {})[basis] = summary
            ratio, rows = _ratios_of(fit, rows), rows & fit.possible
            if rows.any() and len(ratio) < MIN_ROWS_FOR_QUANTILES:
                others = (_ratios_of(one, one.metrics == metric) for one in pool if one is not fit)
                ratio = np.concatenate([ratio, *others])
            if len(ratio) >= MIN_ROWS_FOR_QUANTILES:
                residuals.setdefault(metric, {})[basis] = list(quantiles(ratio))
                scope.setdefault(metric, {})[basis] = _scope(fit, rows)
    tables = {"constants": dict(fit.engine.constants), "factors": dict(fit.engine.factors)}
    return {**tables, "error": error, "residuals": residuals, "scope": scope}


def _ratios_of(fit: EngineFit, rows: Array) -> Array:
    """Measured / predicted of those of some rows that are possible, with their model held out."""
    found: Array = fit.ratio[rows & np.isfinite(fit.ratio) & fit.possible]
    return found


def _scope(fit: EngineFit, rows: Array) -> dict[str, Any]:
    """The fields of a `Scope` of these rows; a batch of 0 is not stated, a context of 0 is empty."""
    cases = [case for case, one in zip(fit.cases, rows, strict=True) if one]
    sizes = {name: [getattr(case, name) for case in cases] for name in ("batch", "input_len")}
    stated = {name: [one for one in values if one > 0.0 or name == "input_len"] for name, values in sizes.items()}
    return {
        "chips": sorted({case.hardware for case in cases}),
        "batching": sorted({case.batching for case in cases}),
        **{name: [min(values), max(values)] for name, values in stated.items() if values},
        "host_share": round(float(np.quantile(fit.host_share[rows], 0.95)), 3),
    }
