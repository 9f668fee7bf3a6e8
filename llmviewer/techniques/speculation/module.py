"""What drafts beside a model: heads and single layers on its states, as models of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llmviewer.core.ir import Block, Graph, Pass, Tensor, as_built
from llmviewer.core.workload import Step
from llmviewer.formats.checkpoint import Checkpoint, Variant
from llmviewer.layers.attention import Attention, QkNorm, Values
from llmviewer.layers.mlp import Mlp
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation
from llmviewer.ops.gemm import Linear

#: Weights of the model that modules read in place: the tables of tokens and what follows them.
TABLES = ("embedding.weight", "position_embedding.weight", "project_in.weight", "embedding_norm.weight")
#: And the vocabulary's matrix, with what stands before it.
VOCABULARY = (*TABLES, "project_out.weight", "lm_head.weight", "lm_head.bias")
#: Inner width of the feed-forward part, in hidden widths, of heads published for models that have experts alone:
#: 24,576 for Qwen3-235B-A22B (hidden 4,096), 17,280 for gpt-oss (2,880):
#: https://github.com/sgl-project/SpecForge, configs/qwen3-235B-A22B-eagle3.json, configs/gpt-oss-20B-eagle3.json
DENSE_WIDTH = 6
#: Attention where the model's own is none of grouped queries: heads of 128, eight of keys and values, as in
#: https://github.com/sgl-project/SpecForge, configs/deepseek-v3-671b-eagle3.json
HEAD_DIM, KV_HEADS = 128, 8


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


def draft_module(
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


def embedding_block(target: Model, step: Step) -> Block:
    """A row of the model's table for every token; what only its own layers read of it is left out."""
    return replace(target.embedding, per_layer=None).block(step)


def hidden_states(target: Model, step: Step, times: float = 1.0) -> Tensor:
    """Hidden states of the model at every token of a step: what a block receives.  times: as many side by side."""
    return Tensor(name="hidden", elements=step.tokens * (times * target.hidden), dtype=target.dtype)


def attention(target: Model) -> Attention:
    """A Llama layer's: the model's heads, every token in sight, nothing normalised or gated."""
    own = next((layer.mixer for layer in target.layers if isinstance(layer.mixer, Attention)), None)
    if own is None:
        heads = max(target.hidden // HEAD_DIM, 1)
        return Attention(
            hidden=target.hidden,
            heads=heads,
            kv_heads=min(KV_HEADS, heads),
            head_dim=HEAD_DIM,
            rotary_dim=HEAD_DIM,
            dtype=target.dtype,
        )
    plain = replace(own, qk_norm=QkNorm.NONE, values=Values.PROJECTED, sinks=False, gate=False, soft_cap=False)
    return replace(plain, window=float("inf"), chunk=0, shares_cache=False)


def feed_forward(target: Model, width: int = 0) -> Mlp:
    """The model's own dense part; where it has experts alone, SwiGLU of six hidden widths, or of `width`."""
    own = next((layer.feed_forward for layer in target.layers if isinstance(layer.feed_forward, Mlp)), None)
    if own is not None:
        return own if not width else replace(own, intermediate=width)
    return Mlp(
        hidden=target.hidden,
        intermediate=width or DENSE_WIDTH * target.hidden,
        activation=activation("silu"),
        dtype=target.dtype,
    )


def fc_linear(target: Model, inputs: int) -> Linear:
    """`fc`, inputs h -> h without a bias: what joins features and rows."""
    width = target.hidden
    return Linear(name="fc", in_features=inputs * width, out_features=width, dtype=target.dtype)


def checkpoint_formats(target: Model, kept: Mapping[str, tuple[str, int]]) -> Pass:
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
            yield replace(variant, repeats=min(variant.repeats, layers))
            layers -= min(variant.repeats, layers)
