"""Fit the constants of engine presets to published end-to-end figures, with held-out errors.

`python -m llmviewer.calibrate.fit_engines e2e.csv [more.csv ...] [engine ...]` rewrites calibrate/engines/*.yaml:
constants, errors, quantiles.  Kernel times come from the shipped profiles: refit whenever a profile changes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation
from llmviewer.calibrate.e2e import origin_of
from llmviewer.calibrate.e2e_rows import RequestCase
from llmviewer.calibrate.e2e_runs import DEFAULT_OPTIONS, RATE_METRICS, CaseGroup, EvaluationOptions, evaluate_groups
from llmviewer.calibrate.engine_file import EngineFit, text_of
from llmviewer.calibrate.engine_rows import UNUSED_ROWS, cases_of, has_uncertain_kernels, is_of_drafting
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.calibrate.free_constants import (
    FEW_USERS,
    FREE,
    FREE_OF_GENERATION,
    FREE_OF_VERSION,
    MAX_VALUES,
    MIN_VALUES,
    SHORT_PROMPT,
    START_VALUES,
)
from llmviewer.core import data
from llmviewer.core.counts import Array, Count
from llmviewer.core.frozen import frozen
from llmviewer.core.kinds import Kind
from llmviewer.hardware import specs
from llmviewer.result.interval import host_share
from llmviewer.serving.batching import RequestTimes
from llmviewer.timing import engine
from llmviewer.timing.engine import Engine
from llmviewer.timing.engine_fit import CONSTANTS
from llmviewer.timing.engine_work import FACTORS

#: Log error beyond which a residual counts less than its square, and hardly at all far beyond (Cauchy): tables hold
#: runs with other settings than stated, such as prompts that hit a prefix cache.
OUTLIER = 0.1
#: Weight of the residual of a first-token time under continuous batching, which scatters with the arrivals.
TTFT_WEIGHT = 0.3
FOLDS = 5
#: No constants.
NOTHING: Mapping[str, float] = MappingProxyType({})
#: Smaller constants are dropped [us].
NEGLIGIBLE_US = 1e-2


@frozen(eq=False)
class Trial:
    """A group of cases with kernel times computed once, on which engine constants are tried.

    known: (pipeline stage, kinds, by the data sheet's roofline) -> time of its kernels [s].
    """

    group: CaseGroup
    measured: Array
    known: dict[tuple[int, tuple[Kind, ...], bool], Count] = field(default_factory=dict)

    def times(self, preset: Engine) -> RequestTimes:
        """Request times under an engine."""
        analysis = self.group.analysis
        stages = analysis.evaluation.stages or (analysis.evaluation,)
        stage_times = [self._stage(at, stage, preset, analysis) for at, stage in enumerate(stages)]
        busiest = stage_times[0]
        for other in stage_times[1:]:
            busiest = np.maximum(busiest, other)
        system = replace(analysis.system, engine=preset)
        passes = replace(analysis.passes, time_s=sum(stage_times), busiest_s=busiest)
        return replace(analysis, system=system, passes=passes).times

    def _stage(self, at: int, stage: Evaluation, preset: Engine, analysis: Analysis) -> Count:
        def of_kernels(kinds: tuple[Kind, ...], *, ideal: bool) -> Count:
            if (at, kinds, ideal) not in self.known:
                total = stage.sum(
                    lambda row: (row.ideal if ideal else row.timing).time_s if row.operator.kind in kinds else 0.0
                )
                self.known[at, kinds, ideal] = total * np.ones(len(analysis.schedule.repeats))
            return self.known[at, kinds, ideal]

        seconds, least = (partial(of_kernels, ideal=ideal) for ideal in (False, True))
        terms = preset.terms(stage.graph, analysis.schedule.step, analysis.system.chip, seconds, least)
        return seconds(tuple(Kind)) + sum(value for _, value in terms)

    def ratio(self, preset: Engine) -> Array:
        """Measured / predicted, as a ratio of times."""
        return self._as_times(self.group.values(self.times(preset)))

    def _as_times(self, value: Array) -> Array:
        rates = np.array([case.metric in RATE_METRICS for case in self.group.cases])
        return np.where(rates, value / self.measured, self.measured / value)


def make_trials(
    cases: Mapping[int, RequestCase], values: Array, options: EvaluationOptions = DEFAULT_OPTIONS
) -> list[Trial]:
    """Every group that can be evaluated, with its measured values."""
    found = []
    for group in evaluate_groups(cases, options):
        if isinstance(group, CaseGroup):
            found.append(Trial(group=group, measured=values[list(group.places)]))
    return found


def with_values(preset: Engine, named: Mapping[str, float]) -> Engine:
    """The preset with exactly these constants, factors and shares."""
    return replace(
        preset,
        constants={name: value for name, value in named.items() if name in CONSTANTS and abs(value) > NEGLIGIBLE_US},
        factors={name: value for name, value in named.items() if name in FACTORS},
        unit_bytes=named.get("unit_bytes", preset.unit_bytes),
        share=named.get("share", preset.share),
        integer_share=named.get("integer_share", preset.integer_share),
    )


def solve(
    preset: Engine,
    names: Sequence[str],
    trials: Sequence[Trial],
    included: Sequence[Array],
    kept: Mapping[str, float] = NOTHING,
) -> Engine:
    """Engine with these constants from least squares of log(measured / predicted) over the included rows.

    kept: its other constants, which are not fitted.
    """
    from scipy.optimize import least_squares

    scale = np.array([abs(START_VALUES[name]) for name in names])
    bounds = tuple(np.array([limit[name] for name in names]) / scale for limit in (MIN_VALUES, MAX_VALUES))

    weights = [np.array([_weight(case) for case in trial.group.cases]) for trial in trials]

    def residuals(x: Array) -> Array:
        candidate = with_values(preset, {**kept, **dict(zip(names, map(float, x * scale), strict=True))})
        return np.concatenate(
            [
                (weight * np.log(np.maximum(trial.ratio(candidate), 1e-3)))[rows]
                for trial, rows, weight in zip(trials, included, weights, strict=True)
            ]
        )

    solved = least_squares(
        residuals,
        np.array([START_VALUES[name] for name in names]) / scale,
        bounds=bounds,
        loss="cauchy",
        f_scale=OUTLIER,
        xtol=1e-5,
        ftol=1e-6,
    )
    rounded = {name: float(f"{value:.4g}") for name, value in zip(names, solved.x * scale, strict=True)}
    return with_values(preset, {**kept, **rounded})


def fit(
    preset: Engine, names: Sequence[str], trials: Sequence[Trial], kept: Mapping[str, float] = NOTHING
) -> EngineFit:
    """Constants of these names from all rows; errors with every configuration, model and device held out in turn."""
    cases = [case for trial in trials for case in trial.group.cases]
    possible = np.concatenate([trial.group.possible(trial.measured) for trial in trials])
    bases = np.concatenate([[origin_of(trial.group)] * len(trial.measured) for trial in trials])
    # on chips of a maker without measured kernels, their error dominates, unless the constants are for them alone
    certain = np.array([not has_uncertain_kernels(case) for case in cases])
    usable = possible & certain & ((bases != "afar") | (bases == "afar").all())
    groupings = {
        "configuration": [f"{case.model}/{case.hardware}/{case.layout.devices}" for case in cases],
        "model": [case.model for case in cases],
        "device": [case.hardware for case in cases],
    }
    solved = partial(_solved, preset, names, kept, trials)
    held_out_ratios = {
        name: _held_out_ratios(solved, len(names), trials, (usable, possible), np.array(_folds(words)))
        for name, words in groupings.items()
    }
    places = np.concatenate([trial.group.places for trial in trials])
    shown = np.array([not is_of_drafting(case) for case in cases])
    ratio = np.where(np.isfinite(of_models := held_out_ratios["model"]), of_models, held_out_ratios["configuration"])
    return EngineFit(
        engine=solved(usable, possible),
        places=places[shown],
        ratio=ratio[shown],
        possible=possible[shown],
        bases=bases[shown],
        metrics=np.array([case.metric for case in cases])[shown],
        held_out_ratios={name: values[shown] for name, values in held_out_ratios.items()},
        cases=tuple(case for case, one in zip(cases, shown, strict=True) if one),
        host_share=np.concatenate([host_shares(trial.group) for trial in trials])[shown],
    )


def host_shares(group: CaseGroup) -> Array:
    """Share of the time of every case that its engine adds to kernels."""
    shares = {stage: host_share(group.analysis, stage) for stage in ("prefill", "decode")}
    return np.array(
        [shares["prefill" if case.metric == "ttft_ms" else "decode"][at] for at, case in enumerate(group.cases)]
    )


def _solved(
    preset: Engine,
    names: Sequence[str],
    kept: Mapping[str, float],
    trials: Sequence[Trial],
    usable: Array,
    possible: Array,
) -> Engine:
    """The engine fitted to usable rows.  possible: rows from which the host's time of a request may be taken."""
    if "request" in preset.constants and "request" not in kept:
        kept = {**kept, "request": request_of(preset, trials, _split_by_trial(possible, trials))}
    return solve(preset, names, trials, _split_by_trial(usable, trials), kept)


def _weight(case: RequestCase) -> float:
    return TTFT_WEIGHT if case.metric == "ttft_ms" and case.batching == "continuous" else 1.0


def request_of(preset: Engine, trials: Sequence[Trial], rows: Sequence[Array]) -> float:
    """The host's time of a request [us]: what first tokens of few users take beyond all other times.

    The lower quartile: first requests of a run may compile kernels, which adds up to a quarter of a second to means.
    """
    without = replace(preset, constants={**preset.constants, "request": 0.0})
    gaps_ms: list[float] = []
    for trial, chosen in zip(trials, rows, strict=True):
        alone = chosen & np.array([is_alone(case) for case in trial.group.cases])
        if alone.any():
            gaps_ms += (trial.measured - trial.group.values(trial.times(without)))[alone].tolist()
    return float(f"{max(float(np.quantile(gaps_ms, 0.25)), 0.0) * 1e3:.3g}") if gaps_ms else preset.constants["request"]


def is_alone(case: RequestCase) -> bool:
    """Whether a row is a first token of few users, whose prompts seldom meet, under a load that is known."""
    few = case.batch <= FEW_USERS and case.input_len <= SHORT_PROMPT
    return case.metric == "ttft_ms" and few and np.isfinite(case.per_user)


def _folds(words: Iterable[str]) -> list[int]:
    """Fold of every word: its own if there are few distinct words, else one of FOLDS by hash."""
    listed = list(words)
    names = sorted(set(listed))
    if len(names) <= 2 * FOLDS:
        return [names.index(word) for word in listed]
    return [int(hashlib.sha256(word.encode()).hexdigest()[:8], 16) % FOLDS for word in listed]


def _held_out_ratios(
    solved: Callable[..., Engine], constants: int, trials: Sequence[Trial], rows: tuple[Array, ...], folds: Array
) -> Array:
    """Ratios of every row under constants fitted without its fold; NaN if too few rows remain to fit.

    solved: the engine fitted to rows.  constants: number of its fitted constants.  rows: the usable ones, and those
    that are possible.
    """
    found = np.full(len(folds), np.nan)
    for fold in np.unique(folds):
        held_out = folds == fold
        if (rows[0] & ~held_out).sum() >= 2 * constants:
            candidate = solved(*(chosen & ~held_out for chosen in rows))
            found[held_out] = np.concatenate([trial.ratio(candidate) for trial in trials])[held_out]
    return found


def _split_by_trial(rows: Array, trials: Sequence[Trial]) -> list[Array]:
    """Split one array over all rows into one per trial."""
    return np.split(rows, np.cumsum([len(trial.measured) for trial in trials])[:-1])


def _fits_of(name: str, cases: Mapping[int, RequestCase], values: Array) -> dict[str, EngineFit]:
    """Fits of an engine: to its rows on a generation of chips or of older versions by name of these, others by ""."""
    preset = engine.load(name)
    own_free = {"": FREE[name], **FREE_OF_GENERATION.get(name, {})}
    parts: dict[str, dict[int, RequestCase]] = {"": {}}
    for at, case in cases.items():
        if case.engine == name:
            kind = preset.kind_on(specs.load(case.hardware), case.backend, own_free)
            kind = kind if kind in own_free else engine.NEAREST_GENERATIONS.get(kind, "")  # as it is predicted
            first = replace(preset, version=case.version).first_version
            part = kind if kind in own_free else "" if first == preset.first_version else first
            parts.setdefault(part, {})[at] = case
    fits: dict[str, EngineFit] = {}
    for part, own in parts.items():  # that of "" is the first
        trials = make_trials(own, values)
        if part in own_free:
            of_part = preset.of_generation(part)
            refitted = (*own_free[part], "request")
            stated = {**of_part.constants, **of_part.factors}.items()
            fits[part] = fit(of_part, own_free[part], trials, {k: v for k, v in stated if k not in refitted})
        else:
            newest = fits[""].engine
            fits[part] = fit(newest, FREE_OF_VERSION, trials, newest.constants)
    return fits


def main(paths: Sequence[Path], names: Sequence[str] = ()) -> list[EngineFit]:
    """Fit every engine of FREE on tables of published figures, and rewrite its file."""
    import pandas as pd

    frame = pd.concat([read_table(path) for path in paths], ignore_index=True)
    rows: list[Any] = frame.to_dict("records")
    frame = frame[[not any(test(row) for test in UNUSED_ROWS) for row in rows]].reset_index(drop=True)
    cases = cases_of(frame)
    source = " and ".join(f"{path.parent.name}/{path.name}" for path in paths)
    values = frame["value"].to_numpy(dtype=float)
    results: list[EngineFit] = []
    for name in names or FREE:
        fits = _fits_of(name, cases, values)
        file = data.folder(engine.FOLDER) / f"{name}.yaml"
        text = text_of(data.read_yaml(file), fits, f"fitted on {source}: docs/guide/calibration.md")
        file.write_text(text, encoding="utf-8")
        results += fits.values()
    return results


if __name__ == "__main__":
    words = sys.argv[1:]
    main([Path(word) for word in words if word not in FREE], [word for word in words if word in FREE])
