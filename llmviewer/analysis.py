"""Model x system x request -> prefill, decode, memory, metrics: the composition of everything below."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from llmviewer import memory
from llmviewer.chip import Chip
from llmviewer.efficiency import ideal
from llmviewer.errors import UserError
from llmviewer.evaluation import Evaluation, evaluate
from llmviewer.ir import Array, Count, Graph, present, total
from llmviewer.kv_cache import KvCache
from llmviewer.memory import Memory
from llmviewer.models.model import Model
from llmviewer.models.sizes import ABSENT_CONTEXT
from llmviewer.schedule import Schedule, falls, largest_passes, schedule
from llmviewer.system import System
from llmviewer.workload import Request

if TYPE_CHECKING:
    from llmviewer.calibrated import Calibrated

#: What a CUDA context and an engine hold beside tensors: vLLM reports "non_torch_memory takes 0.16GiB" on an H100.
FRAMEWORK_BYTES = 0.16 * 2.0**30
#: Whose chips run such an engine, and what the generations of their GPUs begin with; elsewhere the share is unknown
#: and left out.
FRAMEWORK_GPUS = {"NVIDIA": "", "AMD": "cdna"}
FRAMEWORK_SOURCE = "https://github.com/vllm-project/vllm/pull/12126"
#: No search for a largest batch or context goes beyond this.
SEARCH_LIMIT = 2.0**32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """Everything known of a request on a system; arrays have one entry per point.

    time_s: of every pass of the schedule, through all stages.  busiest_s: that of the slowest stage alone.
    read_bytes: weights and cache read by every pass; None where all passes are in `evaluation`.
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

    @property
    def ttft_s(self) -> Array:
        """Joint prefill of the whole batch [s]; in a pipeline each pass follows the one before it, stage by stage."""
        if self.system.parallelism.pipeline == 1:
            return self.schedule.prefill(self.time_s)
        fill = self.schedule.worst_prefill(self.time_s - self.busiest_s)
        return self.schedule.prefill(self.busiest_s) + fill

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
    def generation_s(self) -> Array:
        """All real decode steps, cached input_len ... input_len + output_len - 2 [s]."""
        return self.schedule.generated(self.step_s)

    @property
    def tpot_s(self) -> Array:
        """Mean time per output token after the first [s]; NaN where output_len is 1."""
        steps = self.schedule.decode_steps
        return np.where(steps > 0, self.generation_s / np.maximum(steps, 1.0), np.nan)

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
        return np.asarray(at_peak_s / self.ttft_s)

    @property
    def decode_mbu(self) -> Array:
        """Weight and cache bytes that the real decode steps read over their time x bandwidth; NaN without any step."""
        read = self.schedule.generated(self.evaluation.read_bytes if self.read_bytes is None else self.read_bytes)
        often = 1.0 if self.system.parallelism.microbatches == 1 else self._in_flight
        time_s = np.where(self.schedule.decode_steps > 0, self.generation_s, np.nan)
        return np.asarray(read * often / (time_s * self.system.chip.bandwidth_bytes_per_s))

    @property
    def calibration(self) -> Calibrated | None:
        """What calibrated the times; None for the data sheet's roofline."""
        efficiency = self.system.efficiency
        return None if efficiency is ideal else efficiency  # type: ignore[return-value]

    def chip_per_pass(self) -> Chip:
        """The chip with the figures of every pass that the evaluation holds."""
        piece, _ = next(self.schedule.pieces())
        return _per_pass(self.system, self.schedule, piece).chip

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
                counts.setdefault(name, []).append(useful * float(row.block.times))
        return {name: self.schedule.prefill(total(listed)) for name, listed in counts.items()}


def analyze(model: Model, system: System, request: Request, token_budget: float = np.inf) -> Analysis:
    """Prefill, decode and memory of every point of `request` in one evaluation of the graph.

    Of more passes than fit the memory the decode steps are evaluated in pieces; their times and reads are kept.
    """
    request = _one_per_chip(request, system)
    plan = _passes(system, request, token_budget)
    (piece, step), *later = plan.pieces()
    evaluation = evaluate(model, _per_pass(system, plan, piece), step)
    (time_s, busiest_s), read = evaluation.passing_s, None
    if later:
        pieces = (evaluate(model, _per_pass(system, plan, piece), step) for piece, step in later)
        kept = [(time_s, busiest_s, evaluation.read_bytes), *((*piece.passing_s, piece.read_bytes) for piece in pieces)]
        time_s, busiest_s, read = (np.concatenate(column) for column in zip(*kept, strict=True))
        held = memory_of(model, system, request, token_budget)
    else:
        held = _memory(model, system, request, plan, evaluation.graph)
    return Analysis(
        model=model,
        system=system,
        request=request,
        schedule=plan,
        evaluation=evaluation,
        memory=held,
        time_s=time_s,
        busiest_s=busiest_s,
        read_bytes=read,
    )


def _passes(system: System, request: Request, token_budget: float) -> Schedule:
    """The passes of the fullest replica, micro-batch by micro-batch."""
    plan = schedule(system.parallelism.microbatch(request), token_budget, system.kv_cache)
    return plan if system.parallelism.microbatches == 1 else plan.repeated(system.parallelism.in_flight(request))


def _one_per_chip(request: Request, system: System) -> Request:
    """A request for each hypothetical chip, where the system's figures are arrays."""
    chips = system.chip.points
    points = max(map(np.size, (request.batch_size, request.input_len, request.output_len)))
    if 1 < points != chips > 1:
        raise UserError(f"sequences of one length are needed: the chip's figures have {chips}, the request {points}")
    return request if chips == 1 else replace(request, batch_size=request.batch_size * np.ones(chips))


def _per_pass(system: System, plan: Schedule, piece: slice = slice(None)) -> System:
    """The system with the figures of the chip that runs each pass of a piece of the schedule."""
    return system if system.chip.points == 1 else replace(system, chip=system.chip.spread(plan.owners[piece]))


def _memory(model: Model, system: System, request: Request, plan: Schedule, graph: Graph) -> Memory:
    """Cache at input_len + output_len - 1 tokens for the whole batch; activations at the worst pass."""
    request = system.parallelism.replica(request)
    cache = _reserving(model, system.kv_cache, graph)
    held = _cache_bytes(cache, request, graph)
    weights, activations = memory.weights_bytes(graph), plan.worst(memory.peak_activations(graph))
    framework = _framework_bytes(system.chip)
    capacity = system.chip.memory_bytes
    budget = utilization = capacity * system.memory_utilization
    if system.cache_fraction is not None:
        others = weights + activations + framework
        budget = others + (capacity - others) * system.cache_fraction
    return Memory(
        weights_bytes=weights,
        kv_cache_bytes=held,
        kv_cache_used_bytes=held if cache == cache.exact else _cache_bytes(cache.exact, request, graph, cache),
        activations_bytes=activations,
        framework_bytes=framework,
        capacity_bytes=capacity,
        budget_bytes=budget,
        utilization_bytes=utilization,
    )


def _reserving(model: Model, cache: KvCache, graph: Graph) -> KvCache:
    """The cache with the model's maximum context where that much is reserved."""
    if cache.reserve != np.inf:
        return cache
    if model.max_context >= ABSENT_CONTEXT and any(state.per_token for block in graph.blocks for state in block.states):
        raise UserError(f"--kv-reserve max: {model.name} states no maximum context; give a number of tokens")
    return replace(cache, reserve=model.max_context)


def _cache_bytes(cache: KvCache, request: Request, graph: Graph, finder: KvCache | None = None) -> Count:
    """The cache of the whole batch, a shared prefix once.  finder: whose pages say what of the prompt is found."""
    context = request.input_len + request.output_len - 1.0
    own, shared = memory.shares_of_cache(graph, cache, context, (finder or cache).found(request.input_len))
    return own * request.batch_size + shared


def _framework_bytes(chip: Chip) -> float:
    prefix = FRAMEWORK_GPUS.get(chip.maker)
    return FRAMEWORK_BYTES if prefix is not None and chip.generation.startswith(prefix) else 0.0


def memory_of(model: Model, system: System, request: Request, token_budget: float = np.inf) -> Memory:
    """Memory alone, without timing a single operator."""
    plan = largest_passes(system.parallelism.microbatch(request), token_budget, system.kv_cache)
    graph = _per_pass(system, plan).prepared(model.graph(plan.step))
    if system.parallelism.pipeline > 1:
        from llmviewer.pipeline import fullest, stages_of  # only pipelines need it

        stages = stages_of(graph, system)
        graph = stages[fullest(stages)]
    return _memory(model, system, request, plan, graph)


def max_batch_size(model: Model, system: System, request: Request, token_budget: float = np.inf) -> float:
    """The largest batch of this request (one point) that fits; one more does not."""

    def fits(batches: Count) -> Count:
        return memory_of(model, system, replace(request, batch_size=batches), token_budget).fits

    return memory.largest(fits, SEARCH_LIMIT)


def max_context_len(model: Model, system: System, request: Request, token_budget: float = np.inf) -> float:
    """The longest input_len + output_len of this request (one point) that fits, its output_len kept."""
    output = float(np.max(request.output_len))

    def fits(prompts: Count) -> Count:
        return memory_of(model, system, replace(request, input_len=prompts), token_budget).fits

    # under a budget memory falls where one prompt less goes into a pass, and rises between such lengths
    starts = 1.0 + np.append(0.0, falls(float(np.max(request.batch_size)), token_budget, system.kv_cache))
    fitting = np.asarray(fits(starts), dtype=bool)
    if not fitting.any():
        return 0.0
    last = int(np.flatnonzero(fitting)[-1])
    limit = SEARCH_LIMIT if last == len(starts) - 1 else float(starts[last + 1]) - 1.0
    return memory.largest(fits, limit, float(starts[last])) + output


def max_concurrent_requests(model: Model, system: System, request: Request, token_budget: float = np.inf) -> float:
    """Requests of full length whose caches fit at once: floor((cache budget - shared prefix) / cache of one request).

    Activations are those of one step of an engine that admits prompts one after another: as many whole prompts as the
    token budget allows, one where there is none.  vLLM logs it as "Maximum concurrency" (for its longest context).
    """
    replicas = system.parallelism.data
    system = replace(system, parallelism=replace(system.parallelism, data=1))
    new = request.input_len - system.kv_cache.found(request.input_len)
    together = 1.0 if token_budget == np.inf else float(np.maximum(np.floor(token_budget / new), 1.0))
    sizes = replace(request, batch_size=np.array([1.0, 2.0, together]))
    held = memory_of(model, system, sizes, token_budget)
    first, both, _ = np.asarray(held.kv_cache_bytes)
    own, budget = both - first, np.asarray(held.kv_cache_budget_bytes)[2]
    if not own:  # no layer keeps anything of a sequence
        return np.inf
    return float(np.maximum(np.floor((budget - (first - own)) / own), 0.0)) * replicas
