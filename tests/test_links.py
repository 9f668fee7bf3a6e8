"""Links of the pages: every relative target and every heading that is named exists; every page is reached."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
START = ROOT / "docs" / "index.md"
#: Folders of programs and data, and the files in them that may name a page.
FOLDERS = ("llmviewer", "reports", "calibrate", "tests", "docs", "benchmarks", "hardware_specs", "model_configs")
SUFFIXES = (".py", ".yaml", ".yml", ".md", ".j2", ".html")
#: All pages that people read, with the notebook.
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")])
LINK = re.compile(r"(?:\]\(|src=\")(?![a-z]+:)([^)\s\"]+)")
#: `docs/...` in a program, a message or a data file; pages of other projects have an address before or after.
MENTION = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|ipynb|ya?ml|png|json\.gz)\b")


@cache
def text_of(page: Path) -> str:
    """Text of a page, without fenced blocks; of a notebook its cells of words."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """Names of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Files and headings that a page names."""
    for target in LINK.findall(text_of(page)):
        path, _, heading = target.partition("#")
        yield ((page.parent / path).resolve() if path else page), heading


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_resolve(page: Path) -> None:
    for target, heading in links(page):
        assert target.exists(), target
        assert not heading or heading in anchors(target), f"{target.name}#{heading}"


def test_the_start_leads_to_every_page() -> None:
    """Nobody has to guess which page leads to another."""
    assert {*PAGES} - {START} - {page for page, _ in links(START)} == set()


def test_pages_that_programs_and_data_name_exist() -> None:
    """The ledger's sources name pages of other projects."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    files = [ROOT / "Makefile", ROOT / "pyproject.toml", *(path for path in files if path.parent.name != "ledger")]
    named = {name for path in files for name in MENTION.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 20 and [name for name in sorted(named) if not (ROOT / name).exists()] == []
