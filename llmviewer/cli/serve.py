"""`llmviewer serve`: the pages and the JSON API in a browser, for one user or for many."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llmviewer.cli import options as opt
from llmviewer.core.errors import UserError

#: Where it is served unless the user says otherwise.
HOST, PORT = "127.0.0.1", 8050
MAX_PORT, MAX_WORKERS = 65535, 256


def command(
    host: Annotated[str, typer.Option("--host", help="Address to listen at; 0.0.0.0 for other machines too.")] = HOST,
    port: Annotated[int, opt.integer_option("port", "Port to listen at; 0 for any free one.", least=0)] = PORT,
    workers: Annotated[int, opt.integer_option("workers", "Processes that answer, each on a core.")] = 1,
    public_host: Annotated[
        str, typer.Option("--public-host", help="Name by which a proxy on this machine makes it public.")
    ] = "",
    api_only: Annotated[bool, typer.Option("--api-only", help="Only the JSON API, without pages.")] = False,
) -> int:
    """Serves pages and a JSON API (/api/v1) until Ctrl-C.

    Reads no file that a visitor names.  Where others may reach it, each client has a budget of computing time.
    """
    for name, value, most in (("port", port, MAX_PORT), ("workers", workers, MAX_WORKERS)):
        if value > most:
            raise UserError(f"{name} is {value}; allowed: at most {most:,}")
    from llmviewer.server import run
    from llmviewer.server.app import Settings, create_app

    settings = Settings(host=host, public_host=public_host, pages=not api_only)
    app = create_app(settings)
    listener = run.listening(host, port)
    address = run.url(host, listener.getsockname()[1])
    if not settings.is_private:
        _warn(f"{public_host or host} is reached from other machines; docs/guide/deploy.md says how to do that safely")
    run.run(app, listener, workers, lambda: _say(f"llmviewer serves {address} (Ctrl-C ends it)"))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _warn(text: str) -> None:
    from llmviewer.cli.views import print_warnings

    print_warnings([text])
