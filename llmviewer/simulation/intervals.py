"""Intervals of simulated latencies: from the scatter of replications, and from the errors of the calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from llmviewer.simulation.limits import STATISTICS

#: Level -> quantiles of Student's t for 1, 2, ... degrees of freedom, two-sided; beyond the table, of the normal
#: distribution.  NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
STUDENT: Mapping[str, tuple[float, ...]] = {
    "80": (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372, 1.363, 1.356, 1.350, 1.345, 1.341,
           1.337, 1.333, 1.330, 1.328, 1.282),
    "95": (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
           2.120, 2.110, 2.101, 2.093, 1.960),
}  # fmt: skip

Summary = Mapping[str, float | None]
Levels = dict[str, list[float | None]]


def of_replications(parts: Sequence[Summary], whole: Summary) -> dict[str, Levels]:
    """Statistic -> level -> interval around its value, from independent runs or parts of one run.

    Student's t of the mean over the parts; null where a part has no value or there is a single one.
    """
    found = {}
    for name in STATISTICS:
        values = [part[name] for part in parts if part[name] is not None]
        found[name] = around(values, whole[name])
    return found


def around(parts: Sequence[float | None], centre: float | None) -> Levels:
    """Level -> interval of a value from those of parts, as above."""
    values = np.array(parts, dtype=np.float64)
    if centre is None or len(values) < 2:
        return {level: [None, None] for level in STUDENT}
    error = float(values.std(ddof=1)) / np.sqrt(len(values))
    widths = {level: table[min(len(values) - 2, len(table) - 1)] * error for level, table in STUDENT.items()}
    return {level: [max(centre - width, 0.0), centre + width] for level, width in widths.items()}


def scaled(whole: Summary, ratios: Mapping[str, Sequence[float]]) -> dict[str, Levels]:
    """Statistic -> level -> interval, in proportion to its value.  ratios: level -> low and high over value."""
    return {
        name: {
            level: [None if value is None else value * ratio for ratio in bounds] for level, bounds in ratios.items()
        }
        for name, value in ((name, whole[name]) for name in STATISTICS)
    }
