"""Work of a pass that constants of an engine are paid for (kernels, exchanges, bytes), and of a round of drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from llmviewer.core.counts import Count, present, total
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Graph, Operator, Place, Role
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Step
from llmviewer.hardware.chip import Chip
from llmviewer.language import record
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import EXPERT_PREFIX, GemmShape
from llmviewer.timing.engine_memory import version_numbers

#: Kinds of operators -> seconds of their kernels in a pass.
Seconds = Callable[[tuple[Kind, ...]], Count]
#: Groups of kernels whose time an engine's own kernels scale -> kinds of their operators.
FACTORS: dict[str, tuple[Kind, ...]] = {
    "gemm": (Kind.GEMM,),
    "attention": (Kind.ATTENTION,),
    "exchange": (Kind.COLLECTIVE,),
    "prompt": tuple(Kind),
    "prompt_attention": (Kind.ATTENTION,),
}
#: Most tokens of a pass for which engines run a matrix-vector kernel.
MAX_MATVEC_TOKENS = 8.0
#: Tokens of a pass up to which each lengthens kernels that read weights again for every one.
MAX_ROWS = 32.0
#: Columns to which the tiles of integer kernels that multiply more are rounded:
#: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-cuda/mmq.cuh.
TILE_COLUMNS = 8.0
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
        "routing": total(
            float(block.repeats) * next((op.runs for op in block.operators if op.name.startswith(EXPERT_PREFIX)), 0.0)
            for block in graph.blocks
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
    factors: Mapping[str, float], reads: Count | None, seconds: Seconds, least: Seconds, passes: Mapping[str, Count]
) -> Iterator[tuple[str, Count]]:
    """Time by which an engine's own kernels differ from those in profiles, by name.

    reads: times that its attention reads a KV head; None if once: what it reads again is its roofline's time, as a
    kernel's fixed time is paid once.  seconds, least: as in Engine.terms.
    passes: factor -> 1.0 for the passes that it is for, else 0.0; of factors that are for some passes alone.
    """
    own_factors = ({} if reads is None else {"attention": 1.0}) | dict(factors)
    for name, factor in own_factors.items():
        kernels = seconds(FACTORS[name])
        if name in passes:
            yield f"own {name} kernels", (factor - 1.0) * kernels * passes[name]
            continue
        again = 0.0 if reads is None or name != "attention" else (reads - 1.0) * least(FACTORS[name])
        own = factor * (kernels + again)
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


def gemm_weight_bytes(graph: Graph, counts: Callable[[Operator], bool] = lambda operator: True) -> Count:
    """Bytes of weights that GEMMs read in a pass, of those that count."""
    read: Count = 0.0
    for block in graph.blocks:
        for operator in block.operators:
            if operator.kind is Kind.GEMM and counts(operator):
                read = read + operator.read_bytes(Role.WEIGHT) * block.repeats
    return read


def is_of_all_tokens(operator: Operator) -> bool:
    """Whether every token of a pass is multiplied by an operator's weights, which are no routed experts'."""
    return not operator.name.startswith(EXPERT_PREFIX)


def is_narrow_expert(operator: Operator) -> bool:
    """Whether an operator multiplies by narrow weights of experts, which integer kernels do at any size of a pass."""
    shape = operator.shape
    return isinstance(shape, GemmShape) and shape.experts > 1.0 and any(is_narrow(access) for access in operator.reads)


@frozen
class IntegerKernels:
    """Rates and shapes of an engine's integer kernels.

    rate: operations/s.  bandwidth: at which they read weights [bytes/s].  tile: most columns of a tile.
    vector: most tokens of a pass whose experts are read once for each of their tokens, as matrix-vector kernels do.
    """

    rate: Count
    bandwidth: Count
    tile: float
    vector: float

    def products_s(self, graph: Graph, tokens: Count, *, routed: bool = False) -> Count:
        """Time of the products with narrow weights in a pass [s].  routed: those of experts alone.

        Tiles are as wide as the pass, as every expert might take all of its tokens, up to `tile`; the last tile of an
        expert is half full in the mean.  Reading and arithmetic overlap in part: their squares add.
        """
        columns = np.minimum(np.ceil(tokens / TILE_COLUMNS) * TILE_COLUMNS, self.tile)

        def product(operator: Operator, shape: GemmShape) -> Count:
            rows, reading = shape.m / shape.matrices, operator.read_bytes(Role.WEIGHT) / self.bandwidth
            experts = shape.experts > 1.0
            padded = rows + columns / 2.0 if experts else np.ceil(rows / TILE_COLUMNS) * TILE_COLUMNS
            tiled = np.hypot(reading, 2.0 * padded * shape.matrices * shape.n * shape.k / self.rate)
            return np.where(tokens <= self.vector, rows * reading, tiled) if experts else tiled

        return total(
            block.repeats * operator.runs * product(operator, operator.shape)
            for block in graph.blocks
            for operator in block.operators
            if operator.is_kernel and isinstance(operator.shape, GemmShape)
            if any(is_narrow(access) for access in operator.reads) and (not routed or is_narrow_expert(operator))
        )


def narrow_share(graph: Graph) -> Count:
    """Share of the GEMM weights read in a pass that are stored in fewer bits than 16."""
    read: Count = 0.0
    narrow: Count = 0.0
    for block in graph.blocks:
        for operator in block.operators:
            weights = [one for one in operator.reads if one.tensor.role is Role.WEIGHT and operator.kind is Kind.GEMM]
            read = read + block.repeats * total(access.elements for access in weights)
            narrow = narrow + block.repeats * total(access.elements for access in weights if is_narrow(access))
    return narrow / np.maximum(read, 1.0)


def is_narrow(access: Access) -> bool:
    """Whether an access reads weights that are stored in fewer bits than 16."""
    return access.tensor.role is Role.WEIGHT and access.tensor.dtype.bits < 16.0


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


@frozen
class RoundCosts:
    """Host time of a round of speculation in one engine [us].

    round: beside the kernels of all passes: building the draft tree and its mask, choosing the accepted tokens, moving
    their cache entries.  low, high: the smallest and largest that its sources give.
    draft: each draft pass, while its kernels run; the pass takes the longer of the two.
    launched: whether the host launches every kernel of a draft model, which runs as no CUDA graph, unlike a head.
    """

    round: float
    low: float
    high: float
    draft: float = 0.0
    launched: bool = False
    source: str

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.round <= self.high:
            raise UserError("low, round and high must rise from 0, in us")

    def assumption(self, engine: str) -> str:
        """The assumption behind rounds in this engine, for the provenance of a result."""
        if not self.source:
            return (
                f"rounds of speculation: host time of {engine} is not published, taken as 0 to {self.high / 1e3:g} ms"
            )
        published = f"{self.low / 1e3:g} to {self.high / 1e3:g} by its sources"
        return f"rounds of speculation: {self.round / 1e3:g} ms of host time in {engine}, {published}"


#: The costs of a version, as presets state them.
COSTS = partial(record.read, RoundCosts)
#: No host time at all, for kernels without an engine.
NO_HOST = RoundCosts(round=0.0, low=0.0, high=0.0, source="")
#: Costs of an engine whose rounds nobody has published: none are added, and the interval reaches to the smallest above
#: 0 that a preset states.
UNMEASURED = RoundCosts(round=0.0, low=0.0, high=1300.0, source="")


def chosen(versions: Mapping[str, RoundCosts], version: str, engine: str) -> RoundCosts:
    """Costs of a version; of the newest one for "", of the oldest for versions before it.

    versions: as parsed; empty: nothing is published about the engine.
    """
    if not versions:
        return UNMEASURED
    asked = version_numbers(version, engine) if version else None
    known = [one for first, one in versions.items() if asked is None or version_numbers(first, engine) <= asked]
    return (known or list(versions.values())[:1])[-1]
