"""What drafts beside a model: heads and single layers on its states, as models of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llmviewer.formats.checkpoint import Checkpoint, Variant
from llmviewer.ir import Block, Graph, Pass, Tensor, as_built
from llmviewer.models.model import Model
from llmviewer.workload import Step

#: Weights of the model that modules read in place: the tables of tokens and what follows them.
TABLES = ("embedding.weight", "position_embedding.weight", "project_in.weight", "embedding_norm.weight")
#: And the vocabulary's matrix, with what stands before it.
VOCABULARY = (*TABLES, "project_out.weight", "lm_head.weight", "lm_head.bias")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Module(Model):
    """A Model whose forward pass is stated block by block; embedding, layers and head are those of what it drafts for.

    It reads the model's last hidden states (`hidden` of its first block) beside tokens.  Analysis asks for `graph`,
    whose blocks go through every pass as any model's do, for `max_context` and for a name.
    """

    blocks: Callable[[Step], tuple[Block, ...]]

    def graph(self, step: Step) -> Graph:
        """One pass of the module."""
        return self.checkpoint(Graph(blocks=self.blocks(step)))


def beside(
    target: Model, name: str, blocks: Callable[[Step], tuple[Block, ...]], source: str, checkpoint: Pass = as_built
) -> Module:
    """The module called `name` that drafts for `target`, in its 16-bit dtype.  checkpoint: formats of its own."""
    return Module(
        name=f"{target.name} {name}",
        architecture=name,
        hidden=target.hidden,
        dtype=target.dtype,
        embedding=target.embedding,
        layers=target.layers,
        head=target.head,
        max_context=target.max_context,
        source=source,
        checkpoint=checkpoint,
        blocks=blocks,
    )


def rows(target: Model, step: Step) -> Block:
    """A row of the model's table for every token; what only its own layers read of it is left out."""
    return replace(target.embedding, per_layer=None).block(step)


def states(target: Model, step: Step, times: float = 1.0) -> Tensor:
    """Hidden states of the model at every token of a step: what a block receives.  times: as many side by side."""
    return Tensor(name="hidden", elements=step.tokens * (times * target.hidden), dtype=target.dtype)


def stored(target: Model, kept: Mapping[str, tuple[str, int]]) -> Pass:
    """The formats of the model's checkpoint where blocks have other numbers of layers: those of the last ones.

    kept: block -> which of the model's it is like, and its layers.
    """
    formats = target.checkpoint
    if not isinstance(formats, Checkpoint):
        return formats
    known = formats.variants
    variants = {name: tuple(_last(known[like], layers)) for name, (like, layers) in kept.items() if like in known}
    return replace(formats, variants=variants)


def _last(variants: Sequence[Variant], layers: int) -> Iterator[Variant]:
    """Variants of the last `layers` layers."""
    for variant in reversed(variants):
        if layers:
            yield replace(variant, times=min(variant.times, layers))
            layers -= min(variant.times, layers)
