"""BART and its kin (mBART, Pegasus, Marian, M2M100, PLBART, MVP, Blenderbot) and Whisper, whose input is sound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import Norms
from llmviewer.layers.encoder import Embedder, Frames
from llmviewer.layers.mlp import Mlp
from llmviewer.models.config import Config
from llmviewer.models.encoder_decoder import Stack, assembled
from llmviewer.models.fields import MAX_LAYERS
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.ops.elementwise import activation
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import layer_norm

#: Rows of learned position tables in front of the first position (fairseq's padding).
OFFSET = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bart:
    """How an encoder-decoder differs from BART: learned positions behind two rows, a norm on embeddings and on sums.

    pre_norm: norms before the parts, and one after the last layer of both halves.  offset: rows before the first
    position.  has_positions: False if positions are computed, not stored.  norm_embedding: a norm on embeddings.
    logit_bias: a bias that no checkpoint trains is added to the logits.  frames: the input is sound (Whisper).
    """

    defaults: dict[str, Any]
    pre_norm: bool = False
    offset: int = OFFSET
    has_positions: bool = True
    norm_embedding: bool = True
    logit_bias: bool = True
    frames: bool = False

    def __call__(self, config: Config, dtype: Dtype) -> Model:
        """The model of a config; encoder and decoder have sizes of their own but the same width."""
        config.defaults(**self.defaults)
        config.expect("is_encoder_decoder", True)
        config.ignore("num_hidden_layers", "static_position_embeddings", "normalize_before", "normalize_embedding",
                      "add_final_layer_norm", "add_bias_logits", "extra_pos_embeddings", "encoder_layerdrop",
                      "decoder_layerdrop", "classif_dropout", "gradient_checkpointing", "_num_labels",
                      "force_bos_token_to_be_generated")  # fmt: skip
        hidden, vocabulary = config.count("d_model"), config.count("vocab_size")
        encoder, decoder = (self._stack(config, dtype, half) for half in ("encoder", "decoder"))
        encoder = replace(encoder, attention=replace(encoder.attention, causal=False))
        embedding = self._embedding(config, dtype, hidden, vocabulary)
        into: Embedder = self._frames(config, dtype, hidden) if self.frames else embedding
        lm_head = Linear(name="lm_head", in_features=hidden, out_features=vocabulary, dtype=dtype)
        tied = config.flag("tie_word_embeddings", default=True)
        head = Head(lm_head=lm_head, tied=tied, logit_flops=float(self.logit_bias))
        names = ("encoder_final_norm", "final_norm")
        ends = tuple(layer_norm(name, hidden, dtype) if self.pre_norm else None for name in names)
        return assembled(encoder, decoder, (into, embedding), ends, head)

    def _stack(self, config: Config, dtype: Dtype, half: str) -> Stack:
        hidden, heads = config.count("d_model"), config.count(f"{half}_attention_heads")
        bias = Projections(qkv_bias=True, out_bias=True, key_bias=not self.frames)
        attention = Attention(
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            dtype=dtype,
            projections=bias,
        )
        mlp = Mlp(
            hidden=hidden,
            intermediate=config.count(f"{half}_ffn_dim"),
            activation=activation(config.text("activation_function")),
            dtype=dtype,
            gated=False,
            bias=True,
        )
        ends = ("attn", "mlp") if self.pre_norm else ("attn_sum", "mlp_sum")
        named = {end: layer_norm(f"{end.removesuffix('_sum')}_norm", hidden, dtype) for end in ends}
        layers = config.count(f"{half}_layers", maximum=MAX_LAYERS)
        return Stack(layers=layers, attention=attention, mlp=mlp, norms=Norms(**named))

    def _embedding(self, config: Config, dtype: Dtype, hidden: int, vocabulary: int) -> Embedding:
        rows = config.count("max_target_positions" if self.frames else "max_position_embeddings")
        return Embedding(
            vocabulary=vocabulary,
            width=hidden,
            dtype=dtype,
            positions=rows + self.offset if self.has_positions else 0,
            scaled=config.flag("scale_embedding", default=False),
            norm=layer_norm("embedding_norm", hidden, dtype) if self.norm_embedding else None,
        )

    def _frames(self, config: Config, dtype: Dtype, hidden: int) -> Frames:
        config.ignore("classifier_proj_size", "use_weighted_layer_sum", "apply_spec_augment", "median_filter_width",
                      "mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob",
                      "mask_feature_length", "mask_feature_min_masks", "alignment_heads", "lang_to_id", "task_to_id",
                      "forced_decoder_ids", "max_initial_timestamp_index", "no_timestamps_token_id")  # fmt: skip
        act = activation(config.text("activation_function"))
        rows, bins = config.count("max_source_positions"), config.count("num_mel_bins")
        return Frames(bins=bins, hidden=hidden, positions=rows, act=act, dtype=dtype)


def _sizes(width: int, layers: int, heads: int, inner: int, vocabulary: int, positions: int = 1024) -> dict[str, Any]:
    """The default sizes of a class whose halves are alike."""
    halves = {f"{half}_{name}": size for half in ("encoder", "decoder")
              for name, size in (("layers", layers), ("attention_heads", heads), ("ffn_dim", inner))}  # fmt: skip
    return {"d_model": width, **halves, "vocab_size": vocabulary, "activation_function": "gelu",
            "max_position_embeddings": positions}  # fmt: skip


_LARGE = _sizes(1024, 12, 16, 4096, 50265)
BART = Bart(defaults=_LARGE)
MBART = Bart(defaults=_LARGE, pre_norm=True)
PEGASUS = Bart(defaults=_LARGE, pre_norm=True, offset=0, norm_embedding=False)
MARIAN = Bart(defaults=_sizes(1024, 12, 16, 4096, 58101), offset=0, norm_embedding=False)
M2M_100 = Bart(
    defaults={**_sizes(1024, 12, 16, 4096, 128112), "activation_function": "relu", "scale_embedding": True},
    pre_norm=True, has_positions=False, norm_embedding=False, logit_bias=False,
)  # fmt: skip
PLBART = Bart(defaults={**_sizes(768, 6, 12, 3072, 50005), "scale_embedding": True})
BLENDERBOT = Bart(
    defaults={**_sizes(2560, 24, 32, 10240, 8008, 128), "encoder_layers": 2},
    pre_norm=True, offset=0, norm_embedding=False,
)  # fmt: skip
BLENDERBOT_SMALL = Bart(defaults=_sizes(512, 8, 16, 2048, 50265, 512), offset=0)
WHISPER = Bart(
    defaults={**_sizes(384, 4, 6, 1536, 51865), "max_source_positions": 1500, "max_target_positions": 448,
              "num_mel_bins": 80},
    pre_norm=True, offset=0, norm_embedding=False, logit_bias=False, frames=True,
)  # fmt: skip


def parse_mvp(config: Config, dtype: Dtype) -> Model:
    """MvpForConditionalGeneration without the prompts that it was trained with for single tasks."""
    config.expect("use_prompt", False)
    config.ignore("prompt_length", "prompt_mid_dim")
    return Bart(defaults={**_LARGE, "vocab_size": 50267})(config, dtype)


def parse_marian(config: Config, dtype: Dtype) -> Model:
    """MarianMTModel whose two languages share one vocabulary and table."""
    config.expect("share_encoder_decoder_embeddings", True)
    config.expect("decoder_vocab_size", config.get("vocab_size", MARIAN.defaults["vocab_size"]))
    return MARIAN(config, dtype)
