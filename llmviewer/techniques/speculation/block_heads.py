"""Drafters of whole blocks: DFlash, and DSpark and Domino, which add a small sequential head to it.

One pass over a block of masked tokens drafts all of them; its layers read keys and values that are made from hidden
states of several layers of the target.  Source: https://github.com/sgl-project/SpecForge, specforge/modeling/draft/
dflash.py, dspark.py, domino.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import numpy as np

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Operator, Role, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.decoder import DecoderLayer
from llmviewer.models import parts
from llmviewer.models.config import Config, layer_types, max_context
from llmviewer.models.model import Model
from llmviewer.ops.attention import rope
from llmviewer.ops.elementwise import Norm, NormKind, activate, activation, add, elementwise, embedding, rms_norm
from llmviewer.ops.gemm import Linear
from llmviewer.serving.generation import Draft, Generation, PassShape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.method import (
    TOKENS,
    Rates,
    Rounds,
    drafted,
    round_facts,
    verification_pass,
)
from llmviewer.techniques.speculation.module import (
    TABLES,
    VOCABULARY,
    Module,
    draft_module,
    embedding_block,
    hidden_states,
)

SOURCE = "https://github.com/sgl-project/SpecForge, specforge/modeling/draft/dflash.py"
HEAD_SOURCE = "https://github.com/sgl-project/SpecForge, specforge/modeling/draft/dspark.py, domino.py"
#: Elementwise work of a GRU cell per state: two sigmoids, a tanh, and the sums and products between them.
GRU_FLOPS = 10.0
KINDS = ("DFlash", "DSpark", "Domino")
#: Weights that the pass over a block and the one over the target's states have in common.
KEYS_AND_VALUES = ("k_proj.weight", "v_proj.weight", "k_norm.weight", "k_proj.bias", "v_proj.bias")
#: Fields of `dflash_config` that are read or change no shape; any other may add weights.
KNOWN = (
    "target_layer_ids mask_token_id block_size attention_mode projector_type markov_rank markov_head_type shift_label "
    "enable_confidence_head confidence_head_with_markov confidence_head_alpha emb_dim gru_hidden_dim "
    "pure_draft_prefix_len use_aux_hidden_state causal"
).split()


@frozen
class BlockHead:
    """A drafter of blocks as its config states it.

    features: layers of the target whose states it reads.  block: tokens of one pass, the known one included.
    drafted: tokens of a block that it predicts; one less, unless the known token's position predicts too.
    """

    config: Config
    kind: str
    features: int
    block: int
    drafted: int


def block_head(config: Config, kind: str) -> BlockHead:
    """The drafter in a config.  Raises UserError for parts that are not priced."""
    own = config.section("dflash_config")
    unknown = [name for name in own.fields if name not in KNOWN and own.fields[name] is not None]
    if unknown:
        raise UserError(
            f"{config.where}: dflash_config: field {quoted(unknown[0])} may add weights that are not priced"
        )
    for name, allowed in (("attention_mode", ("gqa", "mha")), ("markov_head_type", ("vanilla",))):
        if own.has(name) and own.get(name) not in allowed:
            raise UserError(f"{config.where}: dflash_config: {name} is {quoted(own.get(name))}; priced: {allowed[0]}")
    block = own.count("block_size", config.count("block_size", 16), minimum=2)
    anchored = kind == "DSpark" or own.flag("shift_label", default=False)
    layers = own.get("target_layer_ids")
    features = len(layers) if isinstance(layers, list) and layers else config.count("num_hidden_layers")
    return BlockHead(config=config, kind=kind, features=features, block=block, drafted=block - (not anchored))


def block_rounds(config: Config, kind: str) -> Callable[..., Rounds]:
    """Rounds of a drafter of blocks by the parameters that a user gives."""
    head = block_head(config, kind)

    def rounds(
        *, tokens: Annotated[float | str, TOKENS(unset="those of a block")] = float(head.drafted), acceptance: Rates
    ) -> Rounds:
        if not isinstance(tokens, str) and tokens > head.drafted:
            raise UserError(f"tokens is {tokens:g}; a block of {config.where} has {head.drafted}")
        return drafted(
            tokens, lambda drafts, target: block_round(head, target, min(drafts, float(head.drafted)), acceptance)
        )

    return rounds


def block_round(head: BlockHead, target: Model, tokens: float, by_position: Acceptance) -> Generation:
    """A round: keys and values of the tokens of the previous round, one pass over a block, then verification.

    Every token of the block attends the whole block, so its pairs are those of a square.
    """
    expected = by_position.tokens(tokens)
    width = tokens + float(head.block - head.drafted)
    context, drafter = _modules(head, target)
    shape = PassShape(new_tokens=width, logit_positions=tokens, attended_new_pairs=width * width)
    shared = (*VOCABULARY, *KEYS_AND_VALUES)
    drafts = (
        Draft(name=f"{head.kind}, target's states", model=context, shape=PassShape(new_tokens=expected)),
        Draft(name=head.kind, model=drafter, shape=shape, caches=False, shared=shared),
        *sequential_head(head.kind, head.config.section("dflash_config"), target, tokens),
    )
    return Generation(
        shape=verification_pass(tokens),
        tokens=expected,
        drafts=drafts,
        facts=round_facts(head.kind, tokens, by_position),
    )


def _modules(head: BlockHead, target: Model) -> tuple[Module, Module]:
    """The pass over the target's states, and the pass over a block."""
    layers = _layers(head.config, target)
    norm = rms_norm("hidden_norm", target.hidden, target.dtype)
    fc = Linear(name="fc", in_features=head.features * target.hidden, out_features=target.hidden, dtype=target.dtype)

    def context(step: Step) -> tuple[Block, ...]:
        product = fc.operator(hidden_states(target, step, float(head.features)), step.tokens)
        states = Block(name="fc", operators=(product, norm.operator(product.output, step.tokens)), scope="model")
        return (states, *(_keys_and_values(target, layer, step) for layer in layers))

    def block(step: Step) -> tuple[Block, ...]:
        hidden = hidden_states(target, step)
        own_norm = rms_norm("final_norm", target.hidden, target.dtype)
        last = replace(target.head, norm=own_norm).block(step, hidden)
        return (embedding_block(target, step), *(layer.block(step, hidden) for layer in layers), last)

    limit = max_context(head.config)
    modules = (
        draft_module(target, name, blocks, SOURCE) for name, blocks in ((head.kind, context), (head.kind, block))
    )
    first, second = (replace(module, max_context=limit) for module in modules)
    return first, second


def _layers(config: Config, target: Model) -> tuple[DecoderLayer, ...]:
    """The head's layers, those of Qwen3 with its own sizes: full attention, or a sliding window in some layers."""
    mixer = replace(parts.attention(config, target.dtype, parts.projections(config)), qk_norm=QkNorm.PER_HEAD)
    types = layer_types(config, ("full", "sliding"), ["full"] * config.count("num_hidden_layers"))
    window = float(config.count("sliding_window")) if "sliding" in types else np.inf
    return tuple(
        DecoderLayer(
            name="layer" if kind == "full" else "layer_sliding",
            repeats=types.count(kind),
            norms=parts.pre_norms(config, target.dtype),
            mixer=replace(mixer, window=window if kind == "sliding" else np.inf),
            feed_forward=parts.gated_mlp(config, target.dtype),
        )
        for kind in sorted(set(types))
    )


def _keys_and_values(target: Model, layer: DecoderLayer, step: Step) -> Block:
    """Keys and values of the target's states in one layer, which fill its cache."""
    mixer, tokens = layer.mixer, step.tokens
    assert isinstance(mixer, Attention)
    width, dtype = mixer.kv_heads * mixer.head_dim, target.dtype
    keys, values = (
        whole(Tensor(name=name, elements=tokens * (1.0 * width), dtype=dtype, role=Role.CACHE))
        for name in ("k_cache", "v_cache")
    )
    x = hidden_states(target, step)
    bias = mixer.projections.qkv_bias
    project = [
        Linear(name=name, in_features=mixer.hidden, out_features=width, dtype=dtype, bias=bias)
        for name in ("k_proj", "v_proj")
    ]
    k, v = project[0].operator(x, tokens), project[1].operator(x, tokens, (values,))
    norm = Norm(
        name="k_norm",
        kind=NormKind.RMS,
        width=mixer.head_dim,
        rows=mixer.kv_heads,
        parameters=mixer.head_dim,
        dtype=dtype,
    )
    normed = norm.operator(k.output, tokens)
    turned = rope("rope", (whole(normed.output),), (keys,), tokens, mixer.kv_heads * mixer.rotary_dim / 2)
    name = layer.name.replace("layer", "context")
    return Block(
        name=name, operators=(k, v, normed, turned), repeats=layer.repeats, states=mixer.states(), scope=layer.name
    )


def sequential_head(kind: str, config: Config, target: Model, tokens: float) -> tuple[Draft, ...]:
    """The head of a kind of block drafter, run once per token of a block; none for DFlash.

    config: the section `dflash_config`.
    """
    if kind == "DSpark" and config.count("markov_rank", 0, minimum=0):
        return (_draft(target, "DSpark's Markov head", _markov(config, target), tokens, 1.0),)
    if kind == "Domino":
        plain = float(config.count("pure_draft_prefix_len", 0, minimum=0))
        corrected = max(tokens - plain, 0.0)
        steps = tokens / corrected if corrected else 1.0  # the state also steps over the tokens without a correction
        return (_draft(target, "Domino's head", _gru(config, target), corrected, steps),)
    return ()


def _draft(
    target: Model, name: str, operators: Callable[[Step], tuple[Operator, ...]], passes: float, tokens: float
) -> Draft:
    """The passes of a head; `tokens` of each pass step its state, and one gets logits."""

    def blocks(step: Step) -> tuple[Block, ...]:
        own = Block(name="draft_head", operators=operators(step), scope="model")
        return (embedding_block(target, step), own) if name.startswith("Domino") else (own,)

    module = draft_module(target, name, blocks, HEAD_SOURCE)
    return Draft(
        name=name, model=module, passes=passes, shape=PassShape(new_tokens=tokens), caches=False, shared=TABLES
    )


def _markov(config: Config, target: Model) -> Callable[[Step], tuple[Operator, ...]]:
    """A bias of logits by the token before, V x r and r x V, and the predicted acceptance, h + r -> 1 with bias."""
    rank, vocabulary, dtype = config.count("markov_rank"), target.head.lm_head.out_features, target.dtype
    table = Tensor(name="markov_w1.weight", elements=vocabulary * (1.0 * rank), dtype=dtype, role=Role.WEIGHT)
    project = Linear(name="markov_w2", in_features=rank, out_features=vocabulary, dtype=dtype)
    inputs = target.hidden + rank * config.flag("confidence_head_with_markov", default=True)
    confidence = Linear(name="confidence", in_features=inputs, out_features=1, dtype=dtype, bias=True)
    has_confidence = config.flag("enable_confidence_head", default=False)

    def operators(step: Step) -> tuple[Operator, ...]:
        rows = step.logits
        row = Tensor(name="markov_w1", elements=rows * (1.0 * rank), dtype=dtype)
        token = embedding("markov_w1", (table,), row, rows)
        bias = project.operator(token.output, rows)
        found = (token, bias, add("markov_add", _logits(target, step), bias.output, rows))
        x = Tensor(name="hidden", elements=rows * (1.0 * inputs), dtype=dtype)
        return (*found, confidence.operator(x, rows)) if has_confidence else found

    return operators


def _gru(config: Config, target: Model) -> Callable[[Step], tuple[Operator, ...]]:
    """A GRU over embeddings of the tokens before, 3 H (h + H), then h + H -> e (SiLU) -> V, added to the logits."""
    state, inner, dtype = config.count("gru_hidden_dim"), config.count("emb_dim"), target.dtype
    read = Linear(name="gru_ih", in_features=target.hidden, out_features=3 * state, dtype=dtype)
    keep = Linear(name="gru_hh", in_features=state, out_features=3 * state, dtype=dtype)
    down = Linear(name="embed_proj_in", in_features=target.hidden + state, out_features=inner, dtype=dtype)
    up = Linear(name="embed_proj_out", in_features=inner, out_features=target.head.lm_head.out_features, dtype=dtype)

    def operators(step: Step) -> tuple[Operator, ...]:
        tokens, rows = step.tokens, step.logits
        x = Tensor(name="embedding", elements=tokens * (1.0 * target.hidden), dtype=dtype)
        before, after = (
            Tensor(name=f"gru_{one}", elements=tokens * (1.0 * state), dtype=dtype) for one in ("h", "cell")
        )
        new, old = read.operator(x, tokens), keep.operator(before, tokens)
        gates = (whole(new.output), whole(old.output), whole(before))
        cell = elementwise("gru_cell", gates, after, tokens, flops=GRU_FLOPS)
        both = Tensor(name="hidden", elements=rows * (1.0 * (target.hidden + state)), dtype=dtype)
        low = down.operator(both, rows)
        act = activate("embed_proj_act", low.output, rows, activation("silu"))
        bias = up.operator(act.output, rows)
        return (new, old, cell, low, act, bias, add("domino_add", _logits(target, step), bias.output, rows))

    return operators


def _logits(target: Model, step: Step) -> Tensor:
    """The logits of the block's pass that a head corrects."""
    return Tensor(name="logits", elements=step.logits * (1.0 * target.head.lm_head.out_features), dtype=target.dtype)
