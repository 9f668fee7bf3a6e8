"""Explained numbers of a report: nested parts that a reader opens one by one, each with formula and source."""

from __future__ import annotations

from collections.abc import Iterator

from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.reports import format as fmt
from llmviewer.reports.explanation_page import amount, formula
from llmviewer.reports.page import plain
from llmviewer.reports.report import Report
from llmviewer.result.explanation.explain import explained
from llmviewer.result.explanation.node import Node, folded

#: Numbers that a report explains, levels of their trees, and parts of a sum that stand alone.
NUMBERS = ("ttft_s", "tpot_s", "memory.total_bytes")
DEPTH, MOST = 6, 14


@frozen
class Branch:
    """One number of a tree as texts.  asked: the name by which it is opened, where its parts are left out."""

    name: str
    value: str
    share: str
    formula: str
    source: str
    asked: str
    children: tuple[Branch, ...]


def trees(report: Report) -> list[tuple[str, list[Branch]]]:
    """Returns the trees of every configuration; a number that is undefined has none."""
    return [(name, list(_trees(report, name))) for name in report.results]


def _trees(report: Report, name: str) -> Iterator[Branch]:
    for number in NUMBERS:
        try:
            root = explained(report.results[name], number).root
        except UserError:  # no decode steps
            continue
        yield branch(folded(root, MOST, DEPTH), root.value)


def branch(node: Node, whole: float) -> Branch:
    """Returns a node and its parts as texts.  whole: value of the root, for shares."""
    share = node.value / whole if node.unit in ("s", "byte") and whole else -1.0
    return Branch(
        name=plain(node.name),
        value=amount(node),
        share=fmt.percent(share) if 0.0 <= share <= 1.0 + 1e-9 else "",
        formula=formula(node),
        source=plain(node.source),
        asked="" if node.children else node.asked,
        children=tuple(branch(child, whole) for child in node.children),
    )
