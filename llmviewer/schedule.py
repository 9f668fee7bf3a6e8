"""The forward passes that answer a request, laid out as one array: prefill passes, a representative decode step for
every point, and all real decode steps.  One evaluation of the graph then prices them all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmviewer.ir import Array, Count
from llmviewer.workload import Group, Request, Step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """`step` holds, in this order: the prefill passes of every point, one decode step per point (the STAGE shown, with
    input_len keys), and output_len - 1 real decode steps per point.

    weights: how often each pass runs.  prefill_starts, decode_starts: where each point's passes begin.
    decode_steps: output_len - 1 per point.
    """

    step: Step
    weights: Array
    points: int
    prefill_starts: Array
    prefill_passes: int
    decode_steps: Array

    @property
    def owners(self) -> Array:
        """Which point every pass belongs to."""
        point = np.arange(float(self.points))
        prefill = np.repeat(point, np.diff(np.append(self.prefill_starts, self.prefill_passes)).astype(int))
        return np.concatenate((prefill, point, np.repeat(point, self.decode_steps.astype(int))))

    @property
    def decode_starts(self) -> Array:
        """First index of every point's real decode steps."""
        offsets = np.cumsum(self.decode_steps) - self.decode_steps
        return np.asarray(offsets + self.prefill_passes + self.points)

    def prefill(self, values: Count) -> Array:
        """Sum over the prefill passes of every point."""
        passes = self._full(values)[: self.prefill_passes] * self.weights[: self.prefill_passes]
        if self.prefill_passes == self.points:
            return passes
        return np.add.reduceat(passes, self.prefill_starts.astype(int))

    def decode(self, values: Count) -> Array:
        """The representative decode step of every point."""
        return self._full(values)[self.prefill_passes : self.prefill_passes + self.points]

    def generated(self, values: Count) -> Array:
        """Sum over all real decode steps of every point; 0 where there are none."""
        totals = np.zeros(self.points)
        some = self.decode_steps > 0
        if some.any():
            steps = self._full(values)[self.prefill_passes + self.points :]
            starts = (self.decode_starts - self.prefill_passes - self.points)[some].astype(int)
            totals[some] = np.add.reduceat(steps, starts)
        return totals

    def worst(self, values: Count) -> Array:
        """The largest value over the prefill passes and the decode step of every point."""
        full = self._full(values)
        prefill = full[: self.prefill_passes]
        if self.prefill_passes != self.points:
            prefill = np.maximum.reduceat(prefill, self.prefill_starts.astype(int))
        return np.maximum(prefill, self.decode(full))

    def _full(self, values: Count) -> Array:
        if isinstance(values, np.ndarray) and values.shape == self.weights.shape:
            return values
        return np.broadcast_to(np.asarray(values, dtype=np.float64), self.weights.shape)


def schedule(request: Request, token_budget: float = np.inf) -> Schedule:
    """The passes of every point of `request` (arrays of one length).

    token_budget: most tokens of one prefill pass (--max-num-batched-tokens).  Prompts that fit it go together, whole;
    a longer prompt goes alone, in chunks.  Prefill of all prompts is one pass where it is infinite.
    """
    batch, prompt, output = (np.asarray(x, dtype=np.float64) for x in _columns(request))
    points = len(batch)
    passes, starts = _prefill_passes(batch, prompt, token_budget)
    steps = output - 1.0
    counts = steps.astype(int)
    offsets = np.arange(float(counts.sum())) - np.repeat(np.cumsum(steps) - steps, counts)
    one = np.ones(points + len(offsets))
    group = Group(
        batch_size=np.concatenate((passes[0], batch, np.repeat(batch, counts))),
        new_tokens=np.concatenate((passes[1], one)),
        cached_tokens=np.concatenate((passes[2], prompt - 1.0, np.repeat(prompt, counts) + offsets)),
        logit_positions=np.concatenate((passes[3], one)),
    )
    return Schedule(
        step=Step((group,)),
        weights=np.concatenate((passes[4], one)),
        points=points,
        prefill_starts=starts,
        prefill_passes=len(passes[0]),
        decode_steps=steps,
    )


def _columns(request: Request) -> tuple[Array, ...]:
    return np.broadcast_arrays(
        np.atleast_1d(request.batch_size), np.atleast_1d(request.input_len), np.atleast_1d(request.output_len)
    )


def _prefill_passes(batch: Array, prompt: Array, budget: float) -> tuple[tuple[Array, ...], Array]:
    """Columns (batch, new, cached, logits, weight) of all prefill passes, and where each point's begin."""
    starts = np.arange(float(len(batch)))
    if np.all(batch * prompt <= budget):
        one = np.ones(len(batch))
        return (batch, prompt, np.zeros(len(batch)), one, one), starts
    rows: list[tuple[float, float, float, float, float]] = []
    for point in range(len(batch)):
        starts[point] = len(rows)
        rows += _split(float(batch[point]), float(prompt[point]), budget)
    columns = np.array(rows, dtype=np.float64).T
    return tuple(np.ascontiguousarray(column) for column in columns), starts


def _split(batch: float, prompt: float, budget: float) -> list[tuple[float, float, float, float, float]]:
    """The passes of one point under a budget."""
    if prompt > budget:
        chunks = int(np.ceil(prompt / budget))
        rows = [(1.0, budget, budget * i, 0.0, batch) for i in range(chunks - 1)]
        return [*rows, (1.0, prompt - budget * (chunks - 1), budget * (chunks - 1), 1.0, batch)]
    together = min(np.floor(budget / prompt), batch)
    whole, rest = divmod(batch, together)
    passes = [(together, prompt, 0.0, 1.0, whole)]
    return [*passes, (rest, prompt, 0.0, 1.0, 1.0)] if rest else passes
