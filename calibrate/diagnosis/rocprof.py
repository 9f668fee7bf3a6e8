"""Readers of rocprofv3: kernel_trace.csv with every kernel, and kernel_stats.csv with sums.

Columns: https://rocm.docs.amd.com/projects/rocprofiler-sdk/en/latest/how-to/using-rocprofv3.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmviewer.calibrate.diagnosis.recording import Kernel, Recording, Summary, in_order, kernel_sum, span, whole
from llmviewer.core.errors import UserError

PROGRAM = "rocprofv3"
NANOSECOND = 1e-9
#: Columns that tell the two tables.
TRACE = ("Kernel_Name", "Start_Timestamp", "End_Timestamp")
STATS = ("Name", "Calls", "TotalDurationNs")

Row = Mapping[str, str]


def is_trace(header: Sequence[str]) -> bool:
    """Whether the header of a CSV table is that of a kernel trace."""
    return set(TRACE) <= set(header)


def is_stats(header: Sequence[str]) -> bool:
    """Whether the header of a CSV table is that of kernel statistics."""
    return set(STATS) <= set(header)


def recording(rows: Sequence[Row]) -> Recording:
    """The kernels of the busiest agent.  Raises UserError for a row that cannot be read."""
    agents: dict[str, list[Kernel]] = {}
    for number, row in enumerate(rows, 1):
        agents.setdefault(row.get("Agent_Id") or "", []).append(_kernel(row, number))
    if not agents:
        raise UserError("the kernel trace has no rows")
    agent = max(agents, key=lambda name: sum(kernel.seconds for kernel in agents[name]))
    notes = (f"{len(agents)} agents are recorded: {agent}, the busiest, is compared",) if len(agents) > 1 else ()
    kernels, cut = in_order(agents[agent])
    return Recording(program=PROGRAM, kernels=kernels, notes=(*notes, *cut))


def _kernel(row: Row, number: int) -> Kernel:
    times = span(row["Start_Timestamp"], row["End_Timestamp"], NANOSECOND)
    if times is None:
        raise UserError(f"row {number} of the kernel trace cannot be read: it has no times")
    stream = whole(row.get("Stream_Id") or row.get("Queue_Id"))
    return Kernel(name=row["Kernel_Name"] or "", start_s=times[0], seconds=times[1], stream=stream)


def summary(rows: Sequence[Row]) -> Summary:
    """Kernels of a table of statistics.  Raises UserError for a row that cannot be read."""
    kernels = tuple(
        kernel_sum(row["Name"], row["Calls"], row["TotalDurationNs"], NANOSECOND, number)
        for number, row in enumerate(rows, 1)
    )
    if not kernels:
        raise UserError("the kernel statistics have no rows")
    return Summary(program=PROGRAM, kernels=kernels)
