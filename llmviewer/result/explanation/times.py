"""Times of operators in one forward pass: resources, work, rates of the data sheet and shares that kernels reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.analysis.evaluation import TimedOperator
from llmviewer.core.counts import Count
from llmviewer.core.ir import Access, Place, Role
from llmviewer.core.kinds import Kind
from llmviewer.hardware.chip import Chip
from llmviewer.ops.gemm import GemmShape
from llmviewer.result.explanation.node import Node
from llmviewer.timing.kernels.families import families_of

if TYPE_CHECKING:
    from llmviewer.timing.calibrated import Calibrated, SelectedFit

At = Callable[[Count], float]
OVERHEAD = "overhead"
#: Rate -> its unit.
UNITS = {"bandwidth": "byte/s", "matrix_rate": "FLOP/s", "vector_rate": "FLOP/s", "special_rate": "op/s"}
#: Resource -> its work, the unit of it, and the name of the rate.
WORK = {
    "compute": ("matmul_flops", "FLOP", "matrix_rate"),
    "vector": ("vector_work", "FLOP", "vector_rate"),
    "special": ("special_ops", "op", "special_rate"),
}
ROLES = {
    Role.WEIGHT: "weights: sizes of the config, format of the checkpoint or of --quantization",
    Role.CACHE: "KV cache: heads and sizes of the config, tokens of the step, --kv-cache-dtype",
    Role.ACTIVATION: "activations: tokens of the step and sizes of the config",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """One forward pass of a point.  at: values of all passes -> the value of this one.  config: source of the model."""

    at: At
    chip: Chip
    calibration: Calibrated | None
    config: str


def operator_time(row: TimedOperator, one: Pass, name: str = "") -> Node:
    """Time of one run of an operator [s]: the largest of its resources' times, and the fixed time of a launch."""
    seconds = {resource: one.at(spent) for resource, spent in row.timing.resources}
    fixed = seconds.pop(OVERHEAD, 0.0)
    value = one.at(row.timing.time_s)
    children = tuple(_resource(row, one, resource, spent) for resource, spent in seconds.items() if spent > 0.0)
    names = [child.name for child in children]
    sharpness = _sharpness(row, one)
    formula, values = _largest(names, sharpness)
    if fixed:
        formula = f"{formula} + overhead_s" if formula else "overhead_s"
        children = (
            *children,
            Node(name="overhead_s", value=fixed, unit="s", source=_fit(row, one, "fixed time of a launch")),
        )
    return Node(
        name=name or f"{row.operator.name}_s",
        value=value,
        unit="s",
        formula=formula or "0",
        values=values,
        source="time of one layer's operator (timing/roofline.py)",
        children=children,
    )


def _largest(names: list[str], sharpness: float | None) -> tuple[str, dict[str, float]]:
    """The formula of the largest of several times, and its values."""
    if len(names) < 2:
        return "".join(names), {}
    if sharpness is None:
        return f"max({', '.join(names)})", {}
    return f"smooth_max({', '.join(names)}, sharpness)", {"sharpness": sharpness}


def _sharpness(row: TimedOperator, one: Pass) -> float | None:
    if one.calibration is None or not (one.chip.host is None or row.operator.is_kernel):
        return None
    sharpness = one.calibration(row.operator, one.chip).sharpness
    return None if sharpness is None else one.at(sharpness)


def _resource(row: TimedOperator, one: Pass, resource: str, seconds: float) -> Node:
    """Time of one resource: work over the rate that kernels reach."""
    name = f"{resource}_s"
    if resource == "memory":
        work = traffic(row, one)
        return _over_rate(name, seconds, work, _rate(row, one, "bandwidth", work.value / seconds))
    if resource in WORK:
        field, unit, label = WORK[resource]
        amount = one.at(getattr(row.operator, field))
        work = _flops(row, one, amount) if resource == "compute" else Node(
            name="work", value=amount, unit=unit, source=f"counted from shapes: {row.operator.kind.facts.flops}"
        )  # fmt: skip
        return _over_rate(name, seconds, work, _rate(row, one, label, amount / seconds))
    return Node(name=name, value=seconds, unit="s", source=_moved(row, one, resource))


def _over_rate(name: str, seconds: float, work: Node, rate: Node) -> Node:
    return Node(
        name=name,
        value=seconds,
        unit="s",
        formula=f"{work.name} / {rate.name}",
        children=(work, rate),
        source="work / rate",
    )


def _moved(row: TimedOperator, one: Pass, resource: str) -> str:
    """Source of the time of a link, a host, a disk or the last-level cache."""
    if resource == "link" and row.operator.kind is Kind.COLLECTIVE:
        link = one.chip.links.get(one.chip.default_link)
        sheet = _sheet(one.chip, f"links.{one.chip.default_link}.bandwidth_bytes_per_s")
        rate = "" if link is None else f"{float(np.max(link.bandwidth_bytes_per_s)):g} byte/s each way; "
        reached = _fit(row, one, "latency and share of the rate")
        return f"messages and bytes of the collective over {rate}{sheet}; {reached}"
    return f"bytes over the published rate of the {resource} ({one.chip.path or one.chip.name})"


def _rate(row: TimedOperator, one: Pass, label: str, reached: float) -> Node:
    """The rate that an operator reaches: the figure of the data sheet, and the share of it."""
    figure, key = _figure(row, one.chip, label)
    if figure is None:
        return Node(name="rate", value=reached, unit=UNITS[label], source=_fit(row, one, "rate"))
    sheet = Node(name=label, value=figure, unit=UNITS[label], source=_sheet(one.chip, key))
    if one.calibration is None:
        return sheet
    share = Node(
        name="share", value=reached / figure, source=_fit(row, one, f"share of the {label} that kernels reach")
    )
    return Node(
        name="rate",
        value=reached,
        unit=sheet.unit,
        formula=f"{label} * share",
        children=(sheet, share),
        source="rate reached",
    )


def _figure(row: TimedOperator, chip: Chip, label: str) -> tuple[float | None, str]:
    """Value of a figure of the chip, and its key among the chip's sources."""
    if label == "bandwidth":
        return float(np.max(chip.bandwidth_bytes_per_s)), "bandwidth_bytes_per_s"
    if label == "matrix_rate":
        dtype = chip.compute_dtype(row.operator.compute)
        return float(np.max(chip.matrix_rate(row.operator.compute))), f"matrix_flops_per_s.{dtype}"
    figure = chip.vector_rate() if label == "vector_rate" else chip.special_ops_per_s
    key = "vector_flops_per_s.fp32" if label == "vector_rate" else "special_ops_per_s"
    return (None if figure is None else float(np.max(figure))), key


def _sheet(chip: Chip, key: str) -> str:
    """Source of a figure of the chip: the page of its data sheet, and its note."""
    figure = chip.figures.get(key)
    if figure is None:
        return f"figure of {chip.path or chip.name}"
    return f"{figure.source}{f' ({figure.note})' if figure.note else ''}"


def _fit(row: TimedOperator, one: Pass, what: str) -> str:
    """Source of what kernels reach: the fit, the chip it was measured on, its rows and its error."""
    if one.calibration is None or not row.operator.is_kernel:
        return f"{what}: data sheet, without losses"
    fits = dict.fromkeys(_told(one.calibration.select_fit(name, row.operator)) for name in families_of(row.operator))
    return f"{what}: calibration {'; '.join(fits)}"


def _told(found: SelectedFit) -> str:
    """A fit with the chip that it was measured on, its rows and its error."""
    error = dict(found.fit.error.get("all", {}))
    rows = f", {error['rows']:g} rows" if "rows" in error else ""
    spread = f", error {100.0 * error['mape']:.1f} %" if "mape" in error else ""
    return f"{found.fit.key} ({found.basis}, of {found.chip}{rows}{spread})"


def traffic(row: TimedOperator, one: Pass) -> Node:
    """Device-memory bytes of an operator in one pass, access by access."""
    accesses = [("reads", access) for access in row.operator.reads] + [
        ("writes", access) for access in row.operator.writes
    ]
    children = tuple(
        _bytes(verb, access, one)
        for verb, access in accesses
        if access.tensor.place is Place.DEVICE and one.at(access.elements) > 0.0
    )
    value = one.at(row.traffic_bytes)
    listed = sum(child.value for child in children)
    if abs(listed - value) > 1e-9 * value:
        extra = Node(name="other_traffic", value=value - listed, unit="byte", source="further passes of the kernel")
        children = (*children, extra)
    return Node(
        name="bytes",
        value=value,
        unit="byte",
        formula="sum(children)",
        children=children,
        source="every tensor moved once",
    )


def _bytes(verb: str, access: Access, one: Pass) -> Node:
    elements, bits = one.at(access.elements), float(access.tensor.dtype.bytes)
    return Node(
        name=f"{verb} {access.tensor.name}",
        value=elements * bits,
        unit="byte",
        formula="elements * bytes_per_element",
        values={"elements": elements, "bytes_per_element": bits},
        source=f"{ROLES.get(access.tensor.role, 'tensor')} ({one.config})",
    )


def _flops(row: TimedOperator, one: Pass, amount: float) -> Node:
    """Matrix FLOP of an operator, by the sizes of a plain product where it is one."""
    source = f"counted from shapes: {row.operator.kind.facts.flops} ({one.config})"
    shape = row.operator.shape
    if isinstance(shape, GemmShape):
        sizes = {"rows": one.at(shape.m), "inputs": float(shape.k), "outputs": float(shape.n)}
        if abs(2.0 * sizes["rows"] * sizes["inputs"] * sizes["outputs"] - amount) <= 1e-12 * amount:
            formula = "2 * rows * inputs * outputs"
            return Node(name="flops", value=amount, unit="FLOP", formula=formula, values=sizes, source=source)
    return Node(name="flops", value=amount, unit="FLOP", source=source)
