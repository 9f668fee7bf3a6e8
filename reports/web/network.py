"""The network graph: blocks of the model one below another, one of them unfolded into its operators."""

from __future__ import annotations

import re
from itertools import pairwise
from math import hypot
from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.html.layers import HEIGHT, WIDTH, Drawing, drawing
from llmviewer.reports.html.operators import Line
from llmviewer.reports.stage_table import OVERLAP_NOTE, SINGLE_BLOCKS, moved, sum_over_layers
from llmviewer.reports.web import chains
from llmviewer.reports.web.chains import Chain
from llmviewer.reports.web.graphs import of_bound, palette
from llmviewer.reports.web.markup import Piece, block, group, piece
from llmviewer.reports.web.shown import Shown
from llmviewer.reports.web.view import REQUEST, STAGES, View

#: Width of a block's box, distance between blocks, and to the unfolded one [pixel].
BLOCK_WIDTH, BLOCK_HEIGHT, PITCH, APART = 190.0, 64.0, 96.0, 60.0
#: Least height of the graph [pixel].
LOWEST = 420.0
#: Opacity of the colour of an operator that takes no time, and of one that takes a third of the stage or more.
PALE, FULL, MOST_SHARE = 0.1, 0.6, 1.0 / 3.0
ELEMENTS = "network"
GROUPED = """Layers of one kind are one box, wherever they stand in the model: kinds may alternate, and arrows lead from
the first layer of a kind to that of the next."""
CHAINS = "A box with a double line is several operators, with their sums; a click unfolds it."
#: Stage -> what its draft models do in the time that is shown.
DRAFTS = {
    "prefill": "Shares are of the time of prefill with that of the draft model.",
    "decode": "Shares are of the time of one round: the draft model's passes, and the one that verifies them.",
    "request": "Shares are of the whole request, the passes of the draft model included.",
}
AT_ONCE = "Stages of the pipeline run at once: times of operators are scaled to the time of the request."
SERIAL = f"Operators one after another{OVERLAP_NOTE}."
#: Characters of a line in an operator's box.
MOST_CHARACTERS = 20
#: How far from a box a line that bends is straight above or below it, so that it crosses no other [pixel].
LEAD = 8.0
#: Numbers of each command of an SVG path, the last two of which are the point that it reaches.
COMMANDS = re.compile(r"[MLC]([^MLC]+)")

Point = tuple[float, float]


def network(view: View) -> Piece:
    """The graph of the shown stage, and what is to be known about it."""
    return group("", block(piece("note", _totals(view))), graph(view), notes(view))


def graph(view: View) -> Piece:
    """The graph of the shown stage."""
    found, chosen = view.shown, view.unfolded
    lines = chains.drawn(view)
    drawn = drawing([line.operator for line in lines])
    elements = [*_blocks(found, chosen, view), *_drafts(found, view), *_operators(drawn, lines, view)]
    height = max(drawn.height, PITCH * (len(found.blocks) + len(found.drafts)), LOWEST)
    described = (
        f"Blocks of {view.configuration.model.name} in {STAGES[view.stage]}, {chosen} unfolded into its operators"
    )
    return {
        "network": {
            "id": ELEMENTS,
            "elements": elements,
            "layout": {"name": "preset", "fit": True, "padding": 12},
            "stylesheet": _styles(view.theme),
            "minZoom": 0.2,
            "maxZoom": 2.5,
            "autoRefreshLayout": False,  # it would run a tenth of a second later, on a graph that may be gone
            "autoungrabify": True,
            "userZoomingEnabled": False,  # the wheel scrolls the page; buttons and keys zoom
            "boxSelectionEnabled": False,
        },
        "label": described,
        "width": round(BLOCK_WIDTH + APART + drawn.width),
        "height": round(height),
        "stacked": _stacked(drawn, len(found.blocks) + len(found.drafts)),
    }


def _totals(view: View) -> str:
    """Time, operations and bytes of all that is drawn, and the memory of the run."""
    found = view.shown
    drawn = {"operators": [line.operator for line in found.lines]}
    bytes_of = ", ".join(f"{what} {fmt.traffic(amount)}" for what, amount in moved(drawn).items() if amount)
    per_pass = f"{fmt.count(sum_over_layers(drawn, 'flops'))} FLOP; moved: {bytes_of}; "
    stored, budget = (fmt.memory(view.answer["memory"][key]) for key in ("total_bytes", "budget_bytes"))
    counted = "" if view.stage == REQUEST else per_pass
    return f"{STAGES[view.stage].capitalize()}: {fmt.duration(found.time_s)}; {counted}memory {stored} of {budget}"


def _stacked(drawn: Drawing, boxes: int) -> dict[str, float]:
    """The graph with the operators below the boxes of blocks and drafts, for narrow screens.

    left: where operators begin beside the boxes.  across, down: by how much they move.  tall: height of operators.
    """
    left, down = BLOCK_WIDTH / 2.0 + APART, PITCH * boxes
    return {
        "left": left,
        "across": left + drawn.width / 2.0,
        "down": down,
        "width": max(drawn.width, BLOCK_WIDTH),
        "height": down + drawn.height,
        "tall": drawn.height,
    }


def _blocks(found: Shown, chosen: str, view: View) -> list[dict[str, Any]]:
    """Boxes of the blocks from top to bottom, with their share of the time."""
    elements: list[dict[str, Any]] = []
    for at, (name, lines) in enumerate(found.blocks.items()):
        share, repeats = found.share(name), lines[0].operator["layers"]
        heaviest = max(lines, key=lambda line: line.share)
        times = "" if repeats == 1 else f" × {repeats}"
        label = f"{name}{times}\n{fmt.duration(found.seconds(name))}\n{fmt.share(share)}"
        elements.append(
            {
                "data": {"id": f"block {name}", "label": label, "block": name, **_paint(heaviest, share, view)},
                "position": {"x": 0.0, "y": PITCH * at},
                "classes": "block chosen" if name == chosen else "block",
            }
        )
    for before, after in pairwise(found.blocks):
        elements.append({"data": {"source": f"block {before}", "target": f"block {after}"}})
    return elements


def _drafts(found: Shown, view: View) -> list[dict[str, Any]]:
    """Boxes of draft models below the blocks, with their share of the time; they have no operators here."""
    return [
        {
            "data": {
                "id": f"draft {name}",
                "label": f"draft {name}\n{fmt.duration(seconds)}\n{fmt.share(seconds / found.time_s)}",
            },
            "position": {"x": 0.0, "y": PITCH * at},
            "classes": "draft",
        }
        for at, (name, seconds) in enumerate(found.drafts.items(), start=len(found.blocks))
    ]


def notes(view: View) -> Piece:
    """Sentences below the graph: what its boxes join, and why times do not add up."""
    found = view.shown
    said = []
    if any(isinstance(line, Chain) for line in chains.drawn(view)):
        said.append(CHAINS)
    if sum(name not in SINGLE_BLOCKS for name in found.blocks) > 1:
        said.append(GROUPED)
    if found.drafts:
        said.append(DRAFTS[view.stage])
    if any(found.hidden_s.values()):
        said.append(SERIAL)
    if found.factor < 1.0:
        said.append(AT_ONCE)
    return block("".join(piece("note", text) for text in said))


def _operators(drawn: Drawing, lines: list[Line], view: View) -> list[dict[str, Any]]:
    """Operators of the unfolded block at the places of the report's drawing, to the right of the blocks."""
    of_name = {line.operator["name"]: line for line in lines}
    ids = {box.name: _id(box.name, of_name.get(box.name)) for box in drawn.boxes}
    left = BLOCK_WIDTH / 2.0 + APART
    elements: list[dict[str, Any]] = []
    for box in drawn.boxes:
        line = of_name.get(box.name)
        data: dict[str, Any] = {"id": ids[box.name], "label": box.name.strip("[]")}
        classes = "tensor"
        if line is not None:
            keys = [one.key for one in line.parts] if isinstance(line, Chain) else [line.key]
            own = {"chain": line.name} if isinstance(line, Chain) else {"operator": line.key}
            data |= {"label": _label(line), "card": _card(line), "keys": keys, **own, **_paint(line, line.share, view)}
            classes = " ".join((*own, "operator")) + (" chosen" if view.state.shown["operator"] in keys else "")
        place = {"x": left + box.x, "y": box.y - HEIGHT / 2.0}
        elements.append({"data": data, "position": place, "classes": classes})
    at = {box.name: (box.x, box.y) for box in drawn.boxes}
    for source, target, path in drawn.paths:
        ends = {"source": ids[source], "target": ids[target]}
        bends = _bends(path, at[source], at[target])
        elements.append({"data": ends | bends, "classes": "bent" if bends else "straight"})
    return elements


def _id(name: str, line: Line | None) -> str:
    """Identifier of the box of an operator, a chain or a tensor."""
    return f"chain {line.name}" if isinstance(line, Chain) else f"operator {name}"


def named_rows(name: str) -> list[str]:
    """The name of an operator; that of a fused one has a line for every few of its parts."""
    rows = [""]
    for part in re.split(r"(?<=\+)", name):
        if rows[-1] and len(rows[-1]) + len(part) > MOST_CHARACTERS:
            rows.append("")
        rows[-1] += part
    return rows


def _label(line: Line) -> str:
    """Name, bound and time of an operator."""
    times = f"{fmt.duration(line.operator['time_s'])} · {fmt.share(line.share)}"
    return "\n".join((*named_rows(line.operator["name"]), line.operator["bound"], times))


def _card(line: Line) -> str:
    """The figures of an operator that the pointer is over."""
    one = line.operator
    counts = f"{fmt.count(one['flops'])} FLOP, {fmt.traffic(one['traffic_bytes'])}"
    return f"{one['name']}: {fmt.duration(one['time_s'])}, {fmt.share(line.share)}; {one['bound']}-bound; {counts}"


def _bends(path: str, start: Point, end: Point) -> dict[str, str]:
    """Bends of an edge as Cytoscape takes them: shares of the way from start to end, and distances from that line."""
    (x, y), *reached, (end_x, end_y) = (tuple(map(float, one.split()[-2:])) for one in COMMANDS.findall(path))
    if not reached:
        return {}
    reached = [(x, y + LEAD), *reached, (end_x, end_y - LEAD)]
    ends = (0, len(reached) - 1)
    places = [  # those between two at the same distance from the side are on a line with them
        one for at, one in enumerate(reached)
        if at in ends or not reached[at - 1][0] == one[0] == reached[at + 1][0]
    ]  # fmt: skip
    across, down = end[0] - start[0], end[1] - start[1]
    length = hypot(across, down)
    along = [((x - start[0]) * across + (y - start[1]) * down) / length**2 for x, y in places]
    aside = [((y - start[1]) * across - (x - start[0]) * down) / length for x, y in places]
    return {"along": " ".join(f"{one:.3f}" for one in along), "aside": " ".join(f"{one:.1f}" for one in aside)}


def _paint(line: Line, share: float, view: View) -> dict[str, Any]:
    """Colours of a box: by the bound, or by the time as heat."""
    bound = line.operator["bound"]
    if view.state.shown["colour"] == "time":
        heat = min(share / MOST_SHARE, 1.0)
        return {"fill": palette(view.theme)["--compute"], "heat": PALE + (FULL - PALE) * heat, "edge": _soft(view)}
    return {"fill": of_bound(bound, view.theme, "-tint"), "heat": 1.0, "edge": of_bound(bound, view.theme)}


def _soft(view: View) -> str:
    return palette(view.theme)["--soft"]


def _styles(theme: str) -> list[dict[str, Any]]:
    colours = palette(theme)
    box = {"shape": "round-rectangle", "text-wrap": "wrap", "text-valign": "center", "text-halign": "center"}
    return [
        {
            "selector": "node",
            "style": {**box, "label": "data(label)", "color": colours["--ink"], "font-size": 12, "width": WIDTH,
                      "height": HEIGHT, "font-family": "system-ui, sans-serif"},
        },
        {
            "selector": ".block, .operator",
            "style": {"background-color": "data(fill)", "background-opacity": "data(heat)", "border-width": 2,
                      "border-color": "data(edge)"},
        },
        {"selector": ".block", "style": {"width": BLOCK_WIDTH, "height": BLOCK_HEIGHT, "font-size": 13}},
        {
            "selector": ".tensor",
            "style": {"background-color": colours["--paper"], "border-width": 1, "border-style": "dashed",
                      "border-color": colours["--soft"], "height": 26, "font-size": 11, "width": 100},
        },
        {
            "selector": ".draft",
            "style": {"background-color": colours["--paper"], "border-width": 2, "border-style": "dashed",
                      "border-color": colours["--soft"], "width": BLOCK_WIDTH, "height": BLOCK_HEIGHT,
                      "font-size": 13},
        },
        {"selector": ".operator", "style": {"font-size": 11}},
        {"selector": ".chain", "style": {"border-style": "double", "border-width": 6}},
        {"selector": ".added", "style": {"border-style": "dashed"}},
        {"selector": ".chosen", "style": {"border-style": "solid", "border-width": 5}},
        {"selector": ".near", "style": {"border-width": 7, "border-color": colours["--focus"]}},
        {
            "selector": "edge",
            "style": {"width": 1.2, "line-color": colours["--soft"], "target-arrow-color": colours["--soft"],
                      "target-arrow-shape": "triangle", "curve-style": "bezier", "arrow-scale": 0.8},
        },
        {
            "selector": ".bent",
            "style": {"curve-style": "segments", "segment-weights": "data(along)",
                      "segment-distances": "data(aside)", "edge-distances": "node-position"},
        },
    ]  # fmt: skip
