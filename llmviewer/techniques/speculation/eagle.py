"""`--speculative eagle`: one decoder layer drafts from the target's hidden states, with the target's LM head."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.ir import Block
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention
from llmviewer.layers.decoder import DecoderLayer, Norms
from llmviewer.models.model import Model
from llmviewer.ops.norm import rms_norm
from llmviewer.techniques.speculation.feature_rounds import WIDTH, FeatureDrafter, feature_method, feature_parameters
from llmviewer.techniques.speculation.module import (
    VOCABULARY,
    Module,
    attention,
    draft_module,
    embedding_block,
    fc_linear,
    feed_forward,
    hidden_states,
)
from llmviewer.techniques.technique import Change, Technique, parse_parameters

SOURCE = (
    "EAGLE arXiv 2401.15077, EAGLE-2 arXiv 2406.16858, EAGLE-3 arXiv 2503.01840; "
    "https://github.com/SafeAILab/EAGLE, eagle/model/cnets.py"
)


def eagle(target: Model, width: int = 0, mixer: Attention | None = None) -> Module:
    """Drafter of EAGLE and EAGLE-2.

    fc (2 h -> h, with bias) of token embedding and last hidden state, one layer without its first norm, and the
    target's LM head without its norm.  Own parameters: 2 h h + h + the layer's.  Published: 0.24e9 for Llama-2-7b,
    0.37e9 for 13b, 0.99e9 for 70b (https://github.com/SafeAILab/EAGLE).  Embedding and head are the target's.  With
    tensor parallelism fc is replicated, as in vLLM.  mixer: its attention if it is not the target's.
    """
    norms = Norms(mlp=rms_norm("mlp_norm", target.hidden, target.dtype))
    layer = DecoderLayer(
        name="layer", repeats=1, norms=norms, mixer=mixer or attention(target), feed_forward=feed_forward(target, width)
    )
    fc = replace(fc_linear(target, 2), bias=True)

    def blocks(step: Step) -> tuple[Block, ...]:
        fc_block = Block(
            name="fc", operators=(fc.operator(hidden_states(target, step, 2.0), step.tokens),), scope="model"
        )
        hidden = hidden_states(target, step)
        head = replace(target.head, norm=None)
        return (embedding_block(target, step), fc_block, layer.block(step, hidden), head.block(step, hidden))

    return draft_module(target, "EAGLE", blocks, SOURCE)


WHERE = "--speculative eagle"
#: Llama-2-7b-chat on MT-bench, a chain of five draft tokens.
DEFAULT = "eagle-llama2-7b-chain"
PARAMETERS = feature_parameters(DEFAULT)


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, PARAMETERS)
    width = int(WIDTH.value(given, WHERE))

    def drafter(target: Model) -> FeatureDrafter:
        module = eagle(target, width)
        return FeatureDrafter(name="EAGLE", first=module, later=module, shared=VOCABULARY)

    return feature_method("eagle", text, given, drafter, DEFAULT)


TECHNIQUE = Technique(
    name="eagle",
    kind="speculation",
    summary="One decoder layer drafts from the target's hidden states, in a chain (vLLM) or a tree (EAGLE-2, SGLang).",
    parameters=PARAMETERS,
    formula="fc (2 h -> h), one layer, the target's LM head: `tokens` passes, the first of a round over E tokens; "
    "verification of tokens + 1, or nodes + 1; E = 1 + a_1 + a_1 a_2 + ...; KV cache of one more layer",
    source=SOURCE,
    example="llmviewer analyze llama-2-7b --hardware a100 --speculative eagle,tokens=4",
    make=_make,
)
