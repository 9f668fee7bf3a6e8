"""Options of a simulated load on the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, signature
from typing import Any

from llmviewer.cli.help import UNSET
from llmviewer.cli.options import annotation
from llmviewer.core.errors import UserError, quoted
from llmviewer.language.option import Option
from llmviewer.simulation.options import LOAD, SOURCES


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


def with_declared(
    options: Mapping[str, Option], leave: Collection[str] = ()
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Decorator that adds declared options to a command, which receives them among its **options.

    leave: names that it does not take."""

    def added_to(command: Callable[..., int]) -> Callable[..., int]:
        declared = signature(command, eval_str=True)
        own = [one for one in declared.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        rest = [one for one in declared.parameters.values() if one.kind is Parameter.VAR_KEYWORD]
        added = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation(name, one))
            for name, one in options.items()
            if name not in declared.parameters and name not in leave
        ]
        command.__signature__ = declared.replace(parameters=[*own, *added, *rest])  # type: ignore[attr-defined]
        setattr(command, UNSET, {one.name for one in added})
        return command

    return added_to


with_load_options = with_declared(LOAD)
