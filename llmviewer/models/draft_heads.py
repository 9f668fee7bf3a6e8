"""Draft heads and other models without a vocabulary head, recognised by their class and fields.

A draft head runs on hidden states of its target; counted as a language model of its own it would be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmviewer.core.errors import UserError, quoted
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.ops.gemm import Linear

#: Kind of draft head -> pattern of its class names.  The first match counts.
CLASSES: dict[str, str] = {
    "MTP": r"MTP|NextN",
    "EAGLE-3": r"eagle3|eagle_3",
    "EAGLE": r"eagle",
    "Medusa": r"medusa",
    "DSpark": r"dspark",
    "Domino": r"domino",
    "DFlash": r"dfl(ash|are)",
    "Gemma 4 assistant": r"gemma4\w*assistant",
    "MLP speculator": r"mlpspeculator",
}
#: Field that only heads of this kind have -> kind.
FIELDS: dict[str, str] = {
    "draft_vocab_size": "EAGLE-3",
    "dflash_config": "DFlash",
    "medusa_num_heads": "Medusa",
    "n_predict": "MLP speculator",
    "eagle_config": "EAGLE-3",
}
#: Class endings of models that score or embed a text -> what they have instead of a vocabulary head.
SCORING = ("ForSequenceClassification", "ForTokenClassification", "ForRewardModel", "ForProcessRewardModel")
REWARD = ("RewardModel",)
#: Types whose language models were published under the class of their base model.
MODEL_IS_CAUSAL = ("bloom", "chatglm")


def class_name(fields: Mapping[str, Any]) -> str:
    """The first class in `architectures`; "" if there is none."""
    names = fields.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def draft_kind(fields: Mapping[str, Any]) -> str:
    """The kind of draft head that a config describes; "" for any other model, such as the vision model Eagle 2."""
    if isinstance(fields.get("vision_config"), Mapping):
        return ""
    words = f"{class_name(fields)} {fields.get('model_type')}"
    for kind, pattern in CLASSES.items():
        if re.search(pattern, words, re.IGNORECASE):
            return kind
    return next((kind for field, kind in FIELDS.items() if fields.get(field) is not None), "")


def refuse_draft(config: Config) -> None:
    """Raise if the config is that of a draft head, saying how its target takes it."""
    kind = draft_kind(config.fields)
    if not kind:
        return
    named = class_name(config.fields) or config.fields.get("model_type")
    raise UserError(
        f"{config.where}: {quoted(named)} is a draft head ({kind}), not a language model of its own; "
        "analyze its target with --speculative draft=PATH of this file"
    )


def with_own_head(model: Model, config: Config) -> Model:
    """The model with the head that its class says: none for an embedder, a small one for a classifier."""
    if model.is_encoder or model.encoder is not None:
        return model  # its parser has built the head; BartModel is what files of the whole model name
    named = class_name(config.fields)
    if named.endswith((*SCORING, *REWARD)):
        return _scoring(model, config, named)
    stem = named.removesuffix("Model").lower()
    model_type = str(config.fields.get("model_type")).replace("_", "")
    if (
        not named.endswith("Model")
        or named.endswith("ChatModel")
        or stem != model_type
        or model_type in MODEL_IS_CAUSAL
    ):
        return model
    note = f"{named} is an embedder: it has no lm_head"
    return replace(model, head=replace(model.head, has_logits=False), notes=(*model.notes, note))


def _scoring(model: Model, config: Config, named: str) -> Model:
    """A head from the hidden size to the labels: `num_labels`, the length of `id2label`, or 2; one for a reward."""
    labels = config.get("id2label")
    count = config.count("num_labels", len(labels) if isinstance(labels, Mapping) and labels else 2)
    outputs = 1 if named.endswith("RewardModel") and "Process" not in named else count
    has_bias = named.endswith("ForTokenClassification")
    score = Linear(name="lm_head", in_features=model.hidden, out_features=outputs, dtype=model.dtype, bias=has_bias)
    note = f"{named} has a head of {outputs} outputs instead of an lm_head"
    if outputs == 1 and "Reward" in named:
        note += "; further layers of a reward head are not counted"
    head = replace(model.head, lm_head=score, tied=False, project=None, logit_flops=0.0, logit_special=0.0)
    return replace(model, head=head, notes=(*model.notes, note))
