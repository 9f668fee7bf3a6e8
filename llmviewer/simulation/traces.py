"""Recorded requests: Azure's and BurstGPT's CSV, Mooncake's JSON lines, datasets of benchmarks; read row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path

import numpy as np

from llmviewer.core import file_cache, files
from llmviewer.core.counts import Array
from llmviewer.core.errors import FileError, UserError, printable
from llmviewer.simulation.requests import Whole
from llmviewer.simulation.trace_rows import CHARACTERS_PER_TOKEN, Columns, RowError, rows_of

#: Largest trace, and its most rows.
MAX_BYTES, MAX_ROWS = 2**36, 10**7
#: Tokens of a block that an id of `hash_ids` stands for: https://github.com/kvcache-ai/Mooncake (FAST25 traces).
MOONCAKE_BLOCK = 512
#: Mean time between requests [s] below which the unit of the times is said: few servers have more than 100 in a second.
LEAST_GAP_S = 0.01
#: Sizes of blocks of other traces, the likeliest first: Bailian's have 16.
BLOCKS = (512, 16, 32, 64, 128, 256, 1024)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Requests of a file, in order.

    arrival_s: from the first request on [s]; None where the file has no times.  prefixes, prefix_tokens, after:
    as of `Requests`.  notes: what the reader of a result has to know.
    """

    arrival_s: Array | None
    input_len: Whole
    output_len: Whole
    prefixes: tuple[tuple[int, ...], ...] | None
    notes: tuple[str, ...]
    block_tokens: int = MOONCAKE_BLOCK
    after: Mapping[int, tuple[int, float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.input_len)

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the blocks that `prefixes` name; 0 without them."""
        return self.block_tokens if self.prefixes else 0


def read_trace(path: str | Path, most: int | None = None, duration_s: float = np.inf) -> Trace:
    """The requests of a trace; its format is known by its first line.

    most: requests to read; None: all, of which MAX_ROWS are allowed.  duration_s: time after which requests are left
    out [s].  Raises UserError with the line of a row that is wrong.
    """
    files.refuse_named(path)
    columns, limit = Columns(), MAX_ROWS if most is None else most
    file_cache.record(path)
    try:
        with files.open_bounded(Path(path), MAX_BYTES, "expected a trace of requests") as stream:
            for row in rows_of(TextIOWrapper(stream, encoding="utf-8", newline=None), columns):
                read = len(columns.input_len)
                if read == limit or (read and row.arrival_s - columns.arrival_s[0] > duration_s):
                    break
                columns.add(row)
            else:
                limit = MAX_ROWS + 1  # the file ended
    except (RowError, ValueError) as error:
        reason = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise FileError(f"{printable(path)}, line {columns.line}: {printable(reason, 300)}") from error
    if len(columns.input_len) == limit and most is None:
        raise UserError(f"'{printable(path)}' has more than {MAX_ROWS:,} requests; use --requests")
    if not columns.input_len:
        raise UserError(f"'{printable(path)}' has no request")
    return _trace(columns)


def _trace(columns: Columns) -> Trace:
    times = np.frombuffer(columns.arrival_s, dtype=np.float64)
    told = []
    if columns.failed:
        told.append(f"{columns.failed:,} failed requests of the trace, without an answer, are left out")
    if columns.unanswered:
        told.append(f"{columns.unanswered:,} conversations without an answer are left out")
    if columns.in_milliseconds and len(times) > 1 and times[-1] - times[0] < LEAST_GAP_S * (len(times) - 1):
        told.append("timestamp is read as milliseconds, as of Mooncake; seconds are named arrival_s")
    if columns.texts:
        told.append(f"tokens are estimated as characters / {CHARACTERS_PER_TOKEN}: the file has texts")
    return Trace(
        arrival_s=None if np.isnan(times[0]) else times - times[0],
        input_len=np.frombuffer(columns.input_len, dtype=np.int64),
        output_len=np.frombuffer(columns.output_len, dtype=np.int64),
        prefixes=tuple(columns.prefixes) or None,
        notes=tuple(told),
        block_tokens=_block_tokens(columns),
        after=columns.after,
    )


def _block_tokens(columns: Columns) -> int:
    """Tokens of a block: the number for which every prompt has as many ids as blocks; Mooncake's where none fits."""
    lengths = np.frombuffer(columns.input_len, dtype=np.int64)
    counts = np.array([len(ids) for ids in columns.prefixes], dtype=np.int64)
    if len(counts) != len(lengths):
        return MOONCAKE_BLOCK
    fitting = [size for size in BLOCKS if np.array_equal(-(-lengths // size), counts)]
    return fitting[0] if fitting else MOONCAKE_BLOCK
