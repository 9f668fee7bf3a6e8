"""Number formats of quantized checkpoints, which may differ between layers of one block."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TypeVar

from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Operator, Role
from llmviewer.formats.cache import with_cache
from llmviewer.formats.linear import Format, in_dtype, with_formats

Layer = TypeVar("Layer")
Formats = TypeVar("Formats", bound=Hashable)


@frozen
class Variant:
    """`repeats` layers of a block with equal formats.

    formats: operator name -> format of the linear layer.  weights: tensor name -> stored format of other weights
    (norms, biases, embedding).  Operators and tensors that are not named keep the model's dtype.  numbers: of these
    layers in the model; empty for blocks that are no layers.
    """

    repeats: int
    formats: Mapping[str, Format]
    weights: Mapping[str, Dtype] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()


def alike(layers: Iterable[Layer], formats: Callable[[Layer], Formats]) -> list[tuple[Formats, list[Layer]]]:
    """The distinct formats of layers and the layers that have each, the most common first."""
    found: dict[Formats, list[Layer]] = {}
    for layer in layers:
        found.setdefault(formats(layer), []).append(layer)
    return sorted(found.items(), key=lambda one: -len(one[1]))


@frozen
class Checkpoint:
    """The graph pass that applies a checkpoint's formats.

    variants: by block name.  cache: format of the KV cache, None: the model's dtype.
    """

    variants: Mapping[str, tuple[Variant, ...]] = field(default_factory=dict)
    cache: Dtype | None = None

    def __call__(self, graph: Graph) -> Graph:
        """The graph in the checkpoint's formats; a block with different layers becomes one block per variant."""
        if not self.variants and self.cache is None:
            return graph
        return replace(graph, blocks=tuple(b for block in graph.blocks for b in self._split(block)))

    def _split(self, block: Block) -> Iterator[Block]:
        cached = block if self.cache is None else with_cache(block, self.cache)
        variants = self.variants.get(block.name, (Variant(repeats=block.repeats, formats={}),))
        for at, variant in enumerate(variants, 1):
            name = block.name if at == 1 else f"{block.name}_{at}"
            numbers = variant.numbers or block.numbers
            yield replace(_in_variant(cached, variant), name=name, repeats=variant.repeats, numbers=numbers)


def _in_variant(block: Block, variant: Variant) -> Block:
    def format_of(operator: Operator) -> Format:
        return variant.formats.get(operator.name, Format())

    changed = with_formats(block, format_of)
    if not variant.weights:
        return changed

    def stored(access: Access) -> Access:
        dtype = variant.weights.get(access.tensor.name)
        return access if dtype is None or access.tensor.role is not Role.WEIGHT else in_dtype(access, dtype)

    operators = (replace(op, reads=tuple(map(stored, op.reads))) for op in changed.operators)
    return replace(changed, operators=tuple(operators))
