"""Shares of a chip's board power that its resources draw, fitted by generation, and power that sites provide.

A resource at its data-sheet peak draws its share: pJ per FLOP is share x TDP / dense peak of the number format, and pJ
per byte share x TDP / bandwidth, so that the shares of a generation hold for chips of any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np

from llmviewer.analysis.evaluation import Evaluation
from llmviewer.core import data
from llmviewer.core.counts import Count, total
from llmviewer.core.errors import unknown
from llmviewer.hardware.chip import Chip
from llmviewer.language import record
from llmviewer.language.record import stated

#: Resource of the roofline -> share that it draws.
SHARE_OF = {"compute": "compute", "vector": "compute", "memory": "memory", "link": "link"}
#: File of the fitted constants in calibrate/.
FILE = "power.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerShares:
    """Shares of a chip's board power: drawn always, and added by each resource at its data-sheet peak.

    server: fans, CPUs and power supplies, per chip.  basis: fitted, or borrowed from the generation named.
    """

    idle: float
    compute: float
    memory: float
    link: float
    server: float
    basis: str

    def work_s(self, evaluation: Evaluation) -> Count:
        """Dynamic energy of each forward pass on one device over the board power [s]."""
        return evaluation.sum(
            lambda row: total(
                seconds * float(getattr(self, SHARE_OF[name]))
                for name, seconds in row.ideal.resources
                if name in SHARE_OF
            )
        )

    def joules(self, chip: Chip, time_s: Count, work_s: Count) -> Count:
        """Energy of a device that is busy for `time_s` [J]: idle + work, at most the board's power x time."""
        tdp, most = board_watts(chip)
        return np.minimum(tdp * (self.idle * time_s + work_s), most * time_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The share of the power of a server that is not of its chips, per chip."""

    share: float
    source: str


#: A generation's shares as FILE states them.
_GENERATION = partial(
    record.read,
    PowerShares,
    beside={"source": record.text, "held_out_error": record.mapped(record.NUMBER)},
    server=0.0,
    basis="fitted",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedShares:
    """Constants that calibrate/fit_power.py fitted.  lender: the generation whose shares others take."""

    lender: str
    generations: Mapping[str, PowerShares] = field(metadata=stated(record.mapped(_GENERATION)))
    server: Server = field(metadata=stated(partial(record.read, Server)))

    def __post_init__(self) -> None:
        if self.lender not in self.generations:
            raise unknown("lender", self.lender, self.generations)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllIn:
    """Power that a data centre provides, by chip [W]."""

    source: str
    date: str = field(metadata=stated(record.day))
    watts: Mapping[str, float] = field(metadata=stated(record.mapped(record.number(factor=1e3)), "all_in_kw_per_gpu"))


def shares_of(chip: Chip) -> PowerShares | None:
    """Power shares of a chip's generation, else of the one that lends; None if the board power is unknown."""
    if chip.tdp_w is None:
        return None
    fitted = _fitted()
    own = fitted.generations.get(chip.generation)
    basis = "fitted" if own else f"borrowed from {fitted.lender}"
    return replace(own or fitted.generations[fitted.lender], server=fitted.server.share, basis=basis)


def all_in_w(chip: str) -> float | None:
    """Power that a data centre provides per chip, by its stem [W]; None if it is not published."""
    return _all_in().watts.get(chip)


def board_watts(chip: Chip) -> tuple[Count, Count]:
    """Board power of a chip, and the limit set on it [W]."""
    assert chip.tdp_w is not None and chip.power_w is not None  # checked by shares_of
    return chip.tdp_w, chip.power_w


@cache
def _fitted() -> FittedShares:
    return record.read(FittedShares, data.read_yaml(data.folder("calibrate") / FILE), FILE)


@cache
def _all_in() -> AllIn:
    path = data.folder("hardware_specs/power") / "all-in.yaml"
    return record.read(AllIn, data.read_yaml(path), path.name)


def work_of_device(evaluation: Evaluation, shares: PowerShares | None) -> Count:
    """Dynamic energy of each pass on the mean device of a pipeline over the board power [s]; 0 without shares."""
    stages = evaluation.stages or (evaluation,)
    return 0.0 if shares is None else total(shares.work_s(stage) for stage in stages) / len(stages)
