"""Known models, chips and techniques as pages: lists, and one entry with all its figures and their sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from llmviewer.reports import format as fmt
from llmviewer.reports.analysis_page import formats
from llmviewer.reports.format import Number
from llmviewer.reports.page import Column, Emphasis, Facts, Page, Row, Table, left, right
from llmviewer.result.describe import FIGURE_LABELS

Object: TypeAlias = dict[str, Any]
Field: TypeAlias = tuple[Column, Callable[[Object], str]]

#: Config values longer than this are truncated; JSON contains them in full.
MAX_VALUE_LENGTH = 160
#: Endings of class names that name a head.
HEADS = ("ForCausalLM", "ForConditionalGeneration", "ForMaskedLM", "ForSequenceClassification")


def _active(model: Object) -> str:
    """Returns the parameters that one token uses, if fewer than all."""
    active = model["active_parameters"]
    return fmt.parameters(active) if active != model["parameters"] else ""


def _context(model: Object) -> str:
    """Returns the context length that the config states; recurrent models and ALiBi state none."""
    return "any" if model["max_context_len"] is None else fmt.whole(model["max_context_len"])


def family(architecture: str) -> str:
    """Returns the architecture without the common suffix of its class name."""
    for ending in (*HEADS, "LMHeadModel", "Model"):
        architecture = architecture.removesuffix(ending)
    return architecture


def _sixteen_bit(peaks: Mapping[str, Number]) -> str:
    """Returns the bf16 peak, or the fp16 peak of a chip without bf16."""
    if "bf16" in peaks:
        return fmt.tera(peaks["bf16"])
    return f"fp16 {fmt.tera(peaks['fp16'])}" if "fp16" in peaks else fmt.DASH


MODEL_FIELDS: tuple[Field, ...] = (
    (left("Model"), lambda m: str(m["name"])),
    (right("Parameters"), lambda m: fmt.parameters(m["parameters"])),
    (right("Active", rank=1), _active),
    (left("Architecture", rank=2), lambda m: family(m["architecture"])),
    (left("Weights", rank=3), lambda m: next(iter(m["weight_formats"]))),
    (right("KV cache/token"), lambda m: fmt.memory(m["kv_cache_bytes_per_token"])),
    (right("State/sequence", rank=4), lambda m: fmt.memory(m["state_bytes_per_sequence"] or None)),
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
PRICE_FIELDS: tuple[Field, ...] = (
    (left("Chip"), lambda p: str(p["chip"])),
    (right("$/h"), lambda p: f"{p['usd_per_gpu_hour']:.2f}"),
    (left("Kind"), lambda p: str(p["kind"])),
    (left("Term", rank=1), lambda p: str(p["term"])),
    (left("Day"), lambda p: str(p["date"] or fmt.DASH)),
    (left("Source", rank=2), lambda p: str(p["source"]).removeprefix("https://").partition("/")[0]),
)
#: Unit of a chip's figure -> how it is written; rates per dtype and links are labelled by their key.
UNITS: dict[str, Callable[[Number], str]] = {
    "byte": fmt.capacity,
    "byte/s": fmt.bandwidth,
    "1": fmt.whole,
    "Hz": lambda value: f"{(value or 0) / 1e9:g} GHz",
    "x": fmt.times,
    "op/s": lambda value: f"{fmt.count(value)}op/s",
    "W": lambda value: f"{value:g} W",
}


def models(objects: Sequence[Object]) -> Page:
    """Returns a table with a row per model."""
    return _listed(objects, MODEL_FIELDS)


def hardware(objects: Sequence[Object]) -> Page:
    """Returns a table with a row per chip."""
    return _listed(objects, HARDWARE_FIELDS)


def prices(objects: Sequence[Object]) -> Page:
    """Returns a table with a row per price."""
    return _listed(objects, PRICE_FIELDS)


def _listed(objects: Sequence[Object], fields: tuple[Field, ...]) -> Page:
    readable = [entry for entry in objects if "error" not in entry]
    rows = tuple(Row(cells=tuple(show(entry) for _, show in fields)) for entry in readable)
    table = Table(columns=tuple(column for column, _ in fields), rows=rows)
    broken = tuple(("Cannot be read", entry["error"]) for entry in objects if "error" in entry)
    return (table, Facts(lines=broken, emphasis=Emphasis.WARNING)) if broken else (table,)


def model(card: Object) -> Page:
    """Returns one model: counts, published figures, layers, config."""
    layers = " + ".join(f"{entry['layers']} × {entry['block']}" for entry in card["layers"])
    pairs = [
        ("Model", f"{card['name']} ({card['title']})" if card["title"] else card["name"]),
        ("Aliases", ", ".join(card["aliases"])),
        ("Architecture", card["architecture"]),
        ("Parameters", _counted(card)),
        ("Published", _published(card)),
        ("Active", f"{fmt.parameters(card['active_parameters'])} per token"),
        ("Dtype", formats(card)),
        ("Layers", layers),
        ("KV cache", _cache(card)),
        ("State", f"{fmt.memory(card['state_bytes_per_sequence'])} per sequence"),
        ("Context", "no limit stated" if card["max_context_len"] is None else f"{_context(card)} tokens"),
        ("Source", card["source"]),
        ("Config", card["compared"] or ""),
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
    """Returns the published parameter count and how our count compares."""
    published = card["published_parameters"]
    if not published:
        return ""
    value = published["value"]
    rounded = " (rounded)" if published.get("rounded") else ""
    same = (
        "equal to our count" if value == card["parameters"] else f"our count is {card['parameters'] / value:.4f} of it"
    )
    note = f"; {published['note']}" if published.get("note") else ""
    return f"{fmt.whole(value)}{rounded}, {same}: {published['source']}{note}"


def _cache(card: Object) -> str:
    token, beyond = card["kv_cache_bytes_per_token"], card["kv_cache_bytes_per_token_beyond_windows"]
    windows = f", {fmt.memory(beyond)} beyond sliding windows" if beyond != token else ""
    return f"{fmt.memory(token)} per token{windows}"


def _value(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 2] + " …"


def chip(card: Object) -> Page:
    """Returns one chip: figures with source numbers, the sources, and what is assumed."""
    pages = list(dict.fromkeys(figure["source"] for figure in card["figures"].values()))
    figures = tuple(
        (*_labelled(key, figure["value"]), f"[{pages.index(figure['source']) + 1}]", figure.get("note", ""))
        for key, figure in sorted(card["figures"].items(), key=lambda item: _place(item[0]))
    )
    head = (
        ("Chip", f"{card['name']} ({card['title']})"),
        ("Aliases", ", ".join(card["aliases"])),
        ("Generation", card["generation"]),
        ("Links", _links(card)),
        ("File", card["path"]),
    )
    assumed = tuple(("Assumed", text) for text in card["assumed"])
    return (
        Facts(lines=tuple(pair for pair in head if pair[1])),
        Facts(title="Figures (dense rates, decimal prefixes; memory in GiB)", lines=figures),
        Facts(title="Sources", lines=tuple((f"[{number}]", page) for number, page in enumerate(pages, 1))),
        *((Facts(lines=assumed, emphasis=Emphasis.FAINT),) if assumed else ()),
    )


def _place(key: str) -> int:
    """Returns the sort position of a figure: rates first, then memory, the chip, links."""
    group = key.partition(".")[0]
    order = ("matrix_flops_per_s", "vector_flops_per_s", "special_ops_per_s", *FIGURE_LABELS, "links")
    return order.index(group) if group in order else len(order)


def _labelled(key: str, value: Number) -> tuple[str, str]:
    """Returns label and value: `matrix_flops_per_s.bf16` -> (`dense bf16`, `154.8 TFLOP/s`)."""
    group, _, name = key.partition(".")
    if group == "matrix_flops_per_s":
        return f"dense {name}", f"{fmt.tera(value)} {'TOP/s' if name.startswith('int') else 'TFLOP/s'}"
    if group == "vector_flops_per_s":
        return f"vector {name}", fmt.flops_per_s(value)
    if group == "links":
        return f"{name.partition('.')[0]}, per direction", fmt.bandwidth(value)
    label, unit = FIGURE_LABELS.get(key, (key, ""))
    return label, UNITS.get(unit, fmt.count)(value)


def _links(card: Object) -> str:
    """Returns the links: `nvlink, 8 devices (default); pcie`."""
    texts = []
    for name, link in card["links"].items():
        devices = f", {link['devices']} devices" if link["devices"] else ""
        bridge = ", needs a bridge" if link["needs_bridge"] else ""
        default = " (default)" if name == card["default_link"] else ""
        texts.append(f"{name}{devices}{bridge}{default}")
    return "; ".join(texts)


def listed(cards: Sequence[Mapping[str, Any]]) -> Page:
    """Returns all techniques by kind, each with its summary, and the presets of those that have some."""
    kinds = dict.fromkeys(str(card["kind"]) for card in cards)
    groups = tuple(Facts(lines=_lines(cards, kind), title=kind.capitalize().replace("Kv", "KV")) for kind in kinds)
    presets = tuple((_label(card), _cell(card["presets"])) for card in cards if card["presets"] and card["default"])
    hint = (("", "llmviewer techniques show NAME: parameters, formula, source and an example command"),)
    return (*groups, Facts(title="Presets", lines=presets), Facts(lines=hint))


def _lines(cards: Sequence[Mapping[str, Any]], kind: str) -> tuple[tuple[str, ...], ...]:
    return tuple((_label(card), str(card["summary"])) for card in cards if card["kind"] == kind)


def _label(card: Mapping[str, Any]) -> str:
    """Returns the technique's option, or its name if it shares an option or has none."""
    name = str(card["name"])
    option, *_ = str(card["option"] or name).split()
    return option if option == "--" + name.replace("_", "-") else name


def shown(card: Mapping[str, Any]) -> Page:
    """Returns all fields of one technique, with its parameters and its methods as separate lists.

    The JSON schema of its parameters says no more than these, for programs.
    """
    card = {name: value for name, value in card.items() if name != "schema"}
    lists = {name: value for name, value in card.items() if isinstance(value, Mapping)}
    lines = tuple((name.capitalize(), _cell(value)) for name, value in card.items() if value and name not in lists)
    facts = (Facts(title=name.capitalize(), lines=tuple(value.items())) for name, value in lists.items() if value)
    return (Facts(lines=lines), *facts)


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
