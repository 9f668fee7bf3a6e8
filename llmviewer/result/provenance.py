"""Provenance of a result: source files and pages, the timing model, and assumptions."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmviewer.analysis import capacity
from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.engine_parts import REPORTED_SHARE, capacity_bytes
from llmviewer.core.ir import Place
from llmviewer.core.kinds import Kind
from llmviewer.core.version import __version__
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import is_hypothetical
from llmviewer.result import basis
from llmviewer.result.describe import sources, unknowns
from llmviewer.result.figures import price_of
from llmviewer.result.fusion_report import assumptions
from llmviewer.techniques.sparsity.expert_skew import SERVED_REPEAT
from llmviewer.timing.engine import ENGINE_ROUTING

#: Source of the framework memory, which an engine takes in addition to tensors.
FRAMEWORK_NOTE = (
    f"framework {capacity.FRAMEWORK_BYTES / 2**30:g} GiB: vLLM's non-torch memory on an H100, "
    f"{capacity.FRAMEWORK_SOURCE}"
)

#: Host times of a kernel that published runs of vLLM with enforce_eager imply: GPT-2 on an H200, Qwen2.5-7B on an A800.
UNCOMPILED = (
    "published runs took 35 and 68 us: https://github.com/deepspeedai/DeepSpeed/pull/8352 and "
    "https://github.com/vllm-project/vllm-omni/issues/7960"
)

#: Origin of ideal times.
SHEET = "roofline of the data sheet, a lower bound"
HYPOTHETICAL_NOTE = "hypothetical chip: kernels reach the same share of the new figures as of the real ones"

#: How draft tokens choose experts with the popularity of a preset.
RELATED_NOTE = f"experts: a draft token has {SERVED_REPEAT:.0%} of its experts in common with the one before it"


def provenance_object(analysis: Analysis, chip: Chip, fusions: list[dict[str, Any]], point: int) -> dict[str, Any]:
    """The provenance object of one point.  chip: the chip of this point.  fusions: rows of the fusion report."""
    calibration, price = analysis.calibration, price_of(chip)
    return {
        "llmviewer": __version__,
        "model": analysis.model.source,
        "hardware": chip.path,
        "times": SHEET if calibration is None else basis.summary(analysis, calibration, point),
        "figures": sources(chip),
        "price": None if price is None else {**price.to_dict(), "kind": price.kind, "term": price.term},
        "assumed": [
            *_memory(analysis, chip),
            *_version(analysis),
            *_rounds(analysis),
            *_launches(analysis),
            *unknowns(chip),
            *_host(analysis, chip),
            *_hypothetical(analysis, chip),
            *_kernels(analysis),
            *_routing(analysis),
            *assumptions(fusions, chip.name),
            *(applied.caveat for applied in analysis.system.passes if applied.caveat),
        ],
    }


def efficiency_object(analysis: Analysis, kind: str, point: int) -> dict[str, Any]:
    """The efficiency object: ideal, or calibrated with profile, engine and kernels.  kind: as given by the user."""
    calibration = analysis.calibration
    if calibration is None:
        bounds = {"bounds_all_chunks": True} if analysis.bounds_all_chunks else {}
        return {"kind": kind, "profile": None, **bounds}
    kernels = {key: found.to_dict() for key, found in calibration.selected.items()}
    shares = basis.time_by_basis(analysis, calibration, point)
    engine = analysis.system.engine
    known = {"profile": calibration.profile, "engine": engine.name, "engine_title": engine.called}
    return {"kind": kind, **known, "time_by_basis": shares, "kernels": kernels}


def _memory(analysis: Analysis, chip: Chip) -> list[str]:
    """Assumptions about memory that no tensor takes."""
    constants, engine = analysis.system.engine.memory, analysis.system.engine
    found = []
    if constants is None and np.any(analysis.memory.framework_bytes):
        found.append(FRAMEWORK_NOTE)
    if constants is not None and constants.assumed:
        assumed = ", ".join(constants.assumed)
        found.append(f"memory of {engine.name} {engine.known_version}: no log of this version states {assumed}")
    if chip.reported_memory_bytes is None and np.any(
        capacity_bytes(analysis.system) != analysis.system.chip.memory_bytes
    ):
        found.append(f"the driver reports {REPORTED_SHARE[chip.maker]:.0%} of {chip.name}'s memory")
    return found


def _version(analysis: Analysis) -> list[str]:
    """Versions of the engine whose time constants were used, if they are told apart."""
    engine = analysis.system.engine
    first = engine.first_version if analysis.calibration is not None else ""
    return [f"time of {engine.name}: constants of its versions from {first} on"] if first else []


def _rounds(analysis: Analysis) -> list[str]:
    """Assumption about the host time of rounds of speculation in the engine."""
    engine, verifies = analysis.system.engine, np.any(analysis.system.generation.verifies)
    return [engine.rounds.assumption(engine.name)] if verifies and engine.rounds.high else []


def _launches(analysis: Analysis) -> list[str]:
    """Assumption about the host time of kernels that are launched one by one, where it is not fitted."""
    engine = analysis.system.engine
    taken = f"enforce_eager: {engine.name} takes {engine.uncompiled:g} us to launch a kernel; {UNCOMPILED}"
    return [taken] if engine.is_uncompiled else []


def _hypothetical(analysis: Analysis, chip: Chip) -> list[str]:
    """Assumption about the kernels of a chip with other figures than the real one."""
    return [HYPOTHETICAL_NOTE] if is_hypothetical(chip) and analysis.calibration is not None else []


def _host(analysis: Analysis, chip: Chip) -> list[str]:
    """Assumption about operators on a host whose CPU rates are unknown."""
    if chip.host is None or chip.host.cpu is not None:
        return []
    operators = (row.operator for row in analysis.evaluation.rows)
    computes = any(op.kind is not Kind.COPY and np.any(op.moved_bytes(Place.HOST)) for op in operators)
    return [f"CPU of {chip.host.name}: rates unknown, only its memory bandwidth is modelled"] if computes else []


def _routing(analysis: Analysis) -> list[str]:
    """Assumption about the popularity of experts by the engine's preset."""
    engine = analysis.system.engine
    by_preset = any(applied.name == ENGINE_ROUTING for applied in analysis.system.passes)
    shapes = (row.operator.shape for row in analysis.evaluation.rows)
    if not by_preset or all(getattr(shape, "popularity", None) is None for shape in shapes):
        return []
    return [
        f"experts: popularity i^-{engine.expert_skew:g} in requests that {engine.name} serves; --expert-skew sets it",
        *([RELATED_NOTE] if np.any(analysis.system.generation.verifies) else []),
    ]


def _kernels(analysis: Analysis) -> list[str]:
    """Assumptions behind calibrated times."""
    calibration = analysis.calibration
    if calibration is None:
        return []
    if all(row.operator.is_kernel for row in analysis.evaluation.rows):
        return calibration.assumptions()
    from llmviewer.timing.calibrated import UNMEASURED_NOTE  # ideal times do not load the calibration

    return [*calibration.assumptions(), UNMEASURED_NOTE]
