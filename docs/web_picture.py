"""`make docs`: the picture of the web viewer, taken in a browser from a server of this machine."""

from __future__ import annotations

import shutil
import threading
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from werkzeug.serving import make_server

from llmviewer.server.app import create_app

HERE = Path(__file__).resolve().parent
#: What the picture shows, its size [pixel], and its colours.
QUERY = "?model=mixtral-8x7b&hardware=h200&batch_size=16&tab=network"
SIZE, COLOURS = {"width": 1440, "height": 960}, 128


def main() -> None:
    """Write the picture of the viewer, docs/images/web.png."""
    server = make_server("127.0.0.1", 0, create_app(), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(f"http://127.0.0.1:{server.port}/{QUERY}")
        page.wait_for_selector("#network canvas")
        page.wait_for_timeout(1000)
        picture = Image.open(BytesIO(page.screenshot()))
        browser.close()
    server.shutdown()
    picture.convert("RGB").quantize(COLOURS).save(HERE / "images" / "web.png", optimize=True)


if __name__ == "__main__":
    main()
