"""Busy time of a device and the gaps between its kernels, over all of its streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmviewer.calibrate.diagnosis.recording import Kernel
from llmviewer.core.counts import Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Times of the kernels of one pass in order of their start [s].

    gaps: idle time of the device before each kernel, 0 before the first.  hidden: part of each kernel during which a
    kernel that started before it runs on another stream.
    """

    seconds: Array
    gaps: Array
    hidden: Array

    @property
    def busy_s(self) -> float:
        """Time during which at least one kernel runs: the union of their intervals."""
        return float((self.seconds - self.hidden).sum())


def timeline(kernels: Sequence[Kernel]) -> Timeline:
    """The timeline of kernels in order of their start."""
    start = np.array([kernel.start_s for kernel in kernels])
    seconds = np.array([kernel.seconds for kernel in kernels])
    end = start + seconds
    reached = np.concatenate(([start[0]], np.maximum.accumulate(end)[:-1]))  # end of all kernels before each
    gaps = np.maximum(start - reached, 0.0)
    hidden = np.clip(reached - start, 0.0, seconds)
    hidden[0] = 0.0
    return Timeline(seconds=seconds, gaps=gaps, hidden=hidden)
