"""Names, numbers and options -> the parts of a configuration: model, chip, checked options, system."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from llmviewer import models
from llmviewer.analysis.memory import weights_bytes
from llmviewer.analysis.system import USUAL_UTILIZATION, Drafter, System
from llmviewer.core import arguments, data, files
from llmviewer.core.errors import UserError, naming, printable, unknown
from llmviewer.core.files import CacheOfFiles
from llmviewer.core.workload import decode
from llmviewer.formats.linear import is_linear
from llmviewer.hardware import specs
from llmviewer.hardware import specs as chips
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import setting_text
from llmviewer.hardware.names import counted
from llmviewer.models.model import Model
from llmviewer.result.costs import COSTS, Costs, costs_of, given_prices
from llmviewer.serving.generation import Draft
from llmviewer.techniques import layer_settings, registry
from llmviewer.techniques.kernels.of_engine import with_engine_kernels, with_own_limits
from llmviewer.techniques.options import NUMBER_FORMATS, OPTIONS, RUN, Options, with_bits
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.registry import TECHNIQUES
from llmviewer.techniques.technique import SharedBy
from llmviewer.timing import engine
from llmviewer.timing.engine import Engine

#: Techniques that an engine chooses unless the caller does.
OF_ENGINE = ("fusion", "attention")
#: Formats of files in 16 bit, and as the checkpoint; all formats in an error.
PLAIN_FILES = ("none", "f16", "fp16", "bf16")
FILES = "of files: q2_k ... q8_0, iq1_s ... iq4_nl, tq1_0, tq2_0, mxfp4_moe, f16, bf16, ud-iq1_s ... ud-q8_k_xl"
#: Options with settings by layer.
BY_LAYER = ("quantization", "kv_cache_dtype", "matformer", "kv_evict")
#: What engines divide among devices -> the option that says among how many.
OF_DIVIDED = {"tensors": "tensor_parallel_size", "layers": "pipeline_parallel_size"}
#: Options that state how many devices there are.
PARALLEL = (
    "tensor_parallel_size",
    "data_parallel_size",
    "expert_parallel_size",
    "context_parallel_size",
    "pipeline_parallel_size",
    "spatial",
)
#: Variables that name the folder of the Hugging Face cache (`models/hub.py`), where Hub ids are looked up.
HUB_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
#: Models that were read, by name, how they are read, and the values of HUB_VARIABLES.
_MODELS: CacheOfFiles[Model] = CacheOfFiles(64)
#: Options of a tensor group that a draft model with a group of its own does not inherit.
TENSOR_GROUP_OPTIONS = ("sequence_parallel", "expert_parallel_size")


def options_of(requested: Mapping[str, object]) -> Options:
    """Options and techniques by name -> checked Options; None is a value that is not given.  Raises UserError."""
    requested = with_bits(requested)
    given = {name: value for name, value in requested.items() if value is not None or name not in OPTIONS}
    texts = {name: technique_text(name, given.pop(name)) for name in tuple(given) if name in TECHNIQUES}
    for name in given:
        if name not in RUN:
            raise unknown("option", name, OPTIONS, hint=_main_spelling(name))
    return Options(**given, techniques=texts)


def _main_spelling(alias: str) -> str:
    """The name of the option that has an alias on the command line (tp, batch), as a hint; else empty."""
    named = {spelling.lstrip("-"): name for name, one in OPTIONS.items() for spelling in one.aliases}
    return f"use {named[alias]}" if alias in named else ""


def technique_text(name: str, value: object) -> str:
    """The text of a technique's option; numbers are accepted too, and figures of a chip as a mapping.

    Raises UserError.
    """
    if isinstance(value, Mapping) and TECHNIQUES[name].repeated:
        return ",".join(setting_text(printable(key), one) for key, one in value.items()) or TECHNIQUES[name].default
    if isinstance(value, bool) and TECHNIQUES[name].default == "off":
        return "on" if value else "off"
    return printable(value) if arguments.is_number(value) else arguments.word(name, value)


#: Techniques that a vision tower has too: those of the chip, its kernels and a tensor group.
OF_TOWER = ("set", "power_limit", "attention", "fusion", "link", "network", "tensor_parallel_size", "sequence_parallel")


def model_of(given: object, options: Options) -> Model:
    """The model of a name, a path, the fields of a config.json, or a Model, in the requested form of MLA.

    Raises UserError.
    """
    if isinstance(given, Model):
        if options.model_set != given.changed:
            raise UserError("model_set changes the config of a model by its name; this one is read already")
        return _with_latent_attention(given, options)
    if options.trace_model:
        if files.is_restricted():
            raise UserError(
                "trace_model runs the code of another package; here only names of the catalogue are allowed"
            )
        from llmviewer.tracing.load import load_traced  # torch and transformers

        if options.model_set != "none":
            raise UserError("model_set changes a config; --trace-model reads a class of transformers")
        found = load_traced(given, options.dtype)
    elif isinstance(given, Mapping) and given:
        found = models.from_fields(given, **as_read(options))
    else:
        name, read = arguments.path_or_name("model", given), as_read(options)
        key = (name, *read.values(), hub_variables())
        found = _noted(_MODELS.get(key, lambda: models.load(name, **read)), options)
    return _with_latent_attention(found, options)


def hub_variables() -> tuple[str | None, ...]:
    """The values of HUB_VARIABLES."""
    return tuple(map(os.environ.get, HUB_VARIABLES))


def as_read(options: Options) -> dict[str, Any]:
    """Keyword arguments of `models.load`: how a config is read."""
    return {"dtype": options.dtype, "ignored": options.ignore_fields, "changed": options.model_set}


def _noted(model: Model, options: Options) -> Model:
    """The model with a note if --quantization takes precedence over a format that its name or file states."""
    quantization = options.techniques.get("quantization", "none")
    if not model.named_format or quantization == "none":
        return model
    note = f"--quantization {quantization} takes precedence over {model.named_format}"
    return replace(model, notes=(*model.notes, note), doubt_bytes=0.0)


def with_named_format(model: Model, options: Options) -> Options:
    """The options with the format that the model's name states, unless --quantization gives one.  Raises UserError."""
    if not model.quantization or options.techniques.get("quantization", "none") != "none":
        return options
    from llmviewer.techniques.quantization.presets import OF_GGUF  # reads a YAML file: only for names of files

    allowed = (*PLAIN_FILES, *OF_GGUF)
    if model.quantization not in allowed:
        raise unknown("format", model.quantization, allowed, where=model.named_format, hint=FILES)
    return replace(options, techniques={**options.techniques, "quantization": model.quantization})


def chip_of(given: object) -> Chip:
    """The chip of a name (a number before it is left out), a path, the content of a spec file, or a Chip."""
    if isinstance(given, Chip):
        return given
    if isinstance(given, Mapping) and given:
        return chips.from_fields(given)
    return chips.load(counted(arguments.path_or_name("hardware", given))[1])


def with_costs(hardware: object, options: Mapping[str, Any]) -> tuple[Costs | None, dict[str, Any]]:
    """The costs that options state, None where they state none, and the other options.  Raises UserError."""
    words = {name: options[name] for name in COSTS if options.get(name) is not None}
    if "price" in words and not isinstance(hardware, list | tuple):  # a price alone is that of the one chip
        words["price"] = given_prices(words["price"], lambda: chip_of(hardware).name)
    rest = {name: value for name, value in options.items() if name not in COSTS}
    return costs_of(words, own_chips(hardware)) if words else None, rest


def own_chips(hardware: object) -> dict[str, Chip]:
    """Chips of the user's own files and fields by name; those of the catalogue need not be read."""
    several = hardware if isinstance(hardware, list | tuple) else [hardware]
    named = [chip_of(one) for one in several if not isinstance(one, str) or data.is_path(one)]
    return {chip.name: chip for chip in named}


def with_devices(hardware: object, options: Mapping[str, Any]) -> tuple[object, dict[str, Any], int]:
    """The chip of `8xh100` without the number, the options with that many devices, and the number; 0 without one.

    They are a tensor group, or where the engine divides layers, pipeline stages.  Options that state a layout stay as
    they are; `check_devices` compares.
    """
    count, name = counted(hardware) if isinstance(hardware, str) else (0, hardware)
    if not count or any(options.get(one) is not None for one in PARALLEL):
        return name, dict(options), count
    chosen = options.get("engine")
    divides = engine.load(chosen).divides if isinstance(chosen, str) else "tensors"
    return name, {**options, OF_DIVIDED[divides]: str(count)}, count


def check_devices(hardware: object, count: int, devices: int) -> None:
    """Raise UserError if the options lay out another number of devices than is stated.  count: 0 if none is stated."""
    if count and count != devices:
        raise UserError(f"{count}x{hardware} has {count} devices, and the options lay out {devices}; state one of them")


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


def system(chip: Chip, options: Options) -> System:
    """The system of a chip and options; techniques are applied in the order of the registry."""
    stated = options.gpu_memory_utilization
    built = System(chip=chip, memory_utilization=USUAL_UTILIZATION if stated is None else stated)
    if options.efficiency == "calibrated":
        built = _calibrated(built, options)
    own = {name: text for name in OF_ENGINE if (text := getattr(built.engine, name)) != TECHNIQUES[name].default}
    words = {**own, **options.techniques}
    for name in NUMBER_FORMATS:
        if forced := built.engine.forced_kernels(words.get(name, "")):
            words[name] = forced
    _check_format(built.engine, words.get("quantization", ""))
    for change in registry.changes(words):
        built = change(built)
    if built.kv_cache.cascade and not built.applies("flash"):
        raise UserError("--prefix-cache cascade: eager kernels read every sequence's keys; use --attention flash")
    built = with_engine_kernels(built, routed=options.techniques.get("expert_skew", "none") != "none")
    built = with_own_limits(built, shared=stated is not None)
    return replace(built, any_chunks=_any_chunks(built, options))


def _check_format(preset: Engine, text: str) -> None:
    """Raise UserError for weights in a format that an engine with types of its own does not have."""
    own, known = preset.number_formats.get("quantization"), preset.serves.formats.get("weight")
    if not own or not known or text in ("", "none") or text.startswith(layer_settings.BUDGET):
        return
    for setting in layer_settings.layer_settings("--quantization", text):
        weights = parse_scheme(setting.text).weights
        if weights is not None and weights.bits < 16.0 and weights.name.partition("-")[0] not in known:
            raise UserError(
                f"{preset.product} has no weights in {weights.name} (--quantization {setting.text}); allowed: its own "
                f"types, as {', '.join(own)}"
            )


def check_layers(model: Model, options: Options) -> None:
    """Raise UserError if an option names a layer or an operator that the model does not have."""
    count = sum(layer.repeats for layer in model.all_layers)

    def operators() -> set[str]:
        blocks = model.graph(decode(1.0, 0.0)).blocks
        return {op.name for block in blocks if block.is_layer for op in block.operators if is_linear(op)}

    for name, text in options.techniques.items():
        if name in BY_LAYER:
            layer_settings.check_layers(f"--{name.replace('_', '-')}", text, count, operators)


def with_allocation(model: Model, options: Options) -> Options:
    """The options with the formats of the model's matrices in place of a budget of bits."""
    text = options.techniques.get("quantization", "")
    if not text.startswith(layer_settings.BUDGET):
        return options
    from llmviewer.techniques.quantization.budget import allocated  # only budgets need it

    return replace(options, techniques={**options.techniques, "quantization": allocated(model, text)})


def allocation_notes(options: Options) -> tuple[str, ...]:
    """Warning that a budget of bits without measured errors does not tell layers apart."""
    text = options.techniques.get("quantization", "")
    if not text.startswith(layer_settings.BUDGET):
        return ()
    from llmviewer.techniques.quantization.budget import has_errors  # only budgets need it

    note = f"--quantization {text}: without a file of errors all layers count alike; the first have the most bits"
    return () if has_errors(text) else (note,)


def _any_chunks(built: System, options: Options) -> bool:
    """Whether ideal times are to bound every way to cut prompts: neither user nor batching policy limits a pass."""
    unlimited = options.max_num_batched_tokens is None and np.isinf(built.batching.budget(None, np.inf))
    return options.efficiency == "ideal" and bool(unlimited)


def _calibrated(built: System, options: Options) -> System:
    """The system with measured efficiencies and the engine's times."""
    from llmviewer.timing import calibrated, engine, profile  # the ideal roofline needs none of them

    if options.profile:
        files.refuse_named(options.profile)
    with naming("--profile"):
        own = profile.load(Path(options.profile)) if options.profile else None
    preset = replace(engine.load(options.engine), backend=options.backend).on(built.chip)
    preset = _with_limits(preset, options)
    chip = preset.rates_of(built.chip)
    efficiency = calibrated.calibrated(chip, preset.kernels, own, preset.borrowed)
    built = replace(built, chip=chip, efficiency=efficiency, engine=preset)
    free = preset.free_memory
    if free is None or options.gpu_memory_utilization is not None:
        return built
    left = free.margin_gib * 2.0**30 - free.context_bytes(chip)  # which is in the total, and in the margin
    return replace(built, memory_utilization=1.0, margin_bytes=left)


def _with_limits(preset: Engine, options: Options) -> Engine:
    """The engine with the limits that the user sets; they are also those of its profiling run."""
    wanted = {"tokens": options.max_num_batched_tokens, "sequences": options.max_num_seqs}
    limits = {name: float(value) or np.inf for name, value in wanted.items() if value is not None}
    if options.max_num_seqs is not None:
        preset = replace(preset, max_num_seqs=float(options.max_num_seqs), own_slots=False)
    if options.logical_batch is not None:
        preset = replace(preset, logical_batch=float(options.logical_batch))
    if options.max_model_len is not None:
        each = preset.max_num_seqs if preset.program is not None and preset.program.contexts else 1.0
        preset = replace(preset, max_model_len=float(options.max_model_len) * each)
    if preset.free_memory and options.max_num_batched_tokens is not None:  # its compute buffers are those of a pass
        preset = replace(preset, max_num_batched_tokens=limits["tokens"])
    if options.enforce_eager:
        preset = preset.without_graphs()
    if preset.memory is None:
        return preset
    memory = preset.memory.without_graphs() if options.enforce_eager else preset.memory
    return replace(preset, memory=memory.changed(limits))


def drafter_of(draft: Draft, model: Model, chip: Chip, options: Options) -> Drafter:
    """The draft model on the same chip and in the same engine steps, with number formats of its own."""
    alike = SharedBy.LAYERS if draft.model is model else SharedBy.WEIGHTS if draft.same_weights else SharedBy.ENGINE
    words = {name: text for name, text in options.techniques.items() if TECHNIQUES[name].shared_by <= alike}
    if draft.same_weights and "pipeline_parallel_size" in options.techniques:  # its layers are on all stages
        words["pipeline_parallel_size"] = options.techniques["pipeline_parallel_size"]
    if "tensor_parallel_size" in draft.techniques:
        words = {name: text for name, text in words.items() if name not in TENSOR_GROUP_OPTIONS}
    own = system(chip, replace(options, techniques={**words, **draft.techniques}))
    of_model = draft.caches and draft.shared == () and not draft.same_weights
    return Drafter(draft=draft, system=replace(own, engine=own.engine.without_step_terms(of_model=of_model)))


def tower_system(chip: Chip, options: Options) -> System:
    """The system on which a vision tower runs: kernels and tensor group of its model, weights as stored, in 16 bit."""
    words = {name: text for name, text in options.techniques.items() if name in OF_TOWER}
    return system(chip, replace(options, techniques=words, max_num_batched_tokens=None))


def spatial_system(model: Model, one: System, options: Options) -> System:
    """The system of as many chips as hold the model.  one: a pipeline stage, as requested."""
    from llmviewer.analysis import spatial  # only --spatial needs it
    from llmviewer.techniques.parallel.sizes import check_reach

    def build(tensor: int, stages: int) -> System:
        words = {**options.techniques, "tensor_parallel_size": str(tensor)}
        built = system(one.chip, replace(options, techniques=words))
        return replace(built, parallelism=replace(built.parallelism, pipeline=stages))

    given = one.parallelism.tensor
    degrees = (given,) if given > 1 else spatial.DEGREES
    found = spatial.smallest_system(model.graph(decode(1.0, 0.0)), build, degrees)
    check_reach(found.chip, found.parallelism)
    return found


def list_models() -> list[str]:
    """Names of all models; `llmviewer models show NAME` prints one with its aliases and source."""
    return models.names()


def models_by_maker() -> dict[str, dict[str, float]]:
    """Organisation in the address of a model's source -> model -> bytes of its weights, the smallest first."""
    found = ((name, models.load(name)) for name in models.names())
    nothing = decode(1.0, 0.0)
    return _by_maker(
        (urlsplit(one.source).path.split("/")[1], name, weights_bytes(one.graph(nothing))) for name, one in found
    )


def chips_by_maker() -> dict[str, dict[str, float]]:
    """Maker -> chip -> bytes of its memory, the smallest first."""
    found = ((name, specs.load(name)) for name in specs.names())
    return _by_maker((one.maker, name, float(np.max(one.memory_bytes))) for name, one in found)


def _by_maker(listed: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    """Maker -> name -> size, the smallest first; makers by their letters.  listed: maker, name, size."""
    found: dict[str, dict[str, float]] = {}
    for maker, name, size in sorted(listed, key=lambda one: (one[0].lower(), one[2])):
        found.setdefault(maker, {})[name] = size
    return found


def list_hardware() -> list[str]:
    """Names of all chips; `llmviewer hardware show NAME` prints one with the source of each figure."""
    return specs.names()


def list_techniques() -> list[str]:
    """Names of all techniques, which are keyword arguments of `analyze`; `llmviewer techniques show NAME`."""
    return list(TECHNIQUES)


def list_engines() -> list[str]:
    """Names of all serving engines, for the keyword argument `engine`."""
    return list(engine.names())
