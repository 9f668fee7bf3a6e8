"""Latencies of a request as trees: passes of prompts and decode steps, and waiting where sequences share a replica."""

from __future__ import annotations

import numpy as np

from llmviewer.core.errors import UserError
from llmviewer.language.quantity import LATENCIES
from llmviewer.result.explanation.metrics import Question, sum_node
from llmviewer.result.explanation.node import Node
from llmviewer.result.explanation.rounds import decode_nodes, prefill_nodes
from llmviewer.result.explanation.waiting import first_token_nodes, generation_nodes

#: Latency -> what it is.
WHAT = {
    "ttft_s": "prefill of all prompts of the batch",
    "tpot_s": "mean over the real decode steps, per token",
    "e2e_s": "time to the first token, and from there to the last one",
    "generation_s": "all real decode steps",
}
SHARED = {
    "ttft_s": "queueing, prompts of others and the request's own, up to the first token",
    "tpot_s": "decode steps and other requests' prompts between them, per token",
    "generation_s": "decode steps and other requests' prompts between them",
}


def metric_time(one: Question, metric: str) -> Node:
    """A latency as a tree.  Raises UserError for one that has no value."""
    own = one.analysis
    value = one.at(getattr(own, metric))
    if np.isnan(value):
        raise UserError(f"{metric} is undefined: {LATENCIES[metric].undefined}")
    if metric == "e2e_s":
        parts: tuple[Node, ...] = metric_time(one, "ttft_s"), metric_time(one, "generation_s")
    elif metric == "ttft_s":
        parts = prefill_nodes(one) if own.running is None else first_token_nodes(one)
    else:
        share = 1.0 if metric == "generation_s" else 1.0 / one.at(own.schedule.tokens)
        parts = decode_nodes(one, share) if own.running is None else generation_nodes(one, share)
    source = (WHAT if own.running is None else {**WHAT, **SHARED})[metric]
    return sum_node(metric, value, parts, source)
