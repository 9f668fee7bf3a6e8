"""Memory that an engine takes beside weights and KV cache, as constants of its versions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.hardware.chip import HOST_PATH, Chip
from llmviewer.language import record
from llmviewer.language.record import Form, stated

#: Separator of an engine's name and version on the command line.
PINNED = "=="
#: Links over which a tensor group has neither NVLink's multicast buffers nor those of the engine's own all-reduce.
PCIE = ("pcie", HOST_PATH)
#: Preset -> (first version of the preset, preset of the versions before it).
#: llama.cpp: b3260 of 29 June 2024 (https://github.com/NixOS/nixpkgs/pull/323331) has the integer kernels that
#: https://github.com/ggml-org/llama.cpp/pull/8075 made the default five days before.
EARLIER = {"vllm": ("0.8", "vllm-v0"), "trtllm": ("1.0", "trtllm-cpp"), "llama.cpp": ("3260", "llama.cpp-2024")}
#: Other spellings of a preset's name -> preset.
SPELLINGS = {
    **dict.fromkeys(("tensorrt-llm", "tensorrt_llm", "trt-llm"), "trtllm"),
    **dict.fromkeys(("mlx", "mlx_lm"), "mlx-lm"),
    **dict.fromkeys(("llama-cpp", "llama_cpp", "llamacpp", "llama-server"), "llama.cpp"),
}
#: A version: its numbers, after `v` or the `b` of builds of llama.cpp; what marks candidates, fixes and builds.
VERSION = re.compile(
    r"[vb]?(\d{1,6}(?:\.\d{1,6})*)(?:[.-]?(?:a|b|rc|alpha|beta|post|dev)[.-]?\d*)*(?:\+[\w.]+)?",
    re.ASCII | re.IGNORECASE,
)


def version_numbers(version: str, engine: str = "") -> tuple[int, ...]:
    """The numbers of a version: (1, 2, 0) of `1.2.0rc6.post2`.  Raises UserError if there are none."""
    found = VERSION.fullmatch(version)
    if found is None:
        where = f"engine {engine}: " if engine else ""
        raise UserError(f"{where}version {quoted(version)} is not a version number such as 0.19 or 1.2.0rc6")
    return tuple(map(int, found[1].split(".")))


def is_of(version: str, known: str) -> bool:
    """Whether a version is one of those that another names: 0.19.1 of 0.19, and 0.5 where 0.5.9 is known."""
    return all(one == other for one, other in zip(version_numbers(version), version_numbers(known), strict=False))


def nearest_version(version: str, known: Sequence[str]) -> str:
    """The known version whose numbers differ least from those of a version, the first of them counting most."""
    asked = version_numbers(version)

    def distance(one: str) -> tuple[int, ...]:
        return tuple(abs(mine - own) for mine, own in zip_longest(asked, version_numbers(one), fillvalue=0))

    return min(known, key=distance)


def a_version(value: Any) -> str:
    """A version as presets state it."""
    version_numbers(record.text(value))
    return str(value)


def by_version(form: Form) -> Form:
    """Values by the first version that has them, the oldest first."""
    each = record.mapped(form)
    return lambda value: dict(sorted(each(value).items(), key=lambda item: version_numbers(item[0])))


@frozen
class EngineMemory:
    """Constants of one version of an engine; bytes of activations are those of its profiling run.

    first: the version from which they hold.
    logit_bytes: bytes of the sampler per sequence and entry of the vocabulary, on every device of a tensor group.
    token_hidden: 16-bit values per token and element of the hidden state that are alive beside the sampler.
    sampler_gib: constant part of the sampler.
    layer_hidden: 16-bit values per token and element of the hidden state beside the intermediate ones of a layer.
    exchange_hidden: the same, in addition, where a mixture of experts is split over devices.
    vision_gib: what the run of a vision tower adds.
    alone_gib: memory outside torch on a single device.  group_gib: on each of two devices of a tensor group;
    pcie_group_gib: the same where the group's devices are connected by PCIe.  member_gib: in addition for each further
    device of the group.
    graph_gib, graph_layer_gib, graph_expert_gib: CUDA graphs: constant, per layer, and extra with experts.
    graphs_in_budget: 1 if the budget contains the graphs.
    graph_estimate: the engine's estimate of them, which its budget contains, over what they take.
    tokens_of_requests: 1 if the KV tokens it logs are requests of the longest context x that context, 0 if every group
    of layers counts as storing all tokens.
    activations_spread, framework_spread, graphs_spread: largest |logged / predicted - 1| of these terms; of
    activations that no log of the version states, the change between two versions that were logged.
    expert_multiple: elements to which the rows and columns (intermediate, hidden) of MXFP4 experts are padded.
    tokens, sequences: max_num_batched_tokens and max_num_seqs of the profiling run.
    assumed: names of constants without a measured row of these versions.
    """

    first: str = field(metadata=stated(a_version))
    tokens: float = 8192.0
    sequences: float = 1024.0
    logit_bytes: float = 0.0
    token_hidden: float = 0.0
    sampler_gib: float = 0.0
    layer_hidden: float = 0.0
    exchange_hidden: float = 0.0
    vision_gib: float = 0.0
    alone_gib: float = 0.0
    group_gib: float = 0.0
    pcie_group_gib: float = 0.0
    member_gib: float = 0.0
    graph_gib: float = 0.0
    graph_layer_gib: float = 0.0
    graph_expert_gib: float = 0.0
    graph_estimate: float = 1.0
    graphs_in_budget: float = 0.0
    tokens_of_requests: float = 0.0
    activations_spread: float = 0.0
    framework_spread: float = 0.0
    graphs_spread: float = 0.0
    expert_multiple: tuple[float, float] = (1.0, 1.0)
    assumed: tuple[str, ...] = ()
    source: str = ""

    def outside_torch_gib(self, tensor: int, link: str) -> float:
        """Memory outside torch on each device of a tensor group of this size, over this link [GiB]."""
        if tensor == 1:
            return self.alone_gib
        pair = self.pcie_group_gib if link in PCIE else self.group_gib
        return pair + self.member_gib * (tensor - 2)

    def changed(self, numbers: Mapping[str, float]) -> EngineMemory:
        """These constants with other numbers, by name."""
        return replace(self, **numbers)  # type: ignore[arg-type]

    def without_graphs(self) -> EngineMemory:
        """The constants of an engine that captures no CUDA graphs."""
        return replace(self, graph_gib=0.0, graph_layer_gib=0.0, graph_expert_gib=0.0)

    def basis(self, *names: str) -> str:
        """Whether the constants of these names are measured or assumed."""
        return "assumed" if any(name in self.assumed for name in names) else "measured"


def _versions(rows: Any) -> tuple[EngineMemory, ...]:
    """The versions of a preset: each changes what the one before it states, and says itself what it assumes."""
    found: list[EngineMemory] = []
    for row in record.listed(partial(record.values, EngineMemory), least=1)(rows):
        found.append(replace(found[-1], **{"assumed": (), **row}) if found else EngineMemory(**row))
    return tuple(found)


@frozen
class MemoryVersions:
    """The constants of all known versions of an engine, oldest first.

    newest: the newest version whose memory is known.
    small: defaults (tokens, sequences) on chips with less than `large_gib` of memory or of a generation of
    `small_generations`; a hypothetical chip keeps those of the real one.
    """

    versions: tuple[EngineMemory, ...] = field(metadata=stated(_versions))
    newest: str = field(metadata=stated(a_version))
    source: str
    large_gib: float = 0.0
    small: Mapping[str, float] = field(
        default_factory=dict, metadata=stated(record.mapped(record.NUMBER, ("tokens", "sequences")))
    )
    small_generations: tuple[str, ...] = ()

    def on(self, chip: Chip, version: str, engine: str) -> EngineMemory:
        """The constants of a version with the defaults of a chip.  Raises UserError for what is no version."""
        found = self.of(version, engine)
        return found.changed(self.small) if self.is_small(chip) else found

    def is_small(self, chip: Chip) -> bool:
        """Whether the engine's defaults on a chip are those of `small`."""
        little = bool(np.max(chip.real.memory_bytes) < self.large_gib * 2.0**30)
        return little or chip.generation in self.small_generations

    def of(self, version: str, engine: str) -> EngineMemory:
        """The constants of a version; of the newest without one, of the nearest for one beyond those that are known."""
        if not version:
            return self.versions[-1]
        asked = version_numbers(version, engine)
        known = [one for one in self.versions if version_numbers(one.first, engine) <= asked]
        return known[-1] if known else self.versions[0]

    def edge(self, version: str) -> str:
        """The known version next to one that is older or newer than all of them; empty for others."""
        if not version:
            return ""
        first = self.versions[0].first
        is_older = version_numbers(version) < version_numbers(first)
        return first if is_older else self.newest if self.is_newer(version, "") else ""

    def is_newer(self, version: str, engine: str) -> bool:
        """Whether a version is newer than the newest known one; 0.21.3 belongs to 0.21."""
        newest = version_numbers(self.newest, engine)
        return version_numbers(version, engine)[: len(newest)] > newest


@frozen
class FreeMemory:
    """How an engine without a profiling run fills a device: it leaves a margin of the free memory (llama.cpp).

    margin_gib: the margin.  framework_gib: context of CUDA, which is part of the margin.  buffers: where sizes of its
    compute buffers are logged, which `analysis/compute_buffers.py` counts as ggml does; empty: those are live tensors.
    """

    margin_gib: float
    framework_gib: float = 0.0
    source: str
    framework_source: str = ""
    buffers: Sequence[str] = field(default=(), metadata=stated(record.listed()))

    def context_bytes(self, chip: Chip) -> float:
        """The context of CUDA on a chip that has one, else 0.0 [byte]."""
        return self.framework_gib * 2.0**30 if chip.maker == "NVIDIA" else 0.0


#: The `memory` of a preset; `error` holds the errors of its fit.
MEMORY = partial(
    record.read, MemoryVersions, beside={"error": record.mapped(record.mapped(record.mapped(record.ANY_NUMBER)))}
)


def split_version(text: str) -> tuple[str, str]:
    """Preset and version of `vllm==0.19`; the version is empty if none is given.

    Versions before the first of a preset belong to the preset of its predecessor.
    """
    typed, _, version = text.partition(PINNED)
    name = SPELLINGS.get(typed.lower(), typed)
    if PINNED in text and not version:
        raise UserError(f"engine {quoted(text)}: a version must follow '==', as in vllm==0.19")
    first, before = EARLIER.get(name, ("0", name))
    return (before if version and version_numbers(version, name) < version_numbers(first, name) else name), version
