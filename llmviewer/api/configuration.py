"""A configuration: a model on a system, ready to answer requests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import astuple, field, replace
from functools import partial
from typing import Any

import numpy as np

from llmviewer.analysis import analysis
from llmviewer.analysis.capacity import memory_of
from llmviewer.analysis.encoders import check_encoder
from llmviewer.analysis.engine_parts import reported_bytes
from llmviewer.analysis.limits import layout_of_engine, start_limits
from llmviewer.analysis.pipeline import on_last_stage
from llmviewer.analysis.system import System
from llmviewer.api import build, devices, unused
from llmviewer.api.devices import Devices
from llmviewer.core import arguments
from llmviewer.core.errors import UserError
from llmviewer.core.files import CacheOfFiles
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.hardware import hypothetical
from llmviewer.hardware.chip import Chip
from llmviewer.models.audio import Heard, heard
from llmviewer.models.images import Seen, parse, seen
from llmviewer.models.model import Model
from llmviewer.models.wrappers import LANGUAGE_ALONE
from llmviewer.result.columns import memory_columns
from llmviewer.result.costs import Costs
from llmviewer.result.result import Result
from llmviewer.result.stages import system_at
from llmviewer.serving.batching import STATIC
from llmviewer.serving.generation import Generation, GenerationScheme, select_generation, vocabulary_notes
from llmviewer.techniques import llama_cpp
from llmviewer.techniques.kernels.of_engine import weight_only_note, with_own_constants
from llmviewer.techniques.options import NUMBER_FORMATS, Options
from llmviewer.techniques.registry import TECHNIQUES
from llmviewer.timing import engine as engines
from llmviewer.timing.engine_serving import usual

#: Beginnings of the names of techniques that keep weights or caches elsewhere.
HOLDS_ON_HOST = ("offload", "flexgen")


@frozen(eq=False)
class Configuration:
    """A model on a system, built from options.

    chip: the chip before techniques change it; of several unlike devices, the first.  devices: where they are unlike,
    or have unlike shares of the layers.  techniques: name -> text of its option, defaults included.  candidates:
    generations of which each point uses the fastest.  states_engine: --engine is given, be it `kernels`.  served_by:
    engine -> this configuration with it, once it was asked for.  of_weights: its `weight_only_note`, likewise.
    costs: prices and emissions, where any are stated.  images: of every prompt, beside the tokens of a request.
    audio: of every request, in place of them.
    """

    model: Model
    chip: Chip
    system: System
    options: Options
    techniques: Mapping[str, str]
    devices: Devices | None = None
    candidates: tuple[Generation, ...] = ()
    states_engine: bool = False
    costs: Costs | None = None
    images: tuple[Seen, ...] = ()
    audio: Heard | None = None
    served_by: dict[str, Configuration] = field(init=False, default_factory=dict)
    of_weights: list[str] = field(init=False, default_factory=list)

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
    def engine_title(self) -> str:
        """The engine of its times in words: `kernels only`, `vLLM 0.21`; "" for ideal times."""
        return "" if self.efficiency == "ideal" else self.system.engine.called

    @property
    def most_points(self) -> float:
        """Points that may be answered together: one if a technique adapts to the request."""
        return np.inf if self.system.policy is None else 1.0

    def with_options(self, words: Mapping[str, Any]) -> Configuration:
        """The configuration with other values of options that do not change how its model is read.

        Raises UserError.
        """
        techniques = {name: value for name, value in words.items() if name in TECHNIQUES}
        others = {name: value for name, value in words.items() if name not in TECHNIQUES}
        options = replace(self.options, **others, techniques={**self.options.techniques, **techniques})
        return replace(_assembled(self.model, self.chip, options, self.devices), images=self.images, audio=self.audio)

    def on_chip(self, chip: Chip) -> Configuration:
        """The configuration on another chip, such as one with arrays of figures.  Raises UserError."""
        if self.devices is not None:
            raise UserError(f"figures of a chip vary on one kind of chip; {self.devices} are several devices")
        return _assembled(self.model, chip, self.options)

    def settled(self) -> Configuration:
        """The configuration whose chip has the figures of --set itself, so that other figures may replace them."""
        default = TECHNIQUES["set"].default
        text = self.options.techniques.get("set", default)
        if text == default:
            return self
        chip, times = hypothetical.settled(self.chip, text)
        techniques = {**self.options.techniques, "set": times or default}
        return _assembled(self.model, chip, replace(self.options, techniques=techniques))

    def warnings(self, workload: Request, exchanging: int | None = None) -> tuple[str, ...]:
        """Warnings about the model, the system and a request, the refusal of an engine to start among them.

        exchanging: devices that send each other messages; None for those of a pass.
        """
        if self.system.engine.max_model_len is None or exchanging is not None:
            return self._notes(workload, exchanging)
        batch, prompt, answer = (np.array([np.max(size)]) for size in astuple(workload))
        largest = Request(batch_size=batch, input_len=prompt, output_len=np.maximum(answer, 1.0))  # a map may have none
        return (*self._notes(workload), *filter(None, (self.answer(largest).refusal,)))

    def _notes(self, workload: Request, exchanging: int | None = None) -> tuple[str, ...]:
        generated = 0.0 * workload.output_len if self.model.is_encoder else workload.output_len
        context = float(np.max(workload.input_len + generated))
        notes = self.model.notes
        if self.images:
            notes = (*(note for note in notes if not note.startswith(LANGUAGE_ALONE)), *images_notes(self.images))
        if self.audio is not None:
            notes = (*notes, self.audio.note)
        if context > self.model.max_context:
            beyond = f"context {context:.0f} is beyond the model's maximum of {self.model.max_context:.0f} tokens"
            notes = (*notes, beyond)
        engine = self.system.engine
        if self.model.uncompared and (context > self.model.max_context or (engine.memory and not engine.max_model_len)):
            length = f"its longest context of {self.model.max_context:.0f} tokens is that of {self.model.name}"
            notes = (*notes, f"{self.model.uncompared} was never compared with its own config.json: {length}")
        if not self.of_weights:
            self.of_weights.append(weight_only_note(self.model, self.system))
        lines = engine.version_note, engine.backend_note(self.chip), *self.of_weights
        notes = (*notes, *filter(None, lines), *self._forced())
        if engine.program:
            allocated = engine.slot_context, engine.max_num_seqs, self.model.max_context
            notes = (*notes, *filter(None, (engine.program.allocation_note(*allocated),)))
        run = unused.Run(
            model=self.model,
            system=self.system,
            options=self.options,
            workload=workload,
            exchanging=exchanging or self.system.parallelism.exchanging,
        )
        notes = (*notes, *unused.notes(run))
        drafted = vocabulary_notes(self.candidates or (self.system.generation,), self.model)
        return (*notes, *build.allocation_notes(self.options), *drafted, *_slow_link(self.system))

    def answer(self, workload: Request) -> Result:
        """The Result of a request with its warnings."""
        budget = self.token_budget
        if self.audio is not None:
            workload = replace(workload, input_len=0.0 * workload.input_len + float(self.audio.positions))
        if self.images:
            _check_images(self)
            workload = replace(workload, input_len=workload.input_len + float(tokens_of(self.images)))
        answered = alone = analysis.analyze(self.model, self._best(workload), workload, budget)
        if self.images:
            answered = analysis.with_images(alone, self.images, build.tower_system(self.chip, self.options))
        refusal = _refusal(answered)
        has_engine = self.states_engine or self.options.engine != engines.KERNELS_ONLY.name
        return Result(
            analysis=answered,
            warnings=(
                *self._notes(workload),
                *filter(None, (refusal,)),
                *_unsure(answered),
                *_idle_profile(answered),
                *self._unpriced(),
                *_room(answered, alone),
            ),
            refusal=refusal,
            token_budget=budget,
            efficiency=self.options.efficiency,
            techniques=self.techniques,
            serve=partial(self.served, workload) if not has_engine and self.efficiency == "calibrated" else None,
            costs=self.costs,
        )

    def _forced(self) -> Iterator[str]:
        """Lines for stated formats that are other ones for the engine."""
        engine = self.system.engine
        for name in NUMBER_FORMATS:
            stated = self.options.techniques.get(name, "")
            if forced := engine.forced_kernels(stated):
                note = f"--{name.replace('_', '-')} {stated} of {engine.product} is {forced} here"
                marlin = f"; for a checkpoint where nothing is stated it chooses {stated}_marlin"
                yield f"{note}{marlin * ('_gemm' in forced)}"

    def _unpriced(self) -> tuple[str, ...]:
        """Lines for stated prices that this chip has no use for."""
        if self.costs is None:
            return ()
        if self.devices is not None:
            return (f"prices and power of unlike devices are not told: {self.devices}",)
        return self.costs.notes(self.system.chip)

    def served(self, workload: Request, alone: Result) -> Result | str:
        """The answer of the engine that usually serves this chip and model, or why none does.

        alone: the result of the request by its kernels alone.
        """
        if self.model.is_encoder or self.model.encoder is not None:
            return "presets of engines time decoders only"
        if self.images:
            return "presets of engines time prompts of text alone"
        stated = {name: text for name, text in self.techniques.items() if text != TECHNIQUES[name].default}
        refusals = []
        for name in usual(self.chip):
            preset = engines.load(name)
            if self.chip.generation not in preset.serves.generations:
                continue
            graph = alone.analysis.whole_graph
            refusal = preset.serves.refusal(preset.called, self.model.architecture, graph, stated)
            try:
                if not refusal:
                    with_engine = self.served_by.get(name) or self.with_options({"engine": name})
                    self.served_by[name] = with_engine
                    return with_engine.answer(workload)
            except UserError as error:
                refusal = f"{preset.called}: {error}"
            refusals.append(refusal)
        return refusals[0] if refusals else f"no engine is taken for {self.chip.name} unless --engine names one"

    def memory_columns(self, workload: Request) -> dict[str, Any]:
        """Columns of memory of every point, as those of `answer`; points of a static batch are not timed."""
        if self.candidates or self.system.policy is not None or self.system.batching is not STATIC:
            return self.answer(workload).columns()
        memory = memory_of(self.model, self.system, workload, self.token_budget)
        return memory_columns(memory, self.system.chip, np.ones(np.shape(workload.batch_size)))

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
        check_encoder(self.model, system, workload, self.token_budget)
        return system.policy(self.model, system, workload, self.token_budget)


#: Configurations that were built, by model, chip, options and `build.hub_variables`.
CACHE: CacheOfFiles[Configuration] = CacheOfFiles()


def configuration(
    model: str | os.PathLike[str] | Mapping[str, Any] | Model,
    hardware: str | os.PathLike[str] | Mapping[str, Any] | Chip,
    **options: object,
) -> Configuration:
    """The Configuration of a model, a chip and options; built again only after a file it was read from has changed.

    model, hardware: names, paths, fields of a config.json or spec file, or objects; 8xh100 are eight chips.  Raises
    UserError, also for devices that are unlike or have unlike shares.
    """
    unlike, _, _ = devices.stated(hardware, options)
    found = on_devices(model, hardware, **options) if unlike is None else None
    if found is None or found.devices is not None:
        raise UserError(f"--hardware {unlike or found.devices}: {devices.ANSWERED}")  # type: ignore[union-attr]
    return found


def priced(one: Configuration, costs: Costs | None) -> Configuration:
    """The configuration with costs, as it is where none are stated."""
    return one if costs is None else replace(one, costs=costs)


def with_images(one: Configuration, text: str | None) -> Configuration:
    """The configuration with images beside the text of every prompt, as --images states them; None: without.

    Raises UserError.
    """
    return one if text is None else replace(one, images=seen(one.model, parse(arguments.word("images", text))))


def images_of(model: Any, options: Mapping[str, Any], text: str | None) -> tuple[Seen, ...]:
    """The images of --images as a model reads them, in prompts to a server; none without.  Raises UserError."""
    return () if text is None else seen(build.model_of(model, build.options_of(options)), parse(text))


def sound_of(model: Any, options: Mapping[str, Any], text: str) -> Heard:
    """The sound of --audio as a model reads it, in requests to a server.  Raises UserError."""
    return heard(build.model_of(model, build.options_of(options)), text)


def images_s(one: Configuration, images: tuple[Seen, ...]) -> float:
    """Passes of the vision tower over the images of one prompt to a server, by its kernels [s].  Raises UserError."""
    if not images:
        return 0.0
    _check_images(one, served=True)
    prompt = Request(batch_size=np.ones(1), input_len=np.ones(1), output_len=np.ones(1))
    kernels = Options(efficiency=one.efficiency, profile=one.options.profile, techniques=one.options.techniques)
    towers = analysis.towers_of(prompt, images, build.tower_system(one.chip, kernels))
    return float(sum(np.max(tower.own_prefill_s) for _, tower in towers))


def tokens_of(images: tuple[Seen, ...]) -> int:
    """Tokens of the images of a prompt."""
    return sum(one.images.count * one.tokens for one in images)


def _check_images(one: Configuration, *, served: bool = False) -> None:
    """Raise UserError for what the passes of a vision tower are not modelled with.

    served: requests come one by one to an engine, each with the passes of its own images.
    """
    own, cache = one.system.parallelism, one.system.kv_cache
    replicas = own.data * own.instances if served and own.ranks == 1 else 1
    wrong = (
        (
            not served and one.options.engine != engines.KERNELS_ONLY.name,
            "an engine, whose presets time text; allowed: kernels",
        ),
        (not served and one.system.batching is not STATIC, "batching other than static; allowed: a static batch"),
        (
            one.devices is not None or one.system.spatial or own.devices != own.tensor * replicas,
            "devices other than one tensor group; allowed: --tensor-parallel-size",
        ),
        (cache.hit_rate > 0.0, "prefix hits, which may hold images; allowed: --prefix-cache 0"),
        (any(applied.name.startswith(HOLDS_ON_HOST) for applied in one.system.passes), "offloading; allowed: none"),
    )
    for asked, what in wrong:
        if asked:
            raise UserError(f"--images times the vision tower by its kernels; not possible with {what}")


def _room(answered: analysis.Analysis, alone: analysis.Analysis) -> tuple[str, ...]:
    """A line for activations of a vision tower that fill more than those of its language model, `alone`."""
    if not answered.towers or np.all(answered.memory.activations_bytes <= alone.memory.activations_bytes):
        return ()
    return ("the vision tower has the largest activations; the largest batch and context leave them out",)


def images_notes(images: tuple[Seen, ...]) -> tuple[str, ...]:
    """Lines about images: their tokens, and what of their time is not known; none without images."""
    if not images:
        return ()
    each = (
        f"{one.images.count} image{'s' * (one.images.count > 1)} of {one.images.width} x {one.images.height} pixels in "
        f"each prompt: {one.tokens:,} tokens each beside --input-len, {one.patches:,} patches in the vision tower"
        for one in images
    )
    untimed = (
        "the vision tower is timed by its kernels, in 16 bit, and no published run checks it; decoding and resizing of "
        "images on the host are not timed, and marks around an image count as text"
    )
    return (*each, untimed, *dict.fromkeys(one.note for one in images if one.note))


def on_devices(
    model: str | os.PathLike[str] | Mapping[str, Any] | Model,
    hardware: str | os.PathLike[str] | Mapping[str, Any] | Chip,
    **options: object,
) -> Configuration:
    """The Configuration of a model, a chip or unlike devices (`rtx-4090+rtx-3090`), and options.  Raises UserError."""
    several, rest, chosen = devices.stated(hardware, options)
    if several is not None or rest != hardware:
        devices.check_engine(hardware, options)
    variables = build.hub_variables()
    if several is not None:
        return CACHE.get((model, rest, chosen, variables), lambda: _built(model, several.chips[0], chosen, several))
    chip, chosen, count = build.with_devices(rest, chosen)
    found = CACHE.get((model, chip, chosen, variables), lambda: _built(model, chip, chosen))
    build.check_devices(chip, count, found.system.parallelism.devices)
    return found


def of_run(model: Any, hardware: Any, options: Mapping[str, Any]) -> Configuration:
    """The configuration of one run with prices, images and sound, as `analyze` takes them.  Raises UserError."""
    costs, chosen = build.with_costs(hardware, options)
    images, audio = chosen.pop("images", None), chosen.pop("audio", None)
    one = with_images(priced(on_devices(model, hardware, **chosen), costs), images)
    return one if audio is None else replace(one, audio=heard(one.model, audio))


def _built(
    model: object, hardware: object, options: Mapping[str, object], several: Devices | None = None
) -> Configuration:
    chosen = build.options_of(options)
    made = _assembled(build.model_of(model, chosen), build.chip_of(hardware), chosen, several)
    return replace(made, states_engine=options.get("engine") is not None)


def _assembled(model: Model, chip: Chip, options: Options, several: Devices | None = None) -> Configuration:
    """The configuration of a loaded model and chip, or of several devices."""
    options = build.with_named_format(model, options)
    several = several or devices.alike(model, chip, options)
    if several is not None:
        several, options = devices.used(several, options)
        chip, several = several.chips[0], several if len(several.chips) > 1 else None
    chips = (chip,) if several is None else several.chips
    memory_bytes = float(sum(np.max(reported_bytes(one)) for one in chips))
    has_host = several is None and chip.host_link_rate is not None
    options = llama_cpp.with_program_defaults(model, options, memory_bytes, has_host=has_host)
    options = llama_cpp.translated(model, options, devices=0 if several is None else len(chips))
    chosen = build.with_allocation(model, options)
    build.check_layers(model, chosen)
    if several is not None:
        system = devices.split_system(model, several, chosen, build.system)
    else:
        system = build.system(chip, chosen)
    if system.spatial:
        system = build.spatial_system(model, system, chosen)
    system = with_own_constants(model, system)
    texts = {name: options.techniques.get(name, option.default) for name, option in TECHNIQUES.items()}
    if several is not None:
        texts[devices.PIPELINE] = str(len(several.chips))
    found = Configuration(model=model, chip=chip, system=system, options=options, techniques=texts, devices=several)
    return found if system.scheme is None else _generating(found, chosen)


def _generating(one: Configuration, options: Options) -> Configuration:
    """The configuration with its generation scheme.  options: its own, with the formats of a budget of bits."""
    model, scheme, parallelism = one.model, one.system.scheme, one.system.parallelism
    assert scheme is not None
    candidates = tuple(_made(candidate, one) for candidate in scheme.candidates)
    generation = candidates[0] if candidates else _made(scheme, one)
    if generation.drafts and one.system.spatial:
        raise UserError(
            f"{scheme.name}: --spatial sizes its chips for one model and has no place for drafts; remove one"
        )
    drafters = tuple(build.drafter_of(draft, model, one.chip, options) for draft in generation.drafts)
    if parallelism.microbatches > 1:
        drafters = tuple(replace(drafter, system=_in_microbatches(drafter.system, one.system)) for drafter in drafters)
    system = replace(one.system, drafters=drafters).generating(generation)
    return replace(one, system=system, candidates=candidates)


def _in_microbatches(drafting: System, target: System) -> System:
    """The system of a draft model that drafts for one micro-batch of its target after another."""
    count = target.parallelism.microbatches
    return replace(drafting, parallelism=replace(drafting.parallelism, microbatches=count))


def _made(scheme: GenerationScheme, one: Configuration) -> Generation:
    """The generation of a scheme for the model of a configuration; in a pipeline, drafts are on the last stage."""
    generation = scheme.make(one.model)
    return on_last_stage(generation, one.model, one.system) if one.system.parallelism.pipeline > 1 else generation


def _slow_link(system: System) -> tuple[str, ...]:
    """Warning that devices exchange data over the host's bus, which few readers expect."""
    chip, devices = system.chip, system.parallelism.exchanging
    apart = system.split is not None and max(system.split.machines) > 0
    if devices == 1 or apart or not chip.default_link.startswith("pcie") or chip.link_rate is None:
        return ()
    bridged = [f"; {link.name} would join {link.devices}" for link in chip.links.values() if link.needs_bridge]
    rate = float(np.max(chip.link_rate)) / 1e9
    return (f"{devices} devices exchange data over {chip.default_link}, {rate:g} GB/s each way{''.join(bridged)}",)


def _idle_profile(answered: analysis.Analysis) -> tuple[str, ...]:
    """A line for a profile of the user that changes no time."""
    calibration = answered.calibration
    if calibration is None or not calibration.user_profiles:  # before times are computed
        return ()
    _ = answered.e2e_s  # which selects the fits
    return calibration.idle_profile


def _refusal(answered: analysis.Analysis) -> str | None:
    """Why the engine does not start with the stated --max-model-len (one point that fits); None if it does."""
    if answered.system.engine.max_model_len is None or answered.schedule.points > 1 or not np.all(answered.memory.fits):
        return None
    model, system = answered.model, system_at(answered, 0)
    found: str | None = start_limits(model, system, answered.memory, layout_of_engine(model, system))["refusal"]
    return found


def _unsure(answered: analysis.Analysis) -> tuple[str, ...]:
    """A note if the memory suffices only as long as the checkpoint keeps no attention in 16 bit."""
    model, parallelism = answered.model, answered.system.parallelism
    more = model.doubt_bytes / (parallelism.tensor * parallelism.pipeline)
    if not more:  # before the memory is computed
        return ()
    memory = answered.memory
    if not np.any((memory.room_bytes >= 0.0) & (memory.room_bytes < more)):
        return ()
    sizes = (
        f"the weights take {more / 2**30:.1f} GiB more, and {float(np.min(memory.room_bytes)) / 2**30:.1f} GiB are free"
    )
    stated = f"{model.named_format} does not say which layers are in 16 bit"
    return (f"unsure whether it fits: {stated}; with attention in 16 bit {sizes}",)
