"""`llmviewer calibrate`: measure kernels, fit a profile, check it against measured tables and published figures."""

from __future__ import annotations

import importlib

import typer

app = typer.Typer(no_args_is_help=True)

#: command -> module; each offers `command`.
COMMANDS: dict[str, str] = {
    "run": "llmviewer.cli.calibrate_run",
    "fit": "llmviewer.cli.calibrate_fit",
    "validate": "llmviewer.cli.calibrate_validate",
    "ledger": "llmviewer.cli.calibrate_ledger",
}

for _name, _module in COMMANDS.items():
    app.command(_name)(importlib.import_module(_module).command)
