"""Typer around the commands: only the module asked for is imported, and every usage error is one line."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

import typer

from llmviewer.core.errors import UserError, printable, unknown

#: What the parser says repeats the word it stumbled over, however long that is.
MAX_MESSAGE_CHARACTERS = 300


def command_for(words: list[str], commands: dict[str, tuple[str, str]]) -> int:
    """Parse `words`, run the command, return its exit status."""
    name = words[0] if words else ""
    if words and not name.startswith("-") and name not in commands:
        raise unknown("command", name, commands, hint="--help says what they are for")
    command = command_tree(commands, "" if name.startswith("-") else name)
    try:
        status = command(args=_checked(words, command), prog_name="llmviewer", standalone_mode=False)
    except SystemExit as stop:
        return int(stop.code or 0)
    except Exception as error:
        raise _one_line(error) from error
    return status if isinstance(status, int) else 0


def command_tree(commands: Mapping[str, tuple[str, str]], name: str) -> Any:
    """The parser with the command `name` alone, or with all commands where it is empty."""
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=False,
        help=HELP,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_root)
    for known, (module, summary) in commands.items():
        if name in (known, ""):
            _register(app, known, module, summary)
    return typer.main.get_command(app)


HELP = "How fast an LLM runs on a chip, why, and what to change."


def _checked(words: list[str], command: Any) -> list[str]:
    """The words, if they name commands that exist; a group without a command asks for its help."""
    for at, word in enumerate([*words, ""]):
        known = getattr(command, "commands", None)
        if known is None or word.startswith("-"):
            return words
        if at == len(words):
            return [*words, "--help"]
        if word not in known:
            raise unknown(" ".join([*words[:at], "command"]), word, known)
        command = known[word]
    return words


def _version(wanted: bool) -> None:
    if wanted:
        from llmviewer.core.version import __version__

        typer.echo(__version__)
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_version, help="Print the version."),
    install_completion: bool = typer.Option(
        False, "--install-completion", help="Install tab completion, [bash|zsh|fish]."
    ),
    show_completion: bool = typer.Option(False, "--show-completion", help="Print the script of tab completion."),
) -> None:
    """What stands before the command."""


def _register(app: typer.Typer, name: str, module: str, summary: str) -> None:
    """A module offers `command` (a function) or `app` (a group of them)."""
    loaded: Any = importlib.import_module(module)
    if hasattr(loaded, "app"):
        app.add_typer(loaded.app, name=name, help=summary)
    else:
        app.command(name, help=f"{summary}\n\n{cleandoc(loaded.command.__doc__ or '')}")(loaded.command)


def _one_line(error: Exception) -> Exception:
    """A usage error of the parser as ours; anything else stays as it is."""
    message = getattr(error, "format_message", None)
    if message is None:
        return error
    return UserError(printable(" ".join(str(message()).split()), MAX_MESSAGE_CHARACTERS))
