"""Distributions of the tokens of prompts and answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeAlias

import numpy as np

from llmviewer.core.arguments import parse_size, whole_number
from llmviewer.core.errors import UserError, nearest, quoted
from llmviewer.core.frozen import frozen
from llmviewer.language.grammar import Grammar, Number
from llmviewer.simulation.requests import Whole as Counts
from llmviewer.techniques.technique import Whole, called

#: Draws lengths: their number, random numbers -> tokens.
Lengths: TypeAlias = Callable[[int, np.random.Generator], Counts]
#: Longest prompt or answer of a simulation [token].
MOST_TOKENS = 2.0**24


Tokens = partial(Whole, low=1, high=MOST_TOKENS)


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
    distribution = DISTRIBUTIONS[kind]
    return called(distribution, f"{name} {kind}", Grammar.of(distribution), parameters)


def _uniform(
    *, low: Annotated[float, Tokens("shortest length")], high: Annotated[float, Tokens("longest length")]
) -> Lengths:
    if low > high:
        raise UserError(f"low is {low:g} and high {high:g}; allowed: low at most high")
    return lambda count, random: random.integers(int(low), int(high), count, endpoint=True)


def _lognormal(
    *,
    mean: Annotated[float, Tokens("mean before lengths are cut")],
    cv: Annotated[float, Number("coefficient of variation", 0.0, 100.0)],
    max: Annotated[float, Tokens("longest length")] = MOST_TOKENS,  # noqa: A002
) -> Lengths:
    variance = np.log1p(cv**2)
    middle = np.log(mean) - 0.5 * variance

    def draw(count: int, random: np.random.Generator) -> Counts:
        drawn = np.rint(random.lognormal(middle, np.sqrt(variance), count))
        return np.clip(drawn, 1.0, max).astype(np.int64)

    return draw


#: First word of a distribution -> the distribution by its parameters.
DISTRIBUTIONS: dict[str, Callable[..., Lengths]] = {"uniform": _uniform, "lognormal": _lognormal}


@frozen(eq=False)
class Spread:
    """Whole numbers of a distribution: their mean, the least of them, and what draws them."""

    mean: float
    least: int
    draw: Lengths


def spread(text: str) -> Spread:
    """The numbers of `400`, of `100..700` (uniform) or of `400~1.2` (lognormal of mean 400, coefficient of variation
    1.2): distributions within an option whose parameters have commas between them.  Raises ValueError.
    """
    low, dots, high = text.partition("..")
    mean, tilde, cv = text.partition("~")
    numbers = [parse_size(word) for word in ((low, high) if dots else (mean,))]
    whole = [one for one in numbers if isinstance(one, int) and 1 <= one <= MOST_TOKENS]
    if len(whole) < len(numbers) or whole[0] > whole[-1]:
        raise ValueError("allowed: a whole number from 1, LOW..HIGH, or MEAN~CV")
    first, last = whole[0], whole[-1]
    if not tilde:
        return Spread(mean=0.5 * (first + last), least=first, draw=_uniform(low=first, high=last))
    try:
        variation = float(cv)
    except ValueError:
        variation = -1.0
    if not 0.0 <= variation <= 100.0:
        raise ValueError("allowed after ~: a coefficient of variation from 0 to 100")
    return Spread(mean=float(first), least=1, draw=_lognormal(mean=float(first), cv=variation))
