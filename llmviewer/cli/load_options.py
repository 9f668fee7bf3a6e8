"""Options of a simulated load on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted
from llmviewer.simulation.options import LOAD, SOURCES, LoadKind
from llmviewer.techniques.panels import Panel


def _parsed(parse: Callable[[str], object], text: object) -> object:
    """The value of an option; its default is a number already."""
    return parse(text) if isinstance(text, str) else text


def annotation(name: str) -> Any:
    """Typer annotation of an option of a load; its value is checked where Python callers' are."""
    option = LOAD[name]
    spelling = "--" + name.replace("_", "-")
    if option.kind is LoadKind.SWITCH:
        return Annotated[bool, typer.Option(spelling, help=option.help, rich_help_panel=Panel.LOAD.value)]
    more: dict[str, Any] = {}
    if option.kind is LoadKind.WHOLE:
        more = {"parser": partial(_parsed, arguments.parse_size), "metavar": option.kind.value}
    if option.kind is LoadKind.NUMBER:
        more = {"parser": partial(_parsed, arguments.parse_number), "metavar": option.kind.value}
    kind = str if option.kind is LoadKind.TEXT else object
    return Annotated[kind | None, typer.Option(spelling, help=option.help, rich_help_panel=Panel.LOAD.value, **more)]


def loaded(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of a load, empty if none of them says when requests arrive, and all others.  Raises UserError."""
    load = {name: value for name, value in options.items() if name in LOAD}
    others = {name: value for name, value in options.items() if name not in LOAD}
    if any(load.get(name) for name in (*SOURCES, "find_rate")):
        return load, others
    for name, value in load.items():
        if value != LOAD[name].default:
            raise UserError(f"{name} is {quoted(value)} without a load; give one of {', '.join(SOURCES)}")
    return {}, others


def with_load_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add to a command every option of a load; it receives them among its **options."""
    declared = signature(command, eval_str=True)
    kept = [one for one in declared.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    rest = [one for one in declared.parameters.values() if one.kind is Parameter.VAR_KEYWORD]
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation(name))
        for name, option in LOAD.items()
        if name not in declared.parameters
    ]
    command.__signature__ = declared.replace(parameters=[*kept, *added, *rest])  # type: ignore[attr-defined]
    return command
