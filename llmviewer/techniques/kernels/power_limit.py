"""`--power-limit`: board power below the chip's own, under which large products run at a lower clock."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from llmviewer.core.errors import UserError, quoted
from llmviewer.hardware.chip import Chip
from llmviewer.techniques.technique import Change, Technique

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


def _make(text: str) -> Change:
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(|w|kw)", text.strip().lower())
    if found is None:
        raise UserError(f"--power-limit is {quoted(text)}; allowed: watts such as 400W or 400")
    watts = float(found[1]) * UNITS[found[2]]
    return lambda system: replace(system, chip=limited(system.chip, watts)).listing(f"power_limit({watts:g} W)")


TECHNIQUE = Technique(
    name="power limit",
    kind="power",
    summary="Lowers the board power (nvidia-smi -pl): large products run at a lower clock, decode hardly slows down.",
    formula="sustained share of the dense peak x (limit / board power)^0.45; energy is at most limit x time",
    source="Power caps of H100 in Splitwise, https://arXiv.org/abs/2311.18677; exponent: H100 SXM and PCIe in "
    "https://github.com/stas00/ml-engineering/tree/master/compute/accelerator",
    example="llmviewer analyze llama-2-7b --hardware h100 --power-limit 350W",
    make=_make,
)
