"""Times of operators, run again on terms: their work, figures of chip and host, constants of fits, each with source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.analysis.evaluation import TimedOperator
from llmviewer.core.counts import Count
from llmviewer.core.ir import WORK_FIELDS, Access, Operator
from llmviewer.core.terms import leaf
from llmviewer.core.workload import Group
from llmviewer.hardware.chip import FIGURES, PER_DTYPE, Chip, Disk, Host
from llmviewer.result.explanation.work import At, Pass, flops, traffic
from llmviewer.timing.calibrated import SOURCES
from llmviewer.timing.kernels.families import FAMILIES, families_of
from llmviewer.timing.lending import factors_of
from llmviewer.timing.roofline import Efficiency, Rates, Timing, ideal, time_operator

if TYPE_CHECKING:
    from llmviewer.timing.calibrated import Calibrated, SelectedFit

#: Short names of figures.
WORDS = {
    "bandwidth_bytes_per_s": "peak_bandwidth", "l2_bandwidth_bytes_per_s": "l2_bandwidth", "memory_bytes": "memory",
    "special_ops_per_s": "special_rate", "matrix_flops_per_s": "matrix_rate", "vector_flops_per_s": "vector_rate",
}  # fmt: skip


def sheet(chip: Chip, key: str) -> str:
    """Source of a figure of the chip: the page of its data sheet, and its note."""
    figure = chip.figures.get(key)
    if figure is None:
        return f"figure of {chip.path or chip.name}"
    return f"{figure.source}{f' ({figure.note})' if figure.note else ''}"


def chip_of_terms(chip: Chip, prefix: str = "") -> Chip:
    """The chip with its figures as terms.  prefix: of their names, such as `host_` for the CPU of a host."""
    changed: dict[str, Any] = {}
    for name, info in FIGURES.items():
        value = getattr(chip, name)
        word = prefix + WORDS.get(name, name)
        if name in PER_DTYPE:
            changed[name] = {
                dtype: leaf(f"{dtype}_{word}", rate, info.unit, sheet(chip, f"{name}.{dtype}"))
                for dtype, rate in value.items()
            }
        else:
            unit = "" if info.unit in ("1", "x") else info.unit
            changed[name] = None if value is None else leaf(word, value, unit, sheet(chip, name))
    changed["links"] = {
        name: with_fields(link, bandwidth_bytes_per_s=leaf(
            f"{name.replace('-', '_')}_rate", link.bandwidth_bytes_per_s, "byte/s",
            sheet(chip, f"links.{name}.bandwidth_bytes_per_s"),
        )) for name, link in chip.links.items()
    }  # fmt: skip
    basis = chip.basis and chip_of_terms(chip.basis)
    made: Chip = with_fields(chip, **changed, basis=basis, host=chip.host and _host(chip, chip.host))
    return made


#: Units of fields of `Host` that are no shares.
UNITS = {"wait_s": "s"}


def _host(chip: Chip, host: Host) -> Host:
    """The host with its rates, and the shares of them that are reached, as terms."""
    changed: dict[str, Any] = {
        name: share if (share := getattr(host, name)) in (0.0, 1.0) else leaf(name, share, UNITS.get(name, ""), source)
        for name, source in SOURCES.items()
    }
    rate = leaf("host_bandwidth", host.bandwidth_bytes_per_s, "byte/s", sheet(chip, "host.bandwidth_bytes_per_s"))
    cpu = host.cpu and chip_of_terms(host.cpu, "host_")
    made: Host = with_fields(host, cpu=cpu, bandwidth_bytes_per_s=rate, disk=_disk(chip, host.disk), **changed)
    return made


def _disk(chip: Chip, disk: Disk | None) -> Disk | None:
    """The disk with its rates as terms."""
    units = {"read_bytes_per_s": "byte/s", "write_bytes_per_s": "byte/s", "reads_per_s": "1/s"}
    return disk and with_fields(disk, **{
        name: leaf(f"disk_{name}", getattr(disk, name), unit, sheet(chip, f"host.disk.{name}"))
        for name, unit in units.items()
        if getattr(disk, name) is not None
    })  # fmt: skip


def with_fields(record: Any, **changed: Any) -> Any:
    """A copy of a record with other fields, of whatever type."""
    record = copy(record)
    for name, value in changed.items():
        object.__setattr__(record, name, value)
    return record


#: Fields that no formula of a kernel reads as one number.
UNREAD = ("popularity", "skipped")


def timing_of_terms(row: TimedOperator, one: Pass) -> tuple[Timing, Count | None]:
    """The timing of an operator in one pass as terms, by the functions that time it, and how sharp its maximum is."""
    found: list[Rates] = []

    def efficiency(operator: Operator, chip: Chip) -> Rates:
        found.append(own(operator, chip))
        return found[0]

    work = _operator(row, one)
    own: Efficiency = ideal if one.calibration is None else _calibration(one.calibration, row.operator, work)
    with np.errstate(all="ignore"):
        timing = time_operator(work, chip_of_terms(one.chip), efficiency, work.traffic_bytes)
    return timing, found[0].sharpness if found else None


def told(found: SelectedFit) -> str:
    """A fit with the chip that it was measured on, its rows and its error, and what the user's kernels changed."""
    error = dict(found.fit.error.get("all", {}))
    rows = f", {error['rows']:g} rows" if "rows" in error else ""
    spread = f", error {100.0 * error['mape']:.1f} %" if "mape" in error else ""
    moved = f"; {found.scaled}" if found.scaled else ""
    return f"{found.fit.key} ({found.basis}, of {found.chip}{rows}{spread}{moved})"


def _calibration(own: Calibrated, operator: Operator, work: Operator) -> Calibrated:
    """The efficiency with the constants of an operator's fits as terms.

    work: the operator in one pass, which may be another variant alone: a fit is selected for all passes together.
    """
    selected = {}
    for family in families_of(operator):
        found = own.select_fit(family, operator)
        constants = _constants(found, own.generation)
        key = f"{family}/{FAMILIES[family].variant(work)}"
        selected[key] = replace(found, fit=replace(found.fit, constants=constants))
    return replace(own, selected=selected)


def _constants(found: SelectedFit, generation: str) -> Mapping[str, Any]:
    """Constants by name, each with its meaning, its fit, and the factor for kernels of another generation."""
    family = found.fit.family
    factors = factors_of(found.chip, generation, family)
    constants = {}
    for known in FAMILIES[family].constants:
        changed = f", times {factors[known.name]:g} for {generation}" if known.name in factors else ""
        source = f"{known.meaning}: calibration {told(found)}{changed}"
        unit = "" if known.unit == "1" else known.unit
        if known.name in found.fit.constants:  # profiles fitted before a later constant have none
            constants[known.name] = leaf(known.name, found.fit.constants[known.name], unit, source)
    return constants


def _operator(row: TimedOperator, one: Pass) -> Operator:
    """The operator in one pass with its work, accesses and shape as terms."""
    operator = row.operator
    traced = copy(operator)
    traced.__dict__.pop("_derived", None)
    source = f"counted from shapes: {operator.kind.facts.flops} ({one.config})"
    for name in WORK_FIELDS:
        about = flops(row, one, one.at(operator.matmul_flops)) if name == "matmul_flops" else None
        value = getattr(operator, name)
        traced.__dict__[name] = _count("flops" if about else name, value, one.at, source, about)
    bytes_ = traffic(row, one)
    made: Operator = with_fields(
        traced,
        traffic_bytes=leaf("bytes", bytes_.value, "byte", bytes_.source, bytes_),
        where=1.0,
        reads=tuple(_access(access, one) for access in operator.reads),
        writes=tuple(_access(access, one) for access in operator.writes),
        output_shape=tuple(
            _count("rows" if at == 0 else "width", count, one.at, f"sizes of the output ({one.config})")
            for at, count in enumerate(operator.output_shape)
        ),
        shape=_shape(operator.shape, one),
    )
    return made


def _access(access: Access, one: Pass) -> Access:
    name = re.sub(r"\W", "_", access.tensor.name)
    return Access(
        access.tensor, _count(f"{name}_elements", access.elements, one.at, f"elements that it moves ({one.config})")
    )


def _shape(shape: Any, one: Pass) -> Any:
    """The shape with its sizes as terms."""
    if isinstance(shape, tuple):
        return tuple(_shape(part, one) for part in shape)
    if not is_dataclass(shape) or isinstance(shape, type):
        return shape
    source = "tokens of the step" if isinstance(shape, Group) else f"sizes of the config ({one.config})"
    changed = {}
    for name in (field.name for field in fields(shape) if field.name not in UNREAD):
        value = getattr(shape, name)
        sized = isinstance(value, (float, int, np.ndarray)) and not isinstance(value, bool)
        changed[name] = _count(name, value, one.at, source) if sized else _shape(value, one)
    return with_fields(shape, **changed)


def _count(name: str, value: Any, at: At, source: str, about: Any = None) -> Any:
    """A count of one pass as a term; a plain zero stays one, as the code reads it as no work."""
    if not isinstance(value, np.ndarray) and value == 0.0:
        return 0.0
    unit = "byte" if name.endswith("bytes") else ""
    return leaf(name, at(value), unit, source, about)
