"""OPT."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Projections
from llmviewer.layers.decoder import Norms
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Embedding, Model
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import layer_norm

#: OPT's position table starts at row 2 (a habit of fairseq, whose first rows meant padding).
POSITION_OFFSET = 2


def parse(config: Config, dtype: Dtype) -> Model:
    """OPTForCausalLM: learned positions, LayerNorm, biases, ReLU, tied head.

    The 350m differs: it normalises after each sum, has no final norm, and its table is narrower than its layers.
    """
    config.expect("layer_norm_elementwise_affine", True)
    bias = config.flag("enable_bias", default=True)
    first = config.flag("do_layer_norm_before", default=True)
    attention = parts.attention(config, dtype, Projections(qkv_bias=bias, out_bias=bias))
    attention = replace(attention, rotary_dim=0)
    mlp = replace(parts.plain_mlp(config, dtype, act="relu"), bias=bias)
    before = parts.pre_norms(config, dtype, layer_norm)
    norms = before if first else Norms(attn_sum=before.attn, mlp_sum=before.mlp)
    final = first and not config.flag("_remove_final_layer_norm", default=False)
    norm = layer_norm("final_norm", attention.hidden, dtype) if final else None
    plain = parts.model(config, dtype, parts.alike(config, norms, attention, mlp), norm, tied=True)
    return _with_table(config, dtype, plain)


def _with_table(config: Config, dtype: Dtype, model: Model) -> Model:
    """Embedding and head of `word_embed_proj_dim`, with matrices to and from the hidden width where they differ."""
    hidden, width = model.hidden, config.count("word_embed_proj_dim", model.hidden)
    embedding = Embedding(
        vocabulary=model.embedding.vocabulary,
        width=width,
        dtype=dtype,
        positions=config.count("max_position_embeddings") + POSITION_OFFSET,
        position_width=hidden,
    )
    head = replace(model.head, lm_head=replace(model.head.lm_head, in_features=width))
    if width != hidden:
        project_in = Linear(name="project_in", in_features=width, out_features=hidden, dtype=dtype)
        project_out = Linear(name="project_out", in_features=hidden, out_features=width, dtype=dtype)
        embedding, head = replace(embedding, project=project_in), replace(head, project=project_out)
    return replace(model, embedding=embedding, head=head)
