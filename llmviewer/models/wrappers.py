"""The architecture of a config, by `model_type`, class or wrapper (a language model with vision or audio parts)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmviewer.core import data, files
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.models.architectures import ARCHITECTURES, MULTIMODAL, Parser, known_model_types, language_parser
from llmviewer.models.config import QUANTIZATION_FIELDS, Config
from llmviewer.models.images import READERS
from llmviewer.models.model import Model
from llmviewer.models.vision import vision_parameters

#: Sections with the language model's fields, outermost first: an omni model has its text in the thinker.
TEXT_SECTIONS = ("thinker_config", "text_config", "llm_config", "language_config")
#: Text sections whose class says that the head is tied, while the wrapper's word alone counts.
WRAPPER_DECIDES = ("qwen3_vl_moe_text", "qwen2_5_omni_text")
#: Model type -> field and its value -> model type of its language model, for types that changed it.
BY_VERSION: dict[str, tuple[str, dict[str, str]]] = {
    "minicpmv": ("version", {"2.5": "llama", "2.6": "qwen2", "4": "llama", "4.0": "llama", "4.5": "qwen3"}),
    "minicpmo": ("version", {"2.6": "qwen2", "4.5": "qwen3"}),
}


#: Beginning of the note of a model whose other parts are not run.
LANGUAGE_ALONE = "only the language model is counted"


def has_text_section(fields: Mapping[str, Any]) -> bool:
    """Whether the config has a section for a language model."""
    return any(isinstance(fields.get(name), Mapping) for name in TEXT_SECTIONS)


def text_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the language model: of the innermost text section, or of the config itself."""
    for name in TEXT_SECTIONS:
        if isinstance(fields.get(name), Mapping):
            return text_fields(fields[name])
    return fields


def text_type(fields: Mapping[str, Any], model_type: str) -> str:
    """The model_type of the language model; "" if neither its section nor the wrapper's table says it."""
    stated = text_fields(fields).get("model_type")
    if has_text_section(fields) and isinstance(stated, str) and stated in ARCHITECTURES:
        return stated
    if model_type in BY_VERSION:
        field, versions = BY_VERSION[model_type]
        return versions.get(str(fields.get(field)), "")
    # a section whose own type is unknown is no language model that the table means
    is_own = stated in (None, model_type, MULTIMODAL.get(model_type)) or not has_text_section(fields)
    return MULTIMODAL.get(model_type, "") if is_own else ""


def parse_wrapper(config: Config, dtype: Dtype) -> Model:
    """The language model of a multimodal config, with the parameters of its vision tower."""
    model_type = config.text("model_type", "")
    inner = text_type(config.fields, model_type)
    if not inner:
        raise UserError(_unknown_text(config, model_type))
    text = _text_section(config)
    if text is not config:
        text.defaults(**({} if text.has("model_type") else {"model_type": inner}))
        config.ignore(*(name for name in config.fields if name not in QUANTIZATION_FIELDS))
    text.assume_class(inner, nested=text is not config)
    if text.has("use_bidirectional_attention") and model_type == "paligemma":
        text.override(use_bidirectional_attention=False)  # within the image and the prompt; counted as causal
    built = language_parser(inner)(text, dtype)
    stored = vision_parameters(config.fields, built.hidden)
    known = stored and model_type in READERS
    vision = config.fields if known else None
    return replace(built, notes=(*built.notes, _note(config, stored)), vision_parameters=stored, vision=vision)


def _unknown_text(config: Config, model_type: str) -> str:
    """The reason why the language model of a wrapper cannot be read."""
    if model_type in BY_VERSION:
        field, versions = BY_VERSION[model_type]
        return (
            f"{config.where}: field '{field}' is {quoted(config.get(field))}; supported: {', '.join(versions)} "
            "(it chooses the language model)"
        )
    stated = text_fields(config.fields).get("model_type")
    return (
        f"{config.where}: the language model of '{model_type}' has the model_type {quoted(stated)}, which is not known "
        "(see `llmviewer models list`)"
    )


def _text_section(config: Config) -> Config:
    """The innermost text section; the config itself if its fields are flat."""
    for name in TEXT_SECTIONS:
        if isinstance(config.get(name), Mapping):
            section = config.section(name)
            _take_tied(config, section)
            inner = _text_section(section)
            if inner is not section:
                section.ignore(*section.fields)
            return inner
        if config.has(name):
            config.section(name)  # not a mapping: an error
    for field in ("vision_config", "audio_config", *FLAT_WRAPPER_FIELDS):
        config.ignore(field)
    return config


#: Fields of wrappers without a text section, which stand beside those of the language model.
FLAT_WRAPPER_FIELDS = tuple(
    "audio_processor embd_layer speech_lora vision_lora img_processor visual query_num slice_config slice_mode "
    "drop_vision_last_layer use_image_id vision_batch_size batch_vision_input patch_size tts_config init_audio "
    "init_tts init_vision stream_input audio_pool_step audio_chunk_length audio_config version listen_speak_type "
    "patches mm_vision_config mm_cfg chunk_input batch_3d_resampler insert_image_id vision_resampler".split()
)


def _take_tied(config: Config, text: Config) -> None:
    """Whether the head is tied, where the wrapper or the section says so."""
    stated, own = config.get("tie_word_embeddings"), text.get("tie_word_embeddings")
    if stated is not None and (own is None or stated or text.get("model_type") in WRAPPER_DECIDES):
        text.override(tie_word_embeddings=stated)


def _note(config: Config, stored: float) -> str:
    """A note about what is not counted."""
    memory = f"; {stored / 1e9:.2f} B parameters of the vision tower count as memory" if stored else ""
    if not stored and any("vision" in name or "visual" in name for name in config.fields):
        memory = "; the size of the vision tower is not stated: its weights are missing from the memory"
    elif config.has("audio_config") or config.has("talker_config"):
        memory += "; parts for sound are missing from the memory"
    return f"{LANGUAGE_ALONE}, not the vision or audio part{memory}"


#: Endings of class names that say what a model is for, not which architecture it has.
_PURPOSES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "Model")
#: Fields that every config of the mamba_ssm package has; none states a model_type.
MAMBA_SSM = {"ssm_cfg", "d_model", "n_layer"}
#: model_type under which a tool publishes an architecture -> model_type of transformers.
RENAMED: dict[str, str] = {"deepseek_ref": "deepseek_v4"}


#: Tool -> fields that only its own summaries of models have.
SUMMARIES: dict[str, set[str]] = {
    "llm-analysis": {"ffn_embed_dim", "hidden_dim", "n_head"},
    "vLLM's tests": {"total_num_hidden_layers", "text_model_type"},
    "efficient-transformers' tests": {"model_name", "prompt_len"},
}


def parser(model_type: str) -> Parser:
    """The parser of a model_type; one that is no language model of its own is a wrapper of one."""
    return language_parser(model_type) if model_type in ARCHITECTURES else parse_wrapper


def type_of(config: Config) -> tuple[str, tuple[str, ...]]:
    """The known model_type of a config, and notes if it does not state that one itself.

    An unknown multimodal type has the parser of any wrapper (`MULTIMODAL`) if the type of its text section is known.
    """
    for tool, fields in SUMMARIES.items():
        if {*config.fields} >= fields:
            raise UserError(
                f"{config.where}: fields {', '.join(sorted(fields))} are of a summary by {tool}, which leaves out what "
                "changes shapes (norms, biases, tied tables); give the model's own config.json, or its name"
            )
    if config.has("sliding_window_size") and "sliding_window" not in config.fields:  # MLC's name; -1 is no window
        size = config.count("sliding_window_size", minimum=-1)
        config.override(sliding_window=size if size > 0 else None)
    by_class = _type_by_class(config)
    if not config.has("model_type") and by_class:
        return by_class, (f"the config has no model_type; its class says {by_class}",)
    if not config.has("model_type") and {*config.fields} >= MAMBA_SSM:
        return "mamba_ssm", ("the config has no model_type; its fields are those of the mamba_ssm package",)
    stated = config.text("model_type")
    model_type = RENAMED.get(stated, stated)
    if model_type in ARCHITECTURES or model_type in MULTIMODAL:
        return model_type, ()
    if has_text_section(config.fields):
        inner = text_type(config.fields, stated)
        if inner:
            return stated, (f"model_type {quoted(stated)} is not known; its text section is {inner}",)
    raise UserError(_unknown(config, stated, known_model_types()))


def _unknown(config: Config, stated: str, known: list[str]) -> str:
    error = unknown("model_type", stated, known, where=config.where, hint="see `llmviewer models list`")
    if _in_library(stated):
        return f"{error.marked}; transformers knows it: try --trace-model, which reads the library's class"
    return f"{error.marked}; a known architecture under another name can be given by its own model_type"


def _in_library(model_type: str) -> bool:
    """Whether the installed transformers, which is not imported, has a folder of this model type."""
    from importlib.util import find_spec  # only this error needs it

    library = None if files.is_restricted() else find_spec("transformers")
    folders = Path(library.origin).parent / "models" if library and library.origin else None
    return folders is not None and model_type.isidentifier() and data.is_there(folders / model_type)


def _type_by_class(config: Config) -> str:
    """The model_type whose name is that of the class in `architectures`; "" if there is none."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return ""
    purpose = next((ending for ending in _PURPOSES if names[0].endswith(ending)), "")
    wanted = names[0].removesuffix(purpose).lower()
    return next((known for known in (*ARCHITECTURES, *MULTIMODAL) if known.replace("_", "") == wanted), "")
