"""A configuration against another in the network of the viewer: every operator once, times and colours of both."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import llmviewer as lv

pytest.importorskip("dash", reason="needs dash: pip install '.[web]'")

from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.reports import format as fmt
from llmviewer.reports import why_page
from llmviewer.reports.web import against
from llmviewer.reports.web.against import FASTER, SLOWER, Against, Pair, menu, other, pairs, parts_of
from llmviewer.reports.web.equivalents import equivalents
from llmviewer.reports.web.graphs import palette
from llmviewer.reports.web.markup import page
from llmviewer.reports.web.network import graph
from llmviewer.reports.web.state import parsed
from llmviewer.reports.web.tabs import content
from llmviewer.reports.web.tabs.network import late
from llmviewer.reports.web.view import View

LLAMA = "model=llama-3.1-8b&hardware=h100-sxm&tab=network"
DEEPSEEK = "model=deepseek-v3.2&hardware=h200&tensor_parallel_size=8&tab=network"
RUNS = (
    f"{LLAMA}&against=hardware%3Da100-80gb-sxm",
    f"{LLAMA}&against=quantization%3Dfp8&stage=prefill",
    f"{LLAMA}&against=engine%3Dvllm&stage=request",
    f"{LLAMA}&engine=vllm&against=engine%3Dkernels",
    f"{LLAMA}&attention=eager&against=attention%3Dflash",
    f"{DEEPSEEK}&against=engine%3Dsglang",
)


def both(query: str) -> Against:
    first = View(state=parsed(query))
    last = other(first)
    assert last is not None
    return Against(first=first, last=last)


def elements(one: Against) -> dict[str, dict[str, Any]]:
    """Elements of the drawn graph by id."""
    listed = one.drawn(graph(one.first))["network"]["elements"]
    return {element["data"]["id"]: element for element in listed if "id" in element["data"]}


def of_name(one: Against, name: str) -> Pair:
    return next(pair for pair in one.pairs if pair.name == name)


@pytest.mark.parametrize("query", RUNS)
def test_every_operator_of_both_is_in_one_pair(query: str) -> None:
    one = both(query)
    for side, view in enumerate((one.first, one.last)):
        keys = [line.key for pair in one.pairs for line in pair.sides[side]]
        assert sorted(keys) == sorted(line.key for line in view.shown.lines)
    parts = [(pair.block, part) for pair in one.pairs for part in pair.parts]
    assert len(parts) == len({*parts})


@pytest.mark.parametrize("query", RUNS)
def test_the_rows_of_the_table_sum_to_the_times(query: str) -> None:
    """Rows of operators, of the others and of what is no operator give the time of A and of B."""
    one = both(query)
    seconds = [pair.seconds for pair in one.pairs]
    for side, view in enumerate((one.first, one.last)):
        blocks = view.shown.blocks.values()
        serial = sum(line.operator["time_s"] * line.operator["layers"] for block in blocks for line in block)
        assert sum(pair[side] for pair in seconds) == pytest.approx(serial, rel=1e-12)
    html = one.below()["html"]
    assert fmt.duration(one.first.shown.time_s) in html and fmt.duration(one.last.shown.time_s) in html


def test_a_fused_kernel_stands_beside_the_operators_that_it_joins() -> None:
    assert parts_of("qkv_proj") == {"q_proj", "k_proj", "v_proj"}
    assert parts_of("attn_add+mlp_norm") == {"attn_add", "mlp_norm"}
    one = both(RUNS[2])
    joined = of_name(one, "q_proj, k_proj, v_proj")
    assert [line.operator["name"] for line in joined.sides[1]] == ["qkv_proj"]
    assert [line.operator["name"] for line in of_name(one, "attn_add, mlp_norm").sides[1]] == ["attn_add+mlp_norm"]
    label = elements(one)["operator k_proj"]["data"]["label"].split("\n")
    assert label[1] == " → ".join(map(fmt.duration, joined.seconds))
    assert label[2] == f"{fmt.times(joined.seconds[1] / joined.seconds[0])} (3 together)"


def test_eager_attention_stands_beside_the_kernel_of_its_three_operators() -> None:
    pair = of_name(both(RUNS[4]), "qk_matmul, softmax, sv_matmul")
    assert [line.operator["name"] for line in pair.sides[1]] == ["attention"]


def test_colours_say_what_is_faster_and_how_much() -> None:
    """FP8 halves the weights of linear layers; norms stay, and activations are quantized in B alone."""
    one = both(f"{LLAMA}&against=quantization%3Dfp8")
    drawn, colours = elements(one), palette("light")
    heat = {name.removeprefix("operator "): element["data"]["heat"] for name, element in drawn.items()
            if name.startswith("operator ") and "heat" in element["data"]}  # fmt: skip
    assert drawn["operator gate_proj"]["data"]["fill"] == colours[FASTER]
    assert heat["down_proj"] == max(heat.values()) == against.FULL
    assert heat["attn_norm"] == 0.0
    added = drawn["operator mlp_act_quantize of B"]
    assert added["data"]["fill"] == colours[SLOWER] and "only in B" in added["data"]["label"]
    assert "added" in added["classes"]
    inside = [element["position"]["y"] for name, element in drawn.items() if not name.endswith("of B")]
    assert added["position"]["y"] > max(inside)
    assert "Moved: weights" in one.above()[0]["html"]


def test_the_same_configuration_has_no_difference() -> None:
    one = both(f"{LLAMA}&against=hardware%3Dh100-sxm")
    assert {pair.amount for pair in one.pairs} == {0.0}
    assert "No operator takes another time in B" in one.above()[0]["html"]
    assert {element["data"].get("heat", 0.0) for element in elements(one).values()} == {0.0}


def test_a_slower_b_swaps_the_colours() -> None:
    """The ratio of B to A is the inverse of that of A to B, and the colour is the other one."""
    there, back = (
        both(f"{LLAMA}&against=hardware%3Dh200"),
        both("model=llama-3.1-8b&hardware=h200&against=hardware%3Dh100-sxm"),
    )
    for one, two in zip(there.pairs, back.pairs, strict=True):
        assert one.seconds == two.seconds[::-1]
    fills = [elements(one)["operator down_proj"]["data"]["fill"] for one in (there, back)]
    assert fills == [palette("light")[FASTER], palette("light")[SLOWER]]


def test_the_menu_offers_other_values_and_what_was_kept() -> None:
    kept = "model%3Dllama-3.1-8b%26hardware%3Dl40s%26quantization%3Dfp8"
    view = View(state=parsed(f"{LLAMA}&quantization=fp8&with={kept}&against=kept%3D1"))
    choices = menu(view)["choices"]
    assert "hardware=h200" in choices["Chip"] and "hardware=h100-sxm" not in choices["Chip"]
    assert "quantization=fp8" not in choices["Number format"] and "engine=vllm" in choices["Engine"]
    assert choices["Kept"] == {"kept=1": "llama-3.1-8b, l40s, quantization=fp8"}
    last = other(view)
    assert last is not None and last.configuration.chip.name == "l40s"


@pytest.mark.parametrize(("words", "told"), [("hardware%3Dh2000", "h2000"), ("kept%3D1", "0 configurations are kept"),
                                             ("speed%3D1", "unknown option")])  # fmt: skip
def test_a_b_that_has_no_answer_is_told_beside_the_graph_of_a(words: str, told: str) -> None:
    view = View(state=parsed(f"{LLAMA}&against={words}"))
    with pytest.raises(UserError, match=told):
        other(view)
    said, network = content(view)[3]["pieces"][0]["pieces"]
    assert "B: " in said["html"] and network["pieces"][1]["network"]["elements"]


def test_the_foot_asks_the_same_as_a_command() -> None:
    command, call = equivalents(View(state=parsed(f"{LLAMA}&against=hardware%3Dh200")))
    assert command == "llmviewer why 'llama-3.1-8b --hardware h100-sxm' 'llama-3.1-8b --hardware h200'"
    assert call.startswith("lv.why(")


@pytest.mark.parametrize(
    ("words", "metric"),
    [("", "tpot_s"), ("&stage=prefill", "ttft_s"), ("&stage=request", "e2e_s"), ("&output_len=1", "ttft_s")],
)
def test_the_foot_asks_for_the_metric_of_the_page(words: str, metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    view = View(state=parsed(f"{LLAMA}&against=hardware%3Dh200{words}"))
    command, call = equivalents(view)
    found = eval(call, {"lv": lv})
    assert found.to_dict()["metric"] == metric
    assert late(view).endswith(page(why_page.page(found)[:2]))
    assert main([*shlex.split(command)[1:], "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == found.to_dict()


def test_pairs_of_two_models_are_by_name() -> None:
    """Operators of one model alone stand alone: Mistral 7B has the operators of Llama, gpt-oss has experts."""
    first, last = (View(state=parsed(f"model={name}&hardware=h100-sxm")) for name in ("llama-3.1-8b", "gpt-oss-20b"))
    found = pairs(first.shown, last.shown)
    assert any(not pair.sides[0] for pair in found) and any(all(pair.sides) for pair in found)
