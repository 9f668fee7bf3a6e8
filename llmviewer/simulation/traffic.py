"""The requests of a simulation, from a rate, a number of users, a curve over the day or a trace."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.simulation.arrivals import DAY_S, Gaps, RateCurve
from llmviewer.simulation.lengths import Lengths
from llmviewer.simulation.requests import Requests
from llmviewer.simulation.traces import Trace

#: Default length of a run: so much time or so many requests, whichever is more; in a closed loop, so many per user.
LEAST_S, LEAST_REQUESTS, REQUESTS_PER_USER = 600.0, 2000, 10
#: Fewest requests of the runs of a search.
LEAST_SEARCHED = 500
#: Most requests of a run.
MOST_REQUESTS = 10**7


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Requests that users send; `requests` draws them.

    rate: requests per second; None where `curve`, `trace` or `users` say when requests arrive.  users: of a closed
    loop, who each send the next request when the last is answered; 0: open loop.  burst: all are sent at once.
    gaps: process of arrivals.  input_len, output_len: lengths; a trace has its own, `pairs` is one of which only pairs
    of lengths are sampled.  speed_up: factor of a trace's rate.  count, duration_s: length of the run; None: default.
    """

    input_len: Lengths
    output_len: Lengths
    gaps: Gaps
    rate: float | None = None
    curve: RateCurve | None = None
    trace: Trace | None = None
    pairs: Trace | None = None
    users: int = 0
    burst: bool = False
    speed_up: float = 1.0
    count: int | None = None
    duration_s: float | None = None
    seed: int = 0

    @property
    def is_open(self) -> bool:
        """Whether requests arrive at times of their own for ever: not a burst and not a closed loop."""
        return not self.burst and not self.users

    @property
    def mean_rate(self) -> float | None:
        """Mean rate of arrivals [1/s]; None for a burst, a closed loop, and turns that follow their answers."""
        if not self.is_open or (self.trace is not None and self.trace.after):
            return None
        if self.curve is not None:
            return self.curve.mean * self.speed_up
        times = None if self.trace is None else self.trace.arrival_s
        if times is not None:
            return float((len(times) - 1) / times[-1]) * self.speed_up if times[-1] > 0.0 else None
        return self.rate

    @property
    def peak_rate(self) -> float | None:
        """Highest rate of a curve over the day [1/s]; the mean rate of any other traffic."""
        return self.mean_rate if self.curve is None else float(np.max(self.curve.rates)) * self.speed_up

    @property
    def most_requests(self) -> float:
        """Number of requests that a run without a trace may have at most, but for chance, before any is drawn."""
        if not self.is_open:
            return self.count or max(LEAST_REQUESTS, REQUESTS_PER_USER * self.users)
        if self.curve is not None:
            return min(self.curve.mean * (self.duration_s or DAY_S) * self.speed_up, self.count or np.inf)
        if self.duration_s is None:
            return self.count or max(LEAST_REQUESTS, (self.rate or 0.0) * LEAST_S)
        return min((self.rate or 0.0) * self.duration_s, self.count or np.inf)

    def at_rate(self, rate: float) -> Traffic:
        """This traffic with another mean rate [1/s]: traces and curves are sped up, or slowed down."""
        if self.curve is None and (self.trace is None or self.trace.arrival_s is None):
            return replace(self, rate=rate)
        mean = self.mean_rate
        assert mean is not None
        return replace(self, speed_up=self.speed_up * rate / mean)

    def searched(self, rate: float) -> Traffic:
        """This traffic at a rate of a search [1/s].

        Where a duration alone ends the run, few requests or none arrive at a low rate: it lasts for LEAST_SEARCHED.
        """
        made = self.at_rate(rate)
        timed = made.rate is not None and made.duration_s is not None and not made.count
        if not timed or rate * (made.duration_s or 0.0) >= LEAST_SEARCHED:
            return made
        return replace(made, duration_s=None, count=LEAST_SEARCHED)

    def requests(self, replication: int = 0) -> Requests:
        """The requests of a run; each replication has random numbers of its own, and a trace is always the same."""
        random = np.random.Generator(np.random.PCG64([self.seed, replication]))
        if self.trace is not None and self.trace.arrival_s is not None and not self.users:
            return self._of_trace(self.trace, self.trace.arrival_s / self.speed_up)
        times = self._times(random)
        if self.trace is not None:
            times = times[: len(self.trace)]
            return self._of_trace(self.trace, times)
        if self.pairs is not None:
            chosen = random.integers(0, len(self.pairs), len(times))
            lengths = self.pairs.input_len[chosen], self.pairs.output_len[chosen]
        else:
            lengths = self.input_len(len(times), random), self.output_len(len(times), random)
        return Requests(arrival_s=times, input_len=lengths[0], output_len=lengths[1], concurrency=self.users)

    def _of_trace(self, trace: Trace, times: Array) -> Requests:
        limit = np.inf if self.duration_s is None else self.duration_s
        count = min(int(np.searchsorted(times, limit, side="right")), self.count or len(times))
        return Requests(
            arrival_s=times[:count],
            input_len=trace.input_len[:count],
            output_len=trace.output_len[:count],
            prefixes=None if trace.prefixes is None else trace.prefixes[:count],
            prefix_tokens=trace.prefix_tokens,
            after={} if self.users else {at: one for at, one in trace.after.items() if at < count},
            concurrency=self.users,
        )

    def _times(self, random: np.random.Generator) -> Array:
        """Times of arrivals [s]."""
        if not self.is_open:
            count = self.count or max(LEAST_REQUESTS, REQUESTS_PER_USER * self.users)
            _check(count)
            return np.zeros(count)
        if self.curve is not None:
            span_s = (self.duration_s or DAY_S) * self.speed_up
            if self.count:  # days long after the last request are not written out
                span_s = min(span_s, (10.0 * self.count + 100.0) / self.curve.mean + DAY_S)
            _check(min(self.curve.mean * (span_s - DAY_S), self.count or np.inf))
            edges, expected = self.curve.expected(span_s)
            arrived = self._unit_times(min(expected[-1], self.count or np.inf), random, self.count or 0)
            times: Array = np.interp(arrived[arrived < expected[-1]], expected, edges)[: self.count] / self.speed_up
            return times
        assert self.rate is not None
        least = self.count or (LEAST_REQUESTS if self.duration_s is None else 0)
        length = self.duration_s if self.duration_s is not None else 0.0 if self.count else LEAST_S
        if self.duration_s is not None and self.count:
            return self._unit_times(self.rate * length, random)[: self.count] / self.rate
        return self._unit_times(self.rate * length, random, least) / self.rate

    def _unit_times(self, until: float, random: np.random.Generator, least: int = 0) -> Array:
        """Arrivals of the process at rate 1 before `until`, and at least `least` of them.  Raises UserError."""
        _check(max(until, least))
        drawn = [np.cumsum(self.gaps(int(max(until, least) * 1.05) + 64, random))]
        while drawn[-1][-1] < until:
            drawn.append(drawn[-1][-1] + np.cumsum(self.gaps(len(drawn[0]), random)))
        times: Array = np.concatenate(drawn)
        return times[: max(int(np.searchsorted(times, until)), least)]


def _check(count: float) -> None:
    """Raise UserError for more requests than a run may have."""
    if count > MOST_REQUESTS:
        raise UserError(f"the run has {count:,.0f} requests; allowed: at most {MOST_REQUESTS:,}")
