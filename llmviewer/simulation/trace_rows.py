"""Rows of recorded requests, read one by one from CSV, JSON lines or a JSON document; errors name what is wrong."""

from __future__ import annotations

import csv
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import TextIOWrapper
from itertools import chain
from typing import Any, NamedTuple

from llmviewer.core.errors import told
from llmviewer.simulation import trace_fields as fields
from llmviewer.simulation.trace_fields import RowError, whole

#: Characters of a JSON document that is read, and turns of a conversation with an answer.
MAX_LIST, MIN_TURNS = 2**30, 2
#: Characters of a line.
MAX_LINE = 2**24
#: Seconds since 1970 of the years 2001 to 2100, in which no trace has run for so many milliseconds (11 days and more).
EPOCH_S = (1e9, 4.1e9)
#: Unit of a time since 1970 [s].
EPOCH_UNITS = (1.0, 1e-3, 1e-6, 1e-9)
#: Fields of Bailian, whose times are seconds; the same in a CSV.
IN_SECONDS = "chat_id"


class Row(NamedTuple):
    """A request of a trace, as a row has it.

    time: of arrival, in seconds or the unit that is to be found; NaN where the file has no times.  prefixes: ids of its
    blocks; None where unknown.  session: of a conversation; empty: none is named.  delay_s: time from the end of the
    turn before it on [s]; NaN: it has a time of its own.  grows: its prompt begins with what the session has so far.
    """

    time: float
    input_len: int
    output_len: int
    prefixes: tuple[int, ...] | None = None
    session: str = ""
    delay_s: float = math.nan
    grows: bool = False


@dataclass(slots=True)
class Columns:
    """The rows read so far; numbers only, so that ten million of them fit in memory.

    times: of arrival, times `unit_s` [s].  unit_s: None before the first time; 0.0: it is to be found from all of them.
    clock: field of the times.  names: fields of the lengths of the last row.  likely_s: unit of the times in the format
    that the rows have [s].  line: number of the row that is being read.  left_out: reason -> requests.  texts: rows
    whose lengths are estimated.  images: rows with images, whose tokens are unknown.  grown: prompts that begin with
    the turns before them.  is_log: rows may be in any order.  last: session -> its last row.  after: row -> the row at
    whose end it starts after a delay [s]; its arrival is that of the row above.  history: session -> tokens that it
    has.  sessions: row -> number of its session.
    """

    times: array[float] = field(default_factory=lambda: array("d"))
    input_len: array[int] = field(default_factory=lambda: array("q"))
    output_len: array[int] = field(default_factory=lambda: array("q"))
    prefixes: list[tuple[int, ...]] = field(default_factory=list)
    unit_s: float | None = None
    likely_s: float = 1.0
    clock: str = ""
    names: tuple[str | None, str | None] = (None, None)
    line: int = 1
    left_out: Counter[str] = field(default_factory=Counter)
    texts: int = 0
    images: int = 0
    grown: int = 0
    is_log: bool = False
    last: dict[str, int] = field(default_factory=dict)
    after: dict[int, tuple[int, float]] = field(default_factory=dict)
    history: dict[str, int] = field(default_factory=dict)
    sessions: dict[int, int] = field(default_factory=dict)

    def time_of(self, name: str, value: Any) -> float:
        """A time of the file; the first one says what is known of the unit of all.  Raises RowError."""
        dated = fields.date_s(name, value) if isinstance(value, str) else None
        if self.unit_s is None:
            self.clock, self.is_log = name, self.is_log or name not in fields.IN_ORDER
            self.unit_s = 1.0 if dated is not None else fields.TIMES[name] or _since_1970(fields.a_number(name, value))
        if dated is not None:
            return dated
        return fields.a_number(name, value) * (self.unit_s or 1.0)

    def add(self, row: Row) -> None:
        """Append a row.  Raises RowError if it is earlier than the one before."""
        times = self.times
        if not math.isnan(row.delay_s):
            if row.session not in self.last:
                raise RowError("it starts a delay after the turn before it; no row above is of its session_id")
            before = self.last[row.session]
            self.after[len(times)] = before, row.delay_s
            row = row._replace(time=times[before] if self.is_log else times[-1])
        if times and (math.isnan(row.time) != math.isnan(times[0])):
            raise RowError("rows with and without a time stand in one file")
        if times and (row.prefixes is not None) != bool(self.prefixes):
            raise RowError("rows with and without hash_ids stand in one file")
        if times and row.time < times[-1] and not self.is_log:
            raise RowError(f"it arrives {times[-1] - row.time:g} s before the row above; rows are in order of time")
        if row.session:
            row = self._in_session(row)
        times.append(row.time)
        self.input_len.append(row.input_len)
        self.output_len.append(row.output_len)
        if row.prefixes is not None:
            self.prefixes.append(row.prefixes)

    def _in_session(self, row: Row) -> Row:
        """The row with the whole prompt of its turn."""
        known = self.history.get(row.session)
        if row.grows and known is not None and row.prefixes is None:
            row = row._replace(input_len=whole("the prompt with the turns before it", known + row.input_len))
            self.grown += 1
        self.history[row.session] = row.input_len + row.output_len
        place = len(self.times)
        before = self.last.get(row.session)
        self.sessions[place] = len(self.last) if before is None else self.sessions[before]
        self.last[row.session] = place
        return row


def _since_1970(first: float) -> float:
    """Unit of the times of which this is the first [s], if it is a time since 1970; 0.0: it is not."""
    return next((unit for unit in EPOCH_UNITS if EPOCH_S[0] < first * unit < EPOCH_S[1]), 0.0)


def rows_of(stream: TextIOWrapper, columns: Columns) -> Iterator[Row]:
    """Requests in the order of the file; its first character tells JSON from CSV."""
    head = _line(stream).lstrip("\ufeff")
    while head.isspace():
        head = _line(stream)
    if head.lstrip().startswith("["):
        yield from _of_entries(enumerate(_parsed(_rest(head, stream)), 1), columns)
    elif head.lstrip().startswith("{"):
        below = iter(lambda: _line(stream), "")
        if head.strip() == "{" or not head.rstrip().endswith("}"):  # a document in several lines
            yield from _of_entries([(1, _parsed(_rest(head, stream)))], columns)
        else:
            lines = ((number, line) for number, line in enumerate(chain((head,), below), 1) if line.strip())
            yield from _of_entries(lines, columns)
    else:
        yield from _of_table(head, stream, columns)


def _line(stream: TextIOWrapper) -> str:
    """The next line; empty at the end.  Raises RowError for one that has no end in reach."""
    line = stream.readline(MAX_LINE + 1)
    if len(line) > MAX_LINE:
        raise RowError(f"a line of more than {MAX_LINE:,} characters; expected a request in each line")
    return line


def _rest(head: str, stream: TextIOWrapper) -> str:
    rest = stream.read(MAX_LIST)
    if len(rest) == MAX_LIST:
        raise RowError(f"a list of more than {MAX_LIST:,} characters; allowed: JSON lines")
    return head + rest


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(f"it is no JSON object: {error}") from error


def _of_table(head: str, stream: TextIOWrapper, columns: Columns) -> Iterator[Row]:
    """Requests of the lines of a CSV, below the header."""
    split = next((one for one in ",\t;" if one in head), ",")
    names = [name.strip().lower() for name in next(csv.reader([head], delimiter=split), [])]
    if fields.first_of(fields.PROMPTS, names) is None or fields.first_of(fields.ANSWERS, names) is None:
        known = "timestamp, contexttokens, generatedtokens; timestamp, request tokens, response tokens; arrival_s,"
        raise RowError(f"it has no columns of a trace; allowed: {known} input_len, output_len; or JSON lines")
    clock, prompt, answer = (fields.first_of(one, names) for one in (fields.TIMES, fields.PROMPTS, fields.ANSWERS))
    assert prompt is not None and answer is not None
    kept = [(place, name) for place, name in enumerate(names) if name in (*READ, clock, prompt, answer)]
    rows = _cells(names, split, stream, columns)
    if any(name in READ for _, name in kept):
        entries = ({name: cells[place].strip() for place, name in kept} for cells in rows)
        yield from (row for entry in entries if (row := _of_fields(entry, columns, is_table=True)) is not None)
        return
    places = [names.index(name) for name in (clock or prompt, prompt, answer)]
    for cells in rows:  # a trace of millions of rows
        time, prompted, answered = (cells[place].strip() for place in places)
        yield Row(
            time=math.nan if clock is None else columns.time_of(clock, time),
            input_len=whole(prompt, prompted),
            output_len=whole(answer, answered),
        )


def _cells(names: list[str], split: str, stream: TextIOWrapper, columns: Columns) -> Iterator[list[str]]:
    """The cells of each row of a CSV below its header."""
    reader = csv.reader(iter(lambda: _line(stream), ""), delimiter=split)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise RowError(str(error)) from error
        columns.line = reader.line_num + 1
        if cells is None:
            return
        if not cells or cells == [""]:
            continue
        if len(cells) != len(names):
            raise RowError(f"it has {len(cells)} columns; the header has {len(names)}")
        yield cells


#: Columns by which a row is more than its time and lengths.
READ = {
    *fields.MAY_FAIL, *fields.BESIDE_TEXT, *fields.SUMS, *fields.STATED, fields.SESSION, fields.DELAY, "numimages",
}  # fmt: skip


def _of_entries(entries: Iterable[tuple[int, Any]], columns: Columns) -> Iterator[Row]:
    """Requests of JSON objects, or of lines with one."""
    for number, entry in entries:
        columns.line = number
        found = _parsed(entry) if isinstance(entry, str) else entry
        if isinstance(found, dict) and "turns" in found:
            columns.is_log = True  # the next conversation may begin before the last turn of this one
        for one in fields.requests_in(found):
            if not isinstance(one, dict):
                raise RowError(f"it is {told(one)}; expected an object")
            turns = one.get("conversations")
            if isinstance(turns, list) and len(turns) < MIN_TURNS:
                columns.left_out[fields.UNANSWERED] += 1
            elif isinstance(one.get("turns"), list):
                yield from _of_turns(one, columns)
            elif (row := _of_fields(fields.flat(one), columns)) is not None:
                yield row


def _of_turns(conversation: Mapping[str, Any], columns: Columns) -> Iterator[Row]:
    """Requests of a conversation of AIPerf: each turn has what the user adds, and follows the one before it."""
    turns = [turn if isinstance(turn, dict) else {"text": turn} for turn in conversation["turns"]]
    system = turns and turns[0].get("role") == "system" and not {"output_length", "timestamp"} & set(turns[0])
    prompt = fields.of_text(turns.pop(0).get("text")) if system else 0
    name = str(conversation.get(fields.SESSION) or f"line {columns.line}")
    for at, turn in enumerate(turns):
        follows = {fields.DELAY: 0} if at and turn.get("timestamp") is None else {}
        row = _of_fields({**follows, **fields.flat(turn), fields.SESSION: name}, columns)
        if row is not None:
            yield row._replace(input_len=row.input_len + (0 if at else prompt), grows=True)


def _of_fields(entry: Mapping[str, Any], columns: Columns, *, is_table: bool = False) -> Row | None:
    """The request of the fields of an object, or of the cells of a row; None: it is left out."""
    reason = fields.left_out(entry)
    if reason:
        columns.left_out[reason] += 1
        return None
    fields.refuse_sums(entry)
    prompted, answered = _lengths(entry, columns)
    images = entry.get("numimages")
    columns.images += bool(images and str(images) != "0")
    ids = entry.get("hash_ids")
    if ids is not None and not (isinstance(ids, list) and all(isinstance(one, int) for one in ids)):
        raise RowError("hash_ids is no list of whole numbers")
    clock = columns.clock if columns.clock and columns.clock in entry else fields.first_of(fields.TIMES, entry)
    delay = entry.get(fields.DELAY)
    follows = delay not in (None, "") and (clock is None or entry[clock] is None)
    if columns.unit_s is None:  # of Mooncake and AIPerf, whole milliseconds
        columns.likely_s = 1.0 if is_table or IN_SECONDS in entry else 1e-3
    delay_s = fields.a_number(fields.DELAY, delay) * 1e-3 if follows else math.nan
    if delay_s < 0.0:
        raise RowError(f"{fields.DELAY} is below 0; allowed: milliseconds")
    return Row(
        time=math.nan if follows or clock is None else columns.time_of(clock, entry[clock]),
        input_len=prompted,
        output_len=answered,
        prefixes=None if ids is None else tuple(ids),
        session=str(entry.get(fields.SESSION) or ""),
        delay_s=delay_s,
        grows=follows,
    )


def _lengths(entry: Mapping[str, Any], columns: Columns) -> tuple[int, int]:
    """Tokens of prompt and answer: numbers, or texts of which they are estimated.  Raises RowError."""
    prompt, answer = columns.names
    if prompt not in entry or answer not in entry:
        prompt, answer = (fields.first_of(names, entry) for names in (fields.PROMPTS, fields.ANSWERS))
        columns.names = prompt, answer
    turns = entry.get("conversations")
    if isinstance(turns, list) and len(turns) >= MIN_TURNS:
        columns.texts += 1
        first, second = (fields.of_text(turn.get("value") if isinstance(turn, dict) else turn) for turn in turns[:2])
        return first, second
    if answer is not None and prompt is None:
        text = next((entry[name] for name in fields.TEXTS if isinstance(entry.get(name), (str, list))), None)
        if text is not None:
            columns.texts += 1
            return fields.of_text(text), whole(answer, entry[answer])
    if prompt is None or answer is None:
        known = f"{' or '.join(fields.PROMPTS[:2])}, prompt_tokens ..., and {' or '.join(fields.ANSWERS[:2])}"
        raise RowError(f"it has no lengths; allowed: {known}, completion_tokens ...")
    beside = sum(fields.numbers(entry[name]) for name in fields.BESIDE_TEXT if entry.get(name))
    return whole(prompt, entry[prompt]) + beside, whole(answer, entry[answer])
