"""Settings of one option for some of the layers, such as `w4a16+w8a16@0-1/30-31`: first for all, then for ranges.

An option of matrices also takes operators, in all layers or in a range: `w2a16+w3a16@down_proj/0-3.q_proj`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Graph, Pass
from llmviewer.core.kinds import TIED

#: Between settings, between a setting and its layers, between ranges of layers, and before an operator of a range.
AND, AT, OR, OF = "+", "@", "/", "."
#: Beginning of a setting in place of which the formats of a model's layers are computed.
BUDGET = "budget="
#: Layer number of an operator that is named for all layers.
EVERY = -1
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?(?:\.([a-z]\w*))?", re.ASCII)
_OPERATOR = re.compile(r"[a-z]\w*", re.ASCII)


@frozen
class LayerSetting:
    """A setting and the layers that have it, counted from 0; no layers: all that no other setting names.

    matrices: layer (EVERY for all) and operator that have it whatever the layer's setting is.
    """

    text: str
    layers: frozenset[int] = frozenset()
    ranges: str = ""
    matrices: frozenset[tuple[int, str]] = frozenset()


def layer_settings(where: str, text: str) -> tuple[LayerSetting, ...]:
    """The settings of a text, the first for all layers that the others do not name.

    where: the option, for error messages.  Raises UserError for a range that is none, and layers named twice.
    """
    first, *others = (part.strip() for part in text.split(AND))
    if AT in first:
        raise UserError(f"{where}: {quoted(first)} names layers; first comes a setting for the others, as in A+B@0-1")
    found = [LayerSetting(text=first)]
    taken: set[tuple[int, str]] = set()
    for part in others:
        own, _, ranges = part.partition(AT)
        named = _named(where, part, ranges)
        if twice := _named_twice(named, taken):
            raise UserError(f"{where}: {twice} has two settings in {quoted(text)}")
        taken |= named
        layers = frozenset(layer for layer, operator in named if not operator)
        matrices = frozenset(one for one in named if one[1])
        found.append(LayerSetting(text=own.strip(), layers=layers, ranges=ranges.strip(), matrices=matrices))
    return tuple(found)


def _named(where: str, part: str, ranges: str) -> set[tuple[int, str]]:
    """Layers and operators of ranges such as 0-1/30/down_proj/4-7.q_proj; a whole layer has the operator ""."""
    found: set[tuple[int, str]] = set()
    for one in ranges.split(OR):
        if _OPERATOR.fullmatch(one.strip()):
            found.add((EVERY, one.strip()))
            continue
        match = _RANGE.fullmatch(one.strip())
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise UserError(
                f"{where} is {quoted(part)}; allowed: SETTING@LAYERS with ranges of layers such as 0-1/30-31"
            )
        found |= {(layer, match[3] or "") for layer in range(int(match[1]), int(match[2] or match[1]) + 1)}
    return found


def _named_twice(named: set[tuple[int, str]], taken: set[tuple[int, str]]) -> str:
    """A layer or an operator that is in both sets, or in one of them for all layers; empty if there is none."""
    everywhere = {operator for layer, operator in taken if layer == EVERY}
    anywhere = {operator for _, operator in taken if operator}
    both = {one for one in named if one in taken or one[1] in everywhere or (one[0] == EVERY and one[1] in anywhere)}
    if not both:
        return ""
    layer, operator = min(both)
    return f"layer {layer}" if not operator else operator if layer == EVERY else f"{operator} of layer {layer}"


def ranges_of(numbers: Iterable[int]) -> list[str]:
    """The numbers as ranges: [0, 1, 2, 5] are 0-2 and 5."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][-1] == number - 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ["-".join(map(str, one)) for one in found]


def check_layers(where: str, text: str, count: int, operators: Callable[[], Collection[str]]) -> None:
    """Raise UserError if a text names a layer that a model of `count` layers, or an operator that it, does not have."""
    if AT not in text:
        return
    settings = layer_settings(where, text)
    named = [one for setting in settings for one in setting.matrices]
    highest = max((*(layer for one in settings for layer in one.layers), *(layer for layer, _ in named)))
    if highest >= count:
        raise UserError(f"{where}: there is no layer {highest}; the model has layers 0 to {count - 1}")
    for name in sorted({name for _, name in named}):
        if name not in (known := operators()):
            raise unknown("operator", name, known, where=where)


def by_layer(where: str, settings: Sequence[LayerSetting], passes: Sequence[Pass]) -> Pass:
    """The pass that changes the layers of every setting by its own pass, and the rest of the graph by the first one.

    Layers of one kind with different settings become blocks of their own, which show an operator once per setting.
    Raises UserError for layers that share weights, and for settings of operators.
    """
    if any(one.matrices for one in settings):
        raise UserError(f"{where}: operators cannot have settings of their own; allowed: ranges of layers")
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

    def key(one: Block) -> tuple[int, int]:
        of_graph = one.name if one.name in place else one.name.rpartition(AT)[0]  # split here, perhaps not first
        return place[of_graph], min(one.numbers, default=0)

    return sorted((block for part in parts for block in part), key=key)


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
