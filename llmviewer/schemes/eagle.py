"""`--speculative eagle`: one decoder layer that continues the model's features, and the model's head on them."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.generation import Generation
from llmviewer.ir import Block
from llmviewer.layers.attention import Attention, QkNorm, Values
from llmviewer.layers.decoder import DecoderLayer, Norms
from llmviewer.layers.mlp import Mlp
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import rms_norm
from llmviewer.schemes.asked import accepted, by_tokens
from llmviewer.schemes.feature_rounds import TREE, Layers, drafted, tree_of
from llmviewer.schemes.method_text import ACCEPTANCE_SAID, TOKENS_SAID, listed, words
from llmviewer.schemes.module import VOCABULARY, Module, beside, rows, states
from llmviewer.technique import Change, Parameter, Technique
from llmviewer.workload import Step

SOURCE = (
    "EAGLE arXiv 2401.15077, EAGLE-2 arXiv 2406.16858, EAGLE-3 arXiv 2503.01840; "
    "https://github.com/SafeAILab/EAGLE, eagle/model/cnets.py"
)
#: Inner width of the feed-forward part, in hidden widths, of heads published for models that have experts alone:
#: 24,576 for Qwen3-235B-A22B (hidden 4,096), 17,280 for gpt-oss (2,880):
#: https://github.com/sgl-project/SpecForge, configs/qwen3-235B-A22B-eagle3.json, configs/gpt-oss-20B-eagle3.json
DENSE_WIDTH = 6
#: Attention where the model's own is none of grouped queries: heads of 128, eight of keys and values, as in
#: https://github.com/sgl-project/SpecForge, configs/deepseek-v3-671b-eagle3.json
HEAD_DIM, KV_HEADS = 128, 8
WIDTH = Parameter(name="width", default=0, low=1, high=1e6, whole=True)


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


def eagle(target: Model, width: int = 0) -> Module:
    """EAGLE and EAGLE-2: fc (2 h -> h, with bias) of the token's row and the model's last feature, one layer without
    its first norm, the model's head without its norm.

    Own parameters: 2 h h + h + the layer's.  Published: 0.24e9 for Llama-2-7b, 0.37e9 for 13b, 0.99e9 for 70b
    (https://github.com/SafeAILab/EAGLE).  Table and head are the model's.  Devices that share the model run fc whole,
    as vLLM does.
    """
    norms = Norms(mlp=rms_norm("mlp_norm", target.hidden, target.dtype))
    layer = DecoderLayer(
        name="layer", times=1, norms=norms, mixer=attention(target), feed_forward=feed_forward(target, width)
    )
    fc = fc_of(target, 2, bias=True)

    def blocks(step: Step) -> tuple[Block, ...]:
        into = Block(name="fc", operators=(fc.operator(states(target, step, 2.0), step.tokens),), scope="model")
        hidden = states(target, step)
        head = replace(target.head, norm=None)
        return (rows(target, step), into, layer.block(step, hidden), head.block(step, hidden))

    return beside(target, "EAGLE", blocks, SOURCE)


def fc_of(target: Model, inputs: int, *, bias: bool) -> Linear:
    """inputs h -> h: what joins features and rows."""
    width = target.hidden
    return Linear(name="fc", in_features=inputs * width, out_features=width, dtype=target.dtype, bias=bias)


WHERE = "--speculative eagle"
#: Llama-2-7b-chat on MT-bench, a chain of five.
DEFAULT = "eagle-llama2-7b-chain"


def _make(text: str) -> Change:
    given = words(WHERE, text, ("tokens", "acceptance", "width", *TREE))
    width = int(WIDTH.of(given, WHERE))
    tree = tree_of(WHERE, given)
    by_position = accepted(WHERE, given, "" if tree else DEFAULT)

    def make(tokens: float, target: Model) -> Generation:
        module = eagle(target, width)
        layers = Layers(name="EAGLE", first=module, later=module, shared=VOCABULARY)
        return drafted(layers, tokens, by_position, tree)

    return by_tokens(listed("eagle", text), WHERE, given, make)


TECHNIQUE = Technique(
    name="eagle",
    kind="speculation",
    summary="One decoder layer continues the model's features, in a chain (as vLLM) or a tree (EAGLE-2, SGLang).",
    parameters={
        "tokens": f"{TOKENS_SAID}; of a tree its depth",
        "acceptance": f"{ACCEPTANCE_SAID}; of a chain {DEFAULT} unless said",
        "topk": "of a tree: children of a node; 1 unless said",
        "nodes": "of a tree: drafted tokens to verify (SGLang's num-draft-tokens - 1)",
        "width": "of its feed-forward part; the model's unless said",
    },
    formula="fc (2 h -> h), one layer, the model's head: tokens times; the first pass of a round takes in E tokens; "
    "verification of tokens + 1, or nodes + 1; E = 1 + a_1 + a_1 a_2 + ...; one layer of cache more",
    source=SOURCE,
    example="llmviewer analyze llama-2-7b --hardware a100 --speculative eagle,tokens=4",
    make=_make,
)
