"""The largest batch, the longest context or the most concurrent requests of a run within memory and limits."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from llmviewer.analysis.limits import longest_context
from llmviewer.api.configuration import Configuration
from llmviewer.core.answer import Answer
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.result.result import Result
from llmviewer.result.stages import value_at
from llmviewer.serving.batching import STATIC
from llmviewer.simulation.limits import Limit

#: Of figures of a chip too.
SCHEMA = "llmviewer.require/1"
BATCH_SIZE, CONTEXT, CONCURRENCY = "batch_size", "context", "concurrency"
#: Sizes of which the largest is found.
SIZES_OF_A_RUN = (BATCH_SIZE, CONTEXT, CONCURRENCY)
#: Sizes beyond which is not searched.
MOST = 2**20
#: What the steady state of `analyze` does not hold, and who does.
IN_STEP = (
    "TTFT is of answers that vary in length; users whose answers are all alike fall in step, and first tokens wait "
    "longer, as llmviewer simulate --concurrency {} tells"
)
#: What ends a size beside the limits on latencies.
MEMORY, SEQUENCES, LONGEST, SEARCH = "memory", "max_num_seqs", "max_context", "search"


@frozen
class Tried:
    """A size, its answer, and what it breaks: metrics over their limits, MEMORY, SEQUENCES, LONGEST or SEARCH."""

    size: int
    broken: tuple[str, ...]
    result: Result | None = None


@frozen(slots=False, eq=False, repr=False)  # no slots: the answer as asked is kept
class LargestSize(Answer):
    """The largest size of a run that fits and keeps all limits.

    name: of SIZES_OF_A_RUN.  best: the largest that does; None if the least does not.  beyond: the next one.  line:
    words of the run, by option, without the size.
    """

    QUESTION: ClassVar[str] = "require"
    name: str
    configuration: Configuration
    workload: Request
    limits: tuple[Limit, ...]
    best: Tried | None
    beyond: Tried
    line: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether any size fits and keeps the limits."""
        return self.best is not None

    @cached_property
    def now(self) -> Result:
        """The answer of the run as asked."""
        return self.configuration.answer(self.workload)

    @property
    def asked(self) -> int:
        """The size of the run as asked."""
        return size_of(self.name, self.workload)

    @property
    def command(self) -> str | None:
        """The command that answers the largest size."""
        if self.best is None:
            return None
        option, value = "--batch-size", self.best.size
        if self.name == CONTEXT:
            option, value = "--input-len", int(resized(CONTEXT, self.workload, value).input_len[0])  # type: ignore[index]
        return shlex.join(
            ["llmviewer", "analyze", *(w for part in self.line.values() for w in part), option, str(value)]
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row: the size with its figures."""
        return [] if self.best is None else [{self.name: self.best.size, **_figures(self.best)}]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; that of figures of a chip has the same names."""
        first = self.limits[0] if self.limits else None
        reached = None if first is None or self.best is None else _figures(self.best)[first.metric]
        return {
            "schema": SCHEMA,
            "warnings": list(self.warnings),
            "model": self.configuration.model.name,
            "hardware": self.configuration.chip.name,
            "metric": None if first is None else first.metric,
            "target": None if first is None else first.seconds,
            "limits": [{"metric": one.metric, "limit_s": one.seconds} for one in self.limits],
            "vary": [self.name],
            "solutions": [] if self.best is None else [{self.name: self.best.size}],
            "reached": reached,
            "command": self.command,
            "limited_by": list(self.beyond.broken),
            "at_most": None if self.best is None else _figures(self.best),
            "beyond": {self.name: self.beyond.size, **_figures(self.beyond)},
            "own": {self.name: self.asked},
            "now": None if first is None else float(getattr(self.now, first.metric)),
        }


def _figures(one: Tried) -> dict[str, Any]:
    """Latencies and memory of a size; none of one that has no answer."""
    if one.result is None:
        return {}
    memory = one.result.analysis.memory
    sizes = {name: float(value_at(getattr(memory, name), 0)) for name in ("total_bytes", "budget_bytes")}
    return {**{name: float(getattr(one.result, name)) for name in ("ttft_s", "tpot_s", "e2e_s")}, **sizes}


def size_of(name: str, workload: Request) -> int:
    """The size of a request of one point."""
    if name == CONTEXT:
        return int(np.max(workload.input_len + workload.output_len))
    return int(np.max(workload.batch_size))


def resized(name: str, workload: Request, size: int) -> Request:
    """The request of another batch, or of another context by a longer or shorter prompt."""
    if name == CONTEXT:
        return replace(workload, input_len=np.array([float(size)]) - workload.output_len)
    return replace(workload, batch_size=np.array([float(size)]))


def check(name: str, configuration: Configuration) -> None:
    """Raise UserError for concurrent requests of a server that starts them together."""
    if name == CONCURRENCY and configuration.system.batching is STATIC:
        stated = configuration.techniques["batching"]
        raise UserError(f"--batching is {quoted(stated)}; concurrent requests start one by one: use continuous")


@frozen(eq=False)
class SizeSearch:
    """A run of which a size varies, and the limits that it has to keep.  tried: sizes that were answered."""

    name: str
    configuration: Configuration
    workload: Request
    limits: Sequence[Limit]
    tried: dict[int, Tried] = field(init=False, default_factory=dict)

    def largest(self) -> tuple[Tried | None, Tried]:
        """The largest size that breaks nothing, and the next one; None if the least breaks something."""
        low = self._least
        if self.at(low).broken:
            return None, self.at(low)
        high = 2 * low
        while not self.at(high).broken:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.at(middle).broken else (middle, high)
        return self.at(low), self.at(high)

    @property
    def _least(self) -> int:
        """One sequence, or a prompt of one token."""
        return 1 + int(np.max(self.workload.output_len)) if self.name == CONTEXT else 1

    def at(self, size: int) -> Tried:
        """A size with what it breaks."""
        if size not in self.tried:
            self.tried[size] = self._answered(size)
        return self.tried[size]

    def _answered(self, size: int) -> Tried:
        longest = longest_context(self.configuration.model, self.configuration.system) if self.name == CONTEXT else None
        if size > (MOST if longest is None else longest):
            return Tried(size=size, broken=(SEARCH if longest is None else LONGEST,))
        result = self.configuration.answer(resized(self.name, self.workload, size))
        if lacking := self._lacking(result, size):
            return Tried(size=size, broken=(lacking,), result=result)
        broken = [one.metric for one in self.limits if not float(getattr(result, one.metric)) <= one.seconds]
        return Tried(size=size, broken=tuple(broken), result=result)

    def _lacking(self, result: Result, size: int) -> str:
        """MEMORY or SEQUENCES if not all requests of the size run at once; "" if they do."""
        if not result.fits:
            return MEMORY
        running = result.analysis.running
        if self.name != CONCURRENCY or running is None or float(np.max(running.request.batch_size)) >= size:
            return ""
        return SEQUENCES if size > result.analysis.system.engine.max_num_seqs else MEMORY


def largest_size(
    name: str,
    configuration: Configuration,
    workload: Request,
    limits: Sequence[Limit],
    line: Callable[[], Mapping[str, tuple[str, ...]]],
) -> LargestSize:
    """The largest size of a run within its limits.  line: words of the run without the size.  Raises UserError."""
    check(name, configuration)
    search = SizeSearch(name=name, configuration=configuration, workload=workload, limits=limits)
    best, beyond = search.largest()
    for one in limits:
        least = search.at(search._least).result
        if least is not None and np.isnan(float(getattr(least, one.metric))):
            raise UserError(f"{one.metric} has no value here; limit another metric")
    notes = [f"more than {MOST:,} were not searched"] * (SEARCH in beyond.broken)
    if name == CONCURRENCY and best is not None and best.size > 1 and np.all(workload.output_len > 1.0):
        notes.append(IN_STEP.format(best.size))
    return LargestSize(
        name=name,
        configuration=configuration,
        workload=workload,
        limits=tuple(limits),
        best=best,
        beyond=beyond,
        line=line(),
        warnings=(*configuration.warnings(workload), *notes),
    )
