"""The report: one self-contained file with all results, in which every name is escaped."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer import api
from llmviewer.cli import main
from llmviewer.reports import bottleneck, markdown, report_page, tables
from llmviewer.reports import format as fmt
from llmviewer.reports.html import curves, layers, page, provenance
from llmviewer.reports.html.charts import dash, series
from llmviewer.reports.report import Report
from llmviewer.reports.tables import TABLES, csv_text
from llmviewer.result.sweep import Grid
from tests.certificate.our_counts import published_config

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 8_000_000


def report(batch_sizes: tuple[int, ...] = (1, 64), **configurations: dict[str, Any]) -> Report:
    """A report built like the command does.  Keywords: name -> options of api.configuration."""
    columns: dict[str, list[Any]] = {}
    results = {}
    for name, options in configurations.items():
        chosen = {"efficiency": "ideal", **options}
        results[name] = lv.analyze(chosen.pop("model"), chosen.pop("hardware"), **chosen)
        sizes = np.array(batch_sizes, dtype=float)
        swept = lv.analyze(options["model"], options["hardware"], batch_size=sizes, **chosen).columns()
        for column, found in {"configuration": [name] * len(sizes), **swept}.items():
            columns.setdefault(column, []).extend(np.asarray(found).tolist())
    length = len(columns["configuration"])
    return Report(results=results, points={name: found for name, found in columns.items() if len(found) == length})


class Elements(HTMLParser):
    """Every start tag with its attributes, and the unclosed ones."""

    VOID = frozenset("meta link img br hr input path rect".split())

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.kept = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def parsed(text: str) -> Elements:
    elements = Elements()
    elements.feed(text)
    elements.close()
    assert elements.open == []
    return elements


LLAMA = {"model": "llama-3.1-8b", "hardware": "h100-sxm"}


@pytest.fixture(scope="module")
def report_of_two() -> Report:
    return report(first=LLAMA, second={**LLAMA, "hardware": "a100-80gb-sxm", "quantization": "w4a16"})


@pytest.fixture(scope="module")
def html(report_of_two: Report) -> str:
    return page.text(report_of_two)


@pytest.fixture(scope="module")
def elements(html: str) -> Elements:
    return parsed(html)


def test_the_page_is_one_file_below_eight_megabytes(html: str) -> None:
    assert html.startswith("<!DOCTYPE html>")
    assert len(html.encode()) < MAX_BYTES


def test_the_page_loads_nothing(elements: Elements) -> None:
    for tag, attributes in elements.found:
        assert "src" not in attributes, tag
        assert "srcset" not in attributes, tag
        if tag == "link":
            assert attributes["href"] == "data:,"
        assert not [name for name in attributes if name.startswith("on")], tag
    policy = next(a["content"] for a in elements.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "form-action 'none'" in policy
    assert "http" not in policy


def test_the_style_sheet_loads_nothing(html: str) -> None:
    style = re.findall(r"<style>(.*?)</style>", html, flags=re.DOTALL)
    assert len(style) == 1
    assert "url(" not in style[0]
    assert "@import" not in style[0]


def test_every_section_is_there(elements: Elements) -> None:
    sections = [attributes["id"] for attributes in elements.of("section")]
    assert sections == [
        *(
            "summary",
            "bottleneck",
            "roofline",
            "layers",
            "all-operators",
            "sweep",
            "memory",
            "explanations",
            "configurations",
            "provenance",
        )
    ]
    assert len(elements.of("h1")) == 1


def test_every_link_inside_the_page_resolves(elements: Elements) -> None:
    names = {attributes["id"] for _, attributes in elements.found if "id" in attributes}
    inside = {a["href"][1:] for a in elements.of("a") if a["href"] and a["href"].startswith("#")}  # type: ignore[index]
    assert inside - names == set()


def test_element_ids_are_unique(elements: Elements) -> None:
    names = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(names) == len(set(names))


def test_every_chart_has_a_description_and_a_table(elements: Elements) -> None:
    plots = [attributes for attributes in elements.of("div") if attributes.get("class") == "plot"]
    assert len(plots) == 7
    assert all(attributes["role"] == "group" and attributes["aria-label"] for attributes in plots)


def test_the_table_has_a_row_for_every_operator(report_of_two: Report, elements: Elements) -> None:
    rows = [attributes for attributes in elements.of("tr") if (attributes.get("id") or "").startswith("op")]
    assert len(rows) == sum(len(s["operators"]) for a in report_of_two.configurations for s in a["stages"].values())


def test_every_operator_has_a_box_that_links_to_its_row(report_of_two: Report, elements: Elements) -> None:
    boxes = [attributes for attributes in elements.of("a") if (attributes.get("class") or "").startswith("op ")]
    single = sum(
        sum(o["block"] == block for o in stage["operators"]) == 1
        for answer in report_of_two.configurations
        for stage in answer["stages"].values()
        for block in {o["block"] for o in stage["operators"]}
    )
    rows = [attributes for attributes in elements.of("tr") if (attributes.get("id") or "").startswith("op")]
    assert len(boxes) == len(rows) - single
    assert all("-bound" in (attributes["aria-label"] or "") for attributes in boxes)


def figures(html: str) -> dict[str, dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html, flags=re.DOTALL)
    assert found is not None
    return {figure["key"]: figure for figure in json.loads(found[1])}


def test_plotly_accepts_every_figure(html: str) -> None:
    """Names and values follow its schema; colours of the style sheet are replaced by one colour."""
    import plotly.graph_objects as go

    for figure in figures(html).values():
        plain = json.loads(re.sub(r'"--[a-z0-9-]+"', '"#123456"', json.dumps(figure)))
        go.Figure(data=plain["data"], layout=plain["layout"])


def test_every_colour_of_a_figure_is_in_the_style_sheet(html: str) -> None:
    css = (ROOT / "reports" / "html" / "templates" / "report.css").read_text(encoding="utf-8")
    used = set(re.findall(r'"(--[a-z0-9-]+)"', json.dumps(figures(html))))
    for colour in used - {"--link"}:
        assert css.count(f"{colour}:") >= 2, colour  # light and dark


def test_a_roofline_marker_is_at_its_operators_intensity_and_rate(report_of_two: Report, html: str) -> None:
    trace = next(trace for trace in figures(html)["roofline"]["data"] if trace.get("name") == "first, prefill")
    at = next(at for at, text in enumerate(trace["hovertext"]) if text.startswith("<b>q_proj</b>"))
    operators = report_of_two.configurations[0]["stages"]["prefill"]["operators"]
    q_proj = next(operator for operator in operators if operator["name"] == "q_proj")
    assert trace["x"][at] == q_proj["arithmetic_intensity"]
    assert trace["y"][at] == pytest.approx(q_proj["flops"] / q_proj["time_s"] / 1e12, rel=1e-12)
    for message in ("34.4 GFLOP", "50.3 MB", "2 · tokens · inputs · outputs", "max(compute 34.7 µs"):
        assert message in trace["hovertext"][at], message


def test_curves_of_bounds_say_so_on_their_axis(html: str) -> None:
    labels = {
        name: chart["layout"]["yaxis"]["title"]["text"] for name, chart in figures(html).items() if "curve" in name
    }
    assert labels["curve-ttft_s"] == "Ideal TTFT (ms)"
    assert labels["curve-output_tokens_per_s"] == "Ideal tokens/s"
    assert labels["curve-total_bytes"] == "Memory (GiB)"


def test_the_page_carries_all_points(report_of_two: Report, html: str) -> None:
    packed = re.search(r'<script type="text/plain" id="points-csv">(.*?)</script>', html, flags=re.DOTALL)
    assert packed is not None
    rows = list(csv.reader(gzip.decompress(base64.b64decode(packed[1])).decode().splitlines()))
    assert len(rows) == 1 + len(report_of_two.points["batch_size"])


def test_every_figure_of_a_chip_has_its_source(report_of_two: Report, html: str) -> None:
    for answer in report_of_two.configurations:
        for figure in answer["provenance"]["figures"].values():
            assert figure["source"].replace("&", "&amp;") in html


HOSTILE = "</script><img src=x onerror=alert(1)>\"'{{7*7}}<b>"


def test_a_hostile_name_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "=cmd()&<svg onload=alert(1)>"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(published_config("llama-2-7b")), encoding="utf-8")
    named = report(
        **{HOSTILE: {"model": str(folder), "hardware": "a6000"}, "=1+1": {"model": str(folder), "hardware": "a100"}}
    )
    text = page.text(named)
    elements = parsed(text)
    assert not elements.of("img")
    assert not elements.of("b")
    assert not [1 for _, attributes in elements.found for name in attributes if name.startswith("on")]
    assert len(elements.of("script")) == 4
    assert "{{7*7}}" in text
    for trace in figures(text)["roofline"]["data"]:
        assert "<img" not in json.dumps(trace)


def test_only_web_addresses_become_links() -> None:
    assert provenance.link("see https://a.b/c?d=1&e, or <x>") == (
        'see <a href="https://a.b/c?d=1&amp;e" rel="noreferrer">https://a.b/c?d=1&amp;e</a>, or &lt;x&gt;'
    )
    assert "<a" not in provenance.link("javascript:alert(1)")


KINDS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-2-7b", "hardware": "a6000"},
    "experts": {"model": "mixtral-8x7b", "hardware": "h200", "tensor_parallel_size": 2},
    "latent": {"model": "deepseek-v3", "hardware": "h200", "tensor_parallel_size": 8, "efficiency": "calibrated"},
    "hybrid": {"model": "qwen3-next-80b-a3b", "hardware": "h200", "tensor_parallel_size": 2},
    "engine": {**LLAMA, "efficiency": "calibrated", "engine": "vllm", "batching": "continuous"},
    "speculative": {**LLAMA, "speculative": "draft=llama-3.2-1b,tokens=4,acceptance=0.8"},
    "offloaded": {"model": "llama-2-70b", "hardware": "rtx-4090", "offload": "weights=0.9"},
    "pipeline": {"model": "llama-2-70b", "hardware": "a100-80gb-sxm", "pipeline_parallel_size": 4},
    "eager": {**LLAMA, "attention": "eager", "fusion": "all"},
    "one token": {**LLAMA, "output_len": 1},
    "unknown vector rate": {"model": "llama-2-7b", "hardware": "gaudi-3"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_result_renders(kind: str) -> None:
    made = report(**{kind: KINDS[kind]})
    text = page.text(made)
    parsed(text)
    assert len(text.encode()) < MAX_BYTES
    assert "nan" not in re.sub(r'id="plotly">.*?</script>', "", text, flags=re.DOTALL).lower().split()
    assert markdown.text(report_page.page(made)).startswith("## ")
    assert all(TABLES[name](made) for name in TABLES)
    json.dumps(made.to_dict(), allow_nan=False)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2: (lighter + 0.05) / (darker + 0.05) of relative luminances."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255.0 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def themes() -> dict[str, dict[str, str]]:
    css = (ROOT / "reports" / "html" / "templates" / "report.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    return {
        name: dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", text))
        for name, text in (("light", light), ("dark", dark))
    }


def test_contrast_follows_wcag() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_lines_have_enough_contrast(theme: str) -> None:
    """AA: 4.5 for text, 3 for graphical elements."""
    colours = themes()[theme]
    tints = [name for name in colours if name.endswith("-tint")]
    for words in ("ink", "soft", "link"):
        for ground in ("paper", "raised"):
            assert contrast(colours[words], colours[ground]) >= 4.5, (words, ground)
    assert contrast(colours["alert-ink"], colours["alert"]) >= 4.5
    for tint in tints:
        assert contrast(colours["ink"], colours[tint]) >= 4.5, tint
        assert contrast(colours[tint.removesuffix("-tint")], colours["paper"]) >= 3.0, tint
        assert contrast(colours["on-bound"], colours[tint.removesuffix("-tint")]) >= 4.5, tint
    for at in range(7):
        assert contrast(colours[f"series-{at}"], colours["paper"]) >= 3.0, at


def test_both_themes_define_the_same_colours() -> None:
    assert themes()["light"].keys() == themes()["dark"].keys()


def operator(name: str, inputs: list[str], outputs: list[str] | None = None) -> dict[str, Any]:
    return {"name": name, "inputs": inputs, "outputs": outputs or [name]}


def test_edges_go_from_writers_to_readers() -> None:
    listed = [
        operator("norm", ["hidden"]),
        operator("v", ["norm"], ["cache"]),
        operator("rope", ["norm"], ["q", "cache"]),
    ]
    found = layers.dataflow([*listed, operator("attention", ["q", "cache"])])
    assert found == [
        *(("[hidden]", "norm"), ("norm", "v"), ("norm", "rope"), ("rope", "attention"), ("v", "attention"))
    ]


def test_arrows_point_down_and_boxes_do_not_overlap() -> None:
    for model in ("llama-3.1-8b", "deepseek-v3", "qwen3-next-80b-a3b", "gemma-3-12b"):
        stage = lv.analyze(model, "h200").to_dict()["stages"]["prefill"]
        for block in {o["block"] for o in stage["operators"]}:
            drawn = layers.drawing([o for o in stage["operators"] if o["block"] == block])
            boxes = {box.name: box for box in drawn.boxes}
            for source, target, _ in drawn.paths:
                assert boxes[source].y < boxes[target].y, (model, source, target)
            rows = {box.y for box in drawn.boxes}
            for y in rows:
                across = sorted(box.x for box in drawn.boxes if box.y == y)
                assert all(np.diff(across) >= layers.WIDTH + layers.GAP - 1e-6), (model, block)
                assert across[0] >= layers.WIDTH / 2.0
                assert across[-1] <= drawn.width - layers.WIDTH / 2.0


def test_unconnected_operators_are_drawn() -> None:
    drawn = layers.drawing([operator("load", []), operator("norm", ["hidden"])])
    assert {box.name for box in drawn.boxes} == {"load", "norm", "[hidden]"}


def test_thinning_keeps_endpoints_and_extremes() -> None:
    values = np.sin(np.linspace(0.0, 20.0, 10_001))
    values[5_000] = 9.0
    kept = curves.thinned(values, 200)
    assert len(kept) <= 200
    assert {0, 5_000, 10_000} <= set(kept)
    assert list(kept) == sorted(kept)
    assert list(curves.thinned(values[:50], 200)) == list(range(50))


@pytest.fixture(scope="module")
def report_of_many() -> Report:
    """10,000 points of one configuration."""
    one = api.configuration("llama-2-7b", "a6000", efficiency="ideal")
    grid = Grid(batch_sizes=np.arange(1.0, 10_001.0), input_lens=np.array([64.0]), output_lens=np.array([2.0]))
    columns = one.answer(grid.points(0, len(grid))).columns()
    points = {"configuration": ["one"] * len(grid)} | {
        name: np.asarray(found).tolist() for name, found in columns.items()
    }
    return Report(results={"one": one.answer(api.request(1, 64, 2))}, points=points)


def test_ten_thousand_points_are_thinned_with_a_note(report_of_many: Report) -> None:
    text = page.text(report_of_many)
    drawn = figures(text)
    for metric in curves.DRAWN:
        assert sum(len(trace["x"]) for trace in drawn[f"curve-{metric}"]["data"]) <= 2 * curves.MAX_POINTS + 2
    assert "The download and other formats contain all 10,000 points." in text
    assert len(text.encode()) < MAX_BYTES


def test_ten_thousand_points_are_written_to_csv_completely(report_of_many: Report) -> None:
    assert len(TABLES["points"](report_of_many)) == 10_000
    assert len(report_of_many.to_dict()["points"]) == 10_000


def test_a_metric_that_no_point_has_is_not_drawn() -> None:
    """A single output token has no TPOT."""
    drawn = figures(page.text(report(single={**LLAMA, "output_len": 1})))
    assert "curve-ttft_s" in drawn
    assert "curve-tpot_s" not in drawn


def test_curves_of_twelve_configurations_are_distinguishable(report_of_two: Report) -> None:
    kept = [(str(at), at, np.array([0])) for at in range(12)]
    assert len({(series(at), dash(at)) for at in curves._numbers(kept, 12)}) == 12
    several = [(f"{at} {size}", at, np.array([0])) for at in range(3) for size in range(4)]
    assert len({(series(at), dash(at)) for at in curves._numbers(several, 3)}) == 12


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("time_s", "time (s)"),
        ("prefill_traffic_bytes", "prefill traffic (byte)"),
        ("output_tokens_per_s", "output tokens per second (tokens/s)"),
        ("bandwidth_bytes_per_s", "bandwidth (byte/s)"),
        ("arithmetic_intensity", "arithmetic intensity (FLOP/byte)"),
        ("time_by_resource_s.memory", "time by resource memory (s)"),
        ("flops", "flops (FLOP)"),
        ("hardware", "hardware"),
        ("decode_bound", "decode bound"),
        ("fits", "fits"),
        ("layers", "layers"),
    ],
)
def test_units_are_in_headings(name: str, message: str) -> None:
    assert fmt.heading(name) == message


def test_every_kind_of_operator_has_a_formula() -> None:
    from llmviewer.core.kinds import Kind

    assert set(bottleneck.FLOPS) == {kind.value for kind in Kind}


def test_an_excel_file_has_a_sheet_a_table_and_no_formulas(tmp_path: Path, report_of_two: Report) -> None:
    from openpyxl import load_workbook

    path = tmp_path / "r.xlsx"
    tables.write_excel(
        {
            "points": TABLES["points"](report_of_two),
            "said": [{"text": "=1+1", "time_s": 2.5}, {"text": "\x07x", "time_s": None}],
        },
        path,
    )
    book = load_workbook(path)
    assert book.sheetnames == ["points", "said"]
    assert [cell.value for cell in book["said"][1]] == ["text", "time (s)"]
    assert book["said"]["A2"].data_type == "s"
    assert book["said"]["A2"].value == "=1+1"
    assert book["said"]["A3"].value == "?x"
    assert book["points"].max_row == 1 + len(report_of_two.points["batch_size"])


COMMAND = "report llama-2-7b --hardware a6000,a100 --efficiency ideal --batch-size 1,4".split()


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("r.html", b"<!DOCTYPE"),
        ("r.md", b"## llama"),
        ("r.csv", b"configuration,"),
        ("r.json", b"{"),
        ("r.xlsx", b"PK"),
    ],
)
def test_the_suffix_sets_the_format(tmp_path: Path, name: str, begins: bytes) -> None:
    assert main([*COMMAND, "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().startswith(begins)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_text_formats_are_printed_and_csv_has_the_requested_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--format", "csv", "--table", "operators"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {row["stage"] for row in rows} == {"prefill", "decode"}
    assert {row["configuration"] for row in rows} == {"a6000", "a100"}


def test_a_csv_table_has_the_columns_of_all_its_rows() -> None:
    assert csv_text([{"a": 1}, {"a": 2, "b": {"low": 3}}]) == "a,b.low\n1,\n2,3\n"


def test_json_has_every_analysis_and_a_row_per_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "llmviewer.report/1"
    assert [one["configuration"] for one in found["configurations"]] == ["a6000", "a100"]
    assert [(row["configuration"], row["batch_size"]) for row in found["points"]] == [
        *(("a6000", 1), ("a6000", 4), ("a100", 1), ("a100", 4))
    ]


def test_a_configuration_that_does_not_fit_is_written_with_status_1(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    words = ["report", "llama-2-70b", "--hardware", "a6000", "--efficiency", "ideal", "-o", str(path)]
    assert main(words) == 1
    assert "Does not fit:" in path.read_text(encoding="utf-8")
    assert main([*words, "--no-fit-check"]) == 0


def test_a_report_with_status_1_says_why_and_keeps_the_file_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """138 GB of weights in 16 bit, on a card of 48 GiB of which 90 % are used."""
    path = tmp_path / "r.html"
    path.write_text("before", encoding="utf-8")
    words = ["report", "llama-2-70b", "--hardware", "a6000", "--efficiency", "ideal", "-o", str(path)]
    assert main(words) == 1
    told = capsys.readouterr().err
    assert "llama-2-70b on a6000 does not fit: 1" in told and "stays as it was: --no-fit-check" in told
    assert path.read_text(encoding="utf-8") == "before"
    assert main([*words, "--no-fit-check"]) == 0
    assert path.read_text(encoding="utf-8") != "before" and capsys.readouterr().err == f"wrote {path}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "r.pdf"], "allowed: a name that ends in .html"),
        (["--format", "pdf"], "pdf"),
        (["--table", "points2", "--format", "csv"], "points"),
        (["-o", "nowhere/r.html"], "cannot write"),
        (["--batch-size", "4:1", "-o", "r.html"], "ends before it begins"),
        (["--batch-size", ",", "-o", "r.html"], "between the commas"),
        (["--batch-size", "1:300000", "-o", "r.html"], "at most 200,000"),
        (["--dtype", "bf16,fp16", "--quantization", "none,w4a16,w8a8,w4a4", "-o", "r.html"], "at most 12"),
    ],
)
def test_bad_input_is_a_one_line_error_and_writes_nothing(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "llama-2-7b", "--hardware", "a6000,a100", *words]) == 2
    answer = capsys.readouterr()
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert answer.out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_heading_of_one_configuration_lists_devices_and_techniques() -> None:
    """Results of four chips must not look like those of one."""
    found = page.text(report(a={"model": "llama-2-7b", "hardware": "h100-sxm", "tensor_parallel_size": "4"}))
    lead = re.search(r'<p class="lead">(.*?)</p>', found)
    assert lead is not None
    assert "; 4 devices; passes: flash_attention, shard(tensor=4)." in lead[1]


def test_numbers_are_explained_down_to_their_sources(html: str) -> None:
    pane = html.split('<section id="explanations"')[1].partition("</section>")[0]
    assert pane.count("<details>") > 20
    for text in ("tpot_s", "memory_s", "bytes / ", "total_bytes", "sizes of the config"):
        assert text in pane
