"""The highest rate of requests that a server answers within limits, as `simulate --find-rate` searches it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from llmviewer.api.calls import request
from llmviewer.api.configuration import configuration
from llmviewer.api.trials import run_line
from llmviewer.core.answer import Answer
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.planning.largest_size import SCHEMA
from llmviewer.result.result import Result
from llmviewer.simulation.call import of_server, simulate
from llmviewer.simulation.limits import Limit
from llmviewer.simulation.result import Simulation

REQUEST_RATE = "request_rate"
#: What ends a rate beside the limits: requests arrive faster than they are answered.
SATURATED = "saturated"


@frozen(slots=False, eq=False, repr=False)  # no slots: the answer of one request is kept
class LargestRate(Answer):
    """The highest rate within the limits, and the simulation at it.

    model, hardware, options, sizes: as asked.  limits: texts by option, such as ttft "p99:1s".
    """

    QUESTION: ClassVar[str] = "require"
    found: Simulation
    model: Any
    hardware: Any
    options: Mapping[str, Any]
    sizes: Mapping[str, int]
    limits: Mapping[str, Any]

    @property
    def holds(self) -> bool:
        """Whether any rate keeps the limits."""
        return bool(self.found.max_request_rate)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Notes of the simulation."""
        return self.found.notes

    @cached_property
    def now(self) -> Result:
        """The answer of one request alone."""
        return configuration(self.model, self.hardware, **self.options).answer(request(1, *self.sizes.values()))

    @property
    def _limited_by(self) -> list[str]:
        """Limits that a run just above the highest rate breaks: latencies, or SATURATED."""
        beyond = self.found.beyond
        if beyond is None:
            return []
        return [SATURATED] if beyond.saturated else [one.metric for one in beyond.broken]

    @property
    def command(self) -> str | None:
        """The command that simulates the highest rate."""
        if not self.holds:
            return None
        line = run_line(self.model, self.hardware, {**self.options, **self.sizes})
        words = ["llmviewer", "simulate", *(word for part in line.values() for word in part)]
        given = {REQUEST_RATE: f"{self.found.max_request_rate:.4g}", **self.limits}
        typed = (word for name, one in given.items() for word in (f"--{name.replace('_', '-')}", str(one)))
        return shlex.join([*words, *typed])

    def rows(self) -> list[dict[str, Any]]:
        """One row: the rate with the latencies at it."""
        return [{**one, **self._reached()} for one in self.to_dict()["solutions"]]

    def _reached(self) -> dict[str, Any]:
        found = self.found.latencies()
        return {f"{one.metric}.{one.statistic}": found[one.metric][one.statistic] for one in self.limited}

    @property
    def limited(self) -> tuple[Limit, ...]:
        """The limits on latencies."""
        return self.found.limits

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; that of figures of a chip and of sizes has the same names."""
        rate, first = self.found.max_request_rate, self.limited[0]
        bounds = self.found.rate_bounds
        return {
            "schema": SCHEMA,
            "warnings": list(self.warnings),
            "model": self.found.setting.model,
            "hardware": self.found.setting.hardware,
            "metric": first.metric,
            "target": first.seconds,
            "limits": [
                {"metric": one.metric, "statistic": one.statistic, "limit_s": one.seconds} for one in self.limited
            ],
            "vary": [REQUEST_RATE],
            "solutions": [{REQUEST_RATE: rate}] if rate else [],
            "intervals": {REQUEST_RATE: {level: list(found) for level, found in bounds.items()}},
            "reached": self.found.latencies()[first.metric][first.statistic] if rate else None,
            "command": self.command,
            "limited_by": self._limited_by,
            **({} if self.found.beyond is None else {"beyond": self.found.beyond.ends()}),
            "at_most": self._reached() if rate else None,
        }


def largest_rate(
    model: Any, hardware: Any, options: Mapping[str, Any], sizes: Mapping[str, int], limits: Mapping[str, Any]
) -> LargestRate:
    """The highest rate of a server within limits.  sizes: lengths of its requests.  Raises UserError without limits."""
    if not limits:
        raise UserError("vary request-rate needs a limit; give ttft, tpot, e2e or tokens_per_s, such as ttft p99:1s")
    options = of_server(hardware, options)
    words: dict[str, Any] = {**options, **sizes, **limits, "find_rate": True}
    found = simulate(model, hardware, **words)
    return LargestRate(
        found=found, model=model, hardware=hardware, options=options, sizes=dict(sizes), limits=dict(limits)
    )
