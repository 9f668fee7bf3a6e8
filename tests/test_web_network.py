"""The network of the viewer: times of blocks and draft models add up, and the panel's equations hold."""

from __future__ import annotations

from typing import Any

import pytest

import llmviewer as lv

pytest.importorskip("dash", reason="needs dash: pip install '.[web]'")

from llmviewer.reports import format as fmt
from llmviewer.reports.web.chosen import panel, tensor_bytes
from llmviewer.reports.web.network import network
from llmviewer.reports.web.shown import RequestLine
from llmviewer.reports.web.state import parsed
from llmviewer.reports.web.view import View

SPECULATION = "speculative=draft%3Dllama-3.2-1b,tokens%3D4,acceptance%3D0.6"
LLAMA = "model=llama-3.1-8b&hardware=h100-sxm&tab=network"
OFFLOADED = "model=opt-30b&hardware=t4&offload=weights%3D0.5&tab=network"
#: Runs without engine and waiting, whose operators, drafts and overlap are all of the time.
RUNS = (
    LLAMA,
    f"{LLAMA}&{SPECULATION}",
    OFFLOADED,
    f"{LLAMA}&max_num_batched_tokens=256",
    "model=t5-v1.1-xxl&hardware=h200&tab=network",
)


def view(query: str) -> View:
    return View(state=parsed(query))


def boxes(one: View) -> dict[str, str]:
    """Labels of the boxes of the graph, by id."""
    _, graph, _ = network(one)["pieces"]
    elements: list[dict[str, Any]] = graph["network"]["elements"]
    return {element["data"]["id"]: element["data"]["label"] for element in elements if "id" in element["data"]}


@pytest.mark.parametrize("stage", ["prefill", "decode", "request"])
@pytest.mark.parametrize("query", RUNS)
def test_blocks_and_draft_models_take_all_of_the_time(query: str, stage: str) -> None:
    found = view(f"{query}&stage={stage}").shown
    shares = [found.share(name) for name in found.blocks] + [one / found.time_s for one in found.drafts.values()]
    assert sum(shares) == pytest.approx(1.0, rel=1e-9)
    assert max(shares) <= 1.0


def test_stages_of_a_pipeline_that_run_at_once_are_counted_once() -> None:
    """Four stages with 32 passes of a prompt: their times one after another are several times that of the request."""
    asked = "model=llama-3.1-70b&hardware=h100-sxm&pipeline_parallel_size=4&max_num_batched_tokens=256&input_len=8192"
    one = view(f"{asked}&tab=network&stage=request")
    assert 0.99 < sum(map(one.shown.share, one.shown.blocks)) <= 1.0
    assert "Stages of the pipeline run at once" in network(one)["pieces"][-1]["html"]


@pytest.mark.parametrize(("stage", "metric"), [("prefill", "ttft_s"), ("request", "e2e_s")])
@pytest.mark.parametrize("query", RUNS)
def test_the_time_is_that_of_the_metric(query: str, stage: str, metric: str) -> None:
    one = view(f"{query}&stage={stage}")
    assert one.shown.time_s == pytest.approx(getattr(one.result, metric), rel=1e-9)


def test_a_block_whose_copies_overlap_its_kernels_takes_the_longer_of_both() -> None:
    """OPT-30B on a T4 with half its weights on the host: the table of `analyze` says 3.98 s, 99.9 %."""
    one = view(f"{OFFLOADED}&stage=prefill")
    assert boxes(one)["block layer"] == "layer × 48\n3.98 s\n99.9 %"
    assert "a layer takes the longer of both" in network(one)["pieces"][-1]["html"]


def test_a_draft_model_is_a_box_with_its_own_time() -> None:
    """In decode 4 passes of the draft model come before each pass that verifies."""
    one = view(f"{LLAMA}&{SPECULATION}&stage=decode")
    generation = one.answer["generation"]
    (draft,) = generation["drafts"]
    seconds = draft["passes"] * draft["pass_s"]
    share = seconds / (seconds + generation["pass_s"])
    assert boxes(one)["draft llama-3.2-1b"] == f"draft llama-3.2-1b\n{fmt.duration(seconds)}\n{fmt.share(share)}"
    whole = view(f"{LLAMA}&{SPECULATION}&stage=request")
    alone = lv.analyze("llama-3.1-8b", "h100-sxm", output_len=1)
    prefill = view(f"{LLAMA}&{SPECULATION}&stage=prefill").shown
    assert prefill.drafts["llama-3.2-1b"] == pytest.approx(float(one.result.ttft_s) - float(alone.ttft_s))
    decode_s = float(one.result.e2e_s) - float(one.result.ttft_s)
    assert whole.shown.drafts["llama-3.2-1b"] - prefill.drafts["llama-3.2-1b"] == pytest.approx(
        decode_s * share, rel=0.01
    )


def test_the_target_of_speculation_keeps_its_own_time() -> None:
    """Each of the expected rounds runs down_proj once per layer, in the time of the verification pass."""
    one = view(f"{LLAMA}&{SPECULATION}&stage=request")
    line = next(line for line in one.shown.lines if line.operator["name"] == "down_proj")
    assert isinstance(line, RequestLine)
    _, decode = line.parts
    assert decode.passes == pytest.approx(127 / one.answer["generation"]["tokens_per_round"])
    assert decode.seconds / decode.passes == pytest.approx(decode.line.operator["time_s"], rel=1e-3)


def test_the_panel_of_the_whole_request_has_true_equations() -> None:
    """127 steps and one prefill: time = passes x mean time of a pass; formulas and bytes are those of one pass."""
    one = view(f"{LLAMA}&stage=request")
    line = next(line for line in one.shown.lines if line.operator["name"] == "down_proj")
    assert isinstance(line, RequestLine)
    prefill, decode = line.parts
    assert (prefill.passes, decode.passes) == (1.0, 127.0)
    assert line.operator["time_s"] == pytest.approx(prefill.seconds + decode.seconds)
    html = panel(view(f"{LLAMA}&stage=request&operator={line.key}"))["html"]
    assert "<h2>down_proj, whole request</h2>" in html
    assert f"127 passes × {fmt.duration(decode.seconds / 127)} = {fmt.duration(decode.seconds)}" in html
    total = fmt.duration(line.operator["time_s"])
    for part in line.parts:
        step = fmt.duration(part.line.operator["time_s"])
        assert part.line.formulas[-1][1].endswith(f"= {step}")
        assert part.line.formulas[-1][1].replace("<", "&lt;") in html
        assert step != total
    assert f"= {total}" not in html


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_an_operator_of_either_stage_is_that_of_the_whole_request(stage: str) -> None:
    """A point of the roofline, and a row of the table, is of one stage; the graph shows the request."""
    key = next(line.key for line in view(LLAMA).lines if line.operator["name"] == "rope" and line.stage == stage)
    html = panel(view(f"{LLAMA}&stage=request&operator={key}"))["html"]
    assert "<h2>rope, whole request</h2>" in html
    assert html.count("Where the time in ") == 2


def test_a_request_of_one_token_has_the_time_of_prefill() -> None:
    one = view(f"{LLAMA}&stage=request&output_len=1")
    assert {line.parts[0].line.stage for line in one.shown.lines if isinstance(line, RequestLine)} == {"prefill"}
    assert one.shown.time_s == one.result.ttft_s


def test_the_panel_takes_all_passes_of_prefill_apart() -> None:
    """1,024 tokens in passes of 256: a weight is read four times, the prompt's output is written once."""
    found = view(f"{LLAMA}&max_num_batched_tokens=256&stage=prefill")
    line = next(one for one in found.lines if one.operator["name"] == "down_proj" and one.stage == "prefill")
    weights = f"down_proj.weight {fmt.traffic(4 * 4096 * 14336 * 2)}"
    assert tensor_bytes(found, line) == (
        ("reads", f"mlp_act {fmt.traffic(1024 * 14336 * 2)}"),
        ("reads", weights),
        ("writes", f"down_proj {fmt.traffic(1024 * 4096 * 2)}"),
    )


@pytest.mark.parametrize(("model", "notes"), [("t5-v1.1-xxl", 1), ("jamba-1.5-mini", 1), ("llama-3.1-8b", 0)])
def test_the_graph_says_that_kinds_of_layers_may_alternate(model: str, notes: int) -> None:
    html = network(view(f"model={model}&hardware=h200&tab=network"))["pieces"][-1]["html"]
    assert html.count("kinds may alternate") == notes
