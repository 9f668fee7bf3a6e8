"""`llmviewer mcp`: tools for an assistant, over the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    only: Annotated[str, typer.Option("--tools", help="Only these tools: a list (default: all).")] = "",
) -> int:
    """Serves tools to an assistant that starts this command: analyze, compare, size, explain, why, diagnose and lists.

    It talks over standard input and output, as the configuration of a client describes: {"command": "llmviewer",
    "args": ["mcp"]}.  It runs for its user, so paths are read as on the command line.
    """
    from llmviewer.server import assistants, tools

    assistants.serve(tools.chosen(only))
    return 0
