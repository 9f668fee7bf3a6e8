"""The models and chips we know, as pages: lists, and one with every figure and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from llmviewer.reports import format as fmt
from llmviewer.reports.analysis_page import formats
from llmviewer.reports.format import Number
from llmviewer.reports.page import Column, Emphasis, Facts, Page, Row, Table, left, right

Object: TypeAlias = dict[str, Any]
Field: TypeAlias = tuple[Column, Callable[[Object], str]]

#: A value of a config longer than this is cut; JSON holds it whole.
LONGEST_VALUE = 160


def _active(model: Object) -> str:
    """Parameters a token uses, where not all."""
    active = model["active_parameters"]
    return fmt.parameters(active) if active != model["parameters"] else ""


def _context(model: Object) -> str:
    """The longest context the model was made for; recurrent models and ALiBi state none."""
    return "any" if model["max_context_len"] is None else fmt.whole(model["max_context_len"])


def _family(architecture: str) -> str:
    """Without the words that every architecture's class has."""
    for ending in ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"):
        architecture = architecture.removesuffix(ending)
    return architecture


def _sixteen_bit(peaks: Mapping[str, Number]) -> str:
    """The bf16 peak, or fp16's where that stands in for it."""
    if "bf16" in peaks:
        return fmt.tera(peaks["bf16"])
    return f"fp16 {fmt.tera(peaks['fp16'])}" if "fp16" in peaks else fmt.DASH


MODEL_FIELDS: tuple[Field, ...] = (
    (left("Model"), lambda m: str(m["name"])),
    (right("Parameters"), lambda m: fmt.parameters(m["parameters"])),
    (right("Active", rank=1), _active),
    (left("Architecture"), lambda m: _family(m["architecture"])),
    (left("Weights", rank=2), lambda m: next(iter(m["weight_formats"]))),
    (right("KV cache/token"), lambda m: fmt.memory(m["kv_cache_bytes_per_token"])),
    (right("State/sequence", rank=3), lambda m: fmt.memory(m["state_bytes_per_sequence"] or None)),
    (right("Context"), _context),
)
HARDWARE_FIELDS: tuple[Field, ...] = (
    (left("Chip"), lambda h: str(h["name"])),
    (right("bf16 TFLOP/s"), lambda h: _sixteen_bit(h["peak_flops_per_s"])),
    (right("fp8", rank=1), lambda h: fmt.tera(h["peak_flops_per_s"].get("fp8"))),
    (right("int8", rank=2), lambda h: fmt.tera(h["peak_flops_per_s"].get("int8"))),
    (right("Bandwidth"), lambda h: fmt.bandwidth(h["bandwidth_bytes_per_s"])),
    (right("Memory"), lambda h: fmt.capacity(h["memory_bytes"])),
    (right("TDP"), lambda h: fmt.DASH if h["tdp_w"] is None else f"{h['tdp_w']:g} W"),
    (left("Name", rank=3), lambda h: str(h["title"])),
)
#: Figures of a chip -> (label, how it is printed); rates per dtype and links are labelled by their key.
FIGURES: dict[str, tuple[str, Callable[[Number], str]]] = {
    "memory_bytes": ("memory", fmt.capacity),
    "bandwidth_bytes_per_s": ("bandwidth", fmt.bandwidth),
    "l2_bytes": ("last-level cache", fmt.capacity),
    "l2_bandwidth_bytes_per_s": ("cache bandwidth", fmt.bandwidth),
    "on_chip_bytes_per_unit": ("on-chip memory of a unit", fmt.capacity),
    "units": ("units", fmt.whole),
    "clock_hz": ("clock", lambda value: f"{(value or 0) / 1e9:g} GHz"),
    "vector_clock_hz": ("clock of the vector units", lambda value: f"{(value or 0) / 1e9:g} GHz"),
    "sparse_speedup": ("2:4 sparsity", fmt.times),
    "special_ops_per_s": ("special functions", lambda value: f"{fmt.count(value)}op/s"),
    "tdp_w": ("board power", lambda value: f"{value:g} W"),
}


def models(objects: Sequence[Object]) -> Page:
    """A row per model."""
    return _listed(objects, MODEL_FIELDS)


def hardware(objects: Sequence[Object]) -> Page:
    """A row per chip."""
    return _listed(objects, HARDWARE_FIELDS)


def _listed(objects: Sequence[Object], fields: tuple[Field, ...]) -> Page:
    readable = [entry for entry in objects if "error" not in entry]
    rows = tuple(Row(cells=tuple(show(entry) for _, show in fields)) for entry in readable)
    table = Table(columns=tuple(column for column, _ in fields), rows=rows)
    broken = tuple(("Cannot be read", entry["error"]) for entry in objects if "error" in entry)
    return (table, Facts(lines=broken, emphasis=Emphasis.WARNING)) if broken else (table,)


def model(card: Object) -> Page:
    """One model: counts, what is published, layers, config."""
    layers = " + ".join(f"{entry['layers']} × {entry['block']}" for entry in card["layers"])
    pairs = [
        ("Model", f"{card['name']} ({card['title']})" if card["title"] else card["name"]),
        ("Also called", ", ".join(card["aliases"])),
        ("Architecture", card["architecture"]),
        ("Parameters", _counted(card)),
        ("Published", _published(card)),
        ("Active", f"{fmt.parameters(card['active_parameters'])} a token"),
        ("Dtype", formats(card)),
        ("Layers", layers),
        ("KV cache", _cache(card)),
        ("State", f"{fmt.memory(card['state_bytes_per_sequence'])} a sequence"),
        ("Context", f"{_context(card)} tokens"),
        ("Source", card["source"]),
        *(("Note", note) for note in card["notes"]),
    ]
    if card["active_parameters"] == card["parameters"]:
        pairs = [pair for pair in pairs if pair[0] != "Active"]
    if not card["state_bytes_per_sequence"]:
        pairs = [pair for pair in pairs if pair[0] != "State"]
    config = tuple((str(name), _value(value)) for name, value in card["config"].items())
    return (Facts(lines=tuple(pair for pair in pairs if pair[1])), Facts(title="config.json", lines=config))


def _counted(card: Object) -> str:
    return f"{fmt.parameters(card['parameters'])} ({fmt.whole(card['parameters'])})"


def _published(card: Object) -> str:
    """What the maker says, and how ours compares."""
    published = card["published_parameters"]
    if not published:
        return ""
    value = published["value"]
    rounded = " (rounded)" if published.get("rounded") else ""
    same = "equal to ours" if value == card["parameters"] else f"ours is {card['parameters'] / value:.4f} of it"
    note = f"; {published['note']}" if published.get("note") else ""
    return f"{fmt.whole(value)}{rounded}, {same}: {published['source']}{note}"


def _cache(card: Object) -> str:
    token, beyond = card["kv_cache_bytes_per_token"], card["kv_cache_bytes_per_token_beyond_windows"]
    windows = f", {fmt.memory(beyond)} beyond the windows" if beyond != token else ""
    return f"{fmt.memory(token)} a token{windows}"


def _value(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 2] + " …"


def chip(card: Object) -> Page:
    """One chip: every figure with the number of its source, the sources, what is unknown."""
    pages = list(dict.fromkeys(figure["source"] for figure in card["figures"].values()))
    figures = tuple(
        (*_labelled(key, figure["value"]), f"[{pages.index(figure['source']) + 1}]", figure.get("note", ""))
        for key, figure in sorted(card["figures"].items(), key=lambda item: _place(item[0]))
    )
    head = (
        ("Chip", f"{card['name']} ({card['title']})"),
        ("Also called", ", ".join(card["aliases"])),
        ("Generation", card["generation"]),
        ("Links", _links(card)),
        ("File", card["path"]),
    )
    unknown = tuple(("Assumed", words) for words in card["assumed"])
    return (
        Facts(lines=tuple(pair for pair in head if pair[1])),
        Facts(title="Figures: dense rates, decimal prefixes; memory in GiB", lines=figures),
        Facts(title="Sources", lines=tuple((f"[{number}]", page) for number, page in enumerate(pages, 1))),
        *((Facts(lines=unknown, emphasis=Emphasis.FAINT),) if unknown else ()),
    )


def _place(key: str) -> int:
    """Rates first, then memory, the chip, links."""
    group = key.partition(".")[0]
    order = ("matrix_flops_per_s", "vector_flops_per_s", "special_ops_per_s", *FIGURES, "links")
    return order.index(group) if group in order else len(order)


def _labelled(key: str, value: Number) -> tuple[str, str]:
    """`matrix_flops_per_s.bf16` -> (`dense bf16`, `154.8 TFLOP/s`)."""
    group, _, name = key.partition(".")
    if group == "matrix_flops_per_s":
        return f"dense {name}", f"{fmt.tera(value)} {'TOP/s' if name.startswith('int') else 'TFLOP/s'}"
    if group == "vector_flops_per_s":
        return f"vector {name}", fmt.flops_per_s(value)
    if group == "links":
        return f"{name.partition('.')[0]}, each direction", fmt.bandwidth(value)
    label, show = FIGURES.get(key, (key, fmt.count))
    return label, show(value)


def _links(card: Object) -> str:
    """`nvlink of 8 devices (default), pcie`."""
    words = []
    for name, link in card["links"].items():
        devices = f" of {link['devices']} devices" if link["devices"] else ""
        bridge = ", needs a bridge" if link["needs_bridge"] else ""
        default = " (default)" if name == card["default_link"] else ""
        words.append(f"{name}{devices}{bridge}{default}")
    return "; ".join(words)
