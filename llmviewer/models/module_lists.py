"""Lists of module names in quantization configs, and the linear layers that they match."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from llmviewer.core.errors import UserError, quoted

#: Module path before the number of a decoder layer, in any class.
_LAYER_PREFIX = re.compile(
    r"^(?:(?:model|language_model|text_model|transformer|decoder|backbone|gpt_neox)\.)*(?:layers|h)\."
)
_ROOTS = ("model.", "model.language_model.", "language_model.model.")
_NUMBERED = re.compile(r"layers\.(\d{1,9})(?:\.(.*))?$")
#: A glob for the modules of one layer whose names start alike, the usual form of ModelOpt.
_START_IN_LAYER = re.compile(r"layers\.(\d{1,9})\.([\w.]*)\*$")
_SINGLE_EXPERT = re.compile(r"experts\.\d")
_EXPERT_NUMBER = re.compile(r"experts\.\d{1,5}")
_ANY_LAYER = re.compile(r"layers\.(\d{1,9})")
#: Modules that stay in 16 bit or are not counted: no note is needed if a config lists them.
_NEVER_QUANTIZED = re.compile(
    r"norm|embed|wte|wpe|gate$|router|lm_head|score|conv1d|rotary|sink|visual|vision|audio|image|multi_modal|projector"
    r"|mtp|nextn|^model\.decoder\."
)
#: Limits of a pattern.  Its matching time is exponential in the number of repetitions, doubles with every choice (a
#: group, an optional part), and has no bound if a group is repeated.
MAX_REPEATS, MAX_CHOICES = 4, 8
_REPEATS = re.compile(r"[*+{]")
_CHOICES = re.compile(r"\(|(?<!\()\?")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
#: Most patterns of one list, and the time limit for matching it [s]: patterns within the limits above can be slow.
MAX_PATTERNS = 500
MATCH_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleList:
    """Module paths (`self_attn`, `layers.3.mlp`, `lm_head`; whole words between dots) and patterns.

    any_layer: entries without a layer number.  in_layer: layer number -> paths within that layer; "" is the whole
    layer.  where: name of the list in error messages.  deadline: end of matching, on the monotonic clock [s].
    starts: layer number -> starts of paths within that layer.
    """

    any_layer: frozenset[str] = frozenset()
    in_layer: Mapping[int, frozenset[str]]
    patterns: tuple[re.Pattern[str], ...] = ()
    where: str = ""
    deadline: float = math.inf
    starts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def distinguishes_layers(self) -> bool:
        """Whether the list may treat layers of one kind differently."""
        return bool(self.in_layer or self.starts) or any(re.search(r"\d", pattern.pattern) for pattern in self.patterns)

    def contains(self, names: tuple[str, ...], layer: int) -> bool:
        """Whether the list has a module of `layer` with any of `names`, or a module that contains it."""
        if any(not self.any_layer.isdisjoint(_subpaths(name)) for name in names):
            return True
        paths = self.in_layer.get(layer, frozenset())
        if "" in paths or any(not paths.isdisjoint(_prefixes(name)) for name in names):
            return True
        if any(name.startswith(self.starts.get(layer, ())) for name in names):
            return True
        return bool(self.patterns) and self._matches(names, layer)

    def _matches(self, names: tuple[str, ...], layer: int) -> bool:
        if time.monotonic() > self.deadline:
            raise UserError(f"{self.where}: matching the patterns in the module lists takes too long")
        paths = (f"{root}layers.{layer}.{name}" for name in names for root in _ROOTS)
        return any(pattern.match(path) for path in paths for pattern in self.patterns)

    def has_head(self) -> bool:
        """Whether the list has lm_head."""
        named = any(name.rpartition(".")[2] == "lm_head" for name in self.any_layer)
        return named or any(pattern.match("lm_head") for pattern in self.patterns)


def module_list(entries: Iterable[str], where: str, deadline: float | None = None) -> ModuleList:
    """The ModuleList of the strings in a config.

    where: name of the list in error messages.  deadline: end of all matching, on the monotonic clock [s]; default:
    MATCH_TIMEOUT_S from now.
    """
    any_layer: set[str] = set()
    in_layer: dict[int, set[str]] = {}
    patterns: list[re.Pattern[str]] = []
    starts: dict[int, tuple[str, ...]] = {}
    entries = tuple(entries)
    listed = frozenset(entries)
    for entry in entries:
        plain = _LAYER_PREFIX.sub("layers.", entry.strip("."))
        numbered = _NUMBERED.match(plain)
        start = _START_IN_LAYER.match(plain)
        if start:
            starts[int(start[1])] = (*starts.get(int(start[1]), ()), start[2])
        elif entry.startswith("re:") or "*" in entry:
            patterns.append(_pattern(entry, where))
            if len(patterns) > MAX_PATTERNS:
                raise UserError(f"{where}: a module list has more than {MAX_PATTERNS} patterns")
        elif _SINGLE_EXPERT.search(plain) and not _for_all_experts(entry, listed):
            continue
        elif numbered:
            in_layer.setdefault(int(numbered[1]), set()).add(numbered[2] or "")
        else:
            any_layer.add(plain)
    return ModuleList(
        any_layer=frozenset(any_layer),
        in_layer={layer: frozenset(names) for layer, names in in_layer.items()},
        patterns=tuple(patterns),
        where=where,
        deadline=time.monotonic() + MATCH_TIMEOUT_S if deadline is None else deadline,
        starts=starts,
    )


def _for_all_experts(entry: str, listed: frozenset[str]) -> bool:
    """Whether the entry names the first expert and the list another one too: such a list names them all."""
    return "experts.0" in entry and entry.replace("experts.0", "experts.1") in listed


def _pattern(entry: str, where: str) -> re.Pattern[str]:
    """The expression of an entry: `re:...` is matched from the start of a path; a glob matches whole words."""
    repeats, choices = len(_REPEATS.findall(entry)), len(_CHOICES.findall(entry))
    if repeats > MAX_REPEATS or choices > MAX_CHOICES or _REPEATED_GROUP.search(entry):
        allowed = f"at most {MAX_REPEATS} repetitions, none of a group, and {MAX_CHOICES} groups or optional parts"
        raise UserError(f"{where}: pattern {quoted(entry)} may be too slow to match; allowed: {allowed}")
    plain = re.escape(_LAYER_PREFIX.sub("layers.", entry)).replace(r"\*", ".*")
    text = entry.removeprefix("re:") if entry.startswith("re:") else rf"(?:.*\.)?{plain}(?:\.|$)"
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"{where}: {quoted(entry)} is not a regular expression: {error}") from error


def unmatched(entries: Iterable[str], layers: Mapping[int, list[tuple[str, ...]]], where: str) -> list[str]:
    """Entries that match no linear layer of the model.  layers: layer number -> module names of its linear layers.

    Entries for layers beyond the last (multi-token prediction) and for norms, embeddings, routers and vision or audio
    towers are not reported.
    """
    found: list[str] = []
    known = frozenset().union(*(_subpaths(name) for linears in layers.values() for names in linears for name in names))
    deadline = time.monotonic() + MATCH_TIMEOUT_S
    entries = tuple(entries)
    listed = frozenset(entries)

    def is_known(entry: str) -> bool:
        number = _ANY_LAYER.search(entry)
        beyond = number is not None and int(number[1]) not in layers
        first = _EXPERT_NUMBER.sub("experts.0", entry)
        return beyond or bool(_NEVER_QUANTIZED.search(entry)) or _for_all_experts(first, listed)

    for entry in (entry for entry in entries if not is_known(entry)):
        single = module_list([entry], where, deadline)
        stated = (*single.in_layer, *single.starts)
        candidates = [layer for layer in stated if layer in layers] if stated else list(layers)
        if stated or single.patterns:
            matches = any(single.contains(names, layer) for layer in candidates for names in layers[layer])
        else:
            matches = not single.any_layer.isdisjoint(known)
        if candidates and not matches:
            found.append(entry)
    return found


@lru_cache
def _prefixes(name: str) -> frozenset[str]:
    words = name.split(".")
    return frozenset(".".join(words[:end]) for end in range(1, len(words) + 1))


@lru_cache
def _subpaths(name: str) -> frozenset[str]:
    words = name.split(".")
    spans = ((start, end) for end in range(1, len(words) + 1) for start in range(end))
    return frozenset(".".join(words[start:end]) for start, end in spans)
