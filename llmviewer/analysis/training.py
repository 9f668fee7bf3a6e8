"""Memory and time of one training step: of all weights, of low-rank adapters, or of the heads of a speculator."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from enum import Enum

import numpy as np

from llmviewer.analysis import memory
from llmviewer.analysis.evaluation import TimedOperator, evaluate
from llmviewer.analysis.system import Drafter, System
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Block, Graph, Role
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Group, Step
from llmviewer.models.model import Model
from llmviewer.serving.generation import Draft
from llmviewer.timing.calibrated import PINNED_SHARE
from llmviewer.timing.roofline import ideal

#: Part of the name of an adapter's weights.
ADAPTER = "_lora_"
#: Bytes of a gradient: 16 bit.
GRADIENT_BYTES = 2.0
#: Bytes of a logit in fp32 for the loss, and of its gradient, beside the logit of the head.
LOSS_BYTES = 8.0
#: Backward over forward pass of attention: five products for two (FlashAttention-2, arXiv 2307.08691, section 3.1).
ATTENTION_BACKWARD = 2.5
#: Of operators without products: a gradient is read for every tensor written, and written for every tensor read.
OTHER_BACKWARD = 2.0


class Trained(Enum):
    """The weights of a model that a step trains."""

    ALL = "all weights"
    ADAPTERS = "adapters"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a step is trained.

    state_bytes: state of the optimizer per trained weight [byte]; on_host: share of it on the host.  recompute: share
    of the layers that keep their inputs alone and run again before their backward pass.
    """

    trained: Trained
    state_bytes: float
    on_host: float = 0.0
    recompute: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One step on one device: memory by kind [byte], time by part [s], and the work of the matrix units [FLOP].

    trained: number of trained weights.  weights_bytes: all weights, frozen ones in their stored format.
    """

    trained: float
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    host_bytes: float
    activations_bytes: float
    matmul_flops: float
    forward_s: float
    recompute_s: float
    backward_s: float
    optimizer_s: float

    @property
    def time_s(self) -> float:
        """Time of the step [s]."""
        return self.forward_s + self.recompute_s + self.backward_s + self.optimizer_s

    def beside(self, other: TrainingStep) -> TrainingStep:
        """The step together with that of another model, run one after another on the same device."""
        return TrainingStep(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})


def training_step(model: Model, system: System, sizes: tuple[float, float], recipe: Recipe) -> TrainingStep:
    """The step of a batch.  sizes: sequences, and tokens of each.

    A product takes as much work again in the backward pass for the gradient of its input, and as much for that of its
    weights if they are trained; layers that are recomputed run forward twice.  Heads of a speculator are trained on the
    states of their model, which runs forward alone.
    """
    if not system.drafters:
        return _part(model, system, sizes, recipe)
    found = _part(model, replace(system, drafters=()), sizes, replace(recipe, trained=Trained.NOTHING))
    for one in trained_drafters(system):
        found = found.beside(_part(one.draft.model, one.system, sizes, recipe, one.draft))
    return found


def trained_drafters(system: System) -> list[Drafter]:
    """The draft models with weights of their own; the others are further passes of one of these or of the target."""
    return [one for one in system.drafters if one.draft.shared is not None]


def _part(
    model: Model, system: System, sizes: tuple[float, float], recipe: Recipe, draft: Draft | None = None
) -> TrainingStep:
    """The step of one model.

    draft: what the model is if it drafts for another one, whose weights that it shares are frozen.  Heads without a
    cache run on states of the other model, one per logit; layers of all others run as in prefill.
    """
    shared: Collection[str] = () if draft is None else draft.shared or ()
    inner = 1.0 if draft is None or draft.caches else sizes[1]
    layers, ends = (evaluate(model, system, _step(sizes, logits)) for logits in (inner, sizes[1]))
    rows = [row for one, inner in ((layers, True), (ends, False)) for row in one.rows if row.block.is_layer is inner]
    trained = _trained(layers.graph, recipe.trained, shared)
    count = sum(trained.values())
    learns = recipe.trained is not Trained.NOTHING
    again = recipe.recompute if learns else 0.0
    states = count * recipe.state_bytes
    # the optimizer reads and writes its state and the weights, and reads the gradients
    moved = 2.0 * states + 3.0 * count * GRADIENT_BYTES
    return TrainingStep(
        trained=count,
        weights_bytes=memory.weights_bytes(layers.graph, shared),
        gradients_bytes=count * GRADIENT_BYTES,
        optimizer_bytes=states * (1.0 - recipe.on_host),
        host_bytes=states * recipe.on_host,
        activations_bytes=_activations(ends.graph, again) if learns else _peak(ends.graph),
        matmul_flops=sum(_work(row, again) + learns * _backward(row, trained) * _flops(row) for row in rows),
        forward_s=sum(map(_seconds, rows)),
        recompute_s=again * sum(_seconds(row) for row in rows if row.block.is_layer),
        backward_s=learns * sum(_backward(row, trained) * _seconds(row) for row in rows),
        optimizer_s=moved / _scalar(system.chip.bandwidth_bytes_per_s) + _paging(system, states * recipe.on_host),
    )


def _paging(system: System, states: float) -> float:
    """Time in which state of the optimizer comes from the host and goes back, page by page [s].  states: its bytes.

    Source: QLoRA, arXiv 2305.14314, section 3: pages are evicted to the host and come back for the optimizer's step.
    """
    if not states:
        return 0.0
    link = system.chip.host_link_rate
    if link is None:
        raise UserError(f"{system.chip.name} has no link to a host; use an optimizer without `paged-`")
    return 2.0 * states / (_scalar(link) * (1.0 if system.efficiency is ideal else PINNED_SHARE))


def _step(sizes: tuple[float, float], logits: float) -> Step:
    """All tokens of the batch in one pass.  logits: rows of the head per sequence."""
    return Step((Group(batch_size=sizes[0], new_tokens=sizes[1], cached_tokens=0.0, logit_positions=logits),))


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
        return ATTENTION_BACKWARD
    return float(learns) if row.operator.kind is Kind.EMBEDDING else OTHER_BACKWARD


def _activations(graph: Graph, recompute: float) -> float:
    """Bytes of activations that the backward pass needs, at its begin or in the layer that needs most.

    Kept are the input of every layer, and all tensors of the layers that are not recomputed.  One layer at a time, or
    the head with its logits for the loss, has its own beside them, twice with their gradients.
    """
    layers = [block for block in graph.blocks if block.is_layer]
    inputs = sum(_input(block) * block.repeats for block in layers)
    whole = [_saved(block) for block in layers]
    kept = recompute * inputs + (1.0 - recompute) * sum(
        one * block.repeats for one, block in zip(whole, layers, strict=True)
    )
    logits = sum(_scalar(block.operators[-1].output.elements) for block in graph.blocks[-1:] if not block.is_layer)
    head = _peak(graph) + logits * LOSS_BYTES
    return kept + max(head, 2.0 * max(whole) * recompute)


def _peak(graph: Graph) -> float:
    """Bytes of activations of a forward pass alone."""
    return _scalar(memory.peak_activations(graph))


def _saved(block: Block) -> float:
    """Bytes of all tensors that a layer writes, keys and values included."""
    written = {a.tensor.name: a for one in block.operators for a in one.writes if a.tensor.role is not Role.WEIGHT}
    return sum(_scalar(a.tensor.elements) * a.tensor.dtype.bytes for a in written.values())


def _input(block: Block) -> float:
    """Bytes of the residual stream that a layer receives."""
    read = (a.tensor for one in block.operators for a in one.reads if a.tensor.role is Role.ACTIVATION)
    first = next(read)
    return _scalar(first.elements) * first.dtype.bytes


def _seconds(row: TimedOperator) -> float:
    """Forward time of an operator in all layers [s]."""
    return _scalar(row.timing.time_s) * row.block.repeats


def _flops(row: TimedOperator) -> float:
    """Forward matrix work of an operator in all layers [FLOP]."""
    return _scalar(row.operator.matmul_flops) * row.block.repeats


def _work(row: TimedOperator, again: float) -> float:
    """Matrix work of the forward passes of an operator [FLOP]."""
    return _flops(row) * (1.0 + again * row.block.is_layer)


def _scalar(count: object) -> float:
    return float(np.max(np.asarray(count, dtype=np.float64)))
