"""One replica of an engine: its scheduler as an event loop that jumps over steps in which nothing changes.

All decoding sequences advance together, one step at a time.  So a counter of steps, and the step at which each sequence
ends, are all that a jump needs: no sequence is touched between its first token and its last.  Blocks of the cache grow
in the same way: `phases[j]` sequences need a new one in every step whose number is -j modulo the steps per block.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import ceil, inf
from typing import NamedTuple, Protocol

from llmviewer.simulation.cache import BlockPool
from llmviewer.simulation.ledger import Ledger
from llmviewer.simulation.scheduling import Scheduler

#: Steps of a jump beyond which its time is taken at three contexts instead of two.
LONG_JUMP = 64


class Prices(Protocol):
    """Times of forward passes [s]; `step_times.py` has them for a configuration.

    tokens_per_round: tokens that a sequence gains in a decode step, more than one with speculation.
    """

    tokens_per_round: float

    def decode_s(self, sequences: int, context: float) -> float:
        """One decode step of `sequences` sequences over `context` cached tokens in total."""

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


class Sequence(NamedTuple):
    """A decoding sequence.  end, start: numbers of the steps after its last token and before its second.

    context: cached tokens at its start.  blocks: its own blocks at its start, of which `spare` steps need no new one.
    prefixes: that it reads.
    """

    end: int
    start: int
    context: int
    blocks: int
    spare: int
    prefixes: list[int]


class Prompt(NamedTuple):
    """A request whose prompt has been computed in part.  blocks: its own.  prefixes: that it reads."""

    request: int
    computed: int
    blocks: int
    prefixes: list[int]


class Replica:
    """The state of one replica; `run` advances it.

    clock_s: end of its last step.  inbox: requests to come, in order of `ledger.ready_s`.  left: requests that ended,
    with their time [s].  intervals: entries of `Timeline`.  late_gaps: times between two tokens [s] of sequences that
    were preempted between them.  following: requests of which one is sent whenever one ends (closed loop).
    """

    __slots__ = (
        *("clock_s", "inbox", "waiting", "running", "pool", "left", "intervals", "late_gaps", "following"),
        *("_ledger", "_prices", "_scheduler", "_room", "_most", "_tokens", "_period", "_step", "_ends", "_phases"),
        *("_context", "_ends_sum", "_prompt", "_blocked", "_lost_s"),
    )

    def __init__(self, ledger: Ledger, prices: Prices, room: Room, scheduler: Scheduler, prefix_tokens: int = 0) -> None:
        self.clock_s = 0.0
        self.inbox: deque[int] = deque()
        self.waiting: deque[int] = deque()
        self.running: dict[int, Sequence] = {}
        self.pool = BlockPool(room.blocks, prefix_tokens // room.block_tokens)
        self.left: list[tuple[float, int]] = []
        self.intervals: list[tuple[float, float, int, int, int, int, int]] = []
        self.late_gaps: list[float] = []
        self.following: deque[int] = deque()
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
        while self.clock_s < until:
            while inbox and ready[inbox[0]] <= self.clock_s:
                waiting.append(inbox.popleft())
            if waiting or self._prompt:
                if self._blocked or not self._prefill():
                    self._decode(until)
            elif self.running:
                self._decode(until)
            elif inbox and ready[inbox[0]] < until:
                self.clock_s = ready[inbox[0]]
            else:
                return

    def _prefill(self) -> bool:
        """Run a step with prompt tokens if the scheduler admits any; False if not."""
        sequences = len(self.running) if self._scheduler.mixes else 0
        growing = self._phases[-self._step % self._period] if sequences else 0
        if growing > self.pool.free:
            return False  # sequences are preempted first
        tokens, pairs, ended = self._admitted(self._room.token_budget - sequences, growing)
        if not tokens and not ended:
            return False
        if tokens:
            begun = self.clock_s
            self.clock_s = begun + self._prices.mixed_s(sequences, self._context, tokens, pairs, len(ended))
            self.intervals.append((begun, self.clock_s, 1, sequences, tokens, len(self.waiting), self.used_blocks))
            if sequences:
                self._advance(1, growing)
        for prompt in ended:
            self._begin(prompt)
        return True

    def _admitted(self, budget: int, growing: int) -> tuple[int, float, list[Prompt]]:
        """Prompt tokens of the next step, the pairs they attend to, and the prompts that end in it.

        budget: tokens that the step has room for.  growing: blocks that decoding sequences need in it.
        """
        tokens, pairs = 0, 0.0
        ended: list[Prompt] = []
        waiting, ledger = self.waiting, self._ledger
        places = self._most - len(self.running)
        while budget > 0 and places > 0 and (self._prompt or waiting):
            begun, self._prompt = self._prompt, None
            known = begun or self._found(waiting[0])
            target = ledger.input_len[known.request] + ledger.generated[known.request]
            chunk = target - known.computed
            if chunk > budget:
                if tokens and not self._scheduler.chunks:
                    break
                chunk = budget if self._scheduler.chunks else chunk
            grown = self._given_blocks(known, chunk, growing, begun is None)
            if grown is None:
                self._blocked = not tokens and not ended
                break
            budget -= chunk
            tokens += chunk
            pairs += chunk * (known.computed + 0.5 * (chunk + 1))
            places -= 1
            if grown.computed == target:
                ended.append(grown)
            else:
                self._prompt = grown
        return tokens, pairs, ended

    def _found(self, request: int) -> Prompt:
        """A waiting request with the part of its prompt that the cache, or another replica, has computed."""
        ledger, width = self._ledger, self.pool.width
        if ledger.held[request]:
            return Prompt(request, ledger.held[request] + ledger.generated[request], 0, [])
        if not width or ledger.prefixes is None:
            return Prompt(request, 0, 0, [])
        names, tokens = ledger.prefixes[request], width * self._room.block_tokens
        found = self.pool.matched(names, (ledger.input_len[request] - 1) // tokens)
        return Prompt(request, found * tokens, 0, list(names[:found]))

    def _given_blocks(self, prompt: Prompt, chunk: int, growing: int, is_new: bool) -> Prompt | None:
        """The prompt with blocks for a chunk of it; None if too few are free: it waits, in front of the queue."""
        pool, room, ledger = self.pool, self._room, self._ledger
        request, computed, blocks, prefixes = prompt
        computed += chunk
        taken = -(-computed // room.block_tokens) + room.sequence_blocks - len(prefixes) * pool.width - blocks
        wanted = taken + growing + pool.needed(prefixes) * is_new
        if is_new and self._scheduler.reserved:
            rest = ledger.input_len[request] + ledger.generated[request] - computed
            rest += self._scheduler.reserved * (ledger.output_len[request] - ledger.generated[request])
            wanted += ceil(rest / room.block_tokens) + self._promised()
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
            pool.read(prefixes)
        pool.take(taken)
        blocks += taken
        if pool.width and ledger.prefixes is not None:
            stored = min(computed, ledger.input_len[request]) // (pool.width * room.block_tokens)
            named = pool.store(ledger.prefixes[request][len(prefixes) : stored])
            prefixes, blocks = prefixes + named, blocks - pool.width * len(named)
        return Prompt(request, computed, blocks, prefixes)

    def _promised(self) -> int:
        """Blocks that the scheduler keeps free for tokens that running sequences have still to generate."""
        sequences = len(self.running)
        tokens = (self._ends_sum - sequences * self._step) * self._tokens
        return ceil(self._scheduler.reserved * (tokens / self._room.block_tokens + sequences))

    def _begin(self, prompt: Prompt) -> None:
        """Let a sequence decode whose prompt has been computed; it generates its next token at the end of that step."""
        request, ledger, clock = prompt.request, self._ledger, self.clock_s
        if ledger.first_token_s[request] != ledger.first_token_s[request]:  # NaN: this is the first token
            ledger.first_token_s[request] = clock
        elif request in self._lost_s:
            self.late_gaps.append(clock - self._lost_s.pop(request))
        rest = ledger.rounds[request] - ceil(ledger.generated[request] / self._tokens)
        if rest <= 0:
            self.pool.give_back(prompt.blocks, prompt.prefixes)
            self._leave(request)
            return
        start, block = self._step, self._room.block_tokens
        spare = int((-prompt.computed % block) / self._tokens)
        one = Sequence(start + rest, start, prompt.computed, prompt.blocks, spare, prompt.prefixes)
        self.running[request] = one
        self._phases[-(start + spare) % self._period] += 1
        self._context += prompt.computed
        self._ends_sum += one.end
        heappush(self._ends, (one.end, request))

    def _decode(self, until: float) -> None:
        """Run decode steps until a sequence ends, a request arrives that might start, or blocks run out."""
        sequences, step, ledger = len(self.running), self._step, self._ledger
        steps = self._ends[0][0] - step
        if steps > 1:
            arrival = ledger.ready_s[self.inbox[0]] if self.inbox and not self._blocked else inf
            limit = (arrival if arrival < until else until) - self.clock_s
            if limit < inf:
                steps = self._steps_until(limit, steps)
        grown = self._growth(step, steps)
        while grown > self.pool.free:
            if steps > 1:
                steps = max(min(steps - 1, self.pool.free // sequences * self._period), 1)
            else:
                self._preempt()
                sequences = len(self.running)
            grown = self._growth(step, steps)
        if not sequences:
            return
        begun = self.clock_s
        self.clock_s = begun + self._run_s(steps)
        waiting = len(self.waiting)
        self.intervals.append((begun, self.clock_s, steps, sequences, 0, waiting, self.used_blocks))
        self._advance(steps, grown)

    def _steps_until(self, limit: float, most: int) -> int:
        """Decode steps after which `limit` seconds have passed, at least one and at most `most`."""
        sequences, price = len(self.running), self._prices.decode_s
        first = price(sequences, self._context)
        steps = limit / first
        if steps >= most:
            steps = most
        half = price(sequences, self._context + 0.5 * steps * sequences * self._tokens)
        steps = ceil(limit / half)
        return most if steps > most else steps if steps > 1 else 1

    def _run_s(self, steps: int) -> float:
        """Time of decode steps of the running sequences [s]; Simpson's rule where contexts grow much."""
        sequences, context, price = len(self.running), self._context, self._prices.decode_s
        first = price(sequences, context)
        if steps == 1:
            return first
        added = (steps - 1) * sequences * self._tokens
        last = price(sequences, context + added)
        if steps <= LONG_JUMP:
            return steps * 0.5 * (first + last)
        return steps * (first + 4.0 * price(sequences, context + 0.5 * added) + last) / 6.0

    def _growth(self, step: int, steps: int) -> int:
        """Blocks that running sequences take in these steps."""
        period, phases = self._period, self._phases
        whole, rest = divmod(steps, period)
        high = -step % period
        low = high - rest + 1
        if low >= 0:
            return whole * len(self.running) + sum(phases[low : high + 1])
        return whole * len(self.running) + sum(phases[: high + 1]) + sum(phases[low + period :])

    def _advance(self, steps: int, grown: int) -> None:
        """Count steps of the running sequences, and let those leave that have ended."""
        if grown:
            self.pool.take(grown)
        self._context += steps * len(self.running) * self._tokens
        self._step += steps
        step, ends, running = self._step, self._ends, self.running
        while ends and ends[0][0] <= step:
            end, request = heappop(ends)
            one = running.get(request)
            if one is not None and one.end == end:
                self._release(request, one)
                self._leave(request)

    def _release(self, request: int, one: Sequence) -> int:
        """Take a sequence out of the batch and free its blocks; returns the steps it has run."""
        del self.running[request]
        steps, period = self._step - one.start, self._period
        blocks = one.blocks + max(-(-(steps - one.spare) // period), 0)
        self.pool.give_back(blocks, one.prefixes)
        self._phases[-(one.start + one.spare) % period] -= 1
        self._ends_sum -= one.end
        self._context -= one.context + steps * self._tokens
        self._blocked = False
        return steps

    def _leave(self, request: int) -> None:
        """Note that a request has ended; in a closed loop its user sends the next one."""
        self._ledger.finish_s[request] = self.clock_s
        self.left.append((self.clock_s, request))
        self._blocked = False
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
    def used_blocks(self) -> int:
        """Blocks of the cache that requests hold."""
        return self.pool.total - self.pool.free
