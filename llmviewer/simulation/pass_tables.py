"""Times of one model's forward passes as a sum of parts, each a table that is linear between knots."""

from __future__ import annotations

from math import frexp

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen

#: Contexts below which attention is a small part of a pass, and from which on it has no more kinks [token].
SHORT, LONG = 63.0, 8191.0
#: Coefficients of k0 + k1 n + (k2 + k3 n) x.
Cell = tuple[float, float, float, float]


def whole_knots(most: int, dense: int, per_octave: int, *, stairs: bool) -> Array:
    """Whole numbers from 1 to `most`, at least two: all up to `dense`, then `per_octave` in every octave.

    stairs: each is followed by its successor, so that a time that jumps after multiples of a power of two (tiles of
    rows) is interpolated on each of its stairs.
    """
    steps, most = np.arange(per_octave) / per_octave, max(most, 2)
    octaves = 2.0 ** np.arange(np.floor(np.log2(dense)), np.ceil(np.log2(most)) + 1.0)
    coarse = np.round((octaves[:, None] * (1.0 + steps)).ravel())
    knots = np.concatenate((np.arange(1.0, dense + 1.0), coarse, coarse + 1.0 if stairs else []))
    return np.unique(np.append(knots[knots < most], float(most)))


def every_whole(knots: Array, values: Array) -> list[float]:
    """Values at 0, 1, 2 ... up to the last knot by interpolation; 0 at 0."""
    return [0.0, *np.interp(np.arange(1.0, knots[-1] + 1.0), knots, values).tolist()]


@frozen(eq=False)
class Knots:
    """Knots of a coordinate x >= 0: `per_octave` in every octave of x + 1, so that an access needs no search.

    Windows and blocks of keys are multiples of powers of two, so a kink lies on a knot, and so does a jump: segment i
    is the line through its values at first[i] and last[i], the last whole number before the next knot if `jumps`.
    """

    per_octave: int
    first: Array
    last: Array

    @property
    def points(self) -> Array:
        """Points at which a time is evaluated, ascending: up to SHORT only one in every octave, from LONG on four."""
        ends = np.union1d(self.first, self.last)
        places = np.log2(ends + 1.0) % 1.0
        quarters = np.round(2.0**places * 4.0, 6) % 1.0 == 0.0
        return np.asarray(ends[np.where(ends < SHORT, places == 0.0, (ends < LONG) | quarters)])

    def segment(self, x: float) -> int:
        """Index of the segment of x."""
        mantissa, octave = frexp(x + 1.0)
        return self.per_octave * (octave - 2) + int(2 * self.per_octave * mantissa)


def knots(most: float, per_octave: int, jumps: tuple[float, float] = (0.0, 0.0)) -> Knots:
    """Knots up to `most` or beyond.  jumps: limits of the x where a time jumps at knots."""
    octaves = 2.0 ** np.arange(np.ceil(np.log2(most + 2.0)))
    first = (octaves[:, None] * (1.0 + np.arange(per_octave) / per_octave)).ravel() - 1.0
    end = np.append(first[1:], 2.0 * octaves[-1] - 2.0)  # within the last segment
    return Knots(
        per_octave=per_octave, first=first, last=np.where((end >= jumps[0]) & (end < jumps[1]), end - 1.0, end)
    )


@frozen(eq=False)
class Surface:
    """A time over a whole number n and a coordinate x [s], linear in both between knots.

    values: segment of n x segment of x x coefficients of a Cell.  cells: segment of n -> segment of x -> Cell; None
    until it is first read.  segments: n -> its segment.
    """

    segments: list[int]
    values: Array
    cells: list[list[Cell] | None]

    def row(self, segment: int) -> list[Cell]:
        """The cells of a segment of n, which are kept."""
        found = self.cells[segment] = list(map(tuple, self.values[segment].tolist()))
        return found


def grid(whole: Array, x: Knots) -> tuple[Array, Array]:
    """All pairs of knots as two columns."""
    points = x.points
    return np.repeat(whole, len(points)), np.tile(points, len(whole))


def between(known: Array, values: Array, wanted: Array) -> Array:
    """Rows of `values`, known at ascending points, at others by interpolation; beyond the last one by extrapolation."""
    at = np.clip(np.searchsorted(known, wanted, side="right") - 1, 0, len(known) - 2)
    share = ((wanted - known[at]) / (known[at + 1] - known[at]))[:, None]
    return np.asarray(values[at] * (1.0 - share) + values[at + 1] * share)


def surface(whole: Array, x: Knots, values: Array) -> Surface:
    """The surface through values on a grid of knots (in the order of `grid`)."""
    v = values.reshape(len(whole), -1).T
    first, last = between(x.points, v, x.first).T, between(x.points, v, x.last).T
    rise = (last - first) / (x.last - x.first)
    base = first - rise * x.first
    width = np.diff(whole)[:, None]
    k1, k3 = np.diff(base, axis=0) / width, np.diff(rise, axis=0) / width
    k0, k2 = base[:-1] - k1 * whole[:-1, None], rise[:-1] - k3 * whole[:-1, None]
    at = np.clip(np.searchsorted(whole, np.arange(whole[-1] + 1.0), side="right") - 1, 0, len(whole) - 2)
    return Surface(segments=at.tolist(), values=np.stack((k0, k1, k2, k3), axis=2), cells=[None] * len(k0))


#: Knots of contexts per octave, of decode steps and of prompts; all accesses below contain them as numbers.
DECODE_KNOTS, PROMPT_KNOTS = 8, 4
#: Most tokens of a chunk that a decode kernel may run, differently where there are no other sequences.
SHORT_CHUNK = 16
#: Tokens of the prompt beside which decoding sequences are evaluated; the effect of more is as large.
PROMPT_BESIDE = 2048.0


@frozen(eq=False)
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
            k0, k1, k2, k3 = (surface.cells[row] or surface.row(row))[at]
            seconds += k0 + k1 * sequences + (k2 + k3 * sequences) * context
            if prompt:
                k0, k1, k2, k3 = (self.shared.cells[row] or self.shared.row(row))[at]
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
            row = surface.segments[prompt]
            k0, k1, k2, k3 = (surface.cells[row] or surface.row(row))[4 * octave + int(8.0 * mantissa) - 8]
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
    row = surface.segments[sequences]
    k0, k1, k2, k3 = (surface.cells[row] or surface.row(row))[8 * octave + int(16.0 * mantissa) - 16]
    return k0 + k1 * sequences + (k2 + k3 * sequences) * x


@frozen
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


@frozen(eq=False)
class ModelTable:
    """Times of one model's passes.

    steps, kernels: of each form of latent attention, naive and absorbed, or of the only one: all time but what hides
    behind kernels, and kernels alone.  waits: times of the host that hide behind kernels: in passes of more tokens than
    this, or instead of more sequences, with prompts of several tokens, and of longer contexts -> seconds.
    waiting: most tokens of a pass whose kernels may be shorter than these.  longer: share by which kernels of passes
    take longer, and the tokens beyond which they do; None: none do.  new, rows: tokens and rows of logits of one
    sequence's decode pass.
    """

    steps: tuple[PartTable, ...]
    kernels: tuple[PartTable, ...]
    latent: Latent | None
    waits: tuple[tuple[float, bool, float, float], ...]
    waiting: int
    longer: tuple[float, float] | None
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
        longer = self.longer[0] if self.longer is not None and tokens > self.longer[1] else 0.0
        if tokens > self.waiting and not longer:
            return seconds
        kernels = self.kernels[form].seconds(tokens, logits, sequences, context, prompt, pairs)
        if tokens <= self.waiting:
            seconds += sum(
                max(wait - kernels, 0.0)
                for above, of_prompts, longest, wait in self.waits
                if (
                    tokens > above
                    if not of_prompts
                    else sequences > above or prompt > max(prompts, 1) or context > longest
                )
            )
        return seconds + longer * kernels

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
