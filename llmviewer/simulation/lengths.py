"""Lengths of prompts and answers: one number, a distribution, or pairs sampled from a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from llmviewer.core.arguments import parse_size, whole_number
from llmviewer.core.errors import UserError, nearest, quoted
from llmviewer.simulation.requests import Whole
from llmviewer.techniques.technique import Parameter, parse_parameters

#: Draws lengths: their number, random numbers -> tokens.
Lengths: TypeAlias = Callable[[int, np.random.Generator], Whole]
#: Longest prompt or answer of a simulation [token].
MOST_TOKENS = 2.0**24


def _tokens(name: str, default: float | None = None) -> Parameter:
    return Parameter(name=name, default=default, low=1, high=MOST_TOKENS, whole=True)


LOW, HIGH, MEAN, LONGEST = _tokens("low"), _tokens("high"), _tokens("mean"), _tokens("max", MOST_TOKENS)
VARIATION = Parameter(name="cv", low=0.0, high=100.0)


def lengths_of(name: str, given: object) -> Lengths:
    """Lengths of `--input-len` or `--output-len`: a whole number, `uniform,low=,high=` or `lognormal,mean=,cv=[,max=]`.

    The mean of lognormal is that before it is cut at `max`.  Raises UserError.
    """
    value = parse_size(given) if isinstance(given, str) else given
    if not isinstance(value, str):
        tokens = whole_number(name, value)
        return lambda count, _: np.full(count, tokens, dtype=np.int64)
    kind, _, parameters = value.partition(",")
    if kind not in DISTRIBUTIONS:
        close = nearest(kind, DISTRIBUTIONS)
        guess = f"; did you mean '{close}'?" if close else ""
        allowed = "a whole number, uniform,low=..,high=.. or lognormal,mean=..,cv=.."
        raise UserError(f"{name} is {quoted(value)}; allowed: {allowed}{guess}")
    return DISTRIBUTIONS[kind](f"{name} {kind}", parameters)


def _uniform(where: str, text: str) -> Lengths:
    given = parse_parameters(where, text, (LOW.name, HIGH.name))
    low, high = (one.value(given, where) for one in (LOW, HIGH))
    if low > high:
        raise UserError(f"{where}: low is {low:g} and high {high:g}; allowed: low at most high")
    return lambda count, random: random.integers(int(low), int(high), count, endpoint=True)


def _lognormal(where: str, text: str) -> Lengths:
    given = parse_parameters(where, text, (MEAN.name, VARIATION.name, LONGEST.name))
    mean, variation, longest = (one.value(given, where) for one in (MEAN, VARIATION, LONGEST))
    variance = np.log1p(variation**2)
    middle = np.log(mean) - 0.5 * variance

    def draw(count: int, random: np.random.Generator) -> Whole:
        drawn = np.rint(random.lognormal(middle, np.sqrt(variance), count))
        return np.clip(drawn, 1.0, longest).astype(np.int64)

    return draw


#: First word of a distribution -> its reader.
DISTRIBUTIONS: dict[str, Callable[[str, str], Lengths]] = {"uniform": _uniform, "lognormal": _lognormal}
