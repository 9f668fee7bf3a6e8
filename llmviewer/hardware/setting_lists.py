"""Lists and ranges of hypothetical figures, such as `bandwidth=2TB/s:8TB/s:+1TB/s` or `launch=x0.25;x1`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product

from llmviewer.core.errors import UserError, quoted
from llmviewer.hardware.hypothetical import FACTOR, TIMES, figure_name, quantity, told, unit_of

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
