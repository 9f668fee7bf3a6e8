"""Why one configuration costs more than another: factors of its dollars per hour, whose amounts add up."""

from __future__ import annotations

from math import log
from typing import Any

from llmviewer.planning.choices import Choice


def waterfall(best: Choice, other: Choice) -> dict[str, Any]:
    """The difference between two configurations as the object of `llmviewer why`.

    Dollars per hour (devices, where a price is missing or 0) are a product: price of a device x devices that the rate
    would keep busy to the limits x what whole and spare replicas add.  Each factor gets the logarithmic mean of both
    totals times the logarithm of its ratio, so that the amounts sum to the difference: Ang, Energy Policy 32(9), 2004
    (LMDI).
    """
    priced = bool(best.usd_per_hour and other.usd_per_hour)  # a price of 0 has no logarithm
    first, second = _factors(best, priced=priced), _factors(other, priced=priced)
    a, b = _total(first), _total(second)
    mean = a if abs(b - a) < 1e-12 * a else (b - a) / log(b / a)
    factors = [
        {"name": name, "a": first[name], "b": second[name], "amount": mean * log(second[name] / first[name])}
        for name in first
    ]
    metric = "usd_per_hour" if priced else "devices"
    return {"schema": "llmviewer.why/1", "metric": metric, "a": a, "b": b, "difference": b - a, "factors": factors}


def _factors(one: Choice, *, priced: bool) -> dict[str, float]:
    """Factors of a configuration's cost."""
    rate = one.tokens_per_s / one.output_len
    exact = rate * one.devices_needed / one.highest_rate
    price = {"price of a device": one.usd_per_hour / one.devices} if priced and one.usd_per_hour else {}
    return {**price, "devices at full load": exact, "whole replicas and spare ones": one.devices / exact}


def _total(factors: dict[str, float]) -> float:
    product = 1.0
    for value in factors.values():
        product *= value
    return product
