"""Campaigns on the command line: `--scheduler`, and a folder as the output."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmviewer.cli import options as opt
from llmviewer.cli.progress import progress
from llmviewer.cli.views import print_warnings
from llmviewer.core.errors import UserError, printable
from llmviewer.language.option import Kind, Panel
from llmviewer.simulation.options import LOAD

if TYPE_CHECKING:
    from llmviewer.planning.campaign import Campaign

Scheduler = Annotated[
    str,
    typer.Option(
        "--scheduler",
        rich_help_panel=Panel.OUTPUT.value,
        show_default=False,
        help="Compute on workers of Dask into a folder of Parquet files (-o FOLDER/), which a later run completes: "
        "tcp://HOST:PORT, local (default for a folder) or local:N.",
    ),
]


#: Files of something else that a warning names.
MOST_NAMED = 5


def is_asked(scheduler: str, output: str | None, format: str) -> bool:  # noqa: A002
    """Whether the output is the data set of a campaign: a scheduler is given, or a folder.  Raises UserError."""
    if not scheduler and not (output or "").endswith("/"):
        return False
    if output is None:
        raise UserError("--scheduler computes into a folder; give one: -o FOLDER/")
    if format not in ("", "parquet"):
        raise UserError(f"format is '{printable(format)}'; a folder of a campaign has Parquet files")
    return True


def lists_of_loads(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a load with the values of their lists: separated by commas, or semicolons where values are texts."""
    found: dict[str, Any] = {}
    for name, option in LOAD.items():
        if name not in options:
            continue
        separator = "," if option.kind in (Kind.NUMBER, Kind.WHOLE) else "" if option.kind is Kind.SWITCH else ";"
        listed = opt.values(name, options[name], separator)
        found[name] = [option.parsed(value) for value in listed] if isinstance(listed, list) else listed
    return found


def run(campaign: Campaign, folder: str, scheduler: str) -> int:
    """Compute what the folder lacks, and say on stderr what is there.  An interrupt keeps what is finished."""
    from llmviewer.planning import campaign as campaigns

    total = len(campaign.chunks)
    try:
        with progress(len(campaign)) as advance:
            done = campaigns.run(campaign, folder, scheduler or "local", advance)
    except KeyboardInterrupt:
        told = f"interrupted; '{printable(folder)}' keeps what is finished, and the same command resumes"
        print(told, file=sys.stderr)  # noqa: T201
        return 130
    if done.foreign:
        named = ", ".join(done.foreign[:MOST_NAMED]) + (", …" if len(done.foreign) > MOST_NAMED else "")
        told = "has files that are no part of this campaign, and readers of the folder read them"
        print_warnings([f"'{printable(folder)}' {told}: {named}"])
    print(  # noqa: T201
        f"{printable(folder)}: {len(campaign):,} rows in {total:,} files; {done.computed:,} computed now, "
        f"{done.found:,} were there",
        file=sys.stderr,
    )
    return 0
