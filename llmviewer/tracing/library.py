"""The class of the installed transformers for a config, instantiated without memory on the meta device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmviewer.core.errors import UserError, missing_extra, quoted, unknown

#: Name under which the recorded attention is known to transformers.
ATTENTION = "llmviewer_trace"
#: Fields that name code or formats and change no shape; without a dtype the class is float32, so no weight is cast.
_LEFT_OUT = ("architectures", "auto_map", "dtype", "torch_dtype", "quantization_config", "transformers_version")
#: Rotary scalings that look at position values, which the meta device has none of; they change no shape.
_DATA_DEPENDENT_ROPE = ("longrope", "su", "dynamic")


def library_model(fields: Mapping[str, Any], where: str) -> tuple[Any, str]:
    """The model of a config on the meta device, and the words for its class (`transformers 5.23.0's LlamaForCausalLM`).

    Code of a checkpoint is never run: the class is one of the installed library's own.  Raises UserError.
    """
    try:
        import torch
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES
    except ImportError as error:
        raise missing_extra("--trace-model needs torch and transformers", "trace") from error
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in CLASSES:
        known = sorted(name for name in CLASSES if isinstance(name, str))
        library = f"causal language models of transformers {transformers.__version__}"
        raise unknown("model_type", model_type, known, where=where, hint=f"--trace-model reads {library}")
    cls = getattr(transformers, CLASSES[model_type])
    name = f"transformers {transformers.__version__}'s {cls.__name__}"
    kept = {key: _plain_rope(value) for key, value in fields.items() if key not in (*_LEFT_OUT, "model_type")}
    try:
        config = cls.config_class.from_dict(kept)
        _register_attention()
        with torch.device("meta"):
            kernels = {"attn_implementation": ATTENTION, "experts_implementation": "batched_mm"}
            model = cls._from_config(config, dtype=torch.float32, **kernels)
    except Exception as error:  # any check of the library's own code
        raise UserError(f"{where}: {name} refuses the config: {_first_line(error)}") from error
    return model.eval().requires_grad_(requires_grad=False), name


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _plain_rope(value: Any) -> Any:
    """A rotary scaling that the meta device can compute, in place of one that it cannot."""
    if isinstance(value, Mapping) and (value.get("rope_type") or value.get("type")) in _DATA_DEPENDENT_ROPE:
        theta = {"rope_theta": value["rope_theta"]} if "rope_theta" in value else {}
        return {"rope_type": "default", **theta}
    return value


def _register_attention() -> None:
    """Make transformers call `recorded_attention`, with the window as a number and no mask."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from llmviewer.tracing.recorder import recorded_attention

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, recorded_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, lambda *_, **__: None)


def run(model: Any, where: str, tokens: int, cache: Any = None) -> Any:
    """One forward pass over `tokens` new tokens; the cache that it returns.  Raises UserError."""
    import inspect

    import torch

    given: dict[str, Any] = {"past_key_values": cache} if cache is not None else {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        given["logits_to_keep"] = 1
    ids = torch.empty(1, tokens, dtype=torch.long, device="meta")
    try:
        with torch.no_grad():
            out = model(input_ids=ids, use_cache=True, **given)
    except Exception as error:  # code that looks at values, which the meta device has none of
        name = type(model).__name__
        raise UserError(f"{where}: {name} does not run without values: {_first_line(error)}") from error
    if getattr(out, "past_key_values", None) is None:
        raise UserError(f"{where}: {type(model).__name__} returns no KV cache, so {quoted('--trace-model')} refuses it")
    return out.past_key_values
