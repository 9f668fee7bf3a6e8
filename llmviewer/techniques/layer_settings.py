"""Settings of one option for some of the layers, such as `w4a16+w8a16@0-1/30-31`: first for all, then for ranges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.ir import Block, Graph, Pass
from llmviewer.core.kinds import TIED

#: Between settings, between a setting and its layers, and between ranges of layers.
AND, AT, OR = "+", "@", "/"
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSetting:
    """A setting and the layers that have it, counted from 0; no layers: all that no other setting names."""

    text: str
    layers: frozenset[int] = frozenset()
    ranges: str = ""


def layer_settings(where: str, text: str) -> tuple[LayerSetting, ...]:
    """The settings of a text, the first for all layers that the others do not name.

    where: the option, for error messages.  Raises UserError for a range that is none, and layers named twice.
    """
    first, *others = (part.strip() for part in text.split(AND))
    if AT in first:
        raise UserError(f"{where}: {quoted(first)} names layers; first comes a setting for the others, as in A+B@0-1")
    found = [LayerSetting(text=first)]
    taken: set[int] = set()
    for part in others:
        own, _, ranges = part.partition(AT)
        layers = _numbers(where, part, ranges)
        if twice := layers & taken:
            raise UserError(f"{where}: layer {min(twice)} has two settings in {quoted(text)}")
        taken |= layers
        found.append(LayerSetting(text=own.strip(), layers=layers, ranges=ranges.strip()))
    return tuple(found)


def _numbers(where: str, part: str, ranges: str) -> frozenset[int]:
    """Layers of ranges such as 0-1/30."""
    found: set[int] = set()
    for one in ranges.split(OR):
        match = _RANGE.fullmatch(one.strip())
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise UserError(
                f"{where} is {quoted(part)}; allowed: SETTING@LAYERS with ranges of layers such as 0-1/30-31"
            )
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def check_layers(where: str, text: str, count: int) -> None:
    """Raise UserError if a text names a layer that a model of `count` layers does not have."""
    if AT not in text:
        return
    highest = max(layer for one in layer_settings(where, text) for layer in one.layers)
    if highest >= count:
        raise UserError(f"{where}: there is no layer {highest}; the model has layers 0 to {count - 1}")


def by_layer(where: str, settings: Sequence[LayerSetting], passes: Sequence[Pass]) -> Pass:
    """The pass that changes the layers of every setting by its own pass, and the rest of the graph by the first one.

    Layers of one kind with different settings become blocks of their own, which show an operator once per setting.
    Raises UserError for layers that share weights.
    """
    if len(passes) == 1:
        return passes[0]

    def changed(graph: Graph) -> Graph:
        layers = [block for block in graph.blocks if block.is_layer]
        numbers = dict(zip((block.name for block in layers), layer_numbers(layers), strict=True))
        parts: list[list[Block]] = [[] for _ in settings]
        for block in graph.blocks:
            for at, own in _split(where, block, settings, numbers.get(block.name, [])):
                parts[at].append(own)
        graphs = (part(Graph(blocks=tuple(own))) for part, own in zip(passes, parts, strict=True))
        made = {block.name: block for one in graphs for block in one.blocks}
        return Graph(blocks=tuple(made[block.name] for block in _in_order(graph, parts)))

    return changed


def _in_order(graph: Graph, parts: Sequence[Sequence[Block]]) -> list[Block]:
    """Blocks of all parts in the order of the graph; those of one kind by their first layer."""
    place = {block.name: at for at, block in enumerate(graph.blocks)}
    listed = [block for part in parts for block in part]
    return sorted(listed, key=lambda one: (place[one.name.partition(AT)[0]], min(one.numbers, default=0)))


def _split(
    where: str, block: Block, settings: Sequence[LayerSetting], numbers: Sequence[int]
) -> list[tuple[int, Block]]:
    """Index of a setting and the block of the layers that have it; other blocks than layers have the first."""
    named = set().union(*(one.layers for one in settings))
    if not named & set(numbers):
        return [(0, block)]
    if block.scope or any(name.startswith(TIED) for name in block.weights()):
        raise UserError(f"{where}: the layers '{block.name}' share weights and cannot have settings of their own")
    found = []
    for at, one in enumerate(settings):
        own = tuple(n for n in numbers if (n in one.layers if one.layers else n not in named))
        name = f"{block.name}{AT}{one.ranges}" if one.layers else block.name
        if own:
            found.append((at, replace(block, name=name, repeats=len(own), numbers=own)))
    return found
