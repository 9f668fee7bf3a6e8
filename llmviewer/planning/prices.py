"""Prices that a sizing compares: of hardware_specs/prices/, from the user, or of owned hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType
from typing import Annotated

from llmviewer.core.arguments import parse_number
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.prices import KINDS, RENTED, Price, least_prices
from llmviewer.language.grammar import Grammar, Number
from llmviewer.techniques.technique import called

HOURS_PER_YEAR = 8766.0
#: Days after which a price is said to be old.
MAX_AGE_DAYS = 180
MAX_USD_PER_HOUR = 1e6
GIVEN = "given by the user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """Hardware that the user bought: what an hour of use costs.

    capex_usd: price of one chip with its share of server and network.  utilization: share of all hours in which it is
    used.  watts: mean power while used; None for the chip's board power.
    """

    capex_usd: float
    years: float
    utilization: float
    usd_per_kwh: float
    pue: float
    watts: float | None = None

    def usd_per_hour(self, tdp_w: float | None) -> float | None:
        """$ per hour of use = capex / (years x 8766 h x utilization) + kW x PUE x $/kWh; None if watts are unknown."""
        watts = tdp_w if self.watts is None else self.watts
        if watts is None:
            return None
        used_hours = self.years * HOURS_PER_YEAR * self.utilization
        return self.capex_usd / used_hours + watts / 1e3 * self.pue * self.usd_per_kwh


def owned(
    capex: Annotated[float, Number("price of one chip with its share of server and network [$]")],
    *,
    years: Annotated[float, Number("years of use", 0.1, 30.0)],
    utilization: Annotated[float, Number("share of all hours in which it is used", 0.01, 1.0)],
    usd_per_kwh: Annotated[float, Number("price of electricity [$/kWh]", 0.0, 100.0)],
    pue: Annotated[float, Number("power of the data center over that of its servers", 1.0, 5.0)],
    watts: Annotated[float | None, Number("mean power while used [W]", 1.0, 1e5, unset="the board power")] = None,
) -> Owned:
    """Bought hardware by the parameters of --owned."""
    return Owned(capex_usd=capex, years=years, utilization=utilization, usd_per_kwh=usd_per_kwh, pue=pue, watts=watts)


OWNED = Grammar.of(owned)


def parse_owned(text: str) -> Owned:
    """Parse `capex=30000,years=4,utilization=0.8,usd_per_kwh=0.08,pue=1.3[,watts=600]`.  Raises UserError."""
    return called(owned, "--owned", OWNED, text)


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices of one kind by chip, with those that the user gave in their place."""

    kind: str
    rows: Mapping[str, Price]
    given: Mapping[str, Price] = field(default_factory=dict)
    owned: Owned | None = None
    chips: Mapping[str, Chip] = field(default_factory=dict)

    def of(self, chip: str) -> Price | None:
        """The price of a chip by its stem: the user's, else the least row of the kind; None if there is none."""
        if chip in self.given or self.owned is None:
            return self.given.get(chip, self.rows.get(chip))
        tdp = (self.chips.get(chip) or specs.load(chip)).tdp_w
        usd = self.owned.usd_per_hour(None if tdp is None else float(tdp))
        return None if usd is None else Price(chip, usd, "owned", "cost of ownership", None, GIVEN)

    def notes(self, chips: Iterable[str], today: date) -> list[str]:
        """Lines for sources of used prices older than 180 days, for terms that differ, and for what `owned` lacks."""
        found = {chip: self.of(chip) for chip in chips}
        used = [price for price in found.values() if price is not None]
        lines = [
            f"{chip} has no price: its board power is not published; add watts=... to --owned"
            for chip, price in found.items()
            if price is None and self.owned is not None
        ]
        old: dict[tuple[str, int, str], list[str]] = {}
        for price in used:
            age = (today - date.fromisoformat(price.date)).days if price.date else 0
            if age > MAX_AGE_DAYS:
                old.setdefault((str(price.date), age, price.source), []).append(price.chip)
        lines += [
            f"the price{'s' if len(names) > 1 else ''} of {', '.join(names)} {'are' if len(names) > 1 else 'is'} of"
            f" {day}, {age} days ago: {source}"
            for (day, age, source), names in old.items()
        ]
        terms: dict[str, list[str]] = {}
        for price in used:
            terms.setdefault(price.term, []).append(price.chip)
        if len(terms) > 1:
            listed = "; ".join(f"{term}: {', '.join(names)}" for term, names in sorted(terms.items()))
            lines.append(f"prices are of different terms ({listed})")
        return lines


def price_list(
    kind: str = RENTED,
    given: Iterable[str] = (),
    owned: Owned | str | None = None,
    chips: Mapping[str, Chip] = MappingProxyType({}),
) -> PriceList:
    """Prices of one kind.  given: the user's own, `h100=2.10`.  owned: hardware of the kind `owned`, or its text.

    chips: by name, also those of the user's own files, which `given` and `owned` may price too.

    Raises UserError for an unknown kind or chip, a malformed price, and `owned` without its figures or beside others.
    """
    if kind not in KINDS:
        raise unknown("kind of price", kind, KINDS)
    if owned is not None and kind != "owned":
        raise UserError(f"--owned is for --price-kind owned, not {kind}")
    theirs: dict[str, Price] = {}
    for chip, price in (_given(text, chips) for text in given):
        if chip in theirs:
            raise UserError(f"--price is given twice for {chip}")
        theirs[chip] = price
    if kind == "owned" and owned is None and not theirs:
        raise UserError("--price-kind owned needs --owned capex=...,years=...,utilization=...,usd_per_kwh=...,pue=...")
    return PriceList(kind, least_prices(kind), theirs, parse_owned(owned) if isinstance(owned, str) else owned, chips)


def _given(text: str, chips: Mapping[str, Chip]) -> tuple[str, Price]:
    """The chip's stem and price in `h100=2.10`."""
    name, equals, number = text.rpartition("=")
    usd = parse_number(number)
    if not name.strip() or not equals or isinstance(usd, str) or not 0.0 <= usd <= MAX_USD_PER_HOUR:
        raise UserError(f"--price is {quoted(text)}; allowed: CHIP=$ per GPU-hour from 0 to 1e6, such as h100=2.10")
    name = name.strip()
    chip = name if name in chips else specs.load(name).name
    return chip, Price(chip, float(usd), "given", GIVEN, None, GIVEN)
