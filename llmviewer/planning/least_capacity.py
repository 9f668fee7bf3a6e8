"""The least memory capacity of a hypothetical chip that holds a workload, by evaluated answers.

What an engine may use of a capacity differs (driver, utilization, a share of what is free), so that no formula is
inverted: the answer of a chip says whether the workload fits, and the search narrows the interval between a capacity
that does not suffice and one that does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmviewer.api.configuration import Configuration
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.hardware.hypothetical import figure_of, with_figure
from llmviewer.serving.batching import STATIC

CAPACITY = "capacity"
#: Largest ratio of the capacity to one that does not suffice.
CLOSE = 1.0 + 1e-8
#: Times of the chip's own capacity up to which is searched, and the steps in which the interval is found.
MOST, STEP = 1e3, 2.0


def least_capacity(configuration: Configuration, workload: Request) -> float:
    """Least capacity [byte] that holds the workload, with the sequences that run at once on the chip as it is.

    Where the chip does not hold the workload, they are those of plenty of memory.  Raises UserError if no capacity
    suffices, or if a technique chooses something else for each capacity.
    """
    if configuration.most_points < np.inf or configuration.system.spatial:
        raise UserError("a technique adapts to the request and the chip; the capacity cannot be varied with it")
    most = MOST * float(figure_of(configuration.chip, CAPACITY))  # type: ignore[arg-type]

    def running(capacity: float) -> float:
        return _running(configuration.on_chip(with_figure(configuration.chip, CAPACITY, capacity)), workload)

    wanted = max(_running(configuration, workload), 0.0) or running(most)
    if wanted < 0.0:
        raise UserError("no capacity of the device holds the workload; see `analyze` for what else limits it")
    return _least(lambda capacity: running(capacity) >= wanted, most)


def _running(made: Configuration, workload: Request) -> float:
    """Sequences that start one by one and run at once, 0 for a static batch; -1 if the workload does not fit."""
    if made.system.batching is STATIC:
        return 0.0 if made.memory_columns(workload)["fits"][0] else -1.0
    answer = made.answer(workload)
    running = answer.analysis.running
    return float(np.max(running.request.batch_size)) if running is not None and answer.fits else -1.0


def _least(holds: Callable[[float], bool], most: float) -> float:
    """The least value that holds, to CLOSE.  most: one that holds."""
    high, low = most, most / STEP
    while holds(low):
        high, low = low, low / STEP
    while high > low * CLOSE:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
