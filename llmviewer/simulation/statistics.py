"""Latencies, throughput and load of a run without its warm-up, and the intervals of simulated latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen
from llmviewer.simulation.limits import QUANTILES, STATISTICS, Limit
from llmviewer.simulation.requests import Records, Whole
from llmviewer.simulation.run import Outcome

#: Level -> quantiles of Student's t for 1, 2, ... degrees of freedom, two-sided; beyond the table, of the normal
#: distribution.  NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
STUDENT: Mapping[str, tuple[float, ...]] = {
    "80": (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372, 1.363, 1.356, 1.350, 1.345, 1.341,
           1.337, 1.333, 1.330, 1.328, 1.282),
    "95": (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
           2.120, 2.110, 2.101, 2.093, 1.960),
}  # fmt: skip

Summary = Mapping[str, float | None]
Levels = dict[str, list[float | None]]


def of_replications(parts: Sequence[Summary], whole: Summary) -> dict[str, Levels]:
    """Statistic -> level -> interval around its value, from independent runs or parts of one run.

    Student's t of the mean over the parts; null where a part has no value or there is a single one.
    """
    found = {}
    for name in STATISTICS:
        values = [part[name] for part in parts if part[name] is not None]
        found[name] = around(values, whole[name])
    return found


def around(parts: Sequence[float | None], centre: float | None) -> Levels:
    """Level -> interval of a value from those of parts, as above."""
    values = np.array(parts, dtype=np.float64)
    if centre is None or len(values) < 2:
        return {level: [None, None] for level in STUDENT}
    error = float(values.std(ddof=1)) / np.sqrt(len(values))
    widths = {level: table[min(len(values) - 2, len(table) - 1)] * error for level, table in STUDENT.items()}
    return {level: [max(centre - width, 0.0), centre + width] for level, width in widths.items()}


def scaled(
    whole: Summary,
    ratios: Mapping[str, Sequence[float]],
    wider: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
) -> dict[str, Levels]:
    """Statistic -> level -> interval, in proportion to its value.

    ratios: level -> low and high over value.  wider: statistic -> the same, where queues make the interval wider.
    """
    found: dict[str, Levels] = {}
    for name in STATISTICS:
        value, others = whole[name], (wider or {}).get(name, {})
        found[name] = {}
        for level, (low, high) in ratios.items():
            other_low, other_high = others.get(level, (low, high))
            bounds = (min(low, other_low), max(high, other_high))
            found[name][level] = [None if value is None else value * ratio for ratio in bounds]
    return found


def in_order(bounds: Mapping[str, Any], values: Mapping[str, Summary]) -> dict[str, Any]:
    """Intervals of which none begins or ends before that of a part of its time: queue, first token, whole request.

    What the part leaves of the value is at its lower bound at least.
    bounds: metric -> statistic -> level -> interval; other metrics stay as they are.
    """
    found = dict(bounds)
    for part, whole in pairwise(name for name in ("queue_s", "ttft_s", "e2e_s") if name in bounds):
        found[whole] = {
            statistic: {
                level: _beyond(found[part][statistic][level], own, values[part][statistic], values[whole][statistic])
                for level, own in levels.items()
            }
            for statistic, levels in found[whole].items()
        }
    return found


#: Ratio of two times above which their difference is no rounding.
ROUND_OFF = 1.0 + 1e-9


def _beyond(
    part: Sequence[float | None], own: Sequence[float | None], part_s: float | None, whole_s: float | None
) -> list[float | None]:
    """The interval of a time [s], moved up to that of a part of it with the rest at its lower bound."""
    if None in part or None in own or part_s is None or not whole_s:
        return list(own)
    rest_s = own[0] * max(1.0 - part_s / whole_s, 0.0)  # type: ignore[operator]
    floors = [least + rest_s for least in part]  # type: ignore[operator]
    return [floor if floor > bound * ROUND_OFF else bound for bound, floor in zip(own, floors, strict=True)]  # type: ignore[operator]


#: Latencies of requests, in the order of results.
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
#: Requests of a batch of MSER-5, and the largest share of a run that it may cut.
MSER_BATCH, MOST_CUT = 5, 0.5
#: Share of the turns that may still be missing where the load of sessions is taken to be steady.
LATE_TURNS = 0.01
#: Parts of a single run from which intervals are taken (batch means).
PARTS = 20
#: A queue grows where each of the last two thirds of the arrivals leaves this share of itself behind, and both together
#: more than so many standard deviations of a Poisson count.
GROWING_SHARE, DEVIATIONS = 0.02, 2.0

Chosen = npt.NDArray[np.bool_]


@frozen(eq=False)
class Window:
    """The part of a run that is judged.

    start_s, end_s: limits [s].  chosen: requests whose latencies count.  counted: requests that make its throughput;
    None: the same.
    """

    start_s: float
    end_s: float
    chosen: Chosen
    counted: Chosen | None = None

    @property
    def length_s(self) -> float:
        """Its length [s]."""
        return self.end_s - self.start_s

    def overlap_s(self, starts: Array, ends: Array) -> Array:
        """Time of intervals within the window [s]; 0 where one has no beginning, to the end where it has no end."""
        begun = np.where(np.isnan(starts), np.inf, starts)
        ended = np.where(np.isnan(ends), np.inf, ends)
        found: Array = np.maximum(np.minimum(ended, self.end_s) - np.maximum(begun, self.start_s), 0.0)
        return found


def warm_up_s(records: Records) -> float:
    """Time at which the system has warmed up, by MSER-5: the cut after which the mean E2E latency is known best.

    White, Simulation 69(6), 1997: over means of five requests, the cut that minimises the sum of squared deviations of
    the rest over its squared number; at most half of the run.
    """
    answered = np.flatnonzero(~np.isnan(records.e2e_s))
    count = len(answered) // MSER_BATCH
    if count < 4:
        return 0.0
    means = records.e2e_s[answered[: count * MSER_BATCH]].reshape(count, MSER_BATCH).mean(axis=1)
    left = np.arange(count, 0.0, -1.0)
    sums, squares = (np.cumsum(values[::-1])[::-1] for values in (means, means**2))
    error = (squares - sums**2 / left) / left**2
    cut = int(np.argmin(error[: int(count * MOST_CUT) + 1]))
    return float(records.arrival_s[answered[cut * MSER_BATCH]]) if cut else 0.0


def under_way_s(records: Records) -> float:
    """Time from which turns come at their mean rate [s]: until all but a hundredth of the turns of the first sessions
    would have been sent; at most half of the time in which sessions begin."""
    if not np.any(records.turn):
        return 0.0
    begins_s = np.full(int(records.session.max()) + 1, np.nan)
    begins_s[records.session[records.turn == 1]] = records.arrival_s[records.turn == 1]
    after_s = records.arrival_s - begins_s[records.session]
    return min(float(np.nanquantile(after_s, 1.0 - LATE_TURNS)), MOST_CUT * last_begin_s(records))


def whole_run(records: Records) -> Window:
    """All of a run, from the first arrival to the last answer: of a burst or a trace."""
    ended = records.finish_s[~np.isnan(records.finish_s)]
    chosen = ~np.isnan(records.finish_s)
    return Window(start_s=0.0, end_s=float(np.max(ended, initial=0.0)), chosen=chosen)


def steady_window(records: Records, start_s: float, users: int) -> Window:
    """The run from a time on, as long as requests arrive, and new sessions begin where these are turns.

    users: of a closed loop; 0: none.  Its first requests, one per user, start into a server that fills up, and its last
    ones have fewer beside them: those count that are sent after the first ended, and end before the last is sent.  Of
    sessions, those that are sent after all users have begun one.
    """
    end_s = last_begin_s(records)
    chosen = (records.arrival_s >= start_s) & (records.arrival_s <= end_s) & ~np.isnan(records.finish_s)
    if not users:
        return Window(start_s=start_s, end_s=end_s, chosen=chosen)
    if np.any(records.turn):
        begins_s = records.arrival_s[records.turn == 1]
        if len(begins_s) <= users:
            return whole_run(records)
        first_s = float(np.nanmax(begins_s[:users]))
    else:
        first_s = float(np.nanmax(records.finish_s[:users], initial=0.0))
    start_s = start_s if first_s >= end_s else max(start_s, first_s)
    ended = (records.finish_s > start_s) & (records.finish_s <= end_s)
    return Window(start_s=start_s, end_s=end_s, chosen=ended & (records.arrival_s >= start_s), counted=ended)


def last_begin_s(records: Records) -> float:
    """Time of the last arrival [s]; of turns, of the last that begins a session: fewer and fewer go on behind it."""
    begins = records.arrival_s[(records.turn <= 1) & ~np.isnan(records.arrival_s)]
    return float(np.max(begins, initial=0.0))


def answers_within(records: Records, window: Window) -> bool:
    """Whether a request is answered within a window; in a very short run all end after the last arrival."""
    return bool(np.any((records.finish_s > window.start_s) & (records.finish_s <= window.end_s)))


def parts(records: Records, window: Window) -> list[Window]:
    """PARTS parts of a window with equally many requests each, in order of arrival; one where there are too few."""
    chosen = np.flatnonzero(window.chosen)
    if len(chosen) < PARTS * 10:
        return [window]
    found = []
    for part in np.array_split(chosen[np.argsort(records.arrival_s[chosen], kind="stable")], PARTS):
        mask = np.zeros(len(window.chosen), dtype=np.bool_)
        mask[part] = True
        limits = records.arrival_s[part]
        found.append(Window(start_s=float(limits.min()), end_s=float(limits.max()), chosen=mask))
    return found


def summary(values: Array, weights: Array | None = None) -> dict[str, float | None]:
    """Mean and percentiles of latencies [s]; null where there is none.  weights: how often each occurs."""
    known = ~np.isnan(values)
    values, weights = values[known], None if weights is None else weights[known]
    if not len(values):
        return {"mean": None, **dict.fromkeys(QUANTILES)}
    if weights is None:
        found = np.quantile(values, list(QUANTILES.values()))
        return {"mean": float(values.mean()), **dict(zip(QUANTILES, map(float, found), strict=True))}
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, np.array(list(QUANTILES.values())) * reached[-1])
    found = values[order][np.minimum(places, len(values) - 1)]
    return {
        "mean": float(np.average(values, weights=weights)),
        **dict(zip(QUANTILES, map(float, found), strict=True)),
    }


def in_system(records: Records, times: Array) -> Whole:
    """Requests that have arrived and not ended at each of these times."""
    arrived = np.sort(records.arrival_s[records.refused == 0])
    ended = np.sort(records.finish_s[~np.isnan(records.finish_s)])
    counts: Whole = np.searchsorted(arrived, times, "right") - np.searchsorted(ended, times, "right")
    return counts


def is_saturated(records: Records) -> bool:
    """Whether requests arrive faster than they are answered: their number in the system grows without end.

    Requests that arrive later must take longer.  Their number must have grown in the second and in the third of three
    parts of the arrivals, by GROWING_SHARE of the requests that arrived there, and in both together by more than
    DEVIATIONS standard deviations of a Poisson count.  Of turns, it is the number of sessions that has grown.
    """
    accepted = records.refused == 0
    if not accepted.any():
        return False
    times = np.max(records.arrival_s[accepted & (records.turn <= 1)], initial=0.0) * np.array([1.0, 2.0, 3.0]) / 3.0
    arriving = _sessions(records) if np.any(records.turn) else records
    present, count = in_system(arriving, times), float(np.count_nonzero(arriving.refused == 0))
    grown = np.diff(present)
    if not _takes_longer(records, times):
        return False
    return bool(np.all(grown > GROWING_SHARE * count / 3.0) and grown.sum() > DEVIATIONS * np.sqrt(count * 2.0 / 3.0))


def _sessions(records: Records) -> Records:
    """An entry for each session, which is in the system from its first prompt to its last answer."""
    ended = np.full(int(records.session.max()) + 1, -np.inf)
    np.maximum.at(ended, records.session, np.nan_to_num(records.finish_s, nan=-np.inf))
    begins = np.flatnonzero(records.turn == 1)
    columns = {name: getattr(records, name) for name in Records.__dataclass_fields__}
    kept = {name: values[begins] for name, values in columns.items() if np.ndim(values)}
    last_s = ended[records.session[begins]]
    return replace(records, **kept | {"finish_s": np.where(last_s > -np.inf, last_s, np.nan)})


def _takes_longer(records: Records, times: Array) -> bool:
    """Whether requests that arrive in the last third take longer than those of the third before; true if unknown.

    Where R requests arrive and S < R are answered per second, each takes R/S - 1 seconds longer for every second that
    it arrives later.  Where answers only take as long as the run, their number grows and their latency does not.
    """
    arrival, found = records.arrival_s, []
    for start, end in pairwise(times):
        taken = records.e2e_s[(arrival > start) & (arrival <= end) & ~np.isnan(records.finish_s)]
        if not len(taken):
            return True
        found.append(float(taken.mean()))
    return found[1] - found[0] > 0.5 * GROWING_SHARE * float(times[1] - times[0])


def capacity(records: Records) -> float:
    """Requests per second of a burst, from the first tenth of the answers to the last but one tenth [1/s]."""
    ended = np.sort(records.finish_s[~np.isnan(records.finish_s)])
    first, last = len(ended) // 10, len(ended) - 1 - len(ended) // 10
    passed = float(ended[last] - ended[first]) if len(ended) else 0.0
    return (last - first) / passed if passed > 0.0 else 1.0


def output_tokens_per_s(records: Records, window: Window) -> float:
    """Output tokens of the requests that make the throughput of a window, per second [1/s]."""
    ended = window.chosen if window.counted is None else window.counted
    return float(records.output_len[ended].sum()) / max(window.length_s, np.finfo(np.float64).tiny)


def load(outcome: Outcome, window: Window) -> dict[str, float]:
    """Throughput, utilization and occupancy in a window, by key of the result."""
    records, length = outcome.records, max(window.length_s, np.finfo(np.float64).tiny)
    ended = window.chosen if window.counted is None else window.counted
    prompts = float(records.input_len[window.chosen].sum())
    return {
        "output_tokens_per_s": output_tokens_per_s(records, window),
        "requests_per_s": float(np.count_nonzero(ended)) / length,
        "running_mean": float(window.overlap_s(records.start_s, records.finish_s).sum()) / length,
        "waiting_mean": float(_waiting_s(records, window).sum()) / length,
        "utilization": _utilization(outcome, window),
        "kv_cache_occupancy_mean": _occupancy(outcome, window),
        "preemptions": int(records.preemptions.sum()),
        "prefix_hit_rate": float(records.cached_tokens[window.chosen].sum()) / prompts if prompts else 0.0,
    }


def _waiting_s(records: Records, window: Window) -> Array:
    accepted = np.where(records.refused == 0, records.arrival_s, np.nan)
    return window.overlap_s(accepted, records.start_s)


def _utilization(outcome: Outcome, window: Window) -> float:
    """Mean over replicas of the share of the time in which each runs a step."""
    busy = [float(window.overlap_s(line.start_s, line.end_s).sum()) for line in outcome.timelines]
    return float(np.mean(busy)) / window.length_s if window.length_s else 0.0


def _occupancy(outcome: Outcome, window: Window) -> float:
    """Mean share of KV-cache blocks that requests hold; where micro-batches share them, as the first to end saw it."""
    held, at = [], 0
    while at < len(outcome.timelines):
        lines = outcome.timelines[at : at + outcome.lanes[outcome.pools[at]]]
        start, end, used = (
            np.concatenate([getattr(line, name) for line in lines]) for name in ("start_s", "end_s", "used_blocks")
        )
        order = np.argsort(end, kind="stable")
        seen = np.append(-np.inf, np.maximum.accumulate(end[order]))[: len(order)]
        alone = window.overlap_s(np.maximum(start[order], seen), end[order])
        held.append(float((alone * used[order]).sum()) / max(outcome.blocks[at], 1))
        at += len(lines)
    return float(np.mean(held)) / window.length_s if window.length_s else 0.0


def meets(records: Records, chosen: Chosen, limits: Sequence[Limit]) -> Chosen:
    """Requests within all limits, each held to their seconds; shape (requests,)."""
    kept = chosen.copy()
    for one in limits:
        values = getattr(records, one.metric)
        kept &= np.isnan(values) | (values <= one.seconds)
    return kept


def broken(latencies: Mapping[str, Mapping[str, float | None]], limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Limits that the statistics of a run exceed; answers of one token have no time per output token to limit."""
    found = []
    for one in limits:
        value = latencies[one.metric][one.statistic]
        if value is None and one.metric == "tpot_s" and latencies["ttft_s"][one.statistic] is not None:
            continue
        if value is None or value > one.seconds:
            found.append(one)
    return tuple(found)
