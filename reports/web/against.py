"""A configuration (A) against another (B) in one network: what does the same work in both, in colours and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.reports import format as fmt
from llmviewer.reports.html.layers import GAP, HEIGHT, WIDTH
from llmviewer.reports.html.operators import Line
from llmviewer.reports.page import Column, Emphasis, Facts, Row, Table, left, right
from llmviewer.reports.stage_table import moved, sum_over_layers
from llmviewer.reports.web import possible
from llmviewer.reports.web.chosen import chosen
from llmviewer.reports.web.graphs import palette
from llmviewer.reports.web.markup import Piece, block, page, piece
from llmviewer.reports.web.network import APART, BLOCK_WIDTH, PALE, named_rows
from llmviewer.reports.web.shown import Shown
from llmviewer.reports.web.view import NAMES, REQUEST, STAGES, View, view_of
from llmviewer.techniques.kernels.fusion_flow import SIBLING_NAMES

#: Options in which A and B may differ, with the title of their values in the menu.
CHANGED = {"hardware": "Chip", "quantization": "Number format", "kv_cache_dtype": "KV cache format", "engine": "Engine"}
#: Value of the menu that stands for a configuration that was kept, before its number.
KEPT = "kept="
#: Name of a kernel -> operators of which it is made, where its name does not list them.
MADE_OF = {short: frozenset(long.split("+")) for long, short in SIBLING_NAMES.items()}
MADE_OF |= {"attention": frozenset(("qk_matmul", "softmax", "sv_matmul"))}
#: Colours of what is slower and faster in B, as in the waterfall; opacity of the largest difference.
SLOWER, FASTER, FULL = "--series-1", "--series-2", 0.5
#: Part of a time below which a difference is rounding.
ROUNDING = 1e-9
#: Operators that the table lists one by one.
MOST = 12


def menu(view: View) -> dict[str, Any]:
    """The switch that chooses B: its value, and its choices in groups."""
    offered = possible.offered(view)
    groups: dict[str, Any] = {"": "nothing"}
    if view.state.others:
        groups["Kept"] = {f"{KEPT}{at}": view_of(one, "").name for at, one in enumerate(view.state.others, 1)}
    now = {name: view.state.words.get(name, "") for name in CHANGED} | {"hardware": view.state.hardware}
    for name, title in CHANGED.items():
        values = offered.get(name) or (NAMES[name]() if name in NAMES else [])
        groups[title] = {f"{name}={value}": value for value in values if value != now[name]}
    return {"name": "against", "label": "Against", "value": view.state.shown["against"], "choices": groups}


def other(view: View) -> View | None:
    """B with the stage of A; None where none is chosen.  Raises UserError."""
    words = view.state.shown["against"]
    if not words:
        return None
    found = view_of(_query(view, words), view.theme)
    _ = found.result  # what cannot be answered is refused
    return found


def _query(view: View, words: str) -> str:
    """The query of B.  Raises UserError for one that was not kept."""
    if not words.startswith(KEPT):
        return f"{view.state.query()}&{words}"
    number = words.removeprefix(KEPT)
    if not number.isdecimal() or not 0 < int(number) <= len(view.state.others):
        raise UserError(f"against is {quoted(words)}; {len(view.state.others)} configurations are kept")
    return f"{view.state.others[int(number) - 1]}&stage={view.stage}"


@frozen
class Pair:
    """Operators of a block that do the same work in A and in B, fused otherwise perhaps; a side may have none."""

    block: str
    parts: frozenset[str]
    sides: tuple[tuple[Line, ...], tuple[Line, ...]]

    @property
    def name(self) -> str:
        """Names of its operators in A, or in B where A has none."""
        return ", ".join(line.operator["name"] for line in self.sides[0] or self.sides[1])

    @property
    def seconds(self) -> tuple[float, float]:
        """Time of all layers in A and in B [s]."""
        a, b = (sum(line.operator["time_s"] * line.operator["layers"] for line in side) for side in self.sides)
        return float(a), float(b)

    @property
    def amount(self) -> float:
        """Seconds that B takes longer."""
        return _amount(*self.seconds)


def _amount(a: float, b: float) -> float:
    return 0.0 if abs(b - a) <= ROUNDING * max(a, b) else b - a


def parts_of(name: str) -> frozenset[str]:
    """Operators of which a kernel is made, by its name."""
    return frozenset(chain.from_iterable(MADE_OF.get(one, (one,)) for one in name.split("+")))


def pairs(first: Shown, last: Shown) -> list[Pair]:
    """All operators of A and B, those with a common part together, in the order of A; what only B has comes last."""
    found: dict[str, list[Pair]] = {}
    for side, shown in enumerate((first, last)):
        for line in shown.lines:
            name = line.operator["block"]
            sides = ((), (line,)) if side else ((line,), ())
            one = Pair(block=name, parts=parts_of(line.operator["name"]), sides=sides)
            found[name] = _joined(found.get(name, []), one)
    return [pair for listed in found.values() for pair in listed]


def _joined(listed: Sequence[Pair], new: Pair) -> list[Pair]:
    """The pairs with a new one, which becomes one with those that have a part of it."""
    same = [one for one in listed if one.parts & new.parts]
    together = [*same, new]
    a, b = (tuple(chain.from_iterable(one.sides[side] for one in together)) for side in (0, 1))
    made = Pair(block=new.block, parts=frozenset().union(*(one.parts for one in together)), sides=(a, b))
    at = listed.index(same[0]) if same else len(listed)
    return [*listed[:at], made, *(one for one in listed[at:] if not one.parts & new.parts)]


@frozen(slots=False)
class Against:
    """Two configurations in one stage.  first, last: A and B."""

    first: View
    last: View

    @cached_property
    def pairs(self) -> list[Pair]:
        """Operators that do the same work in both."""
        return pairs(self.first.shown, self.last.shown)

    @cached_property
    def blocks(self) -> dict[str, tuple[float, float]]:
        """Seconds of every block of A in A and in B."""
        a, b = self.first.shown, self.last.shown
        return {name: (a.seconds(name), b.seconds(name) if name in b.blocks else 0.0) for name in a.blocks}

    @cached_property
    def most(self) -> dict[str, float]:
        """Largest amount of blocks and of operators [s]."""
        largest = max(abs(_amount(*one)) for one in self.blocks.values()), max(abs(one.amount) for one in self.pairs)
        return {"block": largest[0] or 1.0, "operator": largest[1] or 1.0}

    def drawn(self, graph: Piece) -> Piece:
        """The graph of A with the times of both in its boxes, coloured by the difference, and what only B has below."""
        of_key = {line.key: one for one in self.pairs for line in one.sides[0]}
        before = graph["network"]["elements"]
        elements = [{**one, "data": {**one["data"], **self._of(one["data"], of_key)}} for one in before]
        added, height = self._only_last(graph)
        stacked = {**graph["stacked"], "height": graph["stacked"]["height"] + height}
        return {
            **graph,
            "network": {**graph["network"], "elements": [*elements, *added]},
            "label": f"{graph['label']}; A against B: {self.first.name} against {self.last.name}",
            "height": max(graph["height"], round(graph["stacked"]["tall"] + height)),
            "stacked": stacked,
        }

    def _of(self, data: dict[str, Any], of_key: dict[str, Pair]) -> dict[str, Any]:
        """Fields that an element shows otherwise than in the graph of A alone."""
        if "block" in data:
            title, seconds = data["label"].split("\n")[0], self.blocks[data["block"]]
            return self._painted([title], seconds, "block") | {"card": _card(title, seconds)}
        if "chain" in data:
            return self._chain(data, [of_key[key] for key in data["keys"]])
        if data.get("operator") in of_key:
            pair = of_key[data["operator"]]
            name = next(line.operator["name"] for line in pair.sides[0] if line.key == data["operator"])
            return self._operator(name, pair)
        return {}

    def _chain(self, data: dict[str, Any], found: Sequence[Pair]) -> dict[str, Any]:
        """Sums of a chain in A and in B, with those of operators that a kernel of B joins with it."""
        once = list(dict.fromkeys(found))
        more = {line.key for one in once for line in one.sides[0]} - {*data["keys"]}
        name, rows = data["card"].partition(":")[0], data["label"].split("\n")[:-2]
        note = f" ({len(more)} more)" if more else ""
        return self._painted(rows, _sums(once), "operator", note) | {"card": _card(name, _sums(once))}

    def _operator(self, name: str, pair: Pair) -> dict[str, Any]:
        joined = f" of {pair.name}" if len(pair.sides[0]) > 1 else ""
        note = f" ({len(pair.sides[0])} together)" if joined else ""
        kernels = ", ".join(line.operator["name"] for line in pair.sides[1])
        inside = f"; in B: {kernels}" if kernels not in ("", pair.name) else ""
        return self._painted(named_rows(name), pair.seconds, "operator", note) | {
            "card": _card(f"{name}{joined}", pair.seconds) + inside
        }

    def _painted(self, rows: Sequence[str], seconds: tuple[float, float], kind: str, note: str = "") -> dict[str, Any]:
        """Label and colours of a box for its seconds in A and in B."""
        colours, amount = palette(self.first.theme), _amount(*seconds)
        colour = colours[SLOWER if amount > 0.0 else FASTER]
        heat = PALE + (FULL - PALE) * min(abs(amount) / self.most[kind], 1.0) if amount else 0.0
        times = " → ".join(fmt.duration(one) for one in seconds if one or not any(seconds))
        label = "\n".join((*rows, times, _ratio(seconds) + note))
        return {"label": label, "fill": colour, "heat": heat, "edge": colour if amount else colours["--soft"]}

    def _only_last(self, graph: Piece) -> tuple[list[dict[str, Any]], float]:
        """Boxes of operators of the unfolded block that only B has, in rows below those of A, and their height."""
        listed = [one for one in self.pairs if not one.sides[0] and one.block == self.first.unfolded]
        across = graph["width"] - BLOCK_WIDTH - APART
        columns = max(int((across + GAP) // (WIDTH + GAP)), 1)
        left, top = BLOCK_WIDTH / 2.0 + APART + WIDTH / 2.0, graph["stacked"]["tall"] + HEIGHT / 2.0
        pitch = HEIGHT + GAP
        made = [
            {
                "data": {"id": f"operator {one.name} of B", **self._operator(one.name, one)},
                "position": {"x": left + (at % columns) * (WIDTH + GAP), "y": top + at // columns * pitch},
                "classes": "operator added",
            }
            for at, one in enumerate(listed)
        ]
        return made, -(-len(made) // columns) * pitch

    def above(self) -> list[Piece]:
        """Names of A and B, the totals of both, the colours, and the operator that is chosen."""
        colours = palette(self.first.theme)
        key = [("faster in B", colours[FASTER]), ("slower in B", colours[SLOWER])]
        said = [piece("note", text) for text in (self._strongest(), self._chosen())]
        text = page((self._names(), self._totals())) + piece("legend", key) + "".join(said)
        return [block(text, "against")]

    def _strongest(self) -> str:
        largest = max(self.pairs, key=lambda one: abs(one.amount))
        if not largest.amount:
            return "No operator takes another time in B."
        return (
            f"The stronger the colour, the more of the difference; most of it is {largest.name} with "
            f"{_signed(largest.amount)}. Times are of all layers. A dashed box is an operator that only B has."
        )

    def _chosen(self) -> str:
        key = chosen(self.first).key
        pair = next(one for one in self.pairs if key in (line.key for line in one.sides[0]))
        return f"Chosen: {_card(pair.name, pair.seconds)}"

    def _names(self) -> Facts:
        """Names of A and B, and which of both does not fit."""
        names = (("A", self.first), ("B", self.last))
        lines = [(name, one.name) for name, one in names]
        lines += [("Warning", f"{name} does not fit in memory; its times are those of a device with more")
                  for name, one in names if not one.answer["memory"]["fits"]]  # fmt: skip
        return Facts(lines=tuple(lines))

    def _totals(self) -> Table:
        """Time, operations, bytes and memory of both."""
        rows = tuple(
            Row(cells=(label, show(a), show(b), fmt.times(b / a) if a else fmt.DASH))
            for label, show, (a, b) in self._amounts()
            if a or b
        )
        title = f"A against B, {STAGES[self.first.stage]}"
        return Table(columns=_columns("Figure", "A", "B", "B / A"), rows=rows, title=title)

    def _amounts(self) -> list[tuple[str, Callable[[Any], str], list[float]]]:
        """Label, format, and the figures of A and of B."""
        views = (self.first, self.last)
        found: list[tuple[str, Callable[[Any], str], list[float]]] = [
            ("Time", fmt.duration, [one.shown.time_s for one in views]),
            ("Memory per device", fmt.memory, [one.answer["memory"]["total_bytes"] for one in views]),
            ("Devices", fmt.whole, [one.configuration.system.parallelism.devices for one in views]),
        ]
        if self.first.stage == REQUEST:  # whose passes differ
            return found
        drawn = [{"operators": [line.operator for line in one.shown.lines]} for one in views]
        moves = [moved(one) for one in drawn]
        found[1:1] = [("FLOP", fmt.count, [sum_over_layers(one, "flops") for one in drawn])]
        found[2:2] = [(f"Moved: {what}", fmt.traffic, [one[what] for one in moves]) for what in moves[0]]
        return found

    def below(self) -> Piece:
        """The operators with the largest differences; with what is no operator they sum to the times."""
        listed = sorted(self.pairs, key=lambda one: -abs(one.amount))
        rows = [_row(f"{one.name} ({one.block})", *one.seconds) for one in listed[:MOST]]
        if listed[MOST:]:
            rows.append(_row(f"others ({len(listed) - MOST})", *_sums(listed[MOST:])))
        whole = self.first.shown.time_s, self.last.shown.time_s
        rest = [time - inside for time, inside in zip(whole, _sums(listed), strict=True)]
        rest = [0.0 if abs(one) <= ROUNDING * whole[0] else one for one in rest]
        if any(rest):
            rows.append(_row("engine, drafts, overlap: no operators", *rest))
        columns, total = _columns("Operator", "A", "B", "B − A", "B / A"), _row("All", *whole).cells
        made = Table(columns=columns, rows=tuple(rows), title="Where the difference is", total=total)
        return block(page((made,)), "against")


def _sums(listed: Sequence[Pair]) -> tuple[float, float]:
    """Seconds of pairs in A and in B."""
    a, b = zip(*(one.seconds for one in listed), strict=True)
    return sum(a), sum(b)


def _columns(first: str, *others: str) -> tuple[Column, ...]:
    return (left(first), *map(right, others))


def _row(name: str, a: float, b: float) -> Row:
    ratio = _ratio((a, b)) if a > 0.0 and b > 0.0 else fmt.DASH
    emphasis = Emphasis.FAINT if _amount(a, b) == 0.0 else Emphasis.PLAIN
    return Row(cells=(name, fmt.duration(a), fmt.duration(b), _signed(_amount(a, b)), ratio), emphasis=emphasis)


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0.0 else '−' if seconds else ''}{fmt.duration(abs(seconds))}"


def _ratio(seconds: tuple[float, float]) -> str:
    """B over A; words where one of both has no such operator."""
    a, b = seconds
    return fmt.times(b / a) if a and b else "only in A" if a else "only in B" if b else "no time"


def _card(name: str, seconds: tuple[float, float]) -> str:
    a, b = map(fmt.duration, seconds)
    return f"{name}: A {a}, B {b}, {_ratio(seconds)} ({_signed(_amount(*seconds))})"
