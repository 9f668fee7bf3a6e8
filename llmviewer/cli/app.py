"""Typer around the commands: only the module asked for is imported, and every usage error is one line."""

from __future__ import annotations

import importlib
from typing import Any

import typer

from llmviewer.errors import UserError, unknown


def command_for(words: list[str], commands: dict[str, tuple[str, str]]) -> int:
    """Parse `words`, run the command, return its exit status."""
    name = words[0] if words else ""
    if name and not name.startswith("-") and name not in commands:
        raise unknown("command", name, commands)
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False, help=HELP)
    app.callback()(_root)
    for known, (module, summary) in commands.items():
        if name in (known, "") or name.startswith("-"):
            _register(app, known, module, summary)
    try:
        status = typer.main.get_command(app)(args=words, prog_name="llmviewer", standalone_mode=False)
    except SystemExit as stop:
        return int(stop.code or 0)
    except Exception as error:
        raise _one_line(error) from error
    return status if isinstance(status, int) else 0


HELP = "How fast an LLM runs on a chip, why, and what to change."


def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from llmviewer import __version__

        typer.echo(__version__)
        raise typer.Exit


def _register(app: typer.Typer, name: str, module: str, summary: str) -> None:
    """A module offers `command` (a function) or `app` (a group of them)."""
    loaded: Any = importlib.import_module(module)
    if hasattr(loaded, "app"):
        app.add_typer(loaded.app, name=name, help=summary)
    else:
        app.command(name, help=f"{summary}\n\n{loaded.command.__doc__ or ''}")(loaded.command)


def _one_line(error: Exception) -> Exception:
    """A usage error of the parser as ours; anything else stays as it is."""
    message = getattr(error, "format_message", None)
    if message is None:
        return error
    return UserError(" ".join(str(message()).split()))
