"""`--set`: figures of a chip that does not exist, such as more bandwidth or a format that the real chip lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, quoted
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


TECHNIQUE = Technique(
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
        "peak.DTYPE": "dense matrix rate, also of a format that the chip lacks: peak.fp8=3PFLOP/s",
        "vector.DTYPE": "vector rate: 90TFLOP/s",
        "l2, l2_bandwidth": "capacity and bandwidth of the last-level cache",
        "links.NAME": "bandwidth of a link per direction: links.nvlink=900GB/s",
        "launch, latency": "time of a kernel's launch and of a message between devices, by a factor: launch=x0.5",
        "on_chip, special, units, power": "memory per unit, special functions, compute units, board power",
    },
)
