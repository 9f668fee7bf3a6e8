"""An explained number as a page: the tree as an indented table, with formulas, values and sources."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Align, Column, Facts, Page, Row, Table, left, plain, right
from llmviewer.reports.stage_table import share_bar
from llmviewer.result.explanation.explain import DEPTH, ROWS, Explanation
from llmviewer.result.explanation.node import Node, folded, is_sum

COLUMNS = (
    left("Number"),
    right("Value"),
    right("Share", rank=1),
    Column(title="Share of the number", align=Align.LEFT, rank=3, visual=True),
    left("Formula", rank=2),
    left("Source", rank=4),
)
#: Longest formula and source of a row; the sources stand below in full [characters].
FORMULA, SOURCE = 52, 60
#: Widest indented names beside which a terminal of 80 columns has room for formulas [characters].
NAMES = 24


def page(found: Explanation, depth: int = DEPTH, most: int = ROWS) -> Page:
    """Returns the verdict, the tree of this depth with the largest parts of each sum, and the sources of its leaves."""
    root = folded(found.root, most, depth)
    rows = tuple(_rows(root, found.root.value, 0))
    first = Facts(lines=(("Answer", verdict(found)), ("Check", _check(found))))
    table = Table(columns=COLUMNS, rows=rows, title=f"{found.metric} of {found.subject}")
    return first, table, *_formulas(root), Facts(lines=tuple(_sources(root)), title="Sources")


def _formulas(root: Node) -> Iterator[Facts]:
    """Returns the formulas that are longer than their cells; of a deep tree, whose cells may have no place, all."""
    shown = [(node, formula(node)) for node in root.walk()]
    least = 0 if max(map(len, _indented(root, 0))) > NAMES else FORMULA
    lines = tuple((plain(node.name), text) for node, text in shown if len(text) > least and len(node.children) > 0)
    if lines:
        yield Facts(lines=lines, title="Formulas")


def _indented(node: Node, level: int) -> Iterator[str]:
    yield "  " * level + node.name
    for child in node.children:
        yield from _indented(child, level + 1)


def _cut(text: str) -> str:
    return text if len(text) <= FORMULA else f"{text[: FORMULA - 1]}…"


def verdict(found: Explanation) -> str:
    """Returns the number in a sentence, with the part that is largest."""
    text = f"{found.metric} is {amount(found.root)}"
    parts = found.root.children if is_sum(found.root) else ()
    if not parts or not found.value:
        return text
    largest = max(parts, key=lambda part: part.value)
    return f"{text}; the largest part is {plain(largest.name)}, {fmt.percent(largest.value / found.value)}"


def _check(found: Explanation) -> str:
    count = sum(1 for _ in found.root.walk())
    again = Node(name="", value=found.evaluated(), unit=found.root.unit)
    return f"{count} numbers; their formulas give {amount(again)} again"


def amount(node: Node) -> str:
    """Returns a value with its unit."""
    units = {
        "s": fmt.duration,
        "byte": fmt.memory,
        "FLOP": fmt.count,
        "FLOP/s": fmt.flops_per_s,
        "byte/s": fmt.bandwidth,
        "1/s": fmt.per_second,
    }
    if node.unit == "s" and node.value < 0.0:
        return f"−{fmt.duration(-node.value)}"
    if node.unit in units:
        return units[node.unit](node.value)
    short = fmt.count(node.value) if node.value >= 1e6 else fmt.digits(node.value)
    return f"{short} {'µs' if node.unit == 'us' else node.unit}".strip()


def _rows(node: Node, whole: float, level: int) -> Iterator[Row]:
    share = node.value / whole if node.unit in ("s", "byte") and whole else None
    counted = share is not None and 0.0 <= share <= 1.0 + 1e-9
    yield Row(
        cells=(
            plain("  " * level + node.name),
            amount(node),
            fmt.percent(share) if share is not None and counted else "",
            share_bar(share) if share is not None and counted else "",
            _cut(formula(node)),
            plain(node.source)[:SOURCE],
        )
    )
    for child in node.children:
        yield from _rows(child, whole, level + 1)


def formula(node: Node) -> str:
    """Returns the formula with its values put in."""
    if is_sum(node):
        return ""
    text = node.formula.replace(" * ", " × ")
    for name, value in node.values.items():
        text = re.sub(rf"\b{name}\b", fmt.count(value) if value >= 1e4 else f"{value:.4g}", text)
    return text


def _sources(root: Node) -> Iterator[tuple[str, str]]:
    """Returns every source of the rows shown once, with the first number that has it."""
    seen: set[str] = set()
    for node in root.walk():
        if node.source and node.source not in seen:
            seen.add(node.source)
            yield plain(node.name), plain(node.source)
