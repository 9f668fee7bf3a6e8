"""`--contextual-sparsity` and `--hot-neurons`: heads and feed-forward columns that a token uses, and where they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Place, Role, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import Group
from llmviewer.formats.linear import is_quantize, is_weight_matrix
from llmviewer.hardware.specs import host as host_of
from llmviewer.language.grammar import Form, Number
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import Linear
from llmviewer.techniques.scaling import scale_moved, with_probability
from llmviewer.techniques.technique import Change, Whole, add_pass, technique, unchanged
from llmviewer.timing.calibrated import attainable
from llmviewer.timing.roofline import ideal

#: Roles of the kernels of eager attention.
CORE = (OperatorRole.SCORES, OperatorRole.SOFTMAX, OperatorRole.WEIGHTED_VALUES)


def predictor_layers(part: str, block: Block, operator: Operator, outputs: float, width: float) -> tuple[Operator, ...]:
    """Two linear layers without biases before `operator`: hidden -> width -> one score per head or column.

    They read the input of `operator` before quantization.  part: prefix of their names.  Empty if width is 0.  Under
    tensor parallelism every device runs the whole first layer, and scores its own heads or columns:
    https://github.com/FMInference/DejaVu/blob/master/Dejavu/src/ops/fused_dense_sparse_dejavu.py (ParallelSP).
    """
    if not width:
        return ()
    unquantized = {op.output.name: op.reads[0] for op in block.operators if is_quantize(op)}
    first = operator.reads[0]
    x, tokens = unquantized.get(first.tensor.name, first).tensor, operator.output_shape[0]
    hidden = operator.shape.k  # type: ignore[attr-defined]
    into = Linear(name=f"{part}_predictor_in", in_features=hidden, out_features=width, dtype=x.dtype)
    scores = Linear(name=f"{part}_predictor_out", in_features=width, out_features=outputs, dtype=x.dtype)
    inner = into.operator(x, tokens)
    return (inner, scores.operator(inner.output, tokens))


@frozen
class Sparsity:
    """Shares of the heads and of the columns that a token uses, and the width of the predictors (0: no predictor).

    The hidden layer of Deja Vu's predictors has 1000 elements:
    https://github.com/FMInference/DejaVu/blob/master/sparse_predictor/main_mlp.py (--D).
    """

    attention: float = 1.0
    mlp: float = 1.0
    predictor: float = 1000.0


def contextual_sparsity(sparsity: Sparsity) -> Pass:
    """Let a token use a share rho of the heads and of the MLP columns; a step runs the union over its tokens.

    Tokens choose independently, so T tokens use 1 - (1 - rho)^T of a matrix: this share is read, and multiplied for all
    T (a matrix unit cannot skip a column for single rows).  One token costs rho; a prefill costs everything plus the
    predictor.  q_proj, o_proj and the feed-forward matrices are sparse; K and V are computed for all heads because a
    later token may use any.  Attention runs the heads used by the n new tokens of a sequence, 1 - (1 - rho)^n, and
    reads the KV heads used by any of their g queries, 1 - (1 - rho)^(g n).  Work between the matrices and all experts
    are unchanged.  A two-layer predictor precedes each part: 2 tokens width (hidden + heads or columns) FLOP.
    Must run before number formats: weights that are not read are not converted.  Source: Deja Vu, arXiv 2310.17157.
    """

    def change(graph: Graph) -> Graph:
        blocks = graph.blocks
        if sparsity.attention < 1.0:
            blocks = _change_blocks(
                blocks,
                OperatorRole.QUERY,
                lambda block: _sparse_heads(block, sparsity),
                "attention with separate heads",
            )
        if sparsity.mlp < 1.0:
            blocks = _change_blocks(
                blocks,
                OperatorRole.FEED_FORWARD_INPUT,
                lambda block: _sparse_columns(block, sparsity),
                "dense feed-forward part",
            )
        return replace(graph, blocks=blocks)

    return change


def union_share(share: Count, tokens: Count) -> Count:
    """Share used by any of `tokens` tokens that each use `share` independently: 1 - (1 - share)^tokens."""
    return 1.0 - np.power(1.0 - share, tokens)


def _change_blocks(
    blocks: tuple[Block, ...], first: OperatorRole, change: Callable[[Block], Block], what: str
) -> tuple[Block, ...]:
    found = tuple(any(op.role is first for op in b.operators) and _can_skip(b, first) for b in blocks)
    if not any(found):
        raise UserError(f"--contextual-sparsity: this model has no {what}")
    return tuple(change(block) if there else block for block, there in zip(blocks, found, strict=True))


def _can_skip(block: Block, first: OperatorRole) -> bool:
    """Whether heads can be skipped: not in latent attention, whose heads share one latent, and not in lightning
    attention, which has no cache of keys."""
    roles = {op.role for op in block.operators}
    separate = OperatorRole.SCORES in roles and OperatorRole.LATENT_EXPANSION not in roles
    return first is not OperatorRole.QUERY or separate


def _sparse_heads(block: Block, sparsity: Sparsity) -> Block:
    operators: list[Operator] = []
    mask: Tensor | None = None
    for op in block.operators:
        shape = op.shape
        if op.role is OperatorRole.QUERY:
            heads = next(o.shape.heads for o in block.operators if isinstance(o.shape, AttentionShape))
            scores = predictor_layers("attn", block, op, heads, sparsity.predictor)
            mask = scores[-1].output if scores else None
            queries = op.writes[0].elements / sum(access.elements for access in op.writes)
            share = union_share(sparsity.attention, op.output_shape[0])
            operators += (*scores, _partial_product(op, 1.0 - queries + queries * share))
        elif op.role is OperatorRole.ATTENTION_OUTPUT:
            operators.append(_partial_product(op, union_share(sparsity.attention, op.output_shape[0])))
        elif isinstance(shape, AttentionShape) and op.role in CORE:
            operators.append(
                _partial_attention(op, shape, sparsity.attention, mask if op.role is OperatorRole.SOFTMAX else None)
            )
        else:
            operators.append(op)
    return replace(block, operators=tuple(operators))


def _partial_attention(op: Operator, shape: AttentionShape, share: float, mask: Tensor | None) -> Operator:
    """One of the three eager kernels for the heads in use; it reads keys and values of the KV heads in use."""
    group_size = shape.heads / shape.kv_heads
    work = _weighted_mean(shape, lambda g: g.tokens * g.keys(shape.window), lambda g: union_share(share, g.new_tokens))
    keys = _weighted_mean(
        shape, lambda g: g.batch_size * g.keys(shape.window), lambda g: union_share(share, g.new_tokens * group_size)
    )
    sparse = with_probability(op, work)
    reads = tuple(
        Access(before.tensor, before.elements * keys) if before.tensor.role is Role.CACHE else after
        for before, after in zip(op.reads, sparse.reads, strict=True)
    )
    if mask is not None:
        reads = (*reads, whole(mask))
    return replace(sparse, reads=reads, shape=replace(shape, used=work))


def _weighted_mean(shape: AttentionShape, weight: Callable[[Group], Count], value: Callable[[Group], Count]) -> Count:
    """Mean of `value` over the groups of a step, weighted by `weight`."""
    if len(shape.groups) == 1:
        return value(shape.groups[0])
    return sum(weight(g) * value(g) for g in shape.groups) / sum(weight(g) for g in shape.groups)


def _sparse_columns(block: Block, sparsity: Sparsity) -> Block:
    operators: list[Operator] = []
    mask: Tensor | None = None
    for op in block.operators:
        share = union_share(sparsity.mlp, op.output_shape[0])
        if op.role is OperatorRole.FEED_FORWARD_INPUT:
            if mask is None:
                down = next(o for o in block.operators if o.role is OperatorRole.FEED_FORWARD_OUTPUT)
                scores = predictor_layers("mlp", block, op, down.shape.k, sparsity.predictor)  # type: ignore[attr-defined]
                mask = scores[-1].output if scores else None
                operators += scores
            operators.append(_partial_product(op, share))
        elif op.role is OperatorRole.FEED_FORWARD_OUTPUT:
            operators.append(_partial_product(op, share))
        elif op.role is OperatorRole.ACTIVATION and mask is not None:
            operators.append(replace(op, reads=(*op.reads, whole(mask))))
        else:
            operators.append(op)
    return replace(block, operators=tuple(operators))


def _partial_product(operator: Operator, share: Count) -> Operator:
    """A matrix product with `share` of its matrix; the whole bias is added."""
    reads = tuple(scale_moved(a, share) if is_weight_matrix(a) else a for a in operator.reads)
    return replace(operator, reads=reads, matmul_flops=operator.matmul_flops * share)


Predictor = Annotated[float, Whole("width of the predictor; 0 for no predictor", 0, 1e6)]


@technique(
    "contextual_sparsity",
    kind="sparsity",
    formula="weights read and multiplied x (1 - (1 - rho)^T); predictor 2 T width (hidden + outputs) FLOP per part, "
    "width 1000",
    source="Deja Vu arXiv 2310.17157; width: https://github.com/FMInference/DejaVu (sparse_predictor, --D)",
    example="opt-66b --hardware a100 --contextual-sparsity attention=0.5,mlp=0.1 --no-fit-check",
)
def contextual_sparsity_option(
    attention: Annotated[float, Number("share of the heads that a token uses", 0.0001, 1.0)] = 1.0,
    *,
    mlp: Annotated[float, Number("share of the feed-forward columns that a token uses", 0.0001, 1.0)] = 1.0,
    predictor: Predictor = 1000.0,
) -> Change:
    """A token uses only heads and feed-forward columns chosen by a predictor; the gain shrinks as the batch grows."""
    if attention == mlp == 1.0:
        return unchanged
    sparsity = Sparsity(attention=attention, mlp=mlp, predictor=predictor)
    name = f"contextual_sparsity(attention={attention:g}, mlp={mlp:g})"
    sparse = add_pass(name, lambda _: contextual_sparsity(sparsity))

    def change(system: System) -> System:
        if system.applies("low_rank"):
            raise UserError(
                "--contextual-sparsity: the factors of --low-rank have no heads or columns that could be skipped"
            )
        return sparse(system)

    return change


#: PowerInfer: 26 % of the feed-forward neurons of OPT-30B have 80 % of the activations (43 % in ReGLU Llama-2-70B).
#: A power law through this point and (1, 1): the hottest share g of the neurons has g^0.166 of the activations.
EXPONENT = float(np.log(0.8) / np.log(0.26))
#: Default host, a desktop as in the paper.
DEFAULT_HOST = "desktop-ddr5-6000"


@frozen
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
            raise UserError("--hot-neurons: this model has no dense feed-forward part")
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


@technique(
    "hot_neurons",
    kind="sparsity",
    formula="hot neurons make H = gpu^0.166 of the activations (26 % make 80 %); of a matrix T tokens read "
    "gpu (1 - (1 - active H / gpu)^T) on the GPU, (1 - gpu)(1 - (1 - active (1 - H) / (1 - gpu))^T) on the host; "
    "the slower side takes the time; "
    "T hidden numbers each way over PCIe; with -tp n each device has 1/n of both parts, and 1/n of the host's rates",
    source="PowerInfer arXiv 2312.12456 (26 %: feed-forward part of OPT-30B)",
    example="opt-30b --hardware a6000 --hot-neurons gpu=0.26,active=0.1",
)
def hot_neurons_option(
    gpu: Annotated[float, Number("share of the neurons on the GPU", 0.0001, 1.0)],
    *,
    active: Annotated[float, Number("share of the neurons that a token uses", 0.0001, 1.0)],
    hit: Annotated[
        float | None,
        Number("share of the active neurons that are on the GPU", 0.0001, 1.0, unset="from the published skew"),
    ] = None,
    predictor: Predictor = 1000.0,
    host: Annotated[str, Form(help="name of a host")] = DEFAULT_HOST,
) -> Change:
    """Keeps the most used feed-forward neurons on the GPU; the host computes the others (PowerInfer)."""
    low, high = gpu, min(gpu / active, 1.0)
    if hit is not None and not low <= hit <= high:
        raise UserError(f"hit is {hit:g}; allowed: {low:g} (gpu) to {high:g} (gpu / active, or 1)")
    if gpu == active == 1.0:
        return unchanged
    neurons = HotNeurons(gpu=gpu, active=active, hit=hit or 0.0, predictor=predictor)
    machine, figure = host_of(host)
    title = f"gpu={gpu:g}, active={active:g}" + (f", hit={hit:g}" if hit else "")
    title += f", host={host}" if gpu < 1.0 else ""
    split = add_pass(f"hot_neurons({title})", lambda _: hot_neurons(neurons))

    def change(system: System) -> System:
        _check_combination(system)
        chip = system.chip
        if gpu < 1.0:
            figures = {**chip.figures, "host.bandwidth_bytes_per_s": figure}
            reached = machine if system.efficiency is ideal else attainable(machine)
            chip = replace(chip, host=reached, figures=figures)
        return split(replace(system, chip=chip))

    return change


def _check_combination(system: System) -> None:
    for applied in system.passes:
        if applied.name.startswith("low_rank"):
            raise UserError("--hot-neurons: the factors of --low-rank have no neurons that could be split")
        if applied.name.startswith("contextual_sparsity") and not applied.name.endswith("mlp=1)"):
            raise UserError(
                "--hot-neurons already sets the share of neurons of a token; remove mlp from --contextual-sparsity"
            )
