"""Verdict: whether the request fits, how fast it is, what bounds it, and what would make it faster."""

from __future__ import annotations

from math import isinf
from typing import Any
from urllib.parse import urlencode

from llmviewer.api.trials import verdict as tried
from llmviewer.language.quantity import LATENCIES, METRICS
from llmviewer.reports import analysis_page, verdict
from llmviewer.reports import format as fmt
from llmviewer.reports.html import charts
from llmviewer.reports.web import graphs
from llmviewer.reports.web.markup import Piece, block, page, piece
from llmviewer.reports.web.view import View
from llmviewer.result.result import LEAST_GAIN


def content(view: View) -> list[Piece]:
    """The verdict, the figures of the request as cards, the time by bound, and everything that `analyze` says."""
    answer = view.answer
    everything = (analysis_page.header(answer), *analysis_page.details(answer, view.result.token_budget))
    return [
        block(page((verdict.at_once(answer),)), "verdict"),
        block(piece("cards", _cards(answer, view.result.token_budget))),
        graphs.graph(charts.bounds([answer]), view.theme),
        block(piece("folded", "All figures of this request", everything)),
    ]


def changes(view: View) -> str:
    """HTML of the line of the verdict that needs trials of other options.  Raises UserError."""
    found = tried(view.configuration, view.request, view.result)
    gains = [(float(view.result.e2e_s / one.result.e2e_s), one) for one in found.changes if one.result.fits]
    faster = sorted((pair for pair in gains if pair[0] > LEAST_GAIN), key=lambda pair: -pair[0])
    shown = [(one, f"{gain:.2f}×") for gain, one in faster] or [(one, "fits") for one in found.remedies]
    listed = [(one.option, note, urlencode(one.words)) for one, note in shown]
    return page((verdict.of_trials(found, view.answer),)) + piece("applied", listed, view.state.query())


def _cards(answer: dict[str, Any], token_budget: float) -> list[tuple[str, str, str, str]]:
    """Title, value, note and look of each card.  token_budget: of a pass; infinite if it takes all prompts."""
    metrics, memory = answer["metrics"], answer["memory"]
    together = ", prefilled at once" if isinf(token_budget) else ""
    largest = f"largest batch {fmt.whole(memory['max_batch_size'])}{together}"
    budget = f"of {fmt.memory(memory['budget_bytes'])}"
    note, look = (budget, "") if memory["fits"] else (f"does not fit: {budget}", "warning")
    return [
        *(
            (one.heading, fmt.figure(name, metrics[name]), _interval(metrics, name), "")
            for name, one in LATENCIES.items()
        ),
        (METRICS["output_tokens_per_s"].label, fmt.per_second(metrics["output_tokens_per_s"]), "of all sequences", ""),
        ("Memory per device", fmt.memory(memory["total_bytes"]), note, look),
        ("KV cache", fmt.memory(memory["kv_cache_bytes"]), largest, ""),
    ]


def _interval(metrics: dict[str, Any], name: str) -> str:
    bounds = (metrics["intervals"].get(name) or {}).get("80")
    return f"80 %: {fmt.bounds(*bounds)}" if bounds else "a bound of the data sheet"
