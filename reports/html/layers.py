"""Layered drawing of the dataflow between the operators of one layer, from top to bottom.

Sugiyama's method: layers by the longest path from an input, long edges split at bends, fewer crossings by
sorting on the mean position of neighbours, x positions as close to neighbours as the order permits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

from llmviewer.core.frozen import frozen

Vertex: TypeAlias = "str | tuple[str, str, int]"  # an operator or input, or a bend of an edge
Neighbours: TypeAlias = "defaultdict[Vertex, list[Vertex]]"
Order: TypeAlias = "list[list[Vertex]]"

#: Sizes [pixel]: box, bend, gap between neighbours, distance between layers, margin.
WIDTH, HEIGHT = 132.0, 60.0
BEND = 10.0
GAP = 14.0
PITCH = 88.0
MARGIN = 12.0
#: Passes over the layers, alternately down and up.
SWEEPS = 12
#: Drawings that a process keeps.
MOST_KNOWN = 256


@frozen
class Box:
    """An operator, or a tensor from outside the layer (`operator` is None), centred at (x, y)."""

    name: str
    x: float
    y: float
    operator: Mapping[str, Any] | None = None


@frozen
class Drawing:
    """Size, boxes and edges of a drawing.  paths: (source, target, SVG path) per edge."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    paths: tuple[tuple[str, str, str], ...]


@frozen(kw_only=False)
class Graph:
    """Neighbours of every vertex in the layer above and in the layer below."""

    above: Neighbours = field(default_factory=lambda: defaultdict(list))
    below: Neighbours = field(default_factory=lambda: defaultdict(list))


def drawing(operators: Sequence[Mapping[str, Any]]) -> Drawing:
    """Returns the drawing of one block.  operators: OPERATOR objects in execution order."""
    found = _drawn(tuple((one["name"], tuple(one["inputs"]), tuple(one["outputs"])) for one in operators))
    known = {operator["name"]: operator for operator in operators}
    return replace(found, boxes=tuple(replace(box, operator=known.get(box.name)) for box in found.boxes))


@lru_cache(maxsize=MOST_KNOWN)
def _drawn(names: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]) -> Drawing:
    """Returns the drawing by the names of operators, their inputs and outputs, on which alone it depends."""
    operators = [dict(zip(("name", "inputs", "outputs"), one, strict=True)) for one in names]
    edges = dataflow(operators)
    graph, order = _layered(operators, edges)
    _uncross(graph, order)
    across = _places(graph, order)
    down = {vertex: MARGIN + HEIGHT / 2.0 + PITCH * at for at, layer in enumerate(order) for vertex in layer}
    left = min(x - _width(vertex) / 2.0 for vertex, x in across.items()) - MARGIN
    right = max(x + _width(vertex) / 2.0 for vertex, x in across.items()) + MARGIN
    boxes = (Box(name=vertex, x=across[vertex] - left, y=down[vertex]) for vertex in across if isinstance(vertex, str))
    at = {vertex: (across[vertex] - left, down[vertex]) for vertex in across}
    return Drawing(
        width=right - left,
        height=2.0 * MARGIN + HEIGHT + PITCH * (len(order) - 1),
        boxes=tuple(boxes),
        paths=tuple((source, target, _path(at, source, target)) for source, target in edges),
    )


def dataflow(operators: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns (writer, reader) edges; a tensor that no earlier operator wrote is an input `[name]`."""
    writers: dict[str, list[str]] = {}  # several operators may write parts of a cache
    edges: dict[tuple[str, str], None] = {}
    for operator in operators:
        for tensor in operator["inputs"]:
            edges |= dict.fromkeys((source, operator["name"]) for source in writers.get(tensor, [f"[{tensor}]"]))
        for tensor in operator["outputs"]:
            writers.setdefault(tensor, []).append(operator["name"])
    return [(source, target) for source, target in edges if source != target]


def _layered(operators: Sequence[Mapping[str, Any]], edges: Sequence[tuple[str, str]]) -> tuple[Graph, Order]:
    """Returns the graph, with a bend in every layer that an edge crosses, and its layers."""
    layer: dict[str, int] = {}
    for source, target in edges:  # in execution order: the layer of a source is final
        above = layer.setdefault(source, 0)
        layer[target] = max(layer.get(target, 0), above + 1)
    layer |= {operator["name"]: 0 for operator in operators if operator["name"] not in layer}
    for name in {source for source, _ in edges} - {target for _, target in edges}:  # just above its first reader
        layer[name] = min(layer[reader] for source, reader in edges if source == name) - 1
    graph = Graph()
    order: Order = [[] for _ in range(max(layer.values()) + 1)]
    for source, target in edges:
        bends: list[Vertex] = [(source, target, at) for at in range(layer[source] + 1, layer[target])]
        for upper, lower in pairwise([source, *bends, target]):
            graph.above[lower].append(upper)
            graph.below[upper].append(lower)
        for at, bend in enumerate(bends, start=layer[source] + 1):
            order[at].append(bend)
    for name, at in layer.items():
        order[at].append(name)
    return graph, order


def _uncross(graph: Graph, order: Order) -> None:
    """Reduces crossings: sorts layers by the mean position of neighbours, alternately above and below."""
    for sweep in range(SWEEPS):
        downward = sweep % 2 == 0
        numbers = range(1, len(order)) if downward else range(len(order) - 2, -1, -1)
        for at in numbers:
            neighbours = {vertex: place for place, vertex in enumerate(order[at - 1 if downward else at + 1])}
            place = {vertex: float(here) for here, vertex in enumerate(order[at])}
            for vertex in order[at]:
                near = [neighbours[v] for v in (graph.above if downward else graph.below)[vertex] if v in neighbours]
                place[vertex] = sum(near) / len(near) if near else place[vertex]
            order[at].sort(key=lambda vertex: place[vertex])


def _places(graph: Graph, order: Order) -> dict[Vertex, float]:
    """Returns x positions, as close to neighbours as the order of each layer permits."""
    across: dict[Vertex, float] = {}
    for layer in order:
        across |= _apart(layer, dict.fromkeys(layer, 0.0))
    for sweep in range(SWEEPS):
        for layer in order if sweep % 2 == 0 else reversed(order):
            wanted = {}
            for vertex in layer:
                near = [across[v] for v in (*graph.above[vertex], *graph.below[vertex])]
                wanted[vertex] = sum(near) / len(near) if near else across[vertex]
            across |= _apart(layer, wanted)
    return _straight(order, across)


def _straight(order: Order, across: dict[Vertex, float]) -> dict[Vertex, float]:
    """Aligns the bends of each edge vertically, just outside the boxes on their inner side."""
    middle = sum(across.values()) / len(across)
    chains: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for layer in order:
        for at, vertex in enumerate(layer):
            if isinstance(vertex, tuple):
                chains.setdefault(vertex[:2], []).append((across[vertex], _next_to_box(layer, at, middle, across)))
    outer = {}
    for key, places in chains.items():
        leftward = sum(x for x, _ in places) / len(places) < middle
        outer[key] = min(x for _, x in places) if leftward else max(x for _, x in places)
    for layer in order:
        across |= _apart(layer, {v: outer[v[:2]] if isinstance(v, tuple) else across[v] for v in layer})
    return across


def _next_to_box(layer: Sequence[Vertex], at: int, middle: float, across: Mapping[Vertex, float]) -> float:
    """Returns the position of a bend as close to the next inner box as the bends between them permit."""
    inward = 1 if across[layer[at]] < middle else -1
    offset = 0.0
    other = at + inward
    while 0 <= other < len(layer):
        if isinstance(layer[other], str):
            return across[layer[other]] - inward * ((WIDTH + BEND) / 2.0 + GAP + offset)
        offset += BEND + GAP
        other += inward
    return across[layer[at]]


def _apart(layer: Sequence[Vertex], wanted: Mapping[Vertex, float]) -> dict[Vertex, float]:
    """Returns positions with minimum gaps in order: the mean of shifting right and shifting left."""
    right: dict[Vertex, float] = {}
    left: dict[Vertex, float] = {}
    for placed, vertices, sign in ((right, layer, 1.0), (left, layer[::-1], -1.0)):
        before: Vertex | None = None
        for vertex in vertices:
            placed[vertex] = wanted[vertex]
            if before is not None:
                gap = (_width(before) + _width(vertex)) / 2.0 + GAP
                placed[vertex] = sign * max(sign * wanted[vertex], sign * placed[before] + gap)
            before = vertex
    return {vertex: (right[vertex] + left[vertex]) / 2.0 for vertex in layer}


def _width(vertex: Vertex) -> float:
    return WIDTH if isinstance(vertex, str) else BEND


def _path(at: Mapping[Vertex, tuple[float, float]], source: str, target: str) -> str:
    """Returns the SVG path from the bottom of one box through the bends to the top of the other."""
    bends = sorted((v for v in at if isinstance(v, tuple) and v[:2] == (source, target)), key=lambda v: v[2])
    (x, y), (end_x, end_y) = at[source], at[target]
    points = [(x, y + HEIGHT / 2.0)]
    for bend in bends:
        bend_x, bend_y = at[bend]
        points += [(bend_x, bend_y - HEIGHT / 2.0), (bend_x, bend_y + HEIGHT / 2.0)]
    points.append((end_x, end_y - HEIGHT / 2.0))
    commands = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (from_x, from_y), (to_x, to_y) in pairwise(points):
        middle = (from_y + to_y) / 2.0
        curved = f"C{from_x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        commands.append(curved if from_x != to_x else f"L{to_x:.1f} {to_y:.1f}")
    return "".join(commands)
