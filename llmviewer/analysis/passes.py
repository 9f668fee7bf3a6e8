"""Forward passes that one replica of a system runs for a request, before anything is timed or stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from llmviewer.analysis.pipeline import fullest, stages_of
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph
from llmviewer.core.workload import Request
from llmviewer.models.model import Model
from llmviewer.serving.batching import Running
from llmviewer.serving.encoded_inputs import with_encoder
from llmviewer.serving.mixed_steps import with_decodes, with_filled_chunks
from llmviewer.serving.schedule import Schedule, peak_memory_passes, schedule


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
        plan = with_decodes(plan, running.decodes, context, system.generation.shape)
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
    graph = system_per_pass(system, plan).prepared(model.graph(plan.step))
    if system.parallelism.pipeline == 1:
        return graph
    stages = stages_of(graph, system)
    return stages[fullest(stages, system)]
