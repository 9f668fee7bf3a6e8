"""Default configs of the library's causal language models, and those of them that are left out, with a reason each."""

from __future__ import annotations

import json
from typing import Any

from .errors import LibraryMissingError

#: Reason -> model types of the library's mapping that are no decoders of text.
_LEFT_OUT_BY_REASON: dict[str, str] = {
    "an encoder, with a causal mask only where asked": "bert bert-generation big_bird camembert data2vec-text electra "
    "ernie megatron-bert rembert roberta roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl xmod "
    "xlnet reformer",
    "decoder half of an encoder-decoder": "bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus "
    "plbart prophetnet trocr whisper",
    "generates sound": "musicgen musicgen_melody moshi moss_transcribe_diarize",
}
LEFT_OUT: dict[str, str] = {name: reason for reason, names in _LEFT_OUT_BY_REASON.items() for name in names.split()}


def default_config(model_type: str) -> dict[str, Any]:
    """Every field of the library's default config, as `config.json` would state it."""
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise LibraryMissingError(f"{model_type}: transformers is not installed") from error
    return dict(json.loads(AutoConfig.for_model(model_type).to_json_string(use_diff=False)))
