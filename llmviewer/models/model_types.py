"""The architecture of a config, by its `model_type` or else by the class in `architectures`."""

from __future__ import annotations

from pathlib import Path

from llmviewer.core import files
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.models.architectures import ARCHITECTURES, Parser, known_model_types, language_parser
from llmviewer.models.config import Config
from llmviewer.models.multimodal import MULTIMODAL
from llmviewer.models.wrappers import has_text_section, parse_wrapper, text_type

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
    found = RENAMED.get(stated, stated)
    if found in ARCHITECTURES or found in MULTIMODAL:
        return found, ()
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
    return folders is not None and model_type.isidentifier() and (folders / model_type).is_dir()


def _type_by_class(config: Config) -> str:
    """The model_type whose name is that of the class in `architectures`; "" if there is none."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return ""
    purpose = next((ending for ending in _PURPOSES if names[0].endswith(ending)), "")
    wanted = names[0].removesuffix(purpose).lower()
    return next((known for known in (*ARCHITECTURES, *MULTIMODAL) if known.replace("_", "") == wanted), "")
