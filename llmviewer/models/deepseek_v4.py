"""Models with several residual streams: DeepSeek-V4 (compressed keys before a short window) and Hunyuan 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.compressed_attention import CompressedAttention
from llmviewer.layers.compressor import Compressor
from llmviewer.layers.decoder import Mixer
from llmviewer.layers.hyper_connections import HyperConnection
from llmviewer.layers.indexer import Indexer
from llmviewer.layers.moe import Moe
from llmviewer.models.config import Config
from llmviewer.models.deepseek import Latent, index_layers
from llmviewer.models.experts import DenseFirst, Experts, everywhere
from llmviewer.models.fields import head_count, hidden_size, layer_count
from llmviewer.models.model import Model
from llmviewer.models.sparse_decoder import SparseDecoder
from llmviewer.ops.elementwise import activation

#: Name in `layer_types` -> ours; and its number in a checkpoint's `compress_ratios`.
TYPES = {
    "sliding_attention": "sliding",
    "compressed_sparse_attention": "selected",
    "heavily_compressed_attention": "compressed",
}
RATIOS = {0: "sliding", 4: "selected", 128: "compressed"}


def _types(config: Config) -> list[str]:
    """The attention of every layer as listed, else two `compressed` ones, then `compressed` and `selected` in turn."""
    depth = layer_count(config)
    if config.has("layer_types"):
        return [TYPES[word] for word in config.words("layer_types", TYPES, depth)]
    ratios = config.numbers("compress_ratios")
    if not ratios:
        return ["compressed"] * min(depth, 2) + ["selected" if at % 2 else "compressed" for at in range(depth - 2)]
    if len(ratios) < depth or not set(ratios) <= set(RATIOS):
        raise UserError(f"{config.where}: field 'compress_ratios' must list 0, 4 or 128 for {depth} layers")
    return [RATIOS[ratio] for ratio in ratios[:depth]]


def _rates(config: Config) -> dict[str, int]:
    """Tokens of a compressed entry by type of layer."""
    stated: Any = config.get("compress_rates", {})
    if not isinstance(stated, dict):
        raise UserError(f"{config.where}: field 'compress_rates' must be a mapping of layer types")
    rates = Config({**{name: ratio for ratio, name in RATIOS.items() if ratio}, **_named(stated)}, config.where)
    return {name: rates.count(name) for name in ("selected", "compressed")}


def _named(stated: dict[str, Any]) -> dict[str, Any]:
    return {TYPES.get(name, name): value for name, value in stated.items()}


def _stored_experts(config: Config) -> None:
    """An FP8 checkpoint stores its routed experts in `expert_dtype`, which stands beside its formats."""
    stated: Any = config.get("quantization_config")
    if isinstance(stated, dict) and stated.get("quant_method") == "fp8" and "moe_quant_algo" not in stated:
        formats = {"expert_dtype": config.text("expert_dtype", "fp8"), **stated}
        config.fields = {**config.fields, "quantization_config": formats}


def _attention(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """Attention over the window alone, with all compressed entries, and with entries that an indexer chooses."""
    config.expect("num_key_value_heads", 1)
    config.expect("attention_bias", False)
    hidden, dim = hidden_size(config), config.count("head_dim", 512)
    rope_dim = config.count("qk_rope_head_dim", int(dim * config.fraction("partial_rotary_factor", 0.125)))
    window = CompressedAttention(
        hidden=hidden,
        heads=head_count(config),
        head_dim=dim,
        rope_dim=rope_dim,
        q_rank=config.count("q_lora_rank"),
        groups=config.count("o_groups"),
        o_rank=config.count("o_lora_rank"),
        window=config.count("sliding_window", 128),
        dtype=dtype,
    )
    rates = _rates(config)
    compressor = Compressor(hidden=hidden, dim=dim, rate=rates["compressed"], dtype=dtype)
    overlapping = replace(compressor, rate=rates["selected"], overlap=True)
    index_dim = config.count("index_head_dim")
    indexer = Indexer(
        hidden=hidden,
        q_width=window.q_rank,
        heads=config.count("index_n_heads"),
        dim=index_dim,
        rope_dim=min(rope_dim, index_dim),
        dtype=dtype,
        compressor=replace(overlapping, dim=index_dim, prefix="index"),
    )
    chosen = replace(window, compressor=overlapping, indexer=indexer, selected=config.count("index_topk"))
    return {"sliding": window, "compressed": replace(window, compressor=compressor), "selected": chosen}


def _experts(config: Config, dtype: Dtype) -> Moe:
    """Experts with clamped SwiGLU; in the first layers a table of token ids chooses them, which costs no work."""
    plain = Experts(correction_bias=True)(config, dtype)
    clamped = activation("clamped_silu")
    shared = replace(plain.shared, activation=clamped) if plain.shared else None
    return replace(plain, expert=replace(plain.expert, activation=clamped), shared=shared)


def _routed_clamped(config: Config, dtype: Dtype) -> Moe:
    """Routed experts with clamped SwiGLU and a plain shared expert."""
    plain = Experts(correction_bias=True)(config, dtype)
    return replace(plain, expert=replace(plain.expert, activation=activation("clamped_silu")))


def _streams(model: Model, config: Config) -> Model:
    """The model with `hc_mult` residual streams, and their weighted sum before the head."""
    hidden, dtype = model.hidden, model.dtype
    iterations = config.count("hc_sinkhorn_iters", 20)
    streams = HyperConnection(hidden=hidden, count=config.count("hc_mult", 4), dtype=dtype, iterations=iterations)
    return _with_streams(model, streams)


def _with_streams(model: Model, streams: HyperConnection) -> Model:
    last = replace(streams, mixes=False, spreads=False)
    layers = tuple(replace(layer, streams=streams) for layer in model.layers)
    return replace(model, layers=layers, head=replace(model.head, streams=last))


deepseek_v4 = SparseDecoder(
    prepare=_stored_experts,
    mixers=_attention,
    types=_types,
    experts=_experts,
    placement=everywhere,
    expected={"mlp_bias": (False,), "topk_method": ("noaux_tc",)},
    ignored=(
        "mlp_layer_types", "num_hash_layers", "swiglu_limit", "hc_eps", "compress_rope_theta", "compress_rates",
        "compress_ratios", "expert_dtype",
    ),
    finish=_streams,
)  # fmt: skip


def _hy_v4_types(config: Config) -> list[str]:
    """Layers with an own indexer as listed, else the first, the second and every fourth after it."""
    own = ["full" if at == 0 or at % 4 == 1 else "shared" for at in range(layer_count(config))]
    config.defaults(indexer_types=own)
    return index_layers(config)


def _hy_v4_attention(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """Latent attention with an indexer, a gate for every element of the output, and sinks."""
    made = Latent(indexed=True).layers(config, dtype)
    return {name: replace(mixer, gate_width=mixer.v_dim, sinks=True) for name, mixer in made.items()}


def _hy_v4_streams(model: Model, config: Config) -> Model:
    """The model with residual streams that are not mixed among themselves."""
    count = config.count("hc_mult", 4)
    return _with_streams(model, HyperConnection(hidden=model.hidden, count=count, dtype=model.dtype, mixes=False))


hy_v4 = SparseDecoder(
    mixers=_hy_v4_attention,
    types=_hy_v4_types,
    experts=_routed_clamped,
    placement=DenseFirst(default=1),
    ignored=("swiglu_limit", "hc_eps", "hc_magnitude", "learnable_sink_init"),
    finish=_hy_v4_streams,
)
