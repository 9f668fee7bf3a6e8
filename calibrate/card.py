"""Calibrate one card in a given time: measure what models need, fit, and compare before and after, for `calibrate all`.

Before: the shipped profiles.  After: kernels predicted by constants fitted without their shape, and layers and models,
which are never fitted, with the new profile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from llmviewer.calibrate import devices, environment, model_plan, plan, profiling, record, sizes, whole
from llmviewer.calibrate import run as running
from llmviewer.calibrate.conformal import errors
from llmviewer.calibrate.deadline import Budget, OutOfTimeError, within
from llmviewer.calibrate.fit import Sample
from llmviewer.calibrate.kernel_case import KernelCase
from llmviewer.calibrate.model_plan import ModelPlan
from llmviewer.calibrate.predict import PredictionOptions, priced
from llmviewer.calibrate.profiling import FitInputs, FittedProfile, OnProgress
from llmviewer.calibrate.run import Progress
from llmviewer.calibrate.sizes import RunSize
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.hardware.chip import Chip
from llmviewer.timing.calibrated import calibrated

SCHEMA = "llmviewer.calibration/1"
#: Shares of the time at which measuring ends by plan and by force, and at which the fits and predictions end.
PLANNED, MEASURED, FITTED, PREDICTED = 0.68, 0.72, 0.92, 0.97
#: Minutes from which the shapes are those of the default size.
LONG_MIN = 10.0
#: Most FLOP of a forward pass on a processor: a prompt of a small model takes a second.
MAX_PASS_FLOPS = 5e10
#: Reason for layers and kernels without a figure.
NO_TIME = "the time was over; the same command goes on"


@frozen
class Wanted:
    """Models that are served, on how many devices each, and the minutes for their calibration.

    kind: cuda or cpu.  hardware: a chip by name or path; empty for the one that the driver names.
    """

    models: tuple[str, ...]
    kind: str
    hardware: str = ""
    tp: int = 1
    minutes: float = 15.0
    power: bool = False


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Result of a calibration.  inputs, fitted: None where too little was measured, and where no fit may be stored.

    busy: the load by other programs, in words.  why: the reason why nothing was fitted.  missing: parts of the models
    that were not measured.  left: rows by table that the time did not suffice for.  kernels, layers: rows of the tables
    before and after.
    """

    facts: dict[str, Any]
    busy: str = ""
    inputs: FitInputs | None = None
    fitted: FittedProfile | None = None
    why: str = ""
    missing: tuple[str, ...] = ()
    left: dict[str, int] = field(default_factory=dict)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)


def check(wanted: Wanted) -> tuple[dict[str, Any], Chip | None]:
    """Facts of this machine, and its chip; None if no spec describes it.

    Raises UserError if `hardware` names another chip.
    """
    facts = environment.describe(wanted.kind)
    chip, _ = devices.choose_chip({facts["device"]: 0}, wanted.hardware)
    if chip and wanted.kind == "cpu" and not (data.user_path(wanted.hardware) or devices.is_processor(chip.name)):
        raise UserError(f"{chip.name} is no processor; what is measured is {facts['device_name']}")
    return facts, chip


def planned(wanted: Wanted, gpus: int = 1) -> tuple[RunSize, ModelPlan]:
    """Limits of the run, and its cases by table: the shapes of the models, then those that fits need beside them."""
    size = sizes.size_named(wanted.kind, "default" if wanted.minutes >= LONG_MIN else "quick")
    size = replace(size, power_s=running.POWER_S if wanted.power else 0.0, blocks=(), whole_models=())
    if wanted.minutes < LONG_MIN:  # the models' own experts and latent heads are measured, not those of others
        size = replace(size, expert_models=(), latent_models=(), encoder_models=())
    if wanted.kind == "cpu":  # layers run in the format of the models, like their kernels
        formats = tuple(dict.fromkeys(("bfloat16", *size.dtypes)))
        size = replace(size, dtypes=formats, attention_dtypes=("bfloat16",), block_dtypes=("bfloat16",))
    own = replace(size, max_flops=max(size.max_flops, MAX_PASS_FLOPS))
    plans = [model_plan.plan_of(name, wanted.tp, own) for name in wanted.models]
    found: dict[str, KernelCase] = {}
    for case in (*(case for one in plans for case in one.cases), *plan.cases(size, gpus)):
        found.setdefault(record.row_key({"table": case.table, **case.columns}), case)
    order = {table: at for at, table in enumerate(plan.SHARES)}
    cases = tuple(sorted(found.values(), key=lambda case: order[case.table]))
    return size, ModelPlan(cases=cases, missing=tuple(dict.fromkeys(why for one in plans for why in one.missing)))


def calibrate(
    wanted: Wanted,
    folder: Path,
    budget: Budget,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_fit: OnProgress = lambda done, total, now: None,
) -> Outcome:
    """Measure into a folder, fit and predict, each until its share of the budget is spent.

    Raises UserError before anything is measured; later ones are the `why` of the outcome.
    """
    load = environment.busy()  # before this program adds to it
    facts, _ = check(wanted)
    size, cases = planned(wanted, int(facts.get("gpus", 1)))
    outcome = Outcome(facts=facts, busy=load, missing=cases.missing)

    def noted(progress: Progress) -> None:
        outcome.left = dict(progress.missing)
        on_progress(progress)

    with suppress(OutOfTimeError), within(budget.left_s(MEASURED)):
        size = replace(size, budget_s=budget.left_s(PLANNED))
        running.run(folder, wanted.kind, size, noted, cases=cases.cases)
    try:
        with within(budget.left_s(FITTED)):
            outcome.inputs = profiling.prepare([folder], wanted.hardware)
        in_time = replace(outcome.inputs, seconds=budget.left_s(FITTED))
        outcome.fitted = profiling.fit_profile(in_time, "", on_progress=on_fit)
    except OutOfTimeError:
        outcome.why = NO_TIME
    except UserError as error:
        outcome.why = error.marked
    if outcome.inputs:
        with suppress(OutOfTimeError), within(budget.left_s(PREDICTED)):
            _compare(outcome, outcome.inputs, wanted.models)
    return outcome


def _compare(outcome: Outcome, inputs: FitInputs, models: Sequence[str]) -> None:
    """Add the rows of the tables, layers first."""
    names = ("predicted_us", "interval_80_us", "error")
    before = whole.rows(inputs.sources, PredictionOptions(hardware=inputs.chip))
    after = outcome.fitted.whole if outcome.fitted else repeat(dict.fromkeys(names))
    for row, now in zip(before, after, strict=outcome.fitted is not None):
        if row["model"] in models:
            shared = {name: value for name, value in row.items() if name not in (*names, "basis")}
            both = {when: {name: each[name] for name in names} for when, each in (("before", row), ("after", now))}
            outcome.layers.append(shared | both)
    fits = {fit.key: fit for fit in outcome.fitted.fits} if outcome.fitted else {}
    for sample in inputs.gathered.samples:
        fit = fits.get(sample.key)
        outcome.kernels.append(_scored(sample, inputs.chip) | {"after": dict(fit.error["all"]) if fit else None})


def _scored(sample: Sample, chip: Chip) -> dict[str, Any]:
    """Errors of the shipped constants on the rows of a fit."""
    ratios, inside = [], []
    for rows in sample.rows:
        predicted, bounds = priced(rows, calibrated(chip, sample.engine))
        ratios.append(rows.measured_s / predicted)
        inside.append((bounds[1] <= ratios[-1]) & (ratios[-1] <= bounds[2]))
    found = {"fit": sample.key, "rows": sum(map(len, ratios))}
    covered = {"covered80": float(np.mean(np.concatenate(inside)))}
    return {**found, "before": errors(np.concatenate(ratios)).as_dict() | covered}


def document(outcome: Outcome, wanted: Wanted, folder: Path, written: dict[str, str], seconds: float) -> dict[str, Any]:
    """JSON document.  written: paths of the files, `profile` and `chip_file`, that there are."""
    inputs = outcome.inputs
    rows = {name: len(frame) for source in inputs.sources for name, frame in source.tables.items()} if inputs else {}
    return {
        "schema": SCHEMA,
        "models": list(wanted.models),
        "machine": outcome.facts,
        "chip": inputs.chip.name if inputs else None,
        "seconds": round(seconds, 1),
        "samples": str(folder),
        "busy": outcome.busy,
        "unstable": _unstable(inputs) if inputs else 0,
        "rows": rows,
        "left": outcome.left,
        "kernels": outcome.kernels,
        "layers": outcome.layers,
        "median_error": {"kernels": _medians(outcome.kernels, "median"), "layers": _medians(outcome.layers, "error")},
        "not_fitted": {**dict(inputs.gathered.left_out if inputs else {}), **({outcome.why: 0} if outcome.why else {})},
        "missing": list(outcome.missing),
        "power": dict(outcome.fitted.power) if outcome.fitted else {},
        "profile": written.get("profile"),
        "chip_file": written.get("chip_file"),
        "next": _next(outcome, wanted, written),
    }


def _unstable(inputs: FitInputs) -> int:
    """Rows whose times spread too much."""
    frames = [frame for source in inputs.sources for frame in source.tables.values()]
    return int(sum(frame["stable"].eq(False).sum() for frame in frames if "stable" in frame.columns))


def _medians(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float | None]:
    """Median of the errors before and after, over rows that have both."""
    pairs = [(row["before"][name], row["after"][name]) for row in rows if row["before"] and row["after"]]
    known = np.abs([pair for pair in pairs if None not in pair])
    return dict(zip(("before", "after"), map(float, np.median(known, axis=0)), strict=True)) if len(known) else {}


def _next(outcome: Outcome, wanted: Wanted, written: dict[str, str]) -> list[str]:
    """The commands that use what was written, one for each model; without a profile none."""
    if outcome.inputs is None or "profile" not in written:
        return []
    chip = written.get("chip_file") or wanted.hardware
    devices_of = f" -tp {wanted.tp}" if wanted.tp > 1 else ""
    return [
        profiling.next_command(outcome.inputs, written["profile"], chip, name) + devices_of for name in wanted.models
    ]
