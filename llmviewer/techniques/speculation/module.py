"""Draft modules: heads and single layers that run on the hidden states of a target model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Graph, Pass, Tensor, as_built
from llmviewer.core.workload import Step
from llmviewer.formats.checkpoint import Checkpoint, Variant
from llmviewer.layers.attention import Attention, QkNorm, Values
from llmviewer.layers.feed_forward import Mlp
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation
from llmviewer.ops.gemm import Linear

#: Weights of the target that modules share: token embeddings and their projections and norm.
TABLES = ("embedding.weight", "position_embedding.weight", "project_in.weight", "embedding_norm.weight")
#: The same, with the LM head and the projection before it.
VOCABULARY = (*TABLES, "project_out.weight", "lm_head.weight", "lm_head.bias")
#: MLP width over hidden width of published heads for targets that have only experts:
#: 24,576 for Qwen3-235B-A22B (hidden 4,096), 17,280 for gpt-oss (2,880):
#: https://github.com/sgl-project/SpecForge, configs/qwen3-235B-A22B-eagle3.json, configs/gpt-oss-20B-eagle3.json
DENSE_WIDTH = 6
#: Attention if the target has no grouped-query attention: heads of 128, eight KV heads, as in
#: https://github.com/sgl-project/SpecForge, configs/deepseek-v3-671b-eagle3.json
HEAD_DIM, KV_HEADS = 128, 8


@frozen(eq=False)
class Module(Model):
    """A draft model whose forward pass is given as blocks; embedding, layers and head are those of its target.

    It reads the target's last hidden states (`hidden` of its first block) in addition to tokens.  Analysis uses only
    `graph`, `max_context` and `name`; graph passes apply to its blocks as to those of any model.
    """

    blocks: Callable[[Step], tuple[Block, ...]]

    def graph(self, step: Step) -> Graph:
        """The graph of one forward pass of the module."""
        return self.checkpoint(Graph(blocks=self.blocks(step)))


def draft_module(
    target: Model, name: str, blocks: Callable[[Step], tuple[Block, ...]], source: str, checkpoint: Pass = as_built
) -> Module:
    """The module `name` that drafts for `target`, in the target's 16-bit dtype.  checkpoint: its number formats."""
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
    """The target's embedding block, without embeddings that only its own layers read."""
    return replace(target.embedding, per_layer=None).block(step)


def hidden_states(target: Model, step: Step, times: float = 1.0) -> Tensor:
    """Hidden states of the target at every token of a step, input of a block.  times: states concatenated per token."""
    return Tensor(name="hidden", elements=step.tokens * (times * target.hidden), dtype=target.dtype)


def attention(target: Model) -> Attention:
    """Attention of a Llama layer with the target's heads: full context, no QK norm, no gate."""
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
    """The target's dense MLP; if it has only experts, a SwiGLU MLP of `width` or six hidden widths."""
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
    """`fc`, inputs x h -> h without bias, which combines hidden states and embeddings."""
    width = target.hidden
    return Linear(name="fc", in_features=inputs * width, out_features=width, dtype=target.dtype)


def checkpoint_formats(target: Model, kept: Mapping[str, tuple[str, int]]) -> Pass:
    """The target's checkpoint formats for blocks with fewer layers; the formats of the last layers are used.

    kept: block -> (the target's block it is taken from, number of layers).
    """
    formats = target.checkpoint
    if not isinstance(formats, Checkpoint):
        return formats
    known = formats.variants
    variants = {name: tuple(_last(known[source], layers)) for name, (source, layers) in kept.items() if source in known}
    return replace(formats, variants=variants)


def _last(variants: Sequence[Variant], layers: int) -> Iterator[Variant]:
    """Format variants of the last `layers` layers, from the last."""
    for variant in reversed(variants):
        if layers:
            yield replace(variant, repeats=min(variant.repeats, layers), numbers=())
            layers -= min(variant.repeats, layers)
