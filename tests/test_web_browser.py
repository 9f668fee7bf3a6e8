"""The web viewer in a real browser: every control, tab, picture and download, without a console error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import pytest

import llmviewer as lv
from llmviewer.reports import format as fmt
from tests.certificate.our_counts import published_config
from tests.web_pages import CHROMIUM, DESKTOP, PATIENCE, PHONE, PLACE_OF_NODE, WebPage, served

pytest.importorskip("dash", reason="needs dash: pip install '.[web]'")
from llmviewer.reports.web.equivalents import FILES
from llmviewer.reports.web.state import packed, unpacked
from llmviewer.reports.web.tabs import TABS

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[dev]'")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium, or CHROMIUM=path")

expect = playwright.expect
expect.set_options(timeout=PATIENCE)
MODEL, CHIP = "llama-3.1-8b", "h100-sxm"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def shared(browser: Any, address: str) -> Iterator[WebPage]:
    one = WebPage(browser, address)
    yield one
    one.close()


@pytest.fixture
def web(shared: WebPage) -> Iterator[WebPage]:
    """The page that all tests share; each opens the address that it needs."""
    shared.faults.clear()
    yield shared
    assert shared.faults == []


def cards(model: Any = MODEL, hardware: str = CHIP, **options: Any) -> list[str]:
    """Texts that the cards of the verdict show for a run."""
    answer = lv.analyze(model, hardware, **options).to_dict()
    metrics, memory = answer["metrics"], answer["memory"]
    times = [fmt.duration(metrics[name]) for name in ("ttft_s", "tpot_s", "e2e_s")]
    speed = fmt.per_second(metrics["output_tokens_per_s"])
    return [*times, speed, fmt.memory(memory["total_bytes"]), fmt.memory(memory["kv_cache_bytes"])]


def shows(web: WebPage, expected: list[str]) -> None:
    expect(web.page.locator(".cards strong")).to_have_text(expected)


# the question


def test_the_first_page_has_an_answer(web: WebPage) -> None:
    web.open()
    shows(web, cards())
    expect(web.page.locator("#command")).to_contain_text(f"llmviewer analyze {MODEL} --hardware {CHIP}")
    expect(web.page.locator("main")).to_contain_text("Best change")


def test_a_change_that_was_tried_is_applied_by_its_button(web: WebPage) -> None:
    """Nothing is a dead end: a model that does not fit names the changes that make it fit, above its figures."""
    web.open("model=llama-3.1-70b&hardware=h100-sxm")
    button = web.page.get_by_role("link", name="Apply -tp 2 (fits)")
    expect(button).to_be_visible()
    assert button.bounding_box()["y"] < web.page.locator("#content").bounding_box()["y"]
    button.click()
    shows(web, cards("llama-3.1-70b", tensor_parallel_size=2))
    expect(web.page.get_by_label("Tensor parallel size")).to_have_value("2")
    expect(web.page).to_have_title("llama-3.1-70b on 2 × h100-sxm, batch 1, 1,024 + 128 tokens · llmviewer")


def test_an_option_that_the_model_refuses_is_left_out_by_a_button(web: WebPage) -> None:
    """GPT-2's 12 heads do not split over 8 devices; those of Llama do."""
    web.open("model=llama-3.1-8b&hardware=h200&tensor_parallel_size=8&kv_cache_dtype=fp8")
    shows(web, cards("llama-3.1-8b", "h200", tensor_parallel_size=8, kv_cache_dtype="fp8"))
    web.choose("Model", "gpt2")
    expect(web.page.get_by_role("alert")).to_contain_text("heads")
    web.page.get_by_role("link", name="Apply without tensor parallel size (8)").click()
    expect(web.page.locator(".cards strong")).to_have_count(6)
    assert urlsplit(web.page.url).query == "model=gpt2&hardware=h200&kv_cache_dtype=fp8"


def test_what_is_set_is_marked_and_reset(web: WebPage) -> None:
    web.open("model=mistral-7b&hardware=h100-sxm&batch_size=8&quantization=fp8&power_limit=500W")
    marked = """() => [...document.querySelectorAll(".controls .control > span, .controls summary")].filter(
        one => getComputedStyle(one, "::after").content.includes("●")).map(one => one.textContent)"""
    web.until(f"() => ({marked})().length === 4")
    assert {*web.page.evaluate(marked)} == {"Batch size", "Quantization", "Power limit", "Hardware and scale"}
    web.page.locator("[data-act=reset]").click()
    shows(web, cards("mistral-7b"))
    web.until(f"() => ({marked})().length === 0")
    expect(web.page.locator("[data-act=reset]")).not_to_be_visible()
    assert urlsplit(web.page.url).query == "model=mistral-7b&hardware=h100-sxm"


def test_models_and_chips_are_searched_by_maker_and_words(web: WebPage) -> None:
    web.open()
    menu = web.menu("Model")
    expect(menu.locator("optgroup[label='meta-llama'] option[value='llama-3.1-8b']")).to_have_text(
        re.compile(r"llama-3\.1-8b · 1[45]\.\d GiB")
    )
    field = web.page.get_by_role("searchbox", name="Search models")
    field.fill("mistralai 8x22b")
    hidden = "() => [...document.querySelectorAll('[data-option=model] option')].filter(one => !one.hidden).length"
    web.until(f"() => ({hidden})() === 1")
    field.fill("no such model")
    field.press("Enter")
    expect(web.page.get_by_role("alert")).to_contain_text("no model with the words no such model")
    field.fill("mistralai 7b")
    field.press("Enter")
    shows(web, cards("mistral-7b"))
    expect(menu).to_have_value("mistral-7b")
    chips = web.page.get_by_role("searchbox", name="Search chips")
    chips.fill("amd mi325")
    chips.press("Enter")
    shows(web, cards("mistral-7b", "mi325x"))
    expect(web.menu("Chip")).to_have_value("mi325x")


@pytest.mark.parametrize(("size", "word", "start"), [("batch_size", "batch", 0.0), ("input_len", "context", 10.0)])
def test_a_size_is_played_and_stopped(web: WebPage, size: str, word: str, start: float) -> None:
    """Steps are of half a power of two, and one step back together; its button, Escape and other controls end it."""
    ends = {
        "button": lambda: web.page.locator(f"[data-act=play-{size}]").click(),
        "key": lambda: web.page.keyboard.press("Escape"),
        "control": lambda: web.choose("KV cache format", "fp8"),
    }
    web.open("tab=memory")
    web.page.wait_for_selector(f"[data-slider={size}]")
    button = web.page.locator(f"[data-act=play-{size}]")
    place = f"() => Number(document.querySelector('[data-slider={size}]').value)"
    for end in ends.values():
        expect(button).to_have_text(f"Play over {word}")
        button.focus()
        web.page.keyboard.press("Enter")
        expect(button).to_have_text(f"Stop over {word}")
        web.page.wait_for_function(f"start => ({place})() >= start + 1", arg=start)
        end()
        expect(button).to_have_text(f"Play over {word}")
        web.rest()
        start = web.page.evaluate(place)
        web.page.wait_for_timeout(1000)
        assert web.page.evaluate(place) == start
    assert start % 0.5 == 0.0
    assert int(parse_qs(urlsplit(web.page.url).query)[size][0]) == round(2**start)


def test_without_motion_a_press_is_one_step(browser: Any, address: str) -> None:
    web = WebPage(browser, address, "tab=network", reduced_motion="reduce")
    web.page.wait_for_selector("[data-slider=batch_size]")
    button = web.page.get_by_role("button", name="Step over batch")
    button.click()
    expect(web.page.locator("#asked")).to_contain_text("batch 2, 1,024 + 128")
    web.page.wait_for_timeout(1000)
    expect(web.field("Batch size")).to_have_value("2")
    button.click()
    expect(web.page.locator("#asked")).to_contain_text("batch 3, 1,024 + 128")
    web.close()


DOT = """chip => {
  const place = document.getElementById("fits-on");
  for (const trace of place.querySelectorAll(".scatterlayer .trace")) {
    const at = trace.__data__[0].trace.customdata.indexOf(chip);
    if (at < 0) continue;
    const box = trace.querySelectorAll(".point")[at].getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
  }
}"""


def test_a_chip_is_chosen_from_all_that_hold_the_request(web: WebPage) -> None:
    """A click on a dot, or the menu by keys; the control on the left follows."""
    web.open("model=llama-3.3-70b&quantization=fp8&hardware=h200")
    web.until("() => document.querySelectorAll('#fits-on .point').length > 9")
    web.page.locator("#fits-on").scroll_into_view_if_needed()
    place = web.page.evaluate(DOT, "b200")
    web.page.mouse.move(*place)
    web.page.wait_for_selector("#fits-on .hovertext")
    web.page.mouse.click(*place)
    shows(web, cards("llama-3.3-70b", "b200", quantization="fp8"))
    expect(web.menu("Chip")).to_have_value("b200")
    menu = web.page.locator("#strip select")
    expect(menu).to_have_value("b200")
    menu.select_option("mi300x")
    shows(web, cards("llama-3.3-70b", "mi300x", quantization="fp8"))
    web.choose("Quantization", "none")  # another question, to which the dots are no answer
    expect(web.page.locator("#fits-on")).to_have_count(0)
    web.page.locator("#tabs").get_by_text("Memory").click()
    web.rest()
    expect(web.page.locator("#fits-on")).to_have_count(0)


#: Least height of letters on the screen that people read without effort [pixel].
READABLE = 8.0
GRAPH = "document.getElementById('network')?._cyreg?.cy"


@pytest.mark.parametrize("model", ["deepseek-v3.2", "jamba-v0.1", "mixtral-8x7b", "gpt-oss-120b", "t5-v1.1-xxl"])
def test_the_network_of_every_model_can_be_read(web: WebPage, model: str) -> None:
    web.open(f"model={model}&hardware=h200&tensor_parallel_size=1&tab=network")
    web.until(f"() => {GRAPH}?.zoom() * 11 >= {READABLE}")


def test_the_network_is_zoomed_by_buttons_and_keys_and_saved(web: WebPage, tmp_path: Path) -> None:
    web.open("tab=network")
    web.until(f"() => {GRAPH}?.nodes().length > 10")
    zoom = web.page.evaluate(f"() => {GRAPH}.zoom()")
    web.page.get_by_role("button", name="Larger").click()
    assert web.page.evaluate(f"() => {GRAPH}.zoom()") == pytest.approx(1.25 * zoom)
    web.page.locator(".network").focus()
    web.page.keyboard.press("0")
    assert web.page.evaluate(f"() => {GRAPH}.zoom()") == pytest.approx(zoom)
    with web.page.expect_download() as saved:
        web.page.get_by_role("button", name="PNG").click()
    saved.value.save_as(tmp_path / "network.png")
    assert (tmp_path / "network.png").read_bytes().startswith(b"\x89PNG")


def test_the_network_is_saved_as_drawing(web: WebPage, tmp_path: Path) -> None:
    """Every node is a box with the lines of its label, every edge a line."""
    web.open("tab=network&engine=vllm&against=quantization%3Dfp8")
    web.until(f"() => {GRAPH}?.nodes().length > 10")
    with web.page.expect_download() as saved:
        web.page.get_by_role("button", name="SVG").click()
    saved.value.save_as(tmp_path / "network.svg")
    root = ElementTree.parse(tmp_path / "network.svg").getroot()
    tag = "{http://www.w3.org/2000/svg}"
    rows = ["\n".join(row.text or "" for row in text) for text in root.iter(f"{tag}text")]
    assert rows == web.page.evaluate(f"() => {GRAPH}.nodes().map(one => one.data('label'))")
    assert len([*root.iter(f"{tag}polyline")]) == web.page.evaluate(f"() => {GRAPH}.edges().length")


def test_an_operator_that_is_chosen_by_name_comes_into_sight(web: WebPage) -> None:
    web.open("model=deepseek-v3&hardware=h200&tensor_parallel_size=8&tab=network")
    web.until(f"() => {GRAPH}?.nodes().length > 10")
    web.page.locator("[data-shown=operator]").select_option(label="shared_down_proj")
    web.until("() => window.scrollY > 100")
    _, y = web.page.evaluate(PLACE_OF_NODE, "operator shared_down_proj")
    assert 0 < y < DESKTOP["height"]
    web.page.evaluate("() => window.scrollTo(0, 0)")


def test_a_chain_is_unfolded_by_a_click_and_folded_by_its_menu(web: WebPage) -> None:
    web.open("model=deepseek-v3.2&hardware=h200&tensor_parallel_size=8&tab=network")
    for chain in ("shared_act", "attn_norm"):
        web.tap(f"chain {chain}")
        web.until(f"() => {GRAPH}?.getElementById('operator {chain}').length")
        assert not web.page.evaluate(f"() => {GRAPH}.getElementById('chain {chain}').length")
    assert urlsplit(web.page.url).query.endswith("&chains=shared_act%2Cattn_norm")
    expect(web.page.locator("[data-shown=chains] option:checked")).to_have_text("folded but for 2")
    web.page.locator("[data-shown=chains]").select_option("folded")
    web.until(f"() => {GRAPH}?.getElementById('chain attn_norm').length")
    web.page.locator("[data-shown=operator]").select_option(label="shared_up_proj")
    web.until(f"() => {GRAPH}?.getElementById('chain shared_act').hasClass('chosen')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_chips_are_compared_in_one_network(browser: Any, address: str, scheme: str) -> None:
    """B is chosen by keys; boxes have both times, the pointer shows the card, the split by factor follows."""
    web = WebPage(browser, address, "tab=network", color_scheme=scheme)
    menu = web.page.get_by_label("Against")
    menu.focus()
    menu.select_option("hardware=h200")
    web.until(f"() => {GRAPH}?.getElementById('operator down_proj').data('label').includes('→')")
    expect(web.page.get_by_role("group", name="A against B, decode")).to_contain_text("Moved: weights")
    expect(web.page.get_by_role("group", name="Where the difference is")).to_contain_text("down_proj (layer)")
    fill = web.page.evaluate(f"() => {GRAPH}.getElementById('operator down_proj').style('border-color')")
    assert fill == {"light": "rgb(0,121,90)", "dark": "rgb(47,199,155)"}[scheme]  # --series-2: faster in B
    expect(web.page.locator("#late")).to_contain_text("of the difference is bandwidth")
    web.rest()
    web.hover_box("block layer")
    expect(web.page.locator(".zoom output")).to_contain_text(re.compile(r"^layer × 32: A .* ms, B .* ms, 0\.\d+×"))
    web.page.go_back()
    web.until(f"() => !{GRAPH}?.getElementById('operator down_proj').data('label').includes('→')")
    web.close()


def test_another_model_and_another_chip_are_chosen_from_menus(web: WebPage) -> None:
    web.open()
    web.choose("Model", "mistral-7b")
    shows(web, cards("mistral-7b"))
    web.choose("Chip", "a100-80gb-sxm")
    shows(web, cards("mistral-7b", "a100-80gb-sxm"))
    assert "model=mistral-7b&hardware=a100-80gb-sxm" in web.page.url


def test_sizes_change_by_field_and_by_slider(web: WebPage) -> None:
    web.open()
    web.field("Batch size").fill("8")
    shows(web, cards(batch_size=8))
    web.field("Input length").fill("4k")
    shows(web, cards(batch_size=8, input_len=4096))
    web.page.get_by_role("slider", name="Batch size, slider").focus()
    web.page.keyboard.press("ArrowRight")
    expect(web.field("Batch size")).to_have_value("10")
    shows(web, cards(batch_size=10, input_len=4096))
    web.page.get_by_role("slider", name="Output length, slider").focus()
    web.page.keyboard.press("ArrowLeft")
    expect(web.field("Output length")).to_have_value("108")
    shows(web, cards(batch_size=10, input_len=4096, output_len=108))


def test_options_and_figures_of_the_chip_change_the_answer(web: WebPage) -> None:
    web.open("quantization=fp8")
    shows(web, cards(quantization="fp8"))
    web.choose("Tensor parallel size", "2")
    shows(web, cards(quantization="fp8", tensor_parallel_size=2))
    web.page.get_by_text("Figures of the chip").click()
    web.field("bandwidth").fill("6TB/s")
    shows(web, cards(quantization="fp8", tensor_parallel_size=2, set="bandwidth=6TB/s"))


def test_a_value_that_is_set_is_told_from_one_that_is_not(web: WebPage) -> None:
    """vLLM fuses kernels unless told; the first line of the menu, and an empty field, unset what was set."""
    web.open("engine=vllm")
    shows(web, cards(engine="vllm"))
    web.page.locator("summary", has_text="Kernels").click()
    expect(web.menu("Fusion").locator("option:checked")).to_have_text("not set: the engine's")
    web.choose("Fusion", "none")
    shows(web, cards(engine="vllm", fusion="none"))
    expect(web.page.locator("#command")).to_contain_text("--fusion none")
    web.page.go_back()
    shows(web, cards(engine="vllm"))
    expect(web.menu("Fusion")).to_have_value("")
    web.page.go_forward()
    expect(web.menu("Fusion")).to_have_value("none")
    web.field("Batch size").fill("1")
    expect(web.page.locator("#command")).to_contain_text("--batch-size 1")
    web.field("Batch size").fill("")
    web.choose("Fusion", "")
    shows(web, cards(engine="vllm"))
    expect(web.page.locator("#command")).to_have_text(f"llmviewer analyze {MODEL} --hardware {CHIP} --engine vllm")
    slider = web.page.get_by_role("slider", name="Input length, slider")
    expect(slider).to_have_value("10")


@pytest.mark.parametrize("text", ["-3", "1e308", "<img src=x onerror=alert(1)>"])
def test_a_wrong_size_gives_one_line_and_the_page_goes_on(web: WebPage, text: str) -> None:
    web.open()
    web.field("Batch size").fill(text)
    expect(web.page.locator("#alert [role=alert]")).to_contain_text("batch_size")
    expect(web.page.locator("#alert p")).to_have_count(1)
    web.field("Batch size").fill("2")
    shows(web, cards(batch_size=2))
    expect(web.page.locator("#alert p")).to_have_count(0)


@pytest.mark.parametrize("query", ["nonsense=1", "model=nonsense", "hardware=<script>alert(1)</script>", "config=%%%"])
def test_a_wrong_address_gives_one_line(web: WebPage, query: str) -> None:
    web.open(query)
    expect(web.page.locator("#alert [role=alert]")).to_have_count(1)
    web.page.goto(web.address)
    shows(web, cards())


def test_a_reload_shows_the_same_and_back_and_forward_work(web: WebPage) -> None:
    web.open()
    shows(web, cards())
    web.field("Batch size").fill("16")
    shows(web, cards(batch_size=16))
    web.choose("Chip", "a6000")
    shows(web, cards(hardware="a6000", batch_size=16))
    web.page.reload()
    shows(web, cards(hardware="a6000", batch_size=16))
    expect(web.field("Batch size")).to_have_value("16")
    web.page.go_back()
    shows(web, cards(batch_size=16))
    expect(web.menu("Chip")).to_have_value(CHIP)
    web.page.go_back()
    shows(web, cards())
    expect(web.field("Batch size")).to_have_value("")
    expect(web.field("Batch size")).to_have_attribute("placeholder", "not set: 1")
    web.page.go_forward()
    shows(web, cards(batch_size=16))
    expect(web.field("Batch size")).to_have_value("16")


def test_a_change_after_a_step_back_is_a_step_of_its_own(web: WebPage) -> None:
    web.open()
    shows(web, cards())
    web.field("Batch size").fill("16")
    shows(web, cards(batch_size=16))
    web.page.go_back()
    shows(web, cards())
    web.field("Batch size").fill("4")
    shows(web, cards(batch_size=4))
    web.page.go_back()
    shows(web, cards())


# tabs


def test_a_tab_that_is_clicked_before_the_answer_keeps_the_change(web: WebPage) -> None:
    """The links of the tabs are of the answer that is shown, which is older than the change."""
    web.open()
    shows(web, cards())
    web.page.evaluate("""() => {
      const menu = document.querySelector("[data-option=hardware]");
      menu.value = "a6000";
      menu.dispatchEvent(new Event("change", { bubbles: true }));
      [...document.querySelectorAll("#tabs a")].find(one => one.textContent === "Memory").click();
    }""")
    expect(web.page.locator("#tabs [aria-current]")).to_have_text("Memory")
    expect(web.page.locator("#command")).to_contain_text("--hardware a6000")
    expect(web.menu("Chip")).to_have_value("a6000")


def test_every_tab_opens_by_a_click(web: WebPage) -> None:
    web.open("with=hardware%3Da100-80gb-sxm")
    for name, title in TABS.items():
        web.page.locator("#tabs a", has_text=title).click()
        expect(web.page.locator("#content h2").first).to_have_text(title)
        expect(web.page.locator("#tabs [aria-current]")).to_have_text(title)
        expect(web.page.locator("#alert p")).to_have_count(0)
        assert f"tab={name}" in web.page.url or name == "verdict"


@pytest.mark.parametrize(("tab", "graph"), [("memory", "total_bytes"), ("sweep", "ttft_s")])
def test_numbers_of_logarithmic_axes_are_in_full(web: WebPage, tab: str, graph: str) -> None:
    """Ticks at 1, 2 and 5 of every decade: 20, 50, 100, 200 and so on, each larger than the one before."""
    web.open(f"tab={tab}")
    web.page.wait_for_selector(f"#graph-curve-{graph} .ytick text")
    texts = web.page.locator(f"#graph-curve-{graph} .ytick text").all_text_contents()
    numbers = [float(text.replace(",", "")) for text in texts]
    assert numbers == sorted(set(numbers))
    assert {20.0, 50.0, 100.0, 200.0, 500.0, 1000.0} <= set(numbers)


def test_curves_of_memory_have_a_key(web: WebPage) -> None:
    web.open("tab=memory&batch_size=2")
    expect(web.page.locator("#content .legend li")).to_have_text(["batch 2", "batch 8", "batch 32", "batch 128"])


def operator_time(name: str, stage: str = "decode") -> str:
    answer = lv.analyze(MODEL, CHIP).to_dict()
    found = next(one for one in answer["stages"][stage]["operators"] if one["name"] == name)
    return fmt.duration(found["time_s"])


def in_panel(web: WebPage, name: str, stage: str = "decode") -> None:
    """The panel shows an operator with its time."""
    panel = web.page.locator(".panel")
    expect(panel.locator("h2")).to_have_text(f"{name}, {stage}")
    expect(panel).to_contain_text(operator_time(name, stage))


def test_a_click_on_a_box_of_the_network_shows_its_operator(web: WebPage) -> None:
    web.open("tab=network")
    in_panel(web, "down_proj")
    web.tap("operator attention")
    in_panel(web, "attention")
    assert "operator=" in web.page.url
    web.tap("block head")
    in_panel(web, "lm_head")
    assert "block=head" in web.page.url
    web.choose("Stage", "prefill")
    expect(web.page.locator(".panel h2")).to_contain_text("prefill")


def test_a_click_on_a_point_of_the_roofline_shows_its_operator(web: WebPage) -> None:
    web.open("tab=roofline")
    in_panel(web, "down_proj")
    web.click_point("attention", "prefill")
    in_panel(web, "attention", "prefill")
    assert "stage=prefill" in web.page.url


def test_a_point_that_is_hovered_is_marked_in_the_network(web: WebPage) -> None:
    web.open("tab=roofline")
    in_panel(web, "down_proj")
    web.hover_point("attention", "decode")
    web.until("() => document.getElementById('network')._cyreg.cy.nodes('.near').map(n => n.id())[0]")


def test_the_table_is_sorted_and_filtered(web: WebPage) -> None:
    web.open("tab=operators")
    everything = web.column("Operator")
    assert len(everything) == len(set(everything)) * 2
    for ascending in (True, False):
        web.page.locator(".ag-header-cell-label", has_text="All layers").click()
        values = web.column("All layers")
        numbers = [seconds(text) for text in values]
        assert numbers == sorted(numbers, reverse=not ascending)
    web.page.locator(".ag-header-cell", has_text="Stage").locator(".ag-header-cell-filter-button").click()
    web.page.get_by_placeholder("Filter...").first.fill("decode")
    web.until("() => new Set(window.shown('Stage')).size === 1")
    assert set(web.column("Stage")) == {"decode"}


def test_columns_are_chosen_and_rows_summed(web: WebPage) -> None:
    """The link has both; a filter changes the sums, which are of the rows that it leaves."""
    web.open("tab=operators&sums=bound")
    rows = web.page.locator("#sums tbody tr")
    expect(rows.first).to_contain_text("prefill")
    web.page.locator("summary", has_text="Columns").click()
    for column in ("kind", "dtype"):
        box = web.page.locator(f"[data-column={column}]")
        box.focus()
        web.page.keyboard.press("Space")
        expect(web.page).not_to_have_url(re.compile(f"C{column}[&%]"))
        web.rest()
        expect(box).to_be_focused()
    web.page.reload()
    web.page.wait_for_selector(".ag-row")
    expect(web.page.locator(".ag-header-cell", has_text="Dtype")).to_have_count(0)
    expect(web.page.locator("#sums tr.group")).to_have_count(2)
    web.page.locator(".ag-header-cell", has_text="Stage").locator(".ag-header-cell-filter-button").click()
    web.page.get_by_placeholder("Filter...").first.fill("decode")
    expect(web.page.locator("#sums tr.group")).to_have_count(1)
    decode = lv.analyze(MODEL, CHIP).stage("decode")
    expect(rows.first).to_contain_text(f"{len(decode['operators'])}")
    expect(rows.first).to_contain_text(fmt.duration(decode["time_s"]))
    web.page.keyboard.press("Escape")
    web.page.locator("#tabs").get_by_text("Memory").click()
    web.rest()
    expect(rows).to_have_count(0)


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def test_a_row_of_the_table_leads_to_its_operator(web: WebPage) -> None:
    web.open("tab=operators")
    web.page.locator(".ag-cell", has_text="lm_head").first.click()
    in_panel(web, "lm_head", "prefill")
    assert "tab=network" in web.page.url
    assert web.page.evaluate("document.getElementById('network')._cyreg.cy.nodes('[id = \"operator lm_head\"]').length")


def test_configurations_are_kept_compared_and_forgotten(web: WebPage) -> None:
    web.open("tab=compare")
    web.page.get_by_role("button", name="Keep this configuration").click()
    expect(web.page).to_have_url(re.compile("with="))
    web.choose("Chip", "a100-80gb-sxm")
    head = web.page.locator("#content thead th")
    expect(head.nth(2)).to_contain_text("a100-80gb-sxm")
    expect(head.nth(1)).to_contain_text(CHIP)
    for hardware in (CHIP, "a100-80gb-sxm"):
        tpot = fmt.duration(lv.analyze(MODEL, hardware).tpot_s)
        expect(web.page.locator("#content table").first).to_contain_text(tpot)
    expect(web.page.locator("#content h3", has_text="Why")).to_have_count(1)
    web.page.get_by_role("button", name="Forget all").click()
    expect(web.page.locator("#content table")).to_have_count(0)


@pytest.mark.parametrize(
    ("tab", "verb", "name", "words"),
    [("size", "Size", "size", ("Verdict", "h100-sxm")), ("load", "Simulate", "simulation", ("TTFT", "p99"))],
)
def test_a_form_is_answered_by_its_button(web: WebPage, tab: str, verb: str, name: str, words: tuple[str, ...]) -> None:
    """The files of the answer are offered once it is there."""
    web.open(f"tab={tab}&model=llama-3.2-1b&input_len=128&output_len=16&engine=kernels")
    expect(web.page.locator("#command")).to_contain_text("--engine kernels")
    expect(web.page.locator("#equivalent a")).to_have_count(0)
    web.page.get_by_label("Requests per second").fill("2")
    web.page.get_by_role("button", name=verb, exact=True).click()
    for word in words:
        expect(web.page.locator("#content")).to_contain_text(word)
    expect(web.page.locator("#content table").first).to_be_visible()
    assert f"run={tab}" in web.page.url and "request_rate=2" in web.page.url
    assert web.page.locator("#content [role=alert]").count() == 0
    expect(web.page.locator("#command")).to_contain_text("--request-rate 2")
    with web.page.expect_download() as waiting:
        web.page.locator(f"#equivalent a[href*='{name}.json']").click()
    assert json.loads(Path(waiting.value.path()).read_bytes())["schema"] == f"llmviewer.{name}/1"
    assert web.page.locator("#equivalent a").all_inner_texts()[:2] == ["Report (Markdown)", "JSON"]


# a config.json of one's own


def config(**changed: Any) -> bytes:
    return json.dumps({**published_config("llama-2-7b"), **changed}).encode()


def test_a_config_of_ones_own_is_answered_and_stays_in_the_address(web: WebPage) -> None:
    web.open("hardware=a6000")
    web.drop(config(num_hidden_layers=16))
    fields = json.loads(config(num_hidden_layers=16))
    shows(web, cards(fields, "a6000"))
    expect(web.page.locator("#drop")).to_contain_text("of your own is used")
    expect(web.menu("Model").locator("option:checked")).to_have_text("llama (your config.json)")
    web.page.reload()
    shows(web, cards(fields, "a6000"))
    web.page.get_by_role("button", name="Use the catalogue").click()
    shows(web, cards(MODEL, "a6000"))


def test_a_model_of_the_catalogue_replaces_a_config_of_ones_own(web: WebPage) -> None:
    web.open("hardware=a6000")
    web.drop(config(num_hidden_layers=16))
    expect(web.menu("Model").locator("option:checked")).to_have_text("llama (your config.json)")
    web.choose("Model", MODEL)
    shows(web, cards(MODEL, "a6000"))
    web.page.go_back()
    expect(web.menu("Model").locator("option:checked")).to_have_text("llama (your config.json)")


def noisy(names: int, indent: int) -> bytes:
    """A config.json, indented by this, with names of modules that stay in 16 bit."""
    digests = [sha256(str(at).encode()).hexdigest()[:8] for at in range(names)]
    fields = {**published_config("llama-2-7b"), "quantization_config": {"modules_to_not_convert": digests}}
    return json.dumps(fields, indent=indent).encode()


def test_white_space_of_a_config_takes_no_room_in_the_address(web: WebPage) -> None:
    web.open("hardware=a6000")
    web.drop(noisy(300, 16))
    web.page.wait_for_url(re.compile("config="))
    query = parse_qs(urlsplit(web.page.url).query)
    assert unpacked(query["config"][0]) == json.loads(noisy(300, 16))
    assert len(query["config"][0]) < 1.1 * len(packed(noisy(300, 16)))


def test_a_config_that_is_too_long_for_an_address_is_told_and_the_page_stays(web: WebPage) -> None:
    web.open()
    shows(web, cards())
    web.drop(noisy(2000, 2))
    expect(web.page.locator("#alert [role=alert]")).to_contain_text("allowed: at most 8,000")
    assert "config=" not in web.page.url
    shows(web, cards())
    web.field("Batch size").fill("4")
    shows(web, cards(batch_size=4))
    expect(web.page.locator("#alert [role=alert]")).to_have_count(0)


def test_a_file_is_read_again_when_it_is_chosen_again(web: WebPage) -> None:
    web.open("hardware=a6000")
    web.drop(b"this is no JSON")
    expect(web.page.locator("#alert [role=alert]")).to_have_count(1)
    web.page.go_back()
    shows(web, cards(MODEL, "a6000"))
    assert web.page.locator("#file").evaluate("one => one.files.length") == 0


def test_configurations_that_an_address_has_no_room_for_are_not_kept(web: WebPage) -> None:
    web.open("hardware=a6000")
    name = "".join(sha256(str(at).encode()).hexdigest() for at in range(70))
    web.drop(config(_name_or_path=name))
    web.page.wait_for_url(re.compile("config="))
    web.page.locator("#tabs a", has_text="Compare").click()
    for kept in (1, 2):
        web.page.get_by_role("button", name="Keep this configuration").click()
        if kept == 1:
            web.page.wait_for_url(re.compile("with="))
            expect(web.page.get_by_role("button", name="Forget all")).to_be_visible()
    expect(web.page.locator("#alert [role=alert]")).to_contain_text("allowed: at most 8,000")
    expect(web.page.get_by_role("button", name="Forget all")).to_be_visible()


def test_controls_that_change_keep_the_focus_and_what_is_open(web: WebPage) -> None:
    """Two devices make more options possible, with which the controls are drawn again."""
    web.open()
    web.page.get_by_text("Figures of the chip").click()
    web.menu("Tensor parallel size").focus()
    web.choose("Tensor parallel size", "2")
    expect(web.page.locator('[data-option="sequence_parallel"]')).to_have_count(1)
    expect(web.field("bandwidth")).to_be_visible()
    expect(web.menu("Tensor parallel size")).to_be_focused()


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


HOSTILE = {
    "text": b"this is no JSON",
    "deep": deep(10_000),
    "large": b"{" + b" " * 100_000 + b"}",
    "script": config(model_type="<script>document.title='run'</script>"),
    "picture": config(architectures=["<img src=x onerror=\"document.title='run'\">"], model_type="x"),
    "huge": config(hidden_size=1e308),
    "nan": config(hidden_size=float("nan")),
    "negative": config(num_hidden_layers=-4),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_gives_one_line_and_the_page_goes_on(web: WebPage, name: str) -> None:
    web.open()
    shows(web, cards())
    web.drop(HOSTILE[name])
    expect(web.page.locator("#alert [role=alert]")).to_have_count(1)
    assert "\n" not in web.page.locator("#alert [role=alert]").inner_text()
    assert web.page.title().endswith("llmviewer")
    if "config=" in web.page.url:
        web.page.get_by_role("button", name="Use the catalogue").click()
        shows(web, cards())
    web.field("Batch size").fill("4")
    shows(web, cards(batch_size=4))


# downloads


@pytest.mark.parametrize("name", FILES)
def test_a_download_has_the_content_of_the_answer(web: WebPage, name: str) -> None:
    web.open("batch_size=4")
    shows(web, cards(batch_size=4))
    with web.page.expect_download() as waiting:
        web.page.locator(f"#equivalent a[href*='{name}']").click()
    assert waiting.value.suggested_filename == name
    content = Path(waiting.value.path()).read_bytes()
    result = lv.analyze(MODEL, CHIP, batch_size=4)
    if name.endswith(".png"):
        assert content.startswith(b"\x89PNG") and len(content) > 20_000
    elif name.endswith(".json"):
        assert json.loads(content)["metrics"] == json.loads(json.dumps(result.to_dict()["metrics"]))
    elif name == "operators.csv":
        lines = content.decode().splitlines()
        assert len(lines) == 1 + len(result.operators)
        assert {"name", "time_s", "flops"} <= set(lines[0].split(","))
    elif name == "sweep.csv":
        lines = content.decode().splitlines()
        at = lines[0].split(",").index("tpot_s")
        asked = lines[0].split(",").index("batch_size")
        cells = [line.split(",") for line in csv_rows(lines)]
        length = lines[0].split(",").index("input_len")
        rows = {(float(row[asked]), float(row[length])): float(row[at]) for row in cells}
        assert rows[4.0, 1024.0] == pytest.approx(result.tpot_s)
    else:
        text = content.decode()
        assert "<html" in text
        assert fmt.duration(result.ttft_s) in text


def csv_rows(lines: list[str]) -> list[str]:
    """Lines after the head; the name of the configuration is quoted where it has a comma."""
    import csv

    return [",".join(cell.replace(",", ";") for cell in row) for row in csv.reader(lines[1:])]


# accessibility and narrow screens


def audited(browser: Any, address: str, scheme: str, screen: dict[str, int], query: str = "") -> dict[str, Any]:
    """Findings of axe on each tab, and tabs that are wider than the screen."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe: pip install '.[dev]'")
    web = WebPage(
        browser,
        address,
        f"{query}&with=hardware%3Da100-80gb-sxm",
        color_scheme=scheme,
        viewport=screen,
        bypass_csp=True,
    )
    found: dict[str, Any] = {}
    for name, title in TABS.items():
        web.page.locator("#tabs a", has_text=title).click()
        expect(web.page.locator("#content h2").first).to_have_text(title)
        web.page.evaluate("document.querySelectorAll('#content details').forEach(one => { one.open = true; })")
        web.page.wait_for_timeout(300)  # graphs are drawn after the page
        web.rest()
        for one in axe.Axe().run(web.page).response["violations"]:
            found.setdefault(one["id"], []).append((name, one["nodes"][0]["html"][:200]))
        width = web.page.evaluate("document.documentElement.scrollWidth")
        if width > screen["width"]:
            found.setdefault("wide", []).append((name, width))
    web.close()
    return found


def test_an_audit_of_accessibility_finds_nothing(browser: Any, address: str) -> None:
    """Rules of axe-core for WCAG 2.2 AA and good practice, on every tab."""
    assert audited(browser, address, "light", DESKTOP) == {}


@pytest.mark.parametrize(("scheme", "screen"), [("light", DESKTOP), ("dark", PHONE)])
def test_what_comes_after_an_answer_is_audited(browser: Any, address: str, scheme: str, screen: dict[str, int]) -> None:
    """The strip of chips with its table open, and a network against another chip with the split by factor."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe: pip install '.[dev]'")
    for query, ready in (
        ("hardware=h200", "#fits-on .point"),
        ("tab=network&against=quantization%3Dfp8", "#late h3"),
    ):
        web = WebPage(browser, address, query, color_scheme=scheme, viewport=screen, bypass_csp=True)
        web.page.wait_for_selector(ready, state="attached")
        web.page.evaluate("document.querySelectorAll('main details').forEach(one => { one.open = true; })")
        assert axe.Axe().run(web.page).response["violations"] == []
        assert web.page.evaluate("document.documentElement.scrollWidth") <= screen["width"]
        web.close()


def test_an_answer_stays_readable_while_the_next_is_late(browser: Any, address: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe: pip install '.[dev]'")
    web = WebPage(browser, address, bypass_csp=True)
    held: list[Any] = []

    def hold(request: Any) -> None:
        held.append(request)

    web.page.route(re.compile("_dash-update-component"), hold)
    web.choose("Chip", "a100-80gb-sxm")
    web.page.wait_for_timeout(1000)  # the line that shows it comes late, too
    expect(web.page.locator("#content")).to_have_attribute("aria-busy", "true")
    shows(web, cards())
    assert axe.Axe().run(web.page).response["violations"] == []
    for one in held:
        one.continue_()
    web.page.unroute_all()
    shows(web, cards(hardware="a100-80gb-sxm"))
    web.rest()
    web.close()


@pytest.mark.parametrize("how", ["network", "server"])
def test_a_failure_is_told_and_asked_again(how: str, browser: Any, address: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe: pip install '.[dev]'")
    web = WebPage(browser, address, bypass_csp=True)
    away = json.dumps({"title": "Over time", "status": 503, "detail": "over <time>"})

    def lost(request: Any) -> None:
        if how == "network":
            request.abort()
        else:
            request.fulfill(status=503, body=away, content_type="application/problem+json")

    web.page.route(re.compile("_dash-update-component"), lost)
    web.choose("Chip", "a100-80gb-sxm")
    alert = web.page.get_by_role("alert").filter(has_text="no answer")
    expect(alert).to_contain_text("the server cannot be reached" if how == "network" else "over <time>")
    expect(alert).to_contain_text("the figures shown are those of the question before")
    expect(web.page.locator("#content")).to_have_attribute("data-stale", "")
    expect(web.page.locator("#content")).not_to_have_attribute("aria-busy", "true")
    shows(web, cards())
    assert axe.Axe().run(web.page).response["violations"] == []
    web.page.unroute_all()
    web.page.evaluate("window.dispatchEvent(new Event('online'))")
    shows(web, cards(hardware="a100-80gb-sxm"))
    expect(web.page.locator("#content")).not_to_have_attribute("data-stale", "")
    expect(alert).to_have_count(0)
    web.rest()
    web.faults.clear()  # the browser logs requests that fail
    web.close()


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "screen"), [("dark", DESKTOP), ("light", PHONE), ("dark", PHONE)])
def test_other_themes_and_screens_are_audited(browser: Any, address: str, scheme: str, screen: Any) -> None:
    assert audited(browser, address, scheme, screen, "model=deepseek-v2-lite&hardware=a100-80gb-sxm") == {}


def test_no_tab_is_wider_than_a_phone(browser: Any, address: str) -> None:
    web = WebPage(browser, address, "with=hardware%3Da100-80gb-sxm", color_scheme="dark", viewport=PHONE)
    for title in TABS.values():
        web.page.locator("#tabs a", has_text=title).click()
        expect(web.page.locator("#content h2").first).to_have_text(title)
        assert web.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], title
    web.close()


FUSED = "model=deepseek-v3&hardware=h200&tensor_parallel_size=8&engine=vllm"


def test_on_a_phone_the_network_can_be_read_and_the_page_scrolled_over_it(browser: Any, address: str) -> None:
    """Operators stand below the blocks.  A label of 11 pixels has at least 7.5 on the screen."""
    web = WebPage(browser, address, f"{FUSED}&tab=network", viewport=PHONE, has_touch=True)
    graph = "document.getElementById('network')?._cyreg?.cy"
    web.until(f"() => {graph}?.zoom() * 11 >= 7.5")
    assert web.page.evaluate(f"""() => {{
      const lowest = Math.max(...{graph}.nodes(".block").map(one => one.position().y));
      return {graph}.nodes(".operator").every(one => one.position().y > lowest);
    }}""")
    x, y = web.page.evaluate(PLACE_OF_NODE, "block moe")
    touched = web.context.new_cdp_session(web.page)
    touched.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for step in range(1, 21):
        moved = [{"x": x, "y": y - 15 * step}]
        touched.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": moved})
    touched.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    web.until("() => window.scrollY > 200")
    assert "block=" not in web.page.url
    web.page.evaluate("() => window.scrollTo(0, 0)")
    web.page.touchscreen.tap(*web.page.evaluate(PLACE_OF_NODE, "block dense"))
    web.page.wait_for_url(re.compile("block=dense"))
    web.close()


def test_on_a_phone_names_leave_room_for_the_other_columns(browser: Any, address: str) -> None:
    """Names of operators stay in sight on a desktop; on a phone those of fused operators take all of the width."""
    for screen, pinned in ((DESKTOP, True), (PHONE, False)):
        web = WebPage(browser, address, f"{FUSED}&tab=operators", viewport=screen)
        web.page.wait_for_selector(".ag-row")
        assert (web.page.locator(".ag-pinned-left-cols-container .ag-cell").count() > 0) is pinned
        web.close()


def test_on_a_phone_the_question_opens_on_demand(browser: Any, address: str) -> None:
    web = WebPage(browser, address, viewport=PHONE)
    shows(web, cards())
    assert not web.field("Batch size").is_visible()
    web.page.locator("#question > summary").click()
    web.field("Batch size").fill("8")
    shows(web, cards(batch_size=8))
    assert web.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    web.close()


def test_the_page_follows_the_colour_scheme(browser: Any, address: str) -> None:
    web = WebPage(browser, address, "tab=roofline", color_scheme="dark")
    web.until("() => getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 26)'")
    paper = "() => document.querySelector('#roofline .main-svg')?.style.background"
    web.until(f"() => ({paper})() === 'rgb(20, 23, 26)'")
    web.page.emulate_media(color_scheme="light")
    web.until(f"() => ({paper})() === 'rgb(255, 255, 255)'")
    web.close()
