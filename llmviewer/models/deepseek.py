"""Latent attention: DeepSeek to V4, Kimi-K2, GLM-4.7-Flash and 5, LongCat, A.X K1, Hunyuan 4, MiniCPM3 and Youtu."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.layers.compressed_attention import CompressedAttention, Compressor, Indexer
from llmviewer.layers.decoder import HyperConnection, Mixer
from llmviewer.layers.feed_forward import Moe, NormedExperts, Shortcut
from llmviewer.layers.mla import GatedExperts, InputGate, Mla
from llmviewer.models import parts
from llmviewer.models.config import Config, head_count, hidden_size, layer_count
from llmviewer.models.decoder import Decoder, sizes
from llmviewer.models.experts import DenseFirst, Experts
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation, rms_norm

#: Fields that say how an indexer is run, not its size.
INDEX_FIELDS = "indexer_rope_interleave index_share_for_mtp_iteration index_skip_topk_offset index_topk_freq"
#: Names of layers whose keys an indexer chooses, in configs of transformers and of checkpoints.
INDEXED_TYPES = ("indexed_attention", "deepseek_sparse_attention")


@frozen
class Latent:
    """Latent attention of a family.  indexed: an indexer chooses keys; the layer types are then `full` and `shared`."""

    indexed: bool = False

    def __call__(self, config: Config, dtype: Dtype) -> dict[str, Mixer]:
        """The attention of each type of layer: `latent`; or `full` with an indexer and `shared` with another's keys."""
        return dict(self.layers(config, dtype))

    def layers(self, config: Config, dtype: Dtype) -> dict[str, Mla]:
        """The attention of each type of layer, as latent attention."""
        plain = latent_attention(config, dtype)
        if not self.indexed:
            return {"latent": plain}
        shared = replace(plain, selected=config.count("index_topk"))
        return {"full": replace(shared, indexer=indexer(config, dtype)), "shared": shared}


def indexer(config: Config, dtype: Dtype) -> Indexer:
    """The lightning indexer, whose queries come from the latent of the attention's queries."""
    return Indexer(
        hidden=hidden_size(config),
        q_width=config.count("q_lora_rank"),
        heads=config.count("index_n_heads"),
        dim=config.count("index_head_dim"),
        rope_dim=config.count("qk_rope_head_dim"),
        dtype=dtype,
    )


def latent_attention(config: Config, dtype: Dtype) -> Mla:
    """Latent attention from the fields of DeepSeek."""
    heads, rope_dim = head_count(config), config.count("qk_rope_head_dim")
    nope_dim = config.count("qk_nope_head_dim")
    config.expect("num_key_value_heads", heads)  # the latent is expanded for every head
    config.expect("head_dim", rope_dim, nope_dim, nope_dim + rope_dim)  # unused: heads have nope_dim + rope_dim
    config.expect("qk_head_dim", nope_dim + rope_dim)
    return Mla(
        hidden=hidden_size(config),
        heads=heads,
        q_rank=_q_rank(config),
        kv_rank=config.count("kv_lora_rank"),
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        v_dim=config.count("v_head_dim"),
        dtype=dtype,
        bias=config.flag("attention_bias", default=False),
    )


def _q_rank(config: Config) -> int:
    """Rank of the queries' latent; 0 if `q_lora_rank` is null (V2-Lite).  A missing field is an error."""
    is_null = "q_lora_rank" in config.fields and not config.has("q_lora_rank")
    return 0 if is_null else config.count("q_lora_rank")


def index_layers(config: Config) -> list[str]:
    """`full` for layers with their own indexer, `shared` for those that use the keys of the layer before.

    As `indexer_types` or `index_topk_pattern` lists them, else every `index_topk_freq`-th layer has one.
    """
    depth = layer_count(config)
    if config.has("layer_types"):
        config.words("layer_types", INDEXED_TYPES, depth)
    pattern = config.get("index_topk_pattern")
    if config.has("indexer_types"):
        return config.words("indexer_types", ("full", "shared"), depth)
    if isinstance(pattern, str) and len(pattern) >= depth and set(pattern) <= {"F", "S"}:
        return ["full" if letter == "F" else "shared" for letter in pattern[:depth]]
    if pattern is not None:
        raise UserError(f"{config.where}: field 'index_topk_pattern' must have F or S for each of {depth} layers")
    every, offset = config.count("index_topk_freq", 1), config.count("index_skip_topk_offset", 2, minimum=0)
    return ["full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in range(depth)]


def _as_list(config: Config) -> None:
    """A field `num_experts` beside `n_routed_experts` must agree with it."""
    if config.has("n_routed_experts"):
        config.expect("num_experts", config.get("n_routed_experts"))


def _longcat_fields(config: Config) -> None:
    """Each of `num_layers` layers has two attentions: it counts as two, of which the first has experts."""
    layers = config.count("num_layers")
    config.expect("num_hidden_layers", layers, 2 * layers)
    config.fields = {**config.fields, "num_hidden_layers": 2 * layers}
    config.expect("intermediate_size", config.get("ffn_hidden_size"))


def _longcat_experts(config: Config, dtype: Dtype) -> Shortcut:
    """The experts beside the first dense MLP of a layer."""
    fields = Experts(
        width="expert_ffn_hidden_size", chosen=("moe_topk",), shared="", identities="zero_expert_num",
        correction_bias=True, router_bias=config.flag("router_bias", default=False),
    )  # fmt: skip
    return Shortcut(dense=parts.mlp(config, dtype, config.count("ffn_hidden_size")), sparse=fields(config, dtype))


def _normed_experts(config: Config, dtype: Dtype) -> NormedExperts:
    norm = rms_norm("expert_post_norm", hidden_size(config), dtype)
    return NormedExperts(sparse=Experts(correction_bias=True)(config, dtype), norm=norm)


def _input_gate(config: Config, dtype: Dtype, prefix: str) -> InputGate:
    return InputGate(hidden=hidden_size(config), rank=config.count("gated_norm_rank", 16), dtype=dtype, prefix=prefix)


def _axk2_attention(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """Latent attention with an indexer, a gate on its input, and a gate on its output that comes with the queries."""
    gate = _input_gate(config, dtype, "attn_")
    mixers = Latent(indexed=True).layers(config, dtype)
    return {name: replace(mixer, gated_queries=True, input_gate=gate) for name, mixer in mixers.items()}


def _axk2_experts(config: Config, dtype: Dtype) -> GatedExperts:
    return GatedExperts(gate=_input_gate(config, dtype, "mlp_"), sparse=Experts(correction_bias=True)(config, dtype))


#: Fields that all of these have with one value.
EXPECTED: dict[str, Any] = {"mlp_bias": False, "moe_layer_freq": 1}
CHOSEN_BY_BIAS = {**EXPECTED, "topk_method": "noaux_tc"}

deepseek_v2 = Decoder(
    mixers=Latent(),
    types=lambda config: ["latent"] * layer_count(config),
    experts=Experts(),
    placement=DenseFirst(),
    constants={**EXPECTED, "topk_method": ("greedy", "group_limited_greedy")},
)

deepseek_v3 = replace(deepseek_v2, experts=Experts(correction_bias=True), constants=CHOSEN_BY_BIAS)

mistral4 = replace(deepseek_v2, placement=DenseFirst(default=0), constants=EXPECTED)

glm4_moe_lite = replace(
    deepseek_v3, placement=DenseFirst(default=1), constants={**CHOSEN_BY_BIAS, "partial_rotary_factor": 1.0}
)

deepseek_v32 = replace(
    deepseek_v3,
    prepare=_as_list,
    mixers=Latent(indexed=True),
    types=index_layers,
    placement=DenseFirst(default=3),
    ignored=f"{INDEX_FIELDS} moe_router_dtype",
)

glm_moe_dsa = deepseek_v32

axk1 = replace(deepseek_v3, experts=_normed_experts, placement=DenseFirst(default=1))

longcat_flash = replace(
    deepseek_v3,
    prepare=_longcat_fields,
    placement=lambda config: ["moe", "dense"] * (layer_count(config) // 2),
    experts=_longcat_experts,
    dense=lambda config, dtype: parts.mlp(config, dtype, config.count("ffn_hidden_size")),
    constants={"attention_method": "MLA", "zero_expert_type": "identity"},
    ignored="mla_scale_q_lora mla_scale_kv_lora",
)

axk2 = replace(
    deepseek_v32, mixers=_axk2_attention, experts=_axk2_experts, placement=DenseFirst(default=1), ignored=INDEX_FIELDS
)


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
    named = {name: stated[listed] for listed, name in TYPES.items() if listed in stated}
    rates = Config({**{name: ratio for ratio, name in RATIOS.items() if ratio}, **stated, **named}, config.where)
    return {name: rates.count(name) for name in ("selected", "compressed")}


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


deepseek_v4 = Decoder(
    prepare=_stored_experts,
    mixers=_attention,
    types=_types,
    experts=_experts,
    constants={"mlp_bias": False, "topk_method": "noaux_tc"},
    ignored="mlp_layer_types num_hash_layers swiglu_limit hc_eps compress_rope_theta compress_rates compress_ratios "
    "expert_dtype",
    finish=_streams,
)  # fmt: skip


def _hy_v4_types(config: Config) -> list[str]:
    """Layers with an own indexer as listed, else the first, the second and every fourth after it."""
    own = ["full" if at == 0 or at % 4 == 1 else "shared" for at in range(layer_count(config))]
    config.defaults(indexer_types=own)
    return index_layers(config)


def _hy_v4_attention(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """Latent attention with an indexer, a gate for every element of the output, and sinks."""
    mixers = Latent(indexed=True).layers(config, dtype)
    return {name: replace(mixer, gate_width=mixer.v_dim, sinks=True) for name, mixer in mixers.items()}


def _hy_v4_streams(model: Model, config: Config) -> Model:
    """The model with residual streams that are not mixed among themselves."""
    count = config.count("hc_mult", 4)
    return _with_streams(model, HyperConnection(hidden=model.hidden, count=count, dtype=model.dtype, mixes=False))


hy_v4 = Decoder(
    mixers=_hy_v4_attention,
    types=_hy_v4_types,
    experts=_routed_clamped,
    placement=DenseFirst(default=1),
    ignored="swiglu_limit hc_eps hc_magnitude learnable_sink_init",
    finish=_hy_v4_streams,
)


def minicpm_attention(config: Config, dtype: Dtype) -> Mla:
    """Latent attention; values are hidden_size / heads wide unless stated."""
    config.defaults(v_head_dim=hidden_size(config) // head_count(config))
    return latent_attention(config, dtype)


#: MiniCPM3ForCausalLM: DeepSeek's latent attention and factors on embeddings, branches and logits.
MINICPM3 = Decoder(
    defaults={
        **sizes(2560, 6400, 62, 40, 73448, 32768),
        **{"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32},
        **{"embedding_multiplier": 12, "residual_multiplier": 1.4},
    },
    names={"scale_emb": "embedding_multiplier", "scale_depth": "residual_multiplier"},
    ignored="dim_model_base",
    mixers=minicpm_attention,
    tied=True,
    factors=True,
)
#: YoutuForCausalLM: DeepSeek-V3's latent attention in a dense model.
YOUTU = Decoder(
    defaults={
        **sizes(2048, 6144, 32, 16, 128256, 131072),
        **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
        "v_head_dim": 128,
    },
    mixers=latent_attention,
    mlp_bias=False,
    ignored="embedding_initializer_range",
    tied=True,
)
