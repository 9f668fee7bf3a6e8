"""Names of linear layers in checkpoints by operator name, and lists of names and patterns that match them."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import lru_cache

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen

_ATTENTION = ("self_attn", "attn", "mixer")
_EXPERT = ("mlp.experts.0", "feed_forward.experts.0", "mixer.experts.0", "experts.0")
_FUSED = (  # all experts in one tensor
    *("mlp.experts", "feed_forward.experts", "mixer.experts", "experts", "block_sparse_moe.experts"),
)
_SHARED = (
    *("mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert", "mixer.shared_experts"),
    *("mlp.shared_mlp", "block_sparse_moe.shared_experts"),
)
_INDEXER = "self_attn.indexer"
_COMPRESSOR = "self_attn.compressor"
_MAMBA = ("mixer", "mamba")


def _under(parents: tuple[str, ...], leaf: str) -> tuple[str, ...]:
    return tuple(f"{parent}.{leaf}" for parent in parents)


#: Operator name -> possible names of its matrix below `layers.N`, over all families.
MODULES: dict[str, tuple[str, ...]] = {
    "q_proj": (*_under(_ATTENTION, "q_proj"), "attention.self.query", "attention.q_lin"),
    "k_proj": (*_under(_ATTENTION, "k_proj"), "attention.self.key", "attention.k_lin"),
    "v_proj": (*_under(_ATTENTION, "v_proj"), "attention.self.value", "attention.v_lin"),
    "qkv_proj": (
        "self_attn.qkv_proj",
        "self_attn.q_proj",  # Kimi Linear: three matrices, read in one pass
        "self_attn.W_pack",
        "attn.c_attn",
        "attn.Wqkv",
        "attn.qkv",
        "norm_attn_norm.attn.Wqkv",
        "attention.wqkv",
        "attention.query_key_value",
        "self_attention.query_key_value",
    ),
    "o_proj": (
        "self_attn.o_proj",
        "self_attn.out_proj",
        "self_attn.dense",
        "attn.c_proj",
        "attn.proj",
        "attn.out_proj",
        "norm_attn_norm.attn.out_proj",
        "attention.wo",
        "attention.dense",
        "self_attention.dense",
        "attention.output.dense",
        "attention.out_lin",
        "mixer.o_proj",
        "self_attn.o_b_proj",
    ),
    "adaln_proj": ("adaLN_modulation.1",),
    "q_a_proj": ("self_attn.q_a_proj",),
    "q_b_proj": ("self_attn.q_b_proj",),
    "kv_a_proj": ("self_attn.kv_a_proj_with_mqa",),
    "kv_b_proj": ("self_attn.kv_b_proj",),
    "kv_proj": ("self_attn.kv_proj",),
    "o_a_proj": ("self_attn.o_a_proj",),
    "compressed_kv_proj": (f"{_COMPRESSOR}.kv_proj",),
    "compressed_gate_proj": (f"{_COMPRESSOR}.gate_proj",),
    "index_q_proj": (f"{_INDEXER}.wq_b", f"{_COMPRESSOR}.indexer.q_b_proj"),
    "index_k_proj": (f"{_INDEXER}.wk",),
    "index_kv_proj": (f"{_COMPRESSOR}.indexer.kv_proj",),
    "index_gate_proj": (f"{_COMPRESSOR}.indexer.gate_proj",),
    "index_weights_proj": (f"{_INDEXER}.weights_proj", f"{_COMPRESSOR}.indexer.scorer.weights_proj"),
    "gate_proj": ("mlp.gate_proj", "feed_forward.gate_proj", "feed_forward.w1"),
    "up_proj": (
        "mlp.up_proj",
        "mlp.fc1",
        "fc1",
        "mlp.c_fc",
        "mlp.fc_in",
        "mlp.dense_h_to_4h",
        "feed_forward.up_proj",
        "feed_forward.w3",
        "ffn.up_proj",
        "mixer.up_proj",
        "intermediate.dense",
        "ffn.lin1",
    ),
    "down_proj": (
        "mlp.down_proj",
        "mlp.fc2",
        "fc2",
        "mlp.c_proj",
        "mlp.fc_out",
        "mlp.dense_4h_to_h",
        "feed_forward.down_proj",
        "feed_forward.w2",
        "ffn.down_proj",
        "mixer.down_proj",
        "output.dense",
        "ffn.lin2",
    ),
    "gate_up_proj": ("mlp.gate_up_proj",),
    "expert_gate_proj": (
        *_under(_EXPERT, "gate_proj"),
        *_under(_FUSED, "gate_up_proj"),
        "block_sparse_moe.experts.0.w1",
        "ffn.experts.mlp.w1",
    ),
    "expert_up_proj": (
        *_under(_EXPERT, "up_proj"),
        *_under(_FUSED, "gate_up_proj"),
        *_under(_FUSED, "up_proj"),
        "block_sparse_moe.experts.0.w3",
        "ffn.experts.mlp.v1",
    ),
    "expert_down_proj": (
        *_under(_EXPERT, "down_proj"),
        *_under(_FUSED, "down_proj"),
        "block_sparse_moe.experts.0.w2",
        "ffn.experts.mlp.w2",
    ),
    "expert_gate_up_proj": _under(_FUSED, "gate_up_proj"),
    "shared_gate_proj": _under(_SHARED, "gate_proj"),
    "shared_up_proj": _under(_SHARED, "up_proj"),
    "shared_gate_up_proj": ("shared_mlp.input_linear",),
    "shared_down_proj": (*_under(_SHARED, "down_proj"), "shared_mlp.output_linear"),
    "per_layer_input_gate": ("per_layer_input_gate",),
    "per_layer_projection": ("per_layer_projection",),
    "latent_in_proj": ("mixer.fc1_latent_proj",),
    "latent_out_proj": ("mixer.fc2_latent_proj",),
    "in_proj": _under((*_MAMBA, "conv"), "in_proj"),
    "x_proj": _under(_MAMBA, "x_proj"),
    "dt_proj": _under(_MAMBA, "dt_proj"),
    "in_proj_qkvz": ("linear_attn.in_proj_qkvz",),
    "in_proj_ba": ("linear_attn.in_proj_ba",),
    "in_proj_qkv": ("linear_attn.in_proj_qkv",),
    "in_proj_z": ("linear_attn.in_proj_z",),
    "in_proj_b": ("linear_attn.in_proj_b",),
    "in_proj_a": ("linear_attn.in_proj_a",),
    "out_proj": _under((*_MAMBA, "linear_attn", "conv"), "out_proj"),
    "output_gate": ("self_attn.output_gate",),
    "b_proj": ("self_attn.b_proj",),
    "f_a_proj": ("self_attn.f_a_proj", "self_attn.forget_gate.f_a_proj"),
    "f_b_proj": ("self_attn.f_b_proj", "self_attn.forget_gate.f_b_proj"),
    "g_a_proj": ("self_attn.g_a_proj",),
    "g_b_proj": ("self_attn.g_b_proj",),
}


def names_of(operator: str) -> tuple[str, ...]:
    """Possible checkpoint names of an operator's matrix, below `layers.N`; `lm_head` is not in a layer."""
    return MODULES.get(operator, (operator,))


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


@frozen
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
