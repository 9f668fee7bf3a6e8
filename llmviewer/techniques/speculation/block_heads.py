"""Drafters of whole blocks: DFlash, and DSpark and Domino, which add a small sequential head to it.

One pass over a block of masked tokens drafts all of them; its layers read keys and values that are made from hidden
states of several layers of the target.  Source: https://github.com/sgl-project/SpecForge, specforge/modeling/draft/
dflash.py, dspark.py, domino.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.ir import Block, Role, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.decoder import DecoderLayer
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.fields import layer_types, max_context
from llmviewer.models.model import Model
from llmviewer.ops.attention import rope
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm, NormKind, rms_norm
from llmviewer.serving.generation import Draft, Generation, PassShape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_options import TOKENS, draft_tokens_change, required_acceptance, scheme_name
from llmviewer.techniques.speculation.module import VOCABULARY, Module, draft_module, embedding_block, hidden_states
from llmviewer.techniques.speculation.sequential_heads import sequential_head
from llmviewer.techniques.speculation.verification import round_facts, verification_pass
from llmviewer.techniques.technique import Change

SOURCE = "https://github.com/sgl-project/SpecForge, specforge/modeling/draft/dflash.py"
WHERE = "--speculative draft=PATH"
KINDS = ("DFlash", "DSpark", "Domino")
#: Weights that the pass over a block and the one over the target's states have in common.
KEYS_AND_VALUES = ("k_proj.weight", "v_proj.weight", "k_norm.weight", "k_proj.bias", "v_proj.bias")
#: Fields of `dflash_config` that are read or change no shape; any other may add weights.
KNOWN = (
    "target_layer_ids mask_token_id block_size attention_mode projector_type markov_rank markov_head_type shift_label "
    "enable_confidence_head confidence_head_with_markov confidence_head_alpha emb_dim gru_hidden_dim "
    "pure_draft_prefix_len use_aux_hidden_state causal"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
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


def block_change(config: Config, kind: str, text: str, given: Mapping[str, str]) -> Change:
    """The change to rounds of a drafter of blocks.  text: the option as typed; given: its parameters."""
    head = block_head(config, kind)
    by_position = required_acceptance(WHERE, given)
    for name in ("topk", "nodes"):
        if name in given:
            raise UserError(f"{WHERE}: {name} is an option of EAGLE heads; a {kind} head drafts a chain")
    if given.get("tokens", "best") != "best" and TOKENS.value(given, WHERE) > head.drafted:
        raise UserError(f"{WHERE}: tokens is {given['tokens']}; a block of {config.where} has {head.drafted}")

    def make(tokens: float, target: Model) -> Generation:
        return block_round(head, target, min(tokens, float(head.drafted)), by_position)

    return draft_tokens_change(scheme_name("draft", text), WHERE, given, make, float(head.drafted))


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
