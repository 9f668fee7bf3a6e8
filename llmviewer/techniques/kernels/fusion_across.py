"""Fusion across the borders of a layer: the norm of the next layer, and all-reduces over devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from llmviewer.analysis.system import RuleOutcome
from llmviewer.core.counts import Count, total
from llmviewer.core.ir import Access, Block, Operator, Role, summed_work
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.hardware.chip import Chip
from llmviewer.ops.collective import CollectiveShape

NEXT_NORM = "next-norm"
#: Input of a layer: the residual stream.
STREAM = "hidden"
#: Kinds of kernels in which the last residual sum of a layer may run.
ENDS = (Kind.ELEMENTWISE, Kind.COLLECTIVE)
#: Generation -> devices -> largest message that kernels fuse with the sum and norm after it [MiB]; larger ones run as
#: kernels of their own.  Source: FI_ALLREDUCE_FUSION_MAX_SIZE_MB in
#: https://github.com/vllm-project/vllm/blob/main/vllm/compilation/passes/fusion/allreduce_rms_fusion.py
LARGEST_MIB: dict[str, dict[float, float]] = {
    "hopper": {2.0: 64.0, 4.0: 2.0, 8.0: 0.5},
    "blackwell": {2.0: 64.0, 4.0: 32.0, 8.0: 1.0},
}


def fits_exchange(shape: CollectiveShape, chip: Chip) -> tuple[npt.NDArray[np.bool_], bool, str]:
    """Mask of the points at which an all-reduce is fused, whether that is assumed, and the reason where it is not."""
    largest = LARGEST_MIB.get(chip.generation, {}).get(shape.devices)
    if largest is None or shape.devices > shape.near:
        return np.array(False), False, f"no fused kernel for {shape.devices:g} devices of {chip.name}"
    fits = np.asarray(shape.size_bytes <= largest * 2.0**20)
    return (
        fits,
        False,
        "" if fits.all() else f"larger messages than {largest:g} MiB are reduced by a kernel of their own",
    )


def with_next_norm(block: Block) -> Block:
    """The layer with its first norm run by the kernel of its last residual sum.

    The sum of a layer runs in one kernel with the norm of the next one, which does not read the sum again.  The sum is
    still written, as the residual stream.  All layers of a block are counted alike: the first norm of the model, which
    follows no sum, counts as the final norm, which follows the last one.
    """
    ends = _ends(block)
    if ends is None:
        return block
    norm, sums = ends
    outputs = {access.tensor.name: STREAM for access in norm.writes}
    kept = [_with_norm(op, norm) if op in sums else op.reading(outputs) for op in block.operators[1:]]
    return replace(block, operators=tuple(kept))


def next_norm_outcomes(block: Block) -> list[RuleOutcome]:
    """Outcome of the rule on a block after the rules within it."""
    ends = _ends(block)
    if ends is None:
        return []
    norm, sums = ends
    where: Count = total(op.where for op in sums)
    names = (sums[-1].name, norm.name)
    return [RuleOutcome(rule=NEXT_NORM, block=block.name, operators=names, where=where, kernel="+".join(names))]


def _ends(block: Block) -> tuple[Operator, tuple[Operator, ...]] | None:
    """The first norm of a layer, and the kernels of its last sum at different points; None if it has no such ends."""
    first, last = block.operators[0], block.operators[-1]
    begins = first.kind is Kind.NORM and STREAM in first.inputs and isinstance(first.where, float)
    if not block.is_layer or not begins or not _is_sum(last):
        return None
    return first, tuple(op for op in block.operators[1:] if _is_sum(op) and _writes(op, last.writes[-1].tensor.name))


def _is_sum(operator: Operator) -> bool:
    return operator.role is OperatorRole.RESIDUAL and operator.kind in ENDS


def _writes(operator: Operator, name: str) -> bool:
    return any(access.tensor.name == name for access in operator.writes)


def _with_norm(sums: Operator, norm: Operator) -> Operator:
    """One kernel for a sum and the norm of the next layer, at the points at which the sum runs."""
    weights = (access for access in norm.reads if access.tensor.role is Role.WEIGHT)
    added = tuple(_where(access, sums.where) for access in (*weights, *norm.writes))
    reads, writes = (tuple(a for a in added if (a.tensor.role is Role.WEIGHT) is stored) for stored in (True, False))
    here = norm.map_work(lambda count: count * sums.where)
    return replace(
        sums,
        name=f"{sums.name}+{norm.name}",
        kind=Kind.NORM if sums.kind is Kind.ELEMENTWISE else sums.kind,
        role=OperatorRole.OTHER,
        reads=(*sums.reads, *reads),
        writes=(*sums.writes, *writes),
        **summed_work((sums, here)),
    )


def _where(access: Access, where: Count) -> Access:
    return access if isinstance(where, float) else Access(access.tensor, access.elements * where)
