"""`--speculative eagle3`: one decoder layer on features of three of the model's layers, a head of frequent tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmviewer.core.ir import Block, Operator, Tensor
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention
from llmviewer.layers.mlp import Mlp
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import add
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm, NormKind, rms_norm
from llmviewer.techniques.speculation.feature_rounds import WIDTH, FeatureDrafter, feature_method, feature_parameters
from llmviewer.techniques.speculation.module import (
    TABLES,
    Module,
    attention,
    draft_module,
    embedding_block,
    fc_linear,
    feed_forward,
    hidden_states,
)
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_parameters

SOURCE = "EAGLE-3 arXiv 2503.01840; https://github.com/vllm-project/vllm, vllm/model_executor/models/llama_eagle3.py"
#: Vocabulary of published heads: draft_vocab_size in https://github.com/sgl-project/SpecForge, configs/.
DRAFT_VOCABULARY = 32000


def eagle3(target: Model, width: int = 0, vocabulary: int = DRAFT_VOCABULARY, features: int = 3) -> Module:
    """EAGLE-3: fc (3 h -> h) of features of three of the model's layers, one layer whose attention reads the token's
    row beside the feature, a norm and a head of its own over the most frequent tokens.

    features: 3 in the first pass of a round, over tokens that the model has processed; 0 in the passes after it, which
    continue the layer's own features and skip fc.
    Own parameters: 3 h h + the layer's with queries, keys and values of 2 h + 4 h of norms + V' h; the table is the
    model's.  `t2d` and `d2t`, maps between the vocabularies, are left out.
    """
    layer = _WideLayer(
        attention=replace(attention(target), reads=2 * target.hidden), feed_forward=feed_forward(target, width)
    )
    frequent = min(vocabulary, int(target.head.lm_head.out_features))
    head = replace(
        target.head,
        lm_head=Linear(name="lm_head", in_features=target.hidden, out_features=frequent, dtype=target.dtype),
        tied=False,
        norm=rms_norm("final_norm", target.hidden, target.dtype),
        project=None,
        logit_flops=0.0,
        logit_special=0.0,
    )

    def blocks(step: Step) -> tuple[Block, ...]:
        fc = fc_linear(target, features or 1)
        into = Block(
            name="fc",
            operators=(fc.operator(hidden_states(target, step, float(features)), step.tokens),),
            scope="model",
        )
        hidden = hidden_states(target, step)
        first = (embedding_block(target, step), into) if features else (embedding_block(target, step),)
        return (*first, layer.block(step, hidden), head.block(step, hidden))

    return draft_module(target, "EAGLE-3", blocks, SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _WideLayer:
    """A decoder layer whose attention reads the token's row and the feature side by side, each normalised."""

    attention: Attention
    feed_forward: Mlp

    def block(self, step: Step, hidden: Tensor) -> Block:
        """The residual stream is the feature alone."""
        width, dtype, tokens = self.attention.hidden, self.attention.dtype, step.tokens
        both = Tensor(name="hidden", elements=2.0 * hidden.elements, dtype=dtype)
        norms = Norm(name="attn_norm", kind=NormKind.RMS, width=width, rows=2, parameters=2.0 * width, dtype=dtype)
        before = norms.operator(both, tokens)
        operators: list[Operator] = [before, *self.attention.operators(step, before.output)]
        operators.append(add("attn_add", hidden, operators[-1].output, tokens))
        stream = operators[-1].output
        operators.append(rms_norm("mlp_norm", width, dtype).operator(stream, tokens))
        operators += self.feed_forward.operators(step, operators[-1].output)
        operators.append(add("mlp_add", stream, operators[-1].output, tokens))
        return Block(name="layer", operators=tuple(operators), states=self.attention.states())


WHERE = "--speculative eagle3"
#: Llama-3.1-8B on MT-bench, a chain of three.
DEFAULT = "eagle3-llama-3.1-8b-chain"
PARAMETERS = {
    **feature_parameters(DEFAULT),
    "vocabulary": f"tokens that its head knows; {DRAFT_VOCABULARY} unless said",
}
VOCABULARY_SIZE = Parameter(name="vocabulary", default=DRAFT_VOCABULARY, low=1, high=1e7, whole=True)


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, PARAMETERS)
    width, vocabulary = int(WIDTH.value(given, WHERE)), int(VOCABULARY_SIZE.value(given, WHERE))

    def layers(target: Model) -> FeatureDrafter:
        first, later = (eagle3(target, width, vocabulary, features) for features in (3, 0))
        return FeatureDrafter(name="EAGLE-3", first=first, later=later, shared=TABLES)

    return feature_method("eagle3", text, given, layers, DEFAULT)


TECHNIQUE = Technique(
    name="eagle3",
    kind="speculation",
    summary="As eagle, on features of three of the model's layers and with a head of its own over frequent tokens.",
    parameters=PARAMETERS,
    formula="fc (3 h -> h) once a round, then tokens times one layer with queries, keys and values of 2 h, and a head "
    "h -> V'; verification of tokens + 1, or nodes + 1; E = 1 + a_1 + a_1 a_2 + ...; one layer of cache more",
    source=SOURCE,
    example="llmviewer analyze llama-3.1-8b --hardware h100 --speculative eagle3,tokens=3",
    make=_make,
)
