"""`--speculative draft=PATH` of the config of an EAGLE or EAGLE-3 head: the drafter with the head's own sizes."""

from __future__ import annotations

from collections.abc import Mapping

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention
from llmviewer.models import parts
from llmviewer.models.card import read
from llmviewer.models.config import Config
from llmviewer.models.draft_heads import OPTIONS, draft_kind
from llmviewer.models.model import Model
from llmviewer.techniques.speculation import eagle, eagle3
from llmviewer.techniques.speculation.feature_rounds import FeatureDrafter, feature_method
from llmviewer.techniques.speculation.module import TABLES, VOCABULARY
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
    if kind not in ("EAGLE", "EAGLE-3"):
        use = OPTIONS.get(kind)
        raise UserError(f"{config.where}: a {kind} head is priced by {use}" if use else _not_priced(config, kind))
    allowed = [name for name in given if name not in ("draft", *OPTIONS_OF_A_HEAD)]
    if allowed:
        raise UserError(
            f"{config.where}: {allowed[0]} is no option of a draft head; {', '.join(OPTIONS_OF_A_HEAD)} are"
        )
    config.expect("num_hidden_layers", 1)
    width = config.count("intermediate_size")
    default = eagle.DEFAULT if kind == "EAGLE" else eagle3.DEFAULT

    def drafter(target: Model) -> FeatureDrafter:
        mixer = _attention(config, target.dtype, target)
        if kind == "EAGLE":
            module = eagle.eagle(target, width, mixer)
            return FeatureDrafter(name=kind, first=module, later=module, shared=VOCABULARY)
        vocabulary = config.count("draft_vocab_size", int(target.head.lm_head.out_features))
        first, later = (eagle3.eagle3(target, width, vocabulary, features, mixer) for features in (3, 0))
        return FeatureDrafter(name=kind, first=first, later=later, shared=TABLES)

    return feature_method("draft", text, {**given}, drafter, default)


def _not_priced(config: Config, kind: str) -> str:
    return f"{config.where}: the passes of a {kind} head are not priced yet; EAGLE and EAGLE-3 heads are"


def _attention(config: Config, dtype: Dtype, target: Model) -> Attention:
    """The head's own attention; its width must be that of the target."""
    mixer = parts.attention(config, dtype, parts.projections(config))
    if mixer.hidden != target.hidden:
        raise UserError(
            f"{config.where}: the head has {mixer.hidden} hidden elements, {target.name} {target.hidden}; "
            "they must be the same"
        )
    return mixer
