"""Values of each option that the model and the chip support, found by trying them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from llmviewer.api.calls import request
from llmviewer.api.configuration import Configuration
from llmviewer.core.errors import UserError
from llmviewer.core.workload import decode
from llmviewer.reports.web.state import State, default_text, parsed
from llmviewer.reports.web.view import View
from llmviewer.techniques.methods import METHODS, preset_names
from llmviewer.techniques.options import OPTIONS

#: Options whose values are tried one by one; the others take texts.
SIZES = ("1", "2", "4", "8", "16")
TRIED: dict[str, tuple[str, ...]] = {
    "dtype": OPTIONS["dtype"].choices,
    "quantization": tuple(dict.fromkeys(("none", *preset_names("quantization")))),
    "kv_cache_dtype": tuple(dict.fromkeys(("auto", *preset_names("kv_cache_dtype")))),
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
#: Options whose values depend on the sizes of these groups, with which they are tried.
GROUPS = ("tensor_parallel_size", "data_parallel_size")
OF_GROUPS = ("expert_parallel_size", "sequence_parallel")
#: Pass whose graph is built to try a value.
STEP = decode(1.0, 1024.0)
#: Option -> attribute of a part of the model's layers, which is larger than this where the option has an effect.
ONLY = {"latent_attention": ("kv_rank", 0), "expert_parallel_size": ("experts", 1)}


def offered(view: View) -> dict[str, list[str]]:
    """Option -> texts that this model and chip support, of those that are tried."""
    state = view.state
    plain = replace(state, words=_chosen(state, ("engine",)), asked={}, shown={}, others=())
    grouped = replace(plain, words=_chosen(state, ("engine", *GROUPS)))
    return {**dict(_alone(plain.query())), **dict(_in_groups(grouped.query()))}


def key(state: State) -> str:
    """The part of a question on which the possible values of options depend."""
    return replace(state, words=_chosen(state, ("engine", *GROUPS)), asked={}, shown={}, others=()).query()


def _chosen(state: State, names: Sequence[str]) -> dict[str, str]:
    return {name: state.words[name] for name in names if name in state.words}


@lru_cache(maxsize=256)
def _alone(query: str) -> tuple[tuple[str, list[str]], ...]:
    """Values of the options that are tried one by one, and the length of what a model writes that writes nothing."""
    plain = View(state=parsed(query)).configuration
    found = [(name, [text for text in texts if _is_possible(plain, name, text)]) for name, texts in TRIED.items()]
    return (*found, ("output_len", ["1"])) if plain.model.is_encoder else tuple(found)


@lru_cache(maxsize=256)
def _in_groups(query: str) -> tuple[tuple[str, list[str]], ...]:
    """Values of the options of tensor and data groups of the sizes of a question."""
    plain = View(state=parsed(query)).configuration
    sizes = plain.system.parallelism
    texts = {"expert_parallel_size": ("1", str(sizes.tensor * sizes.data)), "sequence_parallel": ("off", "on")}
    return tuple(
        (name, [text for text in dict.fromkeys(texts[name]) if _is_possible(plain, name, text)]) for name in OF_GROUPS
    )


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
    attribute, least = ONLY[name]
    return any(getattr(part, attribute, least) > least for layer in plain.model.layers for part in _parts(layer))


def _parts(part: Any) -> Iterator[Any]:
    """A part of a layer and the parts in it."""
    yield part
    for one in fields(part) if is_dataclass(part) else ():
        value = getattr(part, one.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if is_dataclass(inner):
                yield from _parts(inner)


def suggestions(name: str) -> tuple[str, ...]:
    """Texts that a field of an option suggests, whatever the model."""
    return tuple(OPTIONS[name].choices or METHODS.get(name) or preset_names(name) or ())
