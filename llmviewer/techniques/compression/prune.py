"""`--prune`: removal of weights, channels, heads or layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import floor

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.ir import BUFFER, Access, Block, Graph, Operator, Pass, Role, Tensor
from llmviewer.formats.linear import conversion, is_linear, is_weight_matrix, weight_access
from llmviewer.hardware.chip import Chip
from llmviewer.language.grammar import Number
from llmviewer.techniques.compression.narrow import fewer_heads, narrower_feed_forward, nearest_size
from llmviewer.techniques.scaling import map_operators, scale_access
from llmviewer.techniques.technique import Change, Technique, add_pass, refusing, unchanged

#: Two bits per kept element for its position among four.
INDEX_2_OF_4 = Dtype(name="2:4-index", bits=2, compute="index")
#: One bit per element for whether it is kept.
BITMAP = Dtype(name="bitmap", bits=1, compute="index")
#: Formats whose 2:4 rate is not twice the dense one on every chip with 2:4 units: 4/3 on GB300, none on MI350X.
WITHOUT_SPARSE_SPEEDUP = ("fp4", "fp6")
#: Share of the sparse peak that sparse kernels reach over the share of the dense peak that dense ones reach: cuSPARSELt
#: beside cuBLASLt, bf16 products of Qwen2.5-7B over 2,048 to 16,384 rows, 1.61 times as fast on an A100 and 1.56 on an
#: H100 (medians; 1.2 to 1.9).  Source: https://github.com/bcacdwk/vllmbench, slidesparse/benchmark_kernel
SPARSE_KERNELS = 0.8


def two_of_four(chip: Chip) -> Pass:
    """Apply 2:4 sparsity: two of every four weights of a linear layer are stored, each with 2 bits of index.

    Stored: 1/2 of the bits + 1 bit, so 16-bit weights x 0.5625 and 8-bit ones x 0.625.  matmul FLOPs: dense FLOPs over
    the chip's sparse speed-up (zeros are skipped), except for 4- and 6-bit floats, whose sparse rates differ between
    data sheets.  Calibrated products gain SPARSE_KERNELS of that.  Linear layers of all layers; not the router,
    embeddings and lm_head.
    Source: NVIDIA A100 whitepaper; arXiv 2104.08378.  Raises UserError on a chip without 2:4 units.
    """
    if float(np.min(chip.sparse_speedup)) <= 1.0:
        raise UserError(
            f"--prune 2:4: {chip.name} publishes no sparse rate (sparse_speedup); --prune unstructured saves memory"
        )

    def change(operator: Operator) -> Operator:
        kept = weight_access(operator)
        stored = _stored(operator, 0.5, Access(_pattern(kept, INDEX_2_OF_4, 0.5), kept.elements * 0.5))
        work = _sum(operator.vector_flops, conversion(operator), conversion(stored))
        runs = chip.compute_dtype(operator.compute)
        fast = runs in chip.matrix_flops_per_s and runs not in WITHOUT_SPARSE_SPEEDUP
        if not fast:
            return replace(stored, vector_flops=work)
        speedup = float(np.max(chip.sparse_speedup))
        shape = replace(operator.shape, skipped=max(1.0 - 1.0 / (speedup * SPARSE_KERNELS), 0.0))  # type: ignore[type-var]
        return replace(stored, matmul_flops=operator.matmul_flops / chip.sparse_speedup, vector_flops=work, shape=shape)

    return _map_linear_layers(change)


def _sum(work: Count, before: Count | None, after: Count | None) -> Count:
    return work if before is None or after is None else work - before + after


def unstructured(sparsity: float) -> Pass:
    """Set `sparsity` of the weights of every linear layer to zero and do not store them.

    Stored: a bitmap of one bit per element and the kept values; dense if that is smaller.  FLOPs are unchanged: tiles
    are expanded on the chip and multiplied densely (Flash-LLM, arXiv 2309.10285); the expansion is not counted.
    """

    def change(operator: Operator) -> Operator:
        kept = weight_access(operator)
        if sparsity * kept.tensor.dtype.bits <= BITMAP.bits:
            return operator
        return _stored(operator, 1.0 - sparsity, Access(_pattern(kept, BITMAP, 1.0), kept.elements))

    return _map_linear_layers(change)


def _pattern(weight: Access, dtype: Dtype, per_element: float) -> Tensor:
    """The positions of the kept elements of a weight; not a parameter of the model."""
    name = f"{weight.tensor.name.removesuffix('.weight')}.pattern{BUFFER}"
    return Tensor(name=name, elements=weight.tensor.elements * per_element, dtype=dtype, role=Role.WEIGHT)


def _stored(operator: Operator, share: float, pattern: Access) -> Operator:
    """The operator with `share` of its matrix and an access to the sparsity pattern."""
    reads = tuple(scale_access(a, share) if is_weight_matrix(a) else a for a in operator.reads)
    return replace(operator, reads=(*reads, pattern))


def _map_linear_layers(change: Callable[[Operator], Operator]) -> Pass:
    """A pass that changes the linear layers of all layers, but not embeddings and lm_head."""

    def change_block(block: Block) -> Block:
        if not block.is_layer:
            return block
        return map_operators(block, lambda op: change(op) if is_linear(op) else op)

    return lambda graph: graph.map_blocks(change_block)


def fewer_layers(share: float) -> Pass:
    """Keep `share` of the layers, rounded to a whole number.

    The proportions of the kinds of layers are kept as closely as whole numbers allow (largest remainders).
    """

    def change(graph: Graph) -> Graph:
        layers = [block for block in graph.blocks if block.is_layer]
        depth = sum(block.repeats for block in layers)
        new_depth = int(nearest_size(depth, share))
        exact = [block.repeats * new_depth / depth for block in layers]
        repeats = [floor(number) for number in exact]
        order = sorted(range(len(layers)), key=lambda index: repeats[index] - exact[index])
        for index in order[: new_depth - sum(repeats)]:
            repeats[index] += 1
        kept = {id(block): count for block, count in zip(layers, repeats, strict=True)}
        blocks = (replace(b, repeats=kept.get(id(b), b.repeats)) for b in graph.blocks)
        return replace(graph, blocks=tuple(block for block in blocks if block.repeats))

    return change


#: Kinds of pruning with a number -> (its form, function from number to graph pass, number that changes nothing).
_BY_NUMBER: dict[str, tuple[Number, Callable[[float], Pass], float]] = {
    "unstructured": (Number("share of the weights that is removed", 0.0, 0.99), unstructured, 0.0),
    "width": (Number("share of the feed-forward channels that stays", 0.01, 1.0), narrower_feed_forward, 1.0),
    "depth": (Number("share of the layers that stays", 0.01, 1.0), fewer_layers, 1.0),
    "heads": (Number("share of the heads that stays", 0.01, 1.0), fewer_heads, 1.0),
}


def _make(text: str) -> Change:
    changes = [_one(part.strip().lower()) for part in text.split("+")]

    def change(system: System) -> System:
        for single_change in changes:
            system = single_change(system)
        return system

    return change


def _one(text: str) -> Change:
    if text == "2:4":
        return add_pass("prune(2:4)", two_of_four)
    name, equals, value = text.partition("=")
    if name not in _BY_NUMBER or not equals:
        raise unknown("--prune", text, ("2:4", *(f"{known}=0.5" for known in _BY_NUMBER)))
    form, make, neutral = _BY_NUMBER[name]
    with refusing("--prune"):
        number = form.read(name, value)
    return unchanged if number == neutral else add_pass(f"prune({text})", lambda _: make(number))


TECHNIQUE = Technique(
    name="prune",
    kind="compression",
    summary="Removes weights (2:4, unstructured=0.5), channels (width=0.75), heads or layers; join several by +.",
    formula="2:4: half the weights and 2 bits per kept one (16 bit x 0.5625), FLOPs / sparse_speedup, of which kernels "
    "gain 0.8 when calibrated; unstructured s: (1-s) of the weights and 1 bit per element, FLOPs as before; width, "
    "heads, depth: that share, in whole numbers",
    source="2:4 arXiv 2104.08378; unstructured Flash-LLM arXiv 2309.10285; width, depth, heads arXiv 2407.14679",
    example="llmviewer analyze llama-2-7b --hardware a100 --prune 2:4",
    parameters={
        "2:4": "two of every four weights are stored",
        **{name: form.help for name, (form, _, _) in _BY_NUMBER.items()},
    },
    make=_make,
)
