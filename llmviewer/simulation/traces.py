"""Recorded requests (Azure, BurstGPT, Mooncake, datasets of benchmarks), read row by row; errors name what is wrong."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llmviewer.core import files
from llmviewer.core.counts import Array
from llmviewer.core.errors import FileError, UserError, printable, told
from llmviewer.simulation.requests import Whole

#: Characters of a token where a dataset has texts and no numbers of tokens.
CHARACTERS_PER_TOKEN = 4
#: Characters of a JSON list that is read, and turns of a conversation with an answer.
MAX_LIST, MIN_TURNS = 2**30, 2
#: Characters of a line.
MAX_LINE = 2**24
#: Longest prompt or answer of a row [token].
MOST_TOKENS = 2**24


class RowError(Exception):
    """A row that is wrong; the text says what is wrong and what is allowed."""


class Row(NamedTuple):
    """One request.  arrival_s: NaN where the file has no times.  prefixes: ids of its blocks; None where unknown.

    session: of a conversation; empty: none is named.  delay_s: time from the end of the turn before it on [s]; NaN: it
    has a time of its own.
    """

    arrival_s: float
    input_len: int
    output_len: int
    prefixes: tuple[int, ...] | None = None
    session: str = ""
    delay_s: float = math.nan


@dataclass(slots=True)
class Columns:
    """The rows read so far; numbers only, so that ten million of them fit in memory.

    line: number of the row that is being read.  failed, unanswered: requests left out.  texts: rows whose lengths are
    estimated.  in_milliseconds: whether times are read as such.  last: session -> its last row.  after: row -> the row
    at whose end it starts after a delay [s]; its arrival is that of the row above.
    """

    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    input_len: array[int] = field(default_factory=lambda: array("q"))
    output_len: array[int] = field(default_factory=lambda: array("q"))
    prefixes: list[tuple[int, ...]] = field(default_factory=list)
    line: int = 1
    failed: int = 0
    unanswered: int = 0
    texts: int = 0
    in_milliseconds: bool = False
    last: dict[str, int] = field(default_factory=dict)
    after: dict[int, tuple[int, float]] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Append a row.  Raises RowError if it is earlier than the one before."""
        times = self.arrival_s
        if not math.isnan(row.delay_s):
            if row.session not in self.last:
                raise RowError("it starts a delay after the turn before it; no row above is of its session_id")
            self.after[len(times)] = self.last[row.session], row.delay_s
            row = row._replace(arrival_s=times[-1])
        if row.session:
            self.last[row.session] = len(times)
        if times and (math.isnan(row.arrival_s) != math.isnan(times[0])):
            raise RowError("rows with and without a time stand in one file")
        if times and (row.prefixes is not None) != bool(self.prefixes):
            raise RowError("rows with and without hash_ids stand in one file")
        if times and row.arrival_s < times[-1]:
            raise RowError(
                f"it arrives {times[-1] - row.arrival_s:g} s before the row above; rows are in order of time"
            )
        times.append(row.arrival_s)
        self.input_len.append(row.input_len)
        self.output_len.append(row.output_len)
        if row.prefixes is not None:
            self.prefixes.append(row.prefixes)


def rows_of(stream: TextIOWrapper, columns: Columns) -> Iterator[Row]:
    """Requests in the order of the file; its first character tells JSON from CSV."""
    head = _line(stream).lstrip("\ufeff")
    if head.lstrip().startswith("["):
        rest = stream.read(MAX_LIST)
        if len(rest) == MAX_LIST:
            raise RowError(f"a list of more than {MAX_LIST:,} characters; allowed: JSON lines")
        yield from _answered(enumerate(_parsed(head + rest), 1), columns)
        return
    if head.lstrip().startswith("{"):
        below = iter(lambda: _line(stream), "")
        lines = ((number, line) for number, line in enumerate(chain((head,), below), 1) if line.strip())
        yield from _answered(lines, columns)
        return
    names = [name.strip().lower() for name in _cells(head)]
    layout = next((one for one in LAYOUTS if {one.input_len, one.output_len} <= set(names)), None)
    if layout is None:
        known = "; ".join(f"{one.time}, {one.input_len}, {one.output_len}" for one in LAYOUTS)
        raise RowError(f"it has no columns of a trace; allowed: {known}; or JSON lines")
    yield from layout.rows(names, stream, columns)


def _line(stream: TextIOWrapper) -> str:
    """The next line; empty at the end.  Raises RowError for one that has no end in reach."""
    line = stream.readline(MAX_LINE + 1)
    if len(line) > MAX_LINE:
        raise RowError(f"a line of more than {MAX_LINE:,} characters; expected a request in each line")
    return line


def _cells(line: str) -> list[str]:
    """The cells of a line of CSV, quoted or not; numbers and times hold no comma."""
    return line.replace('"', "").split(",")


def _answered(entries: Iterable[tuple[int, Any]], columns: Columns) -> Iterator[Row]:
    """Requests of JSON objects, or of lines with one; conversations of a single turn are counted and left out."""
    for number, entry in entries:
        columns.line = number
        fields = _parsed(entry) if isinstance(entry, str) else entry
        turns = fields.get("conversations") if isinstance(fields, dict) else None
        if isinstance(turns, list) and len(turns) < MIN_TURNS:
            columns.unanswered += 1
            continue
        yield _of_fields(fields, columns)


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
    raise RowError(f"{name} is {told(value)}; allowed: a whole number from {least} to {MOST_TOKENS:,}")


def _seconds(name: str, value: Any, unit_s: float = 1.0) -> float:
    """A time [s] of a number of units.  Raises RowError."""
    try:
        seconds = float(value) * unit_s
    except (ValueError, TypeError, OverflowError):
        seconds = np.nan
    if not np.isfinite(seconds) or isinstance(value, bool):
        raise RowError(f"{name} is {told(value)}; allowed: a number")
    return seconds


_DAYS: dict[str, float] = {}


def _date(name: str, text: str) -> float:
    """Seconds of `2023-11-16 18:15:46.6805900`, also with a zone (all rows of a file have the same)."""
    try:
        day = text[:10]
        if day not in _DAYS:
            _DAYS[day] = date.fromisoformat(day).toordinal() * 86400.0
        hour, minute, second = int(text[11:13]), int(text[14:16]), float(re.split("[-+Z]", text[17:])[0])
        if not (0 <= hour < 24 and 0 <= minute < 60 and 0.0 <= second < 61.0):
            raise ValueError(text)
        return _DAYS[day] + hour * 3600.0 + minute * 60.0 + second
    except ValueError:
        raise RowError(f"{name} is {told(text)}; allowed: a time such as 2023-11-16 18:15:46.68") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns of a CSV: of the time and how it is read, of prompt and answer.  failed: answers of 0 tokens are failed
    requests."""

    time: str
    input_len: str
    output_len: str
    seconds: Callable[[str, Any], float] = _seconds
    failed: bool = False

    def rows(self, names: list[str], stream: TextIOWrapper, columns: Columns) -> Iterator[Row]:
        """Requests of the lines below the header."""
        prompt, answer = names.index(self.input_len), names.index(self.output_len)
        time = names.index(self.time) if self.time in names else None
        for columns.line, line in enumerate(iter(lambda: _line(stream), ""), 2):
            cells = _cells(line.strip())
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
#: (https://github.com/HPMLL/BurstGPT), the columns of our own CSV of requests, and Vidur's
#: (https://github.com/microsoft/vidur).
LAYOUTS = (
    Layout(time="timestamp", input_len="contexttokens", output_len="generatedtokens", seconds=_date),
    Layout(time="timestamp", input_len="request tokens", output_len="response tokens", failed=True),
    Layout(time="arrival_s", input_len="input_len", output_len="output_len"),
    Layout(time="arrived_at", input_len="num_prefill_tokens", output_len="num_decode_tokens"),
)
#: Fields of JSON objects: time -> its unit [s]; numbers of tokens of prompt and answer, in order of preference.
TIMES = {"timestamp": 1e-3, "arrival_s": 1.0, "start_time_unix_nano": 1e-9}
PROMPTS = ("input_length", "input_len", "prompt_len", "prompt_tokens", "gen_ai.usage.input_tokens")
ANSWERS = (
    "output_length",
    "output_len",
    "output_tokens",
    "completion_tokens",
    "max_tokens",
    "gen_ai.usage.output_tokens",
)
#: Field by which traces of Alibaba's Bailian are known, whose timestamps are seconds
#: (https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon).
IN_SECONDS = "chat_id"
#: Seconds since 1970 of the years 2001 to 2100: no trace has so many milliseconds since its start (11 days and more).
EPOCH_S = (1e9, 4.1e9)
#: Time of a turn from the end of the one before it on [ms], and the field that names its conversation
#: (https://github.com/ai-dynamo/aiperf, multi-turn traces).
DELAY, SESSION = "delay", "session_id"


def _of_fields(entry: Any, columns: Columns) -> Row:
    """The request of a JSON object: lengths, or texts of which the tokens are estimated."""
    if not isinstance(entry, dict):
        raise RowError(f"it is {told(entry)}; expected an object")
    attributes = entry.get("attributes")
    if isinstance(attributes, dict):  # a span of OpenTelemetry: https://opentelemetry.io/docs/specs/semconv/gen-ai/
        entry = {**attributes, **entry}
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
    unit_s = 1.0 if IN_SECONDS in entry else TIMES.get(time or "", 1.0)
    if time == "timestamp" and unit_s < 1.0 and EPOCH_S[0] < _seconds(time, entry[time]) < EPOCH_S[1]:
        unit_s = 1.0
    columns.in_milliseconds = columns.in_milliseconds or unit_s == TIMES["timestamp"]
    ids = entry.get("hash_ids")
    if ids is not None and not (isinstance(ids, list) and all(isinstance(one, int) for one in ids)):
        raise RowError("hash_ids is no list of whole numbers")
    delay_s = _seconds(DELAY, entry[DELAY], 1e-3) if time is None and entry.get(DELAY) is not None else np.nan
    if delay_s < 0.0:
        raise RowError(f"{DELAY} is below 0; allowed: milliseconds")
    return Row(
        arrival_s=np.nan if time is None else _seconds(time, entry[time], unit_s),
        input_len=prompted,
        output_len=answered,
        prefixes=None if ids is None else tuple(ids),
        session=str(entry.get(SESSION) or ""),
        delay_s=delay_s,
    )


def _of_text(text: Any) -> int:
    """Estimated tokens of a text, at least one."""
    if not isinstance(text, str):
        raise RowError(f"a turn of the conversation is {told(text)}; expected a text")
    return max(-(-len(text) // CHARACTERS_PER_TOKEN), 1)


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
    files.record(path)
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
