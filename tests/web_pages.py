"""Pages of the web viewer for tests: a server in a thread, and open pages with their console errors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from flask import Flask

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
#: Long enough for a busy machine [ms].
PATIENCE = 30_000
#: Width and height of a desktop screen and of a phone [pixel].
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
#: Rows of published figures for the tab of the ledger.
LEDGER = [("vllm", "https://example.org/figures", 10, 0.1), ("survey", "https://example.org/survey", 4, 0.25)]


def application() -> Flask:
    """The application whose pages are tested, inside the guard of the server."""
    from llmviewer.reports.web.app import mount
    from llmviewer.server import guard

    server = Flask("llmviewer", static_folder=None)
    pages = mount(server, lambda: LEDGER)
    server.config["SCRIPT_HASHES"] = [one.strip("'") for one in pages.csp_hashes()]
    guard.install(server)
    return server


@contextmanager
def served() -> Iterator[str]:
    """The address of a running viewer."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        """A handler that writes no line per request."""

        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - the name is werkzeug's
            """Write nothing to the standard error."""

    server = make_server("127.0.0.1", 0, application(), threaded=True, request_handler=Silent)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()


class WebPage:
    """An open page of the viewer with its console errors and the addresses outside the viewer that it asked for."""

    def __init__(self, browser: Any, address: str, query: str = "", **look: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESKTOP, **look})
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.address = address
        self.faults: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", self._requested)
        self.page.on("response", lambda answer: self._answered(answer.status, answer.url))
        self.open(query)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def _requested(self, asked: Any) -> None:
        if not asked.url.startswith((self.address, "data:", "blob:")):
            self.faults.append(f"asked for {asked.url}")

    def _answered(self, status: int, url: str) -> None:
        if status >= 500:
            self.faults.append(f"status {status} of {url}")

    def open(self, query: str = "") -> None:
        """Open an address and wait for its answer."""
        self.page.goto(f"{self.address}?{query}" if query else self.address)
        self.page.wait_for_selector("#tabs a")
        self.settle()

    def settle(self) -> None:
        """Wait until no callback runs: the title of the page says nothing else."""
        self.page.wait_for_function(
            "() => !document.querySelector('[data-dash-is-loading=true]') && document.querySelector('#tabs a')"
        )

    def close(self) -> None:
        """Close the page, which must have had no fault."""
        self.context.close()
        assert self.faults == []
