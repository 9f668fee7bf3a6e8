"""The first visit: the answer is in the first HTML, for shared links too, and little is sent."""

from __future__ import annotations

import gzip
import re
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs dash: pip install '.[web]'")
from llmviewer.server.app import create_app

#: All that a browser fetches for the first answer, with the library of pictures [byte].
FIRST_VISIT = 2_000_000


@pytest.fixture(scope="module")
def client() -> Any:
    return create_app().test_client()


def test_the_first_html_has_title_and_verdict(client: Any) -> None:
    text = client.get("/?model=llama-3.1-70b&hardware=h100-sxm&batch_size=4").get_data(as_text=True)
    title = "llama-3.1-70b on 1 × h100-sxm, batch 4, 1,024 + 128 tokens · llmviewer"
    assert f"<title>{title}</title>" in text
    assert f'<meta property="og:title" content="{title}">' in text
    assert re.search(r'<meta property="og:description" content="DOES NOT FIT: [^"]* GiB needed', text)
    entry = text[text.index("react-entry-point") :]
    assert "DOES NOT FIT" in entry and "Bottleneck" in entry


def test_a_refused_address_says_why_at_once_and_escapes_it(client: Any) -> None:
    text = client.get("/?model=%3Cscript%3Ealert(1)").get_data(as_text=True)
    assert "<title>llmviewer</title>" in text and "unknown model" in text
    assert "<script>alert" not in text


def test_a_first_visit_is_small(client: Any) -> None:
    page = client.get("/", headers={"Accept-Encoding": "gzip"})
    fetched = re.findall(r'<(?:script|link)[^>]*(?:src|href)="([^":]+)"', gzip.decompress(page.data).decode())
    assert not any("ag_grid" in one or "cytoscape" in one for one in fetched)
    sizes = [len(client.get(f"/{one.lstrip('/')}", headers={"Accept-Encoding": "gzip"}).data) for one in fetched]
    sizes.append(len(client.get("/plotly.min.js", headers={"Accept-Encoding": "gzip"}).data))
    assert sum(sizes) + len(page.data) < FIRST_VISIT


@pytest.mark.parametrize("coding", ["br", "gzip"])
def test_text_is_compressed_for_who_takes_it(client: Any, coding: str) -> None:
    plain = client.get("/theme.css")
    assert "Content-Encoding" not in plain.headers and "Accept-Encoding" in plain.headers["Vary"]
    packed = client.get("/theme.css", headers={"Accept-Encoding": coding})
    assert packed.headers["Content-Encoding"] == coding and len(packed.data) < len(plain.data) / 2
