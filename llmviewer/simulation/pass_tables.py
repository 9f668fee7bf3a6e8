"""Times of one model's forward passes, as a sum of parts that depend on few numbers each.

A pass of decoding sequences and prompt tokens takes

    G(tokens) + H(rows of logits) + D(sequences, context) + A(prompt tokens, tokens before them)

where G is all work on tokens, and D and A are what attention and other work on a sequence's past add to it: an engine
runs their kernels one after another.  D and A are differences of evaluated passes, so that decode steps and chunks of
prompts alone are exact at knots, whatever their operators are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp

from llmviewer.simulation.surfaces import Surface

#: Knots of contexts per octave of decode steps and of prompts; constants, as every access reads them.
DECODE_KNOTS, PROMPT_KNOTS = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartTable:
    """One quantity of passes as a sum of parts [s]; see the module.

    tokens, logits: lists over whole numbers.  decodes: over sequences and their mean context.  chunk: tokens of one
    prompt over those before them.  packed: tokens of several whole prompts over their mean length less 1.
    """

    tokens: list[float]
    logits: list[float]
    decodes: Surface
    chunk: Surface
    packed: Surface

    def seconds(self, tokens: int, logits: int, sequences: int, context: float, prompt: int, pairs: float) -> float:
        """The quantity of a pass: all tokens and rows of logits, mean context of the sequences, prompt tokens.

        pairs: that the prompt tokens attend to; fewer than those of one prompt of so many tokens mean several prompts
        of equal length, which is said of them.
        """
        seconds = self.tokens[tokens] + self.logits[logits]
        if sequences:
            surface = self.decodes
            mantissa, octave = frexp(context + 1.0)
            k0, k1, k2, k3 = surface.cells[surface.segments[sequences]][4 * octave + int(8.0 * mantissa) - 8]
            seconds += k0 + k1 * sequences + (k2 + k3 * sequences) * context
        if prompt:
            keys = pairs / prompt
            x, surface = keys - 0.5 * (prompt + 1), self.chunk
            if x < 0.0:
                x, surface = 2.0 * keys - 2.0, self.packed
            mantissa, octave = frexp(x + 1.0)
            k0, k1, k2, k3 = surface.cells[surface.segments[prompt]][2 * octave + int(4.0 * mantissa) - 4]
            seconds += k0 + k1 * prompt + (k2 + k3 * prompt) * x
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """The choice between two forms of latent attention, as of layers/mla.py (Mla.absorbed), from the sizes of a pass.

    up: elements of kv_b_proj per head.  extra: further elements of a query-key pair in absorbed form.
    window, selected: most keys that a query sees.
    """

    up: float
    extra: float
    window: float
    selected: float

    def absorbed(self, decodes: tuple[float, float, float], prompts: tuple[float, float, float]) -> bool:
        """Whether a pass runs in absorbed form.  Both: sequences, new tokens and cached tokens of each."""
        keys = pairs = 0.0
        for batch, new, cached in (decodes, prompts):
            seen = min(cached, self.window - 1.0)
            if batch and min(cached + new, self.window) > self.selected:
                return True
            keys += batch * seen
            pairs += batch * new * (seen + new)
        return keys * self.up > pairs * self.extra


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTable:
    """Times of passes on one pipeline stage.

    steps, kernels: of each form of latent attention, naive and absorbed, or of the only one: all time but what hides
    behind kernels, and kernels alone.  waits: times of the host that hide behind kernels: more than so many tokens ->
    seconds.  waiting: most tokens of a pass whose kernels may be shorter than these.  new: tokens of a decode step.
    """

    steps: tuple[PartTable, ...]
    kernels: tuple[PartTable, ...]
    latent: Latent | None
    waits: tuple[tuple[float, float], ...]
    waiting: int
    new: float
    rows: float

    def seconds(self, sequences: int, context: float, prompt: int, pairs: float, prompts: int) -> float:
        """Time of a pass [s].  context: mean of the sequences.  prompts: rows of logits of prompt tokens."""
        form = 0 if self.latent is None else self._form(sequences, context, prompt, pairs)
        if self.new == 1.0:
            tokens, logits = sequences + prompt, sequences + prompts
        else:
            tokens, logits = round(sequences * self.new) + prompt, round(sequences * self.rows) + prompts
        seconds = self.steps[form].seconds(tokens, logits, sequences, context, prompt, pairs)
        if tokens > self.waiting:
            return seconds
        kernels = self.kernels[form].seconds(tokens, logits, sequences, context, prompt, pairs)
        return seconds + sum(max(wait - kernels, 0.0) for above, wait in self.waits if tokens > above)

    def _form(self, sequences: int, context: float, prompt: int, pairs: float) -> int:
        """Index of the form of latent attention."""
        assert self.latent is not None
        batch = new = cached = 0.0
        if prompt:
            keys = pairs / prompt
            batch, new, cached = 1.0, float(prompt), keys - 0.5 * (prompt + 1)
            if cached < 0.0:
                new, cached = 2.0 * keys - 1.0, 0.0
                batch = prompt / new
        return int(self.latent.absorbed((float(sequences), self.new, context), (batch, new, cached)))
