"""Values of each option that the model and the chip support, found by trying them."""

from __future__ import annotations

from functools import lru_cache

from llmviewer.api.calls import request
from llmviewer.api.configuration import Configuration
from llmviewer.core.errors import UserError
from llmviewer.core.workload import decode
from llmviewer.reports.web.state import State, default_text
from llmviewer.reports.web.view import View
from llmviewer.techniques import presets
from llmviewer.techniques.methods import METHODS
from llmviewer.techniques.options import OPTIONS

#: Options whose values are tried one by one; the others take texts.
SIZES = ("1", "2", "4", "8", "16")
TRIED: dict[str, tuple[str, ...]] = {
    "dtype": OPTIONS["dtype"].choices,
    "quantization": tuple(dict.fromkeys(("none", *presets.names("quantization")))),
    "kv_cache_dtype": tuple(dict.fromkeys(("auto", *presets.names("kv_cache_dtype")))),
    "tensor_parallel_size": SIZES,
    "pipeline_parallel_size": SIZES,
    "data_parallel_size": SIZES,
    "context_parallel_size": SIZES,
    "attention": ("flash", "eager", "flash-decoding"),
    "fusion": ("none", "all"),
    "batching": ("static", "continuous", "chunked,tokens=512", "disaggregated,prefill=1,decode=1"),
    "speculative": ("none", "ngram,tokens=3,acceptance=0.6", "eagle3,tokens=3,acceptance=0.7"),
    "latent_attention": OPTIONS["latent_attention"].choices,
}
#: Options that need others beside them, which are offered whole.
WHOLE = {"expert_parallel_size": SIZES, "sequence_parallel": ("off", "on")}
#: Pass whose graph is built to try a value.
STEP = decode(1.0, 1024.0)
#: Option -> attribute of a part of the model's layers without which it has no effect.
ONLY = {"latent_attention": "kv_rank", "expert_parallel_size": "experts"}


def offered(view: View) -> dict[str, list[str]]:
    """Option -> texts that this model and chip support, of those that are tried."""
    key = (view.state.model, view.state.config, view.state.hardware, view.state.words.get("engine", ""))
    return dict(_offered(*key))


@lru_cache(maxsize=256)
def _offered(model: str, config: str, hardware: str, engine: str) -> tuple[tuple[str, list[str]], ...]:
    words = {"engine": engine} if engine else {}
    plain = View(state=State(model=model, config=config, hardware=hardware, words=words)).configuration
    tried = [(name, [text for text in texts if _is_possible(plain, name, text)]) for name, texts in TRIED.items()]
    whole = [(name, list(texts) if _concerns(plain, name) else []) for name, texts in WHOLE.items()]
    return (*tried, *whole)


def _is_possible(plain: Configuration, name: str, text: str) -> bool:
    if not _concerns(plain, name):
        return text == default_text(name)
    try:
        made = plain.with_options({name: text})
        if made.model.is_encoder or made.model.encoder is not None:
            made.answer(request(1, 128, 1))  # which refuses what encoders do not support
        else:
            made.system.prepared(made.model.graph(STEP))  # a tenth of the time of an answer
    except UserError:
        return False
    return True


def _concerns(plain: Configuration, name: str) -> bool:
    """Whether a model has the parts of layers that an option is about: experts, the rank of a latent cache."""
    if name not in ONLY:
        return True
    attribute = ONLY[name]
    return any(hasattr(part, attribute) for layer in plain.model.layers for part in (layer.mixer, layer.feed_forward))


def suggestions(name: str) -> tuple[str, ...]:
    """Texts that a field of an option suggests, whatever the model."""
    return tuple(OPTIONS[name].choices or METHODS.get(name) or presets.names(name) or ())
