"""The highest rate of a configuration within the limits: the one that `simulate --find-rate` finds, in fewer runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, log
from typing import Any

import numpy as np

from llmviewer.core.arguments import parse_size
from llmviewer.core.frozen import frozen
from llmviewer.planning.choices import Choice
from llmviewer.planning.options import Question
from llmviewer.simulation.call import finished, lasting, prepared, run_all
from llmviewer.simulation.limits import TOLERANCE
from llmviewer.simulation.parallel import on_all_cores
from llmviewer.simulation.result import Simulation
from llmviewer.simulation.traces import Trace

#: Requests of a run beyond which the highest rate is searched for the winner only, and with other lengths of requests
#: by runs of so many.
LONG_RUN = 20_000
#: Requests of a run beyond which even the winner's highest rate is searched by runs of LONG_RUN, 0.5 % from it at most.
LONGEST_RUN = 100_000
#: Configurations of which the highest rate is searched: the others lost, and it tells only how far they could grow.
MOST_SEARCHED = 6
#: Runs of a search at most.  First step away from a guess by the steady state, as a share of it.
MOST_RUNS, FIRST_STEP = 40, 0.05
#: Times the guess up to which a rate is searched: a server that holds there has too few requests to be overloaded.
MOST_GROWTH = 1000.0
#: Times the users asked up to which their number is searched: beyond, limits hold because nothing limits their wait.
MOST_USERS = 16
#: Share of the highest rate above which the length of the run decides how many replicas are enough.
NEARLY_FULL = 0.95
#: Parameters of a distribution that are tokens.
TOKENS = ("low", "high", "mean", "max")


@frozen
class Bracket:
    """Rates [1/s] of which the lower one holds and the higher one does not, each with its excess over the limits.

    step: how far the next rate may lie from the only one that is known, as a share.  slope: change of the logarithm of
    the excess with that of the rate, where it is known from other runs.
    """

    low: float = 0.0
    below: float = 0.0
    high: float = inf
    above: float = inf
    step: float = FIRST_STEP
    slope: float = 0.0

    def with_run(self, rate: float, excess: float) -> Bracket:
        """The bracket after one more run."""
        if excess <= 1.0:
            return replace(self, low=rate, below=excess)
        return replace(self, high=rate, above=excess)

    def is_within(self, tolerance: float) -> bool:
        """Whether the rates are as near to each other as this share."""
        return self.high - self.low <= tolerance * self.high < inf

    @property
    def steepness(self) -> float:
        """The slope between the two rates; 0 where one of them is unknown or saturated."""
        known = 0.0 < self.below < self.above < inf and self.low > 0.0
        return log(self.above / self.below) / log(self.high / self.low) if known else 0.0

    def beside(self) -> float:
        """The next rate where one side is unknown: beyond the one that the slope foretells, within the step."""
        up = self.high == inf
        known, excess = (self.low, self.below) if up else (self.high, self.above)
        told = abs(log(excess)) / self.slope + 0.4 * TOLERANCE if self.slope and 0.0 < excess < inf else inf
        share = 1.0 + min(max(told, TOLERANCE), self.step)
        return known * share if up else known / share

    def between(self, *, halved: bool) -> float:
        """The next rate where both are known: where the excess is 1 by its logarithm, or the middle.

        Where that is near one of them, a rate beyond it that ends the search unless the excess is on its side.
        """
        known = 0.0 < self.below < self.above < inf
        width = self.high - self.low
        share = -log(self.below) / log(self.above / self.below) if known else 0.5
        least = min(0.9 * TOLERANCE * self.high / width, 0.5)
        if halved and least <= share <= 1.0 - least:
            share = 0.5
        return self.low + width * min(max(share, least), 1.0 - least)


def highest(excess: Callable[[float], float], guess: float, start: Bracket, tolerance: float = TOLERANCE) -> Bracket:
    """Rates within the tolerance of which the lower one has an excess of at most 1; its low is 0 where none has and
    infinite where all have.

    excess: rate -> largest ratio of a latency to its limit.  guess: a rate near it.  start: what is known before.
    """
    found, halved = start, False
    rate = max(guess, found.low * (1.0 + TOLERANCE))
    for _ in range(MOST_RUNS):
        before = found.high - found.low
        found = found.with_run(rate, excess(rate))
        if found.is_within(tolerance) or found.high < TOLERANCE * guess:
            break
        if found.high == inf or not found.low:
            rate, found = found.beside(), replace(found, step=2.0 * found.step)
            if rate > MOST_GROWTH * guess:
                return replace(found, low=inf)
        else:
            halved = not halved and found.high - found.low > 0.5 * before
            rate = found.between(halved=halved)
    return found


def highest_rate(made: Simulation, guess: float, known: Bracket | None = None, most: float = inf) -> float:
    """The highest mean rate [1/s] that a server sustains within the limits: by runs of LONG_RUN requests first.

    Infinite where the requests are too few to overload it.  most: requests of the longest run.
    """

    def excess(rate: float, requests: float) -> float:
        traffic = made.traffic.searched(rate)
        if traffic.trace is None and traffic.most_requests > requests:
            traffic = replace(traffic, count=int(requests))
        run = finished(replace(made, traffic=traffic, outcomes=tuple(run_all(made.fleet, traffic, 1))))
        return excess_of(lasting(run))

    start, traffic = known or Bracket(), made.traffic.at_rate(guess)
    if most > LONG_RUN and traffic.trace is None and traffic.most_requests > LONG_RUN:
        nearly = highest(lambda rate: excess(rate, LONG_RUN), guess, Bracket())
        guess, start = nearly.low if 0.0 < nearly.low < inf else guess, replace(start, slope=nearly.steepness)
    return highest(lambda rate: excess(rate, most), guess, start).low


def excess_of(made: Simulation) -> float:
    """The largest ratio of a latency to its limit, at most 1 where all hold; infinite where the load is too high."""
    if made.saturated or not made.answers:
        return inf
    found = made.latencies()
    most = max((found[one.metric][one.statistic] or 0.0) / one.seconds for one in made.limits)
    if made.holds:
        return min(most, 1.0)
    return most if most > 1.0 else inf


def simulated_words(asked: Question, one: Choice) -> dict[str, Any]:
    """Options of `simulate` for one replica under its share of the load; of a trace, for all replicas."""
    hardware = one.hardware.split("+")[0] if len(one.parts) > 1 else one.hardware
    words: dict[str, Any] = {"hardware": hardware, **one.options}
    if one.users:
        words["concurrency"] = one.users
    elif asked.load.rate is not None:
        words["request_rate"] = one.rate
    return words | dict(asked.load.words)


def with_searched_rates(asked: Question, choices: Sequence[Choice]) -> list[Choice]:
    """Simulated configurations with the highest rate of each: of the first, and of others where runs are short.

    Only of the first MOST_SEARCHED, unless the objective compares highest rates.
    """
    every = asked.objective == "usd-per-token"
    first = len(choices) if every else MOST_SEARCHED
    chosen = [at for at, one in enumerate(choices[:first]) if at == 0 or every or _requests(asked, one) <= LONG_RUN]
    search = _searched_users if asked.load.users else _searched
    known = dict(zip(chosen, on_all_cores(lambda at: search(asked, choices[at]), chosen), strict=True))
    return [known.get(at, one) for at, one in enumerate(choices)]


def _searched(asked: Question, one: Choice) -> Choice:
    return replace(one, searched_rate=searched_rate(asked, one))


def _searched_users(asked: Question, one: Choice) -> Choice:
    """A configuration with the most users of a replica within the limits, and the rate at which they are answered."""
    found = highest_users(prepared(asked.model, **simulated_words(asked, one)).made, one.users, one.users)
    return one if found is None else replace(one, most_users=found[0], searched_rate=found[1] or one.rate)


def highest_users(made: Simulation, guess: int, known: int = 0) -> tuple[int, float] | None:
    """The most users of a closed loop that a server holds within the limits, and their rate [1/s].

    None where MOST_USERS times the guess hold too.  known: so many hold; their rate is 0 where no more do, as they were
    not run here.
    """
    rates: dict[int, float] = {}

    def holds(users: int) -> bool:
        traffic = replace(made.traffic, users=users)
        run = finished(replace(made, traffic=traffic, outcomes=tuple(run_all(made.fleet, traffic, 1))))
        rates[users] = run.mean_load("requests_per_s")
        return run.holds

    low, high = known, 2 * known or guess
    while holds(high):
        if high >= MOST_USERS * guess:
            return None
        low, high = high, 2 * high
    while high - low > max(TOLERANCE * low, 1.0):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, rates.get(low, 0.0)


def _requests(asked: Question, one: Choice) -> float:
    traffic = replace(asked.traffic, users=one.users)
    return len(traffic.trace) if traffic.trace is not None else traffic.at_rate(one.rate).most_requests


def searched_rate(asked: Question, one: Choice) -> float | None:
    """The highest rate [1/s] of the server that `command` simulates, which holds at the rate asked; None for none."""
    ratios = [(getattr(one, limit.metric) or 0.0) / limit.seconds for limit in asked.workload.limits]
    rate = one.rate * one.in_a_server
    known = Bracket(low=rate, below=min(max(ratios), 1.0))
    made = prepared(asked.model, **simulated_words(asked, one)).made
    guess = max(one.capacity / one.servers * one.in_a_server, rate)
    most = inf if made.traffic.at_rate(guess).most_requests <= LONGEST_RUN else LONG_RUN
    found = highest_rate(made, guess, known, most)
    return found if found < inf else None


def rate_with_lengths(asked: Question, one: Choice, name: str, factor: float, guess: float) -> float:
    """The highest rate [1/s] of a server under requests with other lengths, or the most users of a closed loop.

    Infinite where too few requests overload it.

    name: input_len or output_len, which is multiplied by the factor.  guess: a rate near it.
    """
    words = simulated_words(asked, one)
    if not (asked.words["trace"] or asked.words["lengths"]):
        words[name] = scaled_text(str(asked.words[name]), factor)
    made = prepared(asked.model, **words).made
    files: dict[str, Any] = {
        kind: _scaled_trace(trace, name, factor)
        for kind in ("trace", "pairs")
        if (trace := getattr(made.traffic, kind)) is not None
    }
    made = replace(made, traffic=replace(made.traffic, **files))
    if one.users:
        found = highest_users(made, one.users)
        return inf if found is None else float(found[0])
    return highest_rate(made, guess * one.in_a_server, most=LONG_RUN)


def scaled_text(text: str, factor: float) -> str:
    """`--input-len` with all its tokens times a factor: 2000 -> 1500; lognormal,mean=2000,cv=1 -> mean=1500."""
    parts = []
    for part in text.split(","):
        key, equals, value = part.rpartition("=")
        tokens = parse_size(value)
        scaled = not isinstance(tokens, str) and (not equals or key.strip() in TOKENS)
        parts.append(f"{key}{equals}{max(round(float(tokens) * factor), 1)}" if scaled else part)
    return ",".join(parts)


def _scaled_trace(trace: Trace, name: str, factor: float) -> Trace:
    lengths = np.maximum(np.rint(getattr(trace, name) * factor), 1.0).astype(np.int64)
    return replace(trace, **{name: lengths})


def capacity_notes(asked: Question, best: Choice) -> tuple[str, ...]:
    """A warning where the highest rate is not found, or so near that the length of the run decides what is enough."""
    if asked.load.users:
        unlimited = f"the limits hold for {MOST_USERS} times as many users, who wait for a slot; limit that by ttft"
        return (unlimited,) if best.head_room is None and best.simulated else ()
    if best.head_room is None and best.simulated:
        return ("the requests are too few to find a highest rate: head-room is not known; --duration 1h is longer",)
    if best.head_room is None or (share := 1.0 / (1.0 + best.head_room)) <= NEARLY_FULL:
        return ()
    most = f"the most that {best.devices} {best.hardware} sustain"
    return (
        f"{asked.workload.rate:g} requests/s are {share:.0%} of {most}: over a longer run (--duration 1h) they may need"
        " more; --spare 1 adds a replica",
    )
