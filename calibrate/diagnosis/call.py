"""`lv.diagnose`: a measured run against the prediction of the same work."""

from __future__ import annotations

import os
from math import nan
from pathlib import Path
from typing import Any

from llmviewer.api.configuration import Configuration, configuration
from llmviewer.calibrate.diagnosis.annotation import STAGES, Stated
from llmviewer.calibrate.diagnosis.comparison import compared
from llmviewer.calibrate.diagnosis.diagnosis import Diagnosis
from llmviewer.calibrate.diagnosis.parts import parts_of
from llmviewer.calibrate.diagnosis.readers import read
from llmviewer.calibrate.diagnosis.recording import Recording
from llmviewer.calibrate.diagnosis.steps import passes_of
from llmviewer.calibrate.diagnosis.suspects import Case, suspects_of
from llmviewer.core import arguments
from llmviewer.core.errors import UserError, unknown

#: Engine whose kernels are expected unless another one is named.
ENGINE = "vllm"


def diagnose(
    measured: str | os.PathLike[str],
    model: Any,
    hardware: Any,
    *,
    engine: str = ENGINE,
    batch_size: int | None = None,
    input_len: int | None = None,
    stage: str = "",
    **options: Any,
) -> Diagnosis:
    """Where a measured run lost its time against the prediction of the same work.

    measured: a profile (torch.profiler, Nsight Systems, rocprofv3).  batch_size, input_len, stage: the work of a pass,
    needed if the marks of the profile do not state it.  options: those of `analyze`.  Raises UserError.
    """
    path = Path(arguments.path_or_name("measured", os.fspath(measured)))
    facts = stated(batch_size, input_len, stage)
    chosen = configuration(model, hardware, engine=engine, **options)
    recording = read(path)
    if not isinstance(recording, Recording):
        raise UserError(f"'{path}' has sums of kernels without their order")
    return diagnosis_of(recording, chosen, facts, str(path))


def stated(batch_size: int | None, input_len: int | None, stage: str) -> Stated:
    """The facts of a pass that the user states, checked.  Raises UserError."""
    if stage and stage not in STAGES:
        raise unknown("stage", stage, STAGES)
    sizes = {"batch_size": batch_size, "input_len": input_len}
    known = {name: nan if size is None else float(arguments.whole_number(name, size)) for name, size in sizes.items()}
    return Stated(requests=known["batch_size"], length=known["input_len"], stage=stage)


def diagnosis_of(recording: Recording, chosen: Configuration, facts: Stated, source: str) -> Diagnosis:
    """The diagnosis of a recording on a configuration.  source: where it is from, for the page."""
    found = compared(chosen, passes_of(recording), facts)
    parts = tuple(parts_of(found))
    return Diagnosis(
        source=source,
        program=recording.program,
        model=chosen.model.name,
        hardware=chosen.chip.name,
        engine=chosen.options.engine,
        found=found,
        parts=parts,
        suspects=tuple(suspects_of(Case(found=found, parts=parts))),
        warnings=(*recording.notes, *chosen.model.notes),
    )
