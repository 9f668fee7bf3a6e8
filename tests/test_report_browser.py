"""The report in a real browser: sorting, filtering, hovering, clicking, themes and paper, without a console error."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmviewer.cli import main

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[dev]'")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium, or CHROMIUM=path")

#: Long enough for a busy machine [ms].
PATIENCE = 300_000
VIEWPORT = {"width": 1360, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        open_page = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield open_page
        open_page.close()


def report(folder: Path, words: str) -> Path:
    found = folder / "report.html"
    assert main(["report", *words.split(), "--no-fit-check", "-o", str(found)]) == 0
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = "llama-3.1-8b --hardware h100-sxm,a100-80gb-sxm --batch-size 1,8,64"
    return report(tmp_path_factory.mktemp("report"), words)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every kind of element in it, and few of each."""
    return report(tmp_path_factory.mktemp("short"), "llama-3.1-8b --hardware h100-sxm --batch-size 1,8")


class OpenPage:
    """An open page with its console errors and network requests."""

    def __init__(self, browser: Any, path: Path, **look: Any) -> None:
        self.page = browser.new_page(viewport=VIEWPORT, **look)
        self.page.set_default_timeout(PATIENCE)
        self.faults: list[str] = []
        self.page.on(
            "console",
            lambda message: self.faults.append(message.text) if message.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda requested: self._record_request(requested.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn]", state="attached")

    def _record_request(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.faults.append(f"asked the network for {url}")

    def texts(self, column: str, table: str = "operators") -> list[str]:
        """Cells of a column in the rows that are shown."""
        heads = [head.removesuffix(" ↕") for head in self.page.locator(f"#{table} thead th").all_inner_texts()]
        names = [head.split("\n")[0].strip(" ↕▲▼") for head in heads]
        cells = self.page.locator(f"#{table} tbody tr:visible td:nth-child({names.index(column) + 1})")
        return list(cells.all_inner_texts())

    def values(self, column: str) -> list[float]:
        """Sort values of a column."""
        heads = self.page.locator("#operators thead th").all_inner_texts()
        at = [head.split("\n")[0].strip(" ↕▲▼") for head in heads].index(column)
        cells = self.page.locator(f"#operators tbody tr:visible td:nth-child({at + 1})")
        return [float(value) for value in cells.evaluate_all("cells => cells.map(cell => cell.dataset.v)")]

    def until(self, true: str) -> None:
        """Wait until an expression is true; the page's policy forbids the driver's method, which evaluates text."""
        for _ in range(PATIENCE // 100):
            if self.page.evaluate(true):
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(true)

    def close(self) -> None:
        self.page.close()
        assert self.faults == []


@pytest.fixture(scope="module")
def shared_page(browser: Any, path: Path) -> Iterator[OpenPage]:
    one = OpenPage(browser, path)
    yield one
    one.close()


@pytest.fixture
def open_page(shared_page: OpenPage) -> Iterator[OpenPage]:
    """The page that all tests share (opening one takes seconds), with every row shown."""
    shared_page.page.locator('.filters[data-table="operators"]').get_by_role("button", name="Show all").click()
    yield shared_page
    assert shared_page.faults == []


def test_every_chart_is_drawn(open_page: OpenPage) -> None:
    assert open_page.page.locator(".plot .main-svg").count() >= 7
    assert open_page.page.locator("#plot-roofline .point").count() > 30


def test_no_button_uploads_data(open_page: OpenPage) -> None:
    """plotly.js 4 has a button that uploads the chart to its vendor's server unless disabled."""
    buttons = open_page.page.locator(".modebar-btn")
    titles = buttons.evaluate_all("buttons => buttons.map(button => button.dataset.title)")
    assert "Reset axes" in titles
    assert not [title for title in titles if "hare" in title or "loud" in title or "Plotly" in title]


def test_clicking_a_heading_twice_reverses_the_order(open_page: OpenPage) -> None:
    button = open_page.page.get_by_role("button", name="All layers")
    button.click()
    assert open_page.values("All layers") == sorted(open_page.values("All layers"), reverse=True)
    assert open_page.page.locator("#operators th[aria-sort=descending]").inner_text().startswith("All layers")
    button.click()
    assert open_page.values("All layers") == sorted(open_page.values("All layers"))


def test_sorting_works_by_keyboard(open_page: OpenPage) -> None:
    open_page.page.locator("#operators th button", has_text="Operator").focus()
    open_page.page.keyboard.press("Enter")
    names = open_page.texts("Operator")
    assert names == sorted(names)
    assert open_page.page.evaluate("document.activeElement.tagName") == "BUTTON"


def test_lists_and_text_fields_filter_rows(open_page: OpenPage) -> None:
    bar = open_page.page.locator('.filters[data-table="operators"]')
    everything = len(open_page.texts("Operator"))
    bar.get_by_label("Stage").select_option("decode")
    bar.get_by_label("Configuration").select_option("h100-sxm")
    assert set(open_page.texts("Stage")) == {"decode"}
    assert set(open_page.texts("Configuration")) == {"h100-sxm"}
    bar.get_by_label("Contains").fill("proj")
    names = open_page.texts("Operator")
    assert 0 < len(names) < everything
    assert all("proj" in name for name in names)
    assert bar.locator("output").inner_text() == f"{len(names)} of {everything} rows"
    bar.get_by_role("button", name="Show all").click()
    assert len(open_page.texts("Operator")) == everything


def centre(open_page: OpenPage, name: str) -> tuple[float, float]:
    """Position of a roofline marker, found by its hover text."""
    found = open_page.page.evaluate(
        """name => {
            const plot = document.getElementById("plot-roofline");
            const trace = plot.data.findIndex(t => t.name === "h100-sxm, prefill");
            const at = plot.data[trace].hovertext.findIndex(text => text.startsWith(`<b>${name}</b>`));
            const traces = [...plot.querySelectorAll(".scatterlayer .trace")];
            const own = traces[plot._fullData.filter(t => t.visible === true).findIndex(t => t.index === trace)];
            const box = own.querySelectorAll(".point")[at].getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }""",
        name,
    )
    return found[0], found[1]


def test_hover_text_has_flops_bytes_time_and_formula(open_page: OpenPage) -> None:
    open_page.page.locator("#plot-roofline").scroll_into_view_if_needed()
    open_page.page.mouse.move(*centre(open_page, "attention"))
    open_page.page.wait_for_selector("#plot-roofline .hovertext")
    message = open_page.page.locator("#plot-roofline .hovertext").text_content()
    for words in ("attention", "FLOP", "MB", "FLOP/B", "-bound", "Time =", "max("):
        assert words in message, words


def test_a_click_on_a_marker_shows_its_figures(open_page: OpenPage) -> None:
    open_page.page.locator("#plot-roofline").scroll_into_view_if_needed()
    open_page.page.mouse.move(*centre(open_page, "attention"))
    open_page.page.wait_for_selector("#plot-roofline .hovertext")
    open_page.page.mouse.click(*centre(open_page, "attention"))
    open_page.page.wait_for_selector("#roofline-panel h3")
    assert open_page.page.locator("#roofline-panel h3").inner_text() == "attention"
    assert open_page.page.locator("tr.chosen").count() == 1


def roofs_shown(open_page: OpenPage) -> set[str]:
    """First words of the roofs that are drawn."""
    words = open_page.page.evaluate(
        """() => document.getElementById("plot-roofline")._fullData
            .filter(one => one.visible === true && Array.isArray(one.meta)).map(one => one.name)"""
    )
    return {name.split()[0] for name in words}


def test_a_hidden_configuration_hides_its_roofs(open_page: OpenPage) -> None:
    for clicks, shown in enumerate(({"h100-sxm", "a100-80gb-sxm"}, {"a100-80gb-sxm"}, {"h100-sxm", "a100-80gb-sxm"})):
        if clicks:
            open_page.page.locator("#plot-roofline .legendtoggle").first.click()
        for _ in range(PATIENCE // 100):  # Plotly waits for a second click
            if roofs_shown(open_page) == shown:
                break
            open_page.page.wait_for_timeout(100)
        assert roofs_shown(open_page) == shown


def test_on_a_phone_markers_are_smaller_and_roofs_have_no_names(open_page: OpenPage) -> None:
    def drawn() -> tuple[float, int]:
        return tuple(
            open_page.page.evaluate(
                """() => { const data = document.getElementById("plot-roofline").data;
                return [Math.max(...data.flatMap(one => Array.isArray(one.marker?.size) ? one.marker.size : [])),
                        data.filter(one => (one.mode || "").includes("text")).length]; }"""
            )
        )

    wide, names = drawn()
    assert names > 0
    open_page.page.set_viewport_size({"width": 420, "height": 800})
    open_page.until("!document.getElementById('plot-roofline').data.some(one => (one.mode || '').includes('text'))")
    narrow, names = drawn()
    assert names == 0
    assert narrow < 0.7 * wide
    open_page.page.set_viewport_size(VIEWPORT)
    open_page.until("document.getElementById('plot-roofline').data.some(one => (one.mode || '').includes('text'))")


def test_a_click_on_a_box_shows_its_figures_and_its_edges(open_page: OpenPage) -> None:
    box = open_page.page.locator('figure.layer:visible a.op[data-name="attention"]').first
    box.click()
    panel = open_page.page.locator("#layer-panel")
    assert panel.locator("h3").inner_text() == "attention"
    message = panel.inner_text()
    for words in ("h100-sxm", "prefill", "FLOP =", "Bytes =", "Time =", "Roofline"):
        assert words in message, words
    near = open_page.page.locator("figure.layer:visible .edge.near")
    ends = {(edge.get_attribute("data-from"), edge.get_attribute("data-to")) for edge in near.all()}
    assert ends == {("rope", "attention"), ("v_proj", "attention"), ("attention", "o_proj")}


def test_a_box_is_chosen_by_keyboard_and_links_to_its_row(open_page: OpenPage) -> None:
    open_page.page.locator('.filters[data-table="operators"]').get_by_label("Stage").select_option("prefill")
    box = open_page.page.locator(
        'figure.layer[data-stage="decode"]:visible a.op[data-name="lm_head"], '
        'figure.layer[data-stage="decode"]:visible a.op[data-name="q_proj"]'
    ).first
    box.focus()
    open_page.page.keyboard.press("Enter")
    key = box.get_attribute("data-key")
    link = open_page.page.locator("#layer-panel a")
    assert link.get_attribute("href") == f"#{key}"
    link.click()
    assert open_page.page.locator(f"#{key}").is_visible()


def test_layers_of_another_configuration_can_be_selected(open_page: OpenPage) -> None:
    bar = open_page.page.locator("#layer-filters")
    bar.get_by_label("Configuration").select_option("a100-80gb-sxm")
    bar.get_by_label("Stage").select_option("decode")
    shown = open_page.page.locator("figure.layer:visible")
    assert shown.count() == 1
    assert shown.get_attribute("data-configuration") == "a100-80gb-sxm"
    assert shown.get_attribute("data-stage") == "decode"


def test_all_points_can_be_downloaded(open_page: OpenPage) -> None:
    with open_page.page.expect_download() as waiting:
        open_page.page.locator("#download").click()
    lines = Path(waiting.value.path()).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * 3
    assert lines[0].startswith("configuration,")


@pytest.mark.parametrize(("scheme", "paper"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 26)")])
def test_the_page_follows_the_colour_scheme(browser: Any, short: Path, scheme: str, paper: str) -> None:
    one = OpenPage(browser, short, color_scheme=scheme)
    assert one.page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    drawn = one.page.evaluate("getComputedStyle(document.querySelector('#plot-roofline .main-svg')).backgroundColor")
    assert drawn == paper
    one.close()


def test_charts_follow_when_the_scheme_changes(open_page: OpenPage) -> None:
    open_page.page.emulate_media(color_scheme="dark")
    open_page.until(
        "getComputedStyle(document.querySelector('#plot-roofline .main-svg')).backgroundColor === 'rgb(20, 23, 26)'"
    )
    open_page.page.emulate_media(color_scheme="light")


def test_in_print_everything_is_expanded_and_light(browser: Any, short: Path) -> None:
    one = OpenPage(browser, short, color_scheme="dark")
    one.page.emulate_media(media="print", color_scheme="dark")
    one.until("document.querySelectorAll('details:not([open])').length === 0")
    assert one.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not one.page.locator(".filters").first.is_visible()
    one.until("document.querySelector('#plot-roofline .main-svg').getBoundingClientRect().width <= 700")
    one.page.emulate_media(media="screen")
    one.until("document.querySelectorAll('details:not([open])').length > 0")
    one.close()


def test_no_text_box_overflows_a_narrow_screen(open_page: OpenPage) -> None:
    open_page.page.set_viewport_size({"width": 420, "height": 800})
    open_page.until("document.documentElement.scrollWidth <= 420")
    open_page.page.set_viewport_size(VIEWPORT)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_audit_of_accessibility_finds_nothing(browser: Any, short: Path, scheme: str) -> None:
    """axe-core's rules of WCAG 2.2 AA and good practice, with everything open and an operator chosen."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe: pip install '.[dev]'")
    context = browser.new_context(bypass_csp=True, color_scheme=scheme)  # the audit is a separate script
    page = context.new_page()
    page.goto(short.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached", timeout=PATIENCE)
    page.locator("figure.layer:visible a.op").nth(3).click()
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    context.close()


def test_tables_and_layers_work_without_scripts(browser: Any, path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("#operators tbody tr").count() > 60
    assert page.locator("a.op").count() > 50
    assert page.locator(".waiting").first.is_visible()
    context.close()


def test_a_hostile_name_runs_no_code(browser: Any, tmp_path: Path) -> None:
    import json

    from tests.certificate.our_counts import published_config

    folder = tmp_path / "<img src=x onerror=document.title='pwned'>"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(published_config("llama-2-7b")), encoding="utf-8")
    path = tmp_path / "hostile.html"
    assert main(["report", str(folder), "--hardware", "a6000", "-o", str(path)]) == 0
    one = OpenPage(browser, path)
    assert "pwned" not in one.page.title().split("'")[0]
    assert one.page.locator("img").count() == 0
    one.close()


@pytest.mark.slow
def test_ten_thousand_points_stay_responsive(browser: Any, tmp_path: Path) -> None:
    """Charts draw few points, so that clicks respond quickly."""
    path = tmp_path / "many.html"
    words = "report llama-2-7b --hardware a6000 --efficiency ideal --batch-size 1:10000 --input-len 16 --output-len 2"
    assert main([*words.split(), "--no-fit-check", "-o", str(path)]) == 0
    one = OpenPage(browser, path)
    assert one.page.evaluate("document.querySelectorAll('*').length") < 20_000
    one.page.get_by_role("button", name="All layers").click()
    assert one.values("All layers") == sorted(one.values("All layers"), reverse=True)
    one.close()
