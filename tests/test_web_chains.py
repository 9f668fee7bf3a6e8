"""Chains of the network: which operators one box stands for, its sums, and that arrows lead as they did."""

from __future__ import annotations

from itertools import pairwise
from math import hypot
from typing import Any

import pytest

import llmviewer as lv

pytest.importorskip("dash", reason="needs dash: pip install '.[web]'")

from llmviewer.reports import format as fmt
from llmviewer.reports.html.layers import HEIGHT, WIDTH, dataflow
from llmviewer.reports.web import against
from llmviewer.reports.web.chains import MOST_ALONE, Chain, drawn, folded, switch
from llmviewer.reports.web.network import graph, network
from llmviewer.reports.web.state import parsed
from llmviewer.reports.web.view import View

DEEPSEEK = "model=deepseek-v3.2&hardware=h200&tensor_parallel_size=8&tab=network"
LLAMA = "model=llama-3.1-8b&hardware=h100-sxm&quantization=fp8&tab=network"
MODELS = (
    "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3.2", "jamba-v0.1", "gpt-oss-120b", "qwen3-next-80b-a3b", "gemma-3-4b",
    "falcon-7b", "bert-base", "t5-v1.1-xxl",
)  # fmt: skip


def view(query: str) -> View:
    return View(state=parsed(query))


def titles(query: str) -> list[str]:
    return [line.operator["name"] for line in drawn(view(query)) if isinstance(line, Chain)]


def elements(one: View) -> dict[str, dict[str, Any]]:
    """Data of the boxes of the graph by id."""
    found = [element["data"] for element in graph(one)["network"]["elements"]]
    return {data["id"]: data for data in found if "id" in data}


@pytest.mark.parametrize("options", ["", "&quantization=fp8", "&engine=vllm", "&fusion=all"])
@pytest.mark.parametrize("model", MODELS)
def test_a_folded_block_has_the_operators_times_and_arrows_of_its_block(model: str, options: str) -> None:
    """Every arrow between two boxes is one between parts of them, and leads down; nothing else comes from outside."""
    try:
        blocks = view(f"model={model}&hardware=h200{options}&tab=network").shown.blocks
    except lv.UserError:  # a format or an engine that the model does not take
        return
    for lines in blocks.values():
        boxes = folded(lines)
        parts = {box.operator["name"]: box.parts if isinstance(box, Chain) else (box,) for box in boxes}
        assert sorted(one.key for listed in parts.values() for one in listed) == sorted(one.key for one in lines)
        for key in ("time_s", "flops", "traffic_bytes"):
            whole = sum(line.operator[key] for line in lines)
            assert sum(box.operator[key] for box in boxes) == pytest.approx(whole, rel=1e-12)
        assert sum(box.share for box in boxes) == pytest.approx(sum(line.share for line in lines), rel=1e-12)
        box_of = {one.operator["name"]: name for name, listed in parts.items() for one in listed}
        before = dataflow([line.operator for line in lines])
        arrows = {(box_of.get(a, a), box_of.get(b, b)) for a, b in before}
        after = dataflow([box.operator for box in boxes])
        assert {*after} == {one for one in arrows if one[0] != one[1]}
        place = {name: at for at, name in enumerate(parts)}
        assert all(place.get(a, -1) < place[b] for a, b in after)


def test_chains_are_norms_with_quantization_and_gates_with_their_activation() -> None:
    assert titles(DEEPSEEK) == [
        "attn_norm+quantize", "q_a_proj+norm+quantize", "index_k_proj+norm", "rope+quantize", "attention+quantize",
        "mlp_norm+quantize", "router+softmax", "expert_gate_proj+up_proj+act+quantize",
        "shared_gate_proj+up_proj+act+quantize",
    ]  # fmt: skip
    expected = ["attn_norm+quantize", "attention+quantize", "mlp_norm+quantize", "gate_proj+up_proj+mlp_act+quantize"]
    assert titles(f"{LLAMA}&chains=folded") == expected


def test_what_writes_a_cache_or_is_a_message_ends_no_chain() -> None:
    """Keys are rotated into the cache; a sum of devices stands alone, as the links are what it waits for."""
    alone = {line.operator["name"] for line in drawn(view(DEEPSEEK)) if not isinstance(line, Chain)}
    assert alone >= {"index_rope", "kv_a_norm", "attn_all_reduce", "attn_add", "expert_combine"}


def test_chains_are_folded_where_a_block_has_many_operators() -> None:
    few, many = view(LLAMA), view(DEEPSEEK)
    assert len(few.shown.blocks["layer"]) <= MOST_ALONE < len(many.shown.blocks["moe"])
    assert (titles(LLAMA), switch(few)["value"], switch(many)["value"]) == ([], "unfolded", "folded")
    assert titles(f"{DEEPSEEK}&chains=unfolded") == []


def test_a_block_that_would_become_wider_stays_as_it_is() -> None:
    """The kernels that vLLM fuses leave few chains, and the layers of the drawing fall otherwise."""
    one = view(f"{DEEPSEEK}&engine=vllm")
    widths = [graph(view(f"{DEEPSEEK}&engine=vllm&chains={how}"))["width"] for how in ("unfolded", "folded")]
    assert len(one.shown.blocks["moe"]) > MOST_ALONE and widths[0] < widths[1]
    assert (switch(one)["value"], graph(one)["width"]) == ("unfolded", widths[0])


def test_a_chain_of_the_address_is_unfolded() -> None:
    one = view(f"{DEEPSEEK}&chains=attn_norm,shared_act")
    boxes = elements(one)
    assert {"operator attn_norm", "operator attn_norm_quantize", "operator shared_up_proj"} <= {*boxes}
    assert "chain mlp_norm" in boxes and not {"chain attn_norm", "chain shared_act"} & {*boxes}
    assert switch(one)["choices"]["attn_norm,shared_act"] == "folded but for 2"


def test_a_chain_shows_its_sums_and_the_operator_that_is_chosen() -> None:
    """0-based place of shared_up_proj among the operators of the decode step: its box is that of the chain."""
    one = view(DEEPSEEK)
    names = ("shared_gate_proj", "shared_up_proj", "shared_act", "shared_act_quantize")
    parts = [line for line in one.shown.blocks["moe"] if line.operator["name"] in names]
    box = elements(one)["chain shared_act"]
    assert box["keys"] == [line.key for line in parts]
    seconds, share = sum(line.operator["time_s"] for line in parts), sum(line.share for line in parts)
    assert box["label"].endswith(f"\n{fmt.duration(seconds)} · {fmt.share(share)}")
    assert fmt.count(sum(line.operator["flops"] for line in parts)) + " FLOP" in box["card"]
    assert "several operators" in network(one)["pieces"][-1]["html"]
    marked = graph(view(f"{DEEPSEEK}&operator={parts[1].key}"))["network"]["elements"]
    assert [each["data"]["id"] for each in marked if each.get("classes", "").endswith("operator chosen")] == [
        "chain shared_act"
    ]


def test_a_chain_is_compared_by_its_sums() -> None:
    one = view(f"{DEEPSEEK}&against=hardware%3Db200")
    other = against.other(one)
    assert other is not None
    both = against.Against(first=one, last=other)
    made = both.drawn(graph(one))["network"]["elements"]
    box = next(each["data"] for each in made if each["data"].get("id") == "chain mlp_norm")
    times = []
    for each in (one, other):
        lines = [
            line for line in each.shown.blocks["moe"] if line.operator["name"] in ("mlp_norm", "mlp_norm_quantize")
        ]
        times.append(fmt.duration(sum(line.operator["time_s"] * line.operator["layers"] for line in lines)))
    assert box["label"].split("\n")[:2] == ["mlp_norm+quantize", " → ".join(times)]


@pytest.mark.parametrize("how", ["folded", "unfolded"])
@pytest.mark.parametrize("model", ["deepseek-v3.2", "jamba-v0.1", "llama-3.1-8b"])
def test_no_line_crosses_a_box(model: str, how: str) -> None:
    """Bends are read as Cytoscape does: shares of the way from start to end, and distances from it."""
    one = graph(view(f"model={model}&hardware=h200&tab=network&chains={how}"))["network"]["elements"]
    at = {each["data"]["id"]: tuple(each["position"].values()) for each in one if "position" in each}
    for each in (each for each in one if each.get("classes") == "bent"):
        (x, y), (to_x, to_y) = start, end = [at[each["data"][key]] for key in ("source", "target")]
        across, down = to_x - x, to_y - y
        length = hypot(across, down)
        shares, distances = (map(float, each["data"][key].split()) for key in ("along", "aside"))
        bends = [
            (x + share * across - distance * down / length, y + share * down + distance * across / length)
            for share, distance in zip(shares, distances, strict=True)
        ]
        assert len(bends) >= 2
        for (a, b), (c, d) in pairwise((start, *bends, end)):
            on_line = [(a + (c - a) * part / 64, b + (d - b) * part / 64) for part in range(65)]
            for box in {*at} - {each["data"]["source"], each["data"]["target"]}:
                inside = [
                    abs(px - at[box][0]) < WIDTH / 2 - 1 and abs(py - at[box][1]) < HEIGHT / 2 - 1 for px, py in on_line
                ]
                assert not any(inside), (each["data"], box)
