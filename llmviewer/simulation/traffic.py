"""The requests of a simulation: arrivals, lengths of prompts and answers; from a rate, users, a curve or a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Annotated

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.parsing import duration
from llmviewer.language.grammar import Grammar, Number
from llmviewer.simulation.lengths import Lengths
from llmviewer.simulation.requests import Requests
from llmviewer.simulation.sessions import Sessions
from llmviewer.simulation.traces import Trace
from llmviewer.techniques.technique import called

#: Gaps of mean 1 from a generator: their number, random numbers -> gaps.
Gaps = Callable[[int, np.random.Generator], Array]
DAY_S = 86400.0


def gamma(*, cv: Annotated[float, Number("coefficient of variation of the gaps", 0.01, 100.0)]) -> Gaps:
    """Gaps of a gamma distribution."""
    shape = cv**-2.0
    return lambda count, random: random.gamma(shape, 1.0 / shape, count)


def gaps_of(text: str) -> Gaps:
    """The process of `--arrivals`: poisson, fixed, or gamma,cv=C with the coefficient of variation C of its gaps.

    Raises UserError.
    """
    name, _, parameters = text.partition(",")
    if name == "gamma":
        return called(gamma, "arrivals gamma", Grammar.of(gamma), parameters)
    if parameters:
        raise UserError(f"arrivals {name} takes no parameter, not {quoted(parameters)}")
    known: dict[str, Gaps] = {
        "poisson": lambda count, random: random.exponential(1.0, count),
        "fixed": lambda count, _: np.ones(count),
    }
    if name not in known:
        raise unknown("arrivals", name, (*known, "gamma"))
    return known[name]


@frozen(eq=False)
class RateCurve:
    """Request rate by time of day: `rates` [1/s] hold from `starts_s` on, and every day is alike."""

    starts_s: Array
    rates: Array

    @property
    def mean(self) -> float:
        """Mean rate over a day [1/s]."""
        return float(np.sum(self.rates * np.diff(np.append(self.starts_s, DAY_S))) / DAY_S)

    def expected(self, until_s: float) -> tuple[Array, Array]:
        """Times at which the rate changes, up to `until_s` [s], and the arrivals expected before each of them."""
        days = np.arange(np.ceil(until_s / DAY_S))
        times = (days[:, None] * DAY_S + self.starts_s[None, :]).ravel()
        kept = times < until_s
        rates, edges = np.tile(self.rates, len(days))[kept], np.append(times[kept], until_s)
        return edges, np.append(0.0, np.cumsum(rates * np.diff(edges)))


def rate_curve(text: str) -> RateCurve:
    """The curve of `0h:2,8h:10,20h:4`: two requests a second from midnight on, ten from eight.  Raises UserError."""
    allowed = "allowed: TIME:RATE,... from 0h on, times ascending below 24h, rates from 0, such as 0h:2,8h:10,20h:4"
    starts, rates = [], []
    for step in text.split(","):
        start, _, rate = step.partition(":")
        try:
            starts.append(duration("rate_curve", start))
            rates.append(float(rate))
        except ValueError:
            raise UserError(f"rate_curve has {quoted(step)}; {allowed}") from None
    times, values = np.array(starts), np.array(rates)
    in_order = times[0] == 0.0 and np.all(np.diff(times) > 0.0) and times[-1] < DAY_S
    if not (in_order and np.all(np.isfinite(values)) and np.all(values >= 0.0) and np.any(values > 0.0)):
        raise UserError(f"rate_curve is {quoted(text)}; {allowed}")
    return RateCurve(starts_s=times, rates=values)


#: Default length of a run: so much time or so many requests, whichever is more; in a closed loop, so many per user.
LEAST_S, LEAST_REQUESTS, REQUESTS_PER_USER = 600.0, 2000, 10
#: Times that a session is, of which a run lasts so many at least, and sessions of each user of a closed loop.
LEAST_SESSIONS = 4
#: Fewest requests of the runs of a search, and the most where no option says how long they are.
LEAST_SEARCHED, MOST_SEARCHED = 500, 50_000
#: Most requests of a run.
MOST_REQUESTS = 10**7


@frozen(eq=False)
class Traffic:
    """Requests that users send; `requests` draws them.

    rate: requests per second; None where `curve`, `trace` or `users` say when requests arrive.  users: of a closed
    loop, who each send the next request when the last is answered; 0: open loop.  burst: all are sent at once.
    gaps: process of arrivals.  input_len, output_len: lengths; a trace has its own, `pairs` is one of which only pairs
    of lengths are sampled.  sessions: of which the requests are turns, at the same mean rate.  image_tokens: beside the
    text of each prompt.  speed_up: factor of a trace's rate.  count, duration_s: length of the run; None: default.
    """

    input_len: Lengths
    output_len: Lengths
    gaps: Gaps
    rate: float | None = None
    curve: RateCurve | None = None
    trace: Trace | None = None
    pairs: Trace | None = None
    sessions: Sessions | None = None
    users: int = 0
    burst: bool = False
    image_tokens: int = 0
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
            return self._closed
        if self.curve is not None:
            return min(self.curve.mean * (self.duration_s or DAY_S) * self.speed_up, self.count or np.inf)
        if self.duration_s is None:
            return self.count or max(LEAST_REQUESTS, (self.rate or 0.0) * self._least_s)
        return min((self.rate or 0.0) * self.duration_s, self.count or np.inf)

    @property
    def _closed(self) -> int:
        """Number of requests of a burst or a closed loop."""
        each = max(REQUESTS_PER_USER, ceil(LEAST_SESSIONS * self._turns) if self.sessions else 0)
        return self.count or max(LEAST_REQUESTS, each * self.users)

    @property
    def _turns(self) -> float:
        """Mean requests of a session; 1 where requests are no turns."""
        return 1.0 if self.sessions is None else self.sessions.mean_turns

    @property
    def _least_s(self) -> float:
        """Time in which requests arrive by default [s]."""
        return LEAST_S if self.sessions is None else max(LEAST_S, LEAST_SESSIONS * self.sessions.pauses_s)

    def at_rate(self, rate: float) -> Traffic:
        """This traffic with another mean rate [1/s]: traces and curves are sped up, or slowed down."""
        if self.curve is None and (self.trace is None or self.trace.arrival_s is None):
            return replace(self, rate=rate)
        mean = self.mean_rate
        assert mean is not None
        return replace(self, speed_up=self.speed_up * rate / mean)

    def with_pauses(self, factor: float) -> Traffic:
        """This traffic with pauses of its sessions so many times as long."""
        return self if self.sessions is None else replace(self, sessions=self.sessions.slower(factor))

    def searched(self, rate: float) -> Traffic:
        """This traffic at a rate of a search [1/s].

        Where a duration alone ends the run, few requests or none arrive at a low rate: it lasts for LEAST_SEARCHED.  A
        run of the usual length has at most MOST_SEARCHED.
        """
        made = self.at_rate(rate)
        if made.rate is not None and made.duration_s is None and not made.count and rate * LEAST_S > MOST_SEARCHED:
            return replace(made, count=MOST_SEARCHED)
        timed = made.rate is not None and made.duration_s is not None and not made.count
        if not timed or rate * (made.duration_s or 0.0) >= LEAST_SEARCHED:
            return made
        return replace(made, duration_s=None, count=LEAST_SEARCHED)

    def requests(self, replication: int = 0) -> Requests:
        """The requests of a run; each replication has random numbers of its own, and a trace is always the same."""
        made = self._of_text(replication)
        return replace(made, input_len=made.input_len + self.image_tokens) if self.image_tokens else made

    def _of_text(self, replication: int) -> Requests:
        random = np.random.Generator(np.random.PCG64([self.seed, replication]))
        if self.trace is not None and self.trace.arrival_s is not None and not self.users:
            return self._of_trace(self.trace, self.trace.arrival_s / self.speed_up)
        times = self._times(random)
        if self.trace is not None:
            made = self._of_trace(self.trace, times[: len(self.trace)])
            return replace(made, chance=random.random(len(made)))
        if self.sessions is not None:
            of_sessions = np.random.Generator(np.random.PCG64([self.seed, replication, 1]))
            most = self.count if self.curve is not None else round(self.most_requests)
            made = self.sessions.requests(times, of_sessions, most, self.users)
            return replace(self._at_stated_rate(made), chance=random.random(len(made)))
        if self.pairs is not None:
            chosen = random.integers(0, len(self.pairs), len(times))
            lengths = self.pairs.input_len[chosen], self.pairs.output_len[chosen]
        else:
            lengths = self.input_len(len(times), random), self.output_len(len(times), random)
        return Requests(
            arrival_s=times,
            input_len=lengths[0],
            output_len=lengths[1],
            concurrency=self.users,
            chance=random.random(len(times)) if self.users else None,
        )

    def _at_stated_rate(self, made: Requests) -> Requests:
        """Sessions that begin for as long as their requests take to arrive at the very rate.

        Fifty sessions of many turns would be 14 % off by chance.
        """
        last_s = float(np.max(made.arrival_s, initial=0.0))
        if self.rate is None or not self.is_open or not last_s:
            return made
        return replace(made, arrival_s=made.arrival_s * (len(made) / self.rate / last_s))

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
        """Times of arrivals [s]; where requests are turns, of their sessions."""
        turns, fewest = self._turns, 1 if self.sessions is None else self.sessions.least_turns
        count = self.count and ceil(self.count / fewest)
        if not self.is_open:
            _check(self._closed)
            return np.zeros(ceil(self._closed / fewest))
        if self.curve is not None:
            span_s = (self.duration_s or DAY_S) * self.speed_up
            mean = self.curve.mean / turns
            if count:  # days long after the last request are not written out
                span_s = min(span_s, (10.0 * count + 100.0) / mean + DAY_S)
            _check(min(self.curve.mean * (span_s - DAY_S), self.count or np.inf))
            edges, expected = self.curve.expected(span_s)
            expected = expected / turns
            arrived = self._unit_times(min(expected[-1], count or np.inf), random, count or 0)
            times: Array = np.interp(arrived[arrived < expected[-1]], expected, edges)[:count] / self.speed_up
            return times
        assert self.rate is not None
        if self.sessions is not None:
            _check(self.most_requests)
            return self._unit_times(0.0, random, ceil(self.most_requests / fewest)) * turns / self.rate
        rate, least = self.rate, self.count or (LEAST_REQUESTS if self.duration_s is None else 0)
        length = self.duration_s if self.duration_s is not None else 0.0 if count else self._least_s
        if self.duration_s is not None and count:
            arrived = self._unit_times(min(rate * length, count), random, least if rate * length > count else 0)
            return arrived[arrived < rate * length][:count] / rate
        return self._unit_times(rate * length, random, least) / rate

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
