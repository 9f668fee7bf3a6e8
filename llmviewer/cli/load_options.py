"""Options of a simulated load on the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from llmviewer.cli.help import UNSET
from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted
from llmviewer.simulation.options import LOAD, SOURCES, LoadKind, LoadOption
from llmviewer.techniques.panels import Panel


def _parsed(parse: Callable[[str], object], text: object) -> object:
    """The value of an option; its default is a number already."""
    return parse(text) if isinstance(text, str) else text


def annotation(name: str, option: LoadOption, panel: Panel = Panel.LOAD) -> Any:
    """Typer annotation of an option of a load or a sizing; its value is checked where Python callers' are."""
    spelling = "--" + name.replace("_", "-")
    if option.kind is LoadKind.SWITCH:
        return Annotated[bool, typer.Option(spelling, help=option.help, rich_help_panel=panel.value)]
    more: dict[str, Any] = {}
    if option.kind is LoadKind.WHOLE:
        more = {"parser": partial(_parsed, arguments.parse_size), "metavar": option.kind.value}
    if option.kind is LoadKind.NUMBER:
        more = {"parser": partial(_parsed, arguments.parse_number), "metavar": option.kind.value}
    kind = str if option.kind is LoadKind.TEXT else object
    return Annotated[kind | None, typer.Option(spelling, help=option.help, rich_help_panel=panel.value, **more)]


def loaded(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of a load, empty if none of them says when requests arrive, and all others.  Raises UserError."""
    load = {name: value for name, value in options.items() if name in LOAD}
    others = {name: value for name, value in options.items() if name not in LOAD}
    if any(load.get(name) for name in (*SOURCES, "find_rate")):
        return load, others
    for name, value in load.items():
        if value is not None:
            raise UserError(f"{name} is {quoted(value)} without a load; give one of {', '.join(SOURCES)}")
    return {}, others


def with_load_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add to a command every option of a load; it receives them among its **options."""
    return with_declared(command, {Panel.LOAD: LOAD})


def with_declared(
    command: Callable[..., int], panels: Mapping[Panel, Mapping[str, LoadOption]], leave: Collection[str] = ()
) -> Callable[..., int]:
    """Add declared options to a command, by panel of its help.  leave: names that it does not take."""
    declared = signature(command, eval_str=True)
    kept = [one for one in declared.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    rest = [one for one in declared.parameters.values() if one.kind is Parameter.VAR_KEYWORD]
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation(name, option, panel))
        for panel, options in panels.items()
        for name, option in options.items()
        if name not in declared.parameters and name not in leave
    ]
    command.__signature__ = declared.replace(parameters=[*kept, *added, *rest])  # type: ignore[attr-defined]
    setattr(command, UNSET, {one.name for one in added})
    return command
