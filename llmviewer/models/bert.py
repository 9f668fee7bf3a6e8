"""Encoders with the layers of BERT: BERT, RoBERTa, XLM-RoBERTa, CamemBERT; one bidirectional pass, no cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import unknown
from llmviewer.core.ir import Block, Tensor
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Projections
from llmviewer.layers.decoder import Norms
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.draft_heads import class_name
from llmviewer.models.model import Head, Model
from llmviewer.ops.elementwise import Activation, activate, activation
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm, layer_norm

#: RoBERTa's position table begins at row 2: in fairseq the first rows belonged to padding.
ROBERTA_POSITION_OFFSET = 2
#: Ending of the class's name -> its head.
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncoderHead(Head):
    """The head of an encoder: a pooler on the first token of each sequence, a classifier, or a masked-LM head.

    lm_head: the last matrix.  dense: the matrix before it, None if the last one is the pooler itself.
    every_token: a masked-LM head works on all tokens, with an activation and the norm `dense_norm` between.
    """

    dense: Linear | None = None
    dense_norm: Norm | None = None
    act: Activation
    every_token: bool = False

    def block(self, step: Step, hidden: Tensor) -> Block:
        """The operators of the head over all tokens, or over the first token of each sequence."""
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
    return _encoder(config, dtype, 0, segments=2)


def parse_roberta(config: Config, dtype: Dtype) -> Model:
    """RobertaModel and the same of XLM-RoBERTa and CamemBERT: BERT whose positions begin at row 2."""
    return _encoder(config, dtype, ROBERTA_POSITION_OFFSET, segments=2)


def _encoder(config: Config, dtype: Dtype, offset: int, *, segments: int) -> Model:
    config.expect("position_embedding_type", "absolute")
    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    config.defaults(
        vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=3072, max_position_embeddings=512,
    )  # fmt: skip
    attention = parts.attention(config, dtype, Projections(qkv_bias=True, out_bias=True))
    attention = replace(attention, rotary_dim=0, causal=False)
    hidden = attention.hidden
    norms = Norms(attn_sum=layer_norm("attn_norm", hidden, dtype), mlp_sum=layer_norm("mlp_norm", hidden, dtype))
    layers = parts.uniform_layers(config, norms, attention, parts.plain_mlp(config, dtype, act="gelu"))
    plain = parts.model(config, dtype, layers, None, tied=True)
    embedding = replace(
        plain.embedding,
        positions=config.count("max_position_embeddings"),
        types=config.count("type_vocab_size", segments),
        norm=layer_norm("embedding_norm", hidden, dtype),
    )
    context = plain.max_context - offset
    head = _head(config, dtype, plain.head)
    return replace(plain, embedding=embedding, head=head, max_context=context, is_encoder=True)


def _head(config: Config, dtype: Dtype, plain: Head) -> EncoderHead:
    """The head that `architectures` names; without one the pooler of the plain encoder."""
    named = class_name(config.fields) or "Model"
    ending = next((head for head in HEADS if named.endswith(head)), None)
    if ending is None:
        raise unknown("head in architectures", named, HEADS, where=config.where)
    hidden = plain.lm_head.in_features
    tanh = Activation(1.0, 1.0)
    dense = Linear(name="pooler", in_features=hidden, out_features=hidden, dtype=dtype, bias=True)
    if ending == "Model":
        return EncoderHead(lm_head=dense, tied=False, act=tanh)
    if ending == "ForSequenceClassification":
        names = config.get("id2label")
        labels = config.count("num_labels", len(names) if isinstance(names, dict) and names else 2)
        out = Linear(name="classifier", in_features=hidden, out_features=labels, dtype=dtype, bias=True)
        return EncoderHead(lm_head=out, tied=False, dense=dense, act=tanh)
    act = activation(config.text("hidden_act", "gelu"))
    return EncoderHead(
        lm_head=replace(plain.lm_head, bias=True), tied=plain.tied, dense=replace(dense, name="mlm_dense"),
        dense_norm=layer_norm("mlm_norm", hidden, dtype), act=act, every_token=True,
    )  # fmt: skip
