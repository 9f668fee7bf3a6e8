"""Metrics of a run: those that `Analysis` computes, and those that a declared formula makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from llmviewer.analysis import power, power_shares
from llmviewer.analysis.analysis import Analysis
from llmviewer.core.counts import Array, Count
from llmviewer.core.frozen import frozen
from llmviewer.language import quantity
from llmviewer.language.quantity import METRICS
from llmviewer.result import costs
from llmviewer.result.costs import Costs

#: Mean length of a month [s].
MONTH_S = 365.25 / 12.0 * 86400.0


@frozen
class Input:
    """A number that formulas of metrics name beside metrics.  source: where an explanation says that it is from."""

    of: Callable[[Figures], Count]
    source: Callable[[Figures], str] = lambda _: "sizes of the request, devices of --tensor-parallel-size and its like"


def _device_usd_per_hour(f: Figures) -> Count:
    system = f.analysis.system
    found = None if system.split else f.costs.price_of(system.chip)  # which has several chips and prices
    return np.nan if found is None else found.usd_per_hour


def _price_source(f: Figures) -> str:
    found = f.costs.price_of(f.analysis.system.chip)
    return "" if found is None else ", ".join(filter(None, (found.term, found.date))) + f": {found.source}"


def _shares(f: Figures) -> power_shares.PowerShares | None:
    return power_shares.shares_of(f.analysis.system.chip, f.analysis.system.efficiency)


def _idle_usd_per_hour(f: Figures) -> Count:
    """Cost of an hour in which nothing is computed [$]: all of a rented one, of an owned one what was paid."""
    prices, system = f.costs.prices, f.analysis.system
    if prices.owned is None or system.chip.name in prices.given:
        return f["usd_per_hour"]
    return prices.owned.usd_per_calendar_hour * system.parallelism.devices + 0.0 * f["usd_per_hour"]


def _saved_usd_per_hour(f: Figures) -> Count:
    """Price of an API for the work of an hour at full load, less the power of that hour [$]; NaN if that is less."""
    one, owned = f.costs.api, f.costs.prices.owned
    if one is None:
        return np.nan
    tokens = one.prompt_usd * f["input_len"] + one.answer_usd * f["output_len"]
    usd = tokens * 1e-6 * f["batch_size"] / f["e2e_s"] * 3600.0
    if owned is not None:
        usd = usd - np.maximum(f["usd_per_hour"] - f["idle_usd_per_hour"] / owned.utilization, 0.0)
    return np.where(usd > 0.0, usd, np.nan)


def _break_even_month_s(f: Figures) -> Count:
    """Seconds of a month; NaN where all hours are too few to break even."""
    return np.where(f["break_even_utilization"] <= 1.0, MONTH_S, np.nan)


def _energy(f: Figures, name: str) -> Count:
    """A power of all devices [W] by its name in `power.Energy`; NaN where none is known."""
    found = None if f.analysis.system.split else power.energy_of(f.analysis, _shares(f))
    return np.nan if found is None else getattr(found, name)


def _power_source(f: Figures) -> str:
    found = _shares(f)
    return "" if found is None else f"docs/reference/energy.md; shares of the board power {found.basis}"


INPUTS: Mapping[str, Input] = {
    "batch_size": Input(of=lambda f: f.analysis.request.batch_size),
    "input_len": Input(of=lambda f: f.analysis.request.input_len),
    "output_len": Input(of=lambda f: f.analysis.request.output_len),
    "devices": Input(of=lambda f: f.analysis.system.parallelism.devices),
    "device_usd_per_hour": Input(of=_device_usd_per_hour, source=_price_source),
    "idle_usd_per_hour": Input(of=_idle_usd_per_hour, source=_price_source),
    "break_even_month_s": Input(of=_break_even_month_s, source=lambda _: "a mean month, where it is enough"),
    "saved_usd_per_hour": Input(of=_saved_usd_per_hour, source=lambda _: "--api-price less the power of --owned"),
    "mean_w": Input(of=lambda f: _energy(f, "watts"), source=_power_source),
    "wall_w": Input(
        of=lambda f: np.nan if f.costs.carbon_g_per_kwh is None else _energy(f, "wall_watts"), source=_power_source
    ),
    "g_per_kwh": Input(
        of=lambda f: np.nan if f.costs.carbon_g_per_kwh is None else f.costs.carbon_g_per_kwh,
        source=lambda _: "--carbon",
    ),
    "pue": Input(
        of=lambda f: f.costs.pue, source=lambda f: "--owned" if f.costs.prices.owned else "PUE 1 without --owned"
    ),
    "prompt_share": Input(
        of=lambda f: power.prompt_share(f.analysis), source=lambda _: "device-seconds of the prompt over those of both"
    ),
}


class Figures(Mapping[str, Any]):
    """Metrics and inputs of an analysis by name, each computed once: arrays over points, NaN where unknown."""

    def __init__(self, analysis: Analysis, with_costs: Costs | None = None) -> None:
        self.analysis: Analysis = analysis
        self.costs: Costs = with_costs or costs.usual()
        self._known: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._known:
            self._known[name] = np.asarray(self._computed(name)) * np.ones(self.analysis.schedule.points)
        return self._known[name]

    def _computed(self, name: str) -> Count:
        if name in INPUTS:
            return INPUTS[name].of(self)
        text = METRICS[name].formula
        found: Count = quantity.evaluated_formula(text, self) if text else getattr(self.analysis, name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(METRICS)

    def __len__(self) -> int:
        return len(METRICS)
