"""Replicas that share experts (attention data parallelism): ranks whose steps are steps of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from llmviewer.simulation.prices import Prices
from llmviewer.simulation.replica import Planned, Replica, steps_within


@dataclass(slots=True)
class Together:
    """Replicas of which none runs on its own."""

    ranks: Sequence[Replica]
    prices: Prices

    def next_send_s(self, delays: Mapping[int, float], other_s: float, step_s: float) -> float:
        """Time before which no user sends a request because one ends here [s], as of `Replica`."""
        return min(rank.next_send_s(delays, other_s, step_s) for rank in self.ranks)


@dataclass(slots=True)
class Ranks(Together):
    """Ranks that exchange tokens in every layer, and so step together; `run` advances them.

    Each schedules its own requests.  A step takes the work on the tokens of all, and the longest of what else each rank
    computes: all wait for one with prompts.  A rank without requests computes nothing of its own.
    Source: dummy batches in https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/
    """

    def run(self, until: float = inf) -> None:
        """Run the steps that begin before this time [s]."""
        ranks = self.ranks
        for rank in ranks:
            rank.until_s = until
        while (clock := self.clock_s) < min(rank.until_s for rank in ranks):
            for rank in ranks:
                rank.clock_s = clock
                rank.receive()
            planned = [self._planned(rank) for rank in ranks]
            if any(planned):
                self._step(planned)
            elif any(rank.running for rank in ranks):
                self._decode()
            elif (next_s := min(rank.arrival_s for rank in ranks)) < until:
                ranks[0].clock_s = next_s
            else:
                return

    @property
    def clock_s(self) -> float:
        """End of the last step [s]."""
        return max(rank.clock_s for rank in self.ranks)

    @property
    def next_s(self) -> float:
        """Time before which nothing happens here [s]; infinite where nothing is left to do."""
        return max(min(rank.next_s for rank in self.ranks), self.clock_s)

    def _planned(self, rank: Replica) -> Planned | None:
        """The next step of a rank; prompts that another replica has computed begin before it, without a step."""
        while (planned := rank.planned()) is not None and planned[2] and not planned[0]:
            rank.take(planned, 0.0)
        if planned is None and rank.running:
            while rank.running and rank.makes_room():
                planned = 0, 0.0, [], 0, 0
        return planned

    def _step(self, planned: Sequence[Planned | None]) -> None:
        """Run one step, of prompts on some ranks."""
        pairs = list(zip(self.ranks, planned, strict=True))
        own, sizes = [0.0], []
        for rank, one in pairs:
            tokens = one[0] if one else 0
            sequences = one[3] if tokens and one else len(rank.running)
            sizes.append((sequences, tokens))
            if one and tokens:
                own.append(rank.price_s(one) - self.prices.shared_s(sequences, tokens))
            elif sequences:
                own.append(rank.pace(1)[0] - self.prices.shared_s(sequences, 0))
        seconds = max(own) + self._shared_s(sizes)
        for rank, one in pairs:
            if one and one[0]:
                rank.take(one, seconds)
            elif rank.running:
                rank.advance(1, seconds)

    def _shared_s(self, sizes: Iterable[tuple[int, int]]) -> float:
        """Work on the tokens of all ranks [s].  sizes: sequences and prompt tokens of each."""
        sequences, tokens = zip(*sizes, strict=True)
        return self.prices.shared_s(sum(sequences) / len(self.ranks), sum(tokens) / len(self.ranks))

    def _decode(self) -> None:
        """Run decode steps until one of the ranks has to do something else, or another one is the slowest."""
        running = [rank for rank in self.ranks if rank.running]
        paces = [rank.pace() for rank in running]
        own = [
            (first - self.prices.shared_s(len(rank.running), 0), rise)
            for rank, (first, rise, _) in zip(running, paces, strict=True)
        ]
        alone, rise = max(own)
        first = alone + self._shared_s((len(rank.running), 0) for rank in self.ranks)
        steps = min(
            rank.fitting(most) if rank.pool.free < len(rank.running) * most else most
            for rank, (_, _, most) in zip(running, paces, strict=True)
        )
        arrivals = (rank.arrival_s for rank in self.ranks if not rank.blocked)
        left_s = min(min(arrivals, default=inf), *(rank.until_s for rank in self.ranks)) - self.clock_s
        if steps * (first + rise * (steps - 1)) > left_s:
            steps = steps_within(left_s, first, rise, steps)
        while steps > 1 and max(one + 2.0 * slope * (steps - 1) for one, slope in own) > alone + 2.0 * rise * (
            steps - 1
        ):
            steps //= 2
        for rank in running:
            rank.advance(steps, steps * (first + rise * (steps - 1)))
