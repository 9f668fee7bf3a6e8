"""Where the numbers of a result come from: files and pages, what makes times of rates, what is assumed."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmviewer.analysis import capacity
from llmviewer.analysis.analysis import Analysis
from llmviewer.core.ir import Kind, Place
from llmviewer.core.version import __version__
from llmviewer.hardware.chip import Chip
from llmviewer.result.describe import sources, unknowns
from llmviewer.result.fusion_report import assumptions

#: Where the size of what an engine holds beside tensors comes from.
FRAMEWORK_NOTE = (
    f"framework {capacity.FRAMEWORK_BYTES / 2**30:g} GiB: vLLM's non-torch memory on an H100, "
    f"{capacity.FRAMEWORK_SOURCE}"
)


def provenance_object(analysis: Analysis, chip: Chip, fusions: list[dict[str, Any]]) -> dict[str, Any]:
    """Sources and assumptions of one point.  chip: its own.  fusions: rows of the rules that fired."""
    calibration = analysis.calibration
    return {
        "llmviewer": __version__,
        "model": analysis.model.source,
        "hardware": chip.path,
        "times": "roofline of the data sheet, a lower bound" if calibration is None else calibration.sentence(),
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
    """What makes times of rates: the data sheet, or profiles and an engine.  kind: as asked for."""
    calibration = analysis.calibration
    if calibration is None:
        return {"kind": kind, "profile": None}
    kernels = {key: found.described() for key, found in calibration.known.items()}
    return {"kind": kind, "profile": calibration.profile, "engine": analysis.system.engine.name, "kernels": kernels}


def _host(analysis: Analysis, chip: Chip) -> list[str]:
    """What the host computes with where nobody states the rates of its CPU."""
    if chip.host is None or chip.host.cpu is not None:
        return []
    operators = (row.operator for row in analysis.evaluation.rows)
    computes = any(op.kind is not Kind.COPY and np.any(op.moved_bytes(Place.HOST)) for op in operators)
    return [f"CPU of {chip.host.name}: rates unknown, its memory alone takes time"] if computes else []


def _kernels(analysis: Analysis) -> list[str]:
    """What calibrated times rest on."""
    calibration = analysis.calibration
    if calibration is None:
        return []
    if all(row.operator.is_kernel for row in analysis.evaluation.rows):
        return calibration.assumptions()
    from llmviewer.timing.calibrated import UNTIMED_NOTE  # data sheets alone are not calibrated

    return [*calibration.assumptions(), UNTIMED_NOTE]
