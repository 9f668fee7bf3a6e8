"""Sweeps: all points of a grid on several configurations, evaluated in chunks to bound memory use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from llmviewer.core.arguments import parse_size, whole_number
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.core.malloc import keep_freed_memory
from llmviewer.core.workload import Request
from llmviewer.models.model import Model
from llmviewer.result.columns import constant, without_defaults
from llmviewer.result.result import Result
from llmviewer.serving.schedule import check_passes

if TYPE_CHECKING:
    import pandas as pd

#: Forward passes per evaluation: enough to amortize interpreter overhead, few enough for the CPU caches.
CHUNK_PASSES = 16384
#: Limits for one list and for one sweep; larger inputs are most likely typing errors.
MAX_VALUES = 10**7
MAX_SWEEP_POINTS = 10**9


@frozen(eq=False)
class Grid:
    """All combinations of three lists; the batch size varies fastest."""

    batch_sizes: Array
    input_lens: Array
    output_lens: Array

    def __post_init__(self) -> None:
        points = math.prod(map(len, (self.batch_sizes, self.input_lens, self.output_lens)))
        if points > MAX_SWEEP_POINTS:
            raise UserError(f"the sweep has {points:,} points; allowed: at most {MAX_SWEEP_POINTS:,}")

    def __len__(self) -> int:
        return len(self.batch_sizes) * len(self.input_lens) * len(self.output_lens)

    def largest(self) -> Request:
        """A request with the largest batch size, prompt length and output length of the grid."""
        return Request(
            batch_size=self.batch_sizes.max(), input_len=self.input_lens.max(), output_len=self.output_lens.max()
        )

    def points(self, start: int, stop: int) -> Request:
        """Requests start ... stop - 1 of the grid."""
        index = np.arange(start, stop)
        index, batch = np.divmod(index, len(self.batch_sizes))
        output, prompt = np.divmod(index, len(self.input_lens))
        return Request(
            batch_size=self.batch_sizes[batch],
            input_len=self.input_lens[prompt],
            output_len=self.output_lens[output],
        )

    def passes(self, token_budget: float = np.inf) -> int:
        """Most forward passes of a point: prefill passes, the decode step shown, and output_len - 1 decode steps."""
        return math.ceil(max(float(self.input_lens.max()) / token_budget, 1.0)) + int(self.output_lens.max())

    def chunks(
        self, token_budget: float = np.inf, max_points: float = np.inf, within: range | None = None
    ) -> Iterator[Request]:
        """The points in order, in chunks of at most `max_points` points and about CHUNK_PASSES forward passes.

        within: positions of the points; all of them unless given.
        """
        within = range(len(self)) if within is None else within
        keep_freed_memory()
        size = int(min(max(1, CHUNK_PASSES // self.passes(token_budget)), max_points))
        for start in within[::size]:
            yield self.points(start, min(start + size, within.stop))


class Candidate(Protocol):
    """Interface of a configuration that answers requests; implemented by `api.Configuration`."""

    @property
    def model(self) -> Model:
        """The model of every row."""

    @property
    def efficiency(self) -> str:
        """`ideal` or `calibrated`."""

    @property
    def engine_title(self) -> str:
        """The engine of its times in words; "" for ideal ones."""

    @property
    def token_budget(self) -> float:
        """Most tokens of one prefill pass."""

    @property
    def most_points(self) -> float:
        """Most requests per call of `answer`."""

    def warnings(self, workload: Request) -> tuple[str, ...]:
        """Warnings about the model, the system and a request."""

    def answer(self, workload: Request) -> Result:
        """Predict the result of a request."""


@frozen(eq=False, repr=False)
class Sweep:
    """Every point of a grid on every configuration; nothing is evaluated before `chunks` or `to_frame`."""

    configurations: tuple[Candidate, ...]
    grid: Grid

    def __len__(self) -> int:
        return len(self.configurations) * len(self.grid)

    def __repr__(self) -> str:
        return f"<Sweep: {len(self):,} points, configurations: {len(self.configurations):,}; to_frame() prices them>"

    def check(self) -> tuple[str, ...]:
        """Warnings of all configurations.  Raises UserError for the largest request, before anything slow begins."""
        return self.checked()[0]

    def checked(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Warnings of all configurations, and the names of all their columns.  Raises UserError as `check`."""
        largest, warnings, names = self.grid.largest(), dict[str, None](), dict[str, None]()
        for configuration in self.configurations:
            check_passes(largest, configuration.token_budget)
            names |= dict.fromkeys(configuration.answer(replace(largest, output_len=np.ones(1))).columns())
            warnings |= dict.fromkeys(configuration.warnings(largest))
        return tuple(warnings), tuple(names)

    def chunks(self, advance: Callable[[int], None] = lambda points: None) -> Iterator[dict[str, Any]]:
        """Columns of all points, chunk by chunk.  advance: called with the number of points of each chunk."""
        for configuration in self.configurations:
            for request in self.grid.chunks(configuration.token_budget, configuration.most_points):
                columns = configuration.answer(request).columns()
                yield columns
                advance(len(columns["batch_size"]))

    def to_frame(self) -> pd.DataFrame:
        """One row per point, as of `Result.to_frame`; columns of text are categories, ideal times have no bounds.

        Options that all have at their defaults have no column.
        """
        import pandas as pd

        self.check()
        chunks = list(self.chunks())
        names = dict.fromkeys(name for chunk in chunks for name in chunk)
        return without_defaults(pd.DataFrame({name: _joined(chunks, name) for name in names}, copy=False))


def _joined(chunks: list[dict[str, Any]], name: str) -> Any:
    """A column of all chunks, NaN where a chunk does not have it; texts become categories."""
    import pandas as pd

    pieces = [chunk[name] if name in chunk else np.full(len(chunk["batch_size"]), np.nan) for chunk in chunks]

    texts = [constant(piece) for piece in pieces]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        return np.concatenate(pieces)
    categories = list(dict.fromkeys(known))
    codes = np.repeat([categories.index(text) for text in known], [len(piece) for piece in pieces])
    return pd.Categorical.from_codes(codes.astype(np.int16), categories=pd.Index(categories))


def parse_values(name: str, text: str, parse: Callable[[str], object] = parse_size) -> Array:
    """Parse a comma list with ranges: `4:64:*2` multiplies, `8:8k:+8` adds; both ends are included.

    parse: text of a number -> the number."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UserError(f"{name} is {quoted(text)}: a number between the commas is missing")
    ranges = [_range(name, part, parse) for part in parts]
    if sum(map(len, ranges)) > MAX_VALUES:
        raise UserError(f"{name}: {quoted(text)} has over {MAX_VALUES:,} values")
    return np.concatenate([_array(numbers) for numbers in ranges])


def _array(numbers: Sequence[int]) -> Array:
    """An array of the numbers, without creating a Python int for each value of a range."""
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.float64)
    return np.array(numbers, dtype=np.float64)


def _range(name: str, part: str, parse: Callable[[str], object]) -> Sequence[int]:
    pieces = part.split(":")
    step = pieces.pop() if len(pieces) == 3 else "+1"
    numbers = [parse(piece) for piece in (pieces[0], pieces[-1], step[1:])]
    if len(pieces) > 2 or step[:1] not in ("+", "*") or any(isinstance(number, str) for number in numbers):
        raise UserError(f"{name}: {quoted(part)} is not a number or a range; allowed: 8, 1:64, 4:64:*2, 8:8192:+8")
    first, last, by = (whole_number(name, number) for number in numbers)
    if step[0] == "*" and by < 2:
        raise UserError(f"{name}: {quoted(part)} multiplies by {by}; allowed: 2 or more")
    if last < first:
        raise UserError(f"{name}: {quoted(part)} ends before it begins")
    if step[0] == "+":
        return range(first, last + 1, by)
    values = [first]
    while values[-1] * by <= last:
        values.append(values[-1] * by)
    return values
