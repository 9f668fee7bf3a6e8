"""`--speculative draft=PATH` of the config of a draft head: rounds of its kind with the head's own sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.language.grammar import Grammar
from llmviewer.models import parts
from llmviewer.models.card import read
from llmviewer.models.config import Config
from llmviewer.models.draft_heads import class_name, draft_kind
from llmviewer.models.model import Model
from llmviewer.serving.generation import Generation, GenerationScheme
from llmviewer.techniques.speculation import features, heads
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.block_heads import KINDS, block_rounds
from llmviewer.techniques.speculation.features import TREE_TOKENS, FeatureDrafter, Nodes, Topk, feature_rounds, tree_of
from llmviewer.techniques.speculation.method import RATES, Rounds, round_change, scheme_name
from llmviewer.techniques.technique import Change, Technique, called

WHERE = "--speculative draft=PATH"


def head_of(name: str) -> Config | None:
    """The config called `name` if it describes a draft head, else None."""
    card = read(name)
    return Config(card.config, card.name) if draft_kind(card.config) else None


def head_change(config: Config, text: str, words: Mapping[str, str]) -> Change:
    """The change to rounds of the head in `config`.  text: the option as typed; words: its parameters."""
    kind = draft_kind(config.fields)
    typed = {name: word for name, word in words.items() if name != "draft"}
    if kind in PRICED_AS:
        return priced_as(kind, config, typed)
    if kind in KINDS:
        if re.search("dflare", class_name(config.fields), re.IGNORECASE):
            raise UserError(f"{config.where}: DFlare's keys and values of the target's states are not priced")
        rounds = block_rounds(config, kind)
    else:
        rounds = _eagle_rounds(config, kind)
    parameters = ",".join(f"{name}={word}" for name, word in typed.items())
    made = called(rounds, f"{WHERE} ({config.where}, {kind})", Grammar.of(rounds), parameters)
    return on_its_target(round_change(scheme_name("", text), made), config, "hidden_size")


def _eagle_rounds(config: Config, kind: str) -> Callable[..., Rounds]:
    """Rounds of an EAGLE or EAGLE-3 head by the parameters that a user gives."""
    config.expect("num_hidden_layers", 1)
    width = config.count("intermediate_size")
    default = features.EAGLE_DEFAULT if kind == "EAGLE" else features.EAGLE3_DEFAULT

    def drafter(target: Model) -> FeatureDrafter:
        mixer = parts.attention(config, target.dtype, parts.projections(config))
        if kind == "EAGLE":
            return features.eagle_drafter(target, width, mixer)
        vocabulary = config.count("draft_vocab_size", int(target.head.lm_head.out_features))
        return features.eagle3_drafter(target, width, vocabulary, _features(config), mixer)

    def rounds(
        *,
        tokens: Annotated[float | str, TREE_TOKENS()],
        acceptance: Annotated[Acceptance | None, RATES()] = None,
        topk: Topk = 1.0,
        nodes: Nodes = None,
    ) -> Rounds:
        return feature_rounds(drafter, tokens, acceptance, default, tree_of(tokens, topk, nodes))

    return rounds


def _features(config: Config) -> int:
    """Layers of the target whose states an EAGLE-3 head reads: those listed, else three."""
    own = config.section("eagle_config") if config.has("eagle_config") else config
    layers = own.get("eagle_aux_hidden_state_layer_ids")
    return len(layers) if isinstance(layers, list) and layers else config.count("num_aux_hidden_states", 3)


@frozen
class PricedAs:
    """An option that prices a kind of head.

    sizes: the option's parameter -> names of the config's field.  accepts: parameters that a user may give as well.
    width: the field with the target's hidden size.
    """

    method: Technique
    sizes: Mapping[str, tuple[str, ...]]
    accepts: tuple[str, ...]
    width: str = "hidden_size"


#: Kind of head -> the option that prices it.
PRICED_AS: dict[str, PricedAs] = {
    "MTP": PricedAs(
        method=features.mtp,
        sizes={"modules": ("num_nextn_predict_layers", "n_predict", "mtp_num_hidden_layers")},
        accepts=("tokens", "acceptance"),
    ),
    "Medusa": PricedAs(
        method=heads.medusa,
        sizes={"heads": ("medusa_num_heads", "num_heads"), "layers": ("medusa_num_layers", "num_hidden_layers")},
        accepts=("nodes", "acceptance"),
    ),
    "MLP speculator": PricedAs(
        method=heads.speculator,
        sizes={"heads": ("n_predict",), "inner": ("inner_dim",)},
        accepts=("acceptance",),
        width="emb_dim",
    ),
}


def priced_as(kind: str, config: Config, typed: Mapping[str, str]) -> Change:
    """The change of the option that prices this kind of head, with the sizes of its config."""
    option = PRICED_AS[kind]
    other = [name for name in typed if name not in option.accepts]
    if other:
        raise UserError(f"{config.where}: {other[0]} is no option of this head; {', '.join(option.accepts)} are")
    words = [f"{name}={typed[name]}" for name in option.accepts if name in typed]
    for name, fields in option.sizes.items():
        field = config.first_present(*fields)
        if config.has(field):
            words.append(f"{name}={config.count(field)}")
        elif kind != "MTP" and name == "heads":
            raise UserError(f"{config.where}: missing field '{field}'")
    if config.flag("tie_weights", default=False):
        words.append("embeddings=shared")
    return on_its_target(option.method.make(",".join(words)), config, option.width)


def on_its_target(change: Change, config: Config, width: str) -> Change:
    """The change, refused for a target whose hidden size is not the head's.  width: the field with the head's."""

    def checked(make: Callable[[Model], Generation]) -> Callable[[Model], Generation]:
        def made(target: Model) -> Generation:
            _check(config, width, target)
            return make(target)

        return made

    def changed(system: System) -> System:
        found = change(system)
        scheme = found.scheme
        if not isinstance(scheme, GenerationScheme):
            return found
        candidates = tuple(replace(one, make=checked(one.make)) for one in scheme.candidates)
        return replace(found, scheme=replace(scheme, make=checked(scheme.make), candidates=candidates))

    return changed


def _check(config: Config, width: str, target: Model) -> None:
    """Raise unless the head states the target's hidden size and number of layers, where it states any."""
    own = config.count(width, target.hidden)
    if own != target.hidden:
        raise UserError(
            f"{config.where}: the head has {own} hidden elements, {target.name} {target.hidden}; they must be the same"
        )
    layers = sum(layer.repeats for layer in target.layers)
    stated = config.count("num_target_layers", int(layers))
    if stated != layers:
        raise UserError(
            f"{config.where}: the head is for a target of {stated} layers, {target.name} has {layers:g}; "
            "they must be the same"
        )
