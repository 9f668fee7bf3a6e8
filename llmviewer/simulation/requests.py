"""Requests that arrive at a server, and what happened to each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen

#: Differences of times below this are of their rounding [s].
ROUNDING_S = 1e-9
Whole = npt.NDArray[np.int64]


@frozen(eq=False)
class Histories:
    """The beginnings of prompts: a system prompt, then earlier prompts and answers of their session; shape (requests,).

    session: its number, from 0.  turn: of the prompt in it, from 1.  system: number of the system prompt, below -1, so
    that it is none of a session.  system_tokens: its tokens.
    """

    session: Whole
    turn: Whole
    system: Whole
    system_tokens: Whole

    def select(self, chosen: npt.NDArray[np.intp]) -> Histories:
        """The beginnings of the requests at these indices."""
        return Histories(**{name: getattr(self, name)[chosen] for name in self.__dataclass_fields__})


@frozen(eq=False)
class Requests:
    """Requests in order of arrival; arrays have one entry per request.

    arrival_s: time of arrival [s], ascending; under a closed loop only the first `concurrency` arrivals count, and each
    other request is sent when one ends.  input_len, output_len: tokens.  prefixes: ids of the blocks of each prompt, in
    order, equal where prompts begin equally; None: unknown.  prefix_tokens: tokens of such a block.
    after: request -> the one at whose end its user sends it, so many seconds later.  Beside `concurrency`, each of so
    many users goes on with the first request of a chain that nobody has begun when the last one of his own ends.
    histories: what prompts begin with where these are turns of sessions; `prefixes` are then the paths of `Chains`.
    chance: random numbers from 0 to 1, for what differs between requests of equal lengths; None: nothing does.
    """

    arrival_s: Array
    input_len: Whole
    output_len: Whole
    prefixes: tuple[tuple[int, ...], ...] | None = None
    prefix_tokens: int = 0
    after: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    concurrency: int = 0
    histories: Histories | None = None
    chance: Array | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def repeated(self) -> Whole:
        """Tokens of each prompt that prompts and answers before it had, shape (requests,); 0 but for turns."""
        none, past = np.zeros_like(self.input_len), self.histories
        if past is None:
            return none
        context = np.append(0, self.input_len + self.output_len - 1)[:-1]
        return np.where(past.turn > 1, context, past.system_tokens)

    def in_blocks(self, tokens: int) -> Requests:
        """The requests with an id for each block of so many tokens, where those of the trace are smaller.

        A block is found where all of the trace's blocks that it touches are.  Of turns of sessions, with their paths.
        """
        if (past := self.histories) is not None:
            whole = (past.system_tokens // tokens).tolist()
            paths = zip(past.system.tolist(), whole, past.session.tolist(), strict=True)
            return replace(self, prefixes=tuple(paths), prefix_tokens=tokens)
        own = self.prefix_tokens
        if not self.prefixes or not own or own >= tokens:
            return self
        names: dict[tuple[int, ...], int] = {}

        def regrouped(ids: tuple[int, ...]) -> tuple[int, ...]:
            edges = ((at * tokens // own, -(-(at + 1) * tokens // own)) for at in range(len(ids) * own // tokens))
            return tuple(names.setdefault(ids[first:last], len(names)) for first, last in edges)

        return replace(self, prefixes=tuple(map(regrouped, self.prefixes)), prefix_tokens=tokens)

    def select(self, chosen: npt.NDArray[np.intp]) -> Requests:
        """The requests at these indices."""
        prefixes = None if self.prefixes is None else tuple(self.prefixes[one] for one in chosen)
        return replace(
            self,
            arrival_s=self.arrival_s[chosen],
            input_len=self.input_len[chosen],
            output_len=self.output_len[chosen],
            prefixes=prefixes,
            after=self._after(chosen.tolist()),
            histories=None if self.histories is None else self.histories.select(chosen),
            chance=None if self.chance is None else self.chance[chosen],
        )

    def host_s(self, mean_s: float) -> Array:
        """Time of the host before each reaches the scheduler [s]: half to one and a half times the mean.

        Without any difference, users whose requests met in a step once would meet for ever, in ever larger groups.
        """
        return np.full(len(self), mean_s) * (1.0 if self.chance is None else 0.5 + self.chance)

    def _after(self, chosen: list[int]) -> dict[int, tuple[int, float]]:
        """`after` among these requests; where the one before is not among them, the last one before that is."""
        places = {request: place for place, request in enumerate(chosen)}
        found: dict[int, tuple[int, float]] = {}
        for request, place in places.items():
            before, delay_s = self.after.get(request, (-1, 0.0))
            while before >= 0 and before not in places:
                before = self.after.get(before, (-1, 0.0))[0]
            if before >= 0:
                found[place] = places[before], delay_s
        return found


@frozen(eq=False)
class Records:
    """Times of requests [s] since the start of the run, in the order of `Requests`; NaN for what did not happen.

    start_s: when its first prompt token was scheduled.  first_token_s, finish_s: as the user sees them, host time
    included.  cached_tokens: prompt tokens found in the prefix cache.  preemptions: how often it was preempted.
    replica: index of the replica that decoded it.  refused: why the engine refuses it (run.REFUSALS), or 0.
    session, turn: as of `Histories`; 0 without.  host_tokens, disk_tokens: cached ones that were loaded from there.
    host_s: time of the host before each reaches the scheduler [s].
    """

    arrival_s: Array
    input_len: Whole
    output_len: Whole
    start_s: Array
    first_token_s: Array
    finish_s: Array
    cached_tokens: Whole
    preemptions: Whole
    replica: Whole
    refused: Whole
    session: Whole = field(default_factory=lambda: np.zeros((), dtype=np.int64))
    turn: Whole = field(default_factory=lambda: np.zeros((), dtype=np.int64))
    host_tokens: Whole = field(default_factory=lambda: np.zeros((), dtype=np.int64))
    disk_tokens: Whole = field(default_factory=lambda: np.zeros((), dtype=np.int64))
    host_s: Array | float = 0.0

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def repeated(self) -> Whole:
        """Prompt tokens found in the cache, of turns of sessions alone."""
        return np.where(self.turn > 0, self.cached_tokens, 0)

    @property
    def ttft_s(self) -> Array:
        """Time to first token of each request [s]."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> Array:
        """Mean time per output token after the first [s]; NaN for answers of one token."""
        tokens = np.where(self.output_len > 1, self.output_len - 1.0, np.nan)
        return (self.finish_s - self.first_token_s) / tokens

    @property
    def e2e_s(self) -> Array:
        """End-to-end latency [s]."""
        return self.finish_s - self.arrival_s

    @property
    def queue_s(self) -> Array:
        """Time in the scheduler's queue, until the first prompt token is scheduled [s]."""
        waited = self.start_s - self.arrival_s - self.host_s
        return np.where(np.abs(waited) < ROUNDING_S, 0.0, waited)


@frozen(eq=False)
class Timeline:
    """Intervals between events of one replica, in order; arrays have one entry per interval.

    start_s, end_s: its limits [s]; between two intervals the replica is idle.  steps: forward passes in it.
    decoding: sequences that decode in each of its steps.  prompt_tokens: prompt tokens that it prefills.
    waiting: requests that wait for their first token to be scheduled.  used_blocks: occupied KV-cache blocks.
    """

    start_s: Array
    end_s: Array
    steps: Array
    decoding: Array
    prompt_tokens: Array
    waiting: Array
    used_blocks: Array


@frozen(eq=False)
class Gaps:
    """Times between consecutive tokens of one sequence as users see them: `weights` tokens came `gap_s` seconds after
    the token before, at about the time `at_s` [s]."""

    gap_s: Array
    weights: Array
    at_s: Array
