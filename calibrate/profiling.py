"""Fit a profile to samples: choose chip and rows, fit, and predict whole layers and models with the fits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.calibrate import (
    against,
    devices,
    fit_tables,
    measured_chip,
    power_samples,
    profile_file,
    refusals,
    whole,
)
from llmviewer.calibrate.deadline import OutOfTimeError, within
from llmviewer.calibrate.fit_tables import FitData
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.calibrate.sources import TableSource, read_usable
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.version import __version__
from llmviewer.hardware.chip import Chip
from llmviewer.timing import profile as profiles
from llmviewer.timing.profile import Fit, Profile

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.fit/1"
#: Environment fields of samples that a profile stores.
ENVIRONMENT_FIELDS = (
    "device_name",
    "driver",
    "cuda",
    "torch",
    "threads",
    "pinned",
    "max_clock_mhz",
    "power_limit_w",
    "load",
)

#: Reason for kinds that were not fitted.
NO_TIME = "the time for fits was over; `llmviewer calibrate fit` takes as long as it needs"

OnProgress = Callable[[int, int, str], None]


@frozen(eq=False)
class FitInputs:
    """Inputs of a fit.

    chip_text: YAML generated for a chip without a spec; empty if it has one.  seconds: kinds that are not fitted by
    then are left out.
    """

    chip: Chip
    chip_text: str
    sources: tuple[TableSource, ...]
    gathered: FitData
    seconds: float = math.inf


@frozen
class FittedProfile:
    """Result of a fit.

    text: YAML of the profile.  fits: new ones.  kept: keys of fits of the profile that was extended.  whole: layers and
    models predicted with it.  power: shares of the board power, and their errors on held-out rows.
    """

    text: str
    fits: tuple[Fit, ...]
    whole: list[dict[str, Any]]
    kept: tuple[str, ...] = ()
    power: Mapping[str, float] = field(default_factory=dict)


def prepare(paths: Sequence[Path], hardware: str) -> FitInputs:
    """Read samples, and choose the chip and its rows.

    hardware: a chip by name or path; empty for the only device of the samples.
    """
    sources, unusable = read_usable(paths)
    words = devices.rows_by_device(frame for source in sources for _, frame in source.kernels)
    chip, matching = devices.choose_chip(words, hardware)
    sources = [_rows_of_devices(source, matching) for source in sources]
    chip_text = ""
    if chip is None:
        name = re.sub(r"[^a-z0-9]+", "-", matching[0].lower()).strip("-") or "device"  # used as a file name
        chip_text = measured_chip.text_of(name, sources)
        chip = measured_chip.chip(chip_text, name)
    gathered = fit_tables.gather([frame for source in sources for _, frame in source.kernels], chip)
    gathered.left_out.update(unusable)
    others = {word: rows for word, rows in words.items() if word not in matching}
    gathered.left_out.update({f"measured on {word}, not on {chip.name}": rows for word, rows in others.items()})
    if not gathered.samples:
        raise UserError(f"nothing to fit for {chip.name}: {refusals.lacking(gathered, sources)}")
    return FitInputs(chip=chip, chip_text=chip_text, sources=tuple(sources), gathered=gathered)


def fit_profile(
    inputs: FitInputs,
    title: str,
    origin: str = "",
    on_progress: OnProgress = lambda done, total, now: None,
    *,
    force: bool = False,
    extend: Profile | None = None,
) -> FittedProfile:
    """Fit, and predict whole layers and models.  force: store fits with absurd errors on held-out rows as well.

    origin: source of the rows, for the provenance.  on_progress: called with fits done, total fits and the current fit.
    extend: a profile of the chip whose fits of other keys are kept.
    """
    profile_file.kept_fits(extend, inputs.chip, ())  # refused before the fit, which takes minutes
    if not force:
        refusals.check_stable(inputs.gathered, inputs.sources)
    fits = _fits(inputs.gathered, on_progress, inputs.seconds)
    if not force:
        fits = refusals.without_absurd(fits, inputs.gathered)
    chip = inputs.chip
    versions = [str(source.environment["torch"]) for source in inputs.sources if "torch" in source.environment]
    fits = against.with_ratios(fits, inputs.gathered.samples, chip, next(iter(versions), ""))
    header = {**({"origin": origin} if origin else {}), **provenance(inputs, fits)}
    stored = [*profile_file.kept_fits(extend, chip, fits), *fits]
    if extend is not None:
        header, title = profile_file.merged_provenance(extend.provenance, header, stored), title or extend.title
    power, power_error = _power(inputs)
    text = profile_file.text_of(chip, title or _title(chip, inputs.sources), header, stored, power)
    own = profiles.parse(text, Path("profile.yaml"))
    predicted = list(whole.rows(inputs.sources, PredictionOptions(hardware=chip, profile=own)))
    kept = tuple(fit.key for fit in stored[: len(stored) - len(fits)])
    return FittedProfile(text=text, fits=fits, whole=predicted, kept=kept, power=power | power_error)


def document(inputs: FitInputs, found: FittedProfile, path: str, chip_path: str) -> dict[str, Any]:
    """JSON document: held-out errors of every fit by regime, and rows left out by reason."""
    errors = [{"fit": fit.key, "regime": regime, **error} for fit in found.fits for regime, error in fit.error.items()]
    return {
        "schema": SCHEMA,
        "profile": path,
        "chip": inputs.chip.name,
        "chip_file": chip_path or None,
        "fits": errors,
        "kept": list(found.kept),
        "power": dict(found.power),
        "whole": found.whole,
        "left_out": dict(inputs.gathered.left_out),
        "unstable": dict(inputs.gathered.unstable),
        "against": [
            {"fit": fit.key, "chip": chip, **ratios} for fit in found.fits for chip, ratios in fit.against.items()
        ],
        "more_rows": refusals.more_rows(inputs.gathered, inputs.sources) or None,
        "next": next_command(inputs, path, chip_path),
    }


def next_command(inputs: FitInputs, path: str, chip_path: str, model: str = "MODEL") -> str:
    """The command that uses a profile, with the chip's YAML if it has no spec; MODEL is the user's to name."""
    chip, profile, named = (refusals.in_shell(Path(word)) for word in (chip_path or inputs.chip.name, path, model))
    return f"llmviewer analyze {named} --hardware {chip} --profile {profile}"


def _rows_of_devices(source: TableSource, words: Sequence[str]) -> TableSource:
    """The source reduced to the rows of these devices."""
    tables = {name: frame[frame["device"].astype(str).isin(words)] for name, frame in source.tables.items()}
    kept = {name: frame for name, frame in tables.items() if len(frame)}
    return replace(source, tables=kept, environment=source.environment if kept else {})


def _fits(gathered: FitData, on_progress: OnProgress, seconds: float) -> tuple[Fit, ...]:
    """The fits that are made in so many seconds; the rows of the others are counted as left out."""
    samples, fits = gathered.samples, list[Fit]()
    on_progress(0, len(samples), samples[0].family)
    with suppress(OutOfTimeError), within(seconds):
        for fit in fit_tables.fit_all(samples):
            fits.append(fit)
            on_progress(len(fits), len(samples), fit.key)
    for sample in samples[len(fits) :]:
        gathered.left_out[f"{sample.key}: {NO_TIME}"] += sum(map(len, sample.folds))
    if not fits:
        raise UserError(f"no profile is written: {NO_TIME}")
    return tuple(fits)


def _power(inputs: FitInputs) -> tuple[dict[str, float], dict[str, float]]:
    """Shares of the board power that `--power` measured, and their errors; empty where no file has them."""
    for source in inputs.sources:
        if found := power_samples.own_shares(source.tables, inputs.chip, source.environment.get("power_limit_w")):
            own, error = found
            return {name: getattr(own, name) for name in ("idle", "compute", "memory", "link")}, error
    return {}, {}


def _title(chip: Chip, sources: Sequence[TableSource]) -> str:
    """Default title of a profile: the chip, and how its kernels were timed."""
    environment = [source.environment for source in sources if source.environment]
    how = f"kernels of torch {environment[0].get('torch', '?')}, measured" if environment else "kernels timed by others"
    return f"{chip.title}: {how}"


def provenance(inputs: FitInputs, fits: Sequence[Fit]) -> dict[str, Any]:
    """Provenance of the constants: software, device and date of each file, and rows used and left out."""
    sources, gathered = inputs.sources, inputs.gathered
    figures = measured_chip.measured_rates(sources)
    fitted_rows = int(sum(fit.rows["fitted"] for fit in fits))
    return {
        "kind": "fitted",
        "by": f"llmviewer {__version__} calibrate fit",
        "sources": [_source_summary(source) for source in sources if source.tables],
        "rows": {"fitted": fitted_rows, "unstable_among_them": gathered.unstable.total()},
        "left_out": dict(gathered.left_out),
        **({"measured": figures} if figures else {}),
    }


def _source_summary(source: TableSource) -> dict[str, Any]:
    found: dict[str, Any] = {"file": source.path.name}
    for column in ("source", "engine", "device"):
        found[column] = sorted({word for frame in source.tables.values() for word in _unique_words(frame, column)})
    environment: Mapping[str, Any] = source.environment
    if environment:
        found["date"] = str(environment.get("date", ""))[:10]
        found["environment"] = {
            name: environment[name] for name in ENVIRONMENT_FIELDS if environment.get(name) is not None
        }
    return found


def _unique_words(frame: pd.DataFrame, column: str) -> list[str]:
    return [str(word) for word in frame[column].dropna().unique()] if column in frame.columns else []
