"""Published end-to-end figures -> the constants of engine presets, and how wrong they are on rows they did not see.

`python -m calibrate.fit_engines e2e.csv` rewrites calibrate/engines/*.yaml: constants, errors, quantiles.  Kernels are
those of the shipped profiles: fit again whenever these change.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation
from llmviewer.calibrate.e2e import basis_of
from llmviewer.calibrate.e2e_rows import RequestCase, case_of
from llmviewer.calibrate.e2e_runs import RATES, SHIPPED, CaseGroup, Setting, grouped
from llmviewer.calibrate.engine_file import Outcome, text_of
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.core import data
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Kind
from llmviewer.hardware import specs
from llmviewer.serving.batching import RequestTimes
from llmviewer.timing import engine, profile
from llmviewer.timing.engine import CONSTANTS, FACTORS, Engine

#: engine -> what is fitted of it; everything else is zero, or what its file says.
FREE: dict[str, tuple[str, ...]] = {
    "deepspeed-mii": ("eager", "step", "sequence", "attention"),
    "gpt-fast": ("gemm", "exchange"),
    "llama.cpp": ("launch", "gemm", "unit_bytes", "share"),
    "sglang": ("step", "sequence", "eager", "interference"),
    "trtllm": ("step", "sequence", "conversion", "eager", "interference"),
    "trtllm-cpp": ("step", "launch", "sequence", "group"),
    "vllm": ("step", "sequence", "eager", "interference"),
    "vllm-v0": ("step", "group", "sequence", "eager"),
}
#: Where the search begins, and what is possible: constants in us, factors and shares without unit.  Products that hold
#: a conversion take 5 us more than those that do not.
START = {
    "launch": 1.0,
    "layer": 5.0,
    "step": 500.0,
    "group": 200.0,
    "collective": 2.0,
    "sequence": 10.0,
    "sampling": 5.0,
    "conversion": -5.0,
}
START |= {"eager": 40.0, "interference": 0.8, "unit_bytes": 6.0, "share": 0.85, **dict.fromkeys(FACTORS, 1.0)}
MOST = {
    **dict.fromkeys(CONSTANTS, 1e5),
    "interference": 1.0,
    "unit_bytes": 100.0,
    "share": 1.0,
    **dict.fromkeys(FACTORS, 20.0),
}
LEAST = {
    **dict.fromkeys(CONSTANTS, 0.0),
    "conversion": -8.0,
    "interference": 0.0,
    "unit_bytes": 0.5,
    "share": 0.1,
    **dict.fromkeys(FACTORS, 0.05),
}
#: Log error at which a row begins to count less than its square (soft L1).
OUTLIER = 0.1
#: A time this far below the data sheet's bound is a run that stopped early, not a measurement.
IMPOSSIBLE = 0.95
FOLDS = 5
#: Constants below which there is no such term [us].
NOTHING = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """A group of cases whose kernels are priced once; engines are tried on it.

    known: (stage, kinds) -> seconds of its kernels.
    """

    group: CaseGroup
    measured: Array
    known: dict[tuple[int, tuple[Kind, ...]], Count] = field(default_factory=dict)

    def times(self, preset: Engine) -> RequestTimes:
        """What passes take under an engine."""
        asked = self.group.analysis
        stages = asked.evaluation.stages or (asked.evaluation,)
        spent = [self._stage(at, stage, preset, asked) for at, stage in enumerate(stages)]
        busiest = spent[0]
        for other in spent[1:]:
            busiest = np.maximum(busiest, other)
        system = replace(asked.system, engine=preset)
        return replace(asked, system=system, time_s=sum(spent), busiest_s=busiest).times

    def _stage(self, at: int, stage: Evaluation, preset: Engine, asked: Analysis) -> Count:
        def seconds(kinds: tuple[Kind, ...]) -> Count:
            if (at, kinds) not in self.known:
                total = stage.sum(lambda row: row.timing.time_s if row.operator.kind in kinds else 0.0)
                self.known[at, kinds] = total * np.ones(len(asked.schedule.repeats))
            return self.known[at, kinds]

        terms = preset.terms(stage.graph, asked.schedule.step, asked.system.chip, seconds)
        return seconds(tuple(Kind)) + sum(value for _, value in terms)

    def ratio(self, preset: Engine) -> Array:
        """Measured over predicted, as times."""
        return self._as_times(self.group.values(self.times(preset)))

    def bound_ratio(self) -> Array:
        """Measured over the data sheet's bound, as times."""
        return self._as_times(self.group.bound())

    def _as_times(self, value: Array) -> Array:
        rates = np.array([case.metric in RATES for case in self.group.cases])
        return np.where(rates, value / self.measured, self.measured / value)


def trials(cases: Mapping[int, RequestCase], values: Array, setting: Setting = SHIPPED) -> list[Trial]:
    """Every group that can be evaluated, with what was measured."""
    found = []
    for group in grouped(cases, setting):
        if isinstance(group, CaseGroup):
            found.append(Trial(group=group, measured=values[list(group.places)]))
    return found


def with_values(preset: Engine, named: Mapping[str, float]) -> Engine:
    """The preset with these constants, factors and shares, and no others."""
    return replace(
        preset,
        constants={name: value for name, value in named.items() if name in CONSTANTS and abs(value) > NOTHING},
        factors={name: value for name, value in named.items() if name in FACTORS},
        interference=named.get("interference", preset.interference),
        unit_bytes=named.get("unit_bytes", preset.unit_bytes),
        share=named.get("share", preset.share),
    )


def solve(preset: Engine, some: Sequence[Trial], kept: Sequence[Array]) -> Engine:
    """Least squares of log(measured / predicted) over the rows kept."""
    from scipy.optimize import least_squares

    names = FREE[preset.name]
    scale = np.array([abs(START[name]) for name in names])
    bounds = tuple(np.array([limit[name] for name in names]) / scale for limit in (LEAST, MOST))

    def residuals(x: Array) -> Array:
        tried = with_values(preset, dict(zip(names, map(float, x * scale), strict=True)))
        return np.concatenate(
            [np.log(np.maximum(trial.ratio(tried), 1e-3))[rows] for trial, rows in zip(some, kept, strict=True)]
        )

    solved = least_squares(
        residuals,
        np.array([START[name] for name in names]) / scale,
        bounds=bounds,
        loss="soft_l1",
        f_scale=OUTLIER,
        xtol=1e-5,
        ftol=1e-6,
    )
    return with_values(
        preset, {name: float(f"{value:.4g}") for name, value in zip(names, solved.x * scale, strict=True)}
    )


def fit(preset: Engine, some: Sequence[Trial]) -> Outcome:
    """Constants from all rows; errors from rows whose model x device x devices was left out, and others."""
    cases = [case for trial in some for case in trial.group.cases]
    possible = np.concatenate([trial.bound_ratio() > IMPOSSIBLE for trial in some])
    usable = possible & np.array([fits_on(case) for case in cases])
    marks = {
        "configuration": [f"{case.model}/{case.hardware}/{case.devices}" for case in cases],
        "model": [case.model for case in cases],
        "device": [case.hardware for case in cases],
    }
    apart = {name: _left_out(preset, some, usable, np.array(_folds(words))) for name, words in marks.items()}
    places = np.concatenate([trial.group.places for trial in some])
    return Outcome(
        engine=solve(preset, some, _cut(usable, some)),
        places=places,
        ratio=apart["configuration"],
        possible=possible,
        bases=np.array([basis_of(case) for case in cases]),
        metrics=np.array([case.metric for case in cases]),
        apart=apart,
    )


def fits_on(case: RequestCase) -> bool:
    """Whether a row says something of the engine rather than of what it was run with.

    First tokens under continuous batching wait for whoever came first: they tell of a benchmark's arrivals.  On chips
    of a maker of whom no kernels were measured the kernels are what is off.
    """
    makers = {specs.load(name).maker for name in data.stems(profile.FOLDER)}
    waits = case.metric == "ttft_ms" and case.batching == "continuous"
    return not waits and specs.load(case.hardware).maker in makers


def _folds(words: Iterable[str]) -> list[int]:
    """A fold for every word: its own where there are few, else one of FOLDS."""
    listed = list(words)
    names = sorted(set(listed))
    if len(names) <= 2 * FOLDS:
        return [names.index(word) for word in listed]
    return [int(hashlib.sha256(word.encode()).hexdigest()[:8], 16) % FOLDS for word in listed]


def _left_out(preset: Engine, some: Sequence[Trial], usable: Array, folds: Array) -> Array:
    """Ratios of every row under constants that did not see its fold; NaN where there is but one fold."""
    found = np.full(len(folds), np.nan)
    for fold in np.unique(folds):
        held = folds == fold
        if (usable & ~held).sum() >= 2 * len(FREE[preset.name]):
            tried = solve(preset, some, _cut(usable & ~held, some))
            found[held] = np.concatenate([trial.ratio(tried) for trial in some])[held]
    return found


def _cut(rows: Array, some: Sequence[Trial]) -> list[Array]:
    """One array for all rows -> one for each trial."""
    return np.split(rows, np.cumsum([len(trial.measured) for trial in some])[:-1])


def cases_of(frame: Any) -> dict[int, RequestCase]:
    """The rows that say something we know."""
    found = {}
    for at, row in enumerate(frame.to_dict("records")):
        with suppress(UserError):  # `calibrate validate` says which and why
            found[at] = case_of(row)
    return found


def main(path: Path, names: Sequence[str] = ()) -> list[Outcome]:
    """Fit every engine of FREE on a table, and rewrite its file."""
    frame = read_table(path)
    rows: list[Any] = frame.to_dict("records")
    frame = frame[[not odd(row) for row in rows]].reset_index(drop=True)
    cases = cases_of(frame)
    outcomes = []
    for name in names or FREE:
        mine = {at: case for at, case in cases.items() if case.engine == name}
        file = data.folder(engine.FOLDER) / f"{name}.yaml"
        outcome = fit(engine.load(name), trials(mine, frame["value"].to_numpy(dtype=float)))
        file.write_text(
            text_of(data.read_yaml(file), outcome, f"fitted on {path.name}: docs/calibration.md"), encoding="utf-8"
        )
        outcomes.append(outcome)
    return outcomes


def odd(row: Mapping[str, Any]) -> bool:
    """Rows that their publisher's readers know to be broken: llama.cpp's 16-bit prefill on an A100 SXM."""
    prompts = row["output_len"] == 0 and row.get("weight_dtype") == "fp16"
    return bool(prompts and row["device"] == "a100_sxm" and str(row["engine"]).startswith("llama.cpp"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
