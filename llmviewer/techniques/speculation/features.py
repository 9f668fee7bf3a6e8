"""Methods of --speculative whose drafter runs on the target's hidden states: EAGLE, EAGLE-3, MTP modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated

import numpy as np

from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Operator, Tensor
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention
from llmviewer.layers.decoder import DecoderLayer, Norms
from llmviewer.layers.feed_forward import Mlp
from llmviewer.layers.mla import Mla
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import Norm, NormKind, add, rms_norm
from llmviewer.ops.gemm import Linear
from llmviewer.serving.generation import Draft, Generation, PassShape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.method import (
    RATES,
    TOKENS,
    Rounds,
    drafted,
    read_acceptance,
    round_facts,
    speculation,
    tree_verification_pass,
    verification_pass,
)
from llmviewer.techniques.speculation.module import (
    TABLES,
    VOCABULARY,
    Module,
    attention,
    checkpoint_formats,
    draft_module,
    embedding_block,
    fc_linear,
    feed_forward,
    hidden_states,
)
from llmviewer.techniques.technique import Whole


@frozen(eq=False)
class FeatureDrafter:
    """A drafter on the target's hidden states.  first, later: its model in the first pass of a round and in later ones.

    shared: names of weights that it shares with the target.  modules: drafters with separate weights and caches, used
    in turn for one token each.
    """

    name: str
    first: Model
    later: Model
    shared: tuple[str, ...]
    modules: int = 1


@frozen
class TreeShape:
    """Shape of a draft tree.  topk: nodes extended per level, and children of each.  nodes: draft tokens to verify."""

    topk: float
    nodes: float


def feature_round(
    drafter: FeatureDrafter, tokens: float, by_position: Acceptance, tree: TreeShape | None = None
) -> Generation:
    """A round: `tokens` passes of the drafter, then one verification pass of the target.

    The first pass processes the hidden states of all tokens of the previous round, E on average; later passes process
    one token, or `topk` tokens of a tree, each of which attends only its own path.  The cache of the i-th later pass is
    i - 1 tokens longer; all use the mean.
    tokens: for a tree its depth; acceptance is then the probability that a level contains the target's token.
    Source: arXiv 2401.15077; https://github.com/vllm-project/vllm, vllm/v1/spec_decode/eagle.py.
    """
    expected = by_position.tokens(tokens)
    width = tree.topk if tree else 1.0
    later = PassShape(
        new_tokens=width,
        logit_positions=width,
        attended_new_pairs=width if tree else None,
        ahead=max(tokens - 2.0, 0.0) / 2.0,
    )
    verified = tree_verification_pass(tree.nodes, tokens) if tree else verification_pass(tokens)
    return Generation(
        shape=verified,
        tokens=expected,
        drafts=tuple(_module_passes(drafter, tokens, PassShape(new_tokens=expected), later)),
        facts=round_facts(drafter.name, tree.nodes if tree else tokens, by_position),
    )


def _module_passes(drafter: FeatureDrafter, tokens: float, first: PassShape, later: PassShape) -> Iterator[Draft]:
    """First and later passes of every module in a round; both use the same weights and cache."""
    for module in range(drafter.modules):
        passes = max(float(np.ceil((tokens - module) / drafter.modules)), 0.0)
        name = drafter.name if drafter.modules == 1 else f"{drafter.name} {module + 1}"
        yield Draft(name=name, model=drafter.first, passes=min(passes, 1.0), shape=first, shared=drafter.shared)
        yield Draft(
            name=f"{name}, later passes",
            model=drafter.later,
            passes=max(passes - 1.0, 0.0),
            shape=later,
            caches=False,
            shared=None,
        )


#: Most levels of a tree.
MAX_DEPTH = 64
TREE_TOKENS = partial(TOKENS, help=f"{TOKENS().help}; for a tree its depth")
Topk = Annotated[float, Whole("children of each tree node", 1, 64, unset="1, a chain")]
Nodes = Annotated[float | None, Whole("draft tokens of a tree to verify (SGLang's num-draft-tokens - 1)", 1, 4096)]
Width = Annotated[float | None, Whole("width of the drafter's MLP", 1, 1e6, unset="that of the target")]


def feature_rounds(
    drafter: Callable[[Model], FeatureDrafter],
    tokens: float | str,
    acceptance: Acceptance | None,
    default: str,
    tree: TreeShape | None = None,
) -> Rounds:
    """Rounds of a drafter on hidden states.  default: published acceptance of a chain, "" if there is none."""
    if acceptance is None and (tree or not default):
        raise UserError("acceptance is missing and has no published default; write acceptance=0.7")
    rates = acceptance or read_acceptance(default)
    return drafted(tokens, lambda drafts, target: feature_round(drafter(target), drafts, rates, tree))


def tree_of(tokens: float | str, topk: float, nodes: float | None) -> TreeShape | None:
    """The tree that is asked for, checked; None for a chain."""
    if topk == 1.0:
        if nodes is not None:
            raise UserError(f"a tree of {nodes:g} nodes needs topk=2 or more")
        return None
    if isinstance(tokens, str):
        raise UserError(f"tokens=best works only for chains; for a tree with topk={topk:g} give its depth: tokens=5")
    if not 1 <= tokens <= MAX_DEPTH:
        raise UserError(f"tokens is {tokens:g}; allowed: 1 to {MAX_DEPTH} levels of a tree")
    if nodes is None:
        raise UserError(f"nodes is missing; a tree with topk={topk:g} needs the draft tokens to verify: nodes=...")
    most = topk + topk * topk * (tokens - 1.0)
    if not tokens <= nodes <= most:
        raise UserError(f"nodes is {nodes:g}; {tokens:g} levels of topk={topk:g} have {tokens:g} to {most:g}")
    return TreeShape(topk=topk, nodes=nodes)


EAGLE_SOURCE = (
    "EAGLE arXiv 2401.15077, EAGLE-2 arXiv 2406.16858, EAGLE-3 arXiv 2503.01840; "
    "https://github.com/SafeAILab/EAGLE, eagle/model/cnets.py"
)
#: Llama-2-7b-chat on MT-bench, a chain of five draft tokens.
EAGLE_DEFAULT = "eagle-llama2-7b-chain"


def eagle_module(target: Model, width: int = 0, mixer: Attention | None = None) -> Module:
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

    return draft_module(target, "EAGLE", blocks, EAGLE_SOURCE)


def eagle_drafter(target: Model, width: int = 0, mixer: Attention | None = None) -> FeatureDrafter:
    """The drafter of EAGLE for a target; arguments as in `eagle_module`."""
    module = eagle_module(target, width, mixer)
    return FeatureDrafter(name="EAGLE", first=module, later=module, shared=VOCABULARY)


@speculation(
    "eagle",
    formula="fc (2 h -> h), one layer, the target's LM head: `tokens` passes, the first of a round over E tokens; "
    "verification of tokens + 1, or nodes + 1; E = 1 + a_1 + a_1 a_2 + ...; KV cache of one more layer",
    source=EAGLE_SOURCE,
    example="llama-2-7b --hardware a100 --speculative eagle,tokens=4",
)
def eagle(
    *,
    tokens: Annotated[float | str, TREE_TOKENS()],
    acceptance: Annotated[Acceptance | None, RATES(unset=f"{EAGLE_DEFAULT} for a chain")] = None,
    topk: Topk = 1.0,
    nodes: Nodes = None,
    width: Width = None,
) -> Rounds:
    """One decoder layer drafts from the target's hidden states, in a chain (vLLM) or a tree (EAGLE-2, SGLang)."""
    drafter = partial(eagle_drafter, width=int(width or 0))
    return feature_rounds(drafter, tokens, acceptance, EAGLE_DEFAULT, tree_of(tokens, topk, nodes))


EAGLE3_SOURCE = (
    "EAGLE-3 arXiv 2503.01840; https://github.com/vllm-project/vllm, vllm/model_executor/models/llama_eagle3.py"
)
#: Llama-3.1-8B on MT-bench, a chain of three draft tokens.
EAGLE3_DEFAULT = "eagle3-llama-3.1-8b-chain"
#: Vocabulary size of published heads: draft_vocab_size in https://github.com/sgl-project/SpecForge, configs/.
DRAFT_VOCABULARY = 32000


def eagle3_module(
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

    return draft_module(target, "EAGLE-3", blocks, EAGLE3_SOURCE)


@frozen(eq=False)
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


def eagle3_drafter(
    target: Model,
    width: int = 0,
    vocabulary: int = DRAFT_VOCABULARY,
    features: int = 3,
    mixer: Attention | None = None,
) -> FeatureDrafter:
    """The drafter of EAGLE-3 for a target; arguments as in `eagle3_module`, features in the first pass of a round."""
    first, later = (eagle3_module(target, width, vocabulary, states, mixer) for states in (features, 0))
    return FeatureDrafter(name="EAGLE-3", first=first, later=later, shared=TABLES)


@speculation(
    "eagle3",
    formula="fc (3 h -> h) once per round, then `tokens` passes of one layer with queries, keys and values from 2 h, "
    "a head h -> V'; verification of tokens + 1, or nodes + 1; E = 1 + a_1 + a_1 a_2 + ...; KV cache of one more layer",
    source=EAGLE3_SOURCE,
    example="llama-3.1-8b --hardware h100 --speculative eagle3,tokens=3",
)
def eagle3(
    *,
    tokens: Annotated[float | str, TREE_TOKENS()],
    acceptance: Annotated[Acceptance | None, RATES(unset=f"{EAGLE3_DEFAULT} for a chain")] = None,
    topk: Topk = 1.0,
    nodes: Nodes = None,
    width: Width = None,
    vocabulary: Annotated[float, Whole("vocabulary size of its LM head", 1, 1e7)] = DRAFT_VOCABULARY,
) -> Rounds:
    """As eagle, with hidden states of three target layers and its own LM head over frequent tokens."""
    drafter = partial(eagle3_drafter, width=int(width or 0), vocabulary=int(vocabulary))
    return feature_rounds(drafter, tokens, acceptance, EAGLE3_DEFAULT, tree_of(tokens, topk, nodes))


MTP_SOURCE = (
    "DeepSeek-V3 arXiv 2412.19437, section 2.2; "
    "https://github.com/vllm-project/vllm, vllm/model_executor/models/deepseek_mtp.py, qwen3_next_mtp.py, mimo_mtp.py"
)
#: Architectures whose module is not like their last layer -> substrings of the layers with its mixer and its MLP.
#: MiMo-V2-Flash: a sliding window and a dense MLP, 0.33e9 parameters per module (arXiv 2601.02780).
LIGHT = {"MiMoV2FlashForCausalLM": ("sliding", "dense")}


def module_layer(target: Model) -> DecoderLayer:
    """The layer of the module: the target's last layer with attention, unless the architecture is in LIGHT."""
    by_name = {layer.name: layer for layer in target.layers}
    if target.architecture in LIGHT:
        mixers, parts = LIGHT[target.architecture]
        mixer = next(layer.mixer for name, layer in by_name.items() if mixers in name)
        part = next(layer for name, layer in by_name.items() if parts in name)
        return replace(part, mixer=mixer, repeats=1, numbers=())
    attending = [layer for layer in target.layers if isinstance(layer.mixer, (Attention, Mla))]
    last = max(attending or target.layers, key=lambda layer: max(layer.numbers, default=layer.repeats))
    return replace(last, repeats=1, numbers=())


def mtp_module(target: Model) -> Module:
    """The MTP module.

    Norms of token embedding and hidden state, eh_proj (2 h -> h) of both, one layer like the target's last one
    (experts included), the module's norm and the target's LM head.
    Own parameters: 2 h h + 3 h + the layer's; embedding and head are the target's.  The layer has the number formats
    of the target's last one, eh_proj has 16 bit.  Published for DeepSeek-V3: 11.5e9
    (https://github.com/deepseek-ai/DeepSeek-V3, README_WEIGHTS.md; 14e9 with embedding, head and scales).
    """
    layer = module_layer(target)
    width, dtype = target.hidden, target.dtype
    project = Linear(name="eh_proj", in_features=2 * width, out_features=width, dtype=dtype)
    head = replace(target.head, norm=rms_norm("final_norm", width, dtype))

    def blocks(step: Step) -> tuple[Block, ...]:
        input_block = Block(name="mtp_input", operators=_join(target, project, step), scope="model")
        hidden = hidden_states(target, step)
        return (embedding_block(target, step), input_block, layer.block(step, hidden), head.block(step, hidden))

    return draft_module(target, "MTP", blocks, MTP_SOURCE, checkpoint_formats(target, {layer.name: (layer.name, 1)}))


def _join(target: Model, project: Linear, step: Step) -> tuple[Operator, ...]:
    """enorm and hnorm as one norm with two rows per token, then eh_proj."""
    norm = rms_norm("input_norm", target.hidden, target.dtype, rows=2)
    norm = replace(norm, parameters=2.0 * target.hidden)
    normed = norm.operator(hidden_states(target, step, 2.0), step.tokens)
    return normed, project.operator(normed.output, step.tokens)


#: 85 % acceptance of second tokens, the low end of the DeepSeek-V3 report.
MTP_DEFAULT = "mtp-deepseek-v3"


@speculation(
    "mtp",
    formula="eh_proj (2 h -> h) of token embedding and hidden state, one layer like the target's last, the target's LM "
    "head, for every draft token; E = 1 + a_1 + a_1 a_2 + ...; memory: the module's weights and its layer's KV cache",
    source=MTP_SOURCE,
    example="deepseek-v3 --hardware h200 -tp 8 --speculative mtp,tokens=1",
)
def mtp(
    *,
    tokens: Annotated[float | str, TOKENS()] = 1.0,
    acceptance: Annotated[Acceptance | None, RATES(unset=f"{MTP_DEFAULT} for one token")] = None,
    modules: Annotated[float, Whole("modules with separate weights, used in turn", 1, 16)] = 1.0,
) -> Rounds:
    """The multi-token prediction module of a checkpoint drafts (DeepSeek-V3, GLM-4.5, Qwen3-Next, MiMo-V2; for other
    models, a module of the same form).
    """

    def drafter(target: Model) -> FeatureDrafter:
        module = mtp_module(target)
        return FeatureDrafter(name="MTP", first=module, later=module, shared=VOCABULARY, modules=int(modules))

    return feature_rounds(drafter, tokens, acceptance, MTP_DEFAULT if tokens in (0.0, 1.0) else "")
