"""The Python entry point: names and numbers -> Result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np

from llmviewer import models
from llmviewer.analysis import analysis
from llmviewer.analysis.system import Drafter, System
from llmviewer.core import arguments
from llmviewer.core.arguments import Sizes
from llmviewer.core.errors import UserError, printable, unknown
from llmviewer.core.workload import Request, decode
from llmviewer.hardware import specs as chips
from llmviewer.hardware.chip import Chip
from llmviewer.models.model import Model
from llmviewer.result.result import Result
from llmviewer.serving.generation import Draft, Generation, select_generation
from llmviewer.techniques import registry
from llmviewer.techniques.option import SharedBy
from llmviewer.techniques.options import OPTIONS, RUN, WORKLOAD, Options
from llmviewer.techniques.registry import TECHNIQUES

#: Techniques that an engine chooses unless asked otherwise -> their defaults.
DEFAULTS = {name: TECHNIQUES[name].default for name in ("fusion", "attention")}
#: How the devices of a tensor group share work beside tensors: a draft with a group of its own keeps out of it.
OF_A_GROUP = ("sequence_parallel", "expert_parallel_size")


def analyze(
    model: str | os.PathLike[str] | Model,
    hardware: str | os.PathLike[str] | Chip,
    *,
    batch_size: Sizes = WORKLOAD["batch_size"].default,
    input_len: Sizes = WORKLOAD["input_len"].default,
    output_len: Sizes = WORKLOAD["output_len"].default,
    **options: object,
) -> Result:
    """Prefill, decode and memory of `model` on a chip, by calibrated times unless efficiency="ideal".

    model, hardware: names, paths or objects.  batch_size, input_len, output_len: whole numbers, or sequences of
    one length (one point each; a single number holds for all).  options: every option of
    `techniques/options.py` by name (quantization="w4a16", tensor_parallel_size=4).  Raises UserError.
    """
    options = {**ANALYZE_DEFAULTS, **options}
    return configuration(model, hardware, **options).answer(request(batch_size, input_len, output_len))


def _with_options(function: Callable[..., Any], **defaults: object) -> None:
    """Give a function that takes **options the signature that names all of them.  defaults: where it has its own."""
    own = signature(function)
    kept = [parameter for parameter in own.parameters.values() if parameter.kind is not Parameter.VAR_KEYWORD]
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name, declaration.default))
        for name, declaration in OPTIONS.items()
        if name not in own.parameters
    ]
    function.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]


#: `analyze` is calibrated by default; configurations of sweeps and comparisons are not.
ANALYZE_DEFAULTS = {"efficiency": "calibrated"}
_with_options(analyze, **ANALYZE_DEFAULTS)


def request(batch_size: Sizes, input_len: Sizes, output_len: Sizes) -> Request:
    """The workload, its sizes checked."""
    given = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
    columns = {name: arguments.sizes(name, value) for name, value in given.items()}
    lengths = {name: len(column) for name, column in columns.items() if len(column) > 1}
    if len(set(lengths.values())) > 1:
        raise UserError("sequences of one length are needed: " + ", ".join(f"{n} has {c}" for n, c in lengths.items()))
    return Request(**columns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Configuration:
    """A model on a system, as the options ask.  candidates: generations of which every point takes the fastest."""

    model: Model
    system: System
    options: Options
    candidates: tuple[Generation, ...] = ()

    @property
    def token_budget(self) -> float:
        """Most tokens of one prefill pass."""
        asked = float(self.options.max_num_batched_tokens)
        return self.system.batching.budget(asked, self.system.engine.max_num_batched_tokens)

    @property
    def efficiency(self) -> str:
        """`ideal` or `calibrated`: what turns rates of the data sheet into times."""
        return self.options.efficiency

    @property
    def most_points(self) -> float:
        """Requests that may be answered together: one, where something is chosen for it."""
        return np.inf if self.system.policy is None else 1.0

    def answer(self, workload: Request) -> Result:
        """The Result of a request, with its warnings."""
        budget = self.token_budget
        return Result(
            analysis=analysis.analyze(self.model, self._best(workload), workload, budget),
            warnings=(*warnings(self.model, workload), *_slow_link(self.system)),
            token_budget=budget,
            efficiency=self.options.efficiency,
            techniques={name: self.options.techniques.get(name, o.default) for name, o in TECHNIQUES.items()},
        )

    def _best(self, workload: Request) -> System:
        """The system for the request, with the fastest generation of every point where there are several."""
        if not self.candidates:
            return self._ready(self.system, workload)
        ways = (self._ready(self.system.generating(generation), workload) for generation in self.candidates)
        answers = (analysis.analyze(self.model, way, workload, self.token_budget) for way in ways)
        times = np.array([np.where(one.schedule.tokens > 0, one.tpot_s, one.token_s) for one in answers])
        return self._ready(self.system.generating(select_generation(self.candidates, np.argmin(times, axis=0))), workload)

    def _ready(self, system: System, workload: Request) -> System:
        """The system for the request, where something of it depends on that."""
        if system.policy is None:
            return system
        return system.policy(self.model, system, workload, self.token_budget)


def configuration(
    model: str | os.PathLike[str] | Model, hardware: str | os.PathLike[str] | Chip, **options: object
) -> Configuration:
    """Names, paths or objects, and fields of `Options` -> a Configuration.  Raises UserError."""
    chosen = options_of(options)
    loaded = _in_form(model if isinstance(model, Model) else _load(model, chosen), chosen)
    chip = hardware if isinstance(hardware, Chip) else _load_chip(hardware)
    built = system(chip, chosen)
    if built.spatial:
        built = _spatial(loaded, built, chosen)
    if built.scheme is None:
        return Configuration(model=loaded, system=built, options=chosen)
    return _generating(loaded, built, chip, chosen)


def _generating(model: Model, built: System, chip: Chip, options: Options) -> Configuration:
    """The model on a system that generates as its scheme says."""
    scheme = built.scheme
    assert scheme is not None
    candidates = tuple(candidate.make(model) for candidate in scheme.candidates)
    generation = candidates[0] if candidates else scheme.make(model)
    if generation.drafts and (built.parallelism.pipeline > 1 or built.spatial):
        raise UserError(f"{scheme.name}: drafting in a pipeline is not modelled; leave out it or the pipeline")
    drafters = tuple(_drafter(draft, model, chip, options) for draft in generation.drafts)
    built = replace(built, drafters=drafters).generating(generation)
    return Configuration(model=model, system=built, options=options, candidates=candidates)


def _drafter(draft: Draft, model: Model, chip: Chip, options: Options) -> Drafter:
    """What drafts runs on the same chip within the same steps of the engine, with formats of its own."""
    alike = SharedBy.LAYERS if draft.model is model else SharedBy.WEIGHTS if draft.same_weights else SharedBy.ENGINE
    words = {name: text for name, text in options.techniques.items() if TECHNIQUES[name].shared_by <= alike}
    if "tensor_parallel_size" in draft.techniques:
        words = {name: text for name, text in words.items() if name not in OF_A_GROUP}
    own = system(chip, replace(options, techniques={**words, **draft.techniques}))
    return Drafter(draft=draft, system=replace(own, engine=own.engine.without_step_terms()))


def _spatial(model: Model, one: System, options: Options) -> System:
    """The machine of as many chips as hold the model.  one: a stage of it, as asked for."""
    from llmviewer.analysis import spatial  # few ask for it
    from llmviewer.techniques.parallel.devices import check_reach

    def build(tensor: int, stages: int) -> System:
        words = {**options.techniques, "tensor_parallel_size": str(tensor)}
        built = system(one.chip, replace(options, techniques=words))
        return replace(built, parallelism=replace(built.parallelism, pipeline=stages))

    given = one.parallelism.tensor
    degrees = (given,) if given > 1 else spatial.DEGREES
    found = spatial.smallest_system(model.graph(decode(1.0, 0.0)), build, degrees)
    check_reach(found.chip, found.parallelism)
    return found


def _load(name: object, options: Options) -> Model:
    return models.load(arguments.path_or_name("model", name), dtype=options.dtype, ignored=options.ignore_fields)


def _load_chip(name: object) -> Chip:
    return chips.load(arguments.path_or_name("hardware", name))


def _in_form(model: Model, options: Options) -> Model:
    """The model with latent attention in the form asked for; it comes with the cheaper one."""
    if options.latent_attention == "cheaper":
        return model
    from llmviewer.layers.mla import MlaForm
    from llmviewer.models.model import with_mla_form

    forms = {form.value: form for form in MlaForm}
    if options.latent_attention not in forms:
        raise unknown("latent_attention", options.latent_attention, ("cheaper", *forms))
    return with_mla_form(model, forms[options.latent_attention])


def options_of(asked: Mapping[str, object]) -> Options:
    """Options and techniques by name -> Options, checked."""
    given = dict(asked)
    texts = {name: _text(name, given.pop(name)) for name in tuple(given) if name in TECHNIQUES}
    for name in given:
        if name not in RUN:
            raise unknown("option", name, OPTIONS)
    return Options(**given, techniques=texts)  # type: ignore[arg-type]


def _text(name: str, value: object) -> str:
    """What an option of a technique says; numbers may be given as such."""
    return printable(value) if arguments.is_number(value) else arguments.word(name, value)


def system(chip: Chip, options: Options) -> System:
    """The chip with the changes that the options ask for, in the order of the registry."""
    built = System(chip=chip, memory_utilization=options.gpu_memory_utilization)
    if options.efficiency == "calibrated":
        built = _calibrated(built, options)
    own = {name: text for name in ("fusion", "attention") if (text := getattr(built.engine, name)) != DEFAULTS[name]}
    asked = {name: text for name, text in options.techniques.items() if name not in own or text != DEFAULTS[name]}
    for change in registry.changes({**own, **asked}):
        built = change(built)
    return built


def _calibrated(built: System, options: Options) -> System:
    """The system with what kernels were measured to reach, and what the engine adds."""
    from llmviewer.timing import calibrated, engine, profile  # the ideal roofline needs none of them

    own = profile.load(Path(options.profile)) if options.profile else None
    preset = engine.load(options.engine)
    efficiency = calibrated.calibrated(built.chip, preset.kernels, own, preset.borrowed)
    return replace(built, efficiency=efficiency, engine=preset)


def warnings(model: Model, request: Request) -> tuple[str, ...]:
    """What a reader should know before trusting the numbers."""
    context = float(np.max(request.input_len + request.output_len))
    notes = list(model.notes)
    if context > model.max_context:
        notes.append(f"context {context:.0f} is beyond the model's maximum of {model.max_context:.0f} tokens")
    return tuple(notes)


def _slow_link(system: System) -> tuple[str, ...]:
    """That devices talk over the host's bus, which most readers would not expect."""
    chip, devices = system.chip, system.parallelism.exchanging
    if devices == 1 or not chip.default_link.startswith("pcie") or chip.link_rate is None:
        return ()
    bridged = [f"; {link.name} would join {link.devices}" for link in chip.links.values() if link.needs_bridge]
    rate = float(np.max(chip.link_rate)) / 1e9
    return (f"{devices} devices exchange data over {chip.default_link}, {rate:g} GB/s each way{''.join(bridged)}",)
