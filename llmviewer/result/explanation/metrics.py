"""Times of a stage as trees: operators and engine, over pipeline stages, with rounds of drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation, TimedOperator
from llmviewer.analysis.pricing import rounds_of_microbatches
from llmviewer.core.counts import Array, Count, total
from llmviewer.core.frozen import frozen
from llmviewer.result.explanation.node import Later, Node, of_formula, sum_of, sum_with_rest, unasked
from llmviewer.result.explanation.times import operator_time
from llmviewer.result.explanation.work import Pass
from llmviewer.result.stages import ValueOf, value_at, values_of_stage
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft

ENGINE = "time of the engine {engine}, fitted to published runs (calibrate/engines/{engine}.yaml)"
OVERLAP = "copies that run beside kernels (timing/overlap.py)"
REST = (
    "work beside the next token, and layers skipped, where tokens exit early in a pipeline (analysis/pipeline_exits.py)"
)


@frozen(eq=False)
class Question:
    """A point of an analysis whose numbers are explained."""

    analysis: Analysis
    point: int

    def at_pass(self, index: int) -> Pass:
        """The forward pass of an index."""
        own = self.analysis
        return Pass(
            at=lambda values: value_at(values, index),
            chip=own.system.at(self.point).chip,
            calibration=own.calibration,
            config=own.model.source or own.model.name,
        )

    @property
    def drafts(self) -> Iterator[tuple[Draft, Question]]:
        """The draft models, each with the same point of its own analysis."""
        for draft, analysis in self.analysis.drafts:
            yield draft, Question(analysis=analysis, point=self.point)

    def at(self, values: Count) -> float:
        """The value of the point; a scalar is the same at every point."""
        return value_at(values, self.point)

    def summed(self, stage: str) -> ValueOf:
        """Function from a quantity of every pass to its sum over prefill, or to its value in the decode step shown."""
        return values_of_stage(self.analysis.schedule, stage, self.point)[0]

    def together(self, stage: str) -> Pass:
        """All passes of a stage."""
        shown = self.at_pass(self.shown[stage])
        return replace(shown, at=self.summed(stage), shown=shown)

    @property
    def shown(self) -> dict[str, int]:
        """Index of the pass that is shown of each stage: the last of the prompts, the representative decode step."""
        plan = self.analysis.schedule
        ends = np.append(plan.prefill_starts, plan.prefill_passes).astype(int)
        return {"prefill": int(ends[self.point + 1]) - 1, "decode": plan.prefill_passes + self.point}


def sum_node(name: str, value: float, children: tuple[Node, ...], source: str) -> Node:
    """A sum of numbers of seconds, with the rest that they leave if it is more than rounding."""
    return sum_with_rest(name, value, children, source, ("rest_s", REST))


def of_evaluation(one: Question, evaluation: Evaluation, summed: ValueOf, stage: str, share: float) -> Iterator[Node]:
    """Operators of a pipeline stage over its layers, the engine's time and the overlap of copies, each times a share.

    summed: quantity of every pass -> its sum over the passes that count.
    """
    for row in evaluation.rows:
        seconds = summed(row.timing.time_s)
        if seconds:
            yield _operator(one, row, seconds * share, stage)
    engine = one.analysis.system.engine.name
    for name, values in evaluation.served:
        seconds = summed(values) * share
        if seconds:
            yield Node(name=f"engine: {name}", value=seconds, unit="s", source=ENGINE.format(engine=engine))
    for layer in evaluation.copying:
        seconds = summed(layer.hidden_s) * float(layer.block.repeats) * share
        if seconds:
            yield Node(name=f"overlap: {layer.block.name}", value=-seconds, unit="s", source=OVERLAP)


def _operator(one: Question, row: TimedOperator, seconds: float, stage: str) -> Node:
    """An operator over all its layers and all passes of a stage, by its time in the pass that is shown."""
    shown = one.at_pass(one.shown[stage])
    found = over_layers(row, (seconds, shown.at(row.timing.time_s)), stage, partial(operator_time, row, shown))
    asked = f"{'' if stage == 'decode' else f'stages.{stage}.'}operators.{found.name}.time_s"
    return replace(found, asked=asked) if found.formula else found


def over_layers(
    row: TimedOperator, amounts: tuple[float, float], stage: str, opened: Callable[[str], Node], unit: str = "s"
) -> Node:
    """A quantity of an operator over all its layers and all passes of a stage.

    amounts: of one layer, in all passes and in the one shown.  opened: makes the tree of the latter by its name.
    """
    whole, shown = amounts
    layers, name = float(row.block.repeats), f"{row.block.name}.{row.operator.name}"
    many = "layer" if layers == 1.0 else "layers"
    source = f"{layers:g} {many}; passes: sum over the passes of {stage} in units of the one shown"
    if not shown:
        return Node(name=name, value=whole * layers, unit=unit, source=f"{source}; the one shown does not run it")
    inner = "shown_s" if unit == "s" else "shown"
    return Node(
        name=name,
        value=whole * layers,
        unit=unit,
        formula=f"layers * passes * {inner}",
        values={"layers": layers, "passes": whole / shown},
        source=source,
        children=Later(lambda: (opened(inner),)),
    )


def stage_time(one: Question, stage: str) -> Node:
    """Time of a stage: all passes of the prompts, or the representative decode step."""
    totals, summed = one.analysis.evaluation, one.summed(stage)
    children = tuple(of_evaluation(one, totals, summed, stage, 1.0))
    source = f"operators of {stage}, over their layers"
    return sum_node(f"stages.{stage}.time_s", summed(totals.time_s), children, source)


MICRO_BATCHES = "micro-batches that pass through a stage one after another (--pipeline-parallel-size, gpu_batches)"
THROUGH = "passes through stage {number} of the pipeline"
SLOWEST = "passes on stage {number}, the slowest one, which works on all micro-batches"
FILL = "bubble: the first micro-batch passes the other stages while the slowest one waits (serving/schedule.py)"


@frozen(eq=False)
class Part:
    """One pipeline stage and the passes that count.  weight: per pass, 1.0 where it counts.

    stage: its number from 1, 0 without a pipeline.  in_turn: it counts once for every micro-batch.
    """

    evaluation: Evaluation
    weight: Count
    stage: int = 0
    in_turn: bool = False


@frozen(eq=False)
class Modes:
    """The causes for which a step waits, 1.0 or 0.0 per pass.

    through: all stages.  slowest, last: all micro-batches on the slowest or on the last stage.
    """

    through: Count
    slowest: Count = 0.0
    last: Count = 0.0


def parts(own: Analysis, modes: Modes) -> Iterator[Part]:
    """The stages of a model in the passes in which they count."""
    stages = own.evaluation.each_stage
    slowest = _slowest(stages)
    for at, evaluation in enumerate(stages):
        number = at + 1 if len(stages) > 1 else 0
        last = modes.last if evaluation is stages[-1] else 0.0
        in_turn = modes.slowest * np.where(slowest == at, 1.0, 0.0) + last
        found = (
            Part(evaluation=evaluation, stage=number, weight=modes.through),
            Part(evaluation=evaluation, stage=number, weight=in_turn, in_turn=True),
        )
        yield from (part for part in found if np.any(part.weight))


def _slowest(stages: tuple[Evaluation, ...]) -> Array:
    """Index of the slowest stage of every pass."""
    times = np.broadcast_arrays(*(np.atleast_1d(stage.time_s) for stage in stages))
    return np.asarray(np.argmax(np.stack(times), axis=0))


def step_modes(own: Analysis) -> Modes:
    """The causes for which a step of all micro-batches waits, without draft models (`Analysis.step_s`)."""
    if own.system.parallelism.microbatches == 1:
        return Modes(through=1.0)
    time_s, busiest_s, _ = own.evaluation.passing_s
    waits = np.where(busiest_s * in_flight_of(own, busiest_s) > time_s, 1.0, 0.0)
    return Modes(through=1.0 - waits, slowest=waits)


def round_modes(own: Analysis) -> Modes:
    """The causes for which a round with draft models waits, of all micro-batches (`pricing.rounds_of_microbatches`)."""
    through, slowest, last = own.evaluation.passing_s
    for draft, one in own.drafts:
        time_s, busiest_s, last_s = one.evaluation.passing_s
        through = through + draft.passes * time_s
        slowest = slowest + draft.passes * (busiest_s if draft.same_weights else 0.0)
        last = last + draft.passes * last_s
    count = in_flight_of(own, through)
    waits = np.where(count * np.maximum(slowest, last) > through, 1.0, 0.0)
    of_last = np.where(last > slowest, waits, 0.0)
    return Modes(through=1.0 - waits, slowest=waits - of_last, last=of_last)


def in_flight_of(own: Analysis, values: Count) -> Array:
    """Micro-batches in every pass that `values` cover."""
    found: Array = own.in_flight[own.schedule.point_of_pass.astype(int)]
    return found[: np.size(values)] if np.size(values) > 1 else found


def nodes(one: Question, found: Iterator[Part], summed: ValueOf, stage: str, share: float) -> Iterator[Node]:
    """The parts of a time as numbers: operators alone without a pipeline, else a sum per pipeline stage.

    share: factor of all of them; a part that counts for every micro-batch takes their number too.
    """
    for part in found:
        found_s = of_evaluation(one, part.evaluation, partial(_weighted, summed, part.weight), stage, share)
        inner = tuple(_named(part, child) for child in found_s)
        if inner and part.in_turn:
            yield _in_turn(part, inner, one.at(one.analysis.in_flight))
        elif inner and part.stage:
            name, source = f"stage {part.stage}", THROUGH.format(number=part.stage)
            yield sum_of(name, inner, source)
        else:
            yield from inner


def _weighted(summed: ValueOf, weight: Count, values: Count) -> float:
    return summed(values * weight)


def _in_turn(part: Part, inner: tuple[Node, ...], count: float) -> Node:
    """The time of all micro-batches on one stage."""
    source = SLOWEST.format(number=part.stage) if part.stage else "passes of one micro-batch"
    one = sum_of("pass_s", inner, source)
    batches = Node(name="micro_batches", value=count, source=MICRO_BATCHES)
    name = f"stage {part.stage}, micro-batches in turn" if part.stage else "micro-batches in turn"
    return of_formula(name, "micro_batches * pass_s", (batches, one), source)


def _named(part: Part, node: Node) -> Node:
    return replace(node, name=f"stage {part.stage}: {node.name}") if part.stage else node


def own_prefill(one: Question, *, fill: bool = True) -> Iterator[Node]:
    """Prefill by a model without its draft models (`Analysis.own_prefill_s`).

    fill: with the time in which the pipeline fills; without it, the time after which other prompts may follow.
    """
    own, summed = one.analysis, one.summed("prefill")
    if own.system.parallelism.pipeline == 1:
        yield from nodes(one, parts(own, Modes(through=1.0)), summed, "prefill", 1.0)
    elif own.running is not None and own.running.mixed:
        yield from nodes(one, parts(own, step_modes(own)), summed, "prefill", 1.0)
    else:
        repeated = own.running is None and own.system.parallelism.microbatches > 1
        share = 1.0 / one.at(own.in_flight) if repeated else 1.0
        slowest = parts(own, Modes(through=0.0, slowest=1.0))
        found = slowest if repeated else (replace(part, in_turn=False) for part in slowest)
        yield from nodes(one, found, summed, "prefill", share)
        if fill:
            yield _fill(one)


def _fill(one: Question) -> Node:
    """The longest time that a pass spends in the stages beside the slowest one."""
    own, point = one.analysis, one.point
    passes, plan = own.passes, own.schedule
    if passes.fill_s is not None:
        source = "one token through the stages beside the slowest one: the least that fills the pipeline"
        return Node(name="fill_s", value=one.at(passes.fill_s), unit="s", source=source)
    ends = np.append(plan.prefill_starts, plan.prefill_passes).astype(int)
    inside = [value_at(passes.time_s - passes.busiest_s, index) for index in range(ends[point], ends[point + 1])]
    index = int(ends[point] + np.argmax(inside))
    stages = own.evaluation.stages
    slowest = int(value_at(_slowest(stages), index))
    others = (Part(evaluation=stage, weight=1.0, stage=at + 1) for at, stage in enumerate(stages) if at != slowest)
    inner = tuple(nodes(one, others, lambda values: value_at(values, index), "prefill", 1.0))
    return sum_node("fill_s", float(np.max(inside)), inner, FILL)


VERIFICATION = "passes of the model that verify drafts, over the tokens that a round keeps (serving/generation.py)"
DRAFTING = "passes of the draft model, over the tokens that a round keeps (serving/generation.py)"
ROUND = "expected tokens of a round, the bonus token included: acceptance of --speculative ({facts})"
OUTSIDE = "time of a round outside kernels: the method's own, and the engine's to verify drafts (analysis/system.py)"
PASSES = "passes of the draft model in a round (--speculative)"
WITH_CACHE = "prompts that fill the cache of the draft model"
MIXED = "drafts of the sequences that decode in the mixed steps of a prompt (analysis/analysis.py)"


def decode_nodes(one: Question, share: float) -> tuple[Node, ...]:
    """All real decode steps, each part times a share (`Analysis.decode_s`)."""
    own, generation = one.analysis, one.analysis.system.generation
    if generation is AUTOREGRESSIVE:
        return tuple(_passes(one, step_modes(own), own.step_s, share))
    whole, modes = _round_of(own)
    verified = tuple(_passes(one, modes, whole, share))
    tokens, outside = _tokens(one), _outside(one, share)
    if not own.drafts and outside is None and tokens.value == 1.0:
        return verified
    pass_s = sum_of("pass_s", verified, "all decode passes, each position of the answer once")
    found = [of_formula("verification", "pass_s / tokens_per_round", (pass_s, tokens), VERIFICATION)]
    for draft, drafting in one.drafts:
        inner = _draft_passes(drafting, draft, own, share)
        count = Node(name="draft_passes", value=one.at(draft.passes), source=PASSES)
        formula = "draft_passes * pass_s / tokens_per_round"
        found.append(of_formula(f"draft: {draft.name}", formula, (count, inner, tokens), DRAFTING))
    if outside is not None:
        found.append(of_formula("outside kernels", "round_s / tokens_per_round", (outside, tokens), OUTSIDE))
    return tuple(found)


def per_token(formula: str, share: float) -> tuple[str, dict[str, float]]:
    """A formula times a share, as a division by the tokens of which one is asked, and their number."""
    return (formula, {}) if share == 1.0 else (f"{formula} / tokens", {"tokens": 1.0 / share})


def _round_of(own: Analysis) -> tuple[Count, Modes]:
    """Time per pass that the model and its drafts make together [s], and what their passes wait for."""
    if not own.drafts or own.system.parallelism.microbatches == 1:
        return own.step_s, step_modes(own)
    drafts = [(draft, one.passes) for draft, one in own.drafts]
    return rounds_of_microbatches(own.passes, drafts, in_flight_of(own, own.passes.time_s)), round_modes(own)


def _draft_passes(one: Question, draft: Draft, target: Analysis, share: float) -> Node:
    """One draft pass per position of the answer, with the draft model's own operators."""
    if target.system.parallelism.microbatches == 1:
        whole, modes = one.analysis.step_s, step_modes(one.analysis)
    else:
        whole, modes = _round_of(target)
        modes = modes if draft.same_weights else replace(modes, slowest=0.0)
    inner = tuple(map(unasked, _passes(one, modes, whole, share)))
    return sum_of("pass_s", inner, f"one pass of {one.analysis.model.name} per position of the answer")


def _passes(one: Question, modes: Modes, whole: Count, share: float) -> Iterator[Node]:
    """Decode passes of one model in what they wait for.  whole: time per pass of which they are a part [s]."""
    own, summed = one.analysis.evaluation, _decoded(one, whole)
    yield from nodes(one, parts(one.analysis, modes), summed, "decode", share)
    if own.known_s is not None:
        rest = summed((own.known_s - total(stage.time_s for stage in own.stages)) * modes.through)
        if rest:
            yield Node(name="rest_s", value=rest * share, unit="s", source=REST)


def _decoded(one: Question, whole: Count) -> ValueOf:
    """Function from a quantity of every pass to its sum over the real decode steps.

    Where these are too many to keep, the step shown is scaled to all of them.
    """
    plan, shown = one.analysis.schedule, one.summed("decode")
    if one.analysis.passes.is_whole:
        return lambda values: one.at(plan.decode_sum(values))
    scale = one.at(plan.decode_sum(whole)) / shown(whole)
    return lambda values: shown(values) * scale


def _tokens(one: Question) -> Node:
    generation = one.analysis.system.generation
    told = {name: fact if isinstance(fact, str) else f"{one.at(fact):g}" for name, fact in generation.facts.items()}
    facts = ", ".join(f"{name} {text}" for name, text in told.items())
    return Node(name="tokens_per_round", value=one.at(generation.tokens), source=ROUND.format(facts=facts))


def _outside(one: Question, share: float) -> Node | None:
    """Time of all rounds outside kernels, if any."""
    seconds = one.at(one.analysis.system.outside_kernels_s)
    positions = one.at(one.analysis.schedule.decode_steps) * share
    if not seconds:
        return None
    each = Node(name="outside_s", value=seconds, unit="s", source=OUTSIDE)
    source = "a round per position of the answer"
    return of_formula("round_s", "positions * outside_s", (each,), source, {"positions": positions})


def prefill_nodes(one: Question, *, fill: bool = True) -> tuple[Node, ...]:
    """Prefill of one batch of prompts, with draft models (`Analysis.prefill_s`).  fill: as of `own_prefill`."""
    own = one.analysis
    found = list(own_prefill(one, fill=fill))
    for draft, drafting in one.drafts:
        if draft.caches:
            inner = tuple(map(unasked, own_prefill(drafting)))
            found.append(sum_of(f"draft: {draft.name}", inner, WITH_CACHE))
    if own.drafts and own.running is not None and one.at(own.running.decodes) > 0.0:
        found.append(_drafting(one))
    return tuple(found)


def _drafting(one: Question) -> Node:
    """Drafts in mixed steps: the mean of what a round takes beside its verification pass, once per step."""
    own = one.analysis
    steps = one.at(own.schedule.prefill(1.0))
    rounds = max(one.at(own.schedule.decode_steps), 1.0)
    share = one.at(own.system.generation.tokens) / rounds
    inner = tuple(node for node in decode_nodes(one, share) if node.name != "verification")
    mean = sum_of("drafting_s", inner, "mean over the rounds of an answer")
    return of_formula("drafts in mixed steps", "mixed_steps * drafting_s", (mean,), MIXED, {"mixed_steps": steps})
