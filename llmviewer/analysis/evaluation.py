"""The forward passes that a replica runs for a request: counts and times of every operator, and their totals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from llmviewer.analysis.pipeline import Device, devices_of, fullest, fullest_device, stages_of
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count, present, total
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Graph, Operator, Role
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Request, Step
from llmviewer.hardware.chip import Chip
from llmviewer.models.model import Model
from llmviewer.serving.batching import Running
from llmviewer.serving.schedule import (
    Schedule,
    peak_memory_passes,
    schedule,
    with_decodes,
    with_encoder,
    with_filled_chunks,
)
from llmviewer.timing import roofline
from llmviewer.timing.engine_work import changed_kernels, time_within_layers
from llmviewer.timing.roofline import Timing, ideal

if TYPE_CHECKING:
    from llmviewer.timing.overlap import LayerWithCopies

#: Less than the time of any kernel [s].
NO_TIME_S = 1e-12


def passes_of(model: Model, system: System, request: Request, token_budget: float, running: Running | None) -> Schedule:
    """Passes of the fullest replica: prefill of one micro-batch after another, decode steps of one micro-batch.

    token_budget: most tokens of one prefill pass.  running: the sequences that run concurrently; None for a static
    batch.
    """
    own = system.parallelism.microbatch(request)
    if system.block:
        _check_block(system, request)
    if running is None:
        plan = schedule(own, token_budget, system.kv_cache, generation=system.generation)
    else:
        plan = _passes_of_running(system, own, token_budget, running)
    if model.encoder is not None:
        plan = with_encoder(plan, own.input_len)
    in_turn = running is None and system.parallelism.microbatches > 1
    return plan.repeated(system.parallelism.in_flight(request)) if in_turn else plan


def _check_block(system: System, request: Request) -> None:
    """Raise UserError where GPU batches would be empty, or where passes are not those of a plain answer."""
    count = system.parallelism.microbatches
    if system.scheme is not None:
        raise UserError(f"--offload gpu_batches is not modelled with {system.scheme.name}; remove one of them")
    if np.any(system.parallelism.in_flight(request) < count):
        raise UserError(f"--offload gpu_batches={count} needs at least {count} sequences; use a larger --batch-size")


def _passes_of_running(system: System, own: Request, token_budget: float, running: Running) -> Schedule:
    """Passes where sequences start one by one, with decode steps that share prefill passes."""
    budget = token_budget if running.chunk_tokens is None else running.chunk_tokens
    prompts_per_pass = running.prompts_per_pass
    if system.parallelism.microbatches > 1:
        prompts_per_pass = np.minimum(prompts_per_pass, own.batch_size)
    plan = schedule(own, budget, system.kv_cache, prompts_per_pass, system.generation)
    if np.any(running.filled):
        plan = with_filled_chunks(plan, budget * running.filled)
    if np.any(running.decodes):
        context = own.input_len + np.maximum(own.output_len - 2.0, 0.0) / 2.0
        share = 1.0 if running.prompt_steps is None else running.prompt_steps / plan.prefill(1.0)
        plan = with_decodes(plan, running.decodes * share, context, system.generation.shape)
    return plan


def largest_passes_of(model: Model, system: System, request: Request, token_budget: Count) -> Schedule:
    """The passes among which the one with the largest memory is."""
    own = system.parallelism.microbatch(request)
    plan = peak_memory_passes(own, token_budget, system.kv_cache, system.generation)
    return plan if model.encoder is None else with_encoder(plan, own.input_len)


def system_per_pass(system: System, plan: Schedule, piece: slice | npt.NDArray[np.intp] = slice(None)) -> System:
    """The system that runs each pass of `piece`: array figures of the chip are taken per point, and techniques that
    depend on it know the place of the pass in its answer."""
    if system.over_answer is not None:
        system = system.over_answer(system, places_in_answers(plan)[piece])
    return system if system.chip.points == 1 else replace(system, chip=system.chip.spread(plan.point_of_pass[piece]))


def places_in_answers(plan: Schedule) -> Array:
    """Place of the token of each pass in its answer, t / N for t = 1 ... N - 1 after the first token.

    The first token of an answer, whose pass has nothing cached, is at 0; the other passes shown have NaN.
    """
    counts = plan.decode_steps.astype(int)
    number = np.arange(1.0, counts.sum() + 1.0) - np.repeat(plan.decode_starts - plan.shown, counts)
    cached = np.broadcast_to(plan.step.groups[0].cached_tokens, plan.repeats.shape)[: plan.shown]
    shown = np.where(cached == 0.0, 0.0, np.nan)
    return np.concatenate((shown, number / np.repeat(plan.decode_steps + 1.0, counts)))


def graph_of_device(model: Model, system: System, plan: Schedule) -> Graph:
    """The graph of one device after all techniques; in a pipeline, of the fullest pipeline stage."""
    if system.split is not None:
        devices = devices_of(model.graph(plan.step), system.split)
        return devices[fullest_device(devices)].graph
    graph = system_per_pass(system, plan).prepared(model.graph(plan.step))
    if system.parallelism.pipeline == 1:
        return graph
    stages = stages_of(graph, system)
    return stages[fullest(stages, system)]


@frozen(slots=False, eq=False)
class TimedOperator:
    """One operator of one kind of layer; counts and times are for one layer.

    sheet: the chip whose data sheet bounds the time; None where `timing` is that bound.
    """

    block: Block
    operator: Operator
    traffic_bytes: Count
    timing: Timing
    sheet: Chip | None

    @cached_property
    def ideal(self) -> Timing:
        """The time on the data sheet's roofline, computed when it is first read."""
        if self.sheet is None:
            return self.timing
        return roofline.time_operator(self.operator, self.sheet, ideal, self.traffic_bytes)


@frozen(slots=False, eq=False)  # no slots: sums are kept
class Evaluation:
    """A graph after all passes, its rows, and sums over operators x layers.

    Sums run over the operators of a block in order, one addition at a time, then over blocks x layers: a point alone
    and the same point inside a sweep give the same bits.
    served: times that the engine adds to kernels, by name [s].
    copying: layers whose copies overlap with kernels.
    stages: all pipeline stages, this one included; empty without a pipeline.
    known_s: time from the start of a pass to that of the next one if that is before the end of all stages [s].
    devices: of a split, one for each of its stages.
    """

    graph: Graph
    rows: tuple[TimedOperator, ...]
    served: tuple[tuple[str, Count], ...] = ()
    copying: tuple[LayerWithCopies, ...] = ()
    stages: tuple[Evaluation, ...] = ()
    known_s: Count | None = None
    devices: tuple[Device, ...] = ()

    def sum(self, quantity: Callable[[TimedOperator], Count]) -> Count:
        """Total of a quantity over operators x layers."""
        return total(count * self._repeats[name] for name, count in self._of_blocks(quantity).items())

    def served_sum(self, counts: Callable[[Operator], bool]) -> Count:
        """Time of some kernels as the engine runs them, whose own may take other times than those of profiles [s]."""

        def kernels(*of: Callable[[Operator], bool]) -> Count:
            return self.sum(lambda row: row.timing.time_s if all(one(row.operator) for one in of) else 0.0)

        found = [kernels(counts)]
        for term, seconds in self.served:
            if (changed := changed_kernels(term)) is not None:
                found.append(seconds * kernels(changed, counts) / np.maximum(kernels(changed), NO_TIME_S))
        return total(found)

    @cached_property
    def _repeats(self) -> dict[str, float]:
        """Layers of every block, by name."""
        return {row.block.name: float(row.block.repeats) for row in self.rows}

    @property
    def kernels_s(self) -> dict[str, Count]:
        """Time of the kernels of one layer of every block, by name [s]."""
        return self._of_blocks(lambda row: row.timing.time_s)

    def _of_blocks(self, quantity: Callable[[TimedOperator], Count]) -> dict[str, Count]:
        blocks: dict[str, list[Count]] = {}
        for row in self.rows:
            blocks.setdefault(row.block.name, []).append(quantity(row))
        return {name: total(counts) for name, counts in blocks.items()}

    @cached_property
    def time_s(self) -> Count:
        """Time of a pass on one device [s]: kernels and copies less their overlap, plus the engine's time."""
        kernels = _less_overlap(self.sum(lambda row: row.timing.time_s), self.copying)
        return kernels if not self.served else total((kernels, *(seconds for _, seconds in self.served)))

    @property
    def each_stage(self) -> tuple[Evaluation, ...]:
        """All pipeline stages; itself without a pipeline."""
        return self.stages or (self,)

    @property
    def passing_s(self) -> tuple[Count, Count, Count]:
        """Time through all pipeline stages or until the tokens are known, time of the slowest one, after which another
        pass can follow, and time of the last one [s]."""
        times = [stage.time_s for stage in self.each_stage]
        slowest = times[0]
        for seconds in times[1:]:
            slowest = np.maximum(slowest, seconds)
        return total(times) if self.known_s is None else self.known_s, slowest, times[-1]

    @cached_property
    def bounds(self) -> tuple[LayerWithCopies, ...]:
        """The layers of `copying` on the data sheet's roofline, computed when they are first read."""
        if not self.copying:
            return ()
        from llmviewer.timing import overlap  # only offloading needs it

        return overlap.layers_with_copies((row.block, row.operator, row.ideal) for row in self.rows)

    @cached_property
    def ideal_time_s(self) -> Count:
        """Time of a pass on the data sheet's roofline [s]."""
        return _less_overlap(self.sum(lambda row: row.ideal.time_s), self.bounds)

    @cached_property
    def flops(self) -> Count:
        """matmul + vector + recurrence + convolution [FLOP]."""
        return self.sum(lambda row: row.operator.flops)

    @cached_property
    def matmul_flops(self) -> Count:
        """Work of the matrix units [FLOP]."""
        return self.sum(lambda row: row.operator.matmul_flops)

    @cached_property
    def traffic_bytes(self) -> Count:
        """Device-memory traffic [byte]."""
        return self.sum(lambda row: row.traffic_bytes)

    @property
    def read_bytes(self) -> Count:
        """Weights and cache read from device memory [byte]."""
        return self.sum(lambda row: row.operator.read_bytes(Role.WEIGHT, Role.CACHE))

    def at_peak_s(self, chip: Chip) -> Count:
        """Time of the products of attended pairs at the dense peak of their dtypes [s].  chip: with a rate per pass."""
        return self.sum(
            lambda row: (
                row.operator.useful_flops / chip.matrix_rate(row.operator.compute)
                if present(row.operator.matmul_flops)
                else 0.0
            )
        )


def _less_overlap(serial: Count, layers: tuple[LayerWithCopies, ...]) -> Count:
    """Serial time of kernels and copies less their overlap [s]."""
    for layer in layers:
        serial = serial - layer.hidden_s * float(layer.block.repeats)
    return serial


def evaluate(model: Model, system: System, step: Step) -> Evaluation:
    """Build the graph of `step`, apply the graph passes and time every operator; of a pipeline, its fullest stage."""
    if system.split is not None:
        devices = devices_of(model.graph(step), system.split)
        parts = tuple(_on_device(one.system, one.graph, step) for one in devices)
        return replace(parts[fullest_device(devices)], stages=parts, devices=devices)
    graph = system.prepared(model.graph(step))
    if system.parallelism.pipeline == 1:
        return _on_device(system, graph, step)
    graphs = stages_of(graph, system)
    priced: dict[int, TimedOperator] = {}
    stages = tuple(
        _served(Evaluation(graph=graph, rows=_priced(system, graph, priced)), system, step) for graph in graphs
    )
    found = replace(stages[fullest(graphs, system)], stages=stages)
    if system.exits is None or system.exits.unknown is None:
        return found
    from llmviewer.analysis import pipeline_exits  # only early exit needs it

    times = [pipeline_exits.StageTimes(stage.graph, stage.kernels_s, stage.time_s) for stage in stages]
    return replace(found, known_s=pipeline_exits.time_to_next_pass(times, system.exits.unknown(graph)))


def _on_device(system: System, graph: Graph, step: Step) -> Evaluation:
    """The evaluation of the graph of one device."""
    rows = tuple(_row(system, block, operator) for block, operator in graph)
    return _served(Evaluation(graph=graph, rows=rows), system, step)


def _served(kernels: Evaluation, system: System, step: Step) -> Evaluation:
    """The evaluation with the engine's times."""

    def of_kernels(timing: Callable[[TimedOperator], Timing]) -> Callable[[tuple[Kind, ...]], Count]:
        return lambda kinds: kernels.sum(
            lambda row: timing(row).time_s if row.operator.kind in kinds and row.operator.is_kernel else 0.0
        )

    seconds, least = of_kernels(lambda row: row.timing), of_kernels(lambda row: row.ideal)
    terms = system.engine.terms(kernels.graph, step, system.chip, seconds, least)
    if system.copies_beside:
        from llmviewer.timing import overlap  # only offloading needs it

        rows, added = kernels.rows, time_within_layers(terms)
        if present(added):
            added = added / np.maximum(seconds(tuple(Kind)), np.finfo(np.float64).tiny)
        timed = overlap.layers_with_copies(((row.block, row.operator, row.timing) for row in rows), added)
        kernels = replace(kernels, copying=timed)
    return replace(kernels, served=terms) if terms else kernels


def _priced(system: System, graph: Graph, known: dict[int, TimedOperator]) -> tuple[TimedOperator, ...]:
    """Timed operators of a pipeline stage; layers of one kind take the same time in every stage."""
    rows = []
    for block, operator in graph:
        if id(operator) not in known:
            known[id(operator)] = _row(system, block, operator)
        rows.append(replace(known[id(operator)], block=block))
    return tuple(rows)


def _row(system: System, block: Block, operator: Operator) -> TimedOperator:
    traffic = operator.traffic_bytes
    timing = roofline.time_operator(operator, system.chip, system.efficiency, traffic)
    sheet = None if system.efficiency is ideal else system.chip
    return TimedOperator(block=block, operator=operator, traffic_bytes=traffic, timing=timing, sheet=sheet)
