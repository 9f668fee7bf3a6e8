"""Units of contracts: amounts such as `12 ms` or `128 KiB`, of the kind of quantity that a metric is."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from llmviewer.core.errors import UserError, printable, quoted, unknown
from llmviewer.core.parsing import UNITS_OF_TIME
from llmviewer.language.quantity import unit_of

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BYTES = {f"{prefix}B": factor for prefix, factor in _DECIMAL.items()} | {
    "KB": 1e3,
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGT", start=1)},
}
_FLOP = {f"{prefix}FLOP": factor for prefix, factor in _DECIMAL.items()}
_NUMBERS = {"%": 0.01, "million": 1e6, "billion": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit as a contract writes it: how many SI units it is, and of which kind of quantity.  kind "": of any."""

    name: str
    factor: float
    kind: str


#: Units of all kinds by name.
UNITS: dict[str, Unit] = {
    name: Unit(name=name, factor=factor, kind=kind)
    for kind, units in (
        ("time", UNITS_OF_TIME | {"µs": 1e-6, "μs": 1e-6}),
        ("bytes", _BYTES),
        ("bandwidth", {f"{name}/s": factor for name, factor in _BYTES.items()}),
        ("work", _FLOP),
        ("compute rate", {f"{name}/s": factor for name, factor in _FLOP.items()}),
        ("token rate", {"tokens/s": 1.0}),
        ("request rate", {"requests/s": 1.0}),
        ("number", _NUMBERS),
    )
    for name, factor in units.items()
}
_AMOUNT = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9.]\S*)?", re.ASCII)


def amount(text: str, metric: str) -> tuple[float, Unit]:
    """The value in SI units and the unit of `12 ms`; without one it is in SI units.  Raises UserError.

    metric: for the units that an error advises; whether they are of its kind is checked when it is known to exist.
    """
    found = _AMOUNT.fullmatch(text.strip())
    value = float(found[1]) if found else math.nan
    if found is None or not math.isfinite(value):
        raise UserError(f"the limit is {quoted(text.strip())}; allowed: a number and its unit, such as 12 ms")
    name = found[2] or ""
    if name and name not in UNITS:
        raise unknown("unit", name, UNITS, hint=f"{printable(metric)} may be in {_of_kind(unit_of(metric).kind)}")
    unit = UNITS.get(name, Unit(name="", factor=1.0, kind=""))
    return value * unit.factor, unit


def checked(unit: Unit, metric: str) -> Unit:
    """The unit, if a metric may have it; a missing one is that of SI.  Raises UserError with the units allowed."""
    kind = unit_of(metric).kind
    if unit.kind == kind:
        return unit
    if not unit.kind:
        return Unit(name=unit_of(metric).symbol, factor=1.0, kind=kind)
    raise UserError(f"{printable(metric)} is not in {unit.name}; allowed: {_of_kind(kind)}, or a number alone")


def _of_kind(kind: str) -> str:
    return ", ".join(name for name, one in UNITS.items() if one.kind == kind and name.isascii())
