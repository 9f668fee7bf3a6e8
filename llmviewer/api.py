"""The Python entry point: names and numbers -> Result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np

from llmviewer import analysis, hardware, models
from llmviewer.errors import UserError, shown, unknown
from llmviewer.hardware import Chip
from llmviewer.ir import Array
from llmviewer.models.model import Model
from llmviewer.passes.flash_attention import flash_attention
from llmviewer.result import Result
from llmviewer.system import Applied, System
from llmviewer.workload import Request

Sizes: TypeAlias = "int | Sequence[int] | np.ndarray[tuple[int, ...], np.dtype[np.float64]]"

#: Sizes beyond this are a typing error.
LARGEST = 10**9
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


def analyze(
    model: str | Model,
    hardware_name: str | Chip,
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
    columns = {name: sizes(name, value) for name, value in given.items()}
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

    def answer(self, workload: Request) -> Result:
        """The Result of a request, with its warnings."""
        budget = float(self.options.max_num_batched_tokens) or np.inf
        return Result(
            analysis=analysis.analyze(self.model, self.system, workload, budget),
            warnings=warnings(self.model, workload),
            token_budget=budget,
            efficiency=self.options.efficiency,
            quantization=self.options.quantization,
            kv_cache_dtype=self.options.kv_cache_dtype,
        )


def configuration(model: str | Model, hardware_name: str | Chip, **options: object) -> Configuration:
    """Names, paths or objects, and fields of `Options` -> a Configuration.  Raises UserError."""
    chosen = _options(options)
    loaded = _in_form(model if isinstance(model, Model) else _load(model, chosen), chosen)
    chip = hardware_name if isinstance(hardware_name, Chip) else hardware.load(hardware_name)
    return Configuration(model=loaded, system=system(chip, chosen), options=chosen)


def _load(name: str, options: Options) -> Model:
    return models.load(name, dtype=options.dtype, ignored=options.ignore_fields)


def _in_form(model: Model, options: Options) -> Model:
    """The model with latent attention in the form asked for; it comes with the cheaper one."""
    if options.latent_attention == "cheaper":
        return model
    from llmviewer.layers.mla import MlaForm
    from llmviewer.models.latent import with_form

    forms = {form.value: form for form in MlaForm}
    if options.latent_attention not in forms:
        raise unknown("latent-attention", options.latent_attention, forms)
    return with_form(model, forms[options.latent_attention])


def _options(given: dict[str, object]) -> Options:
    known = {field.name for field in fields(Options)}
    for name in given:
        if name not in known:
            raise unknown("option", name, known)
    return Options(**given)  # type: ignore[arg-type]


def system(chip: Chip, options: Options) -> System:
    """The chip with the passes the options ask for, in their fixed order."""
    if options.attention not in ATTENTION:
        raise unknown("attention", options.attention, ATTENTION)
    if options.efficiency not in EFFICIENCIES:
        raise unknown("efficiency", options.efficiency, EFFICIENCIES, "calibrated needs a fitted profile; none yet")
    if not 0.0 < options.gpu_memory_utilization <= 1.0:
        given = shown(options.gpu_memory_utilization)
        raise UserError(f"gpu-memory-utilization is {given}; allowed: above 0, at most 1")
    if not 0 <= options.max_num_batched_tokens <= LARGEST or options.max_num_batched_tokens % 1:
        given = shown(options.max_num_batched_tokens)
        raise UserError(f"max-num-batched-tokens is {given}; allowed: whole numbers up to {LARGEST}, 0 = all together")
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


def sizes(name: str, value: Sizes) -> Array:
    """Whole numbers from 1 up, as an array of float64 (length 1 for a single number)."""
    numbers = np.atleast_1d(np.asarray(value))
    if numbers.dtype.kind not in "iuf" or numbers.ndim != 1 or not numbers.size:
        raise UserError(f"{name} is '{shown(value)}'; expected whole numbers")
    numbers = numbers.astype(np.float64)
    for number in numbers[~((numbers >= 1) & (numbers <= LARGEST) & (numbers == np.floor(numbers)))][:1]:
        raise UserError(f"{name} is {number:g}; allowed: whole numbers from 1 to {LARGEST}")
    return numbers


def warnings(model: Model, request: Request) -> tuple[str, ...]:
    """What a reader should know before trusting the numbers."""
    context = float(np.max(request.input_len + request.output_len))
    notes = list(model.notes)
    if context > model.max_context:
        notes.append(f"context {context:.0f} is beyond the model's maximum of {model.max_context:.0f} tokens")
    return tuple(notes)
