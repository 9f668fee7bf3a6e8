"""Verdict: whether the request fits, how fast it is, what bounds it, and what would make it faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmviewer.api.verdict import verdict as tried
from llmviewer.reports import analysis_page
from llmviewer.reports import format as fmt
from llmviewer.reports.html import charts
from llmviewer.reports.verdict import verdict
from llmviewer.reports.web import graphs
from llmviewer.reports.web.markup import Piece, block, page, piece
from llmviewer.reports.web.view import View
from llmviewer.result.verdict import Verdict

#: Line of the verdict -> whether it needs the trials.
TRIED = ("Best change", "DOES NOT FIT")


def content(view: View) -> list[Piece]:
    """The verdict, the figures of the request as cards, the time by bound, and everything that `analyze` says."""
    answer = view.answer
    facts = verdict(Verdict(result=view.result), answer)
    known = tuple(line for line in facts.lines if line[0] not in TRIED)
    everything = (analysis_page.header(answer), *analysis_page.details(answer, view.result.token_budget))
    return [
        block(page((replace(facts, lines=known),)), "verdict"),
        block(piece("cards", _cards(answer))),
        graphs.graph(charts.bounds([answer]), view.theme),
        block(piece("folded", "All figures of this request", everything)),
    ]


def changes(view: View) -> str:
    """HTML of the lines of the verdict that need trials of other options.  Raises UserError."""
    facts = verdict(tried(view.configuration, view.request, view.result), view.answer)
    lines = tuple(line for line in facts.lines if line[0] in TRIED)
    return page((replace(facts, lines=lines),))


def _cards(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Title, value and note of each card."""
    metrics, memory = answer["metrics"], answer["memory"]
    largest = fmt.whole(memory["max_batch_size"])
    return [
        ("Time to first token", fmt.duration(metrics["ttft_s"]), _interval(metrics, "ttft_s")),
        ("Time per output token", fmt.duration(metrics["tpot_s"]), _interval(metrics, "tpot_s")),
        ("Whole request", fmt.duration(metrics["e2e_s"]), _interval(metrics, "e2e_s")),
        ("Output tokens/s", fmt.per_second(metrics["output_tokens_per_s"]), "of all sequences"),
        ("Memory per device", fmt.memory(memory["total_bytes"]), f"of {fmt.memory(memory['budget_bytes'])}"),
        ("KV cache", fmt.memory(memory["kv_cache_bytes"]), f"largest batch {largest}"),
    ]


def _interval(metrics: dict[str, Any], name: str) -> str:
    bounds = (metrics["intervals"].get(name) or {}).get("80")
    return f"80 %: {fmt.bounds(*bounds)}" if bounds else "a bound of the data sheet"
