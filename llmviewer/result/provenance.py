"""Provenance of a result: source files and pages, the timing model, and assumptions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from llmviewer.analysis import capacity
from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.compute_buffers import TABLE_ON_HOST
from llmviewer.analysis.engine_parts import REPORTED_SHARE, capacity_bytes
from llmviewer.analysis.memory import Memory
from llmviewer.analysis.system import System
from llmviewer.core.ir import Place
from llmviewer.core.kinds import Kind
from llmviewer.core.version import __version__
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import is_hypothetical
from llmviewer.models.model import Model
from llmviewer.result import interval
from llmviewer.result.costs import Costs
from llmviewer.result.describe import sources, unknowns
from llmviewer.result.stages import ValueOf, assumptions, value_at, values_of_stage
from llmviewer.timing.calibrated import Calibrated, SelectedFit
from llmviewer.timing.engine import ENGINE_ROUTING, OTHER_GENERATION
from llmviewer.timing.engine_memory import PCIE, EngineMemory
from llmviewer.timing.lending import ASSUMED, MEASURED, OTHER_ENGINE

#: Parts of the weights beside the language model, as `Memory.parts` names them -> why they are there.
WEIGHT_PARTS = {
    "vision tower": "stored in 16 bit beside the language model, its projector included",
    "rotary tables": "cosines and sines up to the model's maximum context",
    "allocator's rounding": "segments of 2 MiB of PyTorch's allocator",
    "padding of MXFP4 experts": "rows and columns padded for the engine's kernels",
}


def memory_items(model: Model, system: System, memory: Memory) -> list[dict[str, Any]]:
    """Items of one point: name, the field of the memory object that contains it (`within`), bytes, basis and note.

    basis: `counted` from the shapes of the model, `measured` constants of the engine's version, or `assumed`.
    """
    constants = system.engine.memory
    rows = _plain(system, memory) if constants is None else _of_engine(system, memory, constants)
    names = ("name", "within", "bytes", "basis", "note")
    items = [dict(zip(names, row, strict=True)) for row in rows]
    return [{**item, "bytes": round(float(np.max(item["bytes"])))} for item in items if np.max(item["bytes"])]


def _plain(system: System, memory: Memory) -> Iterator[tuple[Any, ...]]:
    vision, free = memory.parts.get("vision tower", 0.0), system.engine.free_memory
    where = "without the table of tokens, which the host stores" if TABLE_ON_HOST in memory.parts else ""
    yield "language model", "weights_bytes", memory.weights_bytes - vision, "counted", where
    yield "vision tower", "weights_bytes", vision, "counted", WEIGHT_PARTS["vision tower"]
    yield "KV cache", "kv_cache_bytes", memory.kv_cache_bytes, "counted", "of this workload"
    counted = ("activations", "peak of live tensors"), ("compute buffers", "for one micro-batch")
    peak = counted[bool(free and free.buffers)]
    yield peak[0], "activations_bytes", memory.activations_bytes, "counted", peak[1]
    basis = "assumed" if free is None else "measured"
    yield "framework", "framework_bytes", memory.framework_bytes, basis, "CUDA context and libraries"


def _of_engine(system: System, memory: Memory, constants: EngineMemory) -> Iterator[tuple[Any, ...]]:
    parts = memory.parts
    beside = sum(parts[name] for name in WEIGHT_PARTS)
    yield "language model", "weights_bytes", memory.weights_bytes - beside, "counted", ""
    for name, why in WEIGHT_PARTS.items():
        yield name, "weights_bytes", parts[name], "counted", why
    yield "KV cache", "kv_cache_bytes", memory.kv_cache_bytes, "counted", "of this workload"
    yield _activations(memory, constants)
    if np.isfinite(parts["sampler"]):
        basis = constants.basis("vision_gib")
        yield "vision encoder", "activations_bytes", parts["vision"], basis, "what its profiling run adds"
    pair = "pcie_group_gib" if system.chip.default_link in PCIE else "group_gib"
    names = ("alone_gib",) if system.parallelism.tensor == 1 else (pair, "member_gib")
    note = "CUDA context and libraries" + ("" if len(names) == 1 else ", buffers of the tensor group")
    yield "outside PyTorch", "framework_bytes", memory.framework_bytes, constants.basis(*names), note
    where = "in the budget" if constants.graphs_in_budget else "beside the budget, not in the total"
    within = "cuda_graphs_bytes" if constants.graphs_in_budget else ""
    size = memory.cuda_graphs_bytes if constants.graphs_in_budget else parts["CUDA graphs"]
    yield "CUDA graphs", within, size, constants.basis("graph_gib"), where


def _activations(memory: Memory, constants: EngineMemory) -> tuple[Any, ...]:
    """The peak of the profiling run and the part of a pass that sets it."""
    parts = memory.parts
    if not np.isfinite(parts["sampler"]):
        return "activations", "activations_bytes", memory.activations_bytes, "counted", "peak of live tensors"
    sampled = parts["sampler"] >= parts["layer"]
    tokens, sequences = f"{constants.tokens:,.0f}", f"{min(constants.sequences, constants.tokens):,.0f}"
    what = f"sampling for {sequences} sequences" if sampled else f"a layer on {tokens} tokens"
    basis = constants.basis("logit_bytes" if sampled else "layer_hidden")
    size = max(parts["sampler"], parts["layer"])
    return "profiling run", "activations_bytes", size, basis, f"{what}; reserved whatever the workload"


#: Basis of lending.BASES -> the words for it; all others are transferred from other chips.
WORDS = {MEASURED: "measured", OTHER_ENGINE: "another engine's on this chip", ASSUMED: "assumed"}
TRANSFERRED = "transferred"
#: Smallest share of the time that is told.
LEAST_SHARE = 0.005


def time_by_basis(analysis: Analysis, calibration: Calibrated, point: int) -> dict[str, float]:
    """Share of the kernels' time of a request by basis, nearest first; its decode steps count as the one shown."""
    seconds = dict.fromkeys((*WORDS.values(), TRANSFERRED), 0.0)
    for found, spent in _fits(analysis, calibration, point):
        seconds[WORDS.get(found.basis, TRANSFERRED)] += spent
    order = (WORDS[MEASURED], WORDS[OTHER_ENGINE], TRANSFERRED, WORDS[ASSUMED])
    whole = sum(seconds.values())
    return {name: seconds[name] / whole for name in order if seconds[name]}


def _fits(analysis: Analysis, calibration: Calibrated, point: int) -> Iterator[tuple[SelectedFit, float]]:
    """The fit of every kernel of a request, with its time over all layers and passes [s]."""
    steps = 0.0 if analysis.model.is_encoder else max(value_at(analysis.request.output_len, point) - 1.0, 0.0)
    for stage, passes in (("prefill", 1.0), ("decode", steps)):
        if passes:
            at, _ = values_of_stage(analysis.schedule, stage, point)
            yield from _fits_of_stage(analysis, calibration, at, passes)


def _fits_of_stage(
    analysis: Analysis, calibration: Calibrated, at: ValueOf, passes: float
) -> Iterator[tuple[SelectedFit, float]]:
    for row in analysis.evaluation.rows:
        seconds = at(row.timing.time_s) * row.block.repeats * passes if row.operator.is_kernel else 0.0
        if seconds > 0.0:
            yield calibration.fit_in(row.operator, at), seconds


def summary(analysis: Analysis, calibration: Calibrated, point: int) -> str:
    """One line about the origin of the times: `kernels measured on h200 for 62 % of their time, assumed for 38 %`."""
    shares = {
        name: share for name, share in time_by_basis(analysis, calibration, point).items() if share >= LEAST_SHARE
    }
    donors = {found.chip for found, _ in _fits(analysis, calibration, point) if found.basis not in WORDS}
    own, here = shares.get(WORDS[MEASURED], 0.0), f"kernels measured on {calibration.chip}"
    words = {
        WORDS[MEASURED]: here,
        WORDS[OTHER_ENGINE]: f"{'' if own else f'{here}, '}those of another engine",
        TRANSFERRED: f"transferred from {', '.join(sorted(donors))}",
        WORDS[ASSUMED]: WORDS[ASSUMED],
    }
    listed = [
        words[name] + ("" if len(shares) == 1 else f" for {100.0 * share:.0f} %") for name, share in shares.items()
    ]
    if len(listed) > 1:
        listed[0] += " of their time"
    if own and len(listed) == 1:
        return listed[0]
    unmeasured = "" if own or WORDS[OTHER_ENGINE] in shares else "kernels not measured on this chip: "
    return f"{unmeasured}{', '.join(listed)}; intervals widened"


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


def provenance_object(
    analysis: Analysis, chip: Chip, fusions: list[dict[str, Any]], point: int, costs: Costs
) -> dict[str, Any]:
    """The provenance object of one point.  chip: the chip of this point.  fusions: rows of the fusion report."""
    calibration, price = analysis.calibration, costs.price_of(chip)
    return {
        "llmviewer": __version__,
        "model": analysis.model.source,
        "hardware": chip.path,
        "times": SHEET if calibration is None else summary(analysis, calibration, point),
        "figures": sources(chip),
        "price": None if price is None else price.to_dict(),
        "assumed": [
            *_memory(analysis, chip),
            *_version(analysis),
            *_runs(analysis, point),
            *_rounds(analysis),
            *_launches(analysis),
            *unknowns(chip),
            *_host(analysis, chip),
            *([HYPOTHETICAL_NOTE] if is_hypothetical(chip) and analysis.calibration is not None else ()),
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
    shares = time_by_basis(analysis, calibration, point)
    engine = analysis.system.engine
    known = {"profile": calibration.profile, "engine": engine.name, "engine_title": engine.called}
    return {"kind": kind, **known, "time_by_basis": shares, "kernels": kernels}


def _memory(analysis: Analysis, chip: Chip) -> list[str]:
    """Assumptions about memory that no tensor takes."""
    constants, engine = analysis.system.engine.memory, analysis.system.engine
    found = []
    if constants is None and engine.free_memory is None and np.any(analysis.memory.framework_bytes):
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
    if engine.own and engine.beyond != OTHER_GENERATION:
        return [f"time of {engine.own.name}: {engine.own.source}; its other constants are {engine.own.base}'s"]
    first = engine.first_version if analysis.calibration is not None else ""
    return [f"time of {engine.name}: constants of its versions from {first} on"] if first else []


def _runs(analysis: Analysis, point: int) -> list[str]:
    """Sentences about what lies outside the runs of the engine's fit, and by how much intervals are wider for it."""
    found = []
    for name, metric in () if analysis.calibration is None else (("TTFT", "ttft_s"), ("TPOT", "tpot_s")):
        errors = {what: value_at(error, point) for what, error in interval.errors_beyond(analysis, metric).items()}
        beyond, whole = [what for what, error in errors.items() if error > 0.0], math.hypot(*errors.values())
        if beyond:
            engine = own.name if (own := analysis.system.engine.own) else analysis.system.engine.name
            listed = " and ".join(filter(None, (", ".join(beyond[:-1]), beyond[-1])))
            found.append(
                f"{name}: beyond the runs of {engine}'s fit in {listed}; interval ±{100.0 * whole:.0f} % wider"
            )
    return found


def _rounds(analysis: Analysis) -> list[str]:
    """Assumption about the host time of rounds of speculation in the engine."""
    engine, verifies = analysis.system.engine, np.any(analysis.system.generation.verifies)
    return [engine.rounds.assumption(engine.name)] if verifies and engine.rounds.high else []


def _launches(analysis: Analysis) -> list[str]:
    """Assumption about the host time of kernels that are launched one by one, where it is not fitted."""
    engine = analysis.system.engine
    taken = f"enforce_eager: {engine.name} takes {engine.uncompiled:g} us to launch a kernel; {UNCOMPILED}"
    return [taken] if engine.is_uncompiled else []


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
    from llmviewer.techniques.sparsity.expert_skew import SERVED_REPEAT  # few models have experts

    related = f"experts: a draft token has {SERVED_REPEAT:.0%} of its experts in common with the one before it"
    return [
        f"experts: popularity i^-{engine.expert_skew:g} in requests that {engine.name} serves; --expert-skew sets it",
        *([related] if np.any(analysis.system.generation.verifies) else []),
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
