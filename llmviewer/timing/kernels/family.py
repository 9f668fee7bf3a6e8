"""Kernel families: constants with meaning and unit, and the formula for an operator's rates on a chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TypeAlias

from llmviewer.core.counts import Count
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Operator
from llmviewer.hardware.chip import Chip
from llmviewer.timing.roofline import Rates

Constants: TypeAlias = Mapping[str, float]


@frozen
class Constant:
    """A fitted number.  start: initial value of a fit; low, high: physical bounds.

    also: further initial values, for a fit whose cost has several minima.
    choices: values of a discrete setting, such as a threshold; the fit tries each of them.
    derived: not fitted to rows, but derived from other fits.
    later: profiles fitted before it existed have none, and work as with 0.
    """

    name: str
    unit: str
    meaning: str
    start: float
    low: float
    high: float
    also: tuple[float, ...] = ()
    choices: tuple[float, ...] = ()
    derived: bool = False
    later: bool = False


def constant(name: str, unit: str, start: float, low: float, high: float, meaning: str) -> Constant:
    """A constant without discrete settings."""
    return Constant(name=name, unit=unit, meaning=meaning, start=start, low=low, high=high)


@frozen
class Family:
    """Kernels that one formula prices.

    rates: (operator, chip, constants) -> attainable rates; vectorized, the same formula for prediction and fit.
    quantities: (operator, chip) -> quantities whose fitted range a profile states (rows, keys ...).
    variant: operator -> variant of the fit that it uses, by number formats or kind of work.
    equivalents: variant -> variants of equal performance (bf16 and fp16), nearest first.
    unmeasured: no measured table contains such kernels; start values of the constants are used.
    substitutes: variant -> variants to use if neither it nor its equivalents were measured on any chip, nearest first.
    last_resorts: variant -> kinds of fit of other families (`gemm/fp8`), searched if no profile has a fit of this one.
    In equivalents such kinds may stand too.
    limits: operator -> quantities above whose fitted range the kernel may not exist, and engines run another one.
    of_box: constants that are of the box where they were measured; other chips, in other boxes, take the start values.
    box_error: variant -> what other boxes add to the error of a whole fit.
    """

    name: str
    constants: tuple[Constant, ...]
    rates: Callable[[Operator, Chip, Constants], Rates]
    quantities: Callable[[Operator, Chip], Mapping[str, Count]]
    variant: Callable[[Operator], str]
    equivalents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unmeasured: bool = False
    substitutes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    last_resorts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limits: Callable[[Operator], Mapping[str, Count]] = lambda operator: {}
    of_box: tuple[str, ...] = ()
    box_error: Callable[[str], float] = lambda variant: 0.0

    def start_values(self) -> dict[str, float]:
        """Start values of the constants."""
        return {constant.name: constant.start for constant in self.constants}

    def starts(self) -> list[dict[str, float]]:
        """The start values, and these with each further initial value of a constant."""
        plain = self.start_values()
        return [plain, *(plain | {constant.name: value} for constant in self.constants for value in constant.also)]
