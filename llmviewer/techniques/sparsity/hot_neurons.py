"""`--hot-neurons`: the feed-forward neurons that are used most stay on the device, the host computes the others."""

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

WHERE = "--hot-neurons"
#: PowerInfer: 26 % of the feed-forward neurons of OPT-30B make 80 % of the activations (43 % in ReGLU Llama-2-70B).
#: A power law through that point and through (1, 1): the hottest share g makes g^0.166 of them.
EXPONENT = float(np.log(0.8) / np.log(0.26))
#: A desktop, as in the paper.
DEFAULT_HOST = "desktop-ddr5-6000"


@dataclass(frozen=True, slots=True, kw_only=True)
class HotNeurons:
    """gpu: share of the feed-forward neurons on the device, the hottest.  active: share that a token uses.

    hit: share of those that are hot ones; 0: by the power law.  predictor: width of the predictor.
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
    """Of every feed-forward matrix the hot share g is stored and used on the device, the rest on the host beside it.

    A token uses a share a of the neurons, of which H = g^0.166 are hot: a H / g of the hot ones and a (1 - H) / (1 - g)
    of the cold ones; a step of T tokens the union of each, 1 - (1 - use)^T.  Either side reads its union and multiplies
    it for all T; an operator takes the slower side.  T hidden numbers go down the link and as many come back, both
    counted with the last matrix.  Predictors as in contextual sparsity, on the device.  Left out: their answers on the
    way to the host, the sum of both parts, the host's conversion of low-bit weights.  Heads stay whole.  FLOPs and
    bytes of a result are the device's.  Valid for ReLU and ReGLU: under SwiGLU 69 % of the neurons make 80 % of the
    activations.  A long prefill uses all neurons; the host bounds it, by its bandwidth alone where its rates are
    unknown.  Goes before number formats.
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
    """The block with its feed-forward matrices on both sides; all else as contextual sparsity has left it."""
    matrices = [op for op in dense.operators if op.role is OperatorRole.FEED_FORWARD_INPUT]
    if not matrices:
        return sparse
    last = next(op for op in dense.operators if op.role is OperatorRole.FEED_FORWARD_OUTPUT)
    halves = {op.name: _split_product(op, neurons) for op in (*matrices, last)}
    there = matrices[0].shape.k * last.output_shape[0]  # type: ignore[attr-defined]
    halves[last.name] = _with_link_traffic(halves[last.name], there + last.output.elements)
    return replace(sparse, operators=tuple(halves.get(op.name, op) for op in sparse.operators))


def _split_product(operator: Operator, neurons: HotNeurons) -> Operator:
    """A product of which the device makes the hot part; the host reads its own part of the matrix."""
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
    """The operator with what crosses the link to the host and back, in the dtype of its output."""
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
    said = f"gpu={neurons.gpu:g}, active={neurons.active:g}"
    said += f", hit={neurons.hit:g}" if neurons.hit else ""
    beside, figure = host(name)
    said += f", host={name}" if neurons.gpu < 1.0 else ""
    split = add_pass(f"hot_neurons({said})", lambda _: hot_neurons(neurons))

    def change(system: System) -> System:
        _check_combination(system)
        chip = system.chip
        if neurons.gpu < 1.0:
            figures = {**chip.figures, "host.bandwidth_bytes_per_s": figure}
            chip = replace(chip, host=beside, figures=figures)
        return split(replace(system, chip=chip))

    return change


def _check_hit(given: Mapping[str, float]) -> Mapping[str, float]:
    """hit, where given: hot neurons are used no less than the others, and none more than always."""
    low, high = given["gpu"], min(given["gpu"] / given["active"], 1.0)
    if given["hit"] and not low <= given["hit"] <= high:
        raise UserError(f"{WHERE}: hit is {given['hit']:g}; allowed: {low:g} (gpu) to {high:g} (gpu / active, or 1)")
    return given


def _check_combination(system: System) -> None:
    for applied in system.passes:
        if applied.name.startswith("low_rank"):
            raise UserError(f"{WHERE}: the factors of --low-rank have no neurons to deal out")
        if applied.name.startswith("contextual_sparsity") and not applied.name.endswith("mlp=1)"):
            raise UserError(f"{WHERE} says itself which neurons a token uses; leave mlp out of --contextual-sparsity")


TECHNIQUE = Technique(
    name="hot_neurons",
    kind="sparsity",
    summary="The hottest feed-forward neurons stay on the GPU, the host computes the cold ones beside it (PowerInfer).",
    parameters={
        "gpu": "share of the neurons on the GPU",
        "active": "share of the neurons that a token uses",
        "hit": "share of those on the GPU; from the published skew unless said",
        "predictor": "width of the predictor; 1000 unless said",
        "host": f"name of a host; {DEFAULT_HOST} unless said",
    },
    formula="hot neurons make H = gpu^0.166 of the activations (26 % make 80 %); of a matrix T tokens read "
    "gpu (1 - (1 - active H / gpu)^T) on the GPU, (1 - gpu)(1 - (1 - active (1 - H) / (1 - gpu))^T) on the host; "
    "the slower side takes the time; "
    "T hidden numbers each way over PCIe",
    source="PowerInfer arXiv 2312.12456 (26 %: feed-forward part of OPT-30B)",
    example="llmviewer analyze opt-30b --hardware a6000 --hot-neurons gpu=0.26,active=0.1",
    make=_make,
)
