"""Recorded requests (traces, usage logs, spans, datasets of benchmarks): their times, lengths and shared prefixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from io import TextIOWrapper
from pathlib import Path

import numpy as np

from llmviewer.core import files
from llmviewer.core.counts import Array
from llmviewer.core.errors import FileError, UserError, printable
from llmviewer.core.frozen import frozen
from llmviewer.simulation.requests import Whole
from llmviewer.simulation.trace_fields import CHARACTERS_PER_TOKEN, RowError
from llmviewer.simulation.trace_rows import Columns, rows_of

#: Largest trace, and its most rows.
MAX_BYTES, MAX_ROWS = 2**36, 10**7
#: Tokens of a block that an id of `hash_ids` stands for: https://github.com/kvcache-ai/Mooncake (FAST25 traces).
MOONCAKE_BLOCK = 512
#: Sizes of blocks of other traces, the likeliest first: Bailian's have 16.
BLOCKS = (512, 16, 32, 64, 128, 256, 1024)
#: Share of the prompts that a size of blocks must fit.
LEAST_FITTING = 0.5
#: Tokens of a block of conversations that the file states turn by turn: that of most engines.
TURN_BLOCK = 16
#: Mean times between requests [s] that a unit may lead to: few servers get more than 100 requests in a second, or less
#: than one in ten minutes.
GAPS_S = (0.01, 600.0)
#: Mean difference of times with decimals from which they are milliseconds, not seconds.
MOST_SECONDS = 60.0
#: Requests per second beyond which a stated unit is doubted.
ABSURD_RATE = 1000.0
#: Units that times may have [s] -> name.
UNITS = {1.0: "seconds", 1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds"}


@frozen(eq=False)
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
    """The requests of a trace; its format is known by its fields, and the unit of its times by their values.

    most: requests to read; None: all, of which MAX_ROWS are allowed.  duration_s: time after which requests are left
    out [s].  Raises UserError with the line of a row that is wrong.
    """
    files.refuse_named(path)
    columns = Columns()
    files.record(path)
    try:
        with files.open_bounded(Path(path), MAX_BYTES, "expected a trace of requests") as stream:
            for row in rows_of(TextIOWrapper(stream, encoding="utf-8", newline=None), columns):
                read = len(columns.times)
                if read == MAX_ROWS:
                    raise UserError(f"'{printable(path)}' has more than {MAX_ROWS:,} requests; use --requests")
                # the largest unit that is not yet known is a second, the smallest a millisecond
                beyond = read and (row.time - columns.times[0]) * (columns.unit_s or 1e-3) > duration_s
                if not columns.is_log and (read == most or beyond):
                    break
                columns.add(row)
    except (RowError, ValueError, RecursionError) as error:
        reason = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise FileError(f"{printable(path)}, line {columns.line}: {printable(reason, 300)}") from error
    if not columns.times:
        left = next((f": {count:,} {reason}" for reason, count in columns.left_out.items()), "")
        raise UserError(f"'{printable(path)}' has no request{left}")
    return _trace(columns, most, duration_s)


def _trace(columns: Columns, most: int | None, duration_s: float) -> Trace:
    times = np.frombuffer(columns.times, dtype=np.float64)
    sent = np.delete(times, list(columns.after))  # the others are sent when the turn before them ends
    unit_s, told = _unit(columns, np.sort(sent) if columns.is_log else sent)
    arrival_s = (times - np.min(times)) * unit_s
    kept = np.argsort(arrival_s, kind="stable") if columns.is_log else np.arange(len(times))
    kept = kept[~(arrival_s[kept] > duration_s)][:most]
    prefixes, block, of_blocks = _blocks(columns)
    places = {row: place for place, row in enumerate(kept.tolist())} if columns.after else {}
    return Trace(
        arrival_s=None if np.isnan(times[0]) else arrival_s[kept],
        input_len=np.frombuffer(columns.input_len, dtype=np.int64)[kept],
        output_len=np.frombuffer(columns.output_len, dtype=np.int64)[kept],
        prefixes=tuple(prefixes[row] for row in kept.tolist()) if prefixes else None,
        notes=(*_left_out(columns), *told, *of_blocks),
        block_tokens=block,
        after={
            places[row]: (places[before], delay_s)
            for row, (before, delay_s) in columns.after.items()
            if row in places and before in places
        },
    )


def _left_out(columns: Columns) -> list[str]:
    """Notes on requests that are left out, or not fully read."""
    told = [f"{count:,} {reason}" for reason, count in columns.left_out.items()]
    if columns.texts:
        told.append(f"tokens are estimated as characters / {CHARACTERS_PER_TOKEN}: the file has texts")
    if columns.images:
        told.append(f"{columns.images:,} requests have images, whose tokens the trace does not state")
    return told


def _unit(columns: Columns, times: Array) -> tuple[float, list[str]]:
    """Unit of the times [s], 1.0 where they are seconds already, and a note where it is found or in doubt."""
    gaps = max(len(times) - 1, 1)
    span = float(times[-1] - times[0])
    if columns.unit_s is None or span <= 0.0 or np.isnan(span):
        return 1.0, []
    if columns.unit_s:
        stated = UNITS[columns.unit_s]
        doubt = f"{gaps / span:,.0f} requests/s arrive if {columns.clock} is in {stated}: see that its unit is right"
        return 1.0, [doubt] if gaps / span > ABSURD_RATE else []
    likely = columns.likely_s
    if np.any(times != np.rint(times)) and span / gaps < MOST_SECONDS:
        likely = 1.0
    fitting = [unit for unit in UNITS if GAPS_S[0] <= span * unit / gaps <= GAPS_S[1]]
    nearest = min(fitting, key=lambda unit: abs(np.log(span * unit / gaps)), default=likely)
    unit_s = likely if likely in fitting else nearest
    rate = f"{gaps / span / unit_s:.3g} requests/s"
    if unit_s == likely == columns.likely_s == 1.0 and fitting:
        return unit_s, []
    why = f"; {UNITS[likely]} would be {gaps / span / likely:.3g}" if unit_s != likely else ""
    doubt = "" if fitting else ", which few servers get"
    return unit_s, [
        f"{columns.clock} is read as {UNITS[unit_s]} ({rate}{doubt}{why}); name it arrival_s or arrival_ms to state it"
    ]


def _blocks(columns: Columns) -> tuple[list[tuple[int, ...]], int, list[str]]:
    """Ids of the blocks of each prompt, tokens of a block, and a note: the size with which most prompts have as many
    ids as blocks."""
    lengths = np.frombuffer(columns.input_len, dtype=np.int64)
    if not columns.prefixes:
        if not columns.grown:
            return [], MOONCAKE_BLOCK, []
        turns = f"{columns.grown:,} prompts begin with the turns and answers before them in their session"
        return [_of_session(columns, row, int(length)) for row, length in enumerate(lengths)], TURN_BLOCK, [turns]
    counts = np.array([len(ids) for ids in columns.prefixes], dtype=np.int64)
    fits = {size: np.mean((-(-lengths // size) == counts) | (lengths // size == counts)) for size in BLOCKS}
    block = max(BLOCKS, key=lambda size: fits[size])
    if fits[block] < LEAST_FITTING:
        none = (
            f"no size of blocks fits the numbers of hash_ids: they are taken as {MOONCAKE_BLOCK} tokens, as Mooncake's"
        )
        return columns.prefixes, MOONCAKE_BLOCK, [none]
    told = f"blocks of hash_ids have {block} tokens: so the lengths of the prompts say"
    return columns.prefixes, block, [told] if block != MOONCAKE_BLOCK else []


def _of_session(columns: Columns, row: int, length: int) -> tuple[int, ...]:
    """Ids of the whole blocks of a prompt, which are those of every later prompt of its session."""
    first = columns.sessions.get(row, 0) << 32
    return tuple(range(first, first + length // TURN_BLOCK)) if row in columns.sessions else ()
