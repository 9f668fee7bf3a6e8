"""Prices of chips and of electricity: of hardware_specs/prices/, of a file or line of the user, of owned hardware, and
of an API beside them; their options."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from datetime import date
from functools import cache
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np

from llmviewer.core import data, files
from llmviewer.core.arguments import parse_number
from llmviewer.core.errors import UserError, naming, printable, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import is_hypothetical
from llmviewer.hardware.prices import KINDS, RENTED, Price, all_prices, least, parse
from llmviewer.language.grammar import Grammar, Number
from llmviewer.language.option import Kind, Option, Panel
from llmviewer.models.audio import AUDIO
from llmviewer.models.images import IMAGES
from llmviewer.techniques.technique import called

HOURS_PER_YEAR = 8766.0
#: Days after which a price is said to be old.
MAX_AGE_DAYS = 180
MAX_USD_PER_HOUR = 1e6
GIVEN = "given by the user"
NO_POWER = "its board power is not published"
#: Largest file of prices, and the columns of one in CSV that make a price, which `hardware prices` writes.
MAX_BYTES = 10**6
PRICED = "usd_per_gpu_hour"
COLUMNS = ("chip", PRICED, "kind", "term", "region", "date", "source")


def _option(summary: str, kind: Kind = Kind.TEXT, **more: Any) -> Option:
    return Option(kind=kind, help=summary, group="sizing", panel=Panel.COST, **more)


#: Options of money and energy, which change no time.
COSTS: Mapping[str, Option] = {
    "price": _option(
        "A price of your own in $ per GPU-hour: h100=2.10; repeatable; of one run also 2.10.",
        repeated=True,
        json={"type": ["string", "array"], "items": {"type": "string"}},
    ),
    "prices": _option("A file of prices, which replace the known ones of its chips: prices.csv, or YAML."),
    "price_kind": _option(f"Kind of price: {', '.join(KINDS)} (default: {RENTED}; with --owned: owned)."),
    "owned": _option("Owned hardware: capex=30000,years=4,utilization=0.8,usd_per_kwh=0.08,pue=1.3."),
    "carbon": _option("Emissions of your electricity [g/kWh].", Kind.NUMBER),
    "api_price": _option("An API to break even with, in $ per million tokens: in=0.3,out=1.2."),
}
#: Options of one run that no grid of runs has a column for, with those of money and energy.
OF_ONE_RUN: Mapping[str, Option] = {**COSTS, **IMAGES, **AUDIO}
#: Those that a sizing has too.
OF_A_SIZING: Mapping[str, Option] = {name: one for name, one in COSTS.items() if name != "api_price"}


@frozen
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

    @property
    def usd_per_calendar_hour(self) -> float:
        """Cost of an hour, used or not [$]: capex / (years x 8766 h)."""
        return self.capex_usd / (self.years * HOURS_PER_YEAR)

    def usd_per_hour(self, tdp_w: float | None) -> float | None:
        """$ per hour of use = capex / (years x 8766 h x utilization) + kW x PUE x $/kWh; None if watts are unknown."""
        watts = tdp_w if self.watts is None else self.watts
        if watts is None:
            return None
        return self.usd_per_calendar_hour / self.utilization + watts / 1e3 * self.pue * self.usd_per_kwh


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


@frozen(kw_only=False)
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
        usd = self.owned.usd_per_hour(None if tdp is None else float(np.max(tdp)))
        return None if usd is None else Price(chip, usd, "owned", "cost of ownership", None, GIVEN)

    def notes(self, chips: Iterable[str], today: date) -> list[str]:
        """Lines for sources of used prices older than 180 days, for terms that differ, and for what `owned` lacks."""
        found = {chip: self.of(chip) for chip in chips}
        used = [price for price in found.values() if price is not None]
        lines = [
            f"{chip} has no price: {NO_POWER}; add watts=... to --owned"
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
    kind: str | None = None,
    given: Iterable[str] = (),
    owned: Owned | str | None = None,
    chips: Mapping[str, Chip] = MappingProxyType({}),
    path: str | None = None,
) -> PriceList:
    """Prices of one kind.  given: the user's own, `h100=2.10`.  owned: hardware of the kind `owned`, or its text.

    kind: None for rented ones, or owned where `owned` is given.  chips: by name, also those of the user's own files,
    which `given` and `owned` may price too.  path: a file whose rows replace the known ones of its chips.

    Raises UserError for an unknown kind or chip, a malformed price or file, and `owned` without its figures or beside
    others.
    """
    kind = kind or (RENTED if owned is None else "owned")
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
    rows = {**least(all_prices(), kind), **least(() if path is None else prices_in(path, chips), kind)}
    return PriceList(kind, rows, theirs, parse_owned(owned) if isinstance(owned, str) else owned, chips)


def prices_in(path: str, chips: Mapping[str, Chip] = MappingProxyType({})) -> tuple[Price, ...]:
    """The prices of a file of the user: YAML as in hardware_specs/prices/, or CSV as `hardware prices` writes it.

    Raises UserError for a file that cannot be read, an unknown chip or key, and a price that is none.
    """
    with naming("--prices"):
        files.refuse_named(path)
        text = data.read_text(Path(path).expanduser(), MAX_BYTES, "no list of prices")
        if path.lower().endswith(".csv"):
            rows = [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(StringIO(text))]
            priced = [{**row, PRICED: parse_number(row.get(PRICED, ""))} for row in rows]
            content: Mapping[str, Any] = {"rows": priced}
        else:
            content = data.mapping(text, path, "YAML")
        found = parse(content, printable(path))
        if not found:
            raise UserError(f"{printable(path)} has no prices; expected columns {', '.join(COLUMNS)}")
    return tuple(replace(one, chip=one.chip if one.chip in chips else specs.load(one.chip).name) for one in found)


def listed(path: str | None = None, chips: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Every known price by chip, the least first, and those of a file, as rows with the columns that it has.

    chips: names of those that are listed; none: all.  Raises UserError for an unknown one, and one without a price.
    """
    known = (*all_prices(), *(prices_in(path) if path else ()))
    wanted = {specs.load(name).name for name in chips}
    if lacking := sorted(wanted - {one.chip for one in known}):
        raise UserError(f"no price of {lacking[0]} is known; --price {lacking[0]}=2.10 states one to a run")
    rows = sorted(
        (one for one in known if not wanted or one.chip in wanted), key=lambda one: (one.chip, one.usd_per_hour)
    )
    return [{name: getattr(one, "usd_per_hour" if name == PRICED else name) for name in COLUMNS} for one in rows]


def given_prices(value: Any, chip: Callable[[], str] | None = None) -> tuple[str, ...]:
    """The user's own prices: `h100=2.10,h200=3.20`, or several of them.

    chip: name of the chip that a price alone is of; None: none is.
    """
    if value is None:
        return ()
    texts = [value] if isinstance(value, str | int | float) else list(value)
    parts = (part.strip() for text in texts for part in str(text).split(","))
    return tuple(part if chip is None or "=" in part else f"{chip()}={part}" for part in parts)


@frozen
class Api:
    """Prices of an API [$ per million tokens]."""

    prompt_usd: float
    answer_usd: float


def api(
    *,
    prompt: Annotated[float, Number("$ per million prompt tokens", 0.0, 1e6, name="in")],
    answer: Annotated[float, Number("$ per million answer tokens", 0.0, 1e6, name="out")],
) -> Api:
    """An API by the parameters of --api-price."""
    if not prompt + answer:
        raise UserError("in and out are 0; an API without a price has no break-even")
    return Api(prompt_usd=prompt, answer_usd=answer)


@frozen
class Costs:
    """Prices and emissions of a run.

    carbon_g_per_kwh: emissions of electricity; None if they are not stated.  api: that it has to break even with.
    """

    prices: PriceList = field(default_factory=price_list)
    carbon_g_per_kwh: float | None = None
    api: Api | None = None

    @property
    def pue(self) -> float:
        """Power of the data centre over that of its servers, of --owned; else 1."""
        return 1.0 if self.prices.owned is None else self.prices.owned.pue

    def price_of(self, chip: Chip) -> Price | None:
        """The price of a chip; None where none is known, as for one whose figures are set."""
        own = self.prices
        if is_hypothetical(chip) and own.owned is None and chip.name not in own.given:
            return None
        return replace(own, chips={**own.chips, chip.name: chip}).of(chip.name)

    def notes(self, chip: Chip) -> tuple[str, ...]:
        """Lines for stated options that this chip has no use for."""
        price, kind, owned = self.price_of(chip), self.prices.kind, self.prices.owned
        lines = []
        if self.prices.given and chip.name not in self.prices.given:
            lines.append(f"--price has none of {chip.name}")
        if price is None and owned is not None:
            lines.append(f"{chip.name} has no price: {NO_POWER}; add watts=... to --owned")
        elif price is None and (kind != RENTED or self.api is not None):
            lines.append(f"no {kind} price of {chip.name} is known; --price {chip.name}=... states one")
        if self.carbon_g_per_kwh is not None and chip.tdp_w is None:
            lines.append(f"--carbon: {NO_POWER}, not used")
        return tuple(lines)


@cache
def usual() -> Costs:
    """The least rented prices, no emissions."""
    return Costs()


def costs_of(words: Mapping[str, Any], chips: Mapping[str, Chip] = MappingProxyType({})) -> Costs:
    """The costs of these options.  chips: as of `price_list`.  Raises UserError."""
    if all(words.get(name) is None for name in COSTS):
        return usual()
    one = {name: option.checked(name, words.get(name)) for name, option in PLAIN.items()}
    text = one["api_price"]
    return Costs(
        prices=price_list(one["price_kind"], given_prices(words.get("price")), one["owned"], chips, one["prices"]),
        carbon_g_per_kwh=one["carbon"],
        api=None if text is None else called(api, "--api-price", API, text),
    )


#: Options with one value.
PLAIN = {name: one for name, one in COSTS.items() if not one.repeated}
API = Grammar.of(api)


def _given(text: str, chips: Mapping[str, Chip]) -> tuple[str, Price]:
    """The chip's stem and price in `h100=2.10`."""
    name, equals, number = text.rpartition("=")
    usd = parse_number(number)
    if not name.strip() or not equals or isinstance(usd, str) or not 0.0 <= usd <= MAX_USD_PER_HOUR:
        raise UserError(f"--price is {quoted(text)}; allowed: CHIP=$ per GPU-hour from 0 to 1e6, such as h100=2.10")
    name = name.strip()
    chip = name if name in chips else specs.load(name).name
    return chip, Price(chip, float(usd), "given", GIVEN, None, GIVEN)
