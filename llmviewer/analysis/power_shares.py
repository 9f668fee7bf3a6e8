"""Shares of a chip's board power that its resources draw, fitted by generation, and power that sites provide.

A resource at its data-sheet peak draws its share: pJ per FLOP is share x TDP / dense peak of the number format, and pJ
per byte share x TDP / bandwidth, so that the shares of a generation hold for chips of any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from llmviewer.analysis.evaluation import Evaluation, TimedOperator
from llmviewer.core import data
from llmviewer.core.counts import Count, total
from llmviewer.core.errors import unknown
from llmviewer.core.frozen import frozen
from llmviewer.hardware.chip import Chip
from llmviewer.language import record
from llmviewer.language.record import NUMBER, keyed, mapped

#: Resource of the roofline -> share that it draws.
SHARE_OF = {"compute": "compute", "vector": "compute", "memory": "memory", "link": "link"}
#: File of the fitted constants in calibrate/.
FILE = "power.yaml"


@frozen
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
        return evaluation.sum(self.of_row)

    def of_row(self, row: TimedOperator) -> Count:
        """Dynamic energy of an operator in one layer over the board power [s]."""
        return total(
            seconds * float(getattr(self, SHARE_OF[name])) for name, seconds in row.ideal.resources if name in SHARE_OF
        )

    def joules(self, chip: Chip, time_s: Count, work_s: Count) -> Count:
        """Energy of a device that is busy for `time_s` [J]: idle + work, at most the board's power x time."""
        tdp, most = board_watts(chip)
        return np.minimum(tdp * (self.idle * time_s + work_s), most * time_s)


_GENERATION = partial(
    record.read,
    PowerShares,
    beside={"source": record.text, "held_out_error": mapped(NUMBER)},
    server=0.0,
    basis="fitted",
)
_FITTED = keyed(lender=record.text, generations=mapped(_GENERATION), server=keyed(share=NUMBER, source=record.text))
#: Power that data centres provide, by chip [W].
ALL_IN = keyed(source=record.text, date=record.day, all_in_kw_per_gpu=mapped(record.number(factor=1e3)))


def fitted(content: Any) -> dict[str, Any]:
    """Constants that calibrate/fit_power.py fitted, from the content of FILE.  Raises UserError."""
    found: dict[str, Any] = _FITTED(content)
    if found["lender"] not in found["generations"]:
        raise unknown("lender", found["lender"], found["generations"])
    return found


def shares_of(chip: Chip, efficiency: object = None) -> PowerShares | None:
    """Power shares that the user's profile has of this card, else of a chip's generation, else of the one that lends;
    None if the board power is unknown.

    efficiency: that of the system, whose first profile may be the user's.
    """
    if chip.tdp_w is None:
        return None
    constants = _constants()
    if measured := getattr(efficiency, "own_power", None):
        return PowerShares(**measured, server=constants["server"]["share"], basis="measured on this card")
    own, lender = constants["generations"].get(chip.generation), constants["lender"]
    shares: PowerShares = own or constants["generations"][lender]
    return replace(shares, server=constants["server"]["share"], basis="fitted" if own else f"borrowed from {lender}")


def all_in_w(chip: str) -> float | None:
    """Power that a data centre provides per chip, by its stem [W]; None if it is not published."""
    return _all_in().get(chip)


def board_watts(chip: Chip) -> tuple[Count, Count]:
    """Board power of a chip, and the limit set on it [W]."""
    assert chip.tdp_w is not None and chip.power_w is not None  # checked by shares_of
    return chip.tdp_w, chip.power_w


@cache
def _constants() -> Mapping[str, Any]:
    found: Mapping[str, Any] = record.of_file(FILE, fitted, data.read_yaml(data.folder("calibrate") / FILE))
    return found


@cache
def _all_in() -> Mapping[str, float]:
    path = data.folder("hardware_specs/power") / "all-in.yaml"
    found: Mapping[str, float] = record.of_file(path.name, ALL_IN, data.read_yaml(path))["all_in_kw_per_gpu"]
    return found


def work_of_device(evaluation: Evaluation, shares: PowerShares | None) -> Count:
    """Dynamic energy of each pass on the mean device of a pipeline over the board power [s]; 0 without shares."""
    stages = evaluation.each_stage
    return 0.0 if shares is None else total(shares.work_s(stage) for stage in stages) / len(stages)
