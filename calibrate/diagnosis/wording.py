"""Times and ratios as text, for evidence and suspects."""

from __future__ import annotations

#: Units of times.
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def told(seconds: float) -> str:
    """A time with its unit: 1.52 s, 26.4 µs."""
    unit, name = next(((unit, name) for unit, name in UNITS if abs(seconds) >= unit), UNITS[-1])
    return f"{short(seconds / unit, 3)} {name}" if seconds else "0 s"


def short(value: float, digits: int = 2) -> str:
    """A number to some digits without an exponent: 1.5, 13, 1,500."""
    return f"{float(f'{value:.{digits}g}'):,.10g}"
