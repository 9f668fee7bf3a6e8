"""Chains of operators that a network draws as one box: a norm with its quantization, gates with their activation."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from llmviewer.core.frozen import frozen
from llmviewer.core.kinds import Kind
from llmviewer.reports.html.layers import drawing
from llmviewer.reports.html.operators import Line
from llmviewer.reports.web.view import View

#: Kinds of what can follow in a chain; of products; of messages, which stay alone.
AFTER = (Kind.ELEMENTWISE.value, Kind.NORM.value, Kind.SOFTMAX.value)
PRODUCT, MESSAGE = Kind.GEMM.value, Kind.COLLECTIVE.value
#: Operators of a block whose chains stay as they are, at most.
MOST_ALONE = 20
FOLDED, ONE_BY_ONE = "folded", "unfolded"
#: Fields of an operator that are those of a chain as sums.
SUMS = ("time_s", "flops", "traffic_bytes")


@frozen(slots=False, eq=False)
class Chain(Line):
    """Operators drawn as one, with their sums; its other figures are those of the part that takes longest.

    name: of the part by which the chain is known.
    """

    name: str
    parts: tuple[Line, ...]


def drawn(view: View) -> list[Line]:
    """Nodes and lines that the network draws: chains are folded, or not, or but for those that were clicked."""
    lines = view.shown.blocks[view.unfolded]
    how = how_folded(view)
    return list(lines) if how == ONE_BY_ONE else folded(lines, how.split(","))


def how_folded(view: View) -> str:
    """Whether chains are folded, or the names of those that are not, with a comma between them.

    Unless the address says it, they are where a block has many operators and does not become wider.
    """
    lines = view.shown.blocks[view.unfolded]
    alone, together = (drawing([line.operator for line in each]).width for each in (lines, folded(lines)))
    many = len(lines) > MOST_ALONE and together <= alone
    return view.state.shown["chains"] or (FOLDED if many else ONE_BY_ONE)


def switch(view: View) -> dict[str, Any]:
    """The switch that folds all chains or none; a click on one unfolds it."""
    how = how_folded(view)
    some = {} if how in (FOLDED, ONE_BY_ONE) else {how: f"folded but for {len(how.split(','))}"}
    return {
        "name": "chains",
        "label": "Chains",
        "value": how,
        "choices": {FOLDED: FOLDED, ONE_BY_ONE: ONE_BY_ONE, **some},
    }


def folded(lines: Sequence[Line], unfolded: Container[str] = ()) -> list[Line]:
    """Operators of a block with each chain as one line, save the chains of these names."""
    found: list[Line] = []
    for name, parts in chains(lines).items():
        found += parts if len(parts) == 1 or name in unfolded else [_chain(name, parts)]
    return found


def chains(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Operators of a block by the name of their chain; most are alone.

    A chain is products with what alone reads them (gate + up + act, router + softmax), and an output with what changes
    it alone (norm + quantize).  No other operator stands between its parts, so no arrow leads back into its box.
    """
    writers = {tensor: line for line in lines for tensor in reversed(line.operator["outputs"])}
    readers: dict[str, set[str]] = {}
    for line in lines:
        for writer in _writers(line.operator, writers):
            readers.setdefault(writer["name"], set()).add(line.operator["name"])
    of: dict[str, str] = {line.operator["name"]: line.operator["name"] for line in lines}
    for line in lines:
        before = [*_before(line.operator, writers, readers)]
        if len(before) == 1 and before[0]["kind"] != PRODUCT:
            of[line.operator["name"]] = of[before[0]["name"]]
        else:
            of |= {one["name"]: line.operator["name"] for one in before}
    found: dict[str, list[Line]] = {name: [] for name in of if of[name] == name}
    for line in lines:
        found[of[line.operator["name"]]].append(line)
    return found


def _writers(operator: Mapping[str, Any], writers: Mapping[str, Line]) -> Iterator[Mapping[str, Any]]:
    """Operators of the block that write what an operator reads."""
    yield from (writers[tensor].operator for tensor in operator["inputs"] if tensor in writers)


def _before(
    operator: Mapping[str, Any], writers: Mapping[str, Line], readers: Mapping[str, set[str]]
) -> list[Mapping[str, Any]]:
    """Operators before this one in its chain; none where it begins one."""
    name, inputs = operator["name"], operator["inputs"]
    found = [*_writers(operator, writers)]
    if operator["kind"] not in AFTER or operator["outputs"] != [name] or len(found) < len(inputs):
        return []
    if all(one["kind"] == PRODUCT and readers[one["name"]] == {name} for one in found):
        return found
    changes = len(inputs) == 1 and operator["kind"] == Kind.ELEMENTWISE.value and found[0]["kind"] != MESSAGE
    return found if changes else []


def _chain(name: str, parts: Sequence[Line]) -> Chain:
    longest = max(parts, key=lambda line: line.share)
    operators = [line.operator for line in parts]
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    for one in operators:
        read |= dict.fromkeys(tensor for tensor in one["inputs"] if tensor not in written)
        written |= dict.fromkeys(one["outputs"])
    sums = {key: sum(one[key] for one in operators) for key in SUMS}
    own = {"name": _title([one["name"] for one in operators]), "inputs": [*read], "outputs": [*written], **sums}
    return Chain(
        key=longest.key,
        configuration=longest.configuration,
        stage=longest.stage,
        operator={**longest.operator, **own},
        share=sum(line.share for line in parts),
        efficiency=longest.efficiency,
        name=name,
        parts=tuple(parts),
    )


def _title(names: Sequence[str]) -> str:
    """Names of parts, of which those after the first leave out the words with which others begin."""
    words = (names[0][: at + 1] for at, sign in enumerate(names[0]) if sign == "_")
    known = ("", *words, *(f"{one}_" for one in names))
    return "+".join((names[0], *(one.removeprefix(max(filter(one.startswith, known), key=len)) for one in names[1:])))
