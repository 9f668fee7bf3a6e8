"""`--speculative draft=PATH` of the config of a draft head: rounds of its kind with the head's own sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from llmviewer.core.errors import UserError
from llmviewer.models import parts
from llmviewer.models.card import read
from llmviewer.models.config import Config
from llmviewer.models.draft_heads import class_name, draft_kind
from llmviewer.models.model import Model
from llmviewer.techniques.speculation import eagle, eagle3
from llmviewer.techniques.speculation.block_heads import KINDS, block_change
from llmviewer.techniques.speculation.feature_rounds import FeatureDrafter, feature_method
from llmviewer.techniques.speculation.module import TABLES, VOCABULARY
from llmviewer.techniques.speculation.rated_heads import PRICED_AS, on_its_target, priced_as
from llmviewer.techniques.technique import Change

#: Options of a round with a head's config.
OPTIONS_OF_A_HEAD = ("tokens", "acceptance", "topk", "nodes")


def head_of(name: str) -> Config | None:
    """The config called `name` if it describes a draft head, else None."""
    card = read(name)
    return Config(card.config, card.name) if draft_kind(card.config) else None


def head_change(config: Config, text: str, given: Mapping[str, str]) -> Change:
    """The change to rounds of the head in `config`.  text: the option as typed; given: its parameters."""
    kind = draft_kind(config.fields)
    other = [name for name in given if name not in ("draft", *OPTIONS_OF_A_HEAD)]
    if other:
        raise UserError(f"{config.where}: {other[0]} is no option of a draft head; {', '.join(OPTIONS_OF_A_HEAD)} are")
    if kind in KINDS:
        if re.search("dflare", class_name(config.fields), re.IGNORECASE):
            raise UserError(f"{config.where}: DFlare's keys and values of the target's states are not priced")
        return on_its_target(block_change(config, kind, text, given), config, "hidden_size")
    if kind in PRICED_AS:
        return priced_as(kind, config, given)
    config.expect("num_hidden_layers", 1)
    width = config.count("intermediate_size")
    default = eagle.DEFAULT if kind == "EAGLE" else eagle3.DEFAULT

    def drafter(target: Model) -> FeatureDrafter:
        mixer = parts.attention(config, target.dtype, parts.projections(config))
        if kind == "EAGLE":
            module = eagle.eagle(target, width, mixer)
            return FeatureDrafter(name=kind, first=module, later=module, shared=VOCABULARY)
        vocabulary = config.count("draft_vocab_size", int(target.head.lm_head.out_features))
        first, later = (
            eagle3.eagle3(target, width, vocabulary, features, mixer) for features in (_features(config), 0)
        )
        return FeatureDrafter(name=kind, first=first, later=later, shared=TABLES)

    return on_its_target(feature_method("draft", text, {**given}, drafter, default), config, "hidden_size")


def _features(config: Config) -> int:
    """Layers of the target whose states an EAGLE-3 head reads: those listed, else three."""
    own = config.section("eagle_config") if config.has("eagle_config") else config
    layers = own.get("eagle_aux_hidden_state_layer_ids")
    return len(layers) if isinstance(layers, list) and layers else config.count("num_aux_hidden_states", 3)
