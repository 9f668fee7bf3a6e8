"""Controls of the question: model, chip, sizes, engine, number formats, and every other option by subject."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cache
from math import log2
from typing import Any

from llmviewer.api.build import OF_ENGINE, chips_by_maker, models_by_maker
from llmviewer.core.frozen import frozen
from llmviewer.language.option import Kind, Panel
from llmviewer.language.quantity import SIZES
from llmviewer.reports import format as fmt
from llmviewer.reports.web import possible
from llmviewer.reports.web.markup import templates
from llmviewer.reports.web.state import HARDWARE, LOCAL, MODEL, State, default_text
from llmviewer.reports.web.view import NAMES
from llmviewer.simulation.call import BATCHING
from llmviewer.techniques.options import OPTIONS, WORKLOAD

#: Sliders run over powers of two: size -> largest power.
SLIDERS = {"batch_size": 10, "input_len": 17, "output_len": 13}
#: Options with a menu from the start, in their order.
COMMON = ("engine", "quantization", "kv_cache_dtype", "tensor_parallel_size")
#: Figures of the chip that a visitor changes, with an example.
FIGURES = {"bandwidth": "6TB/s", "capacity": "+50%", "peak.bf16": "x2", "peak.fp8": "x2", "launch": "x0.5"}
LABELS = {"hardware": "Chip", **{name: one.heading for name, one in SIZES.items()}}
LABELS |= {"kv_cache_dtype": "KV cache format", "set": "Figures as --set", "lora": "LoRA"}
#: Control -> what its menu holds by maker, with sizes, and the text of a size.
LISTED = {"model": (models_by_maker, fmt.memory), "hardware": (chips_by_maker, fmt.capacity)}
#: What an option is unless it is stated, where that is not its default in every tab.
UNSTATED = dict.fromkeys(OF_ENGINE, "the engine's")
UNSTATED |= {
    name: f"{OPTIONS[name].default}; Load: {text}" for name, text in (("engine", "the chip's"), ("batching", BATCHING))
}


@frozen
class Control:
    """One control.  choices: values of a menu with labels; without any it is a field.  suggested: values of a field.
    groups: title -> further values of the menu with their labels.

    value: "" for an option that is not stated.  default: of the model and the chip, which an address need not name.
    unstated: what holds where an option is not stated.  most, power: of a size, the largest power of two of its slider
    and the place on it.
    """

    name: str
    label: str
    value: str
    default: str = ""
    help: str = ""
    unstated: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    suggested: tuple[str, ...] = ()
    most: int = 0
    power: float = 0.0


def controls(state: State, offered: dict[str, list[str]], named: str) -> str:
    """HTML of all controls with the values of a state.

    offered: option -> values that are possible.  named: the model's name, which the menu shows for a config of one's
    own.
    """
    sizes = [name for name in WORKLOAD if not _is_fixed(name, state, offered)]
    return (
        templates()
        .get_template("controls.html.j2")
        .render(
            model=_grouped("model", state.model, MODEL),
            chip=_grouped("hardware", state.hardware, HARDWARE),
            own=named if state.config else "",
            sizes=[_option(name, state, offered) for name in sizes],
            common=[_option(name, state, offered) for name in COMMON],
            figures=_figures(state),
            whole=_option("set", state, offered),
            panels=_panels(state, offered),
        )
    )


def label(name: str) -> str:
    """Title of the control of an option."""
    return LABELS.get(name, name.replace("_", " ").capitalize())


def _grouped(name: str, value: str, default: str) -> Control:
    """The menu of models or chips by maker and size; one that is not in the catalogue stands before them."""
    groups = by_maker(name)
    choices = {} if any(value in one for one in groups.values()) else {value: value}
    return Control(name=name, label=label(name), value=value, default=default, choices=choices, groups=groups)


@cache
def by_maker(name: str) -> dict[str, dict[str, str]]:
    """Maker -> model or chip -> its name with the memory of its weights, or that it has."""
    listed, size_of = LISTED[name]
    return {
        maker: {one: f"{one} · {size_of(size)}" for one, size in sizes.items()} for maker, sizes in listed().items()
    }


def _with(value: str, values: list[str]) -> dict[str, str]:
    """The values of a menu, and before them the one that is set if it is another."""
    return {one: one for one in ((value, *values) if value and value not in values else values)}


def _option(name: str, state: State, offered: dict[str, list[str]]) -> Control:
    """The control of an option: a menu where the values are known, else a field that suggests values."""
    declared, default = OPTIONS[name], default_text(name)
    value = state.words.get(name, "")
    known = offered.get(name) or (NAMES[name]() if name in NAMES else list(declared.choices if declared.closed else ()))
    if declared.kind is Kind.SWITCH:
        known = ["false", "true"]
    return Control(
        name=name,
        label=label(name),
        value=value,
        help=declared.help,
        unstated=UNSTATED.get(name) or default or "the engine's",
        choices=_with(value, known) if known else {},
        suggested=() if known else possible.suggestions(name),
        most=SLIDERS.get(name, 0),
        power=power(value or default) if name in SLIDERS else 0.0,
    )


def power(text: str) -> float:
    """The place of a size on its slider."""
    from llmviewer.core import arguments

    size = arguments.parse_size(text or "1")
    return log2(size) if isinstance(size, (int, float)) and size > 0 else 0.0


def _is_fixed(name: str, state: State, offered: dict[str, list[str]]) -> bool:
    """Whether an option cannot take another value than it has."""
    return name in offered and len(offered[name]) < 2 and name not in state.words


def _figures(state: State) -> list[Control]:
    """Fields for figures of the chip, which make `--set`."""
    given = dict(part.partition("=")[::2] for part in state.words.get("set", "").split(",") if "=" in part)
    return [Control(name=name, label=name, value=given.get(name, ""), unstated=hint) for name, hint in FIGURES.items()]


def _panels(state: State, offered: dict[str, list[str]]) -> list[tuple[str, list[Control]]]:
    """The other options by subject; one that cannot take another value here is left out."""
    found: dict[Panel, list[Any]] = {}
    for name, declared in OPTIONS.items():
        if name in (*WORKLOAD, *COMMON, *LOCAL, "set"):
            continue
        if _is_fixed(name, state, offered):
            continue
        found.setdefault(declared.panel, []).append(_option(name, state, offered))
    return [(panel.value, found[panel]) for panel in Panel if panel in found]
