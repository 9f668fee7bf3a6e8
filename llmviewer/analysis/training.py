"""Memory and time of one training step: of all weights, of low-rank adapters, or of the heads of a speculator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from enum import Enum

import numpy as np

from llmviewer.analysis import memory
from llmviewer.analysis.evaluation import Evaluation, TimedOperator, evaluate
from llmviewer.analysis.power_shares import shares_of
from llmviewer.analysis.system import Drafter, System
from llmviewer.analysis.training_layout import Layout, Offload, States, Times, host_rate, updated_bytes
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Graph, Operator, Place, Role
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Group, Step
from llmviewer.models.model import Model
from llmviewer.ops.gemm import is_routed
from llmviewer.serving.generation import Draft
from llmviewer.timing.roofline import Timing

#: Part of the name of an adapter's weights, and beginning of that of a routed expert's.
ADAPTER, EXPERT = "_lora_", "expert_"
#: Bytes of a logit in fp32 for the loss, and of its gradient, beside the logit of the head.
LOSS_BYTES = 8.0
#: Backward over forward pass of attention: five products for two (FlashAttention-2, arXiv 2307.08691, section 3.1).
ATTENTION_BACKWARD = 2.5
#: Of operators without products: a gradient is read for every tensor written, and written for every tensor read.
OTHER_BACKWARD = 2.0
#: A collective of the forward pass has one of the same size in the backward pass (Megatron-LM, arXiv 1909.08053).
COLLECTIVE_BACKWARD = 1.0
#: The loss is computed on logits split by vocabulary, which nobody gathers (Megatron-LM, arXiv 1909.08053).
LOGITS, SEND = "logits_all_gather", "send"


class Trained(Enum):
    """The weights of a model that a step trains."""

    ALL = "all weights"
    ADAPTERS = "adapters"
    NOTHING = "nothing"


@frozen
class Recipe:
    """How a step is trained.

    state_bytes: state of the optimizer per trained weight [byte]; on_host: share of it on the host.  recompute: share
    of the layers that keep their inputs alone and run again before their backward pass; the others keep all tensors, or
    with `selective` the outputs of products and of fused attention, and run the rest again.
    """

    trained: Trained
    state_bytes: float
    on_host: float = 0.0
    recompute: float = 1.0
    selective: bool = False

    def keeps(self, operator: Operator) -> bool:
        """Whether the outputs of an operator stay until the backward pass in a layer that does not run again."""
        return not self.selective or operator.role is OperatorRole.ATTENTION or operator.kind is Kind.GEMM

    def again(self, row: TimedOperator) -> float:
        """Share of the layers in which an operator runs again."""
        if not row.block.is_layer:
            return 0.0
        kept = self.keeps(row.operator) or row.operator.kind is Kind.COLLECTIVE
        return self.recompute + (1.0 - self.recompute) * (not kept)


@frozen
class TrainingStep:
    """One step on one device: memory by kind [byte], time by part [s], and the work of the matrix units [FLOP].

    trained: number of trained weights of the device, before they are divided over replicas.  weights_bytes: all
    weights, frozen ones in their stored format.  gathered_bytes: whole weights and gradients of the layers at work,
    where they are divided.  Memory is that of the pipeline stage with most, times those of the slowest.
    matmul_flops: with work that runs again, model_flops: without.  exchange_s: the part of the exchange of gradients
    and weights that no computation hides; bubble_s: in which the stages of a pipeline wait; offload_s: of copies to the
    host and of its optimizer.  work_s: dynamic energy over the board power [s].
    """

    trained: float
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    host_bytes: float
    activations_bytes: float
    gathered_bytes: float
    matmul_flops: float
    model_flops: float
    forward_s: float
    recompute_s: float
    backward_s: float
    optimizer_s: float
    exchange_s: float
    bubble_s: float
    offload_s: float
    work_s: float

    @property
    def time_s(self) -> float:
        """Time of the step [s]."""
        passes = self.forward_s + self.recompute_s + self.backward_s
        return passes + self.optimizer_s + self.exchange_s + self.bubble_s + self.offload_s

    @property
    def held_bytes(self) -> float:
        """Bytes on the device."""
        states = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.activations_bytes + self.gathered_bytes

    def beside(self, other: TrainingStep) -> TrainingStep:
        """The step together with that of another model, run one after another on the same device."""
        return TrainingStep(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})


def training_step(
    model: Model, system: System, length: float, recipe: Recipe, layout: Layout, teacher: Model | None = None
) -> TrainingStep:
    """The step of a batch.  length: tokens of each sequence.  teacher: runs forward on the same tokens.

    A product takes as much work again in the backward pass for the gradient of its input, and as much for that of its
    weights if they are trained; layers that are recomputed run forward twice.  Heads of a speculator are trained on the
    states of their model, which runs forward alone.
    """
    frozen = replace(recipe, trained=Trained.NOTHING)
    if not system.drafters:
        found = _part(model, system, length, recipe, layout)
        return found if teacher is None else found.beside(_part(teacher, system, length, frozen, layout))
    found = _part(model, replace(system, drafters=()), length, frozen, layout)
    for one in trained_drafters(system):
        found = found.beside(_part(one.draft.model, one.system, length, recipe, layout, one.draft))
    return found


def trained_drafters(system: System) -> list[Drafter]:
    """The draft models with weights of their own; the others are further passes of one of these or of the target."""
    return [one for one in system.drafters if one.draft.shared is not None]


@frozen
class _Stage:
    """One device of a pipeline stage, with times of one micro-batch.

    kept_bytes: activations of a micro-batch until its backward pass; extra_bytes: beside them at the fullest moment.
    """

    states: States
    kept_bytes: float
    extra_bytes: float
    matmul_flops: float
    model_flops: float
    times: Times
    work_s: float


def _part(
    model: Model, system: System, length: float, recipe: Recipe, layout: Layout, draft: Draft | None = None
) -> TrainingStep:
    """The step of one model.

    draft: what the model is if it drafts for another one, whose weights that it shares are frozen.  Heads without a
    cache run on states of the other model, one per logit; layers of all others run as in prefill.
    """
    shared: Collection[str] = () if draft is None else draft.shared or ()
    inner = 1.0 if draft is None or draft.caches else length
    layers, ends = (
        evaluate(model, system, _step(layout.micro_batch, length, logits)).each_stage for logits in (inner, length)
    )
    stages = [_stage(system, parts, recipe, shared, layout) for parts in zip(layers, ends, strict=True)]
    return _whole(stages, system, recipe, layout)


def _stage(
    system: System, of: tuple[Evaluation, Evaluation], recipe: Recipe, shared: Collection[str], layout: Layout
) -> _Stage:
    """A pipeline stage.  of: its layers, and its ends with all their logits."""
    layers, ends = of
    rows = [row for one, inner in ((layers, True), (ends, False)) for row in one.rows if row.block.is_layer is inner]
    rows = [row for row in rows if row.operator.name != LOGITS]
    learns = recipe.trained is not Trained.NOTHING
    if not learns:
        recipe = replace(recipe, recompute=0.0, selective=False)
    trained, shares = _trained(layers.graph, recipe.trained, shared), shares_of(system.chip)
    graph = ends.graph.map_blocks(_without_gather)
    kept, extra = _activations(graph, recipe) if learns else (0.0, _peak(graph))
    dense = _dense_ratio(rows)
    times, matmul, model, work = Times(), 0.0, 0.0, 0.0
    for row in rows:
        again, back = recipe.again(row), learns * _backward(row, trained)
        seconds = dense * _seconds(row, row.ideal) if is_expert(row) else _seconds(row, row.timing)
        seconds *= layout.sends(system.parallelism.tensor) if row.block.name == SEND else 1.0
        times += layout.kernel_times(seconds, again, back, system)
        matmul, model = matmul + (1.0 + again + back) * _flops(row), model + (1.0 + back) * _flops(row)
        if shares is not None:
            work += (1.0 + again + back) * _scalar(shares.of_row(row)) * row.block.repeats
    return _Stage(
        states=_states(layers.graph, trained, shared, layout),
        kept_bytes=kept,
        extra_bytes=extra,
        matmul_flops=matmul,
        model_flops=model,
        times=times,
        work_s=work,
    )


def _without_gather(block: Block) -> Block:
    return replace(block, operators=tuple(one for one in block.operators if one.name != LOGITS))


def _states(graph: Graph, trained: Mapping[str, float], shared: Collection[str], layout: Layout) -> States:
    """Weights of a stage; the largest of its layers, which is gathered whole where replicas divide the weights."""

    def own(name: str) -> bool:
        return layout.experts > 1 and name.startswith(EXPERT)

    sizes = [(tensor.name, _scalar(tensor.elements) * tensor.dtype.bytes * times)
             for tensor, times in graph.stored_weights() if tensor.name not in shared]  # fmt: skip
    largest = max(
        (sum(_scalar(t.elements) * t.dtype.bytes for name, t in block.weights().items() if not own(name)),
         sum(_scalar(t.elements) for name, t in block.weights().items() if name in trained and not own(name)))
        for block in graph.blocks
    )  # fmt: skip
    return States(
        split=sum(count for name, count in trained.items() if not own(name)),
        own=sum(count for name, count in trained.items() if own(name)),
        split_bytes=sum(size for name, size in sizes if not own(name)),
        own_bytes=sum(size for name, size in sizes if own(name)),
        largest_bytes=largest[0],
        largest_trained=largest[1],
        units=sum(block.repeats for block in graph.blocks if block.is_layer) + 1.0,
    )


def _whole(stages: Sequence[_Stage], system: System, recipe: Recipe, layout: Layout) -> TrainingStep:
    """The step of all micro-batches on all stages: memory of the fullest stage, times of the slowest."""
    count, many = len(stages), layout.micro_batches
    held = [
        layout.memory(one.states, recipe.state_bytes * (1.0 - recipe.on_host))
        | {"activations_bytes": one.kept_bytes * layout.in_flight(at, count) + one.extra_bytes}
        for at, one in enumerate(stages)
    ]
    slowest = max(stages, key=lambda one: one.times.total_s)
    states, times = slowest.states, slowest.times
    # of experts every device has its own, which none of the replicas divides
    mine = states.split / layout.divided(1) + states.own
    moved = updated_bytes(mine, recipe.state_bytes)
    on_host = mine * recipe.state_bytes * recipe.on_host
    offloaded = layout.offloaded(states, mine, recipe.state_bytes, times, system)
    return TrainingStep(
        trained=max(one.states.split + one.states.own for one in stages),
        **max(held, key=lambda one: sum(one.values())),
        host_bytes=on_host + offloaded.host_bytes,
        matmul_flops=many * slowest.matmul_flops,
        model_flops=many * slowest.model_flops,
        forward_s=many * times.forward_s,
        recompute_s=many * times.recompute_s,
        backward_s=many * times.backward_s,
        optimizer_s=moved / _scalar(system.chip.bandwidth_bytes_per_s) + _paging(system, on_host)
        if layout.offload is Offload.NONE
        else 0.0,
        exchange_s=layout.exchange_s(states, times, system),
        bubble_s=layout.bubble(count) * many * times.total_s,
        offload_s=offloaded.time_s,
        work_s=many * sum(one.work_s for one in stages) / count,
    )


def _paging(system: System, states: float) -> float:
    """Time in which state of the optimizer comes from the host and goes back, page by page [s].  states: its bytes.

    Source: QLoRA, arXiv 2305.14314, section 3: pages are evicted to the host and come back for the optimizer's step.
    """
    if not states:
        return 0.0
    return 2.0 * states / host_rate(system, "use an optimizer without `paged-`")


def _step(batch: float, length: float, logits: float) -> Step:
    """All tokens of a micro-batch in one pass.  logits: rows of the head per sequence."""
    return Step((Group(batch_size=batch, new_tokens=length, cached_tokens=0.0, logit_positions=logits),))


def _trained(graph: Graph, kind: Trained, shared: Collection[str]) -> dict[str, float]:
    """Name -> number of the weights that are trained, over all layers."""
    found: dict[str, float] = {}
    for tensor, times in graph.stored_weights():
        chosen = kind is Trained.ALL or (kind is Trained.ADAPTERS and ADAPTER in tensor.name)
        if chosen and tensor.name not in shared:
            found[tensor.name] = found.get(tensor.name, 0.0) + _scalar(tensor.elements) * times
    return found


def _backward(row: TimedOperator, trained: Collection[str]) -> float:
    """Backward work of an operator over its forward work."""
    learns = any(access.tensor.name in trained for access in row.operator.reads if access.tensor.role is Role.WEIGHT)
    if row.operator.kind is Kind.GEMM:
        return 2.0 if learns else 1.0
    if row.operator.kind is Kind.ATTENTION:
        return ATTENTION_BACKWARD if row.operator.role is OperatorRole.ATTENTION else 2.0
    if row.operator.kind is Kind.COLLECTIVE:
        return COLLECTIVE_BACKWARD
    return float(learns) if row.operator.kind is Kind.EMBEDDING else OTHER_BACKWARD


def _activations(graph: Graph, recipe: Recipe) -> tuple[float, float]:
    """Bytes of activations that a micro-batch keeps for its backward pass, and of those beside them.

    Kept are the input of every layer, and tensors of the layers that are not recomputed.  One layer at a time, or the
    head with its logits for the loss, has its own beside them, twice with their gradients.
    """
    layers = [block for block in graph.blocks if block.is_layer]
    inputs = sum(_input(block) * block.repeats for block in layers)
    kept, share = [_saved(block, recipe.keeps) for block in layers], recipe.recompute
    stays = share * inputs + (1.0 - share) * sum(one * block.repeats for one, block in zip(kept, layers, strict=True))
    if recipe.selective:
        stays += (1.0 - share) * inputs
    last = graph.blocks[-1]
    products = [one for one in last.operators if one.kind is Kind.GEMM and not last.is_layer]
    logits = sum(_scalar(access.elements) for one in products[-1:] for access in one.writes)
    head = _peak(graph) + logits * LOSS_BYTES
    every = max(_saved(block, lambda _: True) for block in layers)
    return stays, max(head, 2.0 * every * (1.0 if recipe.selective else share))


def _peak(graph: Graph) -> float:
    """Bytes of activations of a forward pass alone."""
    return _scalar(memory.peak_activations(graph))


def _saved(block: Block, keeps: Callable[[Operator], bool]) -> float:
    """Bytes of the tensors that a layer writes and keeps, keys and values included."""
    return _bytes(block.operators, lambda operator: operator.kind is not Kind.COLLECTIVE and keeps(operator))


def _bytes(operators: Sequence[Operator], counts: Callable[[Operator], bool]) -> float:
    """Bytes on this device of the tensors that some operators write."""
    written = {
        access.tensor.name: _scalar(access.elements) * access.tensor.dtype.bytes
        for one in operators
        for access in one.writes
        if counts(one) and access.tensor.role is not Role.WEIGHT and access.tensor.place is Place.DEVICE
    }
    return sum(written.values())


def _input(block: Block) -> float:
    """Bytes of the residual stream that a layer receives."""
    first = next(a for one in block.operators for a in one.reads if a.tensor.role is Role.ACTIVATION)
    return _scalar(first.elements) * first.tensor.dtype.bytes


def is_expert(row: TimedOperator) -> bool:
    """Whether an operator multiplies tokens by the matrices of the experts that they are routed to."""
    return row.operator.kind is Kind.GEMM and is_routed(row.operator)


def _dense_ratio(rows: Sequence[TimedOperator]) -> float:
    """Time of dense products over their bound.  Grouped products of training, with many tokens for each expert, take as
    long (MegaBlocks, arXiv 2211.15841); kernels of serving, which profiles know, are made for few."""
    dense = [row for row in rows if row.operator.kind is Kind.GEMM and not is_routed(row.operator)]
    return sum(_seconds(row, row.timing) for row in dense) / max(sum(_seconds(row, row.ideal) for row in dense), 1e-12)


def _seconds(row: TimedOperator, timing: Timing) -> float:
    """Forward time of an operator in all layers [s]."""
    return _scalar(timing.time_s) * row.block.repeats


def _flops(row: TimedOperator) -> float:
    """Forward matrix work of an operator in all layers [FLOP]."""
    return _scalar(row.operator.matmul_flops) * row.block.repeats


def _scalar(count: object) -> float:
    return float(np.max(np.asarray(count, dtype=np.float64)))
