"""The web viewer without a browser: addresses, a config.json of one's own, tabs for every kind of model, commands."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shlex
import zlib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.planning.call import chips_of, size
from llmviewer.planning.options import question
from llmviewer.planning.sizing import Sizing
from llmviewer.techniques.options import OPTIONS, WORKLOAD

pytest.importorskip("dash", reason="needs dash: pip install '.[web]'")

from llmviewer.reports import format as fmt
from llmviewer.reports.html import front
from llmviewer.reports.html.operators import HEADS
from llmviewer.reports.web.app import _answer
from llmviewer.reports.web.chosen import panel, tensor_bytes
from llmviewer.reports.web.controls import controls
from llmviewer.reports.web.downloads import FILES
from llmviewer.reports.web.equivalents import equivalents, files_of
from llmviewer.reports.web.graphs import THEMES
from llmviewer.reports.web.possible import offered
from llmviewer.reports.web.state import (
    ASKED,
    LOCAL,
    MAX_CONFIG,
    MAX_OTHERS,
    MAX_QUERY,
    SHOWN,
    State,
    packed,
    parsed,
    unpacked,
)
from llmviewer.reports.web.tabs import TABS, content, load
from llmviewer.reports.web.tabs.compare import why_of
from llmviewer.reports.web.tabs.load import _simulated as simulations
from llmviewer.reports.web.tabs.load import simulation_of
from llmviewer.reports.web.tabs.size import MAX_CHIPS, searched, sizing_of
from llmviewer.reports.web.tabs.size import _sized as sizings
from llmviewer.reports.web.tabs.verdict import changes
from llmviewer.reports.web.view import View, memory_points, points
from llmviewer.result.explanation.explain import explained
from tests.certificate.our_counts import published_config
from tests.web_pages import application

OPTION_NAMES = [name for name in OPTIONS if name not in LOCAL]
#: One model of each kind: dense, experts, latent attention, hybrid, encoder.
KINDS = ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite", "falcon-h1-3b", "bert-base")
#: Texts that an address may have for any option.
NASTY = ("-1", "0", "nan", "inf", "1e308", "9" * 400, "<script>", "../../etc/passwd", "none,none", "=,=", "\x00", "é")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).map(str.strip).filter(bool)


STATES = st.builds(
    State,
    model=TEXT,
    hardware=TEXT,
    config=st.one_of(st.just(""), TEXT),
    words=st.fixed_dictionaries({}, optional=dict.fromkeys(OPTION_NAMES, TEXT)),
    asked=st.fixed_dictionaries({}, optional=dict.fromkeys(ASKED, TEXT)),
    shown=st.fixed_dictionaries({}, optional=dict.fromkeys(SHOWN, TEXT)).map(lambda shown: {**SHOWN, **shown}),
    others=st.lists(TEXT, max_size=MAX_OTHERS).map(tuple),
)


@given(STATES)
@settings(max_examples=60)
def test_a_state_is_what_its_address_says(state: State) -> None:
    if len(state.query()) <= MAX_QUERY:
        assert parsed(f"?{state.query()}") == state


@given(st.text(max_size=300))
def test_any_text_is_an_address_or_one_line(text: str) -> None:
    try:
        state = parsed(text)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert parsed(state.query()) == state


@pytest.mark.parametrize("name", [*LOCAL, "files", "__class__", "Model"])
def test_a_name_that_is_no_option_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="the address"):
        parsed(f"{name}=1")


@pytest.mark.parametrize("text", ["x" * (MAX_QUERY + 1), "batch_size=1&" * 1000])
def test_an_address_that_is_too_long_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        parsed(text)


def test_the_longest_address_is_a_line_that_the_server_reads() -> None:
    from llmviewer.server.run import MAX_LINE

    assert len(f"GET /download/operators.csv?{'x' * MAX_QUERY} HTTP/1.1") <= MAX_LINE


def test_more_configurations_than_are_compared_are_left_out() -> None:
    assert parsed("&".join(f"with=batch_size%3D{at}" for at in range(9))).others[-1] == "batch_size=4"


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("name", [*OPTION_NAMES, "model", "hardware"])
def test_any_text_of_an_option_has_an_answer_or_one_line(name: str, text: str) -> None:
    state = State(words={name: text}) if name in OPTIONS else State(**{name: text})
    try:
        assert View(state=state).result.to_dict()
    except UserError as error:
        assert "\n" not in str(error)


def test_scripts_of_libraries_are_known_before_the_first_page() -> None:
    """A browser asks several workers at once for scripts, some of which have shown no page."""
    from flask import Flask

    from llmviewer.reports.web.app import mount

    assert {"dash", "dash_ag_grid", "dash_cytoscape"} <= set(mount(Flask("new"), tuple).registered_paths)


# a config.json of one's own


def test_a_config_of_ones_own_gives_the_numbers_of_the_catalogue() -> None:
    fields = published_config("llama-2-7b")
    state = State(config=packed(json.dumps(fields).encode()), hardware="a6000")
    assert unpacked(state.config) == fields
    assert state.config == packed(json.dumps(fields, indent=4).encode())
    own, known = View(state=parsed(state.query())).result, lv.analyze("llama-2-7b", "a6000")
    assert own.to_dict()["metrics"] == known.to_dict()["metrics"]


def test_white_space_of_a_config_takes_no_room_and_texts_keep_theirs() -> None:
    """Names of 800 modules that stay in 16 bit, as exporters of quantized checkpoints write them, one a line."""
    names = [f"model.layers.{layer}.mlp.experts.{at}.gate  proj" for layer in range(20) for at in range(40)]
    fields = {"model_type": "llama", "quantization_config": {"ignore": names, "quote": 'a " b \\'}}
    wide, narrow = (json.dumps(fields, indent=indent).encode() for indent in (8, None))
    assert len(wide) > 1.3 * len(narrow)
    assert packed(wide) == packed(narrow)
    assert unpacked(packed(wide)) == fields


@pytest.mark.parametrize(
    ("content", "said"), [(b"{}", "needs a model_type"), (b'{"a": 1}', "missing field 'model_type'")]
)
def test_a_config_without_a_model_type_is_told_what_it_needs(content: bytes, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        View(state=State(config=squeezed(content))).result  # noqa: B018 - the answer is refused
    assert "dict" not in str(refused.value)


def squeezed(content: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(content, 9)).decode("ascii")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"[1, 2]",
        b"\xff\xfe\x00",
        b"{" * 10_000,
        b"[" * 30_000 + b"]" * 30_000,
        b'{"a": ' + b"9" * 10_000 + b"}",
        b" " * (MAX_CONFIG + 1),
        b'{"model_type": "' + bytes(str(list(range(12_000))), "ascii")[:60_000] + b'"}',
    ],
    ids=["empty", "text", "list", "binary", "cut", "deep", "long number", "large", "dense"],
)
def test_a_file_that_is_no_config_is_refused(content: bytes) -> None:
    with pytest.raises(UserError) as refused:
        packed(content)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        squeezed(b"\0" * 10_000_000),
        squeezed(b" " * (MAX_CONFIG + 1)),
        squeezed(b'{"a": 1}')[:8],
        squeezed(b"[" * 30_000),
        "%%%",
        "é",
        base64.urlsafe_b64encode(b"no zlib").decode("ascii"),
    ],
    ids=["bomb", "large", "cut", "deep", "no base64", "no ascii", "no zlib"],
)
def test_a_damaged_config_of_an_address_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"config\.json|JSON"):
        unpacked(text)


HOSTILE: dict[str, Any] = {
    "hidden_size": [1e308, float("nan"), float("inf"), -4096, 0, "<script>alert(1)</script>", [], {}, None, 10**300],
    "num_hidden_layers": [-1, 0, 1e308, 10**18, float("nan"), "many"],
    "num_attention_heads": [0, -8, 1e308, float("nan")],
    "vocab_size": [-1, 1e308, float("inf")],
    "model_type": ["<script>alert(1)</script>", "", None, 7, "__import__"],
    "architectures": [["<img src=x onerror=alert(1)>"], [], None, 3],
    "intermediate_size": [float("nan"), 1e308, -1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in HOSTILE.items() for value in values])
def test_a_hostile_field_has_an_answer_or_one_line(name: str, value: Any) -> None:
    content = json.dumps({**published_config("llama-2-7b"), name: value}).encode()
    state = State(config=packed(content))
    with application().app_context():
        for tab in ("verdict", "network", "roofline", "memory"):
            try:
                view = View(state=state.showing(tab=tab))
                assert drawn(view)
            except UserError as error:
                assert "\n" not in str(error)


# tabs


def drawn(view: View) -> str:
    """The components of a tab as they are sent."""
    from dash._utils import to_json

    view.result  # noqa: B018 - refused before a tab is drawn
    return str(to_json(content(view)))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("model", KINDS)
def test_every_tab_is_drawn_for_every_kind_of_model(model: str, tab: str, theme: str) -> None:
    state = parsed(f"model={model}&tab={tab}&with=model%3D{model}%26batch_size%3D4")
    with application().app_context():
        text = drawn(View(state=state, theme=theme))
    assert len(text) > 200
    assert "NaN" not in text


@pytest.mark.parametrize("stage", ["prefill", "decode", "request", "nonsense"])
@pytest.mark.parametrize("tab", ["network", "roofline"])
def test_every_stage_is_drawn(tab: str, stage: str) -> None:
    view = View(state=parsed(f"tab={tab}&stage={stage}&colour=time&operator=nonsense&block=nonsense"))
    assert "down_proj" in drawn(view)


def test_a_kept_configuration_without_an_answer_can_be_forgotten() -> None:
    _, buttons = content(View(state=parsed("tab=compare&with=model%3Dnonsense")))
    assert "unknown model &#39;nonsense&#39;" in buttons["html"] and 'data-act="forget"' in buttons["html"]


def test_a_theme_and_a_file_share_the_reasons_of_a_comparison() -> None:
    """The split by factor takes up to seconds."""
    views = [View(state=parsed("tab=compare&with=batch_size%3D2"), theme=theme) for theme in THEMES]
    assert why_of(views[0]) is why_of(views[1]) is why_of(View(state=parsed("with=batch_size%3D2")))


def test_an_unknown_tab_keeps_the_question() -> None:
    tabs, alert, *_ = _answer("?model=gpt2&batch_size=4&tab=nonsense", "light")
    assert "unknown tab" in alert
    assert len(re.findall(r'href="\?model=gpt2&amp;hardware=h100-sxm&amp;batch_size=4', tabs)) == len(TABS)


@pytest.mark.parametrize(
    ("words", "note"),
    [("", "largest batch 246, prefilled at once"), ("max_num_batched_tokens=2048", "largest batch 403")],
)
def test_the_largest_batch_says_what_limits_it(words: str, note: str) -> None:
    """The activations of 246 prompts that one pass prefills take the place of the cache of 158 more requests."""
    _, _, cards, *_ = content(View(state=parsed(words)))
    assert re.findall(r"<dt>KV cache</dt>.*?<span>(.*?)</span>", cards["html"]) == [note]


UNFIT = "model=llama-2-70b&hardware=rtx-4090&quantization=w4a16"


def test_a_request_that_does_not_fit_is_told_first_and_without_trials() -> None:
    """70 B weights of 4.125 bit are 34.5 GiB with their cache; 0.9 of 24 GiB are 21.6 GiB."""
    view = View(state=parsed(UNFIT))
    _, first, cards, *_ = content(view)
    assert re.findall(r"<d[td]>(.*?)</d[td]>", first["html"])[:2] == [
        "DOES NOT FIT",
        "34.5 GiB needed, budget 21.6 GiB",
    ]
    assert "Best change" not in first["html"]
    (marked,) = re.findall(r'<div class="warning"><dt>(.*?)</dt>.*?<span>(.*?)</span>', cards["html"])
    assert marked == ("Memory per device", "does not fit: of 21.6 GiB")


def test_what_makes_a_request_fit_follows_the_trials() -> None:
    assert "it fits with -tp 2" in changes(View(state=parsed(UNFIT)))
    fitting = View(state=parsed(""))
    assert "Best change" in changes(fitting)
    assert 'class="warning"' not in "".join(one.get("html", "") for one in content(fitting))


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_rates_are_named_by_what_they_are(stage: str) -> None:
    """down_proj of Llama 3.1 8B reads 14,336 x 4,096 weights of 2 bytes for one token: 1 FLOP per byte, 3.35 TB/s."""
    view = View(state=parsed(f"hardware=h100-sxm&stage={stage}"))
    at = {head.title: place for place, head in enumerate(HEADS)}
    line = next(one for one in view.lines if one.operator["name"] == "down_proj" and one.stage == stage)
    attainable, reached = (line.cells[at[f"{word} FLOP/s"]].value for word in ("Attainable", "Reached"))
    assert reached == pytest.approx(line.operator["flops"] / line.operator["time_s"])
    assert attainable == pytest.approx(3.35e12 if stage == "decode" else 989.4e12, rel=1e-3)
    assert reached < attainable
    assert {"Attainable FLOP/s", "Reached FLOP/s"} <= set(re.findall(r"<dt>(.*?)</dt>", panel(view)["html"]))


# commands and calls


def answer_of(command: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """The answer of a command as JSON."""
    assert main([*shlex.split(command)[1:], "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


RUNS = (
    "",
    "model=deepseek-v2-lite&hardware=mi300x&tensor_parallel_size=2&expert_parallel_size=2",
    "hardware=a100-80gb-sxm&batch_size=8&input_len=4k&quantization=w4a16&kv_cache_dtype=fp8",
    "engine=vllm&enforce_eager=true&gpu_memory_utilization=0.8&max_num_seqs=16",
    "set=bandwidth%3D6TB/s,peak.bf16%3Dx2&efficiency=ideal",
    "speculative=ngram,tokens%3D3,acceptance%3D0.6&fusion=all&attention=eager",
    "model=bert-base&batch_size=32&input_len=384",
)


@pytest.mark.parametrize("query", RUNS)
def test_the_command_and_the_call_give_the_same_numbers(query: str, capsys: pytest.CaptureFixture[str]) -> None:
    view = View(state=parsed(query))
    command, call = equivalents(view)
    expected = view.result.to_dict()["metrics"]
    assert answer_of(command, capsys)["metrics"] == expected
    assert eval(call, {"lv": lv}).to_dict()["metrics"] == expected


@pytest.mark.parametrize("words", ["tensor_parallel_size=2", "pipeline_parallel_size=4", "kv_block_size=16"])
def test_whole_numbers_are_numbers_in_python(words: str) -> None:
    view = View(state=parsed(words))
    _, call = equivalents(view)
    assert call == f'lv.analyze("llama-3.1-8b", "h100-sxm", {words})'
    assert eval(call, {"lv": lv}).to_dict()["metrics"] == view.result.to_dict()["metrics"]


def test_the_command_of_ones_own_config_reads_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.dumps(published_config("mistral-7b")).encode()
    (tmp_path / "config.json").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    view = View(state=State(config=packed(content), words={"batch_size": "4"}))
    command, call = equivalents(view)
    expected = view.result.to_dict()["metrics"]
    assert answer_of(command, capsys)["metrics"] == expected
    assert eval(call, {"lv": lv}).to_dict()["metrics"] == expected


@pytest.mark.parametrize("tab", [tab for tab in TABS if tab not in ("size", "load")])
def test_the_command_of_every_tab_runs(tab: str, capsys: pytest.CaptureFixture[str]) -> None:
    view = View(state=parsed(f"tab={tab}&batch_size=2&with=hardware%3Da100-80gb-sxm"))
    command, call = equivalents(view)
    assert main(shlex.split(command)[1:]) == (1 if tab == "train" else 0)  # which does not fit
    assert capsys.readouterr().out
    assert eval(call, {"lv": lv}) is not None


@pytest.mark.slow
@pytest.mark.parametrize("tab", ["size", "load"])
def test_the_command_of_a_load_runs(tab: str, capsys: pytest.CaptureFixture[str]) -> None:
    view = View(state=parsed(f"model=llama-3.2-1b&tab={tab}&input_len=256&output_len=32&request_rate=4"))
    command, call = equivalents(view)
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out
    assert eval(call, {"lv": lv}) is not None


SMALL = "model=llama-3.2-1b&input_len=256&output_len=32&request_rate=4"


@pytest.fixture
def few_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulations of a tenth of the requests, which commands and calls name."""
    simulations.cache_clear()
    monkeypatch.setattr(load, "REQUESTS", load.REQUESTS // 10)
    yield
    simulations.cache_clear()


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize(
    "words", ["", "&engine=kernels&batch_size=8", "&engine=sglang&batching=chunked,tokens%3D512", "&fusion=none"]
)
def test_a_simulation_has_the_engine_of_the_menu(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without one it is that of `simulate`, vllm."""
    view = View(state=parsed(f"{SMALL}&tab=load&run=load{words}"))
    made = simulation_of(view).to_dict()
    engine = view.state.words.get("engine", "vllm")
    assert made["engine"].partition("==")[0] == engine
    command, call = equivalents(view)
    assert answer_of(command, capsys) == made
    assert eval(call, {"lv": lv}).to_dict() == made
    assert f"Engine: {engine}." in drawn(view)


@pytest.mark.usefixtures("few_requests")
def test_the_engine_changes_a_simulation() -> None:
    first, second = (
        simulation_of(View(state=parsed(f"{SMALL}&tab=load&run=load{words}"))).to_dict()["ttft_s"]["p99"]
        for words in ("&engine=kernels", "")
    )
    assert first < 0.9 * second


UNSET = f"{SMALL}&tab=size&run=size&max_gpus=4"
SIZED = f"{UNSET}&engine=vllm&quantization=fp8&kv_cache_dtype=fp8"
#: Sizings by their checked questions.
FOUND: dict[str, Sizing] = {}


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A question that the page, the command and the call ask alike is answered once."""

    def sized(model: Any, hardware: Any, *, advance: Any = None, best_so_far: Any = None, **options: Any) -> Sizing:
        asked = question(model, chips_of(hardware), options)
        key = repr((asked.model, asked.hardware, asked.words, sorted(asked.lists.items())))
        return FOUND[key] if key in FOUND else FOUND.setdefault(key, size(model, hardware, **options))

    for place in ("llmviewer.size", "llmviewer.cli.size.size", "llmviewer.reports.web.tabs.size.size"):
        monkeypatch.setattr(place, sized)
    sizings.cache_clear()
    yield
    sizings.cache_clear()


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize(
    "query",
    [
        SIZED,
        *(
            pytest.param(f"{UNSET}{words}", marks=pytest.mark.slow)
            for words in ("", "&engine=kernels", "&engine=sglang", "&tensor_parallel_size=2")
        ),
    ],
)
def test_a_sizing_has_the_options_that_are_set(query: str, capsys: pytest.CaptureFixture[str]) -> None:
    view = View(state=parsed(query))
    made = json.loads(json.dumps(sizing_of(view).to_dict()))
    for name in ("engine", "quantization", "kv_cache_dtype", "tensor_parallel_size"):
        if name in view.state.words:  # vllm is the default of the command that simulates the configuration
            assert made["best"]["options"].get(name, "vllm") == view.state.words[name]
    command, call = equivalents(view)
    assert answer_of(command, capsys) == made
    assert json.loads(json.dumps(eval(call, {"lv": lv}).to_dict())) == made


def test_a_sizing_says_what_it_chooses_itself() -> None:
    text = drawn(View(state=parsed("tab=size&engine=sglang&quantization=fp8&batch_size=8")))
    assert "Set on the left: Engine sglang, Quantization fp8." in text
    assert "The batch size does not count." in text
    assert "chooses what is not set there: KV cache format, Tensor parallel size" in text
    assert "tensor_parallel_size" in searched({"engine": "sglang"})
    assert not {"tensor_parallel_size", "data_parallel_size"} & set(searched({"expert_parallel_size": 2}))


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("tab=size&max_gpus=x", "max_gpus is 'x'; allowed: a number"),
        ("tab=size&chips=all", f"chips; allowed here: at most {MAX_CHIPS}"),
        ("tab=size&chips=h1000", "unknown chip 'h1000'"),
        ("tab=load&request_rate=x", "request_rate is 'x'; allowed: a number of requests per second"),
    ],
)
def test_a_form_with_a_wrong_field_stays_open(query: str, line: str) -> None:
    _, form, alert = content(View(state=parsed(query)))
    assert "<form" in form["html"]
    assert line in unescape(alert["html"])


@pytest.mark.slow
@pytest.mark.parametrize("chips", ["h100,mi300x,l40s,a100-80gb-sxm", "h100,a6000"])
def test_the_front_of_a_sizing_is_that_of_its_axes(chips: str) -> None:
    """No point is both cheaper and faster, none is cheaper than the best, which costs as little as the cheapest."""
    found = sizing_of(View(state=parsed(f"tab=size&run=size&request_rate=10&chips={chips}"))).to_dict()
    *front_traces, star = front.chart(found).data
    points = [point for one in front_traces for point in zip(one["x"], one["y"], strict=True)]
    key = "usd_per_hour" if chips.startswith("h100,m") else "devices"  # an A6000 has no price
    assert [list(star["x"]), star["name"]] == [[found["best"][key]], "best"]
    assert star["y"] == pytest.approx([1e3 / found["best"]["output_tokens_per_s_per_user"]])
    assert len(points) > 1
    assert all(one == other or one[0] < other[0] or one[1] < other[1] for one in points for other in points)
    assert min(cost for cost, _ in points) == found["best"][key]


# files


def downloaded(query: str, name: str) -> Any:
    return application().test_client().get(f"/download/{name}?{query}")


@pytest.mark.usefixtures("once", "few_requests")
@pytest.mark.parametrize(
    ("query", "name", "schema"),
    [
        (SIZED, "size.json", "llmviewer.size/1"),
        (f"{SMALL}&tab=load&run=load", "simulation.json", "llmviewer.simulation/1"),
        ("tab=explain&model=llama-3.2-1b", "explanation.json", "llmviewer.explanation/1"),
        ("tab=compare&model=llama-3.2-1b&with=model%3Dllama-3.2-3b", "why.json", "llmviewer.why/1"),
        ("tab=compare&output_len=1&with=output_len%3D1%26hardware%3Dh200", "why.json", "llmviewer.why/1"),
        ("model=llama-3.2-1b", "analysis.json", "llmviewer.analysis/1"),
    ],
)
def test_the_json_of_a_tab_is_that_of_its_command(
    query: str, name: str, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    view = View(state=parsed(query))
    assert files_of(view)[name] == "JSON"
    found = json.loads(downloaded(query, name).data)
    assert found["schema"] == schema
    assert found == answer_of(equivalents(view)[0], capsys)


@pytest.mark.usefixtures("once", "few_requests")
@pytest.mark.parametrize(
    ("query", "name"),
    [(SIZED, "size.csv"), (f"{SMALL}&tab=load&run=load", "simulation.csv"), (SIZED, "size.md")],
)
def test_the_table_of_a_load_is_that_of_its_command(
    query: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _ = equivalents(View(state=parsed(query)))
    assert main([*shlex.split(command)[1:], "-o", str(tmp_path / name)]) == 0
    assert downloaded(query, name).get_data(as_text=True) == (tmp_path / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("tab", ["size", "load"])
def test_a_load_has_no_files_before_it_is_answered(tab: str) -> None:
    assert files_of(View(state=parsed(f"tab={tab}"))) == {}


def test_every_file_of_a_tab_is_made() -> None:
    listed = [files_of(View(state=parsed(f"tab={tab}&run={tab}&with=batch_size%3D2"))) for tab in TABS]
    assert {name for files in listed for name in files} == set(FILES)


def test_the_sweep_file_has_the_curves_of_its_tab() -> None:
    rows = list(csv.DictReader(io.StringIO(downloaded("model=llama-3.2-1b&input_len=512", "sweep.csv").text)))
    assert {float(row["input_len"]) for row in rows} == {256, 512, 1024}


@pytest.mark.parametrize(
    ("address", "status"), [("nothing.json", 404), ("analysis.json?model=nothing", 400), ("why.json?model=gpt2", 400)]
)
def test_a_file_that_cannot_be_made_is_a_problem(address: str, status: int) -> None:
    answer = application().test_client().get(f"/download/{address}")
    assert (answer.status_code, answer.mimetype) == (status, "application/problem+json")


def test_sizes_of_the_address_are_those_of_the_answer() -> None:
    view = View(state=parsed("batch_size=8&input_len=2k&output_len=32"))
    assert view.sizes == {"batch_size": 8, "input_len": 2048, "output_len": 32}
    assert set(view.sizes) == set(WORKLOAD)


def test_the_page_of_the_viewer_describes_every_tab() -> None:
    page = (Path(__file__).parents[1] / "docs" / "guide" / "web.md").read_text(encoding="utf-8")
    assert [title for title in TABS.values() if f"\n| {title} | " not in page] == []


@pytest.mark.parametrize("model", KINDS)
def test_every_value_that_a_menu_offers_has_an_answer(model: str) -> None:
    view = View(state=parsed(f"model={model}&hardware=h100-sxm"))
    for name, texts in offered(view).items():
        for text in texts[:: max(len(texts) // 4, 1)]:
            assert View(state=parsed(f"model={model}&hardware=h100-sxm&{name}={text}")).result is not None


@pytest.mark.parametrize(
    ("model", "devices", "experts", "sequence"),
    [
        ("llama-3.1-8b", "", ["1"], ["off"]),
        ("llama-3.1-8b", "&tensor_parallel_size=2", ["1"], ["off", "on"]),
        ("mixtral-8x7b", "", ["1"], ["off"]),
        ("mixtral-8x7b", "&tensor_parallel_size=2", ["1", "2"], ["off", "on"]),
        ("mixtral-8x7b", "&tensor_parallel_size=2&data_parallel_size=2", ["1", "4"], ["off", "on"]),
        ("gemma-4-26b-a4b", "&data_parallel_size=2", ["1", "2"], ["off"]),
    ],
)
def test_groups_that_the_model_and_its_devices_have_are_offered(
    model: str, devices: str, experts: list[str], sequence: list[str]
) -> None:
    """Experts are stored on all devices of the tensor and data groups; a group of one device splits no tokens."""
    view = View(state=parsed(f"model={model}&hardware=h200{devices}"))
    found = offered(view)
    assert (found["expert_parallel_size"], found["sequence_parallel"]) == (experts, sequence)
    last = f"expert_parallel_size={experts[-1]}&sequence_parallel={sequence[-1]}"
    assert View(state=parsed(f"model={model}&hardware=h200{devices}&{last}")).result is not None
    html = controls(view.state, found, "")
    assert ('data-option="expert_parallel_size"' in html) == (len(experts) > 1)
    assert ('data-option="sequence_parallel"' in html) == (len(sequence) > 1)


def test_an_encoder_has_no_field_for_tokens_that_it_does_not_write() -> None:
    encoder, decoder = (View(state=parsed(f"model={model}")) for model in ("bert-base", "llama-3.1-8b"))
    assert encoder.sizes["output_len"] == 1
    assert 'data-option="output_len"' not in controls(encoder.state, offered(encoder), "")
    assert 'data-option="output_len"' in controls(decoder.state, offered(decoder), "")


def test_chips_are_listed_by_maker_the_smallest_first_with_their_memory() -> None:
    menu = r'<select data-option="hardware".*?</select>'
    (own,) = re.findall(menu, controls(parsed("hardware=h200"), {}, ""))
    groups = dict(re.findall(r'<optgroup label="([^"]+)">(.*?)</optgroup>', own))
    assert re.findall(r">([^<]+)</option>", groups["Google"]) == [
        "tpu-v5e · 16 GiB", "tpu-v4 · 32 GiB", "tpu-v6e · 32 GiB", "tpu-v5p · 95 GiB", "tpu-v7 · 192 GiB",
    ]  # fmt: skip
    assert '<option value="h200" selected>h200 · 141 GiB</option>' in groups["NVIDIA"]
    assert sorted(re.findall(r'<option value="([^"]+)"', own)) == lv.list_hardware()
    (other,) = re.findall(menu, controls(parsed("hardware=H100"), {}, ""))
    assert '<option value="H100" selected>H100</option><optgroup' in other  # a name of another form stands first


def test_a_tab_computes_the_parts_of_an_answer_that_it_reads() -> None:
    view = View(state=parsed("?model=llama-3.2-1b&hardware=l40s&batch_size=7&tab=network"))
    content(view)
    assert "stages" in view.answer
    assert not {"served", "metrics", "provenance"} & {*view.answer}
    found = lv.analyze("llama-3.2-1b", "l40s", batch_size=7).to_dict()
    assert {name: view.answer[name] for name in found} == found


@pytest.mark.parametrize("words", ["", "&batching=continuous", "&speculative=ngram,tokens=3,acceptance=0.6"])
def test_memory_curves_are_those_of_answers(words: str) -> None:
    view = View(state=parsed(f"?model=llama-3.2-1b&hardware=l40s{words}"))
    timed = points(view, [1, 16], [512, 4096], [view.sizes["output_len"]])
    found = memory_points(view, [1, 16], [512, 4096])
    for name in ("configuration", "hardware", "batch_size", "input_len", "total_bytes", "budget_bytes", "fits"):
        assert found[name] == timed[name]


def test_an_operator_of_an_explained_number_leads_to_its_time() -> None:
    view = View(state=parsed("?model=llama-3.2-1b&hardware=l40s&tab=explain"))
    *_, made = content(view)
    links = [unescape(text) for text in re.findall(r'href="([^"]*)" data-go', made["html"])]
    assert any("number=operators.layer.q_proj.time_s" in link for link in links)
    for link in links:
        *_, opened = content(View(state=parsed(link)))
        assert 'role="alert"' not in opened["html"]
        assert "<details" in opened["html"]


@pytest.mark.parametrize(
    ("model", "block"), [("t5-v1.1-xxl", "decoder_cross"), ("gemma-4-e2b", "full_own"), ("jamba-1.5-mini", "mamba_moe")]
)
def test_the_panel_is_about_the_operator_of_its_own_block(model: str, block: str) -> None:
    """Bytes by tensor add up to those of the operator, and the explained time is the time of the panel."""
    asked = f"?model={model}&hardware=h200&tab=network&stage=decode&block={block}&input_len=8192"
    for line in View(state=parsed(asked)).shown.blocks[block]:
        view = View(state=parsed(f"{asked}&operator={line.key}"))
        number = f"operators.{block}.{line.operator['name']}"
        root = explained(view.result, f"{number}.traffic_bytes").root
        assert root.value == pytest.approx(line.operator["traffic_bytes"])
        assert [verb for verb, _ in tensor_bytes(view, line)] == [one.name.split()[0] for one in root.children]
        assert f"{line.operator['name']}.time_s" in panel(view)["html"]
        assert explained(view.result, f"{number}.time_s").value == pytest.approx(line.operator["time_s"])


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_the_panel_lists_the_bytes_of_every_tensor(stage: str) -> None:
    """attention of Llama 3.2 1B, 16 bit, one sequence, 512 keys of 8 heads of 64: 512 x 512 x 2 bytes of K and of V.

    In prefill K and V are read as often as in decode, Q and the output are 512 x 2,048 x 2 bytes.
    """
    view = View(state=parsed(f"?model=llama-3.2-1b&hardware=l40s&input_len=512&tab=network&stage={stage}"))
    line = next(one for one in view.lines if one.operator["name"] == "attention" and one.stage == stage)
    tokens = 512 if stage == "prefill" else 1
    listed = dict.fromkeys(("rope", "attention"), fmt.traffic(tokens * 2048 * 2)) | dict.fromkeys(
        ("k_cache", "v_cache"), fmt.traffic(512 * 512 * 2)
    )
    assert {tensor.partition(" ")[0]: tensor.partition(" ")[2] for _, tensor in tensor_bytes(view, line)} == listed
