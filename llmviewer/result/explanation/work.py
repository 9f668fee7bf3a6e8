"""Work of an operator in one pass: bytes access by access, and FLOP."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llmviewer.analysis.evaluation import TimedOperator
from llmviewer.core.counts import Count
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Place, Role
from llmviewer.hardware.chip import Chip
from llmviewer.ops.gemm import GemmShape
from llmviewer.result.explanation.node import Node, of_formula, sum_with_rest

if TYPE_CHECKING:
    from llmviewer.timing.calibrated import Calibrated

At = Callable[[Count], float]
ROLES = {
    Role.WEIGHT: "weights: sizes of the config, format of the checkpoint or of --quantization",
    Role.CACHE: "KV cache: heads and sizes of the config, tokens of the step, --kv-cache-dtype",
    Role.ACTIVATION: "activations: tokens of the step and sizes of the config",
}


@frozen(eq=False)
class Pass:
    """One forward pass of a point, or several together.

    at: values of all passes -> the value of this one, or the sum of those together.  config: source of the model.
    shown: the pass by which those together are explained; None for one pass.
    """

    at: At
    chip: Chip
    calibration: Calibrated | None
    config: str
    shown: Pass | None = None


def traffic(row: TimedOperator, one: Pass) -> Node:
    """Device-memory bytes of an operator in one pass, access by access."""
    accesses = [
        *(("reads", access) for access in row.operator.reads),
        *(("writes", access) for access in row.operator.writes),
    ]
    children = tuple(filter(None, (moved(verb, access, one) for verb, access in accesses)))
    rest = "other_traffic", "further passes of the kernel"
    return sum_with_rest("bytes", one.at(row.traffic_bytes), children, "every tensor moved once", rest, "byte")


def moved(verb: str, access: Access, one: Pass) -> Node | None:
    """Bytes of one access to device memory; None for none."""
    if access.tensor.place is not Place.DEVICE or not one.at(access.elements) > 0.0:
        return None
    values = {"elements": one.at(access.elements), "bytes_per_element": float(access.tensor.dtype.bytes)}
    source = f"{ROLES[access.tensor.role]} ({one.config})"
    return of_formula(f"{verb} {access.tensor.name}", "elements * bytes_per_element", (), source, values, "byte")


def flops(row: TimedOperator, one: Pass, amount: float) -> Node:
    """Matrix FLOP of an operator, by the sizes of a plain product where it is one."""
    source = f"counted from shapes: {row.operator.kind.facts.flops} ({one.config})"
    shape = row.operator.shape
    if isinstance(shape, GemmShape):
        sizes = {"rows": one.at(shape.m), "inputs": float(shape.k), "outputs": float(shape.n)}
        if abs(2.0 * sizes["rows"] * sizes["inputs"] * sizes["outputs"] - amount) <= 1e-12 * amount:
            formula = "2 * rows * inputs * outputs"
            return Node(name="flops", value=amount, unit="FLOP", formula=formula, values=sizes, source=source)
    return Node(name="flops", value=amount, unit="FLOP", source=source)
