"""Time from a change of the batch size to the finished picture, in Chromium, tab by tab.

`python benchmarks/web_change.py --address http://127.0.0.1:8050/` presses an arrow key on the slider of the batch size
and takes the time from the key to the last change of the answer or the last drawing of the network.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from typing import Any

from playwright.sync_api import sync_playwright

TABS = ("verdict", "network", "roofline", "operators", "sweep", "memory", "explain")
#: Milliseconds without a change after which a picture is finished, and the most that are waited for.
QUIET, MOST = 250, 30_000
#: Notes the time of a key, of every change inside the answer and of the drawings of the network that follow at once.
#: Classes come and go after a picture is finished, and the network is drawn again in a finer resolution.
WATCH = """() => {
  const seen = (window.seen = { key: 0, last: 0 });
  const changed = () => { seen.last = performance.now(); };
  document.addEventListener("keydown", () => { seen.key = performance.now(); seen.last = 0; }, true);
  new MutationObserver((all) => {
    if (all.some((one) => one.attributeName !== "class")) changed();
  }).observe(document.getElementById("content"),
    { subtree: true, childList: true, attributes: true, characterData: true });
  window.setInterval(() => {
    const cy = document.getElementById("network")?._cyreg?.cy;
    if (!cy || cy.watched) return;
    cy.watched = true;
    cy.on("render", () => { if (performance.now() - seen.last < 60) changed(); });
  }, 5);
}"""
DONE = "quiet => window.seen.last > 0 && performance.now() - window.seen.last > quiet"


def changes(page: Any, address: str, tab: str, times: int) -> list[float]:
    """Milliseconds from each key to the finished picture."""
    page.goto(f"{address}?batch_size=64&tab={tab}")
    page.wait_for_selector("#tabs a[aria-current]")
    page.wait_for_timeout(2_500)
    page.evaluate(WATCH)
    page.locator("#side input[type=range]").first.focus()
    found = []
    for at in range(times + 2):
        page.keyboard.press("ArrowRight" if at % 2 else "ArrowLeft")
        page.wait_for_function(DONE, arg=QUIET, timeout=MOST)
        found.append(page.evaluate("window.seen.last - window.seen.key"))
        page.wait_for_timeout(900)  # answers that a visitor waits for come after the picture
    return found[2:]


def main() -> None:
    """Print the median and the 95th percentile of every tab."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="http://127.0.0.1:8050/")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--tabs", default=",".join(TABS))
    given = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    print("| tab | median ms | p95 ms |\n|---|---:|---:|")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        for tab in given.tabs.split(","):
            found = sorted(changes(page, given.address, tab, given.times))
            p95 = found[min(int(0.95 * len(found)), len(found) - 1)]
            print(f"| {tab} | {statistics.median(found):.0f} | {p95:.0f} |", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
