"""Model x system x request -> prefill, decode, memory and metrics.

Which sequences run concurrently (batching), which forward passes that takes (`evaluation.py`), how long they take
(`pricing.py`), what the device stores meanwhile (`capacity.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.analysis.capacity import (
    extra_memory_of_draft,
    memory_of,
    memory_of_passes,
    one_per_chip,
    running_of,
    stored_request,
)
from llmviewer.analysis.encoders import check_encoder
from llmviewer.analysis.evaluation import Evaluation, graph_of_device, passes_of, system_per_pass
from llmviewer.analysis.memory import Memory
from llmviewer.analysis.pipeline import stores_drafts
from llmviewer.analysis.pricing import PassTimes, price, rounds_of_microbatches
from llmviewer.analysis.rank_shares import rank_shares
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count, present, total
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph
from llmviewer.core.workload import Request, decode
from llmviewer.hardware.chip import Chip
from llmviewer.models.images import Seen
from llmviewer.models.model import Model
from llmviewer.serving.batching import STATIC, RequestTimes, Running, per_token
from llmviewer.serving.generation import Draft
from llmviewer.serving.holding import Until
from llmviewer.serving.schedule import Schedule
from llmviewer.timing.roofline import ideal

if TYPE_CHECKING:
    from llmviewer.timing.calibrated import Calibrated


@frozen(slots=False, eq=False)
class Analysis:
    """Passes, times and memory of a request on a system; arrays have one entry per point.

    passes: the forward passes with their times.  running: sequences that one replica runs concurrently; None for a
    static batch.  stored: computes `memory`.  drafts: draft models, each with the analysis of its own passes.  towers:
    images of the prompts, with the analyses of the vision tower that reads them before prefill.
    """

    model: Model
    system: System
    request: Request
    passes: PassTimes
    stored: Callable[[], Memory]
    running: Running | None = None
    drafts: tuple[tuple[Draft, Analysis], ...] = ()
    towers: tuple[tuple[Seen, Analysis], ...] = ()

    @cached_property
    def memory(self) -> Memory:
        """Bytes that one device stores, computed when they are first read."""
        return self.stored()

    @cached_property
    def whole_graph(self) -> Graph:
        """The graph of the whole model after all passes, however many devices share it."""
        own = self.evaluation.graph
        if self.system.parallelism.devices == 1:
            return own
        return self.system.undivided().prepared(self.model.graph(decode(1.0, 0.0)))

    @property
    def schedule(self) -> Schedule:
        """All forward passes that answer the request."""
        return self.passes.schedule

    @property
    def evaluation(self) -> Evaluation:
        """The passes of the first piece, operator by operator."""
        return self.passes.evaluation

    @property
    def ttft_s(self) -> Array:
        """Host time, images and joint prefill of a static batch [s]; otherwise also queueing, for one request."""
        return self.images_s + self.prefill_s + self.request_s if self.running is None else self.times.ttft_s

    @property
    def images_s(self) -> Count:
        """Passes of the vision tower over all images of a static batch [s]."""
        return total(tower.own_prefill_s for _, tower in self.towers)

    @property
    def request_s(self) -> Array:
        """Time before a user sees the first token, beside queue and passes [s]."""
        return np.asarray(self.system.request_s(self.decode_s / np.maximum(self.schedule.tokens, 1.0)))

    @property
    def times(self) -> RequestTimes:
        """Times of a request with its queueing."""
        alone = RequestTimes(
            prefill_s=self.prefill_s, decode_s=self.decode_s, steps=self.schedule.tokens, request_s=self.request_s
        )
        if self.running is None:
            return alone
        next_s = self.prefill_s - self.own_prefill_s + self.schedule.prefill(self.gap_s)
        hold, ranks = self.system.hold, self.system.parallelism.ranks
        alone = replace(alone, next_s=next_s, hold=hold, holding=ranks)
        if ranks > 1 and not (hold and hold.until is Until.RANKS):  # else none waits for another
            growing, fixed = rank_shares(self.model, self.system, self.schedule, self.evaluation)
            alone = replace(alone, ranks=ranks, growing=growing, fixed=fixed)
        elif (parts := self.system.parallelism.microbatches) > 1:
            filled = np.minimum(self.running.request.batch_size, float(parts))
            alone = replace(alone, next_s=None, ranks=filled, staged=True)
        users = self.system.parallelism.replica(self.request).batch_size
        return self.system.batching.times(alone, self.running, users)

    @property
    def prefill_s(self) -> Array:
        """Prefill of one batch of prompts [s], by the model and by draft models that have a cache; in mixed steps with
        drafts for the sequences that decode in them."""
        seconds = np.asarray(total(one.own_prefill_s for one in self.caching))
        if self.running is None or not np.any(self.running.decodes):
            return seconds
        return seconds + self._drafting_s * self.schedule.prefill(1.0) * np.where(self.running.decodes, 1.0, 0.0)

    @property
    def _drafting_s(self) -> Array:
        """Mean time that a round takes beside its verification pass [s]; no draft pass is joined with a chunk."""
        rounds = self.decode_s * self.system.generation.tokens - self.schedule.decode_sum(self.step_s)
        return np.asarray(rounds / np.maximum(self.schedule.decode_steps, 1.0))

    @property
    def own_prefill_s(self) -> Array:
        """Prefill by the model without draft models [s]; in a pipeline the passes follow each other stage by stage.

        Where an engine may cut passes into chunks of any size (`System.any_chunks`), a lower bound over all sizes.
        """
        passes = self.passes
        if self.system.parallelism.pipeline == 1:
            return self.schedule.prefill(passes.time_s)
        if self.running is not None and self.running.mixed:
            return self.schedule.prefill(self.gap_s)
        return self.schedule.pipelined_prefill(passes.time_s, passes.busiest_s, passes.fill_s)

    @property
    def gap_s(self) -> Count:
        """Time after which another prefill pass follows, per pass [s]: on the slowest stage, or after a mixed step."""
        return self.step_s if self.running is not None and self.running.mixed else self.passes.busiest_s

    @property
    def bounds_all_chunks(self) -> bool:
        """Whether prefill is a lower bound over all ways to cut prompts into chunks, not the time of its passes."""
        return self.passes.fill_s is not None

    def as_scheduled(self) -> Analysis:
        """The analysis with the times of the passes as scheduled, uncut, which a timeline can draw."""
        return replace(self, passes=replace(self.passes, fill_s=None)) if self.bounds_all_chunks else self

    @property
    def step_s(self) -> Count:
        """Time of a step for all sequences, per pass [s]: a micro-batch through the pipeline, or all micro-batches
        through its slowest stage, whichever is longer."""
        parallelism = self.system.parallelism
        if parallelism.microbatches == 1:
            return self.passes.time_s
        in_flight: Array = self.in_flight[self.schedule.point_of_pass.astype(int)]
        return np.maximum(self.passes.time_s, self.passes.busiest_s * in_flight)

    @property
    def in_flight(self) -> Array:
        """Micro-batches of each point: parts of a static batch, or of the sequences that run on a replica."""
        own, ones = self.system.parallelism, np.ones(self.schedule.points)
        if self.running is None:
            return own.in_flight(self.request) * ones
        return np.minimum(self.running.request.batch_size, float(own.microbatches)) * ones

    @property
    def decode_s(self) -> Array:
        """All real decode steps, cached input_len ... input_len + output_len - 2 [s].

        With speculation a round may start at any of these contexts; it generates `generation.tokens` tokens.
        """
        return self._of_rounds(
            lambda one: one.schedule.decode_sum, self.system.outside_kernels_s * self.schedule.decode_steps
        )

    @property
    def token_s(self) -> Array:
        """Time per token of the representative decode step [s]."""
        return self._of_rounds(lambda one: one.schedule.decode, self.system.outside_kernels_s)

    def _of_rounds(self, of: Callable[[Analysis], Callable[[Count], Array]], extra: Count) -> Array:
        """Time per token of the rounds that `of` selects or sums [s].  extra: their time outside kernels."""
        if not self.drafts or self.system.parallelism.microbatches == 1:
            return self.per_round(lambda one: of(one)(one.step_s), extra)
        in_flight: Array = self.in_flight[self.schedule.point_of_pass.astype(int)]
        rounds = rounds_of_microbatches(self.passes, [(draft, one.passes) for draft, one in self.drafts], in_flight)
        return np.asarray((of(self)(rounds) + extra) / self.system.generation.tokens)

    @property
    def caching(self) -> tuple[Analysis, ...]:
        """The analyses of the model and of the draft models that have a cache, which read the prompts too."""
        return (self, *(own for draft, own in self.drafts if draft.caches))

    def per_round(self, quantity: Callable[[Analysis], Array], extra: Count = 0.0) -> Array:
        """`quantity` of the verification pass and the draft passes of a round, plus `extra`, per token of the round."""
        drafts = [quantity(analysis) for _, analysis in self.drafts]
        return self.system.generation.per_token(quantity(self), drafts, extra)

    @property
    def generation_s(self) -> Array:
        """Time from the first token to the last [s]: decode steps, and prefill of other requests between them."""
        return self.decode_s if self.running is None else self.times.generation_s

    @property
    def tpot_s(self) -> Array:
        """Mean time per output token after the first [s]; NaN where no pass follows the first token."""
        return per_token(self.generation_s, self.schedule.tokens)

    @property
    def e2e_s(self) -> Array:
        """End-to-end latency [s]: TTFT and all decode steps."""
        return self.ttft_s + self.generation_s

    @property
    def prefill_mfu(self) -> Array:
        """Causal matmul FLOPs over time x dense peak, each dtype at its own peak; never above 1."""
        rate = self.system.chip.matrix_rate
        at_peak_s = total(flops / rate(name) for name, flops in self._prefill_flops.items())
        return np.asarray(at_peak_s / self.own_prefill_s)

    @property
    def decode_mfu(self) -> Array:
        """Causal matmul FLOPs of the real decode steps over time x dense peak, as of prefill; NaN without any step."""
        return self._share_of_decode(lambda one: one.passes.at_peak_s(one.chip_per_pass()))

    @property
    def decode_mbu(self) -> Array:
        """Weight and cache bytes that the real decode steps read over their time x bandwidth; NaN without any step."""
        return self._share_of_decode(lambda one: one.passes.read_bytes, self.system.chip.bandwidth_bytes_per_s)

    def of_request(self, per_pass: Callable[[Analysis], Count]) -> Array:
        """A count of all passes of a request, prefill and every decode step, of all micro-batches and drafts."""
        towers = (tower for _, tower in self.towers)
        prompts = [one.schedule.prefill(per_pass(one)) for one in (*self.caching, *towers)]
        done = self.per_round(lambda one: one.schedule.decode_sum(per_pass(one)))
        repeats = 1.0 if self.system.parallelism.microbatches == 1 else self.in_flight
        return np.asarray((np.sum(prompts, axis=0) + done) * repeats)

    def _share_of_decode(self, per_pass: Callable[[Analysis], Count], rate: Count = 1.0) -> Array:
        """A quantity of the real decode steps of all micro-batches over their time x rate; NaN without any step."""
        done = self.per_round(lambda one: one.schedule.decode_sum(per_pass(one)))
        repeats = 1.0 if self.system.parallelism.microbatches == 1 else self.in_flight
        time_s = np.where((self.schedule.tokens > 0) & (self.decode_s > 0.0), self.decode_s, np.nan)
        return np.asarray(done * repeats / (time_s * rate))

    @property
    def calibration(self) -> Calibrated | None:
        """The calibrated efficiencies; None for the data sheet's roofline."""
        efficiency = self.system.efficiency
        return None if efficiency is ideal else efficiency  # type: ignore[return-value]

    @cached_property
    def devices(self) -> tuple[Analysis, ...]:
        """The analysis of each device of a split that holds a part of the model; itself for all others."""
        if self.system.split is None:
            return (self,)
        parts = self.evaluation
        return tuple(
            replace(self, system=one.system, passes=replace(self.passes, evaluated=partial(replace, part)))
            for one, part in zip(parts.devices, parts.stages, strict=True)
        )

    def chip_per_pass(self) -> Chip:
        """The chip with the figures of each pass in `evaluation`."""
        piece, _ = next(self.schedule.pieces())
        return system_per_pass(self.system, self.schedule, piece).chip

    def compute_dtype(self, point: int) -> str:
        """The dtype in which most matmul FLOPs of a point's prefill run."""
        flops = self._prefill_flops
        return max(flops, key=lambda name: float(flops[name][point]))

    @property
    def _prefill_flops(self) -> dict[str, Array]:
        """Causal matmul FLOPs of prefill per point, by dtype."""
        counts: dict[str, list[Count]] = {}
        for row in self.evaluation.rows:
            operator = row.operator
            if present(operator.matmul_flops):
                name = self.system.chip.compute_dtype(operator.compute)
                counts.setdefault(name, []).append(operator.useful_flops * float(row.block.repeats))
        return {name: self.schedule.prefill(total(listed)) for name, listed in counts.items()}


def analyze(model: Model, system: System, request: Request, token_budget: float = np.inf) -> Analysis:
    """Prefill, decode and memory of every point of `request`.

    token_budget: most tokens of one prefill pass.  All passes are priced in one evaluation of the graph; if they do not
    fit in memory, decode steps are evaluated in pieces of which times and bytes read are kept.
    """
    requested = request = one_per_chip(request, system)
    check_encoder(model, system, request, token_budget)
    running = None
    if system.batching is not STATIC:
        request, running = running_of(model, system, request, token_budget)
    found = _without_drafts(model, system, request, token_budget, running)
    found = replace(found, request=requested, running=running) if request is not requested else found
    return _with_drafts(found, request, token_budget) if system.drafters else found


def _with_drafts(target: Analysis, request: Request, token_budget: float) -> Analysis:
    """The analysis with those of its draft models."""
    drafts, running = [], target.running
    if running is not None:  # the model verifies in mixed steps; its drafts have passes of their own
        running = replace(running, decodes=0.0)
    for one in target.system.drafters:
        alone = _without_drafts(one.draft.model, one.system, request, token_budget, running)
        drafts.append((one.draft, replace(alone, stored=partial(_extra_memory, one.draft, alone))))

    def stored() -> Memory:
        memory = target.memory
        for _, own in drafts if stores_drafts(target.model, target.system) else ():
            memory = memory.beside(own.memory)
        return memory

    return replace(target, drafts=tuple(drafts), stored=stored)


def _extra_memory(draft: Draft, alone: Analysis) -> Memory:
    return extra_memory_of_draft(draft, alone.memory, alone.passes.graph)


def with_images(found: Analysis, images: tuple[Seen, ...], system: System) -> Analysis:
    """The analysis with the passes of the vision tower over the images of its prompts, one size after another.

    system: that of the tower, whose weights are among those of the model.  Activations are those of the larger of both.
    """
    towers = towers_of(found.request, images, system)

    def stored() -> Memory:
        activations = [tower.memory.activations_bytes for _, tower in towers]
        return replace(found.memory, activations_bytes=reduce(np.maximum, activations, found.memory.activations_bytes))

    return replace(found, towers=towers, stored=stored)


def towers_of(request: Request, images: tuple[Seen, ...], system: System) -> tuple[tuple[Seen, Analysis], ...]:
    """The passes of the vision tower over the images of a batch of prompts, one size after another."""

    def passes(one: Seen) -> Analysis:
        number = request.batch_size * float(one.images.count)
        patches, single = 0.0 * request.input_len + one.patches, 0.0 * request.output_len + 1.0
        return analyze(one.tower, system, Request(batch_size=number, input_len=patches, output_len=single))

    return tuple((one, passes(one)) for one in images)


def _without_drafts(
    model: Model, system: System, request: Request, token_budget: float, running: Running | None
) -> Analysis:
    """Passes, times and memory of one model."""
    passes = price(model, system, passes_of(model, system, request, token_budget, running))

    def stored() -> Memory:
        kept = stored_request(system, request, running)
        if system.split is not None and running is None and passes.is_whole:
            devices = passes.evaluation.devices
            return Memory.tightest(
                [memory_of_passes(model, one.system, kept, passes.schedule, one.graph) for one in devices]
            )
        if system.split is not None:
            return memory_of(model, system, kept, token_budget)
        if passes.is_whole:
            return memory_of_passes(model, system, kept, passes.schedule, passes.graph)
        if running is None:
            return memory_of(model, replace(system, drafters=()), kept, token_budget)
        largest = passes.schedule.peak_memory()
        return memory_of_passes(model, system, kept, largest, graph_of_device(model, system, largest))

    return Analysis(model=model, system=system, request=request, passes=passes, stored=stored)
