"""Hypothetical chips: a real chip with other figures, written as texts such as `bandwidth=6TB/s` or `peak.fp8=x2`.

Lists and ranges of such figures, such as `bandwidth=2TB/s:8TB/s:+1TB/s` or `launch=x0.25;x1`, are read here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from math import isfinite
from typing import Any

import numpy as np

from llmviewer.core import arguments
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError, printable, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.hardware.chip import FIGURES, PER_DTYPE, RATE_DTYPES, Chip, Figure

#: Name of a figure -> field of Chip, and its unit.
SCALARS: dict[str, tuple[str, str]] = {
    "bandwidth": ("bandwidth_bytes_per_s", "B/s"),
    "capacity": ("memory_bytes", "B"),
    "reported_capacity": ("reported_memory_bytes", "B"),
    "l2": ("l2_bytes", "B"),
    "l2_bandwidth": ("l2_bandwidth_bytes_per_s", "B/s"),
    "on_chip": ("on_chip_bytes_per_unit", "B"),
    "special": ("special_ops_per_s", "OP/s"),
    "units": ("units", ""),
    "power": ("tdp_w", "W"),
}
#: macOS's limit of what its GPU takes, in MiB without a unit: another name of the capacity that the driver reports.
WIRED_LIMIT = "iogpu.wired_limit_mb"
#: Times that kernels and messages take whatever they move; they are set by factors of the calibrated ones.
TIMES = ("launch", "latency")
#: First part of a name with a dtype or a link -> field of Chip, and its unit.
GROUPS = {"peak": "matrix_flops_per_s", "vector": "vector_flops_per_s", "links": "links"}
UNITS = {"peak": "FLOP/s", "vector": "FLOP/s", "links": "B/s"}
DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
BINARY = {f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGT", start=1)}
VALUE = re.compile(r"([0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)\s*([A-Za-z/]*)")
FACTOR = re.compile(r"[x*]([0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)|([+-][0-9]*\.?[0-9]+)\s*%")
#: 16-bit formats that run on the same units: setting one rate sets the other, if the real chip has one rate for both.
TWINS = {"bf16": "fp16", "fp16": "bf16"}
SOURCE = "set by the user (--set)"
#: Range of a figure in SI units.
LEAST, MOST = 1e-3, 1e24


@frozen
class Setting:
    """One changed figure: a value in SI units, or a factor of the chip's own.  text: as the user wrote it."""

    name: str
    value: float = 0.0
    factor: float = 0.0
    text: str = ""


def settings(text: str) -> tuple[Setting, ...]:
    """The settings of `bandwidth=6TB/s,peak.fp8=x2`.  Raises UserError for an unknown figure, unit or a bad value."""
    found = [_setting(part.strip()) for part in text.split(",")]
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--set gives {name} twice")
    return tuple(found)


def _setting(text: str) -> Setting:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value:
        raise UserError(f"--set is {quoted(text)}; allowed: FIGURE=VALUE, such as bandwidth=6TB/s or peak.fp8=x2")
    value += "MiB" if name == WIRED_LIMIT and value.isdecimal() else ""
    known = figure_name(name)
    factor = FACTOR.fullmatch(value)
    if known in TIMES and factor is None:
        raise UserError(
            f"--set {known} is {quoted(value)}; allowed: a factor of the calibrated time, such as x0.5 or -20%"
        )
    if factor is not None:
        times = float(factor[1]) if factor[1] else 1.0 + float(factor[2]) / 100.0
        if not LEAST <= times <= 1.0 / LEAST:
            raise UserError(f"--set {known}={value}: a factor from {LEAST:g} to {1.0 / LEAST:g} is allowed")
        return Setting(name=known, factor=times, text=value)
    return Setting(name=known, value=quantity(known, value), text=value)


def setting_text(name: str, value: object) -> str:
    """The text of a setting; a plain number is a figure in SI units, or the factor of a time.

    Raises UserError for an unknown figure.
    """
    if not arguments.is_number(value):
        return f"{name}={printable(value)}"
    number = repr(float(value))  # type: ignore[arg-type]
    return f"{name}=x{number}" if name in TIMES else f"{name}={number}{unit_of(figure_name(name))}"


def figure_name(name: str) -> str:
    """The name of a figure that can be set; fields of chips and keys of spec files are accepted too.

    Raises UserError with the nearest name.
    """
    name = "reported_capacity" if name == WIRED_LIMIT else name
    if name in SCALARS or name in TIMES:
        return name
    for short, (field, _) in SCALARS.items():
        if name and name in (field, FIGURES[field].key):  # some figures have no key
            return short
    group, dot, member = name.partition(".")
    group = {"dense_tflops": "peak", "vector_tflops": "vector", **{field: key for key, field in GROUPS.items()}}.get(
        group, group
    )
    if group in GROUPS and dot and member:
        if group != "links" and member not in RATE_DTYPES:
            raise unknown("dtype", member, RATE_DTYPES, where=f"--set {name}")
        return f"{group}.{member.removesuffix('.bandwidth_bytes_per_s')}"
    raise unknown("figure of a chip", name, (*SCALARS, *TIMES, "peak.DTYPE", "vector.DTYPE", "links.NAME"))


def is_hypothetical(chip: Chip) -> bool:
    """Whether figures of a chip are set, so that nobody sells it."""
    return any(figure.source == SOURCE for figure in chip.figures.values())


def unit_of(name: str) -> str:
    """The unit of a figure: B/s, B, FLOP/s, OP/s, W, or "" for a plain number."""
    return SCALARS[name][1] if name in SCALARS else UNITS[name.partition(".")[0]]


def quantity(name: str, text: str) -> float:
    """The value of a figure in SI units; a size in bytes takes decimal (GB) and binary (GiB) prefixes.

    Raises UserError for another unit than the figure's.
    """
    unit = unit_of(name)
    found = VALUE.fullmatch(text.strip())
    scale = None if found is None else _scale(found[2], unit)
    if found is None or scale is None:
        examples = {
            "B/s": "6TB/s",
            "B": "192GiB or 80GB",
            "FLOP/s": "3PFLOP/s",
            "OP/s": "4TOP/s",
            "W": "700W",
            "": "132",
        }
        raise UserError(f"--set {name} is {quoted(text)}; allowed: a value such as {examples[unit]}, x1.5 or +10%")
    value = float(found[1]) * scale
    if not (isfinite(value) and LEAST <= value <= MOST):
        raise UserError(f"--set {name} is {quoted(text)}; allowed: {LEAST:g} to {MOST:g} {unit}".rstrip())
    return value


def _scale(text: str, unit: str) -> float | None:
    """One unit of a text in SI units; None for a text that is not a prefix and the unit."""
    spelled = {"FLOP/s": ("FLOP/s", "FLOPS", "FLOPs"), "B/s": ("B/s", "Bps"), "OP/s": ("OP/s", "OPS")}.get(
        unit, (unit,)
    )
    for ending in spelled:
        prefix = text.removesuffix(ending) if ending else text
        if text.endswith(ending) and prefix in DECIMAL | (BINARY if unit == "B" else {}):
            return (DECIMAL | BINARY)[prefix]
    return None


def with_figures(chip: Chip, changes: Iterable[Setting]) -> Chip:
    """The chip with other figures, each of which has the user as its source.

    Raises UserError for a link that the chip lacks, and for a factor of a figure that is unknown.
    """
    for one in changes:
        chip = with_figure(chip, one.name, _value(chip, one), one.text)
    return chip


def settled(chip: Chip, text: str) -> tuple[Chip, str]:
    """The chip with the figures of a text of settings, and the text of those settings that are times."""
    changes = settings(text)
    times = ",".join(f"{one.name}={one.text}" for one in changes if one.name in TIMES)
    return with_figures(chip, [one for one in changes if one.name not in TIMES]), times


def numbers(chip: Chip, techniques: Mapping[str, str]) -> dict[str, Count]:
    """Figures of a hypothetical chip in SI units, and factors of times, by name.  techniques: texts, one of `set`."""
    text = techniques.get("set", "none")
    changes = () if text == "none" else settings(text)
    return {one.name: one.factor if one.name in TIMES else _known(chip, one.name) for one in changes}


def _known(chip: Chip, name: str) -> Count:
    found = figure_of(chip, name)
    assert found is not None, "a figure that is set is known"
    return found


def figure_of(chip: Chip, name: str) -> Count | None:
    """The chip's own figure in SI units; None if it is unknown or missing."""
    if name in SCALARS:
        return getattr(chip, SCALARS[name][0])  # type: ignore[no-any-return]
    group, _, member = name.partition(".")
    if group == "links":
        link = chip.links.get(member)
        return None if link is None else link.bandwidth_bytes_per_s
    return getattr(chip, GROUPS[group]).get(member)  # type: ignore[no-any-return]


def _value(chip: Chip, one: Setting) -> Count:
    if not one.factor:
        return one.value
    own = figure_of(chip, one.name)
    if own is None:
        raise UserError(
            f"--set {one.name}={one.text}: {chip.name} has no such figure; give a value instead of a factor"
        )
    return own * one.factor


def with_figure(chip: Chip, name: str, value: Count, text: str = "") -> Chip:
    """The chip with one figure of another value in SI units, a number or one for each of several chips."""
    group, _, member = name.partition(".")
    field = SCALARS[name][0] if name in SCALARS else GROUPS[group]
    changed: dict[str, Any] = {}
    if group == "links":
        changed["links"] = _links(chip, member, value)
        key = f"links.{member}.bandwidth_bytes_per_s"
    elif field in PER_DTYPE:
        changed[field] = {**getattr(chip, field), member: value}
        key = f"{field}.{member}"
        twin = TWINS.get(member)
        if field == "matrix_flops_per_s" and twin and _alike(chip, member, twin):
            changed[field][twin] = value
    else:
        changed[field] = value
        key = field
    if field == "memory_bytes":
        changed["reported_memory_bytes"] = None  # what a driver reports is of the real capacity
    figures = {known: one for known, one in chip.figures.items() if known not in (key, "reported_memory_bytes")}
    if text:
        figures[key] = Figure(value=float(value), source=SOURCE, note=_was(chip, name))
        changed["title"] = f"{chip.title}, {name} {text}"
    return replace(chip, **changed, figures=figures, basis=chip.real)


def _alike(chip: Chip, member: str, twin: str) -> bool:
    """Whether the real chip runs both formats at one rate, on the same units."""
    rates = chip.real.matrix_flops_per_s
    return bool(member in rates and np.all(rates[member] == rates.get(twin)))


def _was(chip: Chip, name: str) -> str:
    own = figure_of(chip, name)
    return (
        "not a figure of the real chip" if own is None else f"the real chip has {float(own):g} {unit_of(name)}".strip()
    )


def _links(chip: Chip, member: str, value: Count) -> Mapping[str, Any]:
    if member not in chip.links:
        raise unknown("link", member, chip.links, where=f"--set links.{member} of {chip.name}")
    return {**chip.links, member: replace(chip.links[member], bandwidth_bytes_per_s=value)}


def told(value: float, unit: str) -> str:
    """A value in SI units as `quantity` reads it, with the largest decimal prefix below it."""
    prefix, scale = max(
        ((name, size) for name, size in DECIMAL.items() if size <= value or not name), key=lambda p: p[1]
    )
    return f"{value / scale:.12g}{prefix if unit else ''}{unit}" if unit else f"{value:.12g}"


def amount(name: str, value: float) -> str:
    """A figure with its unit in three digits, for people; a time that is set is a factor."""
    if name in TIMES:
        return f"x{value:.3g}"
    text = told(float(f"{value:.3g}"), unit_of(name))
    found = VALUE.fullmatch(text)
    return f"{found[1]} {found[2]}".rstrip() if found else text


NUMBER = re.compile(r"[0-9]*\.?[0-9]+")
RANGE = re.compile(r"(.+?):(.+?):([+*])(.+)")
#: A comma before another figure, and what separates the values of one.
NEXT_FIGURE, SEVERAL = re.compile(r"[,;](?=[^,;]*=)"), re.compile(r"[,;]")
#: Most values of one range.
MAX_VALUES = 1000


def alternatives(texts: Iterable[str]) -> str:
    """Every combination of the values of repeated settings, separated by semicolons.

    Each text is FIGURE=VALUE, with several values by commas or semicolons, or as a range: bandwidth=2TB/s:8TB/s:+1TB/s
    adds, bandwidth=1TB/s:8TB/s:*2 and bandwidth=x1:x4:*2 multiply.  A comma before another FIGURE= begins the next
    setting.  Raises UserError.
    """
    lists = []
    for text in (one for given in texts for one in NEXT_FIGURE.split(given)):
        name, equals, values = text.partition("=")
        if not equals:
            raise UserError(f"--set is {quoted(text)}; allowed: FIGURE=VALUE, such as bandwidth=6TB/s or peak.fp8=x2")
        parts = [value for part in SEVERAL.split(values) for value in _range(figure_name(name.strip()), part.strip())]
        lists.append([f"{name.strip()}={value}" for value in parts])
    return ";".join(",".join(chosen) for chosen in product(*lists))


def _range(name: str, text: str) -> Iterator[str]:
    """The values of a range, or the text itself if it is none."""
    found = RANGE.fullmatch(text)
    if found is None:
        if ":" in text:
            allowed = "FIRST:LAST:+STEP or FIRST:LAST:*FACTOR, such as bandwidth=2TB/s:8TB/s:*2"
            raise UserError(f"--set {name} is {quoted(text)}; a range is {allowed}")
        yield text
        return
    factors = name in TIMES or found[1].startswith("x")
    read = partial(_factor, name) if factors else partial(quantity, name)
    first, last = read(found[1]), read(found[2])
    adds = found[3] == "+"
    step = read(found[4]) if adds else float(found[4]) if NUMBER.fullmatch(found[4]) else 0.0
    if last < first or step <= (0.0 if adds else 1.0):
        raise UserError(f"--set {name}={text}: a range ends after it begins, adds a value or multiplies by more than 1")
    for value in _steps(f"{name}={text}", first, last, (step, 1.0) if adds else (0.0, step)):
        yield f"x{value:.12g}" if factors else told(value, unit_of(name))


def _factor(name: str, text: str) -> float:
    """The number of a factor such as x1.5.  Raises UserError."""
    found = FACTOR.fullmatch(text)
    if found is None or found[1] is None:
        raise UserError(f"--set {name} has {quoted(text)} in a range of factors; allowed: a factor such as x1.5")
    return float(found[1])


def _steps(text: str, first: float, last: float, step: tuple[float, float]) -> Iterator[float]:
    """Values from the first to the last one.  step: what is added, and the factor."""
    value, count = first, 0
    while value <= last * (1.0 + 1e-12):
        count += 1
        if count > MAX_VALUES:
            raise UserError(f"--set {text} has over {MAX_VALUES:,} values")
        yield value
        value = value * step[1] + step[0]
