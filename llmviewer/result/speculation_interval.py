"""How far rounds of speculation widen an interval: tokens per round, and the engine's host time of a round."""

from __future__ import annotations

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.core.counts import Array, Count
from llmviewer.timing.engine import KERNELS_ONLY

#: Deviations of tokens per round on other text at 95 and 80 %.  EAGLE, arXiv 2401.15077, table 1: 3.86 to 4.29 tokens
#: with Vicuna 7B and 3.95 to 4.39 with 13B over four datasets, up to 8 % from the mean; 20 % fewer at temperature 1.
TOKENS = {"95": 0.20, "80": 0.08}


def widened(analysis: Analysis, ratios: Array) -> Array:
    """Bounds over value of a time per token, shape (4, points): those of the passes, with those of the rounds.

    Tokens per round, host time of a round and the times of the passes are independent: deviations add in squares.
    """
    generation = analysis.system.generation
    if generation.branches is not None or not np.any(np.asarray(generation.shape.new_tokens) > 1.0):
        return ratios
    lower, higher = _host_share(analysis)
    tokens = np.array([TOKENS["95"], TOKENS["80"], TOKENS["80"], TOKENS["95"]])[:, None]
    host = np.array([2.0 * lower, lower, higher, 2.0 * higher])
    signs = np.array([-1.0, -1.0, 1.0, 1.0])[:, None]
    spread: Array = np.maximum(1.0 + signs * np.sqrt((ratios - 1.0) ** 2 + tokens**2 + host**2), 0.0)
    return np.where(np.asarray(generation.shape.new_tokens) > 1.0, spread, ratios)


def _host_share(analysis: Analysis) -> tuple[Array, Array]:
    """Host time by which a round of this engine may be shorter or longer, over the time of the round."""
    costs = analysis.system.engine.rounds
    round_s: Count = analysis.token_s * analysis.system.generation.tokens
    if analysis.system.engine.name == KERNELS_ONLY.name:
        return np.zeros_like(round_s), np.zeros_like(round_s)
    return (costs.round - costs.low) * 1e-6 / round_s, (costs.high - costs.round) * 1e-6 / round_s
