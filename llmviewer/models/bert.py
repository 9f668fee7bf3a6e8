"""Encoders with the layers of BERT (one pass, no cache), GIT, and ModernBERT as a decoder (Ettin)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Tensor
from llmviewer.core.workload import Step
from llmviewer.layers.feed_forward import Prediction
from llmviewer.models.class_defaults import class_defaults
from llmviewer.models.config import MAX_LAYERS, Config, hidden_size, layer_count, layer_types
from llmviewer.models.decoder import ON_SUM, Decoder, sizes, with_attention
from llmviewer.models.draft_heads import class_name
from llmviewer.models.layer_patterns import nowhere
from llmviewer.models.model import Head, Model
from llmviewer.ops.elementwise import Activation, Norm, activate, activation, layer_norm
from llmviewer.ops.gemm import Linear

#: RoBERTa's position table begins at row 2: in fairseq the first rows belonged to padding.
ROBERTA_POSITION_OFFSET = 2
TANH = Activation(1.0, 1.0)
#: Ending of the class's name -> its head.
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification")


@frozen
class Form:
    """How an encoder differs from BERT.

    offset: rows of the position table before the first position.  segments: rows of the table of segments, 0 = none.
    pooled: activation of the matrix that pools a sequence before a classifier.  pools: the plain model ends with it.
    """

    offset: int = 0
    segments: int = 2
    pooled: Activation = TANH
    pools: bool = True


@frozen(eq=False)
class EncoderHead(Head):
    """The head of an encoder: a pooler on the first token of each sequence, a classifier, or a masked-LM head.

    lm_head: the last matrix.  dense: the matrix before it, None if the last one is the pooler itself.
    every_token: a masked-LM head works on all tokens, with an activation and the norm `dense_norm` between.
    has_logits: False for a model that ends at its last layer.
    """

    dense: Linear | None = None
    dense_norm: Norm | None = None
    act: Activation
    every_token: bool = False

    def block(self, step: Step, hidden: Tensor) -> Block:
        """The operators of the head over all tokens, or over the first token of each sequence."""
        if not self.has_logits:
            return Block(name="head", operators=(), scope="model")
        rows = step.tokens if self.every_token else step.sequences
        x = replace(hidden, elements=rows * (1.0 * self.lm_head.in_features))
        operators = []
        if self.dense is not None:
            operators.append(self.dense.operator(x, rows))
            operators.append(activate("head_act", operators[-1].output, rows, self.act))
            if self.dense_norm is not None:
                operators.append(self.dense_norm.operator(operators[-1].output, rows))
            x = operators[-1].output
        operators.append(self.logits(x, rows))
        if self.dense is None:
            operators.append(activate("head_act", operators[-1].output, rows, self.act))
        return Block(name="head", operators=tuple(operators), scope="model")


def parse_bert(config: Config, dtype: Dtype) -> Model:
    """BertModel, BertForMaskedLM, BertForSequenceClassification: norms after each sum, learned positions, biases."""
    return _encoder(config, dtype, Form())


def parse_roberta(config: Config, dtype: Dtype) -> Model:
    """RobertaModel and the same of XLM-RoBERTa and CamemBERT: BERT whose positions begin at row 2."""
    return _encoder(config, dtype, Form(offset=ROBERTA_POSITION_OFFSET))


def parse_distilbert(config: Config, dtype: Dtype) -> Model:
    """DistilBertModel and its classes with heads: BERT's layers under other names of fields, no segments, no pooler.

    A position table is stored whether or not its values are sines.
    """
    config.ignore("sinusoidal_pos_embds", "tie_weights_")
    config.override(
        hidden_size=config.count("dim", 768),
        num_hidden_layers=config.count("n_layers", 6, maximum=MAX_LAYERS),
        num_attention_heads=config.count("n_heads", 12),
        intermediate_size=config.count("hidden_dim", 3072),
        hidden_act=config.text("activation", "gelu"),
    )
    return _encoder(config, dtype, Form(segments=0, pooled=activation("relu"), pools=False))


#: The layers of an encoder before it has segments and a head.
_LAYERS = Decoder(
    defaults={**sizes(768, 3072, 12, 12, 30522, 512), "hidden_act": "gelu"},
    constants={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    norm=layer_norm,
    places=ON_SUM,
    bias=True,
    gated=False,
    rope=nowhere,
    positions=0,
    embedding_norm=True,
    final_norm=False,
    tied=True,
)
#: GitForCausalLM: BERT's layers as a decoder, whose head has a matrix of its own; its image encoder is not run.
GIT = replace(
    _LAYERS,
    defaults=class_defaults("git") | {"hidden_act": "gelu"},
    constants={},
    ignored="num_image_with_embedding",
    tied=False,
    head_bias=True,
    beside="image encoder",
)


def _encoder(config: Config, dtype: Dtype, form: Form) -> Model:
    plain = with_attention(_LAYERS(config, dtype), causal=False)
    types = config.count("type_vocab_size", form.segments) if form.segments else 0
    return replace(
        plain,
        embedding=replace(plain.embedding, types=types),
        head=_head(config, dtype, plain.head, form),
        max_context=plain.max_context - form.offset,
        is_encoder=True,
    )


def _head(config: Config, dtype: Dtype, plain: Head, form: Form) -> EncoderHead:
    """The head that `architectures` names; without one that of the plain encoder."""
    named = class_name(config.fields) or "Model"
    ending = next((head for head in HEADS if named.endswith(head)), None)
    if ending is None:
        raise unknown("head in architectures", named, HEADS, where=config.where)
    hidden = plain.lm_head.in_features
    dense = Linear(name="pooler", in_features=hidden, out_features=hidden, dtype=dtype, bias=True)
    if ending == "Model":
        return EncoderHead(lm_head=dense, tied=False, act=form.pooled, has_logits=form.pools)
    if ending == "ForSequenceClassification":
        names = config.get("id2label")
        labels = config.count("num_labels", len(names) if isinstance(names, dict) and names else 2)
        out = Linear(name="classifier", in_features=hidden, out_features=labels, dtype=dtype, bias=True)
        return EncoderHead(lm_head=out, tied=False, dense=dense, act=form.pooled)
    act = activation(config.text("hidden_act", "gelu"))
    return EncoderHead(
        lm_head=replace(plain.lm_head, bias=True), tied=plain.tied, dense=replace(dense, name="mlm_dense"),
        dense_norm=layer_norm("mlm_norm", hidden, dtype), act=act, every_token=True,
    )  # fmt: skip


#: LayerNorm without bias.
weight_norm = partial(layer_norm, bias=False)


def bert_types(config: Config) -> list[str]:
    """Full attention in the first of every three layers."""
    period = config.count("global_attn_every_n_layers", 3)
    default = ["sliding" if layer % period else "full" for layer in range(layer_count(config))]
    return layer_types(config, ("full", "sliding"), default)


def _half_window(config: Config) -> None:
    """The window is half of `local_attention`, as in the class."""
    config.fields = {**config.fields, "sliding_window": config.count("local_attention", 128, minimum=2) // 2}


_MODERNBERT = Decoder(
    defaults=class_defaults("modernbert-decoder") | {"hidden_activation": "gelu", "decoder_bias": True},
    constants={"norm_bias": False},
    ignored="cls_token_id mlp_dropout global_rope_theta local_rope_theta",
    prepare=_half_window,
    norm=weight_norm,
    types=bert_types,
    fused_mlp=True,
    embedding_norm=True,
    tied=True,
    head_bias="decoder_bias",
)


def parse_modernbert_decoder(config: Config, dtype: Dtype) -> Model:
    """ModernBertDecoderForCausalLM: no norm before the first attention, and BERT's prediction head."""
    built, hidden = _MODERNBERT(config, dtype), hidden_size(config)
    at = next(index for index, layer in enumerate(built.layers) if 0 in layer.numbers)
    kind = built.layers[at]
    first = replace(kind, name="first", repeats=1, numbers=(0,), norms=replace(kind.norms, attn=None))
    others = replace(kind, repeats=kind.repeats - 1, numbers=kind.numbers[1:])
    bias = config.flag("classifier_bias", default=False)
    head = Prediction(
        dense=Linear(name="prediction", in_features=hidden, out_features=hidden, dtype=dtype, bias=bias),
        activation=activation(config.text("classifier_activation", "gelu")),
        norm=weight_norm("prediction_norm", hidden, dtype),
    )
    layers = (*built.layers[:at], first, *((others,) if others.repeats else ()), *built.layers[at + 1 :])
    return replace(built, layers=layers, head=replace(built.head, prediction=head))
