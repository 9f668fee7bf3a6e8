"""Tab completion for bash, zsh and fish.

`llmviewer --install-completion [SHELL]` and `--show-completion [SHELL]` write and print the shell's script. The script
sets `_LLMVIEWER_COMPLETE` and runs `llmviewer` at each press of Tab; only then is this module imported.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from llmviewer.core.errors import UserError, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = "llmviewer"
#: Environment variable that the completion scripts set.
VARIABLE = "_LLMVIEWER_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


def run(words: list[str], commands: Mapping[str, tuple[str, str]]) -> int:
    """Answer a completion request, or install or print the script; returns the exit status."""
    return _complete(commands) if VARIABLE in os.environ else _script(words)


def _complete(commands: Mapping[str, tuple[str, str]]) -> int:
    """Print the possible completions of the command line."""
    from llmviewer.cli.app import command_tree

    _shells().completion_init()
    tree = command_tree(commands, _typed_command(commands))
    try:
        tree(args=[], prog_name=PROGRAM, complete_var=VARIABLE, standalone_mode=False)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def _typed_command(commands: Mapping[str, tuple[str, str]]) -> str:
    """The complete command name on the line, or ""; avoids importing other commands."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()
    finished = len(words) > 2 or (len(words) == 2 and line[-1].isspace())
    return words[1] if finished and words[1] in commands else ""


def _script(words: list[str]) -> int:
    """Install or print the script of the given shell, or of the detected one."""
    option, _, value = words[0].partition("=")
    shell = (value or " ".join(words[1:]) or _detected()).lower()
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS, hint=f"`{PROGRAM} {option} bash`")
    if option == "--show-completion":
        print(_shells().get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))  # noqa: T201
        return 0
    try:
        _, path = _shells().install(shell=shell, prog_name=PROGRAM, complete_var=VARIABLE)
    except OSError as error:
        raise UserError(f"cannot install completion: {error}") from error
    print(f"{shell} completion installed in {path}; it takes effect in the next shell")  # noqa: T201
    return 0


def _shells() -> Any:
    """Typer's completion module, imported by name because the names that it re-exports are untyped."""
    return import_module("typer.completion")


def _detected() -> str:
    """Name of the shell that runs this process."""
    import shellingham

    try:
        return str(shellingham.detect_shell()[0])
    except shellingham.ShellDetectionFailure:
        raise UserError(f"cannot detect the shell; give one of: {', '.join(SHELLS)}") from None
