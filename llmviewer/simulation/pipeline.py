"""Pipeline stages of a replica: micro-batches that follow each other through them, of one scheduler and one cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from llmviewer.simulation.ranks import Together
from llmviewer.simulation.replica import Prompt, Replica, steps_within

#: Time of a step, over that of a round, up to which rounds are steady.
STEADY = 1.001


@dataclass(slots=True)
class Pipeline(Together):
    """Micro-batches that pass through pipeline stages, one step after another each; `run` advances them.

    ranks: a replica for each micro-batch, as many as stages; they share queue, cache and the limit of sequences.  A
    sequence stays in the micro-batch that computed the end of its prompt; the chunks of a prompt follow each other in
    the steps that begin next.  free_s: time from which each stage is free, which runs steps in the order of their
    begin; begun_s: begin of the last one [s].  prompt: the one that steps have computed in part.
    Source: as many batches in flight as stages in vLLM,
    https://github.com/vllm-project/vllm/blob/main/vllm/v1/engine/core.py (step_with_batch_queue)
    """

    free_s: list[float] = field(init=False)
    prompt: Prompt | None = None
    begun_s: float = 0.0

    def __post_init__(self) -> None:
        """Let the micro-batches share what is the replica's."""
        for lane in self.ranks[1:]:
            lane.share(self.ranks[0])
        self.free_s = [0.0] * len(self.ranks)

    def run(self, until: float = inf) -> None:
        """Run the steps that begin before this time [s]."""
        ranks = self.ranks
        for lane in ranks:
            lane.until_s = until
        while True:
            times = [self._begins_s(lane) for lane in ranks]
            begin = min(times)
            if begin == inf or begin >= min(lane.until_s for lane in ranks):
                break
            lane = ranks[times.index(begin)]
            lane.clock_s = self.begun_s = begin
            lane.receive()
            ended = [len(lane.left) for lane in ranks]
            self._advance(lane)
            freed = [one.clock_s for one, before in zip(ranks, ended, strict=True) if len(one.left) > before]
            if freed:
                self._unblock(min(freed))
        ranks[0].beside = sum(len(lane.running) for lane in ranks[1:])  # routers look at the first one

    def _begins_s(self, lane: Replica) -> float:
        """Time at which a micro-batch can begin its next step [s]; infinite while it has nothing to do."""
        if lane.running:
            return lane.clock_s
        begins_s = max(lane.clock_s, self.begun_s)
        return begins_s if (lane.waiting or self.prompt) and not lane.blocked else max(begins_s, lane.arrival_s)

    def _unblock(self, time_s: float) -> None:
        """Let all micro-batches look at the queue again, from this time on [s]."""
        for lane in self.ranks:
            lane.blocked = False
            if not lane.running:
                lane.clock_s = max(lane.clock_s, time_s)

    def _advance(self, lane: Replica) -> None:
        """Run the next step of a micro-batch, or those of all until one of them has something else to do."""
        lane.prompt = self.prompt
        if not (lane.waiting or lane.prompt) or not self._prefills(lane):
            while lane.running and lane.makes_room():
                pass
            if lane.running:
                free_s, end_s = self._through(lane, lane.pace(1)[0], len(lane.running), 0)
                if not self._jump(lane, end_s):
                    self.free_s = free_s
                    lane.advance(1, end_s - lane.clock_s)
        self.prompt, lane.prompt = lane.prompt, None

    def _prefills(self, lane: Replica) -> bool:
        """Run a step with prompts, if the scheduler admits any to it; whether it did."""
        lane.beside = sum(len(one.running) for one in self.ranks if one is not lane)
        planned = lane.planned()
        if planned is None or not (planned[0] or planned[2]):  # none, or one that was put back
            return False
        (tokens, _, _, sequences, _), end_s = planned, lane.clock_s
        if tokens:
            self.free_s, end_s = self._through(lane, lane.price_s(planned), sequences, tokens)
        lane.take(planned, end_s - lane.clock_s)
        return True

    def _through(self, lane: Replica, seconds: float, sequences: int, tokens: int) -> tuple[list[float], float]:
        """When stages are free after a step that begins now, and when it ends [s].  seconds: that they work on it."""
        time_s, ends = lane.clock_s, []
        for free_s, share in zip(self.free_s, self.prices.stages(sequences, tokens), strict=True):
            time_s = max(time_s, free_s) + share * seconds
            ends.append(time_s)
        return ends, time_s

    def _jump(self, lane: Replica, end_s: float) -> bool:
        """Run several decode steps of every micro-batch, if none has anything else to do; whether it did.

        end_s: of the next step of the micro-batch that begins first [s].
        """
        running, all_blocked = [one for one in self.ranks if one.running], all(one.blocked for one in self.ranks)
        if lane.prompt or (lane.waiting and not all_blocked):
            return False
        paces = [one.pace() for one in running]
        shares = [self.prices.stages(len(one.running), 0) for one in running]
        first = round_s([begin for begin, _, _ in paces], shares)
        if end_s > lane.clock_s + STEADY * first:
            return False  # a longer step is on its way before it
        rise = 0.5 * (round_s([begin + 2.0 * more for begin, more, _ in paces], shares) - first)
        steps = min(most for _, _, most in paces)
        left_s = min(inf if all_blocked else lane.arrival_s, *(one.until_s for one in self.ranks)) - lane.clock_s
        if steps * (first + rise * (steps - 1)) > left_s:
            steps = steps_within(left_s, first, rise, steps) - 1  # what arrives meets the micro-batch that begins next
        while steps > 1 and sum(one.growth(steps) for one in running) > lane.pool.free:
            steps //= 2
        if steps < 2:
            return False
        seconds = steps * (first + rise * (steps - 1))
        for one in running:
            one.advance(steps, seconds)
        self.free_s = [time_s + seconds for time_s in self.free_s]
        return True

    @property
    def next_s(self) -> float:
        """Time before which nothing happens here [s]; infinite where nothing is left to do."""
        return min(map(self._begins_s, self.ranks))


def round_s(seconds: Sequence[float], shares: Sequence[Sequence[float]]) -> float:
    """Time of a round, in which each micro-batch takes one step [s]: the longest of them, or the busiest stage's work.

    seconds: of the step of each.  shares: of it on every stage.
    """
    stages = zip(*([share * one for share in own] for one, own in zip(seconds, shares, strict=True)), strict=True)
    return max(*seconds, *map(sum, stages))
