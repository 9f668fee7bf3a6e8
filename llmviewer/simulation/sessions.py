"""Sessions of several turns, whose prompts hold all earlier turns: `--sessions turns=8,think=20s,system=2000,...`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.parsing import duration
from llmviewer.language.grammar import Choice, Form, Grammar, Number
from llmviewer.simulation.lengths import MOST_TOKENS, Spread, spread
from llmviewer.simulation.requests import Histories, Requests, Whole
from llmviewer.techniques.technique import Whole as WholeNumber
from llmviewer.techniques.technique import called

#: Sign between kinds of sessions.
SEPARATOR = "+"
#: Words of `pauses`: random ones without memory, or all alike.
EXPONENTIAL, FIXED = "exponential", "fixed"
#: Distance from 1 of shares that sum to it.
ROUNDING = 1e-6
#: Forms of parameters: turns or tokens that may vary, and times.
Spreads = partial(Form, parse=spread)
PAUSE = partial(duration, "think")


@frozen(eq=False)
class Kind:
    """Clients that behave alike.

    turns: prompts of a session.  first, then: new tokens of its first prompt and of each later one.  output: of an
    answer.  system: tokens with which all prompts of the kind begin.  think_s: mean time between an answer and the next
    prompt [s].  pauses: EXPONENTIAL or FIXED.  share: of the sessions; None: what others leave.
    """

    turns: Spread
    first: Spread
    then: Spread
    output: Spread
    system: int
    think_s: float
    pauses: str
    share: float | None

    def pauses_s(self, count: int, random: np.random.Generator) -> Array:
        """Times between answers and next prompts [s]."""
        return random.exponential(self.think_s, count) if self.pauses == EXPONENTIAL else np.full(count, self.think_s)


def kind(
    *,
    turns: Annotated[Spread, Spreads(help="prompts of a session")],
    first: Annotated[Spread, Spreads(help="new tokens of the first prompt")],
    output: Annotated[Spread, Spreads(help="tokens of each answer")],
    then: Annotated[Spread | None, Spreads(help="new tokens of each later prompt", unset="as first")] = None,
    system: Annotated[float, WholeNumber("tokens of a system prompt, the same in all sessions", 0, MOST_TOKENS)] = 0,
    think: Annotated[float, Form(help="mean time from an answer to the next prompt", parse=PAUSE)] = 0.0,
    pauses: Annotated[str, Choice("how these times vary", (EXPONENTIAL, FIXED))] = EXPONENTIAL,
    share: Annotated[float | None, Number("share of the sessions", 1e-6, 1.0)] = None,
) -> Kind:
    """One kind of clients."""
    if think < 0.0 or not np.isfinite(think):
        raise UserError(f"think is {think:g} s; allowed: a time from 0")
    return Kind(
        turns=turns,
        first=first,
        then=then or first,
        output=output,
        system=int(system),
        think_s=think,
        pauses=pauses,
        share=share,
    )


@frozen(eq=False)
class Sessions:
    """The sessions of a load.  kinds: of clients.  shares: of the sessions, of each kind; they sum to 1."""

    kinds: tuple[Kind, ...]
    shares: tuple[float, ...]

    def mean(self, of: Any) -> float:
        """The mean over the sessions of a figure of their kinds.  of: kind -> figure."""
        return float(sum(share * of(one) for share, one in zip(self.shares, self.kinds, strict=True)))

    @property
    def mean_turns(self) -> float:
        """Mean number of prompts of a session."""
        return self.mean(lambda one: one.turns.mean)

    @property
    def least_turns(self) -> int:
        """Fewest prompts of a session."""
        return min(one.turns.least for one in self.kinds)

    @property
    def pauses_s(self) -> float:
        """Mean time of a session in which its user thinks [s]."""
        return self.mean(lambda one: (one.turns.mean - 1.0) * one.think_s)

    def slower(self, factor: float) -> Sessions:
        """The sessions with pauses so many times as long."""
        return replace(self, kinds=tuple(replace(one, think_s=factor * one.think_s) for one in self.kinds))

    def requests(self, begins_s: Array, random: np.random.Generator, most: int | None, users: int) -> Requests:
        """The requests of sessions that begin at these times [s], session by session.

        most: requests, the last session being cut; None: all.  users: of a closed loop; 0: none.
        """
        kinds = random.choice(len(self.kinds), len(begins_s), p=self.shares)
        turns = self._drawn(kinds, random, lambda one, count: one.turns.draw(count, random))
        session = np.repeat(np.arange(len(begins_s)), turns)[:most]
        turn = np.arange(len(session)) - (np.cumsum(turns) - turns)[session] + 1
        each, later = kinds[session], turn > 1
        drawn = {
            name: self._drawn(each, random, lambda one, count, name=name: getattr(one, name).draw(count, random))
            for name in ("first", "then", "output")
        }
        new, output = np.where(later, drawn["then"], drawn["first"]), drawn["output"]
        grown = np.cumsum(new + output)
        before = np.concatenate(([0], grown))[np.flatnonzero(~later)][session]
        system = np.array([one.system for one in self.kinds], dtype=np.int64)[each]
        pauses_s = self._drawn(each, random, lambda one, count: one.pauses_s(count, random), np.float64)
        followed = np.flatnonzero(later)
        return Requests(
            arrival_s=begins_s[session],
            input_len=system + grown - before - output,
            output_len=output,
            histories=Histories(session=session, turn=turn, system=-2 - each, system_tokens=system),
            after=dict(
                zip(
                    followed.tolist(),
                    zip((followed - 1).tolist(), pauses_s[followed].tolist(), strict=True),
                    strict=True,
                )
            ),
            concurrency=users,
        )

    def _drawn(self, kinds: Whole, random: np.random.Generator, draw: Any, dtype: Any = np.int64) -> Any:
        """Values of one kind each, as `draw` makes them.  draw: kind, their number -> values."""
        found = np.zeros(len(kinds), dtype=dtype)
        for at, one in enumerate(self.kinds):
            chosen = kinds == at
            found[chosen] = draw(one, int(np.count_nonzero(chosen)))
        return found


def sessions_of(text: str) -> Sessions:
    """The sessions of `--sessions`, whose kinds have a `+` between them.  Raises UserError."""
    kinds = tuple(called(kind, "--sessions", Grammar.of(kind), part.strip()) for part in text.split(SEPARATOR))
    stated = sum(one.share or 0.0 for one in kinds)
    others = sum(one.share is None for one in kinds)
    if stated > 1.0 + ROUNDING or (not others and stated < 1.0 - ROUNDING) or (others and stated >= 1.0):
        raise UserError(
            f"--sessions: the shares sum to {stated:g}; allowed: 1, or less where kinds without one have the rest"
        )
    shares = [(1.0 - stated) / others if one.share is None else one.share for one in kinds]
    return Sessions(kinds=kinds, shares=tuple(one / sum(shares) for one in shares))
