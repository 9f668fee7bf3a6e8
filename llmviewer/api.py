"""The Python entry point: names and numbers -> Result."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

import numpy as np

from llmviewer import analysis, arguments, hardware, models
from llmviewer.arguments import Sizes
from llmviewer.errors import UserError, unknown
from llmviewer.hardware import Chip
from llmviewer.models.model import Model
from llmviewer.passes.flash_attention import flash_attention
from llmviewer.result import Result
from llmviewer.system import Applied, System
from llmviewer.workload import Request

ATTENTION = ("flash", "eager")
EFFICIENCIES = ("ideal",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a model is run; the defaults are those of the command line."""

    dtype: str = "auto"
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    attention: str = "flash"
    latent_attention: str = "cheaper"
    efficiency: str = "ideal"
    gpu_memory_utilization: float = 0.9
    max_num_batched_tokens: int = 0
    ignore_fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("dtype", "quantization", "kv_cache_dtype", "latent_attention"):
            arguments.word(name, getattr(self, name))
        arguments.word("attention", self.attention, ATTENTION)
        arguments.word("efficiency", self.efficiency, EFFICIENCIES, hint="calibrated needs a profile; none yet")
        arguments.fraction("gpu_memory_utilization", self.gpu_memory_utilization)
        arguments.whole("max_num_batched_tokens", self.max_num_batched_tokens, least=0)
        object.__setattr__(self, "ignore_fields", arguments.words("ignore_fields", self.ignore_fields))


def analyze(
    model: str | os.PathLike[str] | Model,
    hardware_name: str | os.PathLike[str] | Chip,
    *,
    batch_size: Sizes = 1,
    input_len: Sizes = 1024,
    output_len: Sizes = 128,
    **options: object,
) -> Result:
    """Prefill, decode and memory of `model` on a chip.

    model, hardware_name: names, paths or objects.  batch_size, input_len, output_len: whole numbers, or sequences of
    one length (one point each; a single number holds for all).  options: fields of `Options`.  Raises UserError.
    """
    return configuration(model, hardware_name, **options).answer(request(batch_size, input_len, output_len))


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
    """A model on a system, as the options ask."""

    model: Model
    system: System
    options: Options

    @property
    def token_budget(self) -> float:
        """Most tokens of one prefill pass."""
        return float(self.options.max_num_batched_tokens) or np.inf

    def answer(self, workload: Request) -> Result:
        """The Result of a request, with its warnings."""
        budget = self.token_budget
        return Result(
            analysis=analysis.analyze(self.model, self.system, workload, budget),
            warnings=warnings(self.model, workload),
            token_budget=budget,
            efficiency=self.options.efficiency,
            quantization=self.options.quantization,
            kv_cache_dtype=self.options.kv_cache_dtype,
        )


def configuration(
    model: str | os.PathLike[str] | Model, hardware_name: str | os.PathLike[str] | Chip, **options: object
) -> Configuration:
    """Names, paths or objects, and fields of `Options` -> a Configuration.  Raises UserError."""
    chosen = _options(options)
    loaded = _in_form(model if isinstance(model, Model) else _load(model, chosen), chosen)
    chip = hardware_name if isinstance(hardware_name, Chip) else _load_chip(hardware_name)
    return Configuration(model=loaded, system=system(chip, chosen), options=chosen)


def _load(name: object, options: Options) -> Model:
    return models.load(arguments.path_or_name("model", name), dtype=options.dtype, ignored=options.ignore_fields)


def _load_chip(name: object) -> Chip:
    return hardware.load(arguments.path_or_name("hardware", name))


def _in_form(model: Model, options: Options) -> Model:
    """The model with latent attention in the form asked for; it comes with the cheaper one."""
    if options.latent_attention == "cheaper":
        return model
    from llmviewer.layers.mla import MlaForm
    from llmviewer.models.latent import with_form

    forms = {form.value: form for form in MlaForm}
    if options.latent_attention not in forms:
        raise unknown("latent_attention", options.latent_attention, ("cheaper", *forms))
    return with_form(model, forms[options.latent_attention])


def _options(given: dict[str, object]) -> Options:
    known = {field.name for field in fields(Options)}
    for name in given:
        if name not in known:
            raise unknown("option", name, known)
    return Options(**given)  # type: ignore[arg-type]


def system(chip: Chip, options: Options) -> System:
    """The chip with the passes the options ask for, in their fixed order."""
    return System(chip=chip, passes=_passes(options), memory_utilization=options.gpu_memory_utilization)


def _passes(options: Options) -> tuple[Applied, ...]:
    """What the options ask for, in the fixed order: formats first, since kernels look at stored bytes."""
    passes = () if (options.quantization, options.kv_cache_dtype) == ("none", "auto") else _formats(options)
    if options.attention == "flash":
        passes += (Applied(name="flash_attention", make=flash_attention),)
    return passes


def _formats(options: Options) -> tuple[Applied, ...]:
    """The quantize pass, where a scheme or a cache dtype asks for it."""
    from llmviewer.passes.quantization_grammar import parse_scheme, with_cache_dtype
    from llmviewer.passes.quantize import Scheme, quantize

    scheme = with_cache_dtype(parse_scheme(options.quantization), options.kv_cache_dtype)
    if scheme == Scheme(name=scheme.name):
        return ()
    cache = "" if scheme.cache is None else f", {scheme.cache.name} cache"
    return (Applied(name=f"quantize({scheme.name}{cache})", make=lambda _: quantize(scheme)),)


def warnings(model: Model, request: Request) -> tuple[str, ...]:
    """What a reader should know before trusting the numbers."""
    context = float(np.max(request.input_len + request.output_len))
    notes = list(model.notes)
    if context > model.max_context:
        notes.append(f"context {context:.0f} is beyond the model's maximum of {model.max_context:.0f} tokens")
    return tuple(notes)
