"""Work of a forward pass for which an engine's constants are paid: kernels, exchanges, bytes of weights, KV heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from llmviewer.core.counts import Count, present, total
from llmviewer.core.ir import Access, Graph, Operator, Place, Role
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Step
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import EXPERT_PREFIX, GemmShape

#: Kinds of operators -> seconds of their kernels in a pass.
Seconds = Callable[[tuple[Kind, ...]], Count]
#: Groups of kernels whose time an engine's own kernels scale -> kinds of their operators.
FACTORS: dict[str, tuple[Kind, ...]] = {
    "gemm": (Kind.GEMM,),
    "attention": (Kind.ATTENTION,),
    "exchange": (Kind.COLLECTIVE,),
}
#: Most tokens of a pass for which engines run a matrix-vector kernel.
MAX_MATVEC_TOKENS = 8.0
#: Terms that a step pays once, however many passes it runs.
TERMS_PER_STEP = ("step", "group", "sequence")
#: Terms paid before or after the layers; all others are paid between or within kernels of layers.
TERMS_OUTSIDE_LAYERS = (*TERMS_PER_STEP, "sampling", "drafting")


def changed_kernels(term: str) -> Callable[[Operator], bool] | None:
    """Which device kernels take the time of an engine term, such as `own gemm kernels`; None for time between them."""
    if term == "unpacking weights":
        return lambda operator: any(unpacks_weights(operator, access) for access in operator.reads)
    own = term.removeprefix("own ").removesuffix(" kernels")
    kinds = (Kind.GEMM,) if own == "matrix-vector" else FACTORS.get(own, ())
    return (lambda operator: operator.kind in kinds and operator.is_kernel) if kinds else None


def time_within_layers(terms: Sequence[tuple[str, Count]]) -> Count:
    """Sum of the engine terms that are paid within layers [s]."""
    return total(seconds for name, seconds in terms if name not in TERMS_OUTSIDE_LAYERS)


def times_paid(graph: Graph, step: Step) -> dict[str, Count]:
    """Number of times that a forward pass pays each of CONSTANTS; of what only some steps run, the mean."""
    exchanges = _runs(graph, lambda operator: operator.kind is Kind.COLLECTIVE)
    return {
        "launch": _runs(graph, lambda operator: operator.runs_on is Place.DEVICE),
        "expert": _further_experts(graph),
        "layer": total(
            float(block.repeats) * total(op.runs for op in block.operators) / max(len(block.operators), 1)
            for block in graph.blocks
            if block.is_layer
        ),
        "step": 1.0,
        "group": 1.0 if present(exchanges) else 0.0,
        "collective": exchanges,
        "sequence": step.sequences,
        "sampling": step.logits,
    }


def _further_experts(graph: Graph) -> Count:
    """Kernels of the distinct experts of all layers, beside those of one expert of each."""
    found: list[Count] = []
    for block in graph.blocks:
        own = [one for one in block.operators if one.name.startswith(EXPERT_PREFIX)]
        kernels = block.repeats * total(one.runs for one in own if one.role is not OperatorRole.EXPERT_COMBINE)
        used = [one.shape.active for one in own if isinstance(one.shape, GemmShape)]
        found += [kernels * np.maximum(used[0] - 1.0, 0.0)] if used else []
    return total(found)


def launching_s(constants: Mapping[str, float], paid: Mapping[str, Count]) -> Count:
    """Time of the host to launch the kernels of a pass one by one [s]; 0.0 if it takes none."""
    terms = (("eager", "launch"), ("expert", "expert"))
    return total(constants[name] * 1e-6 * paid[times] for name, times in terms if name in constants)


def _runs(graph: Graph, counts: Callable[[Operator], bool]) -> Count:
    """Runs of some operators of a graph in all layers."""
    return total(
        float(block.repeats) * total(op.runs for op in block.operators if counts(op)) for block in graph.blocks
    )


def unbounded(kinds: tuple[Kind, ...]) -> Count:
    """The least time of kernels of these kinds where no roofline is known [s]."""
    return 0.0


def own_kernels(
    factors: Mapping[str, float], reads: Count | None, seconds: Seconds, least: Seconds
) -> Iterator[tuple[str, Count]]:
    """Time by which an engine's own kernels differ from those in profiles, by name.

    reads: times that its attention reads a KV head; None if once.  seconds, least: as in Engine.terms.
    """
    own_factors = ({} if reads is None else {"attention": 1.0}) | dict(factors)
    for name, factor in own_factors.items():
        kernels = seconds(FACTORS[name])
        own = factor * kernels if reads is None or name != "attention" else factor * reads * kernels
        yield f"own {name} kernels", (own if factor >= 1.0 else np.maximum(own, least(FACTORS[name]))) - kernels


def reads_of_heads(graph: Graph, step: Step) -> Count:
    """Times that decode attention reads a KV head which it does not share between query heads."""
    return np.where(step.tokens <= step.sequences, heads_per_kv_head(graph), 1.0)


def heads_per_kv_head(graph: Graph) -> Count:
    """Largest number of query heads that share a KV head."""
    most: Count = 1.0
    for _, operator in graph:
        if isinstance(operator.shape, AttentionShape):
            most = np.maximum(most, operator.shape.heads / operator.shape.kv_heads)
    return most


def gemm_weight_bytes(graph: Graph) -> Count:
    """Bytes of weights that GEMMs read in a pass."""
    read: Count = 0.0
    for block in graph.blocks:
        for operator in block.operators:
            if operator.kind is Kind.GEMM:
                read = read + operator.read_bytes(Role.WEIGHT) * block.repeats
    return read


def narrow_weights(graph: Graph) -> Count:
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


def unit_clocks(chip: Chip) -> Count:
    """Units x clock [1/s]; infinite if either is not published."""
    return np.inf if chip.units is None or chip.clock_hz is None else chip.units * chip.clock_hz
