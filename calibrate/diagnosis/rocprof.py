"""Readers of rocprofv3: kernel_trace.csv with every kernel, and kernel_stats.csv with sums.

Columns: https://rocm.docs.amd.com/projects/rocprofiler-sdk/en/latest/how-to/using-rocprofv3.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmviewer.calibrate.diagnosis.recording import Kernel, KernelSum, Recording, Summary
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
    try:
        for row in rows:
            agents.setdefault(row.get("Agent_Id") or "", []).append(_kernel(row))
    except (TypeError, ValueError) as error:
        raise UserError(f"the kernel trace cannot be read: {error}") from error
    if not agents:
        raise UserError("the kernel trace has no rows")
    agent = max(agents, key=lambda name: sum(kernel.seconds for kernel in agents[name]))
    notes = (f"{len(agents)} agents are recorded: {agent}, the busiest, is compared",) if len(agents) > 1 else ()
    kernels = tuple(sorted(agents[agent], key=lambda kernel: (kernel.start_s, kernel.end_s)))
    return Recording(program=PROGRAM, kernels=kernels, notes=notes)


def _kernel(row: Row) -> Kernel:
    start, end = int(row["Start_Timestamp"]), int(row["End_Timestamp"])
    stream = row.get("Stream_Id") or row.get("Queue_Id") or "0"
    return Kernel(
        name=row["Kernel_Name"],
        start_s=start * NANOSECOND,
        seconds=(end - start) * NANOSECOND,
        stream=int(stream) if stream.isdigit() else 0,
    )


def summary(rows: Sequence[Row]) -> Summary:
    """Kernels of a table of statistics.  Raises UserError for a row that cannot be read."""
    try:
        kernels = tuple(
            KernelSum(name=row["Name"], count=int(row["Calls"]), seconds=float(row["TotalDurationNs"]) * NANOSECOND)
            for row in rows
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"the kernel statistics cannot be read: {error}") from error
    if not kernels:
        raise UserError("the kernel statistics have no rows")
    return Summary(program=PROGRAM, kernels=kernels)
