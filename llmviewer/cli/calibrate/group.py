"""`llmviewer calibrate`: measure kernels, fit a profile or an engine, check them against measured figures."""

from __future__ import annotations

import importlib

import typer

from llmviewer.cli.help import Listing

app = typer.Typer(cls=Listing, no_args_is_help=True, rich_markup_mode=None)

#: command -> module; each offers `command`.
COMMANDS: dict[str, str] = {
    "all": "llmviewer.cli.calibrate.all",
    "run": "llmviewer.cli.calibrate.run",
    "fit": "llmviewer.cli.calibrate.fit",
    "engine": "llmviewer.cli.calibrate.engine",
    "validate": "llmviewer.cli.calibrate.validate",
    "ledger": "llmviewer.cli.calibrate.ledger",
}

for _name, _module in COMMANDS.items():
    app.command(_name)(importlib.import_module(_module).command)
