"""Controls of the question: model, chip, sizes, engine, number formats, and every other option by subject."""

from __future__ import annotations

from math import log2
from typing import Any

from dash import dcc, html

from llmviewer.reports.web import possible
from llmviewer.reports.web.state import LOCAL, State, default_text
from llmviewer.reports.web.view import NAMES
from llmviewer.techniques.options import OPTIONS, WORKLOAD, ValueKind
from llmviewer.techniques.panels import Panel

#: Sliders run over powers of two: size -> largest power.
SLIDERS = {"batch_size": 10, "input_len": 17, "output_len": 13}
#: Options with a menu from the start, in their order.
COMMON = ("engine", "quantization", "kv_cache_dtype", "tensor_parallel_size")
#: Figures of the chip that a visitor changes, with an example.
FIGURES = {
    "bandwidth": "6TB/s",
    "capacity": "+50%",
    "peak.bf16": "x2",
    "peak.fp8": "x2",
    "launch": "x0.5",
}
LABELS = {
    "model": "Model",
    "hardware": "Chip",
    "batch_size": "Batch size",
    "input_len": "Input length",
    "output_len": "Output length",
    "engine": "Engine",
    "quantization": "Quantization",
    "kv_cache_dtype": "KV cache format",
    "tensor_parallel_size": "Tensor parallel size",
}


def controls(state: State, offered: dict[str, list[str]]) -> list[Any]:
    """All controls with the values of a state.  offered: option -> values that are possible."""
    return [
        _menu("model", state.model, NAMES["model"]()),
        _upload(state),
        _menu("hardware", state.hardware, NAMES["hardware"]()),
        *(_size(name, state) for name in WORKLOAD),
        *(_option(name, state, offered) for name in COMMON),
        _figures(state),
        *_panels(state, offered),
    ]


def text_of(name: str, state: State) -> str:
    """The text that the control of an option shows."""
    return state.words.get(name, default_text(name))


def label(name: str) -> str:
    """Name of an option for people."""
    return LABELS.get(name, name.replace("_", " ").capitalize())


def _labelled(name: str, control: Any, title: str = "") -> html.Label:
    return html.Label([html.Span(label(name)), control], className="control", title=title)


def _menu(name: str, value: str, values: list[str], title: str = "") -> html.Label:
    listed = values if value in values or not value else [value, *values]
    identifier = {"type": "option", "name": name}
    menu = dcc.Dropdown(listed, value, id=identifier, clearable=False, searchable=len(listed) > 8)
    return _labelled(name, menu, title)


def _size(name: str, state: State) -> html.Div:
    """A field for a size with a slider beside it."""
    text = text_of(name, state)
    field = dcc.Input(text, type="text", id={"type": "option", "name": name}, debounce=0.3, autoComplete="off")
    slider = dcc.Slider(
        0, SLIDERS[name], 0.25, value=power(text), id={"type": "slider", "name": name}, marks=None,
        updatemode="drag", included=True, allow_direct_input=False,
    )  # fmt: skip
    return html.Div(
        [_labelled(name, field, OPTIONS[name].help), html.Div(slider, className="slider")], className="size"
    )


def power(text: str) -> float:
    """The place of a size on its slider."""
    from llmviewer.core import arguments

    size = arguments.parse_size(text or "1")
    return log2(size) if isinstance(size, (int, float)) and size > 0 else 0.0


def _option(name: str, state: State, offered: dict[str, list[str]]) -> html.Label:
    """A menu if the values are known, a switch, or a field that suggests values."""
    text, declared = text_of(name, state), OPTIONS[name]
    values = offered.get(name) or (
        NAMES[name]() if name in NAMES else list(declared.choices if declared.closed else ())
    )
    if values:
        return _menu(name, text, values, declared.help)
    if declared.kind is ValueKind.SWITCH:
        return _menu(name, text, ["false", "true"], declared.help)
    identifier = {"type": "option", "name": name}
    suggested = possible.suggestions(name)
    key = f"values-{name}"
    field = dcc.Input(
        text, type="text", id=identifier, debounce=0.5, list=key if suggested else "", autoComplete="off",
        placeholder=default_text(name) or "the engine's",
    )  # fmt: skip
    listed = [html.Datalist([html.Option(value=one) for one in suggested], id=key)] if suggested else []
    return _labelled(name, html.Span([field, *listed]), declared.help)


def _upload(state: State) -> html.Div:
    words = "a config.json of your own is used" if state.config else "or drop a config.json here"
    drop = dcc.Upload(html.Button(words, type="button", className="drop"), id="upload", max_size=65_536, multiple=False)
    remove = [html.Button("Use the catalogue", id="remove", n_clicks=0)] if state.config else []
    own = dcc.Input(state.config, type="hidden", id={"type": "option", "name": "config"})
    return html.Div([drop, own, *remove], className="upload")


def _figures(state: State) -> html.Details:
    """Fields for figures of the chip, which make `--set`."""
    given = dict(part.partition("=")[::2] for part in text_of("set", state).split(",") if "=" in part)
    fields = [
        html.Label(
            [
                html.Span(name),
                dcc.Input(
                    given.get(name, ""), type="text", id={"type": "figure", "name": name}, debounce=0.5,
                    placeholder=f"as it is; {example}", autoComplete="off",
                ),
            ],
            className="control",
        )
        for name, example in FIGURES.items()
    ]  # fmt: skip
    whole = _labelled(
        "set", dcc.Input(text_of("set", state), type="text", id={"type": "option", "name": "set"}, debounce=0.5)
    )
    return html.Details([html.Summary("Figures of the chip"), *fields, whole], open=bool(given))


def _panels(state: State, offered: dict[str, list[str]]) -> list[html.Details]:
    """The other options by subject; one that cannot take another value here is left out."""
    found: dict[Panel, list[Any]] = {}
    for name, declared in OPTIONS.items():
        if name in (*WORKLOAD, *COMMON, *LOCAL, "set"):
            continue
        if name in offered and len(offered[name]) < 2 and name not in state.words:
            continue
        found.setdefault(declared.panel, []).append(_option(name, state, offered))
    return [html.Details([html.Summary(panel.value), *found[panel]]) for panel in Panel if panel in found]
