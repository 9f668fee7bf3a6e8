"""Arrays of what a replica noted while it ran: its intervals, and the times between tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.simulation.replica import Replica
from llmviewer.simulation.requests import Gaps, Timeline, Whole

#: Entries of an interval, in the order in which a replica notes them; the last is the number of sequences that wait for
#: their next token while a step computes prompts alone.
COLUMNS = ("start_s", "end_s", "steps", "decoding", "prompt_tokens", "waiting", "used_blocks", "stalled")


def _table(replica: Replica) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """The intervals of a replica, shape (intervals, columns)."""
    return np.frombuffer(replica.intervals, dtype=np.float64).reshape(-1, len(COLUMNS))


def timeline_of(replica: Replica) -> Timeline:
    """The intervals of a replica as arrays."""
    table = _table(replica)
    return Timeline(**{name: table[:, column] for column, name in enumerate(COLUMNS[:-1])})


def gaps_of(replicas: Sequence[Replica]) -> Gaps:
    """Times between consecutive tokens of all replicas.

    A sequence has a gap for every decode step.  Its first step after others than it took part in lasts longer: after
    steps with prompts alone, and after the transfer of its cache from another replica.
    """
    parts = [part for replica in replicas for part in _gaps_of_one(replica)]
    gap_s, weight, at_s = map(np.concatenate, zip(*parts, strict=True))
    some = weight > 0.0
    return Gaps(gap_s=gap_s[some], weights=weight[some], at_s=at_s[some])


def _gaps_of_one(replica: Replica) -> list[tuple[Array, Array, Array]]:
    """Times between tokens, how many tokens came after each, and when."""
    start, end, steps, decoding, _, _, _, stalled = _table(replica).T
    decodes = np.flatnonzero(decoding > 0)
    step_s, weight = (end - start)[decodes] / steps[decodes], (decoding * steps)[decodes]
    late = np.array(replica.late_gaps, dtype=np.float64).reshape(-1, 2)
    found = [(late[:, 0], np.ones(len(late)), late[:, 1])]
    pauses = [(start[at], pause, count) for at, pause, count in _stalls(start, decoding, stalled, decodes)]
    pauses += [(time_s, pause, 1.0) for time_s, pause in replica.handed_over]
    times, lengths, counts = np.array(pauses, dtype=np.float64).reshape(-1, 3).T
    places = np.searchsorted(start[decodes], times - 1e-12)
    known = places < len(decodes)
    places, lengths, counts = places[known], lengths[known], counts[known]
    np.subtract.at(weight, places, counts)
    found.append((step_s[places] + lengths, counts, end[decodes][places]))
    return [*found, (step_s, weight, end[decodes])]


def _stalls(start: Array, decoding: Array, stalled: Array, decodes: Whole) -> list[tuple[int, float, float]]:
    """Steps with prompts alone: index, time from its start to the next decode step [s], sequences it was the first to
    stall, without those that are preempted before that step: the last to start, which the latest steps stalled."""
    found, left = [], dict(zip(decodes.tolist(), decoding[decodes].tolist(), strict=True))
    for at in np.flatnonzero(stalled > 0).tolist():
        following = int(np.searchsorted(decodes, at))
        if following < len(decodes):
            before = stalled[at - 1] if at and not decoding[at - 1] else 0.0
            step = int(decodes[following])
            count = min(max(float(stalled[at] - before), 0.0), left[step])
            left[step] -= count
            found.append((at, float(start[step] - start[at]), count))
    return found
