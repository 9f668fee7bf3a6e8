"""Model x system x request -> prefill, decode, memory, metrics: the composition of everything below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.analysis.capacity import of_draft, per_pass
from llmviewer.analysis.evaluation import Evaluation
from llmviewer.analysis.memory import Memory
from llmviewer.analysis.pricing import price
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count, present, total
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Chip
from llmviewer.models.model import Model
from llmviewer.serving.batching import STATIC, RequestTimes, Running, per_token
from llmviewer.serving.generation import Draft
from llmviewer.serving.schedule import Schedule
from llmviewer.timing.efficiency import ideal

if TYPE_CHECKING:
    from llmviewer.timing.calibrated import Calibrated


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """Everything known of a request on a system; arrays have one entry per point.

    time_s: of every pass of the schedule, through all stages.  busiest_s: that of the slowest stage alone.
    read_bytes: weights and cache read by every pass; None where all passes are in `evaluation`.
    running: where sequences begin one by one, what of a replica runs at once.
    drafts: what drafts, each answering the same request by passes of its own.
    """

    model: Model
    system: System
    request: Request
    schedule: Schedule
    evaluation: Evaluation
    memory: Memory
    time_s: Count
    busiest_s: Count
    read_bytes: Count | None = None
    running: Running | None = None
    drafts: tuple[tuple[Draft, Analysis], ...] = ()

    @property
    def ttft_s(self) -> Array:
        """Joint prefill of the whole batch [s]; where sequences begin one by one the wait for, and of, one request."""
        return self.prefill_s if self.running is None else self.times.ttft_s

    @property
    def times(self) -> RequestTimes:
        """What metrics are made of."""
        alone = RequestTimes(prefill_s=self.prefill_s, decode_s=self.decode_s, steps=self.schedule.tokens)
        if self.running is None:
            return alone
        alone = replace(alone, interference=self.system.engine.interference)
        users = self.system.parallelism.replica(self.request).batch_size
        return self.system.batching.times(alone, self.running, users)

    @property
    def prefill_s(self) -> Array:
        """What is prefilled together [s], by the model and whatever drafts with a cache of its own."""
        seconds = self.own_prefill_s
        for draft, analysis in self.drafts:
            if draft.caches:
                seconds = seconds + analysis.own_prefill_s
        return seconds

    @property
    def own_prefill_s(self) -> Array:
        """By the model alone [s]; in a pipeline each pass follows the one before it, stage by stage."""
        if self.system.parallelism.pipeline == 1:
            return self.schedule.prefill(self.time_s)
        return self.schedule.through_stages(self.time_s, self.busiest_s)

    @property
    def step_s(self) -> Count:
        """One token for every sequence, pass by pass [s]: a micro-batch through the pipeline, or all micro-batches
        through its slowest stage."""
        parallelism = self.system.parallelism
        if parallelism.microbatches == 1:
            return self.time_s
        in_flight: Array = self._in_flight[self.schedule.owners.astype(int)]
        return np.maximum(self.time_s, self.busiest_s * in_flight)

    @property
    def _in_flight(self) -> Array:
        """Micro-batches of every point."""
        return self.system.parallelism.in_flight(self.request) * np.ones(self.schedule.points)

    @property
    def decode_s(self) -> Array:
        """All real decode steps, cached input_len ... input_len + output_len - 2 [s].

        Of rounds: a round may begin at any of these places, and brings `generation.tokens` tokens.
        """
        return self.per_round(lambda one: one.schedule.generated(one.step_s), self._extra_s * self.schedule.tokens)

    @property
    def token_s(self) -> Array:
        """A token of each sequence in the decode step shown [s]."""
        return self.per_round(lambda one: one.schedule.decode(one.step_s), self._extra_s)

    @property
    def _extra_s(self) -> Count:
        return self.system.generation.extra_s

    def per_round(self, of: Callable[[Analysis], Array], more: Count = 0.0) -> Array:
        """What the model's pass and those of its drafts take in a round, and `more`, over the round's tokens."""
        return self.system.generation.per_token(of(self), [of(analysis) for _, analysis in self.drafts], more)

    @property
    def generation_s(self) -> Array:
        """From the first token to the last [s]: the decode steps, and what continuous batching puts between them."""
        return self.decode_s if self.running is None else self.times.generation_s

    @property
    def tpot_s(self) -> Array:
        """Mean time per output token after the first [s]; NaN where output_len is 1."""
        return per_token(self.generation_s, self.schedule.tokens)

    @property
    def e2e_s(self) -> Array:
        """TTFT and all decode steps [s]."""
        return self.ttft_s + self.generation_s

    @property
    def output_tokens_per_s(self) -> Array:
        """Output tokens of the whole batch over the end-to-end time."""
        return np.asarray(self.request.batch_size * self.request.output_len / self.e2e_s)

    @property
    def prefill_mfu(self) -> Array:
        """Causal matmul FLOPs over time x dense peak, those of every dtype at its own peak: never above 1."""
        rate = self.system.chip.matrix_rate
        at_peak_s = total(flops / rate(name) for name, flops in self._prefill_flops.items())
        return np.asarray(at_peak_s / self.own_prefill_s)

    @property
    def decode_mbu(self) -> Array:
        """Weight and cache bytes that the real decode steps read over their time x bandwidth; NaN without any step."""
        read = self.per_round(lambda one: one.schedule.generated(one.read))
        often = 1.0 if self.system.parallelism.microbatches == 1 else self._in_flight
        time_s = np.where(self.schedule.tokens > 0, self.decode_s, np.nan)
        return np.asarray(read * often / (time_s * self.system.chip.bandwidth_bytes_per_s))

    @property
    def read(self) -> Count:
        """Bytes of weights and cache that every pass reads."""
        return self.evaluation.read_bytes if self.read_bytes is None else self.read_bytes

    @property
    def calibration(self) -> Calibrated | None:
        """What calibrated the times; None for the data sheet's roofline."""
        efficiency = self.system.efficiency
        return None if efficiency is ideal else efficiency  # type: ignore[return-value]

    def chip_per_pass(self) -> Chip:
        """The chip with the figures of every pass that the evaluation holds."""
        piece, _ = next(self.schedule.pieces())
        return per_pass(self.system, self.schedule, piece).chip

    def compute_dtype(self, point: int) -> str:
        """The dtype in which most matmul FLOPs of a point's prefill run on this chip."""
        flops = self._prefill_flops
        return max(flops, key=lambda name: float(flops[name][point]))

    @property
    def _prefill_flops(self) -> dict[str, Array]:
        """Causal matmul FLOPs of prefill by the dtype they run in, per point."""
        counts: dict[str, list[Count]] = {}
        for row in self.evaluation.rows:
            operator = row.operator
            if present(operator.matmul_flops):
                name = self.system.chip.compute_dtype(operator.compute)
                useful = operator.matmul_flops - operator.masked_flops
                counts.setdefault(name, []).append(useful * float(row.block.repeats))
        return {name: self.schedule.prefill(total(listed)) for name, listed in counts.items()}


def analyze(model: Model, system: System, request: Request, token_budget: float = np.inf) -> Analysis:
    """Prefill, decode and memory of every point of `request` in one evaluation of the graph.

    Of more passes than fit the memory the decode steps are evaluated in pieces; their times and reads are kept.
    """
    asked = request = _one_per_chip(request, system)
    running = None
    if system.batching is not STATIC:
        request, running = _shared_out(model, system, request, token_budget)
    done = _alone(model, system, request, token_budget, running)
    done = replace(done, request=asked, running=running) if request is not asked else done
    return _drafting(done, request, token_budget) if system.drafters else done


def _shared_out(model: Model, system: System, asked: Request, token_budget: float) -> tuple[Request, Running | None]:
    """What runs at once, of all replicas and of each."""
    from llmviewer.analysis.replica import replica_of  # a static batch asks for nothing

    asked = system.batching.lasting(asked)
    running = system.batching.admit(system.parallelism.replica(asked), replica_of(model, system, token_budget))
    if running is None:
        return asked, None
    batch = running.request.batch_size * system.parallelism.data
    return replace(running.request, batch_size=batch), running


def _drafting(done: Analysis, request: Request, token_budget: float) -> Analysis:
    """The analysis with those of what drafts beside the model."""
    drafts, held = [], done.memory
    for one in done.system.drafters:
        own = _alone(one.draft.model, one.system, request, token_budget, done.running)
        own = replace(own, memory=of_draft(one.draft, own.memory, own.evaluation.graph))
        held = held.beside(own.memory)
        drafts.append((one.draft, own))
    return replace(done, drafts=tuple(drafts), memory=held)


def _alone(model: Model, system: System, request: Request, token_budget: float, running: Running | None) -> Analysis:
    """The passes of one model."""
    priced = price(model, system, request, token_budget, running)
    return Analysis(
        model=model,
        system=system,
        request=request,
        schedule=priced.schedule,
        evaluation=priced.evaluation,
        memory=priced.memory,
        time_s=priced.time_s,
        busiest_s=priced.busiest_s,
        read_bytes=priced.read_bytes,
    )


def _one_per_chip(request: Request, system: System) -> Request:
    """A request for each hypothetical chip, where the system's figures are arrays."""
    chips = system.chip.points
    points = max(map(np.size, (request.batch_size, request.input_len, request.output_len)))
    if 1 < points != chips > 1:
        raise UserError(f"sequences of one length are needed: the chip's figures have {chips}, the request {points}")
    return request if chips == 1 else replace(request, batch_size=request.batch_size * np.ones(chips))
