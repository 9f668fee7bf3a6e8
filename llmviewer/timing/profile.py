"""Calibration profiles: fitted constants of a chip's kernels with range, error and spread, and donors of constants.

A file is a sequence of YAML documents: a header, then one fit each, after a line `fit: family/variant/engine`.  Only
the fits that a model needs are parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from llmviewer.core import data, files
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, printable, quoted
from llmviewer.core.frozen import frozen
from llmviewer.hardware.chip import Chip
from llmviewer.language import record
from llmviewer.language.record import ABSENT, stated

SCHEMA = "llmviewer.profile/1"
FOLDER = "calibrate/profiles"
MAX_BYTES = 2**21
#: Generation of a chip without a profile of its own -> chips that lend it constants, nearest first.
DONORS: dict[str, tuple[str, ...]] = {
    "hopper": ("h100-sxm", "h200", "a100-80gb-sxm"),
    "blackwell": ("b200", "h100-sxm", "h200", "a100-80gb-sxm"),
    "blackwell-gb20x": ("rtx-pro-6000-server", "l40s", "h100-sxm", "a100-80gb-sxm", "h200"),
    "ada": ("l40s", "rtx-pro-6000-server", "h100-sxm", "a100-80gb-sxm", "h200"),
    "ampere-ga10x": ("a100-80gb-sxm", "l40s", "h100-sxm", "h200"),
    "xe2": ("arc-pro-b60", "a100-80gb-sxm", "h100-sxm", "h200"),
    "cdna3": ("mi300x", "mi355x", "h100-sxm", "a100-80gb-sxm", "h200"),
    "cdna4": ("mi355x", "mi300x", "h100-sxm", "b200", "a100-80gb-sxm", "h200"),
}
#: Donors of all other generations: first the chip whose kernels use no asynchronous copies.
DEFAULT_DONORS = ("a100-80gb-sxm", "h100-sxm", "l40s", "h200")
#: Maker of measured chips of several generations: its other chips run the same engines' kernels.
MEASURED_MAKER = "NVIDIA"
#: Generations with GPU kernels; constants of these say little about CPUs, TPUs and dataflow chips.
GPU_GENERATIONS = frozenset({*DONORS, "ampere", "turing", "volta", "cdna2"} - {"xe2"})
#: Quantiles of measured / predicted that a fit stores: the bounds of its 95 and 80 % intervals.
QUANTILES = ("low95", "low80", "high80", "high95")
#: Sides of these bounds, and their distance over that of an 80 % bound (normal distribution).
SIGNS = np.array([-1.0, -1.0, 1.0, 1.0])[:, None]
WIDTH_OVER_80 = np.array([1.53, 1.0, 1.0, 1.53])[:, None]
RATIOS = record.numbers(len(QUANTILES), record.ABOVE_ZERO, rising=True)


def farther(bounds: Array, others: Array) -> Array:
    """The wider of two intervals on either side: the smaller lower bounds, the larger upper ones; shape (4, points)."""
    return SIGNS * np.maximum(SIGNS * bounds, SIGNS * others)


@frozen
class Fit:
    """Fitted constants of one kernel family.

    range: quantity -> smallest and largest fitted value.  residuals: regime -> QUANTILES of measured / predicted on
    held-out rows.  error: regime -> error on held-out rows.  rows: number of rows, and of folds.  against: chip ->
    regime -> median of the rows' times over those with that chip's constants of the same kernels.
    """

    family: str
    variant: str
    engine: str
    constants: Mapping[str, float]
    range: Mapping[str, tuple[float, float]] = field(metadata=stated(record.mapped(record.numbers(2, rising=True))))
    residuals: Mapping[str, tuple[float, float, float, float]] = field(metadata=stated(record.mapped(RATIOS)))
    error: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict, metadata=stated(record.mapped(record.mapped(record.unchanged(record.ANY_NUMBER))))
    )
    rows: Mapping[str, int] = field(default_factory=dict)
    against: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict, metadata=stated(record.mapped(record.mapped(record.ABOVE_ZERO)))
    )

    @property
    def key(self) -> str:
        """Key in a profile: family/variant/engine."""
        return f"{self.family}/{self.variant}/{self.engine}"


@frozen(eq=False)
class Profile:
    """All fits of one chip.

    texts: key -> unparsed YAML document.  kinds: family -> variant and engine of its fits.  power: shares of the board
    power that this card draws, as of `PowerShares`; empty if they were not measured.
    """

    chip: str
    title: str = ""
    generation: str = ""
    provenance: Mapping[str, Any] = field(metadata=stated(record.mapping))
    power: Mapping[str, float] = field(default_factory=dict, metadata=stated(record.mapped(record.NUMBER)))
    texts: Mapping[str, str]
    path: str
    parsed: dict[str, Fit] = field(default_factory=dict, metadata=ABSENT)
    kinds: Mapping[str, tuple[tuple[str, str], ...]] = field(init=False)

    def __post_init__(self) -> None:
        found: dict[str, list[tuple[str, str]]] = {}
        for key in self.texts:
            family, variant, engine = key.split("/")
            found.setdefault(family, []).append((variant, engine))
        object.__setattr__(self, "kinds", {family: tuple(fits) for family, fits in found.items()})

    def __contains__(self, key: str) -> bool:
        return key in self.texts

    def fit(self, key: str) -> Fit:
        """The fit of a key, parsed once."""
        if key not in self.parsed:
            self.parsed[key] = fit_of(key, data.mapping(self.texts[key], self.path, "YAML"), self.path)
        return self.parsed[key]

    def fits_of(self, family: str) -> tuple[tuple[str, str], ...]:
        """Variant and engine of every fit of a family, in the order of the file."""
        return self.kinds.get(family, ())


#: Profiles that were read.
PROFILES: files.CacheOfFiles[Profile] = files.CacheOfFiles()


def shipped(chip: str) -> Profile | None:
    """The profile of a chip that the package contains, or None."""
    if Path(chip).name != chip:  # a chip of the user's own fields may have any name
        return None
    path = data.folder(FOLDER) / f"{chip}.yaml"
    files.record(path)
    return load(path) if path.is_file() else None


def sources(chip: Chip) -> tuple[Profile, ...]:
    """Profiles for a chip: its own, then those of its donors, nearest first."""
    names = dict.fromkeys((chip.name, *DONORS.get(chip.generation, DEFAULT_DONORS)))
    return tuple(found for found in map(shipped, names) if found is not None)


def load(path: Path) -> Profile:
    """Read a profile; cached until the file changes.  Raises UserError for an invalid file."""
    files.record(path)
    return PROFILES.get(str(path), lambda: parse(data.read_text(path, MAX_BYTES), path))


def parse(text: str, path: Path) -> Profile:
    """A profile from its text.  path: location of the file, for messages."""
    head, *documents = text.split("\n---\n")
    top = data.mapping(head, path, "YAML")
    if top.get("schema") != SCHEMA:
        raise UserError(f"'{printable(path)}' has schema {quoted(top.get('schema'))}; expected {SCHEMA}")
    beside = {"schema": record.text, "fits": record.whole()}
    own, found = record.split(Profile, top, printable(path), beside=beside, given=("texts", "path"))
    if not text.endswith("\n") or found.get("fits", len(documents)) != len(documents):
        raise UserError(
            f"'{printable(path)}' is truncated: {len(documents)} of {found.get('fits', '?')} fits are present"
        )
    texts = dict(_split_document(text, str(path)) for text in documents)
    return Profile(**{"title": own["chip"], **own}, texts=texts, path=data.display_path(path))


def _split_document(text: str, path: str) -> tuple[str, str]:
    first, _, rest = text.lstrip().partition("\n")
    label, _, key = first.partition(": ")
    if label != "fit" or key.count("/") != 2:
        raise UserError(
            f"'{printable(path)}': a document starts with {quoted(first)}; expected fit: family/variant/engine"
        )
    return key.strip(), rest


def fit_of(key: str, content: Mapping[str, Any], path: str) -> Fit:
    """The fit in a document of a profile at `path`.  Raises UserError."""
    family, variant, engine = key.split("/")
    return record.read(Fit, content, f"{printable(path)}: {key}", family=family, variant=variant, engine=engine)
