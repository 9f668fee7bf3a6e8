"""Models, chips and techniques as the JSON objects that every command prints, and the lists of all known ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from llmviewer import models
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph
from llmviewer.core.workload import decode
from llmviewer.hardware import specs
from llmviewer.hardware.chip import FIGURES, Chip
from llmviewer.models.config import ABSENT_CONTEXT
from llmviewer.models.model import Model
from llmviewer.ops.attention import ROW_BLOCKS
from llmviewer.techniques.methods import METHODS, preset_names
from llmviewer.techniques.options import OPTIONS
from llmviewer.techniques.registry import TECHNIQUES, WITHOUT_OPTION, load
from llmviewer.techniques.technique import Declared

#: Key of the growth of the cache while no window is full.
PER_TOKEN = "kv_cache_bytes_per_token"


def number(value: Count | None) -> int | float | None:
    """A count as a JSON number: whole numbers as int; None for NaN, infinity and unknown."""
    if value is None:
        return None
    plain = value if type(value) is float else float(np.asarray(value).reshape(-1)[0])
    if not math.isfinite(plain):
        return None
    return int(plain) if plain.is_integer() and abs(plain) < 2.0**63 else plain


def cache_growth(graph: Graph) -> dict[str, int | float | None]:
    """KV-cache bytes per token, the same once every sliding window is full, fixed state bytes per
    sequence and, with cross attention, bytes per token of an encoder's input."""
    token = beyond = fixed = of_input = 0.0
    for block in graph.blocks:
        for state in block.states:
            added = state.per_token * state.dtype.bytes * block.repeats
            if state.of_input:
                of_input += added
                continue
            token += added
            beyond += added if state.window == np.inf else 0.0
            fixed += state.per_sequence * state.dtype.bytes * block.repeats
    return {
        PER_TOKEN: number(token),
        "kv_cache_bytes_per_token_beyond_windows": number(beyond),
        "state_bytes_per_sequence": number(fixed),
        **({"cross_cache_bytes_per_input_token": number(of_input)} if of_input else {}),
    }


def weight_formats(graph: Graph) -> dict[str, int | float | None]:
    """Number format -> stored weight elements, largest first."""
    stored: dict[str, float] = {}
    for tensor, times in graph.stored_weights():
        stored[tensor.dtype.name] = stored.get(tensor.dtype.name, 0.0) + float(tensor.elements) * times
    return {name: number(stored[name]) for name in sorted(stored, key=lambda name: -stored[name])}


def model_object(model: Model, graph: Graph | None = None) -> dict[str, Any]:
    """The model object.  graph: of the whole model after passes; by default that of the unmodified model."""
    graph = graph or model.graph(decode(1.0, 0.0))
    return {
        "name": model.name,
        "architecture": model.architecture,
        "dtype": model.dtype.name,
        "parameters": number(model.parameters),
        "active_parameters": number(model.active_parameters),
        "weight_formats": weight_formats(graph),
        **cache_growth(graph),
        "max_context_len": None if model.max_context >= ABSENT_CONTEXT else number(model.max_context),
    }


def hardware_object(chip: Chip) -> dict[str, Any]:
    """The hardware object: every figure in SI units, null if the vendor publishes none."""
    return {
        "name": chip.name,
        "title": chip.title,
        "aliases": list(chip.aliases),
        "generation": chip.generation,
        "memory_bytes": number(chip.memory_bytes),
        "bandwidth_bytes_per_s": number(chip.bandwidth_bytes_per_s),
        "peak_flops_per_s": {dtype: number(rate) for dtype, rate in chip.matrix_flops_per_s.items()},
        "vector_flops_per_s": {dtype: number(rate) for dtype, rate in chip.vector_flops_per_s.items()},
        "special_ops_per_s": number(chip.special_ops_per_s),
        "l2_bytes": number(chip.l2_bytes),
        "l2_bandwidth_bytes_per_s": number(chip.l2_bandwidth_bytes_per_s),
        "on_chip_bytes_per_unit": number(chip.on_chip_bytes_per_unit),
        "units": number(chip.units),
        "clock_hz": number(chip.clock_hz),
        "vector_clock_hz": number(chip.vector_clock_hz),
        "sparse_speedup": number(chip.sparse_speedup),
        "fp16_accumulation_speedup": number(chip.fp16_accumulation_speedup),
        "tdp_w": number(chip.tdp_w),
        "links": {
            name: {
                "bandwidth_bytes_per_s_per_direction": number(link.bandwidth_bytes_per_s),
                "devices": link.devices or None,
                "needs_bridge": link.needs_bridge,
            }
            for name, link in chip.links.items()
        },
        "default_link": chip.default_link or None,
    }


def roof_object(chip: Chip, wanted: str) -> dict[str, Any]:
    """The roofline for matrix products in dtype class `wanted`: dense peak, bandwidth, ridge point."""
    peak, bandwidth = chip.matrix_rate(wanted), chip.bandwidth_bytes_per_s
    return {
        "compute_dtype": chip.compute_dtype(wanted),
        "peak_flops_per_s": number(peak),
        "bandwidth_bytes_per_s": number(bandwidth),
        "ridge_flops_per_byte": number(peak / bandwidth),
    }


def sources(chip: Chip) -> dict[str, dict[str, Any]]:
    """Every figure of the chip with its source."""
    return {
        name: {"value": number(figure.value), "source": figure.source, **({"note": figure.note} if figure.note else {})}
        for name, figure in chip.figures.items()
    }


def unknowns(chip: Chip) -> list[str]:
    """Messages about terms that a result omits because the vendor publishes no figure."""
    figures = {
        "vector units": chip.vector_rate(),
        "special-function units": chip.special_ops_per_s,
        "L2 bandwidth": chip.l2_bandwidth_bytes_per_s,
        "L2 capacity": chip.l2_bytes,
        "compute units": chip.units,
        "row blocks of flash attention": ROW_BLOCKS.get(chip.generation),
    }
    return [f"{name}: unknown for {chip.name}, term omitted" for name, figure in figures.items() if figure is None]


def roofs(chip: Chip) -> list[dict[str, Any]]:
    """The roofs of a roofline plot, one row each: compute units [FLOP/s] and memories [byte/s].

    Dtypes of one unit with the same rate share a row.
    """
    rows = []
    for units, rates in (("tensor", chip.matrix_flops_per_s), ("vector", chip.vector_flops_per_s)):
        alike: dict[float, list[str]] = {}
        for dtype, rate in rates.items():
            alike.setdefault(float(np.max(rate)), []).append(dtype)
        for rate, names in alike.items():
            rows.append({"roof": "compute", "what": f"{units} {', '.join(names)}", "rate": rate})
    for what, bandwidth in (("device memory", chip.bandwidth_bytes_per_s), ("L2", chip.l2_bandwidth_bytes_per_s)):
        if bandwidth is not None:
            rows.append({"roof": "memory", "what": what, "rate": float(np.max(bandwidth))})
    return [{"hardware": chip.name, **row} for row in rows]


#: Figure of a chip -> (label, SI unit).
FIGURE_LABELS = {name: (info.label, info.unit) for name, info in FIGURES.items()}


def model_list() -> list[dict[str, Any]]:
    """Model objects of all models; a model that cannot be read has only `name` and `error`."""
    return [_or_error(name, lambda name: model_object(models.load(name))) for name in models.names()]


def model_card(name: str, *, dtype: str = "auto", ignored: tuple[str, ...] = ()) -> dict[str, Any]:
    """The model object with published parameter counts, layers, notes and the fields of its config."""
    card = models.read(name)
    model = models.build(card, dtype=dtype, ignored=ignored)
    return {
        **model_object(model, _named_formats(model)),
        "title": card.title,
        "aliases": list(card.aliases),
        "compared": card.compared or None,
        "source": card.source,
        "published_parameters": dict(card.published) or None,
        "layers": [{"block": layer.name, "layers": layer.repeats} for layer in model.all_layers],
        "notes": list(model.notes),
        "config": dict(card.config),
    }


def _named_formats(model: Model) -> Graph:
    """The graph of the model in the format that its name states, if it states one."""
    graph = model.graph(decode(1.0, 0.0))
    if not model.quantization:
        return graph
    from llmviewer.techniques.quantization.grammar import parse_scheme  # reads the file of formats
    from llmviewer.techniques.quantization.quantize import quantize

    return quantize(parse_scheme(model.quantization))(graph)


def hardware_list() -> list[dict[str, Any]]:
    """Hardware objects of all chips; a chip that cannot be read has only `name` and `error`."""
    return [_or_error(name, lambda name: hardware_object(specs.load(name))) for name in specs.names()]


def _or_error(name: str, described: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The object of a name, or its name and error."""
    try:
        return described(name)
    except UserError as error:
        return {"name": name, "error": str(error)}


def hardware_card(name: str) -> dict[str, Any]:
    """The hardware object with the source of every figure and a list of unpublished figures."""
    chip = specs.load(name)
    return {
        **hardware_object(chip),
        "path": chip.path,
        "figures": sources(chip),
        "assumed": unknowns(chip),
    }


def technique_list() -> list[dict[str, Any]]:
    """The entries of all techniques in the order of application; those without an option come last."""
    return [technique_card(name) for name in (*TECHNIQUES, *WITHOUT_OPTION)]


def technique_card(name: str) -> dict[str, Any]:
    """The registry's entry of a technique."""
    technique, option = load(name), TECHNIQUES.get(name)
    return {
        "name": name,
        "kind": technique.kind,
        "option": _command_line_option(name),
        "default": option.default if option else "",
        "summary": technique.summary,
        "parameters": dict(technique.parameters),
        "schema": technique.grammar.schema() if isinstance(technique, Declared) else {},
        "methods": {method: load(method).summary for method in METHODS.get(name, ())},
        "presets": list(preset_names(name)),
        "formula": technique.formula,
        "source": technique.source,
        "example": technique.example,
    }


def _command_line_option(name: str) -> str:
    """The command-line option of a technique, or ""."""
    if name in TECHNIQUES:
        return " ".join(OPTIONS[name].spellings(name))
    return next((f"--{option} {name}" for option, methods in METHODS.items() if name in methods), "")
