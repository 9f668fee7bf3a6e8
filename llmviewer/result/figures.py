"""Metrics of a run: those that `Analysis` computes, and those that a declared formula makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmviewer.analysis import power, power_shares
from llmviewer.analysis.analysis import Analysis
from llmviewer.core.counts import Array, Count
from llmviewer.hardware import prices
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import is_hypothetical
from llmviewer.language import quantity
from llmviewer.language.quantity import METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A number that formulas of metrics name beside metrics.  source: where an explanation says that it is from."""

    of: Callable[[Analysis], Count]
    source: Callable[[Analysis], str] = lambda _: "sizes of the request, devices of --tensor-parallel-size and its like"


def price_of(chip: Chip) -> prices.Price | None:
    """The least rented price of a chip; None where none is known, as for one whose figures are set."""
    return None if is_hypothetical(chip) else prices.least_prices(prices.RENTED).get(chip.name)


def _usd_per_hour(a: Analysis) -> Count:
    found = None if a.system.split else price_of(a.system.chip)  # which has several chips, and so several prices
    return np.nan if found is None else found.usd_per_hour * a.system.parallelism.devices


def _price_source(a: Analysis) -> str:
    found = price_of(a.system.chip)
    return "" if found is None else f"{found.term}, {found.date}: {found.source}"


def _shares(a: Analysis) -> power_shares.PowerShares | None:
    return power_shares.shares_of(a.system.chip, a.system.efficiency)


def _watts(a: Analysis) -> Count:
    found = None if a.system.split else power.energy_of(a, _shares(a))
    return np.nan if found is None else found.watts


def _power_source(a: Analysis) -> str:
    found = _shares(a)
    return "" if found is None else f"docs/reference/energy.md; shares of the board power {found.basis}"


INPUTS: Mapping[str, Input] = {
    "batch_size": Input(of=lambda a: a.request.batch_size),
    "input_len": Input(of=lambda a: a.request.input_len),
    "output_len": Input(of=lambda a: a.request.output_len),
    "devices": Input(of=lambda a: a.system.parallelism.devices),
    "usd_per_hour": Input(of=_usd_per_hour, source=_price_source),
    "watts": Input(of=_watts, source=_power_source),
    "prompt_share": Input(of=power.prompt_share, source=lambda _: "device-seconds of the prompt over those of both"),
}


class Figures(Mapping[str, Any]):
    """Metrics and inputs of an analysis by name, each computed once: arrays over points, NaN where unknown."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self._known = analysis, dict[str, Array]()

    def __getitem__(self, name: str) -> Array:
        if name not in self._known:
            self._known[name] = np.asarray(self._computed(name)) * np.ones(self.analysis.schedule.points)
        return self._known[name]

    def _computed(self, name: str) -> Count:
        if name in INPUTS:
            return INPUTS[name].of(self.analysis)
        text = METRICS[name].formula
        found: Count = quantity.evaluated_formula(text, self) if text else getattr(self.analysis, name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(METRICS)

    def __len__(self) -> int:
        return len(METRICS)
