"""One replica of an engine: its scheduler as an event loop that jumps over steps in which nothing changes."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from heapq import heappop, heappush
from math import ceil, inf
from typing import TypeAlias

from llmviewer.simulation.cache import BlockPool, Chains
from llmviewer.simulation.ledger import Ledger
from llmviewer.simulation.prices import Prices, Room
from llmviewer.simulation.scheduling import Scheduler
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

    def __init__(self, ledger: Ledger, prices: Prices, room: Room, width: int, tiers: Ordered[Tier] = ()) -> None:
        self.clock_s, self.until_s, self.pauses, self.blocked = 0.0, inf, False, False
        self.running: dict[int, Sequence] = {}
        self.pool = (BlockPool if ledger.histories is None else Chains)(room.blocks - ledger.common, width, tiers)
        self.inbox: deque[int] = deque()
        self.following: deque[int] = deque()
        self.turns: Mapping[int, list[tuple[int, float]]] = {}
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
        ledger, inbox = self._ledger, self.inbox
        if self.turns:
            sent = self.turns.get(request) or ([(self.following.popleft(), 0.0)] if self.following else [])
            for turn, delay_s in sent:
                ledger.send(turn, self.clock_s + delay_s)
                self._await(turn)
        elif self.following:
            following = self.following.popleft()
            ledger.send(following, self.clock_s)
            inbox.append(following)

    def _await(self, request: int) -> None:
        """Put a request into the inbox, in the order in which they are ready."""
        ready = self._ledger.ready_s
        self.inbox.insert(bisect_right(self.inbox, ready[request], key=ready.__getitem__), request)

    def growth(self, step: int, steps: int) -> int:
        """Blocks that the sequences take in `steps` steps from the step with the number `step` on."""
        period, phases = self._period, self._phases
        high = -step % period
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
        while steps and self.growth(self._step, steps) > free:
            steps -= 1
        return steps

    def remaining_tokens(self) -> float:
        """Tokens that the sequences have still to generate."""
        return (self._ends_sum - len(self.running) * self._step) * self._tokens

    @property
    def used_blocks(self) -> int:
        """Blocks of the cache that requests hold."""
        return self.pool.total - self.pool.free


#: A request whose prompt is computed: its number, tokens computed so far, own blocks, prefixes that it reads, and
#: tokens of the last step; before its first step, blocks that tiers of the cache have.
Prompt: TypeAlias = tuple[int, int, int, list[int], int]
#: A prompt of which nothing has been computed.
NOTHING_FOUND: Prompt = (-1, 0, 0, NO_PREFIXES, 0)


#: More steps than any jump has.
ENDLESS = 1 << 62


class Replica(Decoding):
    """The state of one replica; `run` advances it.

    inbox: requests to come, in order of `ledger.ready_s`.  waiting: requests that no step has begun.
    """

    __slots__ = ("_finds", "_loaded", "_loads_until_s", "_most", "_prompt", "_scheduler", "waiting")

    def __init__(
        self,
        ledger: Ledger,
        prices: Prices,
        room: Room,
        scheduler: Scheduler,
        prefix_tokens: int,
        tiers: Ordered[Tier],
    ) -> None:
        super().__init__(ledger, prices, room, prefix_tokens // room.block_tokens, tiers)
        self._loaded: set[int] = set()
        self._loads_until_s = 0.0
        self.waiting: deque[int] = deque()
        self._most = min(room.max_sequences, room.token_budget)
        self._scheduler = scheduler
        self._prompt: Prompt | None = None
        self._finds = bool(self.pool.width) or any(ledger.held) or any(ledger.found)

    def run(self, until: float = inf) -> None:
        """Run the steps that begin before this time [s]; idle replicas keep their clock."""
        inbox, waiting, ready = self.inbox, self.waiting, self._ledger.ready_s
        self.until_s = until
        while (clock := self.clock_s) < self.until_s:
            while inbox and ready[inbox[0]] <= clock:
                if inbox[0] in self._loaded:  # it was the first in the queue before it was loaded
                    waiting.appendleft(inbox.popleft())
                else:
                    waiting.append(inbox.popleft())
            if waiting or self._prompt:
                if (self.blocked and self.running) or not self._prefill():
                    self._decode()
            elif self.running:
                self._decode()
            elif inbox and ready[inbox[0]] < self.until_s:
                self.clock_s = ready[inbox[0]]
            else:
                return

    def _head(self) -> int:
        """The first of the waiting requests that need not be loaded first; -1: none."""
        while self.waiting:
            if not self.pool.tiers or not self._loads(self.waiting[0]):
                return self.waiting[0]
            self.waiting.popleft()
        return -1

    def _loads(self, request: int) -> bool:
        """Begin to load what the tiers have of a request's prompt, which comes back when it is there; False if nothing.

        The engine goes on meanwhile; a replica loads for one request after another.
        """
        ledger, pool = self._ledger, self.pool
        if request in self._loaded or ledger.prefixes is None:
            return False
        most = (ledger.input_len[request] - 1) // self._room.block_tokens
        counts = pool.beyond(ledger.prefixes[request], pool.find(ledger.prefixes[request], most)[0], most)
        if not any(counts):
            return False
        seconds = sum(count * kept.tier.block_s for count, kept in zip(counts, pool.tiers, strict=True))
        self._loaded.add(request)
        begun = max(self.clock_s, self._loads_until_s)
        self._loads_until_s = ledger.ready_s[request] = begun + seconds
        self._await(request)
        return True

    def _prefill(self) -> bool:
        """Run a step with prompt tokens if the scheduler admits any; False if not."""
        sequences, waiting, pool = len(self.running), self.waiting, self.pool
        places, growing = self._most - sequences, 0
        if not self._scheduler.mixes:
            sequences = 0
        elif sequences and (growing := self.growth(self._step, 1)) > pool.free:
            return False  # sequences are preempted first
        pool.take(growing)  # before a prompt looks for what is stored
        begun, tokens, pairs, ended = self._prompt, *self._fill(self._room.token_budget - sequences, places)
        if tokens:
            self._step_with(tokens, pairs, len(ended), sequences, growing)
        else:
            pool.return_first(growing)
            if begun and not self._prompt:  # it was put back: others begin in the next step at the earliest
                self._decode(1)
            elif not ended:  # wait until a request ends, unless all are being loaded
                self.blocked = bool(waiting or begun)
                return False
        for prompt in ended:
            self.begin(*prompt)
        return True

    def _fill(self, most: int, places: int) -> tuple[int, float, list[Prompt]]:
        """Prompt tokens of a step, their pairs, and the prompts that end in it.

        most: tokens that it has room for.  places: sequences that it has room for.
        """
        budget, pairs, ended = most, 0.0, list[Prompt]()
        while budget > 0 and places > 0 and (self._prompt or self.waiting):
            prompt = self._chunk(budget, is_first=budget == most)
            if prompt is None:
                break
            _, reached, _, _, count = prompt
            budget -= count
            places -= 1
            pairs += count * (reached - 0.5 * (count - 1))
            if self._prompt is None:
                ended.append(prompt)
        return most - budget, pairs, ended

    def _step_with(self, tokens: int, pairs: float, ended: int, sequences: int, growing: int) -> None:
        """Run a step with prompt tokens and decoding sequences, which have taken `growing` blocks for it."""
        begun, pool = self.clock_s, self.pool
        self.clock_s = clock = begun + self._prices.mixed_s(sequences, self._context, tokens, pairs, ended)
        stalled = 0 if sequences else len(self.running)
        used = pool.total - pool.free - growing
        self.intervals.extend((begun, clock, 1, sequences, tokens, len(self.waiting), used, stalled))
        if sequences:
            self._step += 1
            self._context += sequences * self._tokens
            if self._ends[0][0] <= self._step:
                self.end()

    def _chunk(self, budget: int, *, is_first: bool) -> Prompt | None:
        """The next prompt after a step with at most `budget` of its tokens; None if it has to wait.

        Its blocks are taken; unless all of it has then been computed, `_prompt` keeps it for the next step.
        is_first: whether it has no other prompt.
        """
        begun, ledger, pool, room = self._prompt, self._ledger, self.pool, self._room
        request = begun[0] if begun else self._head()
        if request < 0:
            return None
        _, computed, blocks, prefixes, loaded = begun or (self._found(request) if self._finds else NOTHING_FOUND)
        rest = ledger.input_len[request] + ledger.generated[request] - computed
        count = rest if rest <= budget or not self._scheduler.chunks else budget
        if count > budget and not is_first:
            return None
        reached, block = computed + count, room.block_tokens
        held = -(-computed // block) if begun else ledger.shared[request] - room.sequence_blocks
        if (prefixes or loaded) and not begun:
            held += computed // block - loaded
        taken = wanted = -(-reached // block) - held
        if not begun:  # the whole prompt has to fit, not its first chunk alone
            wanted = -(-(computed + rest) // block) - held
            if prefixes or self._scheduler.reserved:
                wanted += pool.needed(prefixes) + self._reserved(request)
        if wanted > pool.free:
            if begun:
                self._put_back(begun)
            return None
        if not begun:
            self._start(request, computed, prefixes)
        pool.take(taken)
        blocks += taken
        if pool.width:
            blocks, prefixes = self._named(request, reached, blocks, prefixes)
        prompt = (request, reached, blocks, prefixes, count)
        self._prompt = prompt if count < rest else None
        return prompt

    def _start(self, request: int, computed: int, prefixes: list[int]) -> None:
        """Take a request out of the queue; `computed` tokens of its prompt are there already."""
        self.waiting.popleft()
        ledger = self._ledger
        if ledger.start_s[request] != ledger.start_s[request]:  # NaN: it has not been preempted
            ledger.start_s[request], ledger.cached_tokens[request] = self.clock_s, computed
        self._loaded.discard(request)
        if prefixes:
            self.pool.read(prefixes)

    def _found(self, request: int) -> Prompt:
        """A waiting request with the part of its prompt that the cache, or another replica, has computed."""
        ledger, block = self._ledger, self._room.block_tokens
        held = ledger.held[request] or ledger.found[request]
        if held or not self.pool.width or ledger.prefixes is None:
            return request, held, 0, NO_PREFIXES, 0
        again = ledger.generated[request] if self.pool.names_answers else 0
        most = (ledger.input_len[request] + again - 1) // block
        found, names = self.pool.find(ledger.prefixes[request], most)
        if not self._loaded or request not in self._loaded:
            return request, found * block, 0, names, 0
        counts = self.pool.beyond(ledger.prefixes[request], found, most)
        ledger.loaded.setdefault(request, [0, 0])[: len(counts)] = [count * block for count in counts]
        return request, (found + sum(counts)) * block, 0, names, sum(counts)

    def _reserved(self, request: int) -> int:
        """Blocks that must be free in addition to those of a new request's prompt, for the reserved share of what it
        and the running sequences have still to generate."""
        share, ledger, block = self._scheduler.reserved, self._ledger, self._room.block_tokens
        if not share or not self.running:
            return 0
        own = share * (ledger.output_len[request] - ledger.generated[request])
        return ceil(own / block + share * (self.remaining_tokens() / block + len(self.running)))

    def _decode(self, most: int = ENDLESS) -> None:
        """Run decode steps until a request may start that waits or arrives, none runs, or the run is to end.

        Each turn of the loop is a jump: as many steps as pass before a sequence ends, a request arrives, blocks run
        out, or the price of a step leaves its segment.  most: steps of a jump.
        """
        ready, pool, running, ends, inbox = self._ledger.ready_s, self.pool, self.running, self._ends, self.inbox
        per_token, line, note, growth = self._tokens, self._prices.decode_line, self.intervals.extend, self.growth
        waiting, clock, step, context = len(self.waiting), self.clock_s, self._step, self._context
        while running and clock < (limit := self.until_s):
            sequences = len(running)
            if pool.free < sequences and growth(step, 1) > pool.free:
                self._preempt()
                waiting, context, most = len(self.waiting), self._context, 1
                continue
            added = sequences * per_token
            base, slope, high = line(sequences, context)
            first, rise = base + slope * context, 0.5 * slope * added
            steps = min(ends[0][0] - step, most)
            if context + added * steps > high:
                steps = max(min(steps, int((high - context) / added) + 1), 1)
            if inbox and not self.blocked and ready[inbox[0]] < limit:
                limit = ready[inbox[0]]
            seconds = steps * (first + rise * (steps - 1))
            if clock + seconds > limit:
                steps = steps_within(limit - clock, first, rise, steps)
                seconds = steps * (first + rise * (steps - 1))
            if (grown := growth(step, steps)) > pool.free:
                steps = self.fitting(steps)
                grown = growth(step, steps)
                seconds = steps * (first + rise * (steps - 1))
            note((clock, clock + seconds, steps, sequences, 0, waiting, pool.total - pool.free, 0))
            self.clock_s = clock = clock + seconds
            self._step = step = step + steps
            self._context = context = context + steps * added
            if grown:
                pool.take(grown)
            if ends[0][0] <= step:
                self.end()
                context = self._context
            if (waiting and not self.blocked) or limit <= clock or self._next_turn_is_here:
                break

    @property
    def _next_turn_is_here(self) -> bool:
        """Whether a user has sent a turn as soon as the one before it ended."""
        return (
            bool(self.turns)
            and not self.blocked
            and bool(self.inbox)
            and (self._ledger.ready_s[self.inbox[0]] <= self.clock_s)
        )

    def _preempt(self) -> None:
        """Free the blocks of the request that started last; it is computed again, before those that wait."""
        ledger = self._ledger
        if self._prompt:
            self._put_back(self._prompt)
            return
        request = next(reversed(self.running))
        steps, self._lost_s[request] = self.release(request), self.clock_s
        if ledger.held[request] and not steps:  # no token since the first, which another replica generated
            self.handed_over.pop()
            self._lost_s[request] = ledger.first_token_s[request]
        ledger.generated[request] += 1 + ceil(steps * self._tokens)
        ledger.held[request] = 0
        ledger.preemptions[request] += 1
        self.waiting.appendleft(request)

    def _put_back(self, prompt: Prompt) -> None:
        """Free the blocks of a prompt that has been computed in part; it begins anew, before those that wait."""
        request, _, blocks, prefixes, _ = prompt
        self.pool.give_back(blocks, prefixes)
        self._ledger.preemptions[request] += 1
        self._prompt = None
        self.waiting.appendleft(request)

    @property
    def next_s(self) -> float:
        """Time before which nothing happens here [s]; infinite where nothing is left to do."""
        if self.running or self.waiting or self._prompt:
            return self.clock_s
        return max(self.clock_s, self._ledger.ready_s[self.inbox[0]]) if self.inbox else inf


def steps_within(seconds: float, first: float, rise: float, most: int) -> int:
    """Steps until so many seconds have passed, 1 to `most`; n steps take n (first + rise (n - 1)) seconds."""
    steps = ceil(seconds / (first + rise * (seconds / first - 1.0)))
    return max(min(steps, most), 1)
