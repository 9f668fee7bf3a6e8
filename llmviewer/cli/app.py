"""Typer application: imports only the module of the requested command and prints usage errors on one line."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

import typer

from llmviewer.cli import process
from llmviewer.cli.help import MAX_WIDTH, Listing, PanelCommand
from llmviewer.cli.launched import with_launch_line
from llmviewer.core.errors import UserError, unknown
from llmviewer.questions import QUESTIONS

#: A command in the spelling of others.
SPELLED = {"analyse": "analyze"}


def command_for(words: list[str], commands: dict[str, tuple[str, str]]) -> int:
    """Parse `words`, run the command and return its exit status."""
    if words[:1] == ["--"]:
        words = words[1:]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    words = [SPELLED.get(word, word) for word in words[:1]] + words[1:]
    name = words[0] if words else ""
    if words and not name.startswith("-") and name not in commands:
        raise unknown("command", name, commands, hint="see llmviewer --help")
    command = command_tree(commands, name) if name in commands else _list_of(commands)
    words, flags = with_launch_line(words, command)
    checked = _checked(words, command)
    process.command_starts()
    try:
        status = command(args=checked, prog_name="llmviewer", standalone_mode=False)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # the parser exits 1, which means `does not fit` here
            raise stop.__context__ from None
        return int(stop.code or 0)
    except UserError as error:
        from llmviewer.cli.typed import advised, as_typed, of_bits, of_line

        raise of_bits(of_line(as_typed(advised(words, error), words, command), flags), words) from error
    except Exception as error:
        from llmviewer.cli.help import one_line

        raise one_line(error, words) from error
    return status if isinstance(status, int) else 0


def command_tree(commands: Mapping[str, tuple[str, str]], name: str) -> Any:
    """The parser with only the command `name`, or with all commands if it is empty."""
    app = _application()
    for known, (module, summary) in commands.items():
        if name in (known, ""):
            _register(app, known, module, summary)
    return typer.main.get_command(app)


def _list_of(commands: Mapping[str, tuple[str, str]]) -> Any:
    """The parser of what stands before a command: its help lists the commands, none of which is imported."""
    app = _application()
    for name, (_, summary) in commands.items():
        app.command(name, help=summary)(lambda: None)
    return typer.main.get_command(app)


def _application() -> typer.Typer:
    """The application without its commands."""
    app = typer.Typer(
        cls=Listing,
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=False,
        help=HELP,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": MAX_WIDTH},
    )
    app.callback()(_root)
    return app


HELP = "Predicts how fast an LLM runs on a chip, what limits it, and what would make it faster."


def _checked(words: list[str], command: Any) -> list[str]:
    """`words`, with --help appended to a group without a command.  Raises UserError for an unknown command."""
    for position, word in enumerate([*words, ""]):
        known = getattr(command, "commands", None)
        if known is None or word.startswith("-"):
            return words
        if position == len(words):
            return [*words, "--help"]
        if word not in known:
            raise unknown(" ".join([*words[:position], "command"]), word, known)
        command = known[word]
    return words


def _version(requested: bool) -> None:
    if requested:
        from llmviewer.core.version import __version__

        typer.echo(__version__)
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_version, help="Print the version."),
    install_completion: bool = typer.Option(
        False, "--install-completion", help="Install tab completion, [bash|zsh|fish]."
    ),
    show_completion: bool = typer.Option(False, "--show-completion", help="Print the tab-completion script."),
) -> None:
    """Options before the command."""


def _register(app: typer.Typer, name: str, module: str, summary: str) -> None:
    """Add a module's `command` (a function) or `app` (a group of commands), or the command of a question."""
    loaded: Any = importlib.import_module(module or "llmviewer.cli.asked")
    if hasattr(loaded, "app"):
        app.add_typer(loaded.app, name=name, help=summary)
        return
    command = loaded.command if module else loaded.command_of(QUESTIONS[name])
    app.command(name, cls=PanelCommand, help=f"{summary}\n\n{cleandoc(command.__doc__ or '')}")(command)
