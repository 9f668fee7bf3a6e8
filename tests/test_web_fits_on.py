"""The strip of chips below the verdict: what `compare --hardware all` says, as dots, and a menu with the same."""

from __future__ import annotations

from typing import Any

import pytest

import llmviewer as lv

pytest.importorskip("dash", reason="needs dash: pip install '.[web]'")

from llmviewer.reports import format as fmt
from llmviewer.reports.web import fits_on
from llmviewer.reports.web.state import parsed
from llmviewer.reports.web.view import View
from llmviewer.result.costs import usual

#: A context that few chips hold.
LARGE = "model=llama-3.3-70b&hardware=h200&quantization=fp8&batch_size=16&input_len=16384"


def pieces(query: str) -> list[dict[str, Any]]:
    return fits_on.content(View(state=parsed(query)))


def traces(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Dots with a price, and those without."""
    listed: list[dict[str, Any]] = found[1]["pieces"][0]["figure"]["data"]
    return listed


def test_dots_are_the_chips_that_hold_the_request() -> None:
    compared = lv.compare("llama-3.3-70b", "all", quantization="fp8", batch_size=16, input_len=16384)
    times = {one.analysis.system.chip.name: float(one.tpot_s) for one in compared.results if one.fits}
    found = pieces(LARGE)
    shown = {chip: y for trace in traces(found) for chip, y in zip(trace["customdata"], trace["y"], strict=True)}
    assert shown == {chip: pytest.approx(1e3 * seconds) for chip, seconds in times.items()}
    count = len(compared.results) + len(compared.refused or {})
    assert f"{len(times)} of {count} chips hold it" in found[0]["html"]
    assert all(f'<option value="{chip}"' in found[2]["html"] for chip in times)


def test_a_dot_stands_at_the_price_of_its_devices() -> None:
    """Two devices cost twice the listed price; a chip without a price stands in a lane of its own."""
    prices = usual().prices
    priced, others = traces(pieces(f"{LARGE}&tensor_parallel_size=2"))
    for chip, usd in zip(priced["customdata"], priced["x"], strict=True):
        price = prices.of(chip)
        assert price is not None and usd == pytest.approx(2 * price.usd_per_hour)
    assert others["customdata"] and all(prices.of(chip) is None for chip in others["customdata"])


def test_the_chip_of_the_page_is_the_star() -> None:
    for chip in ("b200", "mi300x"):
        priced, _ = traces(pieces(f"model=llama-3.1-8b&hardware={chip}"))
        stars = [
            name for name, one in zip(priced["customdata"], priced["marker"]["symbol"], strict=True) if one == "star"
        ]
        assert stars == [chip]


def test_a_chip_that_does_not_hold_it_is_told_so() -> None:
    html = pieces(LARGE.replace("h200", "rtx-4090"))[2]["html"]
    assert '<option value="rtx-4090" selected>rtx-4090: does not hold it' in html


def test_an_encoder_has_the_time_of_its_pass() -> None:
    """Nothing is decoded: the dots are of TTFT."""
    found = pieces("model=bge-m3&hardware=l40s")
    figure = found[1]["pieces"][0]["figure"]
    assert figure["layout"]["yaxis"]["title"]["text"] == "TTFT (ms)"
    own = float(lv.analyze("bge-m3", "l40s", output_len=1).ttft_s)
    at = next(trace for trace in figure["data"] if "l40s" in trace["customdata"])
    assert at["y"][at["customdata"].index("l40s")] == pytest.approx(1e3 * own)
    assert f"l40s: TTFT {fmt.duration(own)}" in found[2]["html"]


def test_a_request_that_no_other_chip_takes_is_told() -> None:
    found = fits_on.content(View(state=parsed("model=llama-3.1-8b&hardware=h100-sxm&tensor_parallel_size=7")))
    assert "No other chip takes this request" in found[0]["html"]
