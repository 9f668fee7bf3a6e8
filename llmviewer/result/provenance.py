"""Provenance of a result: source files and pages, the timing model, and assumptions."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmviewer.analysis import capacity
from llmviewer.analysis.analysis import Analysis
from llmviewer.core.ir import Place
from llmviewer.core.kinds import Kind
from llmviewer.core.version import __version__
from llmviewer.hardware.chip import Chip
from llmviewer.result.describe import sources, unknowns
from llmviewer.result.fusion_report import assumptions

#: Source of the framework memory, which an engine takes in addition to tensors.
FRAMEWORK_NOTE = (
    f"framework {capacity.FRAMEWORK_BYTES / 2**30:g} GiB: vLLM's non-torch memory on an H100, "
    f"{capacity.FRAMEWORK_SOURCE}"
)


def provenance_object(analysis: Analysis, chip: Chip, fusions: list[dict[str, Any]]) -> dict[str, Any]:
    """The provenance object of one point.  chip: the chip of this point.  fusions: rows of the fusion report."""
    calibration = analysis.calibration
    return {
        "llmviewer": __version__,
        "model": analysis.model.source,
        "hardware": chip.path,
        "times": "roofline of the data sheet, a lower bound" if calibration is None else calibration.summary(),
        "figures": sources(chip),
        "assumed": [
            *([FRAMEWORK_NOTE] if analysis.memory.framework_bytes else []),
            *unknowns(chip),
            *_host(analysis, chip),
            *_kernels(analysis),
            *assumptions(fusions, chip.name),
        ],
    }


def efficiency_object(analysis: Analysis, kind: str) -> dict[str, Any]:
    """The efficiency object: ideal, or calibrated with profile, engine and kernels.  kind: as given by the user."""
    calibration = analysis.calibration
    if calibration is None:
        bounds = {"bounds_all_chunks": True} if analysis.bounds_all_chunks else {}
        return {"kind": kind, "profile": None, **bounds}
    kernels = {key: found.to_dict() for key, found in calibration.selected.items()}
    return {"kind": kind, "profile": calibration.profile, "engine": analysis.system.engine.name, "kernels": kernels}


def _host(analysis: Analysis, chip: Chip) -> list[str]:
    """Assumption about operators on a host whose CPU rates are unknown."""
    if chip.host is None or chip.host.cpu is not None:
        return []
    operators = (row.operator for row in analysis.evaluation.rows)
    computes = any(op.kind is not Kind.COPY and np.any(op.moved_bytes(Place.HOST)) for op in operators)
    return [f"CPU of {chip.host.name}: rates unknown, only its memory bandwidth is modelled"] if computes else []


def _kernels(analysis: Analysis) -> list[str]:
    """Assumptions behind calibrated times."""
    calibration = analysis.calibration
    if calibration is None:
        return []
    if all(row.operator.is_kernel for row in analysis.evaluation.rows):
        return calibration.assumptions()
    from llmviewer.timing.calibrated import UNMEASURED_NOTE  # ideal times do not load the calibration

    return [*calibration.assumptions(), UNMEASURED_NOTE]
