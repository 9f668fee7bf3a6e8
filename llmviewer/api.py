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
from llmviewer.techniques.options import OPTIONS, RUN, WORKLOAD, Options
from llmviewer.techniques.registry import TECHNIQUES
from llmviewer.techniques.technique import SharedBy

#: Techniques that an engine chooses unless the caller does -> their defaults.
DEFAULTS = {name: TECHNIQUES[name].default for name in ("fusion", "attention")}
#: Options of a tensor group that a draft model with a group of its own does not inherit.
TENSOR_GROUP_OPTIONS = ("sequence_parallel", "expert_parallel_size")


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
    """Give a function with **options a signature that names all options.  defaults: those that differ."""
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
    """The request of checked sizes.  Raises UserError."""
    given = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
    columns = {name: arguments.sizes(name, value) for name, value in given.items()}
    lengths = {name: len(column) for name, column in columns.items() if len(column) > 1}
    if len(set(lengths.values())) > 1:
        raise UserError("sequences of one length are needed: " + ", ".join(f"{n} has {c}" for n, c in lengths.items()))
    return Request(**columns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Configuration:
    """A model on a system, built from options.  candidates: generations of which each point uses the fastest."""

    model: Model
    system: System
    options: Options
    candidates: tuple[Generation, ...] = ()

    @property
    def token_budget(self) -> float:
        """Most tokens of one prefill pass."""
        requested = self.options.max_num_batched_tokens
        return self.system.batching.budget(requested, self.system.engine.max_num_batched_tokens)

    @property
    def efficiency(self) -> str:
        """`ideal` or `calibrated`: what turns rates of the data sheet into times."""
        return self.options.efficiency

    @property
    def most_points(self) -> float:
        """Points that may be answered together: one if a technique adapts to the request."""
        return np.inf if self.system.policy is None else 1.0

    def answer(self, workload: Request) -> Result:
        """The Result of a request with its warnings."""
        budget = self.token_budget
        return Result(
            analysis=analysis.analyze(self.model, self._best(workload), workload, budget),
            warnings=(*warnings(self.model, workload), *_slow_link(self.system)),
            token_budget=budget,
            efficiency=self.options.efficiency,
            techniques={name: self.options.techniques.get(name, o.default) for name, o in TECHNIQUES.items()},
        )

    def _best(self, workload: Request) -> System:
        """The system for the request; with several candidates, the fastest generation of each point."""
        if not self.candidates:
            return self._ready(self.system, workload)
        ways = (self._ready(self.system.generating(generation), workload) for generation in self.candidates)
        answers = (analysis.analyze(self.model, way, workload, self.token_budget) for way in ways)
        times = np.array([np.where(one.schedule.tokens > 0, one.tpot_s, one.token_s) for one in answers])
        return self._ready(
            self.system.generating(select_generation(self.candidates, np.argmin(times, axis=0))), workload
        )

    def _ready(self, system: System, workload: Request) -> System:
        """The system adapted to the request, if a technique depends on it."""
        if system.policy is None:
            return system
        return system.policy(self.model, system, workload, self.token_budget)


def configuration(
    model: str | os.PathLike[str] | Model, hardware: str | os.PathLike[str] | Chip, **options: object
) -> Configuration:
    """Names, paths or objects, and options -> Configuration.  Raises UserError."""
    chosen = options_of(options)
    loaded = _with_latent_attention(model if isinstance(model, Model) else _load(model, chosen), chosen)
    chip = hardware if isinstance(hardware, Chip) else _load_chip(hardware)
    built = system(chip, chosen)
    if built.spatial:
        built = _spatial(loaded, built, chosen)
    if built.scheme is None:
        return Configuration(model=loaded, system=built, options=chosen)
    return _generating(loaded, built, chip, chosen)


def _generating(model: Model, built: System, chip: Chip, options: Options) -> Configuration:
    """The model on a system with its generation scheme."""
    scheme = built.scheme
    assert scheme is not None
    candidates = tuple(candidate.make(model) for candidate in scheme.candidates)
    generation = candidates[0] if candidates else scheme.make(model)
    if generation.drafts and (built.parallelism.pipeline > 1 or built.spatial):
        raise UserError(f"{scheme.name}: speculation in a pipeline is not modelled; remove one of them")
    drafters = tuple(_drafter(draft, model, chip, options) for draft in generation.drafts)
    built = replace(built, drafters=drafters).generating(generation)
    return Configuration(model=model, system=built, options=options, candidates=candidates)


def _drafter(draft: Draft, model: Model, chip: Chip, options: Options) -> Drafter:
    """The draft model on the same chip and in the same engine steps, with number formats of its own."""
    alike = SharedBy.LAYERS if draft.model is model else SharedBy.WEIGHTS if draft.same_weights else SharedBy.ENGINE
    words = {name: text for name, text in options.techniques.items() if TECHNIQUES[name].shared_by <= alike}
    if "tensor_parallel_size" in draft.techniques:
        words = {name: text for name, text in words.items() if name not in TENSOR_GROUP_OPTIONS}
    own = system(chip, replace(options, techniques={**words, **draft.techniques}))
    return Drafter(draft=draft, system=replace(own, engine=own.engine.without_step_terms()))


def _spatial(model: Model, one: System, options: Options) -> System:
    """The system of as many chips as hold the model.  one: a pipeline stage, as requested."""
    from llmviewer.analysis import spatial  # only --spatial needs it
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


def _with_latent_attention(model: Model, options: Options) -> Model:
    """The model with the requested form of latent attention; the default is the cheaper one."""
    if options.latent_attention == "cheaper":
        return model
    from llmviewer.layers.mla import MlaForm
    from llmviewer.models.model import with_mla_form

    forms = {form.value: form for form in MlaForm}
    if options.latent_attention not in forms:
        raise unknown("latent_attention", options.latent_attention, ("cheaper", *forms))
    return with_mla_form(model, forms[options.latent_attention])


def options_of(requested: Mapping[str, object]) -> Options:
    """Options and techniques by name -> checked Options.  Raises UserError."""
    given = dict(requested)
    texts = {name: _text(name, given.pop(name)) for name in tuple(given) if name in TECHNIQUES}
    for name in given:
        if name not in RUN:
            raise unknown("option", name, OPTIONS)
    return Options(**given, techniques=texts)  # type: ignore[arg-type]


def _text(name: str, value: object) -> str:
    """The text of a technique's option; numbers are accepted too."""
    return printable(value) if arguments.is_number(value) else arguments.word(name, value)


def system(chip: Chip, options: Options) -> System:
    """The system of a chip and options; techniques are applied in the order of the registry."""
    built = System(chip=chip, memory_utilization=options.gpu_memory_utilization)
    if options.efficiency == "calibrated":
        built = _calibrated(built, options)
    own = {name: text for name in ("fusion", "attention") if (text := getattr(built.engine, name)) != DEFAULTS[name]}
    requested = {name: text for name, text in options.techniques.items() if name not in own or text != DEFAULTS[name]}
    for change in registry.changes({**own, **requested}):
        built = change(built)
    return replace(built, any_chunks=_any_chunks(built, options))


def _any_chunks(built: System, options: Options) -> bool:
    """Whether ideal times are to bound every way to cut prompts: neither user nor batching policy limits a pass."""
    unlimited = options.max_num_batched_tokens is None and np.isinf(built.batching.budget(None, np.inf))
    return options.efficiency == "ideal" and bool(unlimited)


def _calibrated(built: System, options: Options) -> System:
    """The system with measured efficiencies and the engine's times."""
    from llmviewer.timing import calibrated, engine, profile  # the ideal roofline needs none of them

    own = profile.load(Path(options.profile)) if options.profile else None
    preset = engine.load(options.engine)
    efficiency = calibrated.calibrated(built.chip, preset.kernels, own, preset.borrowed)
    return replace(built, efficiency=efficiency, engine=preset)


def warnings(model: Model, request: Request) -> tuple[str, ...]:
    """Warnings about the model and the request."""
    context = float(np.max(request.input_len + request.output_len))
    notes = list(model.notes)
    if context > model.max_context:
        notes.append(f"context {context:.0f} is beyond the model's maximum of {model.max_context:.0f} tokens")
    return tuple(notes)


def _slow_link(system: System) -> tuple[str, ...]:
    """Warning that devices exchange data over the host's bus, which few readers expect."""
    chip, devices = system.chip, system.parallelism.exchanging
    if devices == 1 or not chip.default_link.startswith("pcie") or chip.link_rate is None:
        return ()
    bridged = [f"; {link.name} would join {link.devices}" for link in chip.links.values() if link.needs_bridge]
    rate = float(np.max(chip.link_rate)) / 1e9
    return (f"{devices} devices exchange data over {chip.default_link}, {rate:g} GB/s each way{''.join(bridged)}",)
