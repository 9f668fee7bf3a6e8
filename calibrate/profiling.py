"""Samples -> a profile: which chip, which rows, the fits, and whole layers and models predicted with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llmviewer
from llmviewer.calibrate import devices, fit_tables, measured_chip, profile_file, whole
from llmviewer.calibrate.fit_tables import Gathered
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.calibrate.sources import WHOLE, TableSource, read_all
from llmviewer.core.errors import UserError
from llmviewer.hardware.chip import Chip
from llmviewer.timing import profile as profiles
from llmviewer.timing.profile import Fit

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.fit/1"
#: Of the environment of samples what a profile keeps.
KEPT = ("device_name", "driver", "cuda", "torch", "threads", "pinned", "max_clock_mhz", "power_limit_w", "load")

Seen = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """What will be fitted.  chip_text: the YAML of a chip that nobody described before; empty: there is one."""

    chip: Chip
    chip_text: str
    sources: tuple[TableSource, ...]
    gathered: Gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What a fit has made.  text: of the profile.  whole: layers and models predicted with it."""

    text: str
    fits: tuple[Fit, ...]
    whole: list[dict[str, Any]]


def prepared(paths: Sequence[Path], wanted: str) -> Prepared:
    """Read, choose the chip and its rows.  wanted: a chip by name or path; empty: the one device of the samples."""
    sources = read_all(paths)
    words = devices.counted(frame for source in sources for _, frame in source.kernels)
    chip, meant = devices.chosen(words, wanted)
    sources = [_of(source, meant) for source in sources]
    chip_text = ""
    if chip is None:
        name = re.sub(r"[^a-z0-9]+", "-", meant[0].lower()).strip("-") or "device"  # it names a file
        chip_text = measured_chip.text_of(name, sources)
        chip = measured_chip.chip(chip_text, name)
    gathered = fit_tables.gather([frame for source in sources for _, frame in source.kernels], chip)
    others = {word: rows for word, rows in words.items() if word not in meant}
    gathered.left_out.update({f"measured on {word}, not on {chip.name}": rows for word, rows in others.items()})
    if not gathered.samples:
        why = "; ".join(f"{rows} rows: {reason}" for reason, rows in gathered.left_out.items())
        raise UserError(f"nothing to fit for {chip.name}: {why or 'no rows of kernels'}")
    return Prepared(chip=chip, chip_text=chip_text, sources=tuple(sources), gathered=gathered)


def fitted(asked: Prepared, title: str, origin: str = "", seen: Seen = lambda done, total, now: None) -> Fitted:
    """Fit, and predict layers and models.  origin: where the rows come from.  seen: told fits done, all, and which."""
    fits = tuple(_fits(asked.gathered, seen))
    chip = asked.chip
    said = {**({"origin": origin} if origin else {}), **provenance(asked)}
    text = profile_file.text_of(chip, title or _title(chip, asked.sources), said, fits)
    own = profiles.parse(text, Path("profile.yaml"))
    return Fitted(text=text, fits=fits, whole=list(_whole(asked.sources, PredictionOptions(hardware=chip, own=own))))


def document(asked: Prepared, found: Fitted, path: str, chip_path: str) -> dict[str, Any]:
    """As JSON: errors of every fit on rows that it did not see, by regime; what was left out and why."""
    errors = [{"fit": fit.key, "regime": regime, **error} for fit in found.fits for regime, error in fit.error.items()]
    return {
        "schema": SCHEMA,
        "profile": path,
        "chip": asked.chip.name,
        "chip_file": chip_path or None,
        "fits": errors,
        "whole": found.whole,
        "left_out": dict(asked.gathered.left_out),
        "unstable": dict(asked.gathered.unstable),
    }


def _of(source: TableSource, words: Sequence[str]) -> TableSource:
    """The rows of some devices alone."""
    tables = {name: frame[frame["device"].astype(str).isin(words)] for name, frame in source.tables.items()}
    kept = {name: frame for name, frame in tables.items() if len(frame)}
    return replace(source, tables=kept, environment=source.environment if kept else {})


def _fits(gathered: Gathered, seen: Seen) -> Iterable[Fit]:
    total = len(gathered.samples)
    seen(0, total, gathered.samples[0].family)
    for done, fit in enumerate(fit_tables.fits(gathered.samples), 1):
        seen(done, total, fit.key)
        yield fit


def _whole(sources: Sequence[TableSource], asked: PredictionOptions) -> Iterable[dict[str, Any]]:
    for source in sources:
        for table in WHOLE:
            if table in source.tables:
                yield from whole.described(whole.predict(source.tables[table], table, asked), table)


def _title(chip: Chip, sources: Sequence[TableSource]) -> str:
    """By us or by others, and how."""
    said = [source.environment for source in sources if source.environment]
    how = f"kernels of torch {said[0].get('torch', '?')}, measured" if said else "kernels timed by others"
    return f"{chip.title}: {how}"


def provenance(asked: Prepared) -> dict[str, Any]:
    """Where the constants come from: of each file the software, device and date, and rows used and left out."""
    sources, gathered = asked.sources, asked.gathered
    figures = measured_chip.figures(sources)
    fitted_rows = sum(sum(map(len, sample.folds)) for sample in gathered.samples)
    return {
        "kind": "fitted",
        "by": f"llmviewer {llmviewer.__version__} calibrate fit",
        "sources": [_described(source) for source in sources if source.tables],
        "rows": {"fitted": fitted_rows, "unstable_among_them": gathered.unstable.total()},
        "left_out": dict(gathered.left_out),
        **({"measured": figures} if figures else {}),
    }


def _described(source: TableSource) -> dict[str, Any]:
    found: dict[str, Any] = {"file": source.path.name}
    for column in ("source", "engine", "device"):
        found[column] = sorted({word for frame in source.tables.values() for word in _words(frame, column)})
    said: Mapping[str, Any] = source.environment
    if said:
        found["date"] = str(said.get("date", ""))[:10]
        found["environment"] = {name: said[name] for name in KEPT if said.get(name) is not None}
    return found


def _words(frame: pd.DataFrame, column: str) -> list[str]:
    return [str(word) for word in frame[column].dropna().unique()] if column in frame.columns else []
