"""Split of a model over devices: linear layers that are column-parallel, row-parallel or replicated, whole experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Operator, Role
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import GemmShape
from llmviewer.techniques.scaling import scale_access, scale_axis, scale_work
from llmviewer.techniques.sparsity.expert_skew import busiest_rank_experts, distinct_experts


class Layout(Enum):
    """How a tensor is distributed over devices."""

    WHOLE = "whole"  # every device has all of it
    SPLIT = "split"  # every device has its heads, channels, experts or rows of the vocabulary
    PARTIAL = "partial"  # every device has a term of its sum
    TOKENS = "tokens"  # every device has its own tokens of it


class Split(Enum):
    """How a linear layer is divided over devices."""

    COLUMN_PARALLEL = "columns"
    ROW_PARALLEL = "rows"
    REPLICATED = "replicated"


#: Linear layers whose output is split; their input is whole.
COLUMN_PARALLEL = frozenset(
    "q_proj k_proj v_proj qkv_proj q_b_proj kv_b_proj gate_proj up_proj gate_up_proj shared_gate_proj shared_up_proj "
    "shared_gate_up_proj expert_gate_proj expert_up_proj expert_gate_up_proj in_proj in_proj_a in_proj_b in_proj_ba "
    "in_proj_qkv in_proj_qkvz in_proj_z o_a_proj output_gate dt_proj lm_head heads_up_proj b_proj f_b_proj g_b_proj "
    "attn_predictor_out mlp_predictor_out".split()
)
#: Linear layers whose input is split; their output is a partial sum.
ROW_PARALLEL = frozenset("o_proj down_proj shared_down_proj expert_down_proj out_proj x_proj heads_down_proj".split())
#: Linear layers that every device runs whole: common to all heads, or too small to split.
REPLICATED = frozenset(
    "frame_conv1 frame_conv2 patch_proj time_in_proj time_out_proj adaln_proj final_adaln_proj noise_proj "
    "router shared_gate q_a_proj kv_a_proj latent_in_proj latent_out_proj project_in project_out "
    "per_layer_model_projection per_layer_input_gate per_layer_projection exit_classifier exit_policy_in "
    "exit_policy_out exit_jump prediction "
    "altup_prediction_router altup_correction_router altup_prediction_coefs altup_correction_coefs altup_projection "
    "altup_unembed_projection laurel_left laurel_right "
    "attn_predictor_in mlp_predictor_in index_q_proj index_k_proj index_weights_proj "
    "kv_proj compressed_kv_proj compressed_gate_proj index_kv_proj index_gate_proj f_a_proj g_a_proj "
    "attn_hc_proj mlp_hc_proj head_hc_proj attn_in_gate_a attn_in_gate_b mlp_in_gate_a mlp_in_gate_b "
    "merger_in_proj merger_out_proj deepstack_0_in_proj deepstack_0_out_proj deepstack_1_in_proj deepstack_1_out_proj "
    "deepstack_2_in_proj deepstack_2_out_proj projector "  # of a vision tower, 2 % of its work
    "fc eh_proj resblock_proj state_proj state_proj_first phrase_query".split()  # layers of draft models, as in vLLM
)
#: Name suffixes of the two factors of an adapter or of a factored layer.
FACTOR_SUFFIXES = ("_lora_a", "_lora_b", "_low_a", "_low_b")
#: Operators that are linear in their inputs: partial sums pass through them.
LINEAR_OPERATORS = frozenset(("expert_combine", "shared_scale", "shared_add", "latent_out_proj"))
#: Factors of a linear layer (low rank) and its adapters (LoRA) are split like it: the thin tensor between them is whole
#: or a partial sum that passes through the second factor, as in vLLM's sharded adapters.
_FACTORS = ("_low", "_lora")
REPLICATED |= {f"{name}{kind}{end}" for name in REPLICATED for kind in _FACTORS for end in ("_a", "_b")}
REPLICATED |= {f"{name}{kind}_a" for name in COLUMN_PARALLEL for kind in _FACTORS}
LINEAR_OPERATORS |= {f"{name}{kind}_b" for name in ROW_PARALLEL for kind in _FACTORS}
REPLICATED |= {f"{name}{kind}_b" for name in ROW_PARALLEL for kind in _FACTORS}
COLUMN_PARALLEL |= {f"{name}{kind}_b" for name in COLUMN_PARALLEL for kind in _FACTORS}
ROW_PARALLEL |= {f"{name}{kind}_a" for name in ROW_PARALLEL for kind in _FACTORS}
#: Tensors with KV heads, replicated if there are fewer heads than devices; and latents that all heads share.
KV_HEADS = frozenset(("k_proj", "v_proj", "k_norm", "v_norm", "k_cache", "v_cache"))
SHARED_LATENTS = frozenset(
    ("latent_cache", "latent_cache_quantize", "index_cache", "index_cache_quantize", "compressed_cache")
)
#: Last tensor of a branch of a layer -> name of the branch, for its collective.
BRANCH_OUTPUTS = {
    "o_proj": "attn",
    "out_proj": "attn",
    "down_proj": "mlp",
    "shared_add": "mlp",
    "expert_combine": "mlp",
    "latent_out_proj": "mlp",
    "mlp_add": "mlp",
}
#: Embedding tables, whose rows are split by vocabulary.
EMBEDDING_TABLES = frozenset(("embedding", "per_layer_embedding"))
#: Partial sums that sequence parallelism reduce-scatters, because they are added to the residual stream.
SCATTERED = frozenset((*BRANCH_OUTPUTS, "embedding"))


def linear_split(name: str) -> Split:
    """How a linear layer is divided; raises UserError for an unknown layer.

    Of two factors the one with the split dimension is split: the second of a column-parallel layer, the first of a
    row-parallel one.
    """
    factor = next((ending for ending in FACTOR_SUFFIXES if name.endswith(ending)), "")
    plain = name.removesuffix(factor)
    if plain not in COLUMN_PARALLEL | ROW_PARALLEL | REPLICATED:
        raise UserError(f"tensor parallelism: no split is known for '{name}'")
    if plain in COLUMN_PARALLEL and not factor.endswith("_a"):
        return Split.COLUMN_PARALLEL
    return Split.ROW_PARALLEL if plain in ROW_PARALLEL and not factor.endswith("_b") else Split.REPLICATED


def passes_partial_sums(name: str) -> bool:
    """Whether an operator may run on partial sums, so that its output is a partial sum too."""
    return name in LINEAR_OPERATORS or (
        name[-2:] == "_b" and name.endswith(FACTOR_SUFFIXES) and linear_split(name) is Split.REPLICATED
    )


@frozen
class Sharding:
    """Group sizes of tensor, data, expert and sequence parallelism.

    tensor: devices that split heads, channels and vocabulary.  data: replicas with other sequences, which matter if
    they share experts.  expert: devices that store whole experts (tensor x data of them); 1 splits every expert.
    sequence: whether the residual stream is split by tokens between a reduce-scatter and an all-gather.  near: devices
    connected by one link.  through_host: whether they exchange data through the host's memory.  gathers: whether
    replicas gather the tokens of all of them for their experts, instead of sending each token's rows to its own.
    """

    tensor: int = 1
    data: int = 1
    expert: int = 1
    sequence: bool = False
    near: float = np.inf
    through_host: bool = False
    gathers: bool = False


def kv_head_share(block: Block, devices: int) -> float:
    """A device's share of the KV heads of a block, at least one head."""
    for operator in block.operators:
        if isinstance(operator.shape, AttentionShape):
            heads, kv_heads = float(operator.shape.heads), float(np.max(operator.shape.kv_heads))
            if heads % devices:
                raise UserError(
                    f"tensor parallelism over {devices} devices needs a multiple of {devices} heads, not {heads:g}"
                )
            if max(kv_heads, devices) % min(kv_heads, devices):
                raise UserError(
                    f"tensor parallelism: {kv_heads:g} KV heads cannot be split evenly over {devices} devices"
                )
            return 1.0 / min(kv_heads, devices)
    return 1.0 / devices


def check_divisible(name: str, width: float, devices: float, what: str = "channels") -> None:
    """Raise UserError unless the split dimension is a multiple of the devices, as engines do."""
    if width % devices:
        raise UserError(f"{width:g} {what} of {name} cannot be split evenly over {devices:g} devices")


def shared_residual_sums(block: Block) -> frozenset[str]:
    """The residual sums of a parallel layer: only the second reads the first, so one collective reduces both."""
    readers = {op.name for op in block.operators for a in op.reads if a.tensor.name == "attn_add"}
    return frozenset(("attn_add", "mlp_add")) if readers == {"mlp_add"} else frozenset()


def active_experts(shape: GemmShape, replicas: int) -> Count:
    """Distinct experts of the tokens of d replicas with as many tokens each: N (1 - (1 - a/N)^d)."""
    if replicas == 1:
        return shape.active
    return shape.experts * (1.0 - np.power(1.0 - shape.active / shape.experts, replicas))


def busiest_share(shape: GemmShape, sharding: Sharding) -> Count:
    """Share of all rows and of all active experts on the busiest device.

    It is 1/e, or one expert if fewer than e are active; with skewed popularity, the share of the most popular experts.
    """
    if shape.popularity is not None:
        return float(busiest_rank_experts(shape.popularity, sharding.expert).sum() / shape.popularity.sum())
    return np.maximum(1.0 / sharding.expert, 1.0 / np.maximum(active_experts(shape, sharding.data), 1.0))


def busiest_active_experts(shape: GemmShape, sharding: Sharding) -> Count:
    """Distinct experts that the busiest device reads."""
    if shape.popularity is not None:
        own = shape.m / shape.popularity.sum() if shape.unrelated is None else shape.unrelated
        tokens = sharding.data * own
        return distinct_experts(busiest_rank_experts(shape.popularity, sharding.expert), tokens)
    return active_experts(shape, sharding.data) * busiest_share(shape, sharding)


def dispatch_share(shape: GemmShape, sharding: Sharding) -> Count:
    """Rows on the busiest device, per row of one replica."""
    return sharding.data * busiest_share(shape, sharding)


def split_experts(
    operator: Operator, shape: GemmShape, sharding: Sharding, rows: Mapping[str, Count]
) -> tuple[Operator, Count]:
    """A device's part of a grouped product with its own experts, and its share of the rows of one replica."""
    check_divisible(operator.name, shape.experts, sharding.expert, "experts")
    share = dispatch_share(shape, sharding)
    active = busiest_active_experts(shape, sharding)

    def read(access: Access) -> Access:
        tensor = access.tensor
        if tensor.role is not Role.WEIGHT:
            return scale_access(access, rows[tensor.name]) if tensor.name in rows else access
        stored = replace(tensor, elements=tensor.elements / sharding.expert)
        return Access(stored, tensor.elements * (active / shape.experts))

    new = replace(
        scale_axis(scale_work(operator, share), 0, share),
        reads=tuple(map(read, operator.reads)),
        writes=tuple(scale_access(a, share) for a in operator.writes),
        shape=replace(
            shape,
            m=shape.m * share,
            experts=shape.experts / sharding.expert,
            active=active,
            routed=shape.m * (1.0 * sharding.data),
        ),
    )
    return new, share
