"""Serving engines: the time they add to kernels (launch gaps, host work per step and sequence, sampling), by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from llmviewer.core import data
from llmviewer.core.counts import Count, present, total
from llmviewer.core.errors import UserError, printable, unknown
from llmviewer.core.ir import Access, Graph, Operator, Place, Role
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Step
from llmviewer.hardware.chip import Chip
from llmviewer.timing import engine_memory
from llmviewer.timing.engine_memory import EngineMemory, MemoryVersions

FOLDER = "calibrate/engines"
#: Constants of an engine [us]: name -> what it is paid for.
CONSTANTS: dict[str, str] = {
    "launch": "each kernel of a step: gap before it starts",
    "layer": "each decoder layer of a step",
    "step": "each forward pass: scheduling, preparing inputs, reading the result",
    "group": "each forward pass on several devices: broadcasting the step to all of them",
    "collective": "each collective: synchronization in addition to its kernel",
    "sequence": "each sequence of a pass: metadata and detokenization",
    "sampling": "each row of logits that is sampled",
    "conversion": "each GEMM with 8-bit inputs; negative: its measured time includes a launch that a fused norm saves",
    "eager": "each kernel of a pass without a CUDA graph: host time to launch it, which overlaps with kernels",
}
#: Terms that a step pays once, however many passes it runs.
TERMS_PER_STEP = ("step", "group", "sequence")
#: Terms paid before or after the layers; all others are paid between or within kernels of layers.
TERMS_OUTSIDE_LAYERS = (*TERMS_PER_STEP, "sampling")
#: Groups of kernels whose time an engine's own kernels scale -> kinds of their operators.
FACTORS: dict[str, tuple[Kind, ...]] = {
    "gemm": (Kind.GEMM,),
    "attention": (Kind.ATTENTION,),
    "exchange": (Kind.COLLECTIVE,),
}
TEXT_KEYS = ("title", "kernels", "fusion", "attention", "batching", "source")
NUMBER_KEYS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "graph_tokens",
    "reserved",
    "interference",
    "unit_bytes",
    "share",
    "unpacked_bytes",
)
#: Most tokens of a pass for which engines run a matrix-vector kernel.
MAX_MATVEC_TOKENS = 8.0
#: Keys that a fit adds to a preset: its errors and quantiles on held-out rows.
FITTED_KEYS = ("error", "residuals", "rows")

#: Compute classes in which the inputs of a GEMM are converted.
CONVERTED_CLASSES = ("fp8", "int8")

Seconds = Callable[[tuple[Kind, ...]], Count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine preset: its kernels, limits, and the time that it adds to kernels.

    kernels: engine of its kernels, as named in profiles.  fusion, attention: values of the options of these names.
    max_num_batched_tokens: most prompt tokens of one pass.  max_num_seqs: most concurrent sequences.
    graph_tokens: most tokens of a pass that is replayed as a CUDA graph.
    reserved: fraction of the output for which a sequence reserves KV cache when it starts.
    constants: of CONSTANTS [us].
    borrowed: family/variant -> engine whose kernels it runs instead of those of `kernels` (`gemm/fp8-block: trtllm`).
    factors: of FACTORS; time of its own kernels over that of the kernels in profiles.
    unit_bytes, share: limits of its own matrix-vector kernel: weight bytes per unit and clock, and fraction of the
    bandwidth; unit_bytes 0: it has no such kernel.
    unpacked_bytes: extra traffic per weight of fewer than 8 bits that is converted to 16 bit before larger products.
    interference: fraction of other prompts' prefill that continuous batching puts between a sequence's tokens; the rest
    delays its first token.
    residuals: metric -> basis (`fitted`, `transferred`) -> quantiles of measured / predicted (profile.QUANTILES).
    version: as the user asked for it; empty: not stated.  memory_versions: memory of its known versions, None: unknown.
    memory: memory of its version on the chip it runs on.  max_model_len: longest context; None: the model's.
    """

    name: str
    title: str = ""
    kernels: str = "vllm"
    fusion: str = "none"
    attention: str = "flash"
    batching: str = ""
    max_num_batched_tokens: float = float("inf")
    max_num_seqs: float = float("inf")
    graph_tokens: float = float("inf")
    reserved: float = 0.5
    constants: Mapping[str, float] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    borrowed: Mapping[str, str] = field(default_factory=dict)
    interference: float = 1.0
    unit_bytes: float = 0.0
    share: float = 1.0
    unpacked_bytes: float = 0.0
    source: str = ""
    error: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    residuals: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    version: str = ""
    memory_versions: MemoryVersions | None = None
    memory: EngineMemory | None = None
    max_model_len: float | None = None

    def on(self, chip: Chip) -> Engine:
        """The engine with the memory that its version takes on a chip.  Raises UserError for an unknown version."""
        if self.memory_versions is None:
            if self.version:
                raise UserError(f"engine {self.name}: its versions are not told apart; leave out =={self.version}")
            return self
        return replace(self, memory=self.memory_versions.on(chip, self.version, self.name))

    def terms(self, graph: Graph, step: Step, chip: Chip, seconds: Seconds) -> tuple[tuple[str, Count], ...]:
        """Seconds that a forward pass takes in addition to its kernels, by name; terms that are zero are omitted.

        seconds: kinds -> time that kernels of these kinds take in the pass.
        """
        if self is KERNELS_ONLY:
            return ()
        named: dict[str, Count] = {}
        if self.constants:
            paid = times_paid(graph, step)
            named = {name: value * 1e-6 * paid[name] for name, value in self.constants.items() if name != "eager"}
        if "eager" in self.constants:
            host = self.constants["eager"] * 1e-6 * paid["launch"] * np.where(step.tokens > self.graph_tokens, 1.0, 0.0)
            named["host"] = np.maximum(host - seconds(tuple(Kind)), 0.0)
        for name, factor in self.factors.items():
            named[f"own {name} kernels"] = (factor - 1.0) * seconds(FACTORS[name])
        if self.unit_bytes:
            few = np.where(step.tokens <= MAX_MATVEC_TOKENS, 1.0, 0.0)
            own = _gemm_weight_bytes(graph) / np.minimum(
                self.unit_bytes * _unit_clocks(chip), self.share * chip.bandwidth_bytes_per_s
            )
            named["own gemm kernels"] = named.get("own gemm kernels", 0.0) * (1.0 - few)
            named["own matrix-vector kernels"] = (own - seconds((Kind.GEMM,))) * few
            unpacked = self.unpacked_bytes * _narrow_weights(graph) / chip.bandwidth_bytes_per_s
            named["unpacking weights"] = unpacked * (1.0 - few)
        return tuple((name, value) for name, value in named.items() if present(value))

    def without_step_terms(self) -> Engine:
        """The engine for a draft's pass within the target's step: terms paid once per step are removed."""
        kept = {name: value for name, value in self.constants.items() if name not in TERMS_PER_STEP}
        return self if self is KERNELS_ONLY else replace(self, constants=kept)

    def residuals_of(self, metrics: Sequence[str], basis: str) -> tuple[float, ...] | None:
        """Quantiles of measured / predicted time of the first of these metrics that the preset was fitted on.

        basis: `fitted` if kernels were measured on this chip, else `transferred`.
        """
        for metric in metrics:
            if basis in self.residuals.get(metric, {}):
                return tuple(self.residuals[metric][basis])
        return None


def time_within_layers(terms: Sequence[tuple[str, Count]]) -> Count:
    """Sum of the engine terms that are paid within layers [s]."""
    return total(seconds for name, seconds in terms if name not in TERMS_OUTSIDE_LAYERS)


def times_paid(graph: Graph, step: Step) -> dict[str, Count]:
    """Number of times that a forward pass pays each of CONSTANTS."""
    kernels = sum(block.repeats * sum(op.runs_on is Place.DEVICE for op in block.operators) for block in graph.blocks)
    exchanges = sum(
        block.repeats * sum(operator.kind is Kind.COLLECTIVE for operator in block.operators) for block in graph.blocks
    )
    return {
        "conversion": float(sum(block.repeats * sum(map(converts_input, block.operators)) for block in graph.blocks)),
        "launch": float(kernels),
        "layer": float(sum(block.repeats for block in graph.blocks if block.is_layer)),
        "step": 1.0,
        "group": 1.0 if exchanges else 0.0,
        "collective": float(exchanges),
        "sequence": step.sequences,
        "sampling": step.logits,
    }


def converts_input(operator: Operator) -> bool:
    """Whether an operator is a GEMM whose input is converted to 8 bit with one scale per row, not per block."""
    inputs = (access.tensor.dtype for access in operator.reads if access.tensor.role is Role.WEIGHT)
    return (
        operator.kind is Kind.GEMM
        and operator.compute in CONVERTED_CLASSES
        and any(dtype.bits == 8.0 for dtype in inputs)
    )


def _gemm_weight_bytes(graph: Graph) -> Count:
    """Bytes of weights that GEMMs read in a pass."""
    read: Count = 0.0
    for block in graph.blocks:
        for operator in block.operators:
            if operator.kind is Kind.GEMM:
                read = read + operator.read_bytes(Role.WEIGHT) * block.repeats
    return read


def _narrow_weights(graph: Graph) -> Count:
    """Number of GEMM weights stored in fewer than 8 bits, on the device or in the buffer of a copy."""
    return total(
        block.repeats * np.maximum(access.tensor.elements, access.elements)
        for block in graph.blocks
        for operator in block.operators
        if operator.is_kernel
        for access in operator.reads
        if unpacks_weights(operator, access)
    )


def unpacks_weights(operator: Operator, access: Access) -> bool:
    """Whether the access reads weights of a GEMM that are stored in fewer than 8 bits."""
    return operator.kind is Kind.GEMM and access.tensor.role is Role.WEIGHT and access.tensor.dtype.bits < 8.0


def _unit_clocks(chip: Chip) -> Count:
    """Units x clock [1/s]; infinite if either is not published."""
    return np.inf if chip.units is None or chip.clock_hz is None else chip.units * chip.clock_hz


#: No engine, only kernels.  TensorRT-LLM's block-scaled products, as vLLM's were timed with their host launch.
KERNELS_ONLY = Engine(name="kernels", title="kernels only, one after another", borrowed={"gemm/fp8-block": "trtllm"})


def names() -> tuple[str, ...]:
    """Names of all engine presets."""
    return ("kernels", *data.stems(FOLDER))


def load(text: str) -> Engine:
    """An engine preset by name, or by name and version (`vllm==0.19`).  Raises UserError for an unknown name."""
    name, version = engine_memory.split_version(text)
    if name == KERNELS_ONLY.name and not version:
        return KERNELS_ONLY
    if name not in names():
        raise unknown("engine", name, names())
    preset = parse(name, data.read_yaml(data.folder(FOLDER) / f"{name}.yaml"))
    return replace(preset, version=version) if version else preset


def parse(name: str, content: Mapping[str, Any]) -> Engine:
    """An engine preset from the content of its file.  Raises UserError for an unknown key or a value of wrong type."""
    known = (*TEXT_KEYS, *NUMBER_KEYS, "constants", "factors", "borrowed", "memory", *FITTED_KEYS)
    data.check_keys(content, known, ("title", "kernels", "constants", "source"), name)
    data.check_keys(content["constants"] or {}, CONSTANTS, (), f"{name}: constants")
    data.check_keys(content.get("factors") or {}, FACTORS, (), f"{name}: factors")
    texts = {key: str(content[key]) for key in TEXT_KEYS if key in content}
    try:
        numbers = {key: float(content[key]) for key in NUMBER_KEYS if key in content}
        return Engine(
            name=name,
            **texts,  # type: ignore[arg-type]
            **numbers,  # type: ignore[arg-type]
            constants=MappingProxyType(_numbers(content["constants"])),
            factors=MappingProxyType(_numbers(content.get("factors"))),
            borrowed={str(key): str(other) for key, other in content.get("borrowed", {}).items()},
            error=content.get("error", {}),
            memory_versions=engine_memory.parse(name, content.get("memory")),
            residuals={
                metric: {basis: tuple(map(float, bounds)) for basis, bounds in by_basis.items()}
                for metric, by_basis in content.get("residuals", {}).items()
            },
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"engine {name}: {printable(error, 120)}; expected numbers") from error


def _numbers(content: Mapping[str, Any] | None) -> dict[str, float]:
    return {str(key): float(value) for key, value in (content or {}).items()}
