"""What a kernel family is: constants with meaning and unit, and the rates they give an operator on a chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from llmviewer.core.counts import Count
from llmviewer.core.ir import Operator
from llmviewer.hardware.chip import Chip
from llmviewer.timing.efficiency import Rates

Constants: TypeAlias = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A fitted number.  start: where a fit begins; low, high: what is physically possible.

    choices: a setting rather than a measure (a threshold): the fit tries each of them.
    """

    name: str
    unit: str
    meaning: str
    start: float
    low: float
    high: float
    choices: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of kernel.

    rates: (operator, chip, constants) -> what the kernel attains; array-first, the same formula for prediction and fit.
    covers: (operator, chip) -> the quantities whose fitted range a profile states (rows, keys ...).
    variant: operator -> which of the family's fits it takes, by number formats or sort of work.
    twins: variant -> others that stand in for it without loss (bf16 and fp16), nearest first.
    unmeasured: no table holds such kernels; the constants that a fit would begin with serve.
    nearest: variant -> others that stand in for it where neither was measured anywhere, nearest first.
    """

    name: str
    constants: tuple[Constant, ...]
    rates: Callable[[Operator, Chip, Constants], Rates]
    covers: Callable[[Operator, Chip], Mapping[str, Count]]
    variant: Callable[[Operator], str]
    twins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unmeasured: bool = False
    nearest: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def starting(self) -> dict[str, float]:
        """The constants a fit begins with."""
        return {constant.name: constant.start for constant in self.constants}
