"""Recorded requests: Azure's and BurstGPT's CSV, Mooncake's JSON lines, datasets of benchmarks; read row by row."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llmviewer.core import files
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, printable, quoted
from llmviewer.simulation.requests import Whole

#: Largest trace, and its most rows.
MAX_BYTES, MAX_ROWS = 2**36, 10**7
#: Tokens of a block that an id of `hash_ids` stands for: https://github.com/kvcache-ai/Mooncake (FAST25 traces).
MOONCAKE_BLOCK = 512
#: Characters of a token where a dataset has texts and no numbers of tokens.
CHARACTERS_PER_TOKEN = 4
#: Longest prompt or answer of a row [token].
MOST_TOKENS = 2**24


class RowError(Exception):
    """A row that is wrong; the text says what is wrong and what is allowed."""


class Row(NamedTuple):
    """One request.  arrival_s: NaN where the file has no times.  prefixes: ids of its blocks; None where unknown."""

    arrival_s: float
    input_len: int
    output_len: int
    prefixes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Requests of a file, in order.

    arrival_s: from the first request on [s]; None where the file has no times.  prefixes, prefix_tokens: as of
    `Requests`.  notes: what the reader of a result has to know.
    """

    arrival_s: Array | None
    input_len: Whole
    output_len: Whole
    prefixes: tuple[tuple[int, ...], ...] | None
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.input_len)

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the blocks that `prefixes` name; 0 without them."""
        return MOONCAKE_BLOCK if self.prefixes else 0


@dataclass(slots=True)
class _Columns:
    """The rows read so far; numbers only, so that ten million of them fit in memory.

    line: number of the row that is being read.  failed: requests left out.  texts: rows with estimated lengths.
    """

    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    input_len: array[int] = field(default_factory=lambda: array("q"))
    output_len: array[int] = field(default_factory=lambda: array("q"))
    prefixes: list[tuple[int, ...]] = field(default_factory=list)
    line: int = 1
    failed: int = 0
    texts: int = 0

    def add(self, row: Row) -> None:
        """Append a row.  Raises RowError if it is earlier than the one before."""
        times = self.arrival_s
        if times and row.arrival_s < times[-1]:
            raise RowError(
                f"it arrives {times[-1] - row.arrival_s:g} s before the row above; rows are in order of time"
            )
        times.append(row.arrival_s)
        self.input_len.append(row.input_len)
        self.output_len.append(row.output_len)
        if row.prefixes is not None:
            self.prefixes.append(row.prefixes)


def read_trace(path: str | Path, most: int | None = None, duration_s: float = np.inf) -> Trace:
    """The requests of a trace; its format is known by its first line.

    most: requests to read; None: all, of which MAX_ROWS are allowed.  duration_s: time after which requests are left
    out [s].  Raises UserError with the line of a row that is wrong.
    """
    columns, limit = _Columns(), MAX_ROWS if most is None else most
    try:
        with files.open_bounded(Path(path), MAX_BYTES, "expected a trace of requests") as stream:
            for row in _rows(TextIOWrapper(stream, encoding="utf-8", newline=None), columns):
                read = len(columns.input_len)
                if read == limit or (read and row.arrival_s - columns.arrival_s[0] > duration_s):
                    break
                columns.add(row)
            else:
                limit = MAX_ROWS + 1  # the file ended
    except (RowError, ValueError) as error:
        reason = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise UserError(f"{printable(path)}, line {columns.line}: {printable(reason, 300)}") from error
    if len(columns.input_len) == limit and most is None:
        raise UserError(f"'{printable(path)}' has more than {MAX_ROWS:,} requests; use --requests")
    if not columns.input_len:
        raise UserError(f"'{printable(path)}' has no request")
    return _trace(columns)


def _trace(columns: _Columns) -> Trace:
    times = np.frombuffer(columns.arrival_s, dtype=np.float64)
    told = []
    if columns.failed:
        told.append(f"{columns.failed:,} failed requests of the trace, without an answer, are left out")
    if columns.texts:
        told.append(f"tokens are estimated as characters / {CHARACTERS_PER_TOKEN}: the file has texts")
    return Trace(
        arrival_s=None if np.isnan(times[0]) else times - times[0],
        input_len=np.frombuffer(columns.input_len, dtype=np.int64),
        output_len=np.frombuffer(columns.output_len, dtype=np.int64),
        prefixes=tuple(columns.prefixes) or None,
        notes=tuple(told),
    )


def _rows(stream: TextIOWrapper, columns: _Columns) -> Iterator[Row]:
    """Requests in the order of the file; its first character tells JSON from CSV."""
    head = stream.readline().lstrip("\ufeff")
    if head.lstrip().startswith("["):
        for columns.line, entry in enumerate(json.loads(head + stream.read()), 1):
            yield _of_fields(entry, columns)
        return
    if head.lstrip().startswith("{"):
        for columns.line, line in enumerate(chain((head,), stream), 1):
            if line.strip():
                yield _of_fields(_parsed(line), columns)
        return
    names = [name.strip().lower() for name in head.split(",")]
    layout = next((one for one in LAYOUTS if {one.input_len, one.output_len} <= set(names)), None)
    if layout is None:
        known = "; ".join(f"{one.time}, {one.input_len}, {one.output_len}" for one in LAYOUTS)
        raise RowError(f"unknown columns {quoted(head.strip())}; allowed: {known}; or JSON lines")
    yield from layout.rows(names, stream, columns)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError(f"it is no JSON object: {error}") from error


def _whole(name: str, value: Any, least: int = 1) -> int:
    """A number of tokens.  Raises RowError."""
    try:
        number = int(value)
        if least <= number <= MOST_TOKENS and (isinstance(value, str) or number == value):
            return number
    except (ValueError, TypeError, OverflowError):
        pass
    raise RowError(f"{name} is {quoted(value)}; allowed: a whole number from {least} to {MOST_TOKENS:,}")


def _seconds(name: str, value: Any, unit_s: float = 1.0) -> float:
    """A time [s] of a number of units.  Raises RowError."""
    try:
        seconds = float(value) * unit_s
    except (ValueError, TypeError, OverflowError):
        seconds = np.nan
    if not np.isfinite(seconds) or isinstance(value, bool):
        raise RowError(f"{name} is {quoted(value)}; allowed: a number")
    return seconds


_DAYS: dict[str, float] = {}


def _date(name: str, text: str) -> float:
    """Seconds of `2023-11-16 18:15:46.6805900`, also with a zone (all rows of a file have the same)."""
    try:
        day = text[:10]
        if day not in _DAYS:
            _DAYS[day] = date.fromisoformat(day).toordinal() * 86400.0
        clock = text[11:].partition("+")[0]
        return _DAYS[day] + int(clock[:2]) * 3600.0 + int(clock[3:5]) * 60.0 + float(clock[6:])
    except ValueError:
        raise RowError(f"{name} is {quoted(text)}; allowed: a time such as 2023-11-16 18:15:46.68") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns of a CSV: of the time and how it is read, of prompt and answer.  failed: answers of 0 tokens are failed
    requests."""

    time: str
    input_len: str
    output_len: str
    seconds: Callable[[str, Any], float] = _seconds
    failed: bool = False

    def rows(self, names: list[str], stream: TextIOWrapper, columns: _Columns) -> Iterator[Row]:
        """Requests of the lines below the header."""
        prompt, answer = names.index(self.input_len), names.index(self.output_len)
        time = names.index(self.time) if self.time in names else None
        for columns.line, line in enumerate(stream, 2):
            cells = line.strip().split(",")
            if cells == [""]:
                continue
            if len(cells) != len(names):
                raise RowError(f"it has {len(cells)} columns; the header has {len(names)}")
            if self.failed and cells[answer].strip() in ("0", "0.0"):
                columns.failed += 1
                continue
            yield Row(
                arrival_s=np.nan if time is None else self.seconds(self.time, cells[time].strip()),
                input_len=_whole(self.input_len, cells[prompt]),
                output_len=_whole(self.output_len, cells[answer]),
            )


#: Known columns of CSV files, in lower case: Azure (https://github.com/Azure/AzurePublicDataset), BurstGPT
#: (https://github.com/HPMLL/BurstGPT), and the columns of our own CSV of requests.
LAYOUTS = (
    Layout(time="timestamp", input_len="contexttokens", output_len="generatedtokens", seconds=_date),
    Layout(time="timestamp", input_len="request tokens", output_len="response tokens", failed=True),
    Layout(time="arrival_s", input_len="input_len", output_len="output_len"),
)
#: Fields of JSON objects: time -> its unit [s]; numbers of tokens of prompt and answer, in order of preference.
TIMES = {"timestamp": 1e-3, "arrival_s": 1.0}
PROMPTS = ("input_length", "input_len", "prompt_len", "prompt_tokens")
ANSWERS = ("output_length", "output_len", "output_tokens", "max_tokens")


def _of_fields(entry: Any, columns: _Columns) -> Row:
    """The request of a JSON object: lengths, or texts of which the tokens are estimated."""
    if not isinstance(entry, dict):
        raise RowError(f"it is {quoted(entry)}; expected an object")
    prompt = next((name for name in PROMPTS if name in entry), None)
    answer = next((name for name in ANSWERS if name in entry), None)
    turns = entry.get("conversations")
    if isinstance(turns, list) and len(turns) > 1:
        prompted, answered = (_of_text(turn.get("value") if isinstance(turn, dict) else turn) for turn in turns[:2])
        columns.texts += 1
    elif prompt is None and answer is not None and isinstance(entry.get("prompt"), str):
        prompted, answered = _of_text(entry["prompt"]), _whole(answer, entry[answer])
        columns.texts += 1
    elif prompt is None or answer is None:
        raise RowError(f"it has no lengths; allowed: {' or '.join(PROMPTS)}, and {' or '.join(ANSWERS)}")
    else:
        prompted, answered = _whole(prompt, entry[prompt]), _whole(answer, entry[answer])
    time = next((name for name in TIMES if name in entry), None)
    ids = entry.get("hash_ids")
    if ids is not None and not (isinstance(ids, list) and all(isinstance(one, int) for one in ids)):
        raise RowError("hash_ids is no list of whole numbers")
    return Row(
        arrival_s=np.nan if time is None else _seconds(time, entry[time], TIMES[time]),
        input_len=prompted,
        output_len=answered,
        prefixes=None if ids is None else tuple(ids),
    )


def _of_text(text: Any) -> int:
    """Estimated tokens of a text, at least one."""
    if not isinstance(text, str):
        raise RowError(f"a turn of the conversation is {quoted(text)}; expected a text")
    return max(-(-len(text) // CHARACTERS_PER_TOKEN), 1)
