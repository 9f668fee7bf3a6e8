"""Patterns of layers: which of them have a window, and which have rope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from llmviewer.core.errors import UserError, unknown
from llmviewer.core.frozen import frozen
from llmviewer.models.config import Config, layer_count, layer_types, sliding_or_full

#: Gives the type of every layer, `full` or `sliding`.
LayerTypes: TypeAlias = Callable[[Config], Sequence[str]]
#: Gives for every layer whether it has rope; the types of the layers are its second argument.
RopeLayers: TypeAlias = Callable[[Config, Sequence[str]], Sequence[bool]]

#: Letters of EXAONE's `sliding_window_pattern`: local and global attention.
LETTERS = {"L": "sliding", "G": "full"}


def one_window(config: Config) -> list[str]:
    """Every layer has the window of `sliding_window`, if it is stated."""
    return ["sliding"] * layer_count(config)


def no_window(config: Config) -> list[str]:
    """Full attention in every layer, of an architecture whose config lists no types."""
    return ["full"] * layer_count(config)


def all_full(config: Config) -> list[str]:
    """Full attention in every layer."""
    return layer_types(config, ("full",), ["full"] * layer_count(config))


def everywhere(config: Config, types: Sequence[str]) -> list[bool]:
    """Rope in every layer."""
    return [True] * len(types)


def nowhere(config: Config, types: Sequence[str]) -> list[bool]:
    """Positions by other means than rope, in every layer."""
    return [False] * len(types)


@frozen(kw_only=False)
class FullEvery:
    """`full` in every n-th layer and `other` in the others, unless `layer_types` lists them.

    field: holds n, which is `default` if missing.  at: remainder of the numbers of full layers, from 0.
    """

    field: str
    default: int
    at: int = -1
    other: str = "sliding"

    def __call__(self, config: Config) -> list[str]:
        """The type of every layer."""
        period = config.count(self.field, self.default) if self.field else self.default
        places = range(layer_count(config))
        default = ["full" if layer % period == self.at % period else self.other for layer in places]
        return layer_types(config, (self.other, "full"), default)


first_of_four = FullEvery("", 4, at=0)


def all_sliding(config: Config) -> list[str]:
    """The window of `sliding_window` in every layer, unless the config lists the types."""
    return layer_types(config, ("full", "sliding"), one_window(config))


def full_first(config: Config, default: int) -> list[str]:
    """With a window, `full` in the first `max_window_layers` layers (`default` if missing) and `sliding` after them."""
    first, windowed = config.count("max_window_layers", default, minimum=0), config.has("sliding_window")
    types = ["sliding" if windowed and layer >= first else "full" for layer in range(layer_count(config))]
    return layer_types(config, ("full", "sliding"), types)


def exaone_types(config: Config) -> list[str]:
    """Full attention in all layers without a window, else in every fourth; the pattern may be letters (LLLG)."""
    stated = config.get("sliding_window_pattern", 4)
    config.ignore("layer_types")
    if not config.has("sliding_window"):
        return ["full"] * layer_count(config)
    if not isinstance(stated, str):
        return sliding_or_full(config, 4)
    for letter in stated or "?":
        if letter not in LETTERS:
            raise unknown("letter of sliding_window_pattern", letter, LETTERS, where=config.where)
    default = [LETTERS[stated[layer % len(stated)]] for layer in range(layer_count(config))]
    return layer_types(config, ("sliding", "full"), default)


def local_layers(config: Config, types: Sequence[str]) -> list[bool]:
    """Rope in layers with a window; also in full ones if no layer has a window."""
    return [word == "sliding" or "sliding" not in types for word in types]


def layers_with_base(config: Config, types: Sequence[str]) -> list[bool]:
    """Rope in the layers whose base in `layer_rope_theta` is not 0."""
    bases = config.get("layer_rope_theta", [1.0] * len(types))
    if not isinstance(bases, list) or len(bases) < len(types):
        raise UserError(f"{config.where}: field 'layer_rope_theta' must list {len(types)} layers")
    return [bool(base) for base in bases[: len(types)]]
