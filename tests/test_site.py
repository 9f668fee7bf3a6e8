"""The site of the documentation: `make site` builds every page, with links that hold, and fetches nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.test_links import PAGES, ROOT

#: What a browser fetches by itself: scripts, pictures, frames and style sheets of other hosts.
FETCHED = re.compile(r'<(?:script|img|iframe)[^>]* src="https?:[^"]*"|<link[^>]*stylesheet[^>]*"https?:[^"]*"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make site` builds it: a link or heading that does not exist ends the build (`strict`)."""
    folder, models = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("models")
    (models / "index.html").write_text("the index of models", encoding="utf-8")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
    config.hooks["docs/site_pages.py"].MODELS = models
    build(config)
    return folder


def html(site: Path, page: Path) -> str:
    name = page.relative_to(ROOT).with_suffix(".html")
    return (site / ("index.html" if str(name) == "README.html" else name)).read_text(encoding="utf-8")


def test_every_page_is_on_the_site_and_found_by_its_search(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    found = {entry["location"].partition("#")[0] for entry in entries}
    pages = {str(page.relative_to(ROOT).with_suffix(".html")) for page in PAGES} - {"README.html"}
    assert found == pages | {"index.html"}


def test_pages_fetch_nothing_from_other_hosts(site: Path) -> None:
    assert {address for page in PAGES for address in FETCHED.findall(html(site, page))} == set()


def test_the_menu_leads_to_the_pages_of_models(site: Path) -> None:
    assert (site / "models" / "index.html").read_text(encoding="utf-8") == "the index of models"
    for page, address in (("README.md", "models/index.html"), ("docs/guide/reports.md", "../../models/index.html")):
        assert f'href="{address}"' in html(site, ROOT / page)


def test_the_menu_leads_to_every_page(site: Path) -> None:
    start = html(site, ROOT / "README.md")
    menu = set(re.findall(r'href="([^"#:]+\.html)"', start))
    assert {str(page.relative_to(ROOT).with_suffix(".html")) for page in PAGES} - {"README.html"} <= menu


def test_the_tour_shows_its_pictures_and_tables(site: Path) -> None:
    tour = html(site, ROOT / "docs" / "guide" / "tour.ipynb")
    assert tour.count("data:image/png;base64,") >= 2
    assert tour.count("<table") >= 3
