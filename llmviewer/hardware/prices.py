"""Prices of chips: $ for one chip for one hour, from hardware_specs/prices/."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from llmviewer.core import data

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
KEYS = ("chip", "usd_per_gpu_hour", "kind", "term", "provider", "product", "region", "date", "source")
REQUIRED = ("chip", "usd_per_gpu_hour", "kind", "term", "date", "source")


@dataclass(frozen=True, slots=True)
class Price:
    """$ for one chip for one hour.  date: day on which it was read (ISO), None for the user's own prices."""

    chip: str
    usd_per_hour: float
    kind: str
    term: str
    region: str | None
    date: str | None
    source: str

    def to_dict(self) -> dict[str, Any]:
        """The price as results print it."""
        return {"usd_per_hour": self.usd_per_hour, "date": self.date, "source": self.source}


@cache
def least_prices(kind: str) -> Mapping[str, Price]:
    """The least price of a kind by chip; the first row in the order of files wins a tie."""
    best: dict[str, Price] = {}
    for price in all_prices():
        if price.kind == kind and (price.chip not in best or price.usd_per_hour < best[price.chip].usd_per_hour):
            best[price.chip] = price
    return best


@cache
def all_prices() -> tuple[Price, ...]:
    """Every row of hardware_specs/prices/, in the order of files and rows."""
    return tuple(price for stem in data.stems(FOLDER) for price in _rows(stem))


def _rows(stem: str) -> Iterable[Price]:
    spec = data.read_yaml(data.folder(FOLDER) / f"{stem}.yaml")
    data.check_keys(spec, (*KEYS, "rows"), ("rows",), stem)
    shared = {key: value for key, value in spec.items() if key != "rows"}
    for row in spec["rows"]:
        merged = {**shared, **row}
        data.check_keys(merged, KEYS, REQUIRED, stem)
        usd, region = float(merged["usd_per_gpu_hour"]), merged.get("region")
        chip, kind, term, read, source = (str(merged[key]) for key in ("chip", "kind", "term", "date", "source"))
        yield Price(chip, usd, kind, term, region, read, source)
