"""`--set` and `--power-limit`: figures of a chip that does not exist, and a board power below the chip's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, quoted
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import TIMES, settings, with_figures
from llmviewer.techniques.technique import Change, Technique
from llmviewer.timing.calibrated import Calibrated


def _make(text: str) -> Change:
    if ";" in text:
        raise UserError(f"--set is {quoted(text)}; several values are for sweep, compare, crossover and plot")
    changes = settings(text)
    figures = tuple(one for one in changes if one.name not in TIMES)
    times = {one.name: one.factor for one in changes if one.name in TIMES}

    def change(system: System) -> System:
        changed = replace(system, chip=with_figures(system.chip, figures))
        return (with_times(changed, times) if times else changed).listing(f"set({text})")

    return change


def with_times(system: System, times: Mapping[str, float]) -> System:
    """The system with launches and messages that take other times.  times: TIMES -> factor.

    Raises UserError without calibrated times, since the roofline has neither.
    """
    if not isinstance(system.efficiency, Calibrated):
        raise UserError(
            f"--set {next(iter(times))}: ideal times have no {' or '.join(TIMES)}; remove --efficiency ideal"
        )
    return replace(system, efficiency=replace(system.efficiency, **times))  # type: ignore[arg-type]


FIGURES = Technique(
    name="set figures",
    kind="hypothetical chip",
    summary="Replaces figures of the chip: kernels are assumed to reach the same share of the new figures.",
    formula="time = max over resources of work / (new rate x efficiency of the real chip) + its fixed time",
    source="hypothetical chips as in figure 20 of https://arxiv.org/abs/2402.16363",
    example="llmviewer analyze llama-2-7b --hardware h100 --set bandwidth=6TB/s --set peak.fp8=3PFLOP/s",
    make=_make,
    parameters={
        "bandwidth": "memory bandwidth: 6TB/s, x1.5 or +10%",
        "capacity": "memory capacity: 192GiB",
        "reported_capacity": "what its driver reports of it: 112GiB; also iogpu.wired_limit_mb=114688, of a Mac",
        "peak.DTYPE": "dense matrix rate, also of a format that the chip lacks: peak.fp8=3PFLOP/s",
        "vector.DTYPE": "vector rate: 90TFLOP/s",
        "l2, l2_bandwidth": "capacity and bandwidth of the last-level cache",
        "links.NAME": "bandwidth of a link per direction: links.nvlink=900GB/s",
        "launch, latency": "time of a kernel's launch and of a message between devices, by a factor: launch=x0.5",
        "on_chip, special, units, power": "memory per unit, special functions, compute units, board power",
    },
)


#: Least part of the board power that a driver accepts as a limit: 100 of an A100's 400 W, 200 of an H100's 700 W.
LEAST_SHARE = 0.25
UNITS = {"": 1.0, "w": 1.0, "kw": 1e3}


def limited(chip: Chip, watts: float) -> Chip:
    """The chip with a lower board power [W].  Raises UserError beyond what the board allows."""
    if chip.tdp_w is None:
        raise UserError(f"--power-limit: the board power of {chip.name} is not published; give the chip a tdp_w")
    least, most = LEAST_SHARE * float(np.max(chip.tdp_w)), float(np.min(chip.tdp_w))
    if not least <= watts <= most:
        raise UserError(f"--power-limit is {watts:g} W; allowed for {chip.name}: {least:g} to {most:g} W")
    return replace(chip, power_limit_w=watts)


def _lowered(text: str) -> Change:
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(|w|kw)", text.strip().lower())
    if found is None:
        raise UserError(f"--power-limit is {quoted(text)}; allowed: watts such as 400W or 400")
    watts = float(found[1]) * UNITS[found[2]]
    return lambda system: replace(system, chip=limited(system.chip, watts)).listing(f"power_limit({watts:g} W)")


POWER_LIMIT = Technique(
    name="power limit",
    kind="power",
    summary="Lowers the board power (nvidia-smi -pl): large products run at a lower clock; decode slows on GDDR only.",
    formula="sustained share of the dense peak x (limit / board power)^0.45; rate of reading GDDR x limit / power that "
    "reading needs; energy is at most limit x time",
    source="Power caps of H100 in Splitwise, https://arXiv.org/abs/2311.18677; exponent: H100 SXM and PCIe in "
    "https://github.com/stas00/ml-engineering/tree/master/compute/accelerator",
    example="llmviewer analyze llama-2-7b --hardware h100 --power-limit 350W",
    make=_lowered,
)
