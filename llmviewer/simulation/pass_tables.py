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

#: Knots of contexts per octave, of decode steps and of prompts; all accesses below contain them as numbers.
DECODE_KNOTS, PROMPT_KNOTS = 8, 4
#: Most tokens of a chunk that a decode kernel may run, differently where there are no other sequences.
SHORT_CHUNK = 16
#: Tokens of the prompt beside which decoding sequences are evaluated; the effect of more is as large.
PROMPT_BESIDE = 2048.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartTable:
    """One quantity of passes as a sum of parts [s]; see the module.

    tokens, logits: lists over whole numbers.  states: work on recurrent states, over sequences and tokens less 1; None
    without any.  decodes, beside: over sequences and their mean context, alone and beside prompts; shared: further time
    per prompt token, which finds less of its own in the L2.  chunk: tokens of one prompt over those before them; short,
    alone: at most SHORT_CHUNK tokens beside other sequences and alone.  packed: tokens of several whole prompts over
    their mean length less 1.
    """

    tokens: list[float]
    logits: list[float]
    states: Surface | None
    decodes: Surface
    beside: Surface
    shared: Surface
    chunk: Surface
    short: Surface
    alone: Surface
    packed: Surface

    def seconds(self, tokens: int, logits: int, sequences: int, context: float, prompt: int, pairs: float) -> float:
        """The quantity of a pass: all tokens and rows of logits, mean context of the sequences, prompt tokens.

        pairs: that the prompt tokens attend to.  Fewer than those of one prompt of so many tokens mean several prompts,
        which are taken to be of equal length.
        """
        seconds = self.tokens[tokens] + self.logits[logits]
        if sequences:
            surface = self.beside if prompt else self.decodes
            mantissa, octave = frexp(context + 1.0)
            row, at = surface.segments[sequences], 8 * octave + int(16.0 * mantissa) - 16
            k0, k1, k2, k3 = surface.cells[row][at]
            seconds += k0 + k1 * sequences + (k2 + k3 * sequences) * context
            if prompt:
                k0, k1, k2, k3 = self.shared.cells[row][at]
                shared = k0 + k1 * sequences + (k2 + k3 * sequences) * context
                seconds += shared * (prompt if prompt < PROMPT_BESIDE else PROMPT_BESIDE)
        if prompt:
            keys = pairs / prompt
            x = keys - 0.5 * (prompt + 1)
            if x < 0.0:
                x, surface = 2.0 * keys - 2.0, self.packed
            else:
                surface = self.chunk if prompt > SHORT_CHUNK else self.short if sequences else self.alone
            mantissa, octave = frexp(x + 1.0)
            k0, k1, k2, k3 = surface.cells[surface.segments[prompt]][4 * octave + int(8.0 * mantissa) - 8]
            seconds += k0 + k1 * prompt + (k2 + k3 * prompt) * x
        if self.states is not None:
            seconds += _states(self.states, tokens, sequences, prompt, pairs)
        return seconds


def _states(surface: Surface, tokens: int, sequences: int, prompt: int, pairs: float) -> float:
    """Work on the states of all sequences, those of prompts included."""
    if prompt:
        before = pairs / prompt - 0.5 * (prompt + 1)
        sequences += 1 if before >= 0.0 else round(prompt / (2.0 * pairs / prompt - 1.0))
    last = len(surface.segments) - 1
    sequences, x = min(sequences, last), tokens - 1.0
    mantissa, octave = frexp(tokens)
    k0, k1, k2, k3 = surface.cells[surface.segments[sequences]][8 * octave + int(16.0 * mantissa) - 16]
    return k0 + k1 * sequences + (k2 + k3 * sequences) * x


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
class ModelTable:
    """Times of one model's passes.

    steps, kernels: of each form of latent attention, naive and absorbed, or of the only one: all time but what hides
    behind kernels, and kernels alone.  waits: times of the host that hide behind kernels: more than so many tokens ->
    seconds.  waiting: most tokens of a pass whose kernels may be shorter than these.  new, rows: tokens and rows of
    logits of one sequence's decode pass.
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
