"""Prices of chips: $ for one chip for one hour, from hardware_specs/prices/."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cache
from typing import Any

from llmviewer.core import data
from llmviewer.core.frozen import frozen
from llmviewer.language import record
from llmviewer.language.record import stated

#: Kind of price -> what it is.
KINDS: dict[str, str] = {
    "rented": "what a customer pays for an hour, on demand or bound for years",
    "spot": "what a customer pays for an hour that may be taken away",
    "hyperscaler": "what an hour costs a cloud with its own data centres",
    "neocloud": "what an hour costs a cloud that rents its data centres",
    "owned": "what an hour costs you, computed from --owned",
}
#: The kind that is meant unless another is asked.
RENTED = "rented"
FOLDER = "hardware_specs/prices"


@frozen(kw_only=False)
class Price:
    """$ for one chip for one hour.  date: day on which it was read (ISO), None for the user's own prices."""

    chip: str
    usd_per_hour: float = field(metadata=stated(record.ABOVE_ZERO, "usd_per_gpu_hour"))
    kind: str = field(metadata=stated(record.choice("kind of price", [kind for kind in KINDS if kind != "owned"])))
    term: str
    date: str | None = field(metadata=stated(record.day))
    source: str
    region: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The price as results print it."""
        return {name: getattr(self, name) for name in ("usd_per_hour", "kind", "term", "date", "source")}


def least(rows: Iterable[Price], kind: str) -> Mapping[str, Price]:
    """The least price of a kind by chip; the first row wins a tie."""
    best: dict[str, Price] = {}
    for price in rows:
        if price.kind == kind and (price.chip not in best or price.usd_per_hour < best[price.chip].usd_per_hour):
            best[price.chip] = price
    return best


@cache
def all_prices() -> tuple[Price, ...]:
    """Every row of hardware_specs/prices/, in the order of files and rows."""
    folder = data.folder(FOLDER)
    return tuple(price for stem in data.stems(FOLDER) for price in parse(data.read_yaml(folder / f"{stem}.yaml"), stem))


def parse(content: Mapping[str, Any], name: str) -> tuple[Price, ...]:
    """The prices in a file: its rows, each with the keys that they share.  Raises UserError."""
    shared = {key: value for key, value in content.items() if key != "rows"}
    beside = {"provider": record.text, "product": record.text}
    rows = record.listed(lambda row: record.read(Price, {**shared, **record.mapping(row)}, beside=beside))
    with record.placed(name):
        record.check(content, (*record.entries(Price), *beside, "rows"), ("rows",))
        prices: tuple[Price, ...] = record.at("rows", rows, content["rows"])
    return prices
