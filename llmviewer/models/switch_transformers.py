"""Switch Transformers: T5 with experts in some layers of both halves, of which each token uses one."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.mlp import Mlp
from llmviewer.layers.moe import Moe
from llmviewer.models.config import Config
from llmviewer.models.encoder_decoder import Stack
from llmviewer.models.model import Model
from llmviewer.models.t5 import Entry
from llmviewer.ops.elementwise import ACTIVATIONS

#: The class without its experts.
BASE = Entry(layers=12, heads=12, inner=2048, vocabulary=32128, gated=False, width=768)
#: Default of the class for the layers with experts in each half.
SPARSE_LAYERS = 3


def parse_switch_transformers(config: Config, dtype: Dtype) -> Model:
    """SwitchTransformersForConditionalGeneration.  Source: arXiv 2101.03961; transformers, models/switch_transformers.

    Tokens beyond the capacity of their expert pass it by: if all experts are chosen equally often, the class computes
    at most num_experts x expert_capacity tokens of a sequence in a layer with experts.
    """
    config.expect("num_selected_experts", 1)
    config.expect("router_type", "tokens_masked")
    config.expect("batch_prioritized_routing", False)
    config.ignore("router_dtype", "router_ignore_padding_tokens", "add_router_probs")
    config.expect("dense_act_fn", *ACTIVATIONS)  # its class has no gated parts
    act = config.text("dense_act_fn", "relu")
    config.expect("feed_forward_proj", act)
    config.override(feed_forward_proj=act)
    config.defaults(num_decoder_layers=BASE.layers)
    encoder, decoder = BASE.halves(config, dtype)
    encoder, decoder = _with_experts(config, encoder, "encoder"), _with_experts(config, decoder, "decoder")
    return BASE.joined(config, dtype, encoder, decoder)


def _with_experts(config: Config, stack: Stack, half: str) -> Stack:
    """The half with experts in every `step`-th layer, from the second one on."""
    sparse = config.count(f"num_sparse_{half}_layers", SPARSE_LAYERS, minimum=0)
    step = config.count(f"{half}_sparse_step", stack.layers // sparse if sparse else stack.layers, minimum=0)
    numbers = (layer for layer in range(stack.layers) if step == 1 or (step > 1 and layer % step == 1))
    return replace(stack, experts=_experts(config, stack.mlp), sparse=tuple(numbers))


def _experts(config: Config, expert: Mlp) -> Moe:
    return Moe(
        expert=expert,
        experts=config.count("num_experts", 8),
        chosen=1,
        dtype=expert.dtype,
        hidden=expert.hidden,
        router_bias=config.flag("router_bias", default=False),
        capacity=config.count("expert_capacity", 64),
    )
