"""What serves a model beside kernels: launch gaps, host work per step, layer and sequence, sampling; each by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmviewer.core import data
from llmviewer.core.counts import Count, present, total
from llmviewer.core.errors import UserError, shown, unknown
from llmviewer.core.ir import Access, Graph, Kind, Operator, Place, Role
from llmviewer.core.workload import Step
from llmviewer.hardware.chip import Chip

FOLDER = "calibrate/engines"
#: Constants of an engine [us]: name -> what it is paid for.
CONSTANTS: dict[str, str] = {
    "launch": "each kernel of a step: the gap before it starts",
    "layer": "each decoder layer of a step",
    "step": "each forward pass: scheduling, preparing inputs, reading the result",
    "group": "each forward pass that several devices share: telling all of them",
    "collective": "each exchange between devices: synchronizing beside what its kernel takes",
    "sequence": "each sequence of a pass: its metadata, its detokenization",
    "sampling": "each row of logits that is sampled",
    "conversion": "each product of 8-bit inputs: below zero, the launch that its timing holds and a norm saves here",
    "eager": "each kernel of a pass without a CUDA graph: the host's work to launch it, beside which kernels run",
}
#: Those that a step pays once, however many passes it runs.
ONCE_A_STEP = ("step", "group", "sequence")
#: Those before and after the layers; all other terms lie between or in their kernels.
AT_THE_ENDS = (*ONCE_A_STEP, "sampling")
#: Sorts of kernels whose time an engine's own kernels change -> the kinds of operators among them.
FACTORS: dict[str, tuple[Kind, ...]] = {
    "gemm": (Kind.GEMM,),
    "attention": (Kind.ATTENTION,),
    "exchange": (Kind.COLLECTIVE,),
}
WORDS = ("title", "kernels", "fusion", "attention", "batching", "source")
NUMBERS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "graph_tokens",
    "reserved",
    "interference",
    "unit_bytes",
    "share",
    "unpacked_bytes",
)
#: Tokens up to which engines run a kernel for a matrix and a few vectors.
FEW_VECTORS = 8.0
#: What a fit adds to a preset: how wrong it was on rows that it did not see.
FITTED = ("error", "residuals", "rows")

#: Classes of products whose inputs are converted.
NARROW = ("fp8", "int8")

Seconds = Callable[[tuple[Kind, ...]], Count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A preset.

    kernels: whose kernels it runs, as profiles call them.  fusion, attention: as the options of these names.
    max_num_batched_tokens: most prompt tokens of one pass.  max_num_seqs: most sequences at once.
    graph_tokens: most tokens of a pass that is replayed as a CUDA graph.
    reserved: share of its answer for which a sequence gets room in the cache when it starts.
    constants: of CONSTANTS [us].
    borrowed: kernels of another engine than `kernels` -> that engine (`gemm/fp8-block: trtllm`).
    factors: of FACTORS, time of its own kernels over that of the kernels profiles hold.
    unit_bytes, share: of an engine with a kernel of its own for a matrix and a few vectors the most bytes of weights
    that a unit of the chip takes in a clock, and the share of the bandwidth it draws at most; 0: no such kernel.
    unpacked_bytes: what it moves besides for every narrow weight that it converts to 16 bit before larger products.
    interference: share of other prompts' prefill that continuous batching puts between a sequence's tokens; the rest
    comes before its first.
    residuals: metric -> basis (`fitted`, `transferred`) -> quantiles of measured / predicted (profile.QUANTILES).
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

    def terms(self, graph: Graph, step: Step, chip: Chip, seconds: Seconds) -> tuple[tuple[str, Count], ...]:
        """Seconds that a forward pass takes beside its kernels, by name; what is zero is left out.

        seconds: what kernels of some kinds take in the pass.
        """
        if self is KERNELS:
            return ()
        named: dict[str, Count] = {}
        if self.constants:
            paid = counts(graph, step)
            named = {name: value * 1e-6 * paid[name] for name, value in self.constants.items() if name != "eager"}
        if "eager" in self.constants:
            host = self.constants["eager"] * 1e-6 * paid["launch"] * np.where(step.tokens > self.graph_tokens, 1.0, 0.0)
            named["host"] = np.maximum(host - seconds(tuple(Kind)), 0.0)
        for name, factor in self.factors.items():
            named[f"own {name} kernels"] = (factor - 1.0) * seconds(FACTORS[name])
        if self.unit_bytes:
            few = np.where(step.tokens <= FEW_VECTORS, 1.0, 0.0)
            own = _weights(graph) / np.minimum(
                self.unit_bytes * _unit_clocks(chip), self.share * chip.bandwidth_bytes_per_s
            )
            named["own gemm kernels"] = named.get("own gemm kernels", 0.0) * (1.0 - few)
            named["own matrix-vector kernels"] = (own - seconds((Kind.GEMM,))) * few
            unpacked = self.unpacked_bytes * _narrow_weights(graph) / chip.bandwidth_bytes_per_s
            named["unpacking weights"] = unpacked * (1.0 - few)
        return tuple((name, value) for name, value in named.items() if present(value))

    def within_a_step(self) -> Engine:
        """The engine for a pass that is part of another's step, as of a draft: the host has prepared it already."""
        kept = {name: value for name, value in self.constants.items() if name not in ONCE_A_STEP}
        return self if self is KERNELS else replace(self, constants=kept)

    def spread(self, metrics: Sequence[str], basis: str) -> tuple[float, ...] | None:
        """Quantiles of measured / predicted times of the first of these metrics that the preset was fitted on.

        basis: `fitted` on kernels of this very chip, or `transferred`.
        """
        for metric in metrics:
            if basis in self.residuals.get(metric, {}):
                return tuple(self.residuals[metric][basis])
        return None


def within(terms: Sequence[tuple[str, Count]]) -> Count:
    """Of an engine's terms those within layers, all together [s]."""
    return total(seconds for name, seconds in terms if name not in AT_THE_ENDS)


def counts(graph: Graph, step: Step) -> dict[str, Count]:
    """How often a forward pass pays each of CONSTANTS."""
    kernels = sum(block.repeats * sum(op.runs_on is Place.DEVICE for op in block.operators) for block in graph.blocks)
    exchanges = sum(
        block.repeats * sum(operator.kind is Kind.COLLECTIVE for operator in block.operators) for block in graph.blocks
    )
    return {
        "conversion": float(sum(block.repeats * sum(map(converts, block.operators)) for block in graph.blocks)),
        "launch": float(kernels),
        "layer": float(sum(block.repeats for block in graph.blocks if block.scope != "model")),
        "step": 1.0,
        "group": 1.0 if exchanges else 0.0,
        "collective": float(exchanges),
        "sequence": step.sequences,
        "sampling": step.logits,
    }


def converts(operator: Operator) -> bool:
    """A product whose input is converted to 8 bit, one scale a row; in blocks it is another kernel."""
    inputs = (access.tensor.dtype for access in operator.reads if access.tensor.role is Role.WEIGHT)
    return operator.kind is Kind.GEMM and operator.compute in NARROW and any(dtype.bits == 8.0 for dtype in inputs)


def _weights(graph: Graph) -> Count:
    """Bytes of weights that products read in a pass."""
    read: Count = 0.0
    for block in graph.blocks:
        for operator in block.operators:
            if operator.kind is Kind.GEMM:
                read = read + operator.read_bytes(Role.WEIGHT) * block.repeats
    return read


def _narrow_weights(graph: Graph) -> Count:
    """Weights of products that are stored in fewer than 8 bits, on the device or in the buffer of a copy."""
    return total(
        block.repeats * np.maximum(access.tensor.elements, access.elements)
        for block in graph.blocks
        for operator in block.operators
        if operator.is_kernel
        for access in operator.reads
        if unpacks(operator, access)
    )


def unpacks(operator: Operator, access: Access) -> bool:
    """Whether a product reads weights there that are stored in fewer than 8 bits."""
    return operator.kind is Kind.GEMM and access.tensor.role is Role.WEIGHT and access.tensor.dtype.bits < 8.0


def _unit_clocks(chip: Chip) -> Count:
    """Units x clock [1/s]; no bound where the maker publishes neither."""
    return np.inf if chip.units is None or chip.clock_hz is None else chip.units * chip.clock_hz


#: No engine: kernels alone.  vLLM's products with block scales were timed with the host that launches them.
KERNELS = Engine(name="kernels", title="kernels alone, one after another", borrowed={"gemm/fp8-block": "trtllm"})


def names() -> tuple[str, ...]:
    """All presets."""
    return ("kernels", *data.stems(FOLDER))


def load(name: str) -> Engine:
    """A preset by name.  Raises UserError."""
    if name == KERNELS.name:
        return KERNELS
    if name not in names():
        raise unknown("engine", name, names())
    return parse(name, data.read_yaml(data.folder(FOLDER) / f"{name}.yaml"))


def parse(name: str, content: Mapping[str, Any]) -> Engine:
    """A preset from what its file holds.  Raises UserError: a key nobody reads, a word for a number."""
    known = (*WORDS, *NUMBERS, "constants", "factors", "borrowed", *FITTED)
    data.check_keys(content, known, ("title", "kernels", "constants", "source"), name)
    data.check_keys(content["constants"] or {}, CONSTANTS, (), f"{name}: constants")
    data.check_keys(content.get("factors") or {}, FACTORS, (), f"{name}: factors")
    words = {key: str(content[key]) for key in WORDS if key in content}
    try:
        numbers = {key: float(content[key]) for key in NUMBERS if key in content}
        return Engine(
            name=name,
            **words,  # type: ignore[arg-type]
            **numbers,  # type: ignore[arg-type]
            constants=_numbers(content["constants"]),
            factors=_numbers(content.get("factors")),
            borrowed={str(key): str(other) for key, other in content.get("borrowed", {}).items()},
            error=content.get("error", {}),
            residuals={
                metric: {basis: tuple(map(float, bounds)) for basis, bounds in of.items()}
                for metric, of in content.get("residuals", {}).items()
            },
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"engine {name}: {shown(error, 120)}; expected numbers") from error


def _numbers(content: Mapping[str, Any] | None) -> dict[str, float]:
    return {str(key): float(value) for key, value in (content or {}).items()}
