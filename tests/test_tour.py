"""Notebooks: the display of a Result, and the tour."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from tests.certificate.our_counts import published_config

DOCS = Path(__file__).resolve().parent.parent / "docs"
TOUR: dict[str, Any] = json.loads((DOCS / "guide" / "tour.ipynb").read_text(encoding="utf-8"))


def executed() -> dict[str, Any]:
    """The tour, executed like `make docs` does."""
    spec = importlib.util.spec_from_file_location("tour", DOCS / "tour.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.executed()
    return found


def shown(notebook: dict[str, Any]) -> dict[str, str]:
    """Plain text that each code cell shows or prints."""
    return {
        cell["id"]: "".join("".join(one.get("text") or one["data"]["text/plain"]) for one in cell["outputs"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    }


@pytest.mark.slow
def test_the_tour_runs_and_reproduces_its_stored_output() -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    assert shown(executed()) == shown(TOUR), "run `make docs`"


def test_the_tour_shows_tables_and_plots() -> None:
    kinds = [set(output.get("data", {})) for cell in TOUR["cells"] for output in cell.get("outputs", [])]
    assert sum("image/png" in kind for kind in kinds) == 2
    assert sum("text/html" in kind for kind in kinds) >= 5
    assert (DOCS / "guide" / "tour.ipynb").stat().st_size < 400_000


def test_the_tour_asks_by_public_names_alone() -> None:
    """Who learns from it never meets a module: every question is a function of `lv`, and most are there."""
    text = "\n".join("".join(cell["source"]) for cell in TOUR["cells"] if cell["cell_type"] == "code")
    assert "from llmviewer" not in text and "import llmviewer." not in text
    asked = set(re.findall(r"\blv\.(\w+)\(", text))
    assert asked <= {*lv.__all__}
    assert asked >= {"analyze", "plot", "explain", "compare", "why", "sweep", "advise", "simulate", "size"}


def test_one_point_shows_metrics_memory_and_folded_stages_with_units() -> None:
    page = lv.analyze("llama-2-7b", "a6000", batch_size=1, input_len=2048)._repr_html_()
    for words in ("TTFT", "tokens/s", "48 GiB", "fits", "TFLOP/s dense fp16", "FLOP/B", "q_proj", "Bottleneck"):
        assert words in page
    assert page.count("<details>") == page.count("</details>") == 3  # prefill, decode step, sources
    for tag in ("table", "tr", "td", "th", "div", "p"):
        assert len(re.findall(rf"<{tag}[ >]", page)) == page.count(f"</{tag}>")


def test_many_points_show_the_first_rows_and_the_number_of_others() -> None:
    page = lv.analyze("llama-2-7b", "a6000", batch_size=range(1, 61))._repr_html_()
    body = page[page.index("<tbody>") : page.index("</tbody>")]
    assert body.count("<tr>") == 20
    assert "40 more points; to_frame() returns all" in page
    assert "ms" in body and "GiB" in body


def test_a_result_that_does_not_fit_is_marked() -> None:
    assert "does not fit" in lv.analyze("llama-2-70b", "a6000")._repr_html_()
    assert ">NO<" in lv.analyze("llama-2-7b", "a6000", batch_size=[1, 4096])._repr_html_()


def test_names_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "<b>bold"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(published_config("mistral-7b")), encoding="utf-8")
    page = lv.analyze(folder, "a6000")._repr_html_()
    assert "&lt;b&gt;bold" in page and "<b>bold" not in page


def test_a_result_is_one_short_line_of_text() -> None:
    result = lv.analyze("llama-2-7b", "a6000", batch_size=[1, 2], efficiency="ideal")
    assert repr(result) == "<Result: llama-2-7b on a6000, ideal, 2 points>"
