"""The sequences that decode on one replica: their steps, blocks of the KV cache and ends."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from heapq import heappop, heappush
from math import ceil, inf
from typing import TypeAlias

from llmviewer.simulation.cache import BlockPool, Chains
from llmviewer.simulation.ledger import Ledger
from llmviewer.simulation.prices import Prices, Room
from llmviewer.simulation.tiers import Tier

#: A decoding sequence: the number of the step after its last token, of the one before its second, cached tokens at its
#: start, own blocks then, steps for which these are enough, prefixes that it reads.
Sequence: TypeAlias = tuple[int, int, int, int, int, list[int]]
#: The prefixes of a request that shares no block.
NO_PREFIXES: list[int] = []


class Decoding:
    """Sequences that decode on one replica.

    clock_s: end of the last step.  running: in the order in which they started.  pool: blocks of the KV cache.
    left: requests that ended, with their time [s].  intervals: eight entries each, as in timelines.py.
    late_gaps: times between two tokens [s] of sequences that were preempted between them, and when they end [s].
    handed_over: when sequences begin whose prompt another replica computed, and the time since their first token [s].
    following: requests of which one is sent to `inbox` whenever one ends (closed loop) after which its user sends none
    of `turns`: request -> the next ones, and how long after its end [s].  until_s: time from which no step begins [s];
    pauses: the run ends with a request.  blocked: whether no request can start before one ends.
    """

    __slots__ = (
        *("clock_s", "until_s", "running", "pool", "inbox", "left", "intervals", "late_gaps", "following", "turns"),
        *("handed_over", "pauses"),
        *(
            "blocked",
            "_ledger",
            "_prices",
            "_room",
            "_tokens",
            "_period",
            "_step",
            "_ends",
            "_phases",
            "_context",
            "_begun",
        ),
        *("_ends_sum", "_lost_s"),
    )

    def __init__(self, ledger: Ledger, prices: Prices, room: Room, width: int, tiers: tuple[Tier, ...] = ()) -> None:
        self.clock_s, self.until_s, self.pauses, self.blocked = 0.0, inf, False, False
        self.running: dict[int, Sequence] = {}
        self.pool = (BlockPool if ledger.histories is None else Chains)(room.blocks - ledger.common, width, tiers)
        self.inbox: deque[int] = deque()
        self.following: deque[int] = deque()
        self.turns: dict[int, list[tuple[int, float]]] = {}
        self.left: list[tuple[float, int]] = []
        self.intervals = array("d")
        self.late_gaps: list[tuple[float, float]] = []
        self.handed_over: list[tuple[float, float]] = []
        self._ledger, self._prices, self._room = ledger, prices, room
        self._tokens = prices.tokens_per_round
        self._period = max(int(room.block_tokens / self._tokens), 1)
        self._step, self._ends_sum, self._context = 0, 0, 0.0
        self._ends: list[tuple[int, int, int]] = []  # step, place among those that began, request
        self._begun = 0
        self._phases = [0] * self._period
        self._lost_s: dict[int, float] = {}

    def begin(self, request: int, computed: int, blocks: int, prefixes: list[int], _count: int = 0) -> None:
        """Let a request decode whose prompt has been computed: it has just generated its next token."""
        ledger, clock = self._ledger, self.clock_s
        if ledger.first_token_s[request] != ledger.first_token_s[request]:  # NaN: this is the first token
            ledger.first_token_s[request] = clock
        elif request in self._lost_s:
            self.late_gaps.append((clock - self._lost_s.pop(request), clock))
        rest = ledger.rounds[request]
        if ledger.generated[request]:  # it has been preempted, and has just computed its tokens again
            rest -= ceil((ledger.generated[request] - 1) / self._tokens) + 1
        if rest <= 0:
            self.pool.give_back(blocks, prefixes)
            self.blocked = False
            ledger.finish_s[request] = clock
            self.left.append((clock, request))
            self.close_loop(request)
            return
        if ledger.held[request]:
            self.handed_over.append((clock, clock - ledger.first_token_s[request]))
        start = self._step
        end, spare = start + rest, int((-computed % self._room.block_tokens) / self._tokens)
        self.running[request] = (end, start, computed, blocks, spare, prefixes)
        self._phases[-(start + spare) % self._period] += 1
        self._context += computed
        self._ends_sum += end
        self._begun += 1
        heappush(self._ends, (end, self._begun, request))

    def end(self) -> None:
        """Let the sequences leave that have generated their last token."""
        step, ends, running, clock, finish_s = self._step, self._ends, self.running, self.clock_s, self._ledger.finish_s
        while ends and ends[0][0] <= step:
            end, _, request = heappop(ends)
            if request in running and running[request][0] == end:  # otherwise it was preempted
                self.release(request)
                finish_s[request] = clock
                self.left.append((clock, request))
                if self.pauses or self.following or self.turns:
                    self.close_loop(request)

    def release(self, request: int) -> int:
        """Take a sequence out of the batch and free its blocks; returns the steps that it has run."""
        end, start, context, blocks, spare, prefixes = self.running.pop(request)
        steps, period = self._step - start, self._period
        if steps > spare:
            blocks -= (spare - steps) // period
        if self.pool.names_answers:
            blocks, prefixes = self._named(request, context + steps * self._tokens, blocks, prefixes)
        self.pool.give_back(blocks, prefixes)
        self._phases[-(start + spare) % period] -= 1
        self._ends_sum -= end
        self._context -= context + steps * self._tokens
        self.blocked = False
        return steps

    def _named(self, request: int, computed: float, blocks: int, prefixes: list[int]) -> tuple[int, list[int]]:
        """A request's own blocks and the prefixes that it reads, after the blocks of the computed tokens got names."""
        ledger = self._ledger
        if ledger.prefixes is None:
            return blocks, prefixes
        whole = int(min(computed, ledger.named[request])) // self._room.block_tokens
        named, prefixes = self.pool.name(ledger.prefixes[request], prefixes, whole)
        return blocks - named, prefixes

    def close_loop(self, request: int) -> None:
        """Let the user of a request that has ended send the next one, or let the run pause."""
        if self.pauses:
            self.until_s = -inf
        ledger = self._ledger
        if self.turns:
            sent = self.turns.get(request) or ([(self.following.popleft(), 0.0)] if self.following else [])
            for turn, delay_s in sent:
                ledger.send(turn, self.clock_s + delay_s)
                self.expect(turn)
        elif self.following:
            following = self.following.popleft()
            ledger.send(following, self.clock_s)
            self.expect(following)

    def expect(self, request: int) -> None:
        """Put a request into the inbox, in the order in which they are ready."""
        ready = self._ledger.ready_s
        self.inbox.insert(bisect_right(self.inbox, ready[request], key=ready.__getitem__), request)

    def growth(self, steps: int) -> int:
        """Blocks that the sequences take in the next `steps` steps."""
        period, phases = self._period, self._phases
        high = -self._step % period
        if steps == 1:
            return phases[high]
        whole, rest = divmod(steps, period)
        low = high - rest + 1
        if low >= 0:
            return whole * len(self.running) + sum(phases[low : high + 1])
        return whole * len(self.running) + sum(phases[: high + 1]) + sum(phases[low:])

    def fitting(self, steps: int) -> int:
        """The most of these decode steps for which blocks are free; 0 where there are too few for a single one."""
        free = self.pool.free
        steps = min(steps, (free // len(self.running) + 1) * self._period)
        while steps and self.growth(steps) > free:
            steps -= 1
        return steps

    def remaining_tokens(self) -> float:
        """Tokens that the sequences have still to generate."""
        return (self._ends_sum - len(self.running) * self._step) * self._tokens

    @property
    def used_blocks(self) -> int:
        """Blocks of the cache that requests hold."""
        return self.pool.total - self.pool.free
