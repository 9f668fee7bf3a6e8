"""HRM-Text: two stacks of layers that run in turn several times (hierarchical reasoning model, arXiv 2506.21734)."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.models import parts
from llmviewer.models.class_defaults import class_defaults
from llmviewer.models.config import Config
from llmviewer.models.decoder import Decoder
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import bare_rms_norm


def _layers_of_a_stack(config: Config) -> None:
    """Layers of one stack; newer configs state the runs of all stacks as `num_hidden_layers`."""
    if config.has("num_layers_per_stack"):
        config.fields = {**config.fields, "num_hidden_layers": config.count("num_layers_per_stack")}


def _runs(model: Model, config: Config) -> Model:
    """The model with a layer for each run of a stack.

    Every run has a KV cache of its own. Not counted: the norm and the sum between two runs.
    """
    plain, low = model.layers[0], config.count("L_cycles", 3)
    runs = [
        (f"low_{high}_{run}" if run < low else f"high_{high}", "low" if run < low else "high")
        for high in range(config.count("H_cycles", 2))
        for run in range(low + 1)
    ]
    layers = tuple(
        replace(plain, name=name, scope=stack, numbers=tuple(range(at * plain.repeats, (at + 1) * plain.repeats)))
        for at, (name, stack) in enumerate(runs)
    )
    return parts.with_stored(replace(model, layers=layers), low_stack_start=model.hidden)


#: HrmTextForCausalLM: a low and a high stack of layers, which run in turn several times with the same weights.
HRM_TEXT = Decoder(
    defaults=class_defaults("hrm_text") | {"head_dim": 128},
    ignored="L_bp_cycles prefix_lm embedding_scale",
    prepare=_layers_of_a_stack,
    norm=bare_rms_norm,
    gate=True,
    scaled=True,
    finish=_runs,
)
