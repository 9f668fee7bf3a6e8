"""Settings of hypothesis and the garbage collector for all tests, and summary lines at the end of a run."""

from __future__ import annotations

import gc
import os
import shutil

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.slow_list import listed

# a busy machine is no failure; tracing, which explains a failure, hangs CPython 3.11 beside threads of native libraries
settings.register_profile(
    "untimed",
    deadline=None,
    suppress_health_check=(HealthCheck.too_slow,),
    phases=tuple(one for one in Phase if one is not Phase.explain),
)
settings.load_profile("untimed")

#: Slow tests by name, and files.
SLOW = listed()
#: Modules whose tests wait for a browser, a server or another process, which a busy machine may starve for seconds.
PROCESSES = (
    "campaign",
    "cli",
    "coverage",
    "mcp",
    "process",
    "report_browser",
    "server_safety",
    "tour",
    "web_browser",
    "web_network",
)


def pytest_collection_finish() -> None:
    """Collect garbage seldom, and not among the tests and libraries themselves: else a quarter of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is slow; let a test that waits for another process run once more after a failure, which is counted."""
    if not SLOW.isdisjoint((item.nodeid, item.nodeid.partition("::")[0])):
        item.add_marker(pytest.mark.slow)
    if item.path.stem.removeprefix("test_") in PROCESSES:
        item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which files and functions are large, if their tests ran, and a note on a report not tested in a browser."""
    passed = terminalreporter.stats.get("passed", [])
    if any(one.nodeid.startswith("tests/test_size.py") for one in passed):
        from tests import house

        for line in house.too_large():
            terminalreporter.write_line(f"large: {line}")
    if not (os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")):
        terminalreporter.write_line(
            "The HTML report was not tested in a browser: there is no Chromium. Install it (apt-get install chromium), "
            "or set CHROMIUM to its path."
        )
