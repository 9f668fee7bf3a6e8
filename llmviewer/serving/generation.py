"""How output tokens come out of forward passes: one from each, or rounds in which something drafts and one pass of the
model verifies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Array, Count, total
from llmviewer.models.model import Model
from llmviewer.serving.branches import Branches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape:
    """A pass that generates, as one sequence sees it [counts, scalars or one per point].

    attended_new_pairs: query-key pairs among its new tokens; None is causal, a tree has its own.
    ahead: tokens by which its cache is longer than that of the round's first pass; of several passes their mean.
    """

    new_tokens: Count = 1.0
    logit_positions: Count = 1.0
    attended_new_pairs: Count | None = None
    ahead: Count = 0.0


#: One new token for each sequence.
ONE = Shape()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draft:
    """What drafts, as a model of its own: `passes` passes of `shape` in a round.

    caches: it keeps a cache, which a prompt has to fill; what has none drafts from the model's own states.
    shared: names of its weights that the model it drafts for, or another draft, stores already; None: all of them.
    techniques: options of the registry of its own; it shares what belongs to the engine, and nothing that changes the
    checkpoint, unless it has the same_weights as the model it drafts for.
    """

    name: str
    model: Model
    passes: Count = 1.0
    shape: Shape = ONE
    caches: bool = True
    shared: tuple[str, ...] | None = ()
    same_weights: bool = False
    techniques: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """A round: drafts, then one pass of the model.

    tokens: expected output tokens of a round, the one that the model adds itself included.
    extra_s: time of a round that is no kernel [s].  facts: what results say of it, by name.
    branches: passes are not one round after another, but an outline and then several sequences at once.
    least_room: tokens of cache that a sequence needs beyond prompt and output at least.
    """

    shape: Shape = ONE
    tokens: Count = 1.0
    drafts: tuple[Draft, ...] = ()
    extra_s: Count = 0.0
    facts: Mapping[str, Count | str] = field(default_factory=dict)
    branches: Branches | None = None
    least_room: Count = 0.0

    @property
    def room_tokens(self) -> Count:
        """Tokens of cache beyond prompt and output that a sequence needs: drafted ones may all be rejected."""
        return np.maximum(self.shape.new_tokens - 1.0, self.least_room)

    def per_token(self, own: Array, drafts: Sequence[Array], more: Count = 0.0) -> Array:
        """What a token costs: the model's pass, every draft's passes and `more`, over the tokens of a round.

        own, drafts: of one pass each.
        """
        if self is PLAIN:
            return own
        passes = total(draft.passes * each for draft, each in zip(self.drafts, drafts, strict=True))
        return np.asarray((own + passes + more) / self.tokens)

    def at(self, points: npt.NDArray[np.intp]) -> Generation:
        """The generation of some points, where counts have one entry per point."""

        def some(counts: Sequence[Count]) -> Count:
            (count,) = counts
            return count[points] if isinstance(count, np.ndarray) and count.size > 1 else count

        at: Generation = _merged([self], some)
        return at


#: A token from each pass.
PLAIN = Generation()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationScheme:
    """Asked for, before the model is known.  name: as results list it.

    candidates: schemes that differ in counts alone, of which every point takes the one that is fastest.
    """

    name: str
    make: Callable[[Model], Generation]
    candidates: tuple[GenerationScheme, ...] = ()


def picked(among: Sequence[Generation], index: npt.NDArray[np.intp]) -> Generation:
    """Of each point the generation that `index` names; they differ in counts alone."""

    def pick(counts: Sequence[Count]) -> Count:
        columns = np.broadcast_arrays(*(np.asarray(count, dtype=np.float64) for count in (*counts, index)))[:-1]
        return np.choose(index, columns) if len(index) > 1 else float(columns[int(index[0])].reshape(-1)[0])

    chosen: Generation = _merged(among, pick)
    return chosen


def _merged(values: Sequence[Any], of: Callable[[Sequence[Count]], Count]) -> Any:
    """One value made of several that differ in counts alone: each of its counts made of theirs."""
    first = values[0]
    if isinstance(first, (float, np.ndarray)):
        return of(values)
    if isinstance(first, (Generation, Shape, Draft)):
        names = [entry.name for entry in fields(first)]
        return replace(first, **{name: _merged([getattr(value, name) for value in values], of) for name in names})
    if isinstance(first, tuple):
        return tuple(_merged(column, of) for column in zip(*values, strict=True))
    if isinstance(first, Mapping):
        return {name: _merged([value[name] for value in values], of) for name in first}
    return first
