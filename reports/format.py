"""Numbers as text.  Unit prefixes are added only here; loaders remove them.

Counts, traffic and rates are decimal (1 GB = 1e9 B); memory is binary (1 GiB = 2**30 B).  None is printed as a dash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, isinf, log10
from typing import Any, TypeAlias

from llmviewer.language.quantity import QUANTITIES, Unit, ending, unit_of

Number: TypeAlias = "int | float | None"

DASH = "–"
#: SI prefixes from 1 up, each 1000 times the one before.
DECIMAL = ("", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")
#: Prefixes of parameter counts, where billions are B, not G.
NAMED = ("", "K", "M", "B", "T")
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def digits(value: float, significant: int = 3) -> str:
    """Returns `value` with `significant` digits, never cutting its integer part: 0, 8, 1.75, 1,365, ∞."""
    if isinf(value):
        return "∞" if value > 0.0 else "−∞"
    if value == int(value) and abs(value) < 10**significant:
        return f"{int(value):,}"
    rounded = abs(float(f"{value:.{significant}g}"))
    if not 1e-4 <= rounded < 1e15:
        return f"{value:.{significant - 1}e}"
    return f"{value:,.{max(significant - 1 - floor(log10(rounded)), 0)}f}"


def _prefixed(value: float, prefixes: tuple[str, ...], base: float, significant: int) -> tuple[str, str]:
    """Returns (number, prefix) with the rounded number below `base`, as far as there are prefixes."""
    level, scaled = 0, value
    while abs(float(f"{scaled:.{significant}g}")) >= base and level < len(prefixes) - 1:
        level, scaled = level + 1, scaled / base
    return digits(scaled, significant), prefixes[level]


def count(value: Number) -> str:
    """Formats a count with SI prefixes: `34.4 G`, `512`."""
    if value is None:
        return DASH
    number, prefix = _prefixed(float(value), DECIMAL, 1e3, 3)
    return f"{number} {prefix}".rstrip()


def parameters(value: Number) -> str:
    """Formats a parameter count: `6.738B`, `124.4M`."""
    return DASH if value is None else "".join(_prefixed(float(value), NAMED, 1e3, 4))


def traffic(value: Number) -> str:
    """Formats traffic in decimal bytes: `50.3 MB`."""
    if value is None:
        return DASH
    number, prefix = _prefixed(float(value), DECIMAL, 1e3, 3)
    return f"{number} {prefix}B"


def memory(value: Number) -> str:
    """Formats a footprint in binary bytes: `12.6 GiB`, `512 KiB`."""
    if value is None:
        return DASH
    number, unit = _prefixed(float(value), BINARY, 1024.0, 3)
    return f"{number} {unit}"


def capacity(value: Number) -> str:
    """Formats a memory capacity to four digits, at most in GiB, as vendors do: `6,144 GiB`."""
    if value is None:
        return DASH
    number, unit = _prefixed(float(value), BINARY[:4], 1024.0, 4)
    return f"{_trimmed(number)} {unit}"


def tera(value: Number) -> str:
    """Formats a rate in units of 1e12 to four digits, as data sheets do: `154.8`, `1,979`."""
    return DASH if value is None else _trimmed(digits(float(value) / 1e12, 4))


def flops_per_s(value: Number) -> str:
    """Formats a compute rate: `154.8 TFLOP/s`."""
    return DASH if value is None else f"{tera(value)} TFLOP/s"


def bandwidth(value: Number) -> str:
    """Formats a bandwidth in decimal bytes to four digits: `768 GB/s`, `3.35 TB/s`."""
    if value is None:
        return DASH
    number, prefix = _prefixed(float(value), DECIMAL[:6], 1e3, 4)
    return f"{_trimmed(number)} {prefix}B/s"


def rate(value: Number) -> str:
    """Formats FLOP/s compactly, at most in T: `154.8 T`."""
    if value is None:
        return DASH
    number, prefix = _prefixed(float(value), DECIMAL[:5], 1e3, 4)
    return f"{number} {prefix}".rstrip()


def duration(value: Number) -> str:
    """Formats a time: `21.9 µs`, `9.35 ms`, `1,234 s`."""
    if value is None:
        return DASH
    seconds = float(value)
    for scale, unit in SECONDS:
        if abs(float(f"{seconds / scale:.3g}")) >= 1.0 or unit == "ns":
            return f"{_fixed(seconds / scale)} {unit}" if seconds else "0 s"
    raise AssertionError(seconds)


def durations(low: Number, high: Number) -> str:
    """Formats an interval of times in the unit of its upper end: `40.1 to 47.3 ms`."""
    if low is None or high is None:
        return DASH
    number, unit = duration(high).rsplit(" ", 1)
    scale = next((scale for scale, name in SECONDS if name == unit), 1.0)
    return f"{_fixed(float(low) / scale) if low else '0'} to {number} {unit}"


def bounds(low: Number, high: Number) -> str:
    """Formats an interval of times for the cell of a table: `40.1–47.3 ms`."""
    return durations(low, high).replace(" to ", "–")


def intensity(value: Number) -> str:
    """Formats FLOP per byte: `683`, `1,365`, `1.75`, `0.167`, `0`."""
    if value is None:
        return DASH
    return _fixed(float(value)) if value else "0"


def share(value: Number) -> str:
    """Formats a fraction as a percentage: `63.1 %`; a small nonzero one is `<0.1 %`."""
    if value is None:
        return DASH
    if abs(value) >= 9.9995:  # at least 1,000 % when rounded
        return f"{digits(100.0 * value)} %"
    return "<0.1 %" if 0.0 < value < 0.0005 else f"{100.0 * value:.1f} %"


def percent(value: Number) -> str:
    """Formats a fraction within a sentence: `63 %`, `62.9 %`, `100 %`."""
    if value is None:
        return DASH
    return "100 %" if value == 1.0 else f"{_trimmed(share(value)[:-2])} %"


def signed(value: float) -> str:
    """Formats a deviation: `+2.3 %`, `-5 %`, `0 %`, `<0.1 %`."""
    text = percent(value)
    return f"{'+' if value > 0 and text[0] != '<' else ''}{text}" if text != "-0 %" else "0 %"


def times(value: Number) -> str:
    """Formats a ratio: `1.00×`, `0.283×`, `12.4×`."""
    return DASH if value is None else f"{_fixed(float(value))}×"


def whole(value: Number) -> str:
    """Formats an integer with thousands separators: `131,072`."""
    return DASH if value is None else f"{round(value):,}"


def per_second(value: Number) -> str:
    """Formats a rate per second: `57.1`, `12,345`."""
    return DASH if value is None else digits(float(value))


def rates(seconds: Sequence[float | None]) -> str:
    """Formats the range of a rate per second by the least and the most seconds of one: `52.1–80.3`.

    A dash where either is not known.
    """
    known = [one for one in seconds if one is not None]
    if len(known) < 2:
        return DASH
    least, most = known
    return f"{per_second(1.0 / most)}–{per_second(1.0 / least)}"


def decimal(value: Number) -> str:
    """Formats a number to three digits: `0.124`, `3.5`."""
    return DASH if value is None else digits(float(value))


def term(price: Mapping[str, Any] | None) -> str:
    """Formats the term of a price: `on demand`, `3 years`."""
    return DASH if price is None else str(price["term"])


#: Unit -> how a cell shows its numbers; others are counts.
FORMATS: dict[Unit, Callable[[Number], str]] = {
    Unit.SECOND: duration,
    Unit.BYTE: memory,
    Unit.SHARE: share,
    **dict.fromkeys((Unit.TOKEN_RATE, Unit.USER_RATE, Unit.DEVICE_RATE, Unit.REQUEST_RATE), per_second),
    **dict.fromkeys((Unit.JOULE, Unit.DOLLAR, Unit.DOLLAR_RATE, Unit.GRAM), decimal),
}
#: Units that stand behind the number in a sentence; the others are in the text of the number, or before it.
BEHIND = (Unit.TOKEN_RATE, Unit.USER_RATE, Unit.DEVICE_RATE, Unit.REQUEST_RATE, Unit.JOULE)


def figure(name: str, value: Number) -> str:
    """Formats a declared figure for the cell of a table, whose heading has the unit."""
    return FORMATS.get(unit_of(name), whole)(value)


def told(name: str, value: Number) -> str:
    """Formats a declared figure with its unit for a sentence: `57.1 tokens/s`, `$0.124`."""
    text, unit = figure(name, value), unit_of(name)
    if value is None:
        return text
    return f"{text} {unit.symbol}" if unit in BEHIND else f"${text}" if unit is Unit.DOLLAR else text


def heading(name: str) -> str:
    """The heading of a column of a file: `prefill traffic (byte)`; without a unit, underscores become blanks."""
    stem, _, part = name.partition(".")
    end, unit = ending(stem)
    words = QUANTITIES[name].title if name in QUANTITIES else f"{stem.removesuffix(end).strip('_') or stem} {part}"
    return f"{words.replace('_', ' ').strip()}{f' ({unit.symbol})' if unit.symbol else ''}"


def _fixed(value: float) -> str:
    """Formats three significant digits and keeps trailing zeros, so that columns align."""
    text = digits(value)
    return f"{value:.{3 - len(text)}f}" if text.isdigit() and len(text) < 3 else text


def _trimmed(number: str) -> str:
    """Removes trailing zeros of a decimal fraction: `3.350` -> `3.35`."""
    return number.rstrip("0").rstrip(".") if "." in number and "e" not in number else number
