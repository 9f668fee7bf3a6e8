"""Units of terms, derived from those of the numbers that they are made of."""

from __future__ import annotations

import operator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from llmviewer.core.terms import Term, raw


class Measure(NamedTuple):
    """The word that is counted (byte, FLOP or none), the exponent of seconds, and the factor to SI units."""

    counted: str
    seconds: float
    factor: float


NONE = Measure("", 0.0, 1.0)
MIXED = "?"
#: Unit -> its measure; others count nothing.
MEASURES = {
    "s": Measure("", 1.0, 1.0), "us": Measure("", 1.0, 1e-6), "ns": Measure("", 1.0, 1e-9),
    "Hz": Measure("", -1.0, 1.0), "kcycle": Measure("", 0.0, 1e3),
    "byte": Measure("byte", 0.0, 1.0), "MiB": Measure("byte", 0.0, 2.0**20),
    "byte/s": Measure("byte", -1.0, 1.0), "byte/cycle": Measure("byte", 0.0, 1.0),
    "s/byte": Measure("", 1.0, 1.0),
    "FLOP": Measure("FLOP", 0.0, 1.0), "FLOP/s": Measure("FLOP", -1.0, 1.0), "FLOP/byte": NONE,
    "W": Measure("W", 0.0, 1.0), "op": Measure("op", 0.0, 1.0), "op/s": Measure("op", -1.0, 1.0),
}  # fmt: skip
#: Plain numbers that convert units.
CONVERSIONS = (1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9, 1e12, 2.0**20)
SAME_UNIT = (np.maximum, np.minimum, np.hypot, operator.add, operator.sub, operator.neg)


#: Ending of a name -> unit, where a formula counts without one.
ENDINGS = {
    "byte_s": "s/byte", "flops_per_s": "FLOP/s", "bytes_per_s": "byte/s", "_s": "s", "seconds": "s", "_us": "us",
    "_ns": "ns", "_hz": "Hz", "per_clock": "byte",
}  # fmt: skip


def unit_of(term: Term) -> str:
    """The unit of a term, by its name or by its formula; "" for a count and what is of no kind that has a word."""
    named = _by_ending(term.name)
    if named:
        return named
    found = measure(term)
    if found.seconds == 0.0:
        return found.counted if found.counted != MIXED and found.factor == 1.0 else ""
    if abs(found.seconds - 1.0) < 1e-9 and not found.counted:
        return next((unit for unit in ("s", "us", "ns") if abs(found.factor / MEASURES[unit].factor - 1.0) < 1e-9), "")
    rate = found.counted not in ("", MIXED) and found.factor == 1.0 and found.seconds == -1.0
    return f"{found.counted}/s" if rate else ""


def measure(operand: Any) -> Measure:
    """The measure of a term; a plain number that converts units changes only the factor."""
    if type(operand) is not Term:
        return Measure("", 0.0, 1.0 / operand) if operand in CONVERSIONS else NONE
    unit = operand.unit or _by_ending(operand.name)
    if operand.function is None or unit:
        return MEASURES.get(unit, NONE)
    return _of_formula(operand, [measure(one) for one in operand.operands])


def _of_formula(term: Term, below: list[Measure]) -> Measure:
    """The measure of a formula, by those of its operands."""
    first = below[0]
    if term.function is operator.mul:
        return _times(*below)
    if term.function is operator.truediv:
        return _times(first, Measure(f"/{below[1].counted}", -below[1].seconds, 1.0 / below[1].factor))
    if term.function is operator.pow:
        power = float(raw(term.operands[1]))
        return Measure(first.counted and MIXED, first.seconds * power, first.factor**power)
    if term.function not in SAME_UNIT:
        return NONE
    found = {Measure(one.counted, round(one.seconds, 9), round(one.factor, 15)) for one in below}
    if term.function in (np.maximum, np.minimum) and len(found) > 1:  # a limit that is a plain number
        found.discard(NONE)
    return found.pop() if len(found) == 1 else Measure(MIXED, 0.0, 1.0)


@cache
def _by_ending(name: str) -> str:
    """The unit that a name ends with."""
    return next((unit for ending, unit in ENDINGS.items() if name.endswith(ending)), "")


def _times(a: Measure, b: Measure) -> Measure:
    """The measure of a product; what is counted per something of no unit has none."""
    words = {a.counted.strip("/"), b.counted.strip("/")} - {""}
    opposite = a.counted and b.counted == f"/{a.counted}"
    counted = "" if opposite or not words else MIXED if len(words) > 1 else words.pop()
    per = b.counted.startswith("/") and b.counted != "/"
    return Measure("" if per and not a.counted else counted, a.seconds + b.seconds, a.factor * b.factor)
