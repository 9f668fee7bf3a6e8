"""Llama 3.2 Vision: its language model, of which a text without images runs the layers without cross attention."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.dense import Dense, attention_of, sizes
from llmviewer.models.fields import layer_count
from llmviewer.models.model import Model

_MLLAMA = Dense(
    defaults={**sizes(4096, 14336, 40, 32, 128256, 131072), "num_key_value_heads": 8},
    constants={"tie_word_embeddings": False},
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
)
#: Layers with cross attention by default, and rows of the embedding for images beyond the vocabulary.
MLLAMA_CROSS_LAYERS, MLLAMA_IMAGE_ROWS = (3, 8, 13, 18, 23, 28, 33, 38), 8


def parse_mllama(config: Config, dtype: Dtype) -> Model:
    """MllamaForCausalLM (Llama 3.2 Vision), a pass over text alone.

    Without an image the layers with cross attention are skipped; their weights are stored.
    """
    built, depth = _MLLAMA(config, dtype), layer_count(config)
    layer, attention = built.layers[0], attention_of(built.layers[0])
    listed = config.numbers("cross_attention_layers", MLLAMA_CROSS_LAYERS)
    own = tuple(number for number in range(depth) if number not in listed)
    if not own:
        raise UserError(f"{config.where}: field 'cross_attention_layers' leaves no layer for text")
    hidden, width = attention.hidden, attention.heads * attention.head_dim
    matrices = 2 * hidden * (width + attention.kv_heads * attention.head_dim)
    matrices += 3 * hidden * config.count("intermediate_size")
    per_layer = matrices + 2 * hidden + 2 * attention.head_dim + 2  # norms, QK-norms, gates
    rows = built.embedding.vocabulary + MLLAMA_IMAGE_ROWS
    skipped = depth - len(own)
    text = replace(
        built,
        layers=(replace(layer, repeats=len(own), numbers=own),),
        embedding=replace(built.embedding, vocabulary=rows),
        notes=(*built.notes, f"{skipped} layers with cross attention are stored and not run, as without images"),
    )
    return parts.with_stored(text, cross_attention=skipped * per_layer)
