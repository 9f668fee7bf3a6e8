"""Torch's kernels of a card beside those of cards with shipped profiles: how much longer the same rows take here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.calibrate import fit as fitting
from llmviewer.calibrate.fit import MIN_ROWS, Sample
from llmviewer.calibrate.tables import RowGroup
from llmviewer.core.counts import Array
from llmviewer.hardware.chip import Chip
from llmviewer.timing import profile as profiles
from llmviewer.timing.calibrated import REGIMES, calibrated
from llmviewer.timing.kernels.family import Constants
from llmviewer.timing.lending import adapt_constants
from llmviewer.timing.profile import Fit
from llmviewer.timing.scaling import MOVED, TORCH, torch_fit

#: Families whose kernels torch replaces from release to release: only rows of equal releases are compared.
OF_ONE_RELEASE = ("attention_prefill", "attention_decode")


def with_ratios(fits: Iterable[Fit], samples: Sequence[Sample], chip: Chip, torch: str) -> tuple[Fit, ...]:
    """The fits, those of torch with the ratios of their rows to other chips' constants (`Fit.against`).

    torch: version that timed the rows.  Only cards of MEASURED_MAKER are compared: others run other programs.
    """
    rows = {(one.family, one.variant): one.rows for one in samples if one.engine == TORCH}
    return tuple(
        replace(fit, against=against(fit, rows[fit.family, fit.variant], chip, torch)) if fit.engine == TORCH else fit
        for fit in fits
    )


def against(fit: Fit, rows: Sequence[RowGroup], chip: Chip, torch: str) -> dict[str, dict[str, float]]:
    """Chip -> regime -> median of measured times over those with that chip's constants of torch's kernels."""
    if fit.family not in MOVED or chip.maker != profiles.MEASURED_MAKER:
        return {}
    found = {}
    for source in profiles.sources(chip):
        key = torch_fit(source, f"{fit.family}/{fit.variant}")
        if key and (fit.family not in OF_ONE_RELEASE or _release(torch) in map(_release, _versions(source.provenance))):
            constants = adapt_constants(source.fit(key).constants, fit.family, source.chip, chip.generation)
            found[source.chip] = dict(_medians(*_ratios(rows, fit.family, constants)))
    return {name: ratios for name, ratios in found.items() if ratios}


def _ratios(rows: Sequence[RowGroup], family: str, constants: Constants) -> tuple[Array, Array]:
    """Measured over predicted time of every row, and its regime."""
    priced = fitting.with_constants(family, constants, calibrated(rows[0].chip, TORCH))
    parts = [fitting.predicted_seconds(part, priced) for part in rows]
    measured = np.concatenate([part.measured_s for part in rows])
    return measured / np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _medians(ratio: Array, regime: Array) -> Iterator[tuple[str, float]]:
    """Median ratio of each regime but that of short kernels, which say what a launch takes and nothing of the chip."""
    for at, name in enumerate(REGIMES):
        if at and np.sum(regime == at) >= MIN_ROWS:
            yield name, round(float(np.median(ratio[regime == at])), 4)


def _release(version: str) -> tuple[str, ...]:
    """Major and minor number of a version of torch: 2 and 11 of 2.11.0+cu130."""
    return tuple(version.split(".")[:2])


def _versions(provenance: Mapping[str, Any]) -> Iterator[str]:
    """Versions of torch whose kernels a profile has."""
    for source in provenance.get("sources", ()):
        if "torch" in source.get("environment", {}):
            yield str(source["environment"]["torch"])
