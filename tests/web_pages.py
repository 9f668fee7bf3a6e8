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
PATIENCE = int(os.environ.get("PATIENCE", "120000"))
#: Width and height of a desktop screen and of a phone [pixel].
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}

#: Beginnings of warnings that a library prints whatever its options are.
LIBRARY = ("You have set a custom wheel sensitivity",)
#: The middle of a node of the network, and of a marker of the roofline, on the screen.
PLACE_OF_NODE = """id => {
  const place = document.getElementById("network"), box = place.getBoundingClientRect();
  const at = place._cyreg.cy.getElementById(id).renderedPosition();
  return [box.x + at.x, box.y + at.y];
}"""
PLACE_OF_POINT = """([name, stage]) => {
  const place = document.getElementById("roofline");
  for (const trace of [...place.querySelectorAll(".scatterlayer .trace")].reverse()) {
    const data = trace.__data__?.[0]?.trace;
    const texts = data?.hovertext ?? [], points = trace.querySelectorAll(".point");
    if (!Array.isArray(texts)) continue;
    const at = texts.findIndex(one => one.startsWith(`<b>${name}</b>`) && one.includes(stage));
    if (at < 0 || !points[at]) continue;
    const box = points[at].getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
  }
  return null;
}"""
COLUMN = """title => {
  const grid = window.dash_ag_grid.getApi("operators");
  const column = grid.getColumns().find(one => one.getColDef().headerName === title);
  window.shown = name => {
    const of = grid.getColumns().find(one => one.getColDef().headerName === name), found = [];
    grid.forEachNodeAfterFilterAndSort(node => {
      found.push(String(grid.getCellValue({ rowNode: node, colKey: of, useFormatter: true })));
    });
    return found;
  };
  return window.shown(column.getColDef().headerName);
}"""


def application() -> Flask:
    """The application whose pages are tested, inside the guard of the server, for the user of this machine.

    Its requests may take long: a busy machine is no fault of a page.
    """
    from llmviewer.server.app import Settings, create_app

    return create_app(Settings(seconds=3600.0))


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
        self.page.on("pageerror", lambda error: self.faults.append(error.stack or str(error)))
        self.page.on("request", self._requested)
        self.page.on("response", lambda answer: self._answered(answer.status, answer.url))
        self.open(query)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(LIBRARY):
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

    def until(self, expression: str) -> None:
        """Wait until a function of the page gives something that is true."""
        self.page.wait_for_function(expression)

    def rest(self) -> None:
        """Wait until the page shows the answer to the last change."""
        self.until("() => !document.querySelector('#content').ariaBusy")

    def control(self, label: str) -> Any:
        """The control with a label."""
        return self.page.locator(f"//label[contains(@class, 'control')][span[normalize-space() = '{label}']]")

    def field(self, label: str) -> Any:
        """The field with a label."""
        return self.control(label).locator("input").first

    def menu(self, label: str) -> Any:
        """The menu with a label."""
        return self.control(label).locator("select")

    def choose(self, label: str, value: str) -> None:
        """Choose a value from the menu with a label."""
        self.menu(label).select_option(value)

    def drop(self, content: bytes) -> None:
        """Give a file to the place for a config.json."""
        file = {"name": "config.json", "mimeType": "application/json", "buffer": content}
        self.page.locator("#file").set_input_files(file)

    def tap(self, node: str) -> None:
        """Click a box of the network by the identifier of its node."""
        self.page.mouse.click(*self._box(node))

    def hover_box(self, node: str) -> None:
        """Move the mouse onto a box of the network."""
        self.page.mouse.move(*self._box(node))

    def _box(self, node: str) -> list[float]:
        self.until("() => document.getElementById('network')?._cyreg?.cy?.nodes().length")
        self.page.locator("#network").scroll_into_view_if_needed()
        _, y = self._resting(PLACE_OF_NODE, node)
        self.page.evaluate("y => (y < 0 || y > innerHeight) && scrollBy({ top: y - innerHeight / 2 })", y)
        return self._resting(PLACE_OF_NODE, node)

    def _resting(self, expression: str, given: Any) -> list[float]:
        """A place on the screen, once it no longer moves."""
        before: list[float] | None = None
        for _ in range(PATIENCE // 100):
            now: list[float] | None = self.page.evaluate(expression, given)
            if now is not None and now == before:
                return now
            before = now
            self.page.wait_for_timeout(100)
        raise AssertionError(f"{given} has no place on the screen")

    def _point(self, name: str, stage: str) -> list[float]:
        self.until("() => document.querySelectorAll('#roofline .point').length")
        self.page.locator("#roofline").scroll_into_view_if_needed()
        return self._resting(PLACE_OF_POINT, [name, stage])

    def hover_point(self, name: str, stage: str) -> None:
        """Move the mouse onto an operator of a stage in the roofline."""
        self.page.mouse.move(*self._point(name, stage))
        self.page.wait_for_selector("#roofline .hovertext")

    def click_point(self, name: str, stage: str) -> None:
        """Click an operator of a stage in the roofline."""
        self.hover_point(name, stage)
        self.page.mouse.click(*self._point(name, stage))

    def column(self, title: str) -> list[str]:
        """Texts of a column of the table, in the order of its rows, of all rows that the filter leaves."""
        self.page.wait_for_selector(".ag-row")
        found: list[str] = self.page.evaluate(COLUMN, title)
        return found

    def close(self) -> None:
        """Close the page, which must have had no fault."""
        self.context.close()
        assert self.faults == [], "\n".join(self.faults)
