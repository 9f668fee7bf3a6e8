"""Figures of one forward pass, as operations on numbers of the pass and of the request that a page runs by itself.

The passes of a request are those of a static batch: prompts together, a decode step per further token. With
speculation a decode step is a round at that context, with the passes of its drafts, and its figures are those of one
token. In a pipeline a decode step is that of all micro-batches, and a prefill pass takes the time of the slowest
stage: that of the others is added once. The operations are recorded from the code that `analyze` runs; a page holds a
list of them for every way that its branches go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.capacity import extra_memory_of_draft, memory_of_passes
from llmviewer.analysis.evaluation import Evaluation, TimedOperator, evaluate, largest_passes_of
from llmviewer.analysis.pipeline import stores_drafts
from llmviewer.analysis.pricing import PassTimes
from llmviewer.analysis.system import System
from llmviewer.api.configuration import Configuration
from llmviewer.core.counts import Array, Count, total
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph
from llmviewer.core.recording import UnrecordableError, noted
from llmviewer.core.scalars import Pool, Scalars, scalars
from llmviewer.core.workload import PASS_COLUMNS, Group, Request, Step
from llmviewer.models.config import ABSENT_CONTEXT
from llmviewer.models.model import Model
from llmviewer.result import interval
from llmviewer.result.result import Result
from llmviewer.serving.batching import STATIC
from llmviewer.serving.generation import AUTOREGRESSIVE, ONE_TOKEN, PassShape
from llmviewer.serving.schedule import Schedule
from llmviewer.timing.roofline import BOUNDS, OVERHEAD

#: Inputs of the operations: columns of a pass, 1.0 for a decode step, and sizes of its request.
INPUTS = (*PASS_COLUMNS, "decodes", "requests", "input_len", "output_len")
#: Figures of memory that a page shows, by the names of `Memory`.
MEMORY = (
    "total_bytes", "budget_bytes", "weights_bytes", "kv_cache_bytes", "activations_bytes", "framework_bytes",
    "cuda_graphs_bytes", "capacity_bytes", "room_bytes",
)  # fmt: skip
#: Sums over the operators of a pass.
TOTALS = ("ideal_time_s", "flops", "traffic_bytes")
#: Name of the time of a pass beside that of the pipeline stage whose operators are shown.
OTHERS = "other stages and micro-batches"
STAGE_NOTE = "operators, memory and roofline are those of the fullest pipeline stage"
#: Figures of an operator in a pass.
ROW = ("time_s", "ideal_s", "flops", "bytes", "bound")
#: Sizes over which a page answers.
LARGEST = {"batch_size": 512.0, "input_len": 131072.0, "output_len": 8192.0}
#: Requests at which operations are tried before a page is written.
SIZES_TRIED = 600
#: How far a figure may be off that of `analyze`, as processors' exponentials differ.
AGREEMENT = 1e-9
#: Lists of operations of one configuration, and share of the passes tried without one, at most.
MOST_PROGRAMS, MOST_WITHOUT = 12, 0.01


@frozen
class Row:
    """An operator of a layer of which there are `layers` alike."""

    name: str
    block: str
    kind: str
    layers: int


@frozen
class Recorded:
    """A configuration as lists of operations, each for the passes at which its guards hold.

    rows: the operators of every list.  engine: names of the times that the engine adds.
    """

    configuration: Configuration
    programs: tuple[Scalars, ...]
    rows: tuple[tuple[Row, ...], ...]
    engine: tuple[str, ...]

    def run(self, columns: Array) -> tuple[dict[str, Array], Array]:
        """Figures of passes by name, and which list gave them, -1 where none holds.  columns: INPUTS."""
        which = np.full(columns.shape[1], -1)
        found: dict[str, Array] = {}
        for number, program in enumerate(self.programs):
            figures, holds = program.run([*columns])
            here = holds & (which < 0)
            which[here] = number
            for name, values in figures.items():
                found[name] = np.where(here, values, found.get(name, np.full(len(which), np.nan)))
        return found, which


class OnePass(Schedule):
    """A schedule of a single pass, every sum over whose passes is the value of that pass."""

    __slots__ = ()

    def _own(self, values: Count) -> Any:
        return values

    prefill = decode = decode_sum = prefill_max = max_over_passes = _own

    def pieces(self) -> Iterator[tuple[slice, Step]]:
        """The one pass, whole."""
        yield slice(None), self.step


def recorded(one: Configuration, pool: Pool) -> Recorded:
    """The recorded figures of a configuration, which hold all over the sizes of a page.  pool: of all its operations.

    Raises UserError for a configuration whose passes are not those of a static batch.
    """
    _check(one)
    tried = passes_to_try(one)
    programs: list[Scalars] = []
    rows: list[tuple[Row, ...]] = []
    engine: tuple[str, ...] = ()
    left = np.ones(tried.shape[1], dtype=bool)
    while left.any() and len(programs) < MOST_PROGRAMS:
        at = tried[:, int(np.flatnonzero(left)[0])]
        program, listed, engine = _recorded_at(one, at, pool)
        programs.append(program)
        rows.append(listed)
        left &= ~program.run([*tried])[1]
    if (without := float(np.mean(left))) > MOST_WITHOUT:
        raise _refused(
            one, f"operations that differ from size to size ({without:.0%} of sizes are none of {len(programs)} kinds)"
        )
    found = Recorded(configuration=one, programs=tuple(programs), rows=tuple(rows), engine=engine)
    if not _agrees(found):
        raise _refused(one, "what depends on more than the sizes of a pass")
    return found


def _agrees(found: Recorded) -> bool:
    """Whether times and memory are those of `analyze` at requests of any shape, and its passes those of the page."""
    one, chosen = found.configuration, np.random.default_rng(7)
    sizes = np.floor(np.exp2(chosen.uniform(0.0, np.log2([[64.0], [8192.0], [32.0]]), (3, 8))))
    answer = one.answer(Request(**dict(zip(LARGEST, sizes, strict=True)))).analysis
    plan, columns = answer.schedule, columns_of(answer.schedule, sizes, one.system.generation.shape)
    figures, which = found.run(columns)
    request = Request(**dict(zip(LARGEST, columns[5:], strict=True)))
    own = np.asarray(one.system.parallelism.microbatch(request).batch_size)
    at = np.arange(len(own)) - plan.decode_starts[plan.point_of_pass.astype(int)]
    decode = np.array([own, np.ones(len(own)), columns[6] + at, np.ones(len(own))])
    if not np.array_equal(columns[:4, plan.shown :], decode[:, plan.shown :]):
        return False
    known = which >= 0
    held = np.zeros(plan.points)
    np.maximum.at(held, plan.point_of_pass[known].astype(int), figures["memory.total_bytes"][known])
    whole = np.bincount(plan.point_of_pass.astype(int), ~known, plan.points) == 0
    times = figures["time_s"]
    pairs = (
        (plan.prefill(times) + plan.prefill_max(figures["others_s"]), answer.prefill_s),
        (plan.decode(times), answer.token_s),
        (plan.decode_sum(times), answer.decode_s),
        (held, answer.memory.total_bytes * np.ones(len(held))),
    )
    return all(np.allclose(mine[whole], own[whole], rtol=AGREEMENT, atol=0.0) for mine, own in pairs)


def _recorded_at(one: Configuration, at: Array, pool: Pool) -> tuple[Scalars, tuple[Row, ...], tuple[str, ...]]:
    """The operations of a pass, its operators, and the engine's terms."""
    kept: list[tuple[tuple[Row, ...], tuple[str, ...]]] = []

    def computation(columns: Any) -> dict[str, Any]:
        figures, rows, engine = _figures(one, columns)
        kept.append((rows, engine))
        return figures

    try:
        recording, results = noted(computation, [np.full(1, value) for value in at])
        return scalars(recording, results, pool), *kept[0]
    except (UnrecordableError, TypeError, AttributeError) as error:  # the latter: an array is read as no Value can be
        raise _refused(one, f"its computation cannot be recorded ({error})") from error


def _figures(one: Configuration, columns: Any) -> tuple[dict[str, Any], tuple[Row, ...], tuple[str, ...]]:
    """Figures of a pass by name, times first; its operators, and names of the times that the engine adds.

    Those of a round of speculation are of its pass and those of its drafts, over the tokens of the round.
    """
    *own, decodes, requests, input_len, output_len = columns
    request, generation = (
        Request(batch_size=requests, input_len=input_len, output_len=output_len),
        one.system.generation,
    )
    staged = one.system.parallelism.pipeline > 1
    decodes = (staged or generation is not AUTOREGRESSIVE) and bool(decodes > 0.0)
    is_round = generation is not AUTOREGRESSIVE and decodes
    of_pass = partial(_of_pass, request=request, columns=own, is_round=is_round)
    drafts = tuple((each.draft, of_pass(each.draft.model, each.system)) for each in one.system.drafters)
    target = replace(of_pass(one.model, one.system), drafts=drafts)
    parts: list[tuple[Count, str, Evaluation]] = [(1.0, "", target.evaluation)]
    parts += [(1.0, f"{draft.name}: ", alone.evaluation) for draft, alone in drafts if draft.caches and not is_round]
    terms: dict[str, list[Count]] = {name: [] for _, alone in drafts for name, _ in alone.evaluation.served}
    terms |= {name: [] for name, _ in target.evaluation.served}
    if is_round:
        parts = [(1.0 / generation.tokens, "", target.evaluation)]
        parts += [(each.passes / generation.tokens, f"{each.name}: ", alone.evaluation) for each, alone in drafts]
    if generation is not AUTOREGRESSIVE:
        terms["rounds"] = [one.system.outside_kernels_s / generation.tokens] if is_round else []
    found: dict[str, Any] = {}
    for share, _, run in parts:
        for name, seconds in run.served:
            terms[name].append(share * seconds)
    for name in ("time_s", *TOTALS):
        more = terms.get("rounds", []) if name == "time_s" else []
        found[name] = total([*(share * getattr(run, name) for share, _, run in parts), *more])
    found["others_s"] = 0.0
    if staged:
        found["time_s"], found["others_s"] = _in_pipeline(target, decodes=decodes)
        terms[OTHERS] = [found["time_s"] - target.evaluation.time_s]
    found |= {f"engine.{name}": total(seconds) for name, seconds in terms.items()}
    figures, rows = _rows(parts)
    found |= figures
    memory = target.memory
    for draft, alone in drafts if stores_drafts(one.model, one.system) else ():
        memory = memory.beside(extra_memory_of_draft(draft, alone.memory, alone.evaluation.graph))
    found |= {f"memory.{name}": getattr(memory, name) for name in MEMORY}
    return found | (_intervals(target) if one.efficiency != "ideal" else {}), rows, tuple(terms)


def _rows(parts: Sequence[tuple[Count, str, Evaluation]]) -> tuple[dict[str, Any], tuple[Row, ...]]:
    """Figures of the operators that run, by name and number, and these.  parts: share, beginning of blocks, pass."""
    found: dict[str, Any] = {}
    rows: list[Row] = []
    for share, name, run in parts:
        for row in run.rows:
            if _runs(row.operator.where):
                *figures, bound = _row(row)
                values = (*(share * value for value in figures), bound)
                found |= {f"{key}.{len(rows)}": value for key, value in zip(ROW, values, strict=True)}
                operator, block, repeats = row.operator, name + row.block.name, row.block.repeats
                rows.append(Row(name=operator.name, block=block, kind=operator.kind.value, layers=repeats))
    return found, tuple(rows)


def _in_pipeline(target: Analysis, *, decodes: bool) -> tuple[Count, Count]:
    """Time of a decode step of all micro-batches, or of a prefill pass on its slowest stage [s]; that on the others."""
    time_s, busiest_s, _ = target.evaluation.passing_s
    if decodes:
        return np.maximum(time_s, busiest_s * target.system.parallelism.in_flight(target.request)), 0.0
    if not target.system.any_chunks:
        return busiest_s, time_s - busiest_s
    (group,) = target.schedule.step.groups  # of one token, as pricing has it
    token = Step((replace(group, batch_size=1.0, new_tokens=1.0),))
    token_s, token_busiest_s, _ = evaluate(target.model, target.system, token).passing_s
    return busiest_s, token_s - token_busiest_s


def _of_pass(model: Model, system: System, *, request: Request, columns: Any, is_round: bool) -> Analysis:
    """One model in a pass, whose sums over passes are those of that pass.  is_round: it has the shape of a round."""
    batch, new, cached, logits = columns
    group = Group(batch_size=batch, new_tokens=new, cached_tokens=cached, logit_positions=logits)
    if is_round and (shape := system.generation.shape) is not ONE_TOKEN:
        group = replace(
            group,
            new_tokens=shape.new_tokens,
            cached_tokens=cached + shape.ahead,
            logit_positions=shape.logit_positions,
            attended_new_pairs=shape.attended_new_pairs,
        )
    evaluation = evaluate(model, system, Step((group,)))
    plan = OnePass(
        step=Step((group,)), repeats=np.ones(1), points=1, prefill_starts=np.zeros(1), prefill_passes=1,
        decode_steps=np.zeros(1), tokens=request.output_len - 1.0,  # type: ignore[arg-type]
    )  # fmt: skip
    time_s, busiest_s, last_s = evaluation.passing_s
    passes = PassTimes(
        schedule=plan, evaluated=lambda: evaluation, graph_of_device=lambda: evaluation.graph,
        time_s=time_s, busiest_s=busiest_s, last_s=last_s,
    )  # fmt: skip
    stored = partial(memory_of_passes, model, system, request, plan, _running(evaluation.graph))
    return Analysis(model=model, system=system, request=request, passes=passes, stored=stored)


def _intervals(analysis: Analysis) -> dict[str, Any]:
    """Bounds of the 80 % intervals over the time of a prefill and of a decode pass."""
    low, high = interval.LEVELS["80"]
    return {
        f"{stage}.{side}": ratios[at]
        for stage, ratios in interval.step_ratios(analysis).items()
        for side, at in (("low", low), ("high", high))
    }


def _runs(where: Count) -> bool:
    """Whether an operator runs in the pass; where that depends on its numbers, the answer becomes a guard."""
    return where > 0.0 if isinstance(where, float) else bool(np.any(where > 0.0))


def _running(graph: Graph) -> Graph:
    """The graph with the operators that run in the pass alone, whose peak of memory is that of one list."""

    def running(block: Any) -> Any:
        return replace(block, operators=tuple(replace(op, where=1.0) for op in block.operators if _runs(op.where)))

    return graph.map_blocks(running)


def _row(row: TimedOperator) -> tuple[Count, ...]:
    """Figures of an operator, in the order of ROW; its bound as a place in BOUNDS."""
    operator = row.operator
    kernel, roof = _slowest(row.timing.resources), _slowest(row.ideal.resources)
    own: Count = np.where(kernel == BOUNDS.index(OVERHEAD), kernel, roof)  # as roofline.bound
    return row.timing.time_s, row.ideal.time_s, operator.flops, row.traffic_bytes, own


def _slowest(resources: tuple[tuple[str, Count], ...]) -> Count:
    """The place in BOUNDS of the resource that takes longest, as roofline.slowest chooses it."""
    (name, most), *others = sorted(resources, key=lambda pair: BOUNDS.index(pair[0]))
    found: Count = float(BOUNDS.index(name))
    for name, seconds in others:
        found = np.where(seconds > most, float(BOUNDS.index(name)), found)
        most = np.maximum(most, seconds)
    return found


def passes_to_try(one: Configuration) -> Array:
    """Passes all over the sizes of a page, at which the operations have to hold: shape (INPUTS, passes)."""
    chosen = np.random.default_rng(39)
    drawn = [np.floor(np.exp2(chosen.uniform(0.0, np.log2(most), SIZES_TRIED))) for most in LARGEST.values()]
    corners = np.array(np.meshgrid(*([1.0, most] for most in LARGEST.values()))).reshape(3, -1)
    sizes = np.concatenate((corners, np.array(drawn)), axis=1)
    request = Request(**dict(zip(LARGEST, sizes, strict=True)))
    plan = largest_passes_of(one.model, one.system, request, one.token_budget)
    return columns_of(plan, sizes, one.system.generation.shape)


def columns_of(plan: Schedule, sizes: Array, shape: PassShape = ONE_TOKEN) -> Array:
    """INPUTS of the passes of a schedule, of rounds as if they had one token.

    sizes: of the request, shape (3, points).  shape: of the passes of rounds.
    """
    (group,) = plan.step.groups
    batch, new, cached, logits = (np.broadcast_to(getattr(group, name), plan.repeats.shape) for name in PASS_COLUMNS)
    decodes = np.arange(len(plan.repeats)) >= plan.prefill_passes
    own = (batch, np.where(decodes, 1.0, new), cached - decodes * shape.ahead, np.where(decodes, 1.0, logits), decodes)
    return np.array([*own, *sizes[:, plan.point_of_pass.astype(int)]])


def facts_of(one: Configuration, answer: Result) -> dict[str, Any]:
    """Facts of a configuration that a page shows beside its figures.  answer: of any request."""
    system, chip, model = one.system, one.system.chip, one.model
    products = (row.operator for row in answer.analysis.evaluation.rows if row.operator.kind.facts.matrix_units)
    return {
        "devices": system.parallelism.devices,
        "hardware": system.hardware,
        "chip": chip.title,
        "rates": {chip.compute_dtype(op.compute): float(chip.matrix_rate(op.compute)) for op in products},
        "bandwidth": float(np.max(chip.bandwidth_bytes_per_s)),
        "times": f"{one.efficiency} times" + (f", {one.engine_title}" if one.engine_title else ""),
        "most_context": None if model.max_context >= ABSENT_CONTEXT else model.max_context,
        "notes": [*answer.warnings, *(STAGE_NOTE for _ in range(system.parallelism.pipeline > 1))],
        "origin": answer.parts()["provenance"]()["times"],
    }


def _check(one: Configuration) -> None:
    """Raise UserError for a configuration whose passes are not those of a static batch."""
    system, model = one.system, one.model
    outside = {
        f"batching {system.batching.name}": system.batching is not STATIC,
        "drafts that are chosen by the request": bool(one.candidates),
        "parallel or denoised answers": system.generation.counts_passes,
        "speculation in a pipeline": system.parallelism.pipeline > 1 and system.generation is not AUTOREGRESSIVE,
        "devices that are unlike": system.split is not None,
        "offloading": system.chip.host is not None or system.policy is not None,
        "hypothetical chips": system.chip.points > 1,
        "early exit": system.over_answer is not None or system.exits is not None,
        "a KV cache that hits or evicts": bool(system.kv_cache.hit_rate) or system.kv_cache.evicts,
        "the start of an engine (--max-model-len)": system.engine.max_model_len is not None,
        "an encoder": model.is_encoder or model.encoder is not None,
    }
    for what, stated in outside.items():
        if stated:
            raise _refused(one, what)


def _refused(one: Configuration, why: str) -> UserError:
    return UserError(
        f"{one.model.name} on {one.system.hardware}: a page answers static batches of decoders, not {why}; "
        "llmviewer report takes it"
    )
