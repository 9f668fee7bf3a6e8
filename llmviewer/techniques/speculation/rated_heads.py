"""Configs of draft heads that an option with parameters prices: MTP modules, Medusa heads, MLP speculators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.serving.generation import Generation, GenerationScheme
from llmviewer.techniques.speculation import medusa, mtp, speculator
from llmviewer.techniques.technique import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedAs:
    """An option that prices a kind of head.

    sizes: the option's parameter -> names of the config's field.  accepts: parameters that a user may give as well.
    width: the field with the target's hidden size.
    """

    make: Callable[[str], Change]
    sizes: Mapping[str, tuple[str, ...]]
    accepts: tuple[str, ...]
    width: str = "hidden_size"


#: Kind of head -> the option that prices it.
PRICED_AS: dict[str, PricedAs] = {
    "MTP": PricedAs(
        make=mtp.TECHNIQUE.make,
        sizes={"modules": ("num_nextn_predict_layers", "n_predict", "mtp_num_hidden_layers")},
        accepts=("tokens", "acceptance"),
    ),
    "Medusa": PricedAs(
        make=medusa.TECHNIQUE.make,
        sizes={"heads": ("medusa_num_heads", "num_heads"), "layers": ("medusa_num_layers", "num_hidden_layers")},
        accepts=("nodes", "acceptance"),
    ),
    "MLP speculator": PricedAs(
        make=speculator.TECHNIQUE.make,
        sizes={"heads": ("n_predict",), "inner": ("inner_dim",)},
        accepts=("acceptance",),
        width="emb_dim",
    ),
}


def priced_as(kind: str, config: Config, given: Mapping[str, str]) -> Change:
    """The change of the option that prices this kind of head, with the sizes of its config."""
    option = PRICED_AS[kind]
    other = [name for name in given if name not in ("draft", *option.accepts)]
    if other:
        raise UserError(f"{config.where}: {other[0]} is no option of this head; {', '.join(option.accepts)} are")
    words = [f"{name}={given[name]}" for name in option.accepts if name in given]
    for name, fields in option.sizes.items():
        field = config.first_present(*fields)
        if config.has(field):
            words.append(f"{name}={config.count(field)}")
        elif kind != "MTP" and name == "heads":
            raise UserError(f"{config.where}: missing field '{field}'")
    if config.flag("tie_weights", default=False):
        words.append("embeddings=shared")
    return on_its_target(option.make(",".join(words)), config, option.width)


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
