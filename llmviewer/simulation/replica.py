"""One replica of an engine: its scheduler as an event loop that jumps over steps in which nothing changes.

All decoding sequences advance together, one step at a time.  So a counter of steps, and the step at which each sequence
ends, are all that a jump needs: no sequence is touched between its first token and its last.  Blocks of the cache grow
in the same way: `phases[j]` sequences need a new one in every step whose number is -j modulo the steps per block.
"""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heappop, heappush
from math import ceil, inf
from typing import Protocol, TypeAlias

from llmviewer.simulation.cache import BlockPool
from llmviewer.simulation.ledger import Ledger
from llmviewer.simulation.scheduling import Scheduler

#: The prefixes of a request that shares no block.
NO_PREFIXES: list[int] = []
#: More steps than any jump has.
ENDLESS = 1 << 62


class Prices(Protocol):
    """Times of forward passes [s]; `step_times.py` has them for a configuration.

    tokens_per_round: tokens that a sequence gains in a decode step, more than one with speculation.
    """

    tokens_per_round: float

    def decode_line(self, sequences: int, context: float) -> tuple[float, float, float]:
        """Time of a decode step over `context` cached tokens in total as a line: its value at 0 [s], its slope
        [s/token], and the context up to which it holds."""

    def mixed_s(self, sequences: int, context: float, tokens: int, pairs: float, prompts: int) -> float:
        """A decode step with `tokens` prompt tokens that attend to `pairs` pairs; `prompts` prompts end in it."""


class Room(Protocol):
    """KV cache and limits of a replica; `cache_capacity.py` has them for a configuration.

    blocks of block_tokens tokens; sequence_blocks: for the state of a sequence besides its tokens.  max_sequences: that
    run at once.  token_budget: tokens of a step.
    """

    blocks: int
    block_tokens: int
    sequence_blocks: int
    max_sequences: int
    token_budget: int


#: A decoding sequence: the number of the step after its last token, of the one before its second, cached tokens at its
#: start, own blocks then, steps for which these are enough, prefixes that it reads.
Sequence: TypeAlias = tuple[int, int, int, int, int, list[int]]
#: A request whose prompt has been computed in part: its number, computed tokens, own blocks, prefixes that it reads.
Prompt: TypeAlias = tuple[int, int, int, list[int]]


class Replica:
    """The state of one replica; `run` advances it.

    clock_s: end of its last step.  inbox: requests to come, in order of `ledger.ready_s`.  left: requests that ended,
    with their time [s].  intervals: seven entries of `Timeline` each.  late_gaps: times between two tokens [s] of
    sequences that were preempted between them.  following: requests of which one is sent whenever one ends (closed
    loop).  pauses: whether `run` returns when a request has ended.
    """

    __slots__ = (
        *("clock_s", "inbox", "waiting", "running", "pool", "left", "intervals", "late_gaps", "following", "pauses"),
        *("_ledger", "_prices", "_scheduler", "_room", "_most", "_tokens", "_period", "_step", "_ends", "_phases"),
        *("_context", "_ends_sum", "_prompt", "_blocked", "_lost_s", "_until"),
    )

    def __init__(
        self, ledger: Ledger, prices: Prices, room: Room, scheduler: Scheduler, prefix_tokens: int = 0
    ) -> None:
        self.clock_s = 0.0
        self.inbox: deque[int] = deque()
        self.waiting: deque[int] = deque()
        self.running: dict[int, Sequence] = {}
        self.pool = BlockPool(room.blocks, prefix_tokens // room.block_tokens)
        self.left: list[tuple[float, int]] = []
        self.intervals = array("d")
        self.late_gaps: list[float] = []
        self.following: deque[int] = deque()
        self.pauses, self._until = False, inf
        self._ledger, self._prices, self._scheduler, self._room = ledger, prices, scheduler, room
        self._most = min(room.max_sequences, room.token_budget)
        self._tokens = prices.tokens_per_round
        self._period = max(int(room.block_tokens / self._tokens), 1)
        self._step, self._ends_sum, self._context = 0, 0, 0.0
        self._ends: list[tuple[int, int]] = []
        self._phases = [0] * self._period
        self._prompt: Prompt | None = None
        self._blocked = False
        self._lost_s: dict[int, float] = {}

    def run(self, until: float = inf) -> None:
        """Run the steps that begin before this time [s]; idle replicas keep their clock."""
        inbox, waiting, ready = self.inbox, self.waiting, self._ledger.ready_s
        self._until = until
        while self.clock_s < self._until:
            while inbox and ready[inbox[0]] <= self.clock_s:
                waiting.append(inbox.popleft())
            if waiting or self._prompt:
                if (self._blocked and self.running) or not self._prefill():
                    self._decode()
            elif self.running:
                self._decode()
            elif inbox and ready[inbox[0]] < self._until:
                self.clock_s = ready[inbox[0]]
            else:
                return

    def _prefill(self) -> bool:
        """Run a step with prompt tokens if the scheduler admits any; False if not."""
        sequences = len(self.running)
        places, growing = self._most - sequences, 0
        if not self._scheduler.mixes:
            sequences = 0
        elif sequences and (growing := self._phases[-self._step % self._period]) > self.pool.free:
            return False  # sequences are preempted first
        tokens, pairs, ended = self._admitted(places, self._room.token_budget - sequences, growing)
        if not tokens and not ended:
            self._blocked = True  # until a request ends
            return False
        if tokens:
            begun, pool = self.clock_s, self.pool
            self.clock_s = clock = begun + self._prices.mixed_s(sequences, self._context, tokens, pairs, len(ended))
            self.intervals.extend((begun, clock, 1, sequences, tokens, len(self.waiting), pool.total - pool.free))
            if sequences:
                if growing:
                    pool.take(growing)
                self._context += sequences * self._tokens
                self._step = step = self._step + 1
                if self._ends[0][0] <= step:
                    self._end_sequences()
        for prompt in ended:
            self._begin(*prompt)
        return True

    def _admitted(self, places: int, budget: int, growing: int) -> tuple[int, float, list[Prompt]]:
        """Prompt tokens of the next step, the pairs they attend to, and the prompts that end in it.

        places: sequences that may still start.  budget: tokens that the step has room for.  growing: blocks that
        decoding sequences need in it.
        """
        tokens, pairs = 0, 0.0
        ended: list[Prompt] = []
        waiting, ledger, is_new = self.waiting, self._ledger, not self._prompt
        while budget > 0 and places > 0 and (self._prompt or waiting):
            request, computed, blocks, prefixes = self._prompt or self._found(waiting[0])
            self._prompt = None
            chunk = target = ledger.input_len[request] + ledger.generated[request]
            if computed:
                chunk -= computed
            if chunk > budget:
                if tokens and not self._scheduler.chunks:
                    break
                chunk = budget if self._scheduler.chunks else chunk
            given = self._given_blocks((request, computed, blocks, prefixes), chunk, growing, is_new=is_new)
            if given is None:
                break
            is_new = True
            places -= 1
            budget -= chunk
            tokens += chunk
            pairs += chunk * (computed + 0.5 * (chunk + 1))
            if computed + chunk == target:
                ended.append(given)
            else:
                self._prompt = given
        return tokens, pairs, ended

    def _found(self, request: int) -> Prompt:
        """A waiting request with the part of its prompt that the cache, or another replica, has computed."""
        held, width = self._ledger.held[request], self.pool.width
        if held or not width or self._ledger.prefixes is None:
            return request, held, 0, NO_PREFIXES
        names, tokens = self._ledger.prefixes[request], width * self._room.block_tokens
        found = self.pool.matched(names, (self._ledger.input_len[request] - 1) // tokens)
        return request, found * tokens, 0, list(names[:found])

    def _given_blocks(self, prompt: Prompt, chunk: int, growing: int, *, is_new: bool) -> Prompt | None:
        """The prompt with blocks for a chunk of it; None if too few are free: it waits, in front of the queue."""
        pool, room, ledger = self.pool, self._room, self._ledger
        request, computed, blocks, prefixes = prompt
        computed += chunk
        taken = -(-computed // room.block_tokens) + room.sequence_blocks - blocks
        if prefixes:
            taken -= len(prefixes) * pool.width
        wanted = taken + growing
        if is_new and prefixes:
            wanted += pool.needed(prefixes)
        if is_new and self._scheduler.reserved and self.running:
            wanted += self._reserved(request, computed)
        if wanted > pool.free:
            if not is_new:
                pool.give_back(blocks, prefixes)
                self.waiting.appendleft(request)
            return None
        if is_new:
            self.waiting.popleft()
            if not (ledger.preemptions[request] or ledger.held[request]):
                ledger.start_s[request] = self.clock_s
                ledger.cached_tokens[request] = computed - chunk
            if prefixes:
                pool.read(prefixes)
        pool.take(taken)
        blocks += taken
        if pool.width and ledger.prefixes is not None:
            stored = min(computed, ledger.input_len[request]) // (pool.width * room.block_tokens)
            named = pool.store(ledger.prefixes[request][len(prefixes) : stored])
            prefixes, blocks = prefixes + named, blocks - pool.width * len(named)
        return request, computed, blocks, prefixes

    def _reserved(self, request: int, computed: int) -> int:
        """Blocks that must be free in addition to those of a new request's first chunk: for the rest of its prompt, and
        for the reserved share of what it and the running sequences have still to generate."""
        ledger, share, block = self._ledger, self._scheduler.reserved, self._room.block_tokens
        rest: float = ledger.input_len[request] + ledger.generated[request] - computed
        rest += share * (ledger.output_len[request] - ledger.generated[request])
        sequences = len(self.running)
        promised = (self._ends_sum - sequences * self._step) * self._tokens
        return ceil(rest / block + share * (promised / block + sequences))

    def _begin(self, request: int, computed: int, blocks: int, prefixes: list[int]) -> None:
        """Let a sequence decode whose prompt has been computed; it generates its next token at the end of that step."""
        ledger, clock = self._ledger, self.clock_s
        if ledger.first_token_s[request] != ledger.first_token_s[request]:  # NaN: this is the first token
            ledger.first_token_s[request] = clock
        elif request in self._lost_s:
            self.late_gaps.append(clock - self._lost_s.pop(request))
        rest = ledger.rounds[request]
        if ledger.generated[request]:
            rest -= ceil(ledger.generated[request] / self._tokens)
        if rest <= 0:
            self.pool.give_back(blocks, prefixes)
            self._leave(request)
            return
        start = self._step
        end, spare = start + rest, int((-computed % self._room.block_tokens) / self._tokens)
        self.running[request] = (end, start, computed, blocks, spare, prefixes)
        self._phases[-(start + spare) % self._period] += 1
        self._context += computed
        self._ends_sum += end
        heappush(self._ends, (end, request))

    def _decode(self) -> None:
        """Run decode steps until a request may start that waits or arrives, none runs, or the run is to end.

        Each turn of the loop is a jump: as many steps as pass before a sequence ends, a request arrives, blocks run
        out, or the price of a step leaves its segment.
        """
        ledger, pool, running, ends, inbox = self._ledger, self.pool, self.running, self._ends, self.inbox
        per_token, line, note = self._tokens, self._prices.decode_line, self.intervals.extend
        waiting, clock, most = len(self.waiting), self.clock_s, ENDLESS
        while running and clock < (until := self._until):
            sequences, step, context = len(running), self._step, self._context
            growing = sequences * per_token
            base, slope, high = line(sequences, context)
            first, added = base + slope * context, slope * growing
            steps = min(ends[0][0] - step, most)
            if context + growing * steps > high:
                steps = max(min(steps, int((high - context) / growing) + 1), 1)
            limit = until
            if inbox and not self._blocked and (arrival := ledger.ready_s[inbox[0]]) < until:
                limit = arrival
            seconds = steps * (first + 0.5 * added * (steps - 1))
            if clock + seconds > limit and steps > 1:
                left = limit - clock
                steps = max(min(ceil(left / (first + 0.5 * added * (left / first - 1.0))), steps), 1)
                seconds = steps * (first + 0.5 * added * (steps - 1))
            grown = self._growth(step, steps)
            if grown > pool.free:
                steps, grown = self._fitting(steps)
                if not steps:
                    waiting, most = len(self.waiting), 1
                    continue
                seconds = steps * (first + 0.5 * added * (steps - 1))
            note((clock, clock + seconds, steps, sequences, 0, waiting, pool.total - pool.free))
            self.clock_s = clock = clock + seconds
            self._context = context + steps * growing
            self._step = step = step + steps
            if grown:
                pool.take(grown)
            if ends[0][0] <= step:
                self._end_sequences()
            if (waiting and not self._blocked) or limit <= clock:
                break

    def _fitting(self, steps: int) -> tuple[int, int]:
        """Decode steps, at most `steps`, for which blocks are free, and these blocks; where there are none for a single
        step, the request that started last is preempted until there are, and no step is returned."""
        free, step = self.pool.free, self._step
        steps = min(steps, (free // len(self.running) + 1) * self._period)
        while steps > 1 and self._growth(step, steps) > free:
            steps -= 1
        if (grown := self._growth(step, steps)) <= free:
            return steps, grown
        while self._growth(step, 1) > self.pool.free:
            self._preempt()
        return 0, 0

    def _growth(self, step: int, steps: int) -> int:
        """Blocks that running sequences take in these steps."""
        period, phases = self._period, self._phases
        whole, rest = divmod(steps, period)
        high = -step % period
        low = high - rest + 1
        if low >= 0:
            return whole * len(self.running) + sum(phases[low : high + 1])
        return whole * len(self.running) + sum(phases[: high + 1]) + sum(phases[low + period :])

    def _end_sequences(self) -> None:
        """Let the sequences leave that have generated their last token."""
        step, ends, running = self._step, self._ends, self.running
        while ends and ends[0][0] <= step:
            end, request = heappop(ends)
            one = running.get(request)
            if one is not None and one[0] == end:  # otherwise it was preempted
                self._release(request, one)
                self._leave(request)

    def _release(self, request: int, one: Sequence) -> int:
        """Take a sequence out of the batch and free its blocks; returns the steps it has run."""
        del self.running[request]
        end, start, context, blocks, spare, prefixes = one
        steps, period = self._step - start, self._period
        if steps > spare:
            blocks -= (spare - steps) // period
        self.pool.give_back(blocks, prefixes)
        self._phases[-(start + spare) % period] -= 1
        self._ends_sum -= end
        self._context -= context + steps * self._tokens
        self._blocked = False
        return steps

    def _leave(self, request: int) -> None:
        """Note that a request has ended; in a closed loop its user sends the next one."""
        self._ledger.finish_s[request] = self.clock_s
        self.left.append((self.clock_s, request))
        self._blocked = False
        if self.pauses:
            self._until = -inf
        if self.following:
            following = self.following.popleft()
            self._ledger.send(following, self.clock_s)
            self.inbox.append(following)

    def _preempt(self) -> None:
        """Free the blocks of the request that started last; it is computed again, before those that wait."""
        ledger = self._ledger
        if self._prompt:
            request, _, blocks, prefixes = self._prompt
            self.pool.give_back(blocks, prefixes)
            self._prompt = None
        else:
            request = next(reversed(self.running))
            self._lost_s[request] = self.clock_s
            steps = self._release(request, self.running[request])
            ledger.generated[request] += ceil(steps * self._tokens)
            ledger.held[request] = 0
        ledger.preemptions[request] += 1
        self.waiting.appendleft(request)

    @property
    def next_s(self) -> float:
        """Time before which nothing happens here [s]; infinite where nothing is left to do."""
        if self.running or self.waiting or self._prompt:
            return self.clock_s
        return max(self.clock_s, self._ledger.ready_s[self.inbox[0]]) if self.inbox else inf

    @property
    def used_blocks(self) -> int:
        """Blocks of the cache that requests hold."""
        return self.pool.total - self.pool.free
