"""`lv.diagnose`: a measured run against the prediction of the same work."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.api.configuration import Configuration, configuration
from llmviewer.calibrate.diagnosis.annotation import STAGES, Stated
from llmviewer.calibrate.diagnosis.assignment import as_recorded
from llmviewer.calibrate.diagnosis.comparison import compared
from llmviewer.calibrate.diagnosis.diagnosis import Diagnosis, details_of
from llmviewer.calibrate.diagnosis.doubts import Doubt, doubts_of
from llmviewer.calibrate.diagnosis.parts import parts_of
from llmviewer.calibrate.diagnosis.readers import read
from llmviewer.calibrate.diagnosis.recording import Recording, Summary, passes_of
from llmviewer.calibrate.diagnosis.requests import diagnosis_of_result, diagnosis_of_summary, is_result, stated_of
from llmviewer.calibrate.diagnosis.samples import compared_samples, is_own
from llmviewer.calibrate.diagnosis.suspects import Case, suspects_of
from llmviewer.calibrate.diagnosis.times import Comparison
from llmviewer.calibrate.readers.torch_profiler import is_table
from llmviewer.core import arguments
from llmviewer.core.errors import unknown
from llmviewer.core.frozen import frozen
from llmviewer.language.option import Kind, Option, taking
from llmviewer.techniques.options import RUN_OPTIONS

if TYPE_CHECKING:
    from typing import Unpack

    from llmviewer.api.calls import ChipName, ModelName
    from llmviewer.api.keywords import DiagnosisOptions

#: Options that state the work of a pass, with their defaults.
WORK = {
    "batch_size": Option(kind=Kind.WHOLE, help="Requests of a pass, if not marked."),
    "input_len": Option(kind=Kind.WHOLE, help="Prompt length, or keys of a decode step."),
    "output_len": Option(kind=Kind.WHOLE, help="Output length of a request."),
    "stage": Option(
        kind=Kind.WORD, default="", choices=("", *STAGES), closed=True, help="prefill or decode, if not marked."
    ),
    "passes": Option(kind=Kind.WHOLE, help="Forward passes that a table of kernels has."),
}
OWN = {
    "measured": Option(
        kind=Kind.TEXT,
        argument=True,
        help=f"A profile ({arguments.RECORDERS}), a result ({arguments.BENCHMARKS}), or samples.",
        json={
            "type": "string",
            "description": f"Path of a recorded run: a profile ({arguments.RECORDERS}), or the result of a benchmark"
            f" ({arguments.BENCHMARKS}).",
        },
    ),
    **WORK,
}


#: Beginning of the marks of an engine -> its preset, and the preset without any mark that is known.
ENGINES = {"step[": "sglang", "execute_": "vllm", "[Executor] _forward_step": "trtllm"}
ENGINE, PLAIN_TORCH, KERNELS = "vllm", "torch-eager", "kernels"


@taking(WORK, RUN_OPTIONS, defaults={"engine": ""})
def diagnose(
    measured: str | os.PathLike[str],
    model: ModelName,
    hardware: ChipName,
    **given: Unpack[DiagnosisOptions],
) -> Diagnosis:
    """The diagnosis of a measured run: where it lost time against the prediction of the same work.

    measured: a profile, the result of a benchmark (programs: docs/guide/diagnose.md), or samples of `calibrate run`.
    options: those of `analyze`, and what the file does not state: batch_size, input_len and stage of a pass, output_len
    of a request, passes of a table of kernels.  engine: "" for that of the marks.  Raises UserError.
    """
    path = Path(arguments.path_or_name("measured", os.fspath(measured)))
    engine = given.get("engine", "")
    options: dict[str, Any] = {name: one for name, one in given.items() if name not in (*WORK, "engine")}
    work: dict[str, Any] = {name: given.get(name, one.default) for name, one in WORK.items()}
    facts = stated(work["batch_size"], work["input_len"], work["stage"])
    names, said = (str(hardware), str(model)), {**options, **work, "engine": engine}
    if is_own(path):
        chosen = configuration(model, hardware, engine=engine or KERNELS, **options)
        return _noting(diagnosis_of_samples(path, chosen), work, WORK, "samples state their sizes")
    if is_result(path):
        of_run = () if is_table(path) else ("stage", "passes")
        return _noting(
            diagnosis_of_result(path, stated_of(*names, said)), work, of_run, "a result is of whole requests"
        )
    recording = read(path)
    engine = engine or engine_of(recording)
    chosen = configuration(model, hardware, engine=engine, **options)
    if isinstance(recording, Summary):
        made = diagnosis_of_summary(recording, stated_of(*names, {**said, "engine": engine}), chosen, str(path))
    else:
        made = diagnosis_of(recording, chosen, facts, str(path))
        made = _noting(made, work, ("passes",), "the recording has its own number")
    return _noting(made, work, ("output_len",), "a recording has passes")


def _noting(made: Diagnosis, work: Mapping[str, Any], names: Iterable[str], why: str) -> Diagnosis:
    """The diagnosis with a warning for each stated option of the work, among `names`, that it does not use."""
    notes = (f"--{name.replace('_', '-')}: {why}, not used" for name in names if work[name])
    return replace(made, warnings=(*made.warnings, *notes))


def engine_of(recording: Recording | Summary) -> str:
    """The engine whose marks a recording has; plain PyTorch if operators of the framework launched kernels unmarked."""
    if isinstance(recording, Summary):
        return ENGINE
    for start, engine in ENGINES.items():
        if any(mark.name.startswith(start) for mark in recording.marks):
            return engine
    return PLAIN_TORCH if any(kernel.operator.startswith("aten::") for kernel in recording.kernels) else ENGINE


def stated(batch_size: int | None, input_len: int | None, stage: str) -> Stated:
    """The facts of a pass that the user states, checked.  Raises UserError."""
    if stage and stage not in STAGES:
        raise unknown("stage", stage, STAGES)
    sizes = {"batch_size": batch_size, "input_len": input_len}
    known = {name: nan if size is None else float(arguments.whole_number(name, size)) for name, size in sizes.items()}
    return Stated(requests=known["batch_size"], length=known["input_len"], stage=stage)


def diagnosis_of_samples(path: Path, chosen: Configuration) -> Diagnosis:
    """The diagnosis of samples of `calibrate run`: the kernels of a model's shapes.  Raises UserError."""
    found, note, warnings = compared_samples(path, chosen)
    source = Recording(program="llmviewer calibrate run", kernels=(), notes=warnings)
    return _made(found, source, (), Origin(chosen, str(path), {"of": "run of every sample", "note": note}))


def diagnosis_of(recording: Recording, chosen: Configuration, facts: Stated, source: str) -> Diagnosis:
    """The diagnosis of a recording on a configuration.  source: where it is from, for the page."""
    chosen, notes = as_recorded(chosen, recording.kernels)
    recording = replace(recording, notes=(*recording.notes, *notes))
    found = compared(chosen, passes_of(recording), facts)
    doubts = tuple(doubts_of(found, recording, chosen, facts))
    return _made(found, recording, doubts, Origin(chosen, source, {}))


@frozen(kw_only=False)
class Origin:
    """Source and subject of a comparison.  source: the file.  more: further details, which say what is compared."""

    chosen: Configuration
    source: str
    more: dict[str, Any]


def _made(found: Comparison, recording: Recording, doubts: tuple[Doubt, ...], origin: Origin) -> Diagnosis:
    """The diagnosis that follows from a comparison."""
    parts, chosen = tuple(parts_of(found)), origin.chosen
    case = Case(found=found, parts=parts, chosen=chosen, doubts=doubts, on_host=recording.on_host)
    said = (doubt.text for doubt in doubts)
    return Diagnosis(
        source=origin.source,
        program=recording.program,
        model=chosen.model.name,
        hardware=chosen.chip.name,
        engine=chosen.options.engine,
        measured_s=found.measured_s,
        predicted_s=found.predicted_s,
        parts=parts,
        suspects=tuple(suspects_of(case)),
        details={**details_of(found), **origin.more},
        warnings=(*recording.notes, *said, *found.notes, *chosen.model.notes),
    )
