"""How forward passes produce output tokens: one per pass, or rounds of drafting and one verification pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Array, Count, total
from llmviewer.models.model import Model
from llmviewer.serving.branches import Branches
from llmviewer.serving.denoising import Denoising


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassShape:
    """Shape of a decode pass, per sequence [counts, scalars or one per point].

    attended_new_pairs: query-key pairs among the new tokens; None for causal, a tree has its own number.
    ahead: tokens by which the context exceeds that of the round's first pass; the mean over several passes.
    """

    new_tokens: Count = 1.0
    logit_positions: Count = 1.0
    attended_new_pairs: Count | None = None
    ahead: Count = 0.0


#: One new token per sequence.
ONE_TOKEN = PassShape()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draft:
    """A draft model: `passes` passes of `shape` in a round.

    caches: it has a KV cache, which a prompt has to fill; without one it drafts from the target's states.
    shared: names of its weights that the target or another draft already stores; None: all of them.
    techniques: its own technique options.  It inherits engine options from the target, and options that change the
    checkpoint only if it has the same_weights.
    """

    name: str
    model: Model
    passes: Count = 1.0
    shape: PassShape = ONE_TOKEN
    caches: bool = True
    shared: tuple[str, ...] | None = ()
    same_weights: bool = False
    techniques: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """One round: draft passes, then one pass of the target.

    tokens: expected output tokens of a round, bonus token included.
    extra_s: time of a round outside kernels [s].  facts: figures for the result, by name.
    branches: an outline and parallel sequences; each runs in rounds of its own.
    denoising: blocks of tokens that are decided together, instead of rounds.
    min_spare_tokens: minimum cache tokens that a sequence needs beyond prompt and output.
    """

    shape: PassShape = ONE_TOKEN
    tokens: Count = 1.0
    drafts: tuple[Draft, ...] = ()
    extra_s: Count = 0.0
    facts: Mapping[str, Count | str] = field(default_factory=dict)
    branches: Branches | None = None
    denoising: Denoising | None = None
    min_spare_tokens: Count = 0.0

    @property
    def spare_tokens(self) -> Count:
        """Cache tokens that a sequence needs beyond prompt and output, as all draft tokens may be rejected."""
        return np.maximum(self.shape.new_tokens - 1.0, self.min_spare_tokens)

    @property
    def counts_passes(self) -> bool:
        """Whether an answer takes a number of passes of its own, instead of rounds that may start at any token."""
        return self.branches is not None or self.denoising is not None

    @property
    def verifies(self) -> Count:
        """1.0 where a round verifies draft tokens, 0.0 where it is a plain decode step."""
        return np.minimum(np.maximum(self.shape.new_tokens - 1.0, 0.0), 1.0)

    def per_token(self, own: Array, drafts: Sequence[Array], extra: Count = 0.0) -> Array:
        """Cost of an output token: the target's pass, all draft passes and `extra`, over the tokens of a round.

        own, drafts: cost of one pass each.
        """
        if self is AUTOREGRESSIVE:
            return own
        passes = total(draft.passes * each for draft, each in zip(self.drafts, drafts, strict=True))
        return np.asarray((own + passes + extra) / self.tokens)

    def at_points(self, points: npt.NDArray[np.intp]) -> Generation:
        """The generation of selected points, where counts have one entry per point."""

        def pick(counts: Sequence[Count]) -> Count:
            (count,) = counts
            return count[points] if isinstance(count, np.ndarray) and count.size > 1 else count

        selected: Generation = _merged([self], pick)
        return selected


#: One token per pass, without drafts.
AUTOREGRESSIVE = Generation()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationScheme:
    """A generation method, requested before the model is known.  name: as in results.

    candidates: schemes that differ only in counts, of which every point uses the fastest.
    alone: why it cannot be combined with branches, chunks of prompts and separate instances; "" if it can.
    """

    name: str
    make: Callable[[Model], Generation]
    candidates: tuple[GenerationScheme, ...] = ()
    alone: str = ""

    def changed(self, title: str, change: Callable[[Generation], Generation]) -> GenerationScheme:
        """The scheme whose generations are changed, listed under both names."""
        return GenerationScheme(
            name=f"{self.name} + {title}",
            make=lambda model: change(self.make(model)),
            candidates=tuple(one.changed(title, change) for one in self.candidates),
        )


def select_generation(candidates: Sequence[Generation], index: npt.NDArray[np.intp]) -> Generation:
    """The generation that `index` selects for each point; all of them differ only in counts."""

    def pick(counts: Sequence[Count]) -> Count:
        columns = np.broadcast_arrays(*(np.asarray(count, dtype=np.float64) for count in (*counts, index)))[:-1]
        return np.choose(index, columns) if len(index) > 1 else float(columns[int(index[0])].reshape(-1)[0])

    chosen: Generation = _merged(candidates, pick)
    return chosen


def _merged(values: Sequence[Any], merge: Callable[[Sequence[Count]], Count]) -> Any:
    """One value from several that differ only in counts, with `merge` applied to each count."""
    first = values[0]
    if isinstance(first, (float, np.ndarray)):
        return merge(values)
    if isinstance(first, (Generation, PassShape, Draft)):
        names = [entry.name for entry in fields(first)]
        return replace(first, **{name: _merged([getattr(value, name) for value in values], merge) for name in names})
    if isinstance(first, tuple):
        return tuple(_merged(column, merge) for column in zip(*values, strict=True))
    if isinstance(first, Mapping):
        return {name: _merged([value[name] for value in values], merge) for name in first}
    return first
