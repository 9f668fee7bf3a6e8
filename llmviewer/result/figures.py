"""Metrics of a run: those that `Analysis` computes, and those that a declared formula makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmviewer.analysis import power, power_shares
from llmviewer.analysis.analysis import Analysis
from llmviewer.core.counts import Array, Count
from llmviewer.language import quantity
from llmviewer.language.quantity import METRICS
from llmviewer.result import costs
from llmviewer.result.costs import Costs

#: Mean length of a month [s].
MONTH_S = 365.25 / 12.0 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A number that formulas of metrics name beside metrics.  source: where an explanation says that it is from."""

    of: Callable[[Analysis, Costs], Count]
    source: Callable[[Analysis, Costs], str] = lambda _, __: (
        "sizes of the request, devices of --tensor-parallel-size and its like"
    )


def _device_usd_per_hour(a: Analysis, with_costs: Costs) -> Count:
    found = None if a.system.split else with_costs.price_of(a.system.chip)  # which has several chips and prices
    return np.nan if found is None else found.usd_per_hour


def _usd_per_hour(a: Analysis, with_costs: Costs) -> Count:
    return _device_usd_per_hour(a, with_costs) * a.system.parallelism.devices


def _price_source(a: Analysis, with_costs: Costs) -> str:
    found = with_costs.price_of(a.system.chip)
    return "" if found is None else ", ".join(filter(None, (found.term, found.date))) + f": {found.source}"


def _shares(a: Analysis) -> power_shares.PowerShares | None:
    return power_shares.shares_of(a.system.chip, a.system.efficiency)


def _idle_usd_per_hour(a: Analysis, with_costs: Costs) -> Count:
    """Cost of an hour in which nothing is computed [$]: all of a rented one, of an owned one what was paid."""
    owned, usd = with_costs.prices.owned, _usd_per_hour(a, with_costs)
    if owned is None or a.system.chip.name in with_costs.prices.given:
        return usd
    return owned.usd_per_calendar_hour * a.system.parallelism.devices + 0.0 * usd


def _saved_usd_per_hour(a: Analysis, with_costs: Costs) -> Count:
    """Price of an API for the work of an hour at full load, less the power of that hour [$]; NaN if that is less."""
    if with_costs.api is None:
        return np.nan
    one, owned = with_costs.api, with_costs.prices.owned
    tokens = one.prompt_usd * a.request.input_len + one.answer_usd * a.request.output_len
    usd = tokens * 1e-6 * a.request.batch_size / a.e2e_s * 3600.0
    if owned is not None:
        idle = _idle_usd_per_hour(a, with_costs)
        usd = usd - np.maximum(_usd_per_hour(a, with_costs) - idle / owned.utilization, 0.0)
    return np.where(usd > 0.0, usd, np.nan)


def _break_even_month_s(a: Analysis, with_costs: Costs) -> Count:
    """Seconds of a month; NaN where all hours are too few to break even."""
    share = _idle_usd_per_hour(a, with_costs) / _saved_usd_per_hour(a, with_costs)
    return np.where(share <= 1.0, MONTH_S, np.nan)


def _energy(a: Analysis, name: str) -> Count:
    """A power of all devices [W] by its name in `power.Energy`; NaN where none is known."""
    found = None if a.system.split else power.energy_of(a, _shares(a))
    return np.nan if found is None else getattr(found, name)


def _power_source(a: Analysis, _: Costs) -> str:
    found = _shares(a)
    return "" if found is None else f"docs/reference/energy.md; shares of the board power {found.basis}"


INPUTS: Mapping[str, Input] = {
    "batch_size": Input(of=lambda a, _: a.request.batch_size),
    "input_len": Input(of=lambda a, _: a.request.input_len),
    "output_len": Input(of=lambda a, _: a.request.output_len),
    "devices": Input(of=lambda a, _: a.system.parallelism.devices),
    "device_usd_per_hour": Input(of=_device_usd_per_hour, source=_price_source),
    "idle_usd_per_hour": Input(of=_idle_usd_per_hour, source=_price_source),
    "break_even_month_s": Input(of=_break_even_month_s, source=lambda _, __: "a mean month, where it is enough"),
    "saved_usd_per_hour": Input(of=_saved_usd_per_hour, source=lambda _, __: "--api-price less the power of --owned"),
    "mean_w": Input(of=lambda a, _: _energy(a, "watts"), source=_power_source),
    "wall_w": Input(
        of=lambda a, c: np.nan if c.carbon_g_per_kwh is None else _energy(a, "wall_watts"), source=_power_source
    ),
    "g_per_kwh": Input(
        of=lambda _, c: np.nan if c.carbon_g_per_kwh is None else c.carbon_g_per_kwh, source=lambda _, __: "--carbon"
    ),
    "pue": Input(of=lambda _, c: c.pue, source=lambda _, c: "--owned" if c.prices.owned else "PUE 1 without --owned"),
    "prompt_share": Input(
        of=lambda a, _: power.prompt_share(a), source=lambda _, __: "device-seconds of the prompt over those of both"
    ),
}


class Figures(Mapping[str, Any]):
    """Metrics and inputs of an analysis by name, each computed once: arrays over points, NaN where unknown."""

    def __init__(self, analysis: Analysis, with_costs: Costs | None = None) -> None:
        self.analysis, self.costs, self._known = analysis, with_costs or costs.usual(), dict[str, Array]()

    def __getitem__(self, name: str) -> Array:
        if name not in self._known:
            self._known[name] = np.asarray(self._computed(name)) * np.ones(self.analysis.schedule.points)
        return self._known[name]

    def _computed(self, name: str) -> Count:
        if name in INPUTS:
            return INPUTS[name].of(self.analysis, self.costs)
        text = METRICS[name].formula
        found: Count = quantity.evaluated_formula(text, self) if text else getattr(self.analysis, name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(METRICS)

    def __len__(self) -> int:
        return len(METRICS)
