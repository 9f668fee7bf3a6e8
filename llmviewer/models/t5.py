"""T5 and its kin: RMSNorms before each part, no biases, biases of scores by relative position, one shared table."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError, quoted
from llmviewer.layers.cross_attention import RelativeAttention
from llmviewer.layers.decoder import Norms
from llmviewer.layers.mlp import Mlp
from llmviewer.models.config import Config
from llmviewer.models.encoder_decoder import Stack, assembled
from llmviewer.models.fields import MAX_LAYERS
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.ops.elementwise import activation
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import rms_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Entry for T5ForConditionalGeneration and the same of other names.

    layers, heads, inner, vocabulary, width: defaults of the class.  gated: default of its feed-forward part.
    shared_bias: the first layer of each half has the table of relative positions for all of them.
    """

    layers: int
    heads: int
    inner: int
    vocabulary: int
    gated: bool
    shared_bias: bool = True
    width: int = 512

    def __call__(self, config: Config, dtype: Dtype) -> Model:
        """The model of a config."""
        return self.joined(config, dtype, *self.halves(config, dtype))

    def halves(self, config: Config, dtype: Dtype) -> tuple[Stack, Stack]:
        """Encoder and decoder; a missing `num_decoder_layers` is `num_layers`."""
        config.ignore("relative_attention_max_distance", "dropout_rate", "initializer_factor", "n_positions",
                      "tokenizer_class", "output_past", "num_hidden_layers", "scalable_attention")  # fmt: skip
        layers = config.count("num_layers", self.layers, maximum=MAX_LAYERS)
        depth = config.count("num_decoder_layers", layers, maximum=MAX_LAYERS)
        decoder = self._stack(config, dtype, depth)
        encoder = self._stack(config, dtype, layers)
        return replace(encoder, attention=replace(encoder.attention, causal=False)), decoder

    def joined(self, config: Config, dtype: Dtype, encoder: Stack, decoder: Stack) -> Model:
        """The model of two halves, with one table for both and for lm_head if it is tied."""
        hidden, vocabulary = config.count("d_model", self.width), config.count("vocab_size", self.vocabulary)
        embedding = Embedding(vocabulary=vocabulary, width=hidden, dtype=dtype)
        lm_head = Linear(name="lm_head", in_features=hidden, out_features=vocabulary, dtype=dtype)
        tied = config.flag("tie_word_embeddings", default=True)
        config.flag("scale_decoder_outputs", default=tied)
        names = ("encoder_final_norm", "final_norm")
        norms = tuple(rms_norm(name, hidden, dtype) for name in names)
        return assembled(encoder, decoder, (embedding, embedding), norms, Head(lm_head=lm_head, tied=tied))

    def _stack(self, config: Config, dtype: Dtype, layers: int) -> Stack:
        hidden, heads = config.count("d_model", self.width), config.count("num_heads", self.heads)
        attention = RelativeAttention(
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=config.count("d_kv", 64),
            dtype=dtype,
            alibi=True,  # one sum per score
            buckets=config.count("relative_attention_num_buckets", 32),
            shared=self.shared_bias,
        )
        norms = Norms(attn=rms_norm("attn_norm", hidden, dtype), mlp=rms_norm("mlp_norm", hidden, dtype))
        return Stack(layers=layers, attention=attention, mlp=self._mlp(config, dtype, hidden), norms=norms)

    def _mlp(self, config: Config, dtype: Dtype, hidden: int) -> Mlp:
        """The feed-forward part: `feed_forward_proj` names its activation, behind `gated-` if it has a gate."""
        words = config.text("feed_forward_proj", "gated-gelu" if self.gated else "relu").split("-")
        if len(words) > 2 or (len(words) == 2 and words[0] != "gated"):
            stated = quoted("-".join(words))
            raise UserError(f"{config.where}: field 'feed_forward_proj' is {stated}; supported: gated-gelu, relu")
        config.expect("is_gated_act", len(words) == 2)
        config.ignore("dense_act_fn")
        return Mlp(
            hidden=hidden,
            intermediate=config.count("d_ff", self.inner),
            activation=activation(words[-1]),
            dtype=dtype,
            gated=len(words) == 2,
        )


T5 = Entry(layers=6, heads=8, inner=2048, vocabulary=32128, gated=False)
MT5 = Entry(layers=8, heads=6, inner=1024, vocabulary=250112, gated=True)
UMT5 = replace(MT5, shared_bias=False)
