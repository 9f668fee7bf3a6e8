"""Arrays of what a replica noted while it ran: its intervals, and the times between tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmviewer.simulation.replica import Replica
from llmviewer.simulation.requests import Gaps, Timeline

#: Entries of an interval, in the order in which a replica notes them.
COLUMNS = ("start_s", "end_s", "steps", "decoding", "prompt_tokens", "waiting", "used_blocks")


def timeline_of(replica: Replica) -> Timeline:
    """The intervals of a replica as arrays."""
    table = np.frombuffer(replica.intervals, dtype=np.float64).reshape(-1, len(COLUMNS))
    return Timeline(**{name: table[:, column] for column, name in enumerate(COLUMNS)})


def gaps_of(replicas: Sequence[Replica]) -> Gaps:
    """Times between consecutive tokens of all replicas, those of preempted sequences included.

    The first step after steps in which no sequence decoded ends their pause: for those that decoded before it.
    """
    gaps, weights, times = [], [], []
    for replica in replicas:
        line = timeline_of(replica)
        decodes = line.decoding > 0
        start, end, steps, sequences = (
            column[decodes] for column in (line.start_s, line.end_s, line.steps, line.decoding)
        )
        step_s = (end - start) / steps
        pause_s = np.maximum(start - np.append(start[:1], end[:-1]), 0.0)
        paused = np.where(pause_s > 0.0, np.minimum(sequences, np.append(0.0, sequences[:-1])), 0.0)
        late = np.array(replica.late_gaps, dtype=np.float64).reshape(-1, 2)
        gaps += [step_s, step_s + pause_s, late[:, 0]]
        weights += [sequences * steps - paused, paused, np.ones(len(late))]
        times += [end, end, late[:, 1]]
    gap_s, weight, at_s = map(np.concatenate, (gaps, weights, times))
    some = weight > 0.0
    return Gaps(gap_s=gap_s[some], weights=weight[some], at_s=at_s[some])
