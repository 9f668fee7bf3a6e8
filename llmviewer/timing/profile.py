"""Calibration profiles: fitted constants of a chip's kernels, with their range, error and spread; who lends to whom.

A file is a run of YAML documents: the head, then one fit each under the line `fit: family/variant/engine`.  Only the
fits that a model needs are parsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmviewer.core import data, parsing
from llmviewer.core.errors import UserError, quoted, shown
from llmviewer.hardware.chip import Chip

SCHEMA = "llmviewer.profile/1"
FOLDER = "calibrate/profiles"
#: What the first document may say.
HEAD = ("schema", "chip", "generation", "title", "fits", "provenance")
MOST_BYTES = 2**21
#: Whose constants a chip without a profile of its own takes, nearest first, by generation.
DONORS: dict[str, tuple[str, ...]] = {
    "hopper": ("h100-sxm", "a100-80gb-sxm", "h200"),
    "blackwell": ("h100-sxm", "a100-80gb-sxm", "h200"),
    "blackwell-gb20x": ("h100-sxm", "a100-80gb-sxm", "h200"),
    "ada": ("h100-sxm", "a100-80gb-sxm", "h200"),
    "cdna3": ("h100-sxm", "a100-80gb-sxm", "h200"),
    "cdna4": ("h100-sxm", "a100-80gb-sxm", "h200"),
}
#: Of every other generation: those of kernels without asynchronous copies.
DONORS_OF_OTHERS = ("a100-80gb-sxm", "h100-sxm", "h200")
#: Generations whose kernels are GPU kernels; of processors, TPUs and dataflow machines they say little.
GPUS = frozenset((*DONORS, "ampere", "ampere-ga10x", "turing", "volta", "cdna2"))
#: Quantiles of measured / predicted that a fit keeps: the bounds of its 95 and 80 % intervals.
QUANTILES = ("low95", "low80", "high80", "high95")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Constants of one kernel family.

    range: quantity -> least and largest value fitted on.  residuals: regime -> QUANTILES of measured / predicted on
    rows that the fit did not see.  error: regime -> its error there.  rows: fitted and held out.
    """

    family: str
    variant: str
    engine: str
    constants: Mapping[str, float]
    range: Mapping[str, tuple[float, float]]
    residuals: Mapping[str, tuple[float, float, float, float]]
    error: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """As a profile calls it."""
        return f"{self.family}/{self.variant}/{self.engine}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """The fits of one chip.  texts: key -> unparsed document."""

    chip: str
    title: str
    generation: str
    provenance: Mapping[str, Any]
    texts: Mapping[str, str]
    path: str
    parsed: dict[str, Fit] = field(default_factory=dict)

    def __contains__(self, key: str) -> bool:
        return key in self.texts

    def fit(self, key: str) -> Fit:
        """A fit by key; parsed once."""
        if key not in self.parsed:
            self.parsed[key] = _fit(key, _yaml(self.texts[key], self.path), self.path)
        return self.parsed[key]

    def engines(self, family: str, variant: str) -> Iterator[str]:
        """Engines whose kernels of a kind were fitted, in the order of the file."""
        for key in self.texts:
            if key.startswith(f"{family}/{variant}/"):
                yield key.rsplit("/", 1)[1]

    def variants(self, family: str) -> Iterator[str]:
        """Variants of a family, in the order of the file, each once."""
        yield from dict.fromkeys(key.split("/")[1] for key in self.texts if key.startswith(f"{family}/"))


def shipped(chip: str) -> Profile | None:
    """The profile that comes with the package for a chip of this name."""
    path = data.folder(FOLDER) / f"{chip}.yaml"
    return load(path) if path.is_file() else None


def sources(chip: Chip) -> tuple[Profile, ...]:
    """Profiles for a chip: its own, then those it borrows from, nearest first."""
    names = dict.fromkeys((chip.name, *DONORS.get(chip.generation, DONORS_OF_OTHERS)))
    return tuple(found for found in map(shipped, names) if found is not None)


def load(path: Path) -> Profile:
    """Read a profile, once as long as the file stays as it is.  Raises UserError: what is wrong with the file."""
    try:
        state = path.stat()
    except (OSError, ValueError):  # reading says why
        return _load(path, 0, 0)
    return _load(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=16)
def _load(path: Path, changed: int, size: int) -> Profile:
    return parse(data.read_text(path, MOST_BYTES), path)


def parse(text: str, path: Path) -> Profile:
    """A profile from its text.  path: where it stands, or will."""
    head, *documents = text.split("\n---\n")
    top = _yaml(head, str(path))
    if top.get("schema") != SCHEMA:
        raise UserError(f"'{shown(path)}' has schema {quoted(top.get('schema'))}; expected {SCHEMA}")
    data.check_keys(top, HEAD, ("chip", "provenance"), shown(path))
    if not isinstance(top["provenance"], Mapping):
        raise UserError(f"'{shown(path)}': provenance is {quoted(top['provenance'])}; expected a mapping")
    if not text.endswith("\n") or top.get("fits", len(documents)) != len(documents):
        raise UserError(f"'{shown(path)}' is cut off: {len(documents)} of its {top.get('fits', '?')} fits are there")
    texts = dict(_keyed(text, str(path)) for text in documents)
    return Profile(
        chip=str(top["chip"]),
        title=str(top.get("title", top["chip"])),
        generation=str(top.get("generation", "")),
        provenance=top["provenance"],
        texts=texts,
        path=data.shown_path(path),
    )


def _keyed(text: str, path: str) -> tuple[str, str]:
    first, _, rest = text.lstrip().partition("\n")
    label, _, key = first.partition(": ")
    if label != "fit" or key.count("/") != 2:
        raise UserError(f"'{shown(path)}': a document begins with {quoted(first)}; expected fit: family/variant/engine")
    return key.strip(), rest


def _yaml(text: str, path: str) -> dict[str, Any]:
    try:
        content = parsing.from_yaml(text)
    except ValueError as error:
        raise UserError(f"'{shown(path)}' cannot be read as YAML: {shown(error, 160)}") from error
    if not isinstance(content, dict):
        raise UserError(f"'{shown(path)}' holds {quoted(content)}; expected a mapping of fields")
    return content


def _fit(key: str, content: Mapping[str, Any], path: str) -> Fit:
    fields = ("constants", "range", "residuals", "error", "rows")
    data.check_keys(content, fields, fields[:3], f"{shown(path)}: {key}")
    family, variant, engine = key.split("/")
    try:
        found = Fit(
            family=family,
            variant=variant,
            engine=engine,
            constants={str(name): float(value) for name, value in content["constants"].items()},
            range={str(name): (float(low), float(high)) for name, (low, high) in content["range"].items()},
            residuals={name: _four(values) for name, values in content["residuals"].items()},
            error=content.get("error", {}),
            rows=content.get("rows", {}),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"'{shown(path)}': {key}: {shown(error, 120)}; expected numbers") from error
    _check(found, path)
    return found


def _check(fit: Fit, path: str) -> None:
    """Raise for what no fit gives: a constant, range or ratio that is no number, or below nothing."""
    named: dict[str, tuple[float, ...]] = {f"constants.{name}": (value,) for name, value in fit.constants.items()}
    named |= {f"range.{name}": ends for name, ends in fit.range.items()}
    named |= {f"residuals.{name}": bounds for name, bounds in fit.residuals.items()}
    for name, values in named.items():
        for value in values:
            if not 0.0 <= value < math.inf or (value == 0.0 and name.startswith("residuals")):
                raise UserError(f"'{shown(path)}': {fit.key}: {name} is {value:g}; expected a finite positive number")
        if list(values) != sorted(values):
            said = ", ".join(f"{value:g}" for value in values)
            raise UserError(f"'{shown(path)}': {fit.key}: {name} is {said}; expected it in rising order")


def _four(values: Any) -> tuple[float, float, float, float]:
    low95, low80, high80, high95 = map(float, values)
    return low95, low80, high80, high95
