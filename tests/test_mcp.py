"""Tools for assistants, through the protocol's own client: what is listed, answered and refused."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.questions import QUESTIONS
from llmviewer.server import arguments, assistants, calls, compact, tokens, tools
from llmviewer.server.tools import TOOLS
from tests.test_sizing import by_hand

pytest.importorskip("mcp")

ROOT = Path(__file__).resolve().parent.parent
RUN = {"model": "llama-3.2-1b", "hardware": "a100-80gb-sxm"}
LOAD = {"request_rate": 2, "requests": 50, "input_len": 64, "output_len": 8}
#: Tool -> arguments that have an answer.
GIVEN: dict[str, dict[str, Any]] = {
    "analyze": {**RUN, "batch_size": 8, "engine": "vllm"},
    "compare": {**RUN, "quantization": ["none", "w4a16"]},
    "size": {**RUN, **LOAD, "ttft": "1s"},
    "explain": {"number": "tpot_s", **RUN},
    "why": {"a": "llama-3.2-1b --hardware a100", "b": {**RUN, "quantization": "w4a16"}},
    "diagnose": {"measured": str(ROOT / "docs/profile.json.gz"), "model": "llama-3.1-8b", "hardware": "h100"},
    "sweep": {**RUN, "batch_size": [1, 8], "quantization": ["none", "w4a16"]},
    "crossover": {**RUN, "quantization": ["none", "w4a16"], "batch_size": [1, 8], "context": "512:2048:*2"},
    "advise": {**RUN, "tpot": "20ms"},
    "simulate": {**RUN, **LOAD},
    "require": {**RUN, "vary": "bandwidth", "tpot": "10ms"},
    "fit": {"hardware": "a100-80gb-sxm", "models": ["llama-3.2-1b", "llama-3.1-70b"]},
    "elasticity": RUN,
    "train": {**RUN, "batch_size": 2},
    "check": {"contract": [{"llama-3.2-1b on a100-80gb-sxm": "tpot_s <= 30 ms"}]},
    "list_models": {"search": "llama-3.2"},
    "list_hardware": {},
}
#: Tools about runs, whose times rest on something.
OF_RUNS = sorted({*GIVEN} - {"check", "compare", "crossover", "list_models", "list_hardware"})
Talk = Callable[[Callable[[Any], Awaitable[Any]]], Any]


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Talk:
    """Talks to a server that the client starts, in an empty folder."""
    from mcp import ClientSession, StdioServerParameters, stdio_client

    folder = tmp_path_factory.mktemp("client")
    started = StdioServerParameters(
        command=sys.executable, args=["-m", "llmviewer", "mcp"], env={"PYTHONPATH": str(ROOT)}, cwd=folder
    )

    def talk(said: Callable[[Any], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with stdio_client(started) as streams, ClientSession(*streams) as session:
                await session.initialize()
                return await said(session)

        return asyncio.run(run())

    return talk


@pytest.fixture(scope="module")
def answers(talk: Talk) -> dict[str, Any]:
    """The answer of every tool, in one conversation."""

    async def said(session: Any) -> dict[str, Any]:
        return {name: await session.call_tool(name, given) for name, given in GIVEN.items()}

    found: dict[str, Any] = talk(said)
    return found


def digits(value: float) -> float:
    """A value as an assistant reads it: five significant digits."""
    return float(f"{value:.5g}")


def found_in(answer: Any) -> dict[str, Any]:
    """The structured content of an answer, which its text repeats for clients that read text alone."""
    assert not answer.is_error, answer.content[0].text
    assert json.loads(answer.content[0].text) == answer.structured_content
    content: dict[str, Any] = answer.structured_content
    return content


def test_every_tool_is_listed_with_the_arguments_of_its_call(talk: Talk) -> None:
    async def said(session: Any) -> Any:
        return (await session.list_tools()).tools

    listed = {one.name: one for one in talk(said)}
    assert set(listed) == set(TOOLS) == set(GIVEN) == {*QUESTIONS, "list_models", "list_hardware"}
    for name, one in listed.items():
        jsonschema.Draft202012Validator.check_schema(one.input_schema)
        jsonschema.validate(GIVEN[name], one.input_schema)
        assert one.description and one.annotations.read_only_hint
        if not name.startswith("list_"):
            assert one.input_schema == arguments.schema(name)


@pytest.mark.parametrize("name", GIVEN)
def test_an_answer_has_at_most_2000_tokens(name: str, answers: dict[str, Any]) -> None:
    assert tokens.tokens(found_in(answers[name])) <= tokens.MOST


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("compare", {**RUN, "hardware": ["h100-sxm", "l40s", "h200"], "quantization": ["none", "fp8", "w4a16"]}),
        ("sweep", {**RUN, "batch_size": "1:128"}),
        ("list_models", {}),
        ("explain", {"number": "ttft_s", "model": "deepseek-v3", "hardware": "h200", "tensor_parallel_size": 8}),
    ],
)
def test_a_long_answer_is_cut_to_2000_tokens(name: str, given: dict[str, Any]) -> None:
    found = tokens.fitted(TOOLS[name].called(given))
    assert tokens.MOST / 2 < tokens.tokens(found) <= tokens.MOST
    assert found.get("sources") or name == "list_models"


def test_what_is_cut_is_counted_where_it_stood() -> None:
    """Numbers in pieces of three digits, words in pieces of six letters, signs alone."""
    assert tokens.tokens({"values": [1234.5]}) == 6 + 4 + 2  # {"values": [ and 123 4 . 5 and ]}
    inner = [{"name": "x" * 60, "values": list(range(100, 164))} for _ in range(4)]
    found = tokens.fitted({"rows": inner, "value": 0.123456789}, 300)
    assert found["value"] == 0.12346 and tokens.tokens(found) <= 300
    assert len(found["rows"]) == 4  # lists within rows are cut first
    assert all(len(one["values"]) + one["values_left_out"] == 64 for one in found["rows"])
    rows = tokens.fitted({"rows": inner, "value": 1.0}, 60)
    assert len(rows["rows"]) + rows["rows_left_out"] == 4


def test_the_resource_of_an_answer_is_its_whole_document(talk: Talk) -> None:
    asked = {"analyze": GIVEN["analyze"], "sweep": GIVEN["sweep"], "list_models": {}}

    async def said(session: Any) -> Any:
        found = [(await session.call_tool(name, given)).structured_content["document"] for name, given in asked.items()]
        texts = [(await session.read_resource(uri)).contents[0].text for uri in found]
        listed = [str(one.uri) for one in (await session.list_resources()).resources]
        with pytest.raises(Exception, match="did you mean 'llmviewer://answers/3'"):
            await session.read_resource("llmviewer://answers/33")
        return found, texts, listed

    found, texts, listed = talk(said)
    assert found == listed == [f"llmviewer://answers/{number}" for number in (1, 2, 3)]
    assert json.loads(texts[0]) == json.loads(calls.answer("analyze", GIVEN["analyze"]))
    assert json.loads(texts[1]) == json.loads(calls.answer("sweep", GIVEN["sweep"]))
    assert len(json.loads(texts[2])) == len(lv.list_models())


def test_two_calls_at_once_get_two_addresses() -> None:
    """Neither call ends before the other has begun."""
    both = threading.Barrier(2, timeout=60)

    def answer(given: Any) -> dict[str, Any]:
        both.wait()
        return {"said": given["say"]}

    tool = tools.Tool(
        name="say",
        title="",
        description="",
        schema=dict,
        answer=answer,
        document=lambda given: f"all of {given['say']}",
    )
    documents: dict[str, Callable[[], str]] = {}
    with ThreadPoolExecutor(2) as pool:
        called = pool.map(lambda word: assistants._called({"say": tool}, "say", {"say": word}, documents), ("a", "b"))
        found = [one.structured_content for one in called]
    assert [one["said"] for one in found] == ["a", "b"]
    assert [documents[one["document"]]() for one in found] == ["all of a", "all of b"]
    assert sorted(documents) == ["llmviewer://answers/1", "llmviewer://answers/2"]


def test_only_the_tools_that_are_asked_for_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(tools.chosen("size,analyze")) == ["analyze", "size"]
    assert main(["mcp", "--tools", "analyse"]) == 2
    assert "did you mean 'analyze'?" in capsys.readouterr().err


def test_an_analysis_has_values_intervals_basis_and_sources(answers: dict[str, Any]) -> None:
    found = found_in(answers["analyze"])
    expected = lv.analyze("llama-3.2-1b", "a100-80gb-sxm", batch_size=8, engine="vllm").to_dict()
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        metric = found["metrics"][name]
        assert metric["value"] == digits(expected["metrics"][name]) and metric["unit"] == "s"
        assert metric["interval80"] == [*map(digits, expected["metrics"]["intervals"][name]["80"])]
    assert found["fits"] is True
    assert found["basis"]["kind"] == "calibrated" and found["basis"]["engine"] == "vllm"
    assert found["basis"]["times"] and "measured" in found["basis"]["kernels_by_basis"]
    assert any(source.startswith("https://huggingface.co/") for source in found["sources"])
    assert any("calibrate/profiles" in source for source in found["sources"])


@pytest.mark.parametrize("name", ["output_tokens_per_s", "output_tokens_per_s_per_user"])
def test_the_interval_of_a_rate_is_that_of_e2e_inverted(name: str, answers: dict[str, Any]) -> None:
    for found in (found_in(answers["analyze"]), *found_in(answers["compare"])["configurations"]):
        rate, time = found["metrics"][name], found["metrics"]["e2e_s"]
        users = found.get("workload", {"batch_size": 1})["batch_size"] if name == "output_tokens_per_s" else 1
        assert rate["value"] * time["value"] == pytest.approx(128 * users, rel=1e-4)
        low, high = (rate["value"] * time["value"] / bound for bound in reversed(time["interval80"]))
        assert rate["interval80"] == pytest.approx([low, high], rel=1e-4)


@pytest.mark.parametrize("name", OF_RUNS)
def test_every_answer_has_its_basis_and_sources(name: str, answers: dict[str, Any]) -> None:
    found = found_in(answers[name])
    sides = found["basis"].values() if name == "why" else [found["basis"]]
    for basis in sides:
        assert basis["kind"] == "calibrated" and "measured" in basis["times"]
        assert "measured" in basis["kernels_by_basis"]
    assert any(source.startswith("https://") for source in found["sources"])


def test_a_basis_names_the_engine_of_its_times(answers: dict[str, Any]) -> None:
    assert found_in(answers["size"])["basis"]["engine"] == "vllm"  # the default of a server
    assert found_in(answers["explain"])["basis"]["engine"] == "kernels"
    assert found_in(answers["diagnose"])["basis"]["engine"] == found_in(answers["diagnose"])["engine"] == "vllm"


def test_a_difference_rests_on_both_runs() -> None:
    found = TOOLS["why"].called({"a": {**RUN, "efficiency": "ideal"}, "b": RUN, "metric": "output_tokens_per_s"})
    assert (found["basis"]["a"]["kind"], found["basis"]["b"]["kind"]) == ("ideal", "calibrated")
    assert found["interval80"]["a"] is None and found["interval80"]["b"] is not None
    assert found["unit"] == "tokens/s"


@pytest.mark.parametrize(
    "number", ["ttft_s", "metrics.e2e_s", "output_tokens_per_s", "stages.prefill.time_s", "operators.o_proj.time_s"]
)
def test_an_explained_time_has_its_interval(number: str) -> None:
    found = TOOLS["explain"].called({"number": number, **RUN})
    low, high = found["interval80"]
    assert 0.0 < low < found["value"] < high < 2.0 * found["value"]


def test_an_explained_interval_is_that_of_the_analysis() -> None:
    stages = lv.analyze("llama-3.2-1b", "a100-80gb-sxm").to_dict()["stages"]
    operator = next(one for one in stages["prefill"]["operators"] if one["name"] == "o_proj")
    name = "stages.prefill.operators.o_proj.time_s"
    assert TOOLS["explain"].called({"number": name, **RUN})["interval80"] == operator["time_interval_s"]["80"]
    of_block = name.replace("operators.", f"operators.{operator['block']}.")
    assert TOOLS["explain"].called({"number": of_block, **RUN})["interval80"] == operator["time_interval_s"]["80"]
    assert TOOLS["explain"].called({"number": "operators.o_proj.traffic_bytes", **RUN})["interval80"] is None
    assert TOOLS["explain"].called({"number": "memory.total_bytes", **RUN})["interval80"] is None


def test_an_explained_operator_of_several_passes_lies_in_its_interval() -> None:
    number = "stages.prefill.operators.o_proj.time_s"
    found = TOOLS["explain"].called({"number": number, **RUN, "max_num_batched_tokens": 256})
    low, high = found["interval80"]
    assert low < found["value"] < high


def test_latencies_of_a_sizing_have_intervals(answers: dict[str, Any]) -> None:
    best = found_in(answers["size"])["best"]
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        low, high = best["interval80"][name]
        assert low < best[name] < high
    ideal = TOOLS["size"].called({**RUN, **LOAD, "ttft": "1s", "efficiency": "ideal"})
    assert ideal["best"]["interval80"] is None and ideal["basis"]["kind"] == "ideal"


def test_the_unit_of_a_metric_is_in_its_name() -> None:
    """A name without one of these is a share."""
    units = {"_per_s": "tokens/s", "_per_s_per_user": "tokens/s per user", "_per_s_per_device": "tokens/s per device"}
    units |= {"_s": "s", "joules_per_output_token": "J", "watts": "W", "tokens_per_usd": "token", "_hour": "$/h"}
    found = TOOLS["analyze"].called({**RUN, "batch_size": 8})["metrics"]
    for name, one in found.items():
        known = [unit for end, unit in units.items() if name.endswith(end)]
        assert one["unit"] == (known[0] if known else "$" if name.startswith("usd") else "fraction"), name
    assert {"ttft_s", "output_tokens_per_s", "decode_mbu"} <= set(found)


def test_an_analysis_in_short_has_its_fit_bounds_warnings_and_served_times() -> None:
    """A prompt of 2048 tokens is bound by compute and a single answer by memory; an engine adds its own time."""
    found, known = TOOLS["analyze"].called({**RUN, "input_len": 2048}), lv.analyze(**RUN, input_len=2048).to_dict()
    assert found["fits"] is True and found["bound"] == {"prefill": "compute", "decode": "memory"}
    served = found["served"]["metrics"]["tpot_s"]["value"]
    assert served == known["served"]["tpot_s"] > found["metrics"]["tpot_s"]["value"] == known["metrics"]["tpot_s"]
    large = TOOLS["analyze"].called({"model": "llama-3.1-70b", "hardware": "l40s", "input_len": 200_000})
    assert large["fits"] is False and any("131072" in one for one in large["warnings"])


def test_a_configuration_of_a_sizing_keeps_the_intervals_of_80_percent() -> None:
    """0.2 s x 0.9 and x 1.2; the last latency has none, since its errors are not known."""
    one = by_hand(ratios={"ttft_s": {"80": (0.9, 1.2), "95": (0.8, 1.5)}}).to_dict()
    two = by_hand(hardware="l40s").to_dict()
    answer = {"configurations": [one, two], "rejected": [], "feasible": True, "request": {}, "searched": 1, "notes": []}
    found = compact.sizing(SimpleNamespace(best=None, to_dict=lambda: answer), {})  # type: ignore[arg-type]
    assert found["best"]["interval80"] == {"ttft_s": pytest.approx([0.18, 0.24])}
    assert (found["best"]["hardware"], [other["hardware"] for other in found["others"]]) == ("h100", ["l40s"])


def test_rows_of_a_sweep_that_are_left_out_are_counted() -> None:
    found = TOOLS["sweep"].called({**RUN, "batch_size": "1:128"})
    assert len(found["rows"]) == 100 and found["rows_left_out"] == 28
    assert [row[found["columns"].index("batch_size")] for row in found["rows"]] == [*range(1, 101)]
    assert found["of_all"]["model"] == "llama-3.2-1b" and "model" not in found["columns"]


def test_the_largest_parts_of_a_sum_are_shown_first() -> None:
    """Twelve terms of 1 to 12: the eight from 12 down to 5 are shown."""
    parts = [{"name": str(value), "value": value} for value in (3, 12, 1, 7, 10, 2, 5, 11, 4, 9, 6, 8)]
    run = lv.analyze(**RUN)
    tree = {"name": "sum", "value": 78, "unit": "", "children": parts}
    asked: Any = SimpleNamespace(result=run, metric="metrics.none", warnings=(), to_dict=lambda: tree)
    found = compact.explanation(asked)
    assert [part["value"] for part in found["parts"]] == [12, 11, 10, 9, 8, 7, 6, 5] and found["parts_left_out"] == 4


def test_a_size_is_read_as_its_description_says() -> None:
    described = arguments.schema("analyze")["properties"]["input_len"]
    assert "4k" in described["description"] and described["type"] == ["integer", "string"]
    assert TOOLS["analyze"].called({**RUN, "input_len": "4k"})["workload"]["input_len"] == 4096


def test_ideal_times_say_so() -> None:
    found = TOOLS["analyze"].called({**RUN, "efficiency": "ideal"})
    assert found["basis"]["kind"] == "ideal" and found["metrics"]["tpot_s"]["interval80"] is None


def test_a_comparison_has_ratios_to_the_first(answers: dict[str, Any]) -> None:
    first, second = found_in(answers["compare"])["configurations"]
    ratio = second["metrics"]["tpot_s"]["value"] / first["metrics"]["tpot_s"]["value"]
    assert first["ratio_to_first"]["tpot_s"] == 1.0
    assert second["ratio_to_first"]["tpot_s"] == pytest.approx(ratio, rel=1e-4) != pytest.approx(1.0, rel=1e-4)
    assert (first["techniques"]["quantization"], second["techniques"]["quantization"]) == ("none", "w4a16")


def test_a_sizing_has_the_best_configuration_with_its_price_and_command(answers: dict[str, Any]) -> None:
    found = found_in(answers["size"])
    assert found["feasible"] and found["best"]["hardware"] == "a100-80gb-sxm"
    assert 0.0 < found["best"]["probability"] <= 1.0 and found["best"]["usd_per_hour"] > 0.0
    assert found["best"]["command"].startswith("llmviewer simulate ") and found["sources"]


def test_where_nothing_fits_the_gate_is_named() -> None:
    found = TOOLS["size"].called({"model": "llama-3.1-70b", "hardware": "l4", **LOAD, "ttft": "1s", "max_gpus": 2})
    assert not found["feasible"] and found["best"] is None
    assert [one["hardware"] for one in found["rejected"]] == ["l4"]
    assert found["reason"].startswith("nothing fits: l4: KV cache: ")


def test_an_explanation_is_a_tree_with_sources(answers: dict[str, Any]) -> None:
    found = found_in(answers["explain"])
    assert (
        found["value"] == digits(lv.explain("tpot_s", "llama-3.2-1b", "a100-80gb-sxm").value) and found["unit"] == "s"
    )
    assert 1 < len(found["parts"]) <= 8 and all(part["value"] <= found["value"] for part in found["parts"])
    assert found["sources"]


def test_a_difference_adds_up(answers: dict[str, Any]) -> None:
    found = found_in(answers["why"])
    assert sum(one["amount"] for one in found["factors"]) == pytest.approx(found["difference"], rel=1e-4)
    assert found["interval80"]["a"] and 0.5 <= found["probability"] <= 1.0


def test_a_diagnosis_reads_the_file_of_its_user(answers: dict[str, Any]) -> None:
    found = found_in(answers["diagnose"])
    assert found["measured_s"] > found["predicted_s"] and found["suspects"][0]["try"]


def test_lists_are_searched(answers: dict[str, Any]) -> None:
    assert {one["name"] for one in found_in(answers["list_models"])["models"]} == {"llama-3.2-1b", "llama-3.2-3b"}
    assert len(found_in(answers["list_hardware"])["hardware"]) == len(lv.list_hardware())
    found = TOOLS["list_hardware"].called({"search": "GH200"})["hardware"]
    assert found and all(one["name"].startswith("gh200") for one in found)


@pytest.mark.parametrize(
    ("name", "given", "line"),
    [
        ("analyze", {**RUN, "hardware": "h1000"}, "unknown chip 'h1000'; did you mean 'h100'?"),
        ("analyze", {**RUN, "quantisation": "fp8"}, "unknown option 'quantisation'; did you mean 'quantization'?"),
        ("analyze", {}, "analyze needs model and hardware"),
        ("compare", {**RUN, "batch_size": [1, 2]}, "batch_size is a list"),
        ("compare", {**RUN, "quantization": ["none"] * 13}, "13 configurations; allowed here: at most 12"),
        ("size", {**RUN}, "nothing says when requests arrive"),
        ("explain", {"number": "speed", **RUN}, "unknown number 'speed'"),
        ("diagnose", {"measured": "none.json", **RUN}, "cannot read 'none.json'"),
        ("list_models", {"name": "x"}, "unknown option 'name'; allowed: search"),
        ("analyse", RUN, "did you mean 'analyze'?"),
    ],
)
def test_a_wrong_call_is_an_error_with_the_line_of_the_user(
    name: str, given: dict[str, Any], line: str, talk: Talk
) -> None:
    async def said(session: Any) -> Any:
        return await session.call_tool(name, given)

    answer = talk(said)
    assert answer.is_error and line in answer.content[0].text and "\n" not in answer.content[0].text


def test_standard_output_has_nothing_but_the_protocol(tmp_path: Path) -> None:
    """A model that cannot be read prints warnings elsewhere; the process ends when its input does."""
    said = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "analyze", "arguments": {
            "model": "gpt2", "hardware": "h100"}}},
    ]  # fmt: skip
    started = subprocess.Popen(
        [sys.executable, "-m", "llmviewer", "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path,
    )  # fmt: skip
    assert started.stdin is not None and started.stdout is not None
    for one in said:
        started.stdin.write(json.dumps(one) + "\n")
    started.stdin.flush()
    lines = [json.loads(started.stdout.readline()) for _ in range(2)]
    rest = started.communicate(timeout=300)[0]
    assert [one["id"] for one in lines] == [1, 2] and all(one["jsonrpc"] == "2.0" for one in lines)
    assert "interval80" in lines[0]["result"]["instructions"] and rest == "" and started.returncode == 0


def test_the_first_answer_loads_nothing_slow(tmp_path: Path) -> None:
    """A client waits for the start of the server: seconds, if it loaded libraries of tables, plots or pages."""
    words = [sys.executable, "-X", "importtime", "-m", "llmviewer", "mcp"]
    found = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in found.stderr.splitlines()}
    assert "mcp.server.lowlevel" in loaded
    assert not loaded & {"pandas", "torch", "matplotlib", "plotly", "scipy", "pyarrow", "flask", "dash"}


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    assert main(["mcp"]) == 2
    assert "pip install 'llmviewer[mcp]'" in capsys.readouterr().err


def test_the_documentation_has_every_tool() -> None:
    page = (ROOT / "docs" / "reference" / "http_api.md").read_text(encoding="utf-8")
    for name in tools.TOOLS:
        assert f"| `{name}` |" in page
