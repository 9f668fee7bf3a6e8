"""`--hot-neurons`: the most used feed-forward neurons are on the device, the host computes the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Place, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.formats.linear import is_weight_matrix
from llmviewer.hardware.specs import host
from llmviewer.techniques.sparsity.contextual_sparsity import Sparsity, contextual_sparsity, union_share
from llmviewer.techniques.technique import Change, Parameter, Technique, add_pass, parse_numbers
from llmviewer.timing.efficiency import ideal
from llmviewer.timing.host_copies import attainable

WHERE = "--hot-neurons"
#: PowerInfer: 26 % of the feed-forward neurons of OPT-30B have 80 % of the activations (43 % in ReGLU Llama-2-70B).
#: A power law through this point and (1, 1): the hottest share g of the neurons has g^0.166 of the activations.
EXPONENT = float(np.log(0.8) / np.log(0.26))
#: Default host, a desktop as in the paper.
DEFAULT_HOST = "desktop-ddr5-6000"


@dataclass(frozen=True, slots=True, kw_only=True)
class HotNeurons:
    """Shares of hot and active feed-forward neurons.

    gpu: share of the neurons on the device, the hottest ones.  active: share that a token uses.  hit: share of the
    active neurons that are on the device; 0 for the power law.  predictor: width of the predictor.
    """

    gpu: float
    active: float
    hit: float = 0.0
    predictor: float = 1000.0

    @property
    def hot_use(self) -> float:
        """Share of the hot neurons that a token uses."""
        return min(self.active * (self.hit or self.gpu**EXPONENT) / self.gpu, 1.0)

    @property
    def cold_use(self) -> float:
        """Share of the cold neurons that a token uses."""
        return max(self.active - self.gpu * self.hot_use, 0.0) / (1.0 - self.gpu)


def hot_neurons(neurons: HotNeurons) -> Pass:
    """Store and use the hot share g of every feed-forward matrix on the device, and the rest on the host.

    A token uses a share a of the neurons, of which H = g^0.166 are hot: a H / g of the hot ones and a (1 - H) / (1 - g)
    of the cold ones; a step of T tokens uses the union of each, 1 - (1 - use)^T.  Device and host run in parallel, each
    reads its union and multiplies it for all T; an operator takes as long as the slower side.  T hidden vectors cross
    the link each way, counted with the last matrix.  Predictors run on the device as in contextual sparsity.  Not
    counted: sending their scores to the host, the sum of both parts, the host's conversion of low-bit weights.
    Attention heads are unchanged.  FLOPs and bytes of a result are those of the device.  Valid for ReLU and ReGLU:
    under SwiGLU 69 % of the neurons have 80 % of the activations.  Several devices share the host evenly: each has its
    part of the hot neurons, sends its vectors over a link of its own, and waits for its part of the cold ones.  A long
    prefill uses all neurons and is bound by the host, only by its bandwidth if its rates are unknown.  Must run before
    number formats.
    Source: PowerInfer, arXiv 2312.12456.
    """

    def change(graph: Graph) -> Graph:
        if not any(op.role is OperatorRole.FEED_FORWARD_INPUT for _, op in graph):
            raise UserError(f"{WHERE}: this model has no dense feed-forward part")
        sparse = contextual_sparsity(Sparsity(mlp=neurons.active, predictor=neurons.predictor))(graph)
        if neurons.gpu == 1.0:
            return sparse
        pairs = zip(graph.blocks, sparse.blocks, strict=True)
        return replace(sparse, blocks=tuple(_split_block(before, after, neurons) for before, after in pairs))

    return change


def _split_block(dense: Block, sparse: Block, neurons: HotNeurons) -> Block:
    """The sparse block with its feed-forward matrices split between device and host.  dense: before sparsity."""
    matrices = [op for op in dense.operators if op.role is OperatorRole.FEED_FORWARD_INPUT]
    if not matrices:
        return sparse
    last = next(op for op in dense.operators if op.role is OperatorRole.FEED_FORWARD_OUTPUT)
    halves = {op.name: _split_product(op, neurons) for op in (*matrices, last)}
    sent = matrices[0].shape.k * last.output_shape[0]  # type: ignore[attr-defined]
    halves[last.name] = _with_link_traffic(halves[last.name], sent + last.output.elements)
    return replace(sparse, operators=tuple(halves.get(op.name, op) for op in sparse.operators))


def _split_product(operator: Operator, neurons: HotNeurons) -> Operator:
    """The matrix product with its hot part on the device and its cold part read by the host."""
    tokens = operator.output_shape[0]
    hot = neurons.gpu * union_share(neurons.hot_use, tokens)
    cold = (1.0 - neurons.gpu) * union_share(neurons.cold_use, tokens)
    reads: list[Access] = []
    for access in operator.reads:
        tensor = access.tensor
        if not is_weight_matrix(access):
            reads.append(access)
            continue
        stored = replace(tensor, elements=tensor.elements * neurons.gpu)
        name = tensor.name.removesuffix(".weight") + ".cold.weight"
        rest = replace(tensor, name=name, elements=tensor.elements * (1.0 - neurons.gpu), place=Place.HOST)
        reads += (Access(stored, access.elements * hot), Access(rest, access.elements * cold))
    return replace(operator, reads=tuple(reads), matmul_flops=operator.matmul_flops * hot)


def _with_link_traffic(operator: Operator, elements: Count) -> Operator:
    """The operator with `elements` that cross the link to the host and back, in the dtype of its output."""
    sent = Tensor(name="to_and_from_host", elements=elements, dtype=operator.output.dtype, place=Place.LINK)
    return replace(operator, writes=(*operator.writes, whole(sent)))


_PARAMETERS = (
    Parameter(name="gpu", low=0.0001, high=1.0),
    Parameter(name="active", low=0.0001, high=1.0),
    Parameter(name="hit", default=0.0, low=0.0001, high=1.0),
    Parameter(name="predictor", default=1000.0, high=1e6, whole=True),
)


def _make(text: str) -> Change:
    pieces = [piece.strip() for piece in text.split(",")]
    named = [piece.removeprefix("host=") for piece in pieces if piece.startswith("host=")]
    if len(named) > 1:
        raise UserError(f"{WHERE}: host is given twice")
    rest = ",".join(piece for piece in pieces if not piece.startswith("host="))
    neurons = HotNeurons(**_check_hit(parse_numbers(WHERE, rest, _PARAMETERS)))
    if neurons.gpu == neurons.active == 1.0:
        return lambda system: system
    name = named[0] if named else DEFAULT_HOST
    title = f"gpu={neurons.gpu:g}, active={neurons.active:g}"
    title += f", hit={neurons.hit:g}" if neurons.hit else ""
    machine, figure = host(name)
    title += f", host={name}" if neurons.gpu < 1.0 else ""
    split = add_pass(f"hot_neurons({title})", lambda _: hot_neurons(neurons))

    def change(system: System) -> System:
        _check_combination(system)
        chip = system.chip
        if neurons.gpu < 1.0:
            figures = {**chip.figures, "host.bandwidth_bytes_per_s": figure}
            reached = machine if system.efficiency is ideal else attainable(machine)
            chip = replace(chip, host=reached, figures=figures)
        return split(replace(system, chip=chip))

    return change


def _check_hit(given: Mapping[str, float]) -> Mapping[str, float]:
    """The parameters; raises UserError unless hot neurons are used at least as often as others and at most always."""
    low, high = given["gpu"], min(given["gpu"] / given["active"], 1.0)
    if given["hit"] and not low <= given["hit"] <= high:
        raise UserError(f"{WHERE}: hit is {given['hit']:g}; allowed: {low:g} (gpu) to {high:g} (gpu / active, or 1)")
    return given


def _check_combination(system: System) -> None:
    for applied in system.passes:
        if applied.name.startswith("low_rank"):
            raise UserError(f"{WHERE}: the factors of --low-rank have no neurons that could be split")
        if applied.name.startswith("contextual_sparsity") and not applied.name.endswith("mlp=1)"):
            raise UserError(
                f"{WHERE} already sets the share of neurons that a token uses; remove mlp from --contextual-sparsity"
            )


TECHNIQUE = Technique(
    name="hot_neurons",
    kind="sparsity",
    summary="Keeps the most used feed-forward neurons on the GPU; the host computes the others (PowerInfer).",
    parameters={
        "gpu": "share of the neurons on the GPU",
        "active": "share of the neurons that a token uses",
        "hit": "share of the active neurons that are on the GPU; default from the published skew",
        "predictor": "width of the predictor; default 1000",
        "host": f"name of a host; default {DEFAULT_HOST}",
    },
    formula="hot neurons make H = gpu^0.166 of the activations (26 % make 80 %); of a matrix T tokens read "
    "gpu (1 - (1 - active H / gpu)^T) on the GPU, (1 - gpu)(1 - (1 - active (1 - H) / (1 - gpu))^T) on the host; "
    "the slower side takes the time; "
    "T hidden numbers each way over PCIe; with -tp n each device has 1/n of both parts, and 1/n of the host's rates",
    source="PowerInfer arXiv 2312.12456 (26 %: feed-forward part of OPT-30B)",
    example="llmviewer analyze opt-30b --hardware a6000 --hot-neurons gpu=0.26,active=0.1",
    make=_make,
)
