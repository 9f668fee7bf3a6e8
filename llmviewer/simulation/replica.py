"""One replica of an engine: its scheduler as an event loop that jumps over steps in which nothing changes."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from math import ceil, inf
from typing import TypeAlias

from llmviewer.serving.scheduling import Scheduler
from llmviewer.simulation.decoding import NO_PREFIXES, Decoding
from llmviewer.simulation.ledger import Ledger
from llmviewer.simulation.prices import Prices, Room
from llmviewer.simulation.tiers import Tier

#: A request whose prompt is computed: its number, tokens computed so far, own blocks, prefixes that it reads, and
#: tokens of the last step; before its first step, blocks that tiers of the cache have.
Prompt: TypeAlias = tuple[int, int, int, list[int], int]
#: A step with prompts: their tokens, the pairs that these attend to, the prompts that end in it, decoding sequences,
#: and blocks that they have taken.
Planned: TypeAlias = tuple[int, float, list[Prompt], int, int]
#: A prompt of which nothing has been computed.
NOTHING_FOUND: Prompt = (-1, 0, 0, NO_PREFIXES, 0)


#: More steps than any jump has.
ENDLESS = 1 << 62


class Replica(Decoding):
    """The state of one replica; `run` advances it.

    inbox: requests to come, in order of `ledger.ready_s`.  waiting: requests that no step has begun.  prompt: the one
    that steps have computed in part.  beside: sequences of other micro-batches of the same replica (`pipeline.py`).
    """

    __slots__ = (
        "_finds",
        "_kept",
        "_loaded",
        "_loads_until_s",
        "_most",
        "_order",
        "_scheduler",
        "beside",
        "prompt",
        "waiting",
    )

    def __init__(
        self,
        ledger: Ledger,
        prices: Prices,
        room: Room,
        scheduler: Scheduler,
        prefix_tokens: int,
        tiers: tuple[Tier, ...],
    ) -> None:
        super().__init__(ledger, prices, room, prefix_tokens // room.block_tokens, tiers)
        self._loaded: set[int] = set()
        self._loads_until_s = 0.0
        self.waiting: deque[int] = deque()
        self._most = min(room.max_sequences, room.token_budget)
        self._scheduler = scheduler
        orders = {"shortest-prompt": ledger.input_len, "longest-answer": [-length for length in ledger.output_len]}
        self._order = orders.get(scheduler.policy, [])
        self.prompt: Prompt | None = None
        self._finds = bool(self.pool.width) or any(ledger.held) or any(ledger.found)
        self._kept: dict[int, tuple[int, int]] = {}
        self.beside = 0

    def share(self, other: Replica) -> None:
        """Take queue and cache of another replica, as one more of its micro-batches."""
        self.pool, self.inbox, self.waiting, self.following = other.pool, other.inbox, other.waiting, other.following
        self._loaded, self._lost_s, self.turns = other._loaded, other._lost_s, other.turns
        self._kept = other._kept

    def run(self, until: float = inf) -> None:
        """Run the steps that begin before this time [s]; idle replicas keep their clock."""
        inbox, ready = self.inbox, self._ledger.ready_s
        self.until_s = until
        while self.clock_s < self.until_s:
            if inbox:
                self.receive()
            if self.waiting or self.prompt:
                if (planned := self.planned()) is None:
                    self._decode()
                elif planned[0] or planned[2]:
                    self.take(planned, self.price_s(planned))
                else:
                    self._decode(1)
            elif self.running:
                self._decode()
            elif inbox and ready[inbox[0]] < self.until_s:
                self.clock_s = ready[inbox[0]]
            else:
                return

    def receive(self) -> None:
        """Put the requests that are ready into the queue."""
        inbox, waiting, ready, clock = self.inbox, self.waiting, self._ledger.ready_s, self.clock_s
        while inbox and ready[inbox[0]] <= clock:
            if self._order:
                self._queue(inbox.popleft())
            elif inbox[0] in self._loaded:  # it was the first in the queue before it was loaded
                waiting.appendleft(inbox.popleft())
            else:
                waiting.append(inbox.popleft())

    def _queue(self, request: int) -> None:
        """Put a request into the queue: before those that come later in the order, else where it was preempted."""
        if self._order:
            self.waiting.insert(bisect_right(self.waiting, self._order[request], key=self._order.__getitem__), request)
        else:
            self.waiting.appendleft(request)

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
        self.expect(request)
        return True

    def planned(self) -> Planned | None:
        """The next step, if the scheduler admits prompts to it; None: none before a request ends.

        Without a token: prompts that another replica has computed, which take no step; without any of these either:
        others begin after the next step at the earliest.
        """
        if not (self.waiting or self.prompt) or (self.blocked and self.running):
            return None
        sequences, waiting, pool = len(self.running), self.waiting, self.pool
        places, growing = self._most - self.beside - sequences, 0
        if not self._scheduler.mixes:
            sequences = 0
        elif sequences and (growing := self.growth(1)) > pool.free:
            return None  # sequences are preempted first
        pool.take(growing)  # before a prompt looks for what is stored
        begun, tokens, pairs, ended = self.prompt, *self._fill(self._room.token_budget - sequences, places)
        if tokens:
            return tokens, pairs, ended, sequences, growing
        pool.return_first(growing)
        if ended or (begun and not self.prompt):  # it was put back
            return 0, 0.0, ended, 0, 0
        self.blocked = bool(waiting or begun)  # until a request ends, unless all are being loaded
        return None

    def _fill(self, most: int, places: int) -> tuple[int, float, list[Prompt]]:
        """Prompt tokens of a step, their pairs, and the prompts that end in it.

        most: tokens that it has room for.  places: sequences that it has room for.
        """
        budget, pairs, ended = most, 0.0, list[Prompt]()
        while budget > 0 and places > 0 and (self.prompt or self.waiting):
            prompt = self._chunk(budget, is_first=budget == most)
            if prompt is None:
                break
            _, reached, _, _, count = prompt
            budget -= count
            places -= 1
            pairs += count * (reached - 0.5 * (count - 1))
            if self.prompt is None:
                ended.append(prompt)
        return most - budget, pairs, ended

    def price_s(self, planned: Planned) -> float:
        """Time of a step with prompts [s]."""
        tokens, pairs, ended, sequences, _ = planned
        return self._prices.mixed_s(sequences, self._context, tokens, pairs, len(ended)) if tokens else 0.0

    def take(self, planned: Planned, seconds: float) -> None:
        """Run a step with prompt tokens and decoding sequences, which have taken blocks for it."""
        tokens, _, ended, sequences, growing = planned
        begun, pool = self.clock_s, self.pool
        self.clock_s = clock = begun + seconds
        if tokens:
            stalled = 0 if sequences else len(self.running)
            used = pool.total - pool.free - growing
            self.intervals.extend((begun, clock, 1, sequences, tokens, len(self.waiting), used, stalled))
        if sequences:
            self._step += 1
            self._context += sequences * self._tokens
            if self._ends[0][0] <= self._step:
                self.end()
        for prompt in ended:
            self.begin(*prompt)

    def _chunk(self, budget: int, *, is_first: bool) -> Prompt | None:
        """The next prompt after a step with at most `budget` of its tokens; None if it has to wait.

        Its blocks are taken; unless all of it has then been computed, `prompt` keeps it for the next step.
        is_first: whether it has no other prompt.
        """
        begun, ledger, pool, room = self.prompt, self._ledger, self.pool, self._room
        request = begun[0] if begun else self._head()
        if request < 0:
            return None
        _, computed, blocks, prefixes, loaded = begun or self._found(request)
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
        self.prompt = prompt if count < rest else None
        return prompt

    def _start(self, request: int, computed: int, prefixes: list[int]) -> None:
        """Take a request out of the queue; `computed` tokens of its prompt are there already."""
        self.waiting.popleft()
        ledger = self._ledger
        if ledger.start_s[request] != ledger.start_s[request]:  # NaN: it has not been preempted
            ledger.start_s[request], ledger.cached_tokens[request] = self.clock_s, computed
        self._loaded.discard(request)
        if (kept := self._kept.pop(request, None)) is not None:  # its blocks leave the queue behind those of others
            found = computed // self._room.block_tokens
            self._kept |= {one: (n + found, whole) for one, (n, whole) in self._kept.items() if n < kept[0]}
        if prefixes:
            self.pool.read(prefixes)

    def _found(self, request: int) -> Prompt:
        """A waiting request with the part of its prompt that the cache, or another replica, has computed."""
        if not self._finds:
            return self._found_again(request) if self._kept else NOTHING_FOUND
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
        ready, pool, running, inbox = self._ledger.ready_s, self.pool, self.running, self.inbox
        while running and (clock := self.clock_s) < (limit := self.until_s):
            if pool.free < len(running) and self.makes_room():
                most = 1
                continue
            first, rise, steps = self.pace(most)
            if inbox and not self.blocked and ready[inbox[0]] < limit:
                limit = ready[inbox[0]]
            if clock + steps * (first + rise * (steps - 1)) > limit:
                steps = steps_within(limit - clock, first, rise, steps)
            if pool.free < len(running) * steps:
                steps = self.fitting(steps)
            self.advance(steps, steps * (first + rise * (steps - 1)))
            if (self.waiting and not self.blocked) or limit <= self.clock_s or self._next_is_here:
                break

    def advance(self, steps: int, seconds: float) -> None:
        """Run decode steps that take so long together, for which blocks are free."""
        sequences, pool, clock = len(self.running), self.pool, self.clock_s
        self.intervals.extend(
            (clock, clock + seconds, steps, sequences, 0, len(self.waiting), pool.total - pool.free, 0)
        )
        if grown := self.growth(steps):
            pool.take(grown)
        self.clock_s = clock + seconds
        self._step += steps
        self._context += steps * sequences * self._tokens
        if self._ends[0][0] <= self._step:
            self.end()

    def makes_room(self) -> bool:
        """Preempt the sequence that started last if the next step needs more blocks than are free; whether it did."""
        if self.growth(1) <= self.pool.free:
            return False
        self._preempt()
        return True

    def pace(self, most: int = ENDLESS) -> tuple[float, float, int]:
        """Time of the next decode step, half of what the one after it takes longer [s], and how many go on like this.

        They end with a sequence, or where the price of a step leaves its segment.  most: steps.
        """
        sequences, context = len(self.running), self._context
        added = sequences * self._tokens
        base, slope, high = self._prices.decode_line(sequences, context)
        steps = min(self._ends[0][0] - self._step, most)
        if context + added * steps > high:
            steps = max(min(steps, int((high - context) / added) + 1), 1)
        return base + slope * context, 0.5 * slope * added, steps

    @property
    def _next_is_here(self) -> bool:
        """Whether a user has sent a request as soon as the one before it ended, and no host takes time for it."""
        return not self.blocked and bool(self.inbox) and self._ledger.ready_s[self.inbox[0]] <= self.clock_s

    def _preempt(self) -> None:
        """Free the blocks of the request that started last; it is computed again, before those that wait."""
        ledger = self._ledger
        if self.prompt:
            self._put_back(self.prompt)
            return
        request = next(reversed(self.running))
        steps, self._lost_s[request] = self.release(request), self.clock_s
        if ledger.held[request] and not steps:  # no token since the first, which another replica generated
            self.handed_over.pop()
            self._lost_s[request] = ledger.first_token_s[request]
        ledger.generated[request] += 1 + ceil(steps * self._tokens)
        self._keep(request, ledger.input_len[request] + ledger.generated[request] - 1)
        ledger.held[request] = 0
        ledger.preemptions[request] += 1
        self._queue(request)

    def _keep(self, request: int, computed: int) -> None:
        """Remember the blocks that a request has just given back, the last first: with how many taken none is left."""
        if self._scheduler.keeps and not self._finds and not self._room.sequence_blocks:
            self._kept[request] = self.pool.taken + self.pool.free, computed // self._room.block_tokens

    def _found_again(self, request: int) -> Prompt:
        """A request whose blocks were given back, with the tokens of those that have not been taken since."""
        if request not in self._kept:
            return NOTHING_FOUND
        until, whole = self._kept[request]
        return request, max(min(until - self.pool.taken, whole), 0) * self._room.block_tokens, 0, NO_PREFIXES, 0

    def _put_back(self, prompt: Prompt) -> None:
        """Free the blocks of a prompt that has been computed in part; it begins anew, before those that wait."""
        request, computed, blocks, prefixes, _ = prompt
        self.pool.give_back(blocks, prefixes)
        self._keep(request, computed)
        self._ledger.preemptions[request] += 1
        self.prompt = None
        self._queue(request)

    @property
    def next_s(self) -> float:
        """Time before which nothing happens here [s]; infinite where nothing is left to do."""
        if self.running or self.waiting or self.prompt:
            return self.clock_s
        return max(self.clock_s, self.arrival_s)

    @property
    def arrival_s(self) -> float:
        """Time at which the next request reaches the scheduler [s]; infinite without any."""
        return self._ledger.ready_s[self.inbox[0]] if self.inbox else inf

    def next_send_s(self, delays: Mapping[int, float], other_s: float, step_s: float) -> float:
        """Time before which no user sends a request because one ends here [s].

        delays: request -> least time from its end to those sent after it; other_s: of one that is not among them [s].
        step_s: less than any step takes.
        """
        ledger, clock, step, delay = self._ledger, self.clock_s, self._step, delays.get
        soonest = inf
        for request, sequence in self.running.items():
            if (after_s := (sequence[0] - step) * step_s + delay(request, other_s)) < soonest:
                soonest = after_s
        soonest += clock
        begun = (self.prompt[0],) if self.prompt else ()
        for request in (*begun, *self.waiting, *self.inbox):
            steps = 0 if ledger.generated[request] else ledger.rounds[request]
            ends_s = max(clock, ledger.ready_s[request]) + steps * step_s
            soonest = min(soonest, ends_s + delay(request, other_s))
        return soonest

    @property
    def ranks(self) -> tuple[Replica, ...]:
        """The replicas whose steps are its own: itself."""
        return (self,)


def steps_within(seconds: float, first: float, rise: float, most: int) -> int:
    """Steps until so many seconds have passed, 1 to `most`; n steps take n (first + rise (n - 1)) seconds."""
    steps = ceil(seconds / (first + rise * (seconds / first - 1.0)))
    return max(min(steps, most), 1)
