"""The pace of a fleet at its mean request: when users of a closed loop begin, and how much faster it could answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np
import numpy.typing as npt

from llmviewer.core.frozen import frozen
from llmviewer.simulation.fleet import Fleet, Pool
from llmviewer.simulation.requests import Records, Requests
from llmviewer.simulation.result import Simulation
from llmviewer.simulation.run import refusals
from llmviewer.simulation.traffic import LEAST_SEARCHED, Traffic

#: Mean latencies that a run of a search lasts at least.
LASTING = 20.0


@frozen
class MeanRequest:
    """The mean of the requests that a fleet accepts.

    new: prompt tokens that are not found in the cache.  shared: blocks of the prompt that all requests share.
    """

    prompt: float
    new: int
    answer: float
    shared: int

    @staticmethod
    def of(requests: Requests | Records, accepted: npt.NDArray[np.bool_], fleet: Fleet) -> MeanRequest:
        """The mean of the accepted requests, of which there is one at least; turns find all that went before them."""
        prompts, found = requests.input_len[accepted], fleet.prefill.hits(requests.input_len[accepted]).tokens
        if not fleet.prefill.kv_cache.hit_rate:
            found = requests.repeated[accepted]
        return MeanRequest(
            prompt=float(prompts.mean()),
            new=max(int((prompts - found).mean()), 1),
            answer=float(requests.output_len[accepted].mean()),
            shared=int(fleet.answering.hits(prompts).blocks.mean()),
        )

    def prompt_s(self, pool: Pool) -> float:
        """Time of its prompt alone on a pipeline stage, after which another one can follow [s]."""
        pairs = self.new * (self.prompt - 0.5 * (self.new - 1.0))
        return pool.prices.mixed_s(0, 0.0, self.new, pairs, 1) / pool.stages

    def answer_s(self, pool: Pool, sequences: int) -> float:
        """Time in which so many sequences generate their answers together, in a micro-batch per pipeline stage [s]."""
        each = ceil(sequences / pool.stages)
        context = each * (self.prompt + 0.5 * self.answer)
        base, slope, _ = pool.prices.decode_line(each, context)
        return self.answer / pool.prices.tokens_per_round * (base + slope * context)


def staggered(requests: Requests, fleet: Fleet, traffic: Traffic) -> Requests:
    """The requests of a closed loop whose users begin at random, during about one request or session.

    Otherwise users with answers of one length would stay in step for ever, which real ones do not.
    """
    past, sessions = requests.histories, traffic.sessions
    begins = np.arange(len(requests)) if past is None else np.flatnonzero(past.turn == 1)
    users = min(traffic.users, len(begins))
    if not users or traffic.burst:
        return requests
    accepted = refusals(requests, fleet) == 0
    if not accepted.any():
        return requests
    mean, pool = MeanRequest.of(requests, accepted, fleet), fleet.answering
    sequences = max(min(users // pool.replicas, pool.room.max_sequences), 1)
    whole_s = mean.answer_s(pool, sequences) + users / fleet.prefill.replicas * mean.prompt_s(fleet.prefill)
    if sessions is not None:
        whole_s = sessions.mean_turns * whole_s + sessions.pauses_s
    times, evenly = np.zeros(len(requests)), np.arange(users) / users
    times[begins[:users]] = whole_s * (evenly if requests.chance is None else np.sort(requests.chance[:users]))
    return replace(requests, arrival_s=times)


def capacity(mean: MeanRequest, fleet: Fleet) -> float:
    """Mean requests per second that a fleet answers with as many sequences as its caches hold [1/s]."""
    pool, first = fleet.answering, fleet.prefill
    room = pool.room
    each = ceil((mean.prompt + 0.5 * mean.answer) / room.block_tokens) + room.sequence_blocks - mean.shared
    sequences = max(min((room.blocks - mean.shared) // each, room.max_sequences), 1)
    prompt_s, answer_s = mean.prompt_s(first), mean.answer_s(pool, sequences) / sequences
    if fleet.decode is None:
        return pool.replicas / (prompt_s + answer_s)
    return min(first.replicas / prompt_s, pool.replicas / answer_s)


def throughput_ratios(made: Simulation, ratios: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Bounds over value of the output tokens per second by level, if all times are as far off as the E2E latency.

    A server that is never idle answers in inverse proportion to its times.  Requests that arrive at a rate of their own
    are answered at it unless slower steps sustain less: then at the capacity for their mean, slower in proportion.
    """
    records, fastest, spare = made.records, np.inf, 1.0
    if made.traffic.is_open and not made.saturated and made.answers:
        rate = float(np.mean([load["requests_per_s"] for load in made.loads]))
        most = capacity(MeanRequest.of(records, records.refused == 0, made.fleet), made.fleet)
        fastest, spare = 1.0, max(most / rate if rate else 1.0, 1.0)
    return {
        level: [min(spare / high, fastest), min(spare / low, fastest)]
        for level, (low, high) in ratios.get("e2e_s", {}).items()
    }


def short_run(traffic: Traffic, sample: Requests) -> tuple[str, ...]:
    """A note where sessions begin for less than twice the time for which one pauses, so that the load still grows."""
    pauses_s = 0.0 if traffic.sessions is None else traffic.sessions.pauses_s
    begins_s = float(sample.arrival_s[-1])
    if not traffic.is_open or begins_s >= 2.0 * pauses_s:
        return ()
    told = f"sessions begin for {begins_s:.3g} s and pause {pauses_s:.3g} s each"
    return (f"{told}: the load still grows; give more requests or a longer duration",)


def lasting_count(made: Simulation) -> int:
    """Requests of a run that lasts for LASTING of their mean latencies at its rate; 0 where a limit is exceeded anyway.

    In a shorter run the arrivals of its last third decide whether the number of requests seems to grow.
    """
    traffic, records = made.traffic, made.records
    if traffic.rate is None or traffic.trace is not None or traffic.sessions is not None or not made.answers:
        return 0
    if not made.saturated and made.broken:
        return 0
    first = records.e2e_s[: max(len(records) // 3, 1)]  # before a queue grows
    return 0 if np.isnan(first).all() else ceil(traffic.rate * LASTING * float(np.nanmean(first)))


def search_notes(made: Simulation, rate: float) -> tuple[str, ...]:
    """Notes on the highest rate that a search has found in a load [1/s]."""
    if not rate:
        return ()
    searched = made.traffic.searched(rate)
    sample = searched.requests()
    notes = list(short_run(searched, sample))
    if made.traffic.duration_s is not None and searched.duration_s is None:
        notes.append(f"fewer than {LEAST_SEARCHED} requests arrive in {made.traffic.duration_s:g} s: the run is longer")
    most = capacity(MeanRequest.of(sample, refusals(sample, made.fleet) == 0, made.fleet), made.fleet)
    if rate > 1.5 * most and sample.prefixes is None:
        notes.append(
            f"{len(sample):,} requests are too few to find a highest rate; in the long run it is about {most:.3g}/s"
        )
    return tuple(notes)
