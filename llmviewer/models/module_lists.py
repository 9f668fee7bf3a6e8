"""Lists of modules as quantization configs write them: which linear layers of which layers they name."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from llmviewer.core.errors import UserError, quoted

#: What stands before the number of a layer of the language model, in one class or another.
_LAYERS = re.compile(r"^(?:(?:model|language_model|text_model|transformer|decoder|backbone|gpt_neox)\.)*(?:layers|h)\.")
_ROOTS = ("model.", "model.language_model.", "language_model.model.")
_NUMBERED = re.compile(r"layers\.(\d{1,9})(?:\.(.*))?$")
_SINGLE_EXPERT = re.compile(r"experts\.\d")
#: Modules that stay in 16 bit or are not counted anyhow: nobody need be told that a config excludes them.
_ELSEWHERE = re.compile(
    r"norm|embed|wte|wpe|gate$|router|lm_head|score|conv1d|rotary|sink|visual|vision|audio|image|multi_modal|projector"
    r"|mtp|nextn|^model\.decoder\."
)
#: The time to match a path grows with the repetitions of a pattern as an exponent, doubles with every choice (a group,
#: an optional part), and has no bound where a group is repeated.
MOST_REPEATS, MOST_CHOICES = 4, 8
_REPEATS = re.compile(r"[*+{]")
_CHOICES = re.compile(r"\(|(?<!\()\?")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
#: Patterns of one list, and seconds after which a list is given up: the bounds above still leave room for malice.
MOST_PATTERNS = 500
PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleList:
    """Whole words between dots (`self_attn`, `layers.3.mlp`, `lm_head`) or patterns.

    anywhere: entries without the number of a layer.  in_layer: what is named below a layer; "" is the layer itself.
    """

    anywhere: frozenset[str] = frozenset()
    in_layer: Mapping[int, frozenset[str]]
    patterns: tuple[re.Pattern[str], ...] = ()
    where: str = ""
    deadline: float = math.inf

    @property
    def numbered(self) -> bool:
        """Whether it may tell one layer from another."""
        return bool(self.in_layer) or any(re.search(r"\d", pattern.pattern) for pattern in self.patterns)

    def holds(self, names: tuple[str, ...], layer: int) -> bool:
        """Whether a module of layer `layer` called any of `names`, or one that contains it, is listed."""
        if any(not self.anywhere.isdisjoint(_runs(name)) for name in names):
            return True
        below = self.in_layer.get(layer, frozenset())
        if "" in below or any(not below.isdisjoint(_beginnings(name)) for name in names):
            return True
        return bool(self.patterns) and self._matches(names, layer)

    def _matches(self, names: tuple[str, ...], layer: int) -> bool:
        if time.monotonic() > self.deadline:
            raise UserError(f"{self.where}: the patterns in the lists of modules take too long to match")
        paths = (f"{root}layers.{layer}.{name}" for name in names for root in _ROOTS)
        return any(pattern.match(path) for path in paths for pattern in self.patterns)

    def has_head(self) -> bool:
        """Whether lm_head is listed."""
        return "lm_head" in self.anywhere or any(pattern.match("lm_head") for pattern in self.patterns)


def listed(entries: Iterable[str], where: str, deadline: float | None = None) -> ModuleList:
    """The list that the strings of a config mean.  where: what an error message calls it.  deadline: of all matching,
    on the monotonic clock; PATIENCE_S from now where none is given."""
    anywhere: set[str] = set()
    in_layer: dict[int, set[str]] = {}
    patterns: list[re.Pattern[str]] = []
    for entry in entries:
        plain = _LAYERS.sub("layers.", entry.strip("."))
        numbered = _NUMBERED.match(plain)
        if entry.startswith("re:") or "*" in entry:
            patterns.append(_pattern(entry, where))
            if len(patterns) > MOST_PATTERNS:
                raise UserError(f"{where}: a list of modules has over {MOST_PATTERNS} patterns")
        elif _SINGLE_EXPERT.search(plain):
            continue
        elif numbered:
            in_layer.setdefault(int(numbered[1]), set()).add(numbered[2] or "")
        else:
            anywhere.add(plain)
    return ModuleList(
        anywhere=frozenset(anywhere),
        in_layer={layer: frozenset(names) for layer, names in in_layer.items()},
        patterns=tuple(patterns),
        where=where,
        deadline=time.monotonic() + PATIENCE_S if deadline is None else deadline,
    )


def _pattern(entry: str, where: str) -> re.Pattern[str]:
    """`re:` is matched from the start of a path; in a glob `*` stands for anything, and words are whole."""
    repeats, choices = len(_REPEATS.findall(entry)), len(_CHOICES.findall(entry))
    if repeats > MOST_REPEATS or choices > MOST_CHOICES or _REPEATED_GROUP.search(entry):
        allowed = f"{MOST_REPEATS} repetitions, none of a group, and {MOST_CHOICES} groups or optional parts"
        raise UserError(f"{where}: pattern {quoted(entry)} may take for ever; allowed: at most {allowed}")
    plain = re.escape(_LAYERS.sub("layers.", entry)).replace(r"\*", ".*")
    text = entry.removeprefix("re:") if entry.startswith("re:") else rf"(?:.*\.)?{plain}(?:\.|$)"
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"{where}: {quoted(entry)} is not a regular expression: {error}") from error


def unnamed(entries: Iterable[str], layers: Mapping[int, list[tuple[str, ...]]], where: str) -> list[str]:
    """Entries that name none of the linear layers, though they should.  layers: names of those in every layer.

    Layers beyond the last (further-token heads), norms, embeddings, routers and other towers are named for good.
    """
    found: list[str] = []
    known = frozenset().union(*(_runs(name) for names in layers.values() for named in names for name in named))
    deadline = time.monotonic() + PATIENCE_S
    for entry in (entry for entry in entries if not _ELSEWHERE.search(entry)):
        alone = listed([entry], where, deadline)
        mentioned = [layer for layer in alone.in_layer if layer in layers] if alone.in_layer else list(layers)
        if alone.in_layer or alone.patterns:
            meant = any(alone.holds(names, layer) for layer in mentioned for names in layers[layer])
        else:
            meant = not alone.anywhere.isdisjoint(known)
        if mentioned and not meant:
            found.append(entry)
    return found


@lru_cache
def _beginnings(name: str) -> frozenset[str]:
    words = name.split(".")
    return frozenset(".".join(words[:end]) for end in range(1, len(words) + 1))


@lru_cache
def _runs(name: str) -> frozenset[str]:
    words = name.split(".")
    spans = ((start, end) for end in range(1, len(words) + 1) for start in range(end))
    return frozenset(".".join(words[start:end]) for start, end in spans)
