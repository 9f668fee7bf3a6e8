"""`--speculative eagle3`: one decoder layer on hidden states of three target layers, with a reduced vocabulary."""

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
#: Vocabulary size of published heads: draft_vocab_size in https://github.com/sgl-project/SpecForge, configs/.
DRAFT_VOCABULARY = 32000


def eagle3(
    target: Model,
    width: int = 0,
    vocabulary: int = DRAFT_VOCABULARY,
    features: int = 3,
    mixer: Attention | None = None,
) -> Module:
    """Drafter of EAGLE-3.

    fc (3 h -> h) of hidden states of three target layers, one layer whose attention reads token embedding and hidden
    state, and its own norm and LM head over the most frequent tokens.
    features: 3 in the first pass of a round, over tokens that the target has processed; 0 in later passes, which use
    the drafter's own hidden states and skip fc.
    Own parameters: 3 h h + the layer's with queries, keys and values from 2 h + 4 h of norms + V' h; the embedding is
    the target's.  mixer: its attention if it is not the target's.  Not modelled: `t2d` and `d2t`, the maps
    between the vocabularies.
    """
    layer = _WideLayer(
        attention=replace(mixer or attention(target), input_width=2 * target.hidden),
        feed_forward=feed_forward(target, width),
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
        fc_block = Block(
            name="fc",
            operators=(fc.operator(hidden_states(target, step, float(features)), step.tokens),),
            scope="model",
        )
        hidden = hidden_states(target, step)
        first = (embedding_block(target, step), fc_block) if features else (embedding_block(target, step),)
        return (*first, layer.block(step, hidden), head.block(step, hidden))

    return draft_module(target, "EAGLE-3", blocks, SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _WideLayer:
    """A decoder layer whose attention reads token embedding and hidden state concatenated, each normalized."""

    attention: Attention
    feed_forward: Mlp

    def block(self, step: Step, hidden: Tensor) -> Block:
        """The layer's block; only the hidden state is in the residual stream."""
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
#: Llama-3.1-8B on MT-bench, a chain of three draft tokens.
DEFAULT = "eagle3-llama-3.1-8b-chain"
PARAMETERS = {
    **feature_parameters(DEFAULT),
    "vocabulary": f"vocabulary size of its LM head (default: {DRAFT_VOCABULARY})",
}
VOCABULARY_SIZE = Parameter(name="vocabulary", default=DRAFT_VOCABULARY, low=1, high=1e7, whole=True)


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, PARAMETERS)
    width, vocabulary = int(WIDTH.value(given, WHERE)), int(VOCABULARY_SIZE.value(given, WHERE))

    def drafter(target: Model) -> FeatureDrafter:
        first, later = (eagle3(target, width, vocabulary, features) for features in (3, 0))
        return FeatureDrafter(name="EAGLE-3", first=first, later=later, shared=TABLES)

    return feature_method("eagle3", text, given, drafter, DEFAULT)


TECHNIQUE = Technique(
    name="eagle3",
    kind="speculation",
    summary="As eagle, with hidden states of three target layers and its own LM head over frequent tokens.",
    parameters=PARAMETERS,
    formula="fc (3 h -> h) once per round, then `tokens` passes of one layer with queries, keys and values from 2 h, "
    "a head h -> V'; verification of tokens + 1, or nodes + 1; E = 1 + a_1 + a_1 a_2 + ...; KV cache of one more layer",
    source=SOURCE,
    example="llmviewer analyze llama-3.1-8b --hardware h100 --speculative eagle3,tokens=3",
    make=_make,
)
