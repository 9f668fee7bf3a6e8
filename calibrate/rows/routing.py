"""Rows and experts that one device of an expert-parallel group got in a measurement, by the routing that it states."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from llmviewer.core.counts import Array

#: `balanced`: all experts get as many rows; `uniform`: each token chooses its experts at random, all alike.
BALANCED, UNIFORM, POWER_LAW = "balanced", "uniform", "power_law_"
#: Loads that are drawn for a power law, of which the mean is used; measurements drew one that is not stated.
DRAWS = 16
#: Bounds of the loads before scaling: up to this fraction of the tokens, or 0.01 to 2 where experts outnumber rows
#: (https://github.com/ai-dynamo/aiconfigurator, Apache-2.0: collector/helper.py).
MOST_OF_TOKENS, FEW_ROWS = 0.8, (0.01, 2.0)


def is_known(routing: object) -> bool:
    """Whether a routing is `balanced`, `uniform`, or `power_law_` with an exponent above 0."""
    text = str(routing)
    if text in (BALANCED, UNIFORM):
        return True
    try:
        return text.startswith(POWER_LAW) and 0.0 < float(text.removeprefix(POWER_LAW)) < 100.0
    except ValueError:
        return False


@lru_cache(maxsize=65536)
def busiest_device(tokens: int, experts: int, chosen: int, devices: int, routing: str) -> tuple[float, float]:
    """(rows, active experts) of the device with most rows, of `devices` with experts / devices each."""
    own, rows = experts // devices, tokens * chosen
    if routing == BALANCED:
        return (max(rows / devices, 1.0), float(min(own, max(int(np.ceil(rows / devices - 1e-9)), 1))))
    if routing == UNIFORM:
        return max(rows / devices, 1.0), own * (1.0 - (1.0 - chosen / experts) ** tokens)
    busiest = _busiest(tokens, experts, rows, devices, routing)
    return float(busiest.sum(axis=1).mean()), float((busiest > 0.0).sum(axis=1).mean())


def busiest_loads(tokens: int, experts: int, chosen: int, devices: int, routing: str) -> list[int]:
    """Rows of each expert of the device with most rows; for a power law, of the draw nearest to the mean."""
    rows, active = busiest_device(tokens, experts, chosen, devices, routing)
    if routing == BALANCED:
        each, more = divmod(int(np.ceil(rows - 1e-9)), int(active))
        return [(each + (i < more)) * (i < active) for i in range(experts // devices)]
    busiest = _busiest(tokens, experts, tokens * chosen, devices, routing)
    nearest = busiest[np.abs(busiest.sum(axis=1) - rows).argmin()]
    return [int(load) for load in nearest]


def _busiest(tokens: int, experts: int, rows: int, devices: int, routing: str) -> Array:
    """Rows of each expert of the device with most of them, for every draw."""
    loads = _loads(tokens, experts, rows, float(routing.removeprefix(POWER_LAW)))
    by_device = loads.reshape(DRAWS, devices, experts // devices)
    found: Array = by_device[np.arange(DRAWS), by_device.sum(axis=2).argmax(axis=1)]
    return found


def _loads(tokens: int, experts: int, rows: int, exponent: float) -> Array:
    """Rows of every expert in DRAWS draws: power law by inverse distribution function, scaled and rounded."""
    generator = np.random.default_rng(0)
    low, high = (1.0, MOST_OF_TOKENS * tokens) if rows > experts else FEW_ROWS
    power = 1.0 - exponent if exponent != 1.0 else -1e-9
    drawn = ((high**power - low**power) * generator.random((DRAWS, experts)) + low**power) ** (1.0 / power)
    loads: Array = np.round(drawn / drawn.sum(axis=1, keepdims=True) * rows)
    ties = generator.random((DRAWS, experts))
    for load, tie in zip(loads, ties, strict=True):
        _settle(load, np.lexsort((tie, -load)), rows)
    return np.minimum(loads, float(tokens))


def _settle(load: Array, order: Any, rows: int) -> None:
    """Change the loads by one each, the largest first, until they add up to the rows."""
    while missing := int(rows - load.sum()):
        able = order if missing > 0 else order[load[order] > 0.0]
        load[able[: abs(missing)]] += np.sign(missing)
