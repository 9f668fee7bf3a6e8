"""Readers of Nsight Systems: the SQLite export of a recording, and the table cuda_gpu_kern_sum of `nsys stats`.

Tables and columns: https://docs.nvidia.com/nsight-systems/UserGuide/index.html#sqlite-schema-reference.  A recording
without --cuda-graph-trace=node has each replayed graph as one entry.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from llmviewer.calibrate.diagnosis.recording import (
    Kernel,
    Mark,
    Recording,
    Summary,
    in_order,
    kernel_sum,
    seconds,
    span,
    whole,
)
from llmviewer.core.errors import UserError, printable

PROGRAM = "Nsight Systems"
NANOSECOND = 1e-9
#: Beginning of every SQLite file.
SIGN = b"SQLite format 3\x00"
#: Table -> name of its entries, "" if a column has it.
TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "[CUDA memcpy]",
    "CUPTI_ACTIVITY_KIND_MEMSET": "[CUDA memset]",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "CUDA graph as a whole",
}
GRAPHS, LAUNCHES, MARKS, NAMES = (
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "StringIds",
)
WHOLE_GRAPHS = (
    "CUDA graphs are recorded as wholes: record with nsys profile --cuda-graph-trace=node to see their kernels"
)
#: Identifiers of processes and threads hold the number of the process above this and that of the thread below.
PROCESS = 2**24
#: Most entries that are read of one table.
MAX_ROWS = 2_000_000
#: Columns of cuda_gpu_kern_sum, and the unit that its header states.
TIME, COUNT, NAME = "Total Time", "Instances", "Name"
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def recording(path: Path) -> Recording:
    """The recording in an SQLite export, of its busiest device.  Raises UserError if it has no kernels."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
            return _recording(base, printable(path))
    except sqlite3.Error as error:
        raise UserError(f"'{printable(path)}' cannot be read as an export of {PROGRAM}: {error}") from error


def _recording(base: sqlite3.Connection, where: str) -> Recording:
    columns = {name: _columns(base, name) for (name,) in base.execute("SELECT name FROM sqlite_master")}
    launches = _launches(base, columns.get(LAUNCHES, set()))
    found: dict[tuple[int, int], list[Kernel]] = {}
    for table in TABLES:
        if table in columns:
            for owner, kernel in _entries(base, table, columns[table], launches):
                found.setdefault(owner, []).append(kernel)
    if not found:
        raise UserError(f"'{where}' has no kernels of a device; record with `nsys profile --trace cuda,nvtx`")
    owner = max(found, key=lambda one: sum(kernel.seconds for kernel in found[one]))
    process, device = owner
    notes = [WHOLE_GRAPHS] if _has_rows(base, GRAPHS, columns) else []
    if len(found) > 1:
        notes.append(f"{len(found)} devices are recorded: device {device}, the busiest, is compared")
    kernels, cut = in_order(found[owner])
    notes += cut
    return Recording(
        program=PROGRAM,
        kernels=kernels,
        marks=tuple(_marks(base, process)) if MARKS in columns else (),
        device=_device(base, device) if "TARGET_INFO_GPU" in columns else "",
        notes=tuple(notes),
    )


def _columns(base: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in base.execute(f'PRAGMA table_info("{table}")')}


def _has_rows(base: sqlite3.Connection, table: str, columns: Mapping[str, set[str]]) -> bool:
    return table in columns and base.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None


def _process(columns: set[str]) -> str:
    """The expression for the process of an entry, 0 if its table does not tell."""
    name = next((name for name in ("globalPid", "globalTid") if name in columns), "")
    return f"e.{name} / {PROCESS} % {PROCESS}" if name else "0"


def _launches(base: sqlite3.Connection, columns: set[str]) -> dict[tuple[int, object], object]:
    """Process and number of a launch -> its time [ns]; 0 is any process.  Processes number their launches alike."""
    if not columns:
        return {}
    rows = base.execute(f"SELECT {_process(columns)}, correlationId, start FROM {LAUNCHES} AS e").fetchall()
    return {(owner, number): start for process, number, start in rows for owner in (whole(process), 0)}


def _entries(
    base: sqlite3.Connection, table: str, columns: set[str], launches: Mapping[tuple[int, object], object]
) -> Iterator[tuple[tuple[int, int], Kernel]]:
    """Process and device, and the kernel of every entry of a table."""
    named = next((name for name in ("demangledName", "shortName", "nameId") if name in columns), "")
    name = f"(SELECT value FROM {NAMES} WHERE id = e.{named})" if named and not TABLES[table] else f"'{TABLES[table]}'"
    fields = f"{_process(columns)}, {name}, start, end, deviceId, streamId, correlationId"
    query = f"SELECT {fields} FROM {table} AS e LIMIT {MAX_ROWS + 1}"
    for count, (process, text, start, end, device, stream, correlation) in enumerate(base.execute(query)):
        if count == MAX_ROWS:
            raise UserError(f"{table} has more than {MAX_ROWS:,} entries; record fewer forward passes")
        times = span(start, end, NANOSECOND)
        if times is None:
            raise UserError(f"row {count + 1} of {table} has no times; export the recording anew")
        yield (
            (whole(process), whole(device)),
            Kernel(
                name=str(text or ""),
                start_s=times[0],
                seconds=times[1],
                stream=whole(stream),
                launch_s=seconds(launches.get((whole(process), correlation)), NANOSECOND),
            ),
        )


def _marks(base: sqlite3.Connection, process: int) -> Iterator[Mark]:
    """Marks of a process; of all if the recording does not tell."""
    columns = _columns(base, MARKS)
    text = f"COALESCE(e.text, (SELECT value FROM {NAMES} WHERE id = e.textId))" if "textId" in columns else "e.text"
    query = f"SELECT {text}, start, end FROM {MARKS} AS e WHERE end IS NOT NULL"
    own = f" AND {_process(columns)} IN (0, {process})" if process else ""
    for name, start, end in base.execute(f"{query}{own} LIMIT {MAX_ROWS}"):
        times = span(start, end, NANOSECOND)
        if isinstance(name, str) and name and times is not None:
            yield Mark(name=name, start_s=times[0], end_s=sum(times))


def _device(base: sqlite3.Connection, device: int) -> str:
    found = base.execute("SELECT name FROM TARGET_INFO_GPU WHERE id = ?", (device,)).fetchone()
    return found[0] if found and isinstance(found[0], str) else ""


def is_summary(header: Sequence[str]) -> bool:
    """Whether the header of a CSV table is that of cuda_gpu_kern_sum."""
    return _column(header, TIME) is not None and COUNT in header and NAME in header


def summary(rows: Sequence[Mapping[str, str]]) -> Summary:
    """Kernels of a cuda_gpu_kern_sum table.  Raises UserError for a row that is not one of it."""
    column = _column(list(rows[0]), TIME) if rows else None
    if column is None:
        raise UserError("the table of kernels has no rows")
    unit = UNITS.get(column.partition("(")[2].rstrip(")") or "ns")
    if unit is None:
        raise UserError(f"the time of the table of kernels has an unknown unit; allowed: {', '.join(UNITS)}")
    kernels = tuple(kernel_sum(row[NAME], row[COUNT], row[column], unit, number) for number, row in enumerate(rows, 1))
    return Summary(program=PROGRAM, kernels=kernels)


def _column(header: Sequence[str], start: str) -> str | None:
    return next((name for name in header if name is not None and name.startswith(start)), None)
