"""Work, bytes and ideal times of an operator and of a stage as trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from llmviewer.analysis.evaluation import TimedOperator
from llmviewer.core.counts import Count
from llmviewer.core.errors import unknown
from llmviewer.core.ir import Role
from llmviewer.result.explanation.kernels import sheet
from llmviewer.result.explanation.metrics import Question, over_layers
from llmviewer.result.explanation.node import Node, of_formula, sum_of
from llmviewer.result.explanation.times import operator_time
from llmviewer.result.explanation.work import Pass, flops, moved, traffic
from llmviewer.result.stages import value_at

#: Figure of an operator -> how its bytes move, and their role.
MOVED = {
    "weight_read_bytes": ("reads", Role.WEIGHT),
    "activation_read_bytes": ("reads", Role.ACTIVATION),
    "activation_write_bytes": ("writes", Role.ACTIVATION),
    "kv_read_bytes": ("reads", Role.CACHE),
    "kv_write_bytes": ("writes", Role.CACHE),
}
#: Parts of an operator's work -> their source.
WORK = {
    "vector_flops": "counted from shapes: elementwise work on the vector units",
    "recurrence_flops": "counted from shapes: updates and read-outs of a recurrent state",
    "conv_flops": "counted from shapes: multiply-adds of a convolution",
}
PASSES = "sum over the passes of a stage in units of the one shown"
NOT_SHOWN = "the pass shown does not run it"
BOUND = "most FLOP/s at this intensity: FLOP over the ideal time, at most the peak of the matrix units"
#: Figure of a stage -> quantity of an operator, and its unit.
STAGE_FIGURES: Mapping[str, tuple[Callable[[TimedOperator], Count], str]] = {
    "ideal_time_s": (lambda row: row.ideal.time_s, "s"),
    "flops": (lambda row: row.operator.flops, "FLOP"),
    "matmul_flops": (lambda row: row.operator.matmul_flops, "FLOP"),
    "traffic_bytes": (lambda row: row.traffic_bytes, "byte"),
}


def matmul_flops(row: TimedOperator, one: Pass, name: str) -> Node:
    """Work of the matrix units [FLOP]."""
    return replace(flops(row, one, one.at(row.operator.matmul_flops)), name=name)


def all_flops(row: TimedOperator, one: Pass, name: str) -> Node:
    """Work of an operator: matrix products, elementwise work, recurrences, convolutions [FLOP]."""
    parts = [matmul_flops(row, one, "matmul_flops")]
    for part, source in WORK.items():
        parts.append(Node(name=part, value=one.at(getattr(row.operator, part)), unit="FLOP", source=source))
    parts = [part for part in parts if part.value]
    return sum_of(name, tuple(parts), "work of one layer's operator", "FLOP")


def role_bytes(moved_by: tuple[str, Role], row: TimedOperator, one: Pass, name: str) -> Node:
    """Bytes that an operator moves in one direction, of tensors of one role."""
    verb, role = moved_by
    accesses = row.operator.reads if verb == "reads" else row.operator.writes
    found = (moved(verb, access, one) for access in accesses if access.tensor.role is role)
    return sum_of(name, tuple(filter(None, found)), "every tensor moved once", "byte")


def time(row: TimedOperator, one: Pass, name: str) -> Node:
    """Time of an operator [s]; of several passes together in units of the one that is shown."""
    if one.shown is None:
        return operator_time(row, one, name)
    whole, shown = one.at(row.timing.time_s), one.shown.at(row.timing.time_s)
    if whole == shown:
        return operator_time(row, one.shown, name)
    if not shown:
        return Node(name=name, value=whole, unit="s", source=NOT_SHOWN)
    inner = operator_time(row, one.shown, "shown_s")
    return of_formula(name, "passes * shown_s", (inner,), PASSES, {"passes": whole / shown})


def ideal_time(row: TimedOperator, one: Pass, name: str) -> Node:
    """Time on the roofline of the data sheet [s]."""
    shown = None if one.shown is None else replace(one.shown, calibration=None)
    return time(replace(row, timing=row.ideal, sheet=None), replace(one, calibration=None, shown=shown), name)


def intensity(row: TimedOperator, one: Pass, name: str) -> Node:
    """Work per byte of device-memory traffic [FLOP/byte]."""
    work, bytes_ = all_flops(row, one, "flops"), replace(traffic(row, one), name="traffic_bytes")
    return of_formula(name, "flops / traffic_bytes", (work, bytes_), "work per byte that is moved", {}, "FLOP/byte")


def attainable(row: TimedOperator, one: Pass, name: str) -> Node:
    """Rate that the roofline of the data sheet allows [FLOP/s]."""
    children = [all_flops(row, one, "flops"), ideal_time(row, one, "ideal_time_s")]
    formula = "flops / ideal_time_s"
    if one.at(row.operator.matmul_flops):
        dtype = one.chip.compute_dtype(row.operator.compute)
        children.append(rate(one, dtype))
        formula = f"min({formula}, {children[-1].name})"
    return of_formula(name, formula, tuple(children), BOUND, {}, "FLOP/s")


def rate(one: Pass, dtype: str) -> Node:
    """Dense matrix rate of a dtype, as the data sheet states it."""
    value = value_at(one.chip.matrix_rate(dtype), 0)
    source = sheet(one.chip, f"matrix_flops_per_s.{dtype}")
    return Node(name=f"{dtype}_rate", value=value, unit="FLOP/s", source=source)


#: Figure of an operator -> its tree.
OPERATOR_FIGURES: Mapping[str, Callable[[TimedOperator, Pass, str], Node]] = {
    "time_s": time,
    "ideal_time_s": ideal_time,
    "flops": all_flops,
    "matmul_flops": matmul_flops,
    "traffic_bytes": lambda row, one, name: replace(traffic(row, one), name=name),
    **{name: partial(role_bytes, moved_by) for name, moved_by in MOVED.items()},
    "arithmetic_intensity": intensity,
    "attainable_flops_per_s": attainable,
}


def operator_node(one: Question, name: str, field: str, stage: str) -> Node:
    """A number of one operator of one layer over all passes of a stage, by its name in the document.

    name: of the operator, which then is that of the first block that runs it, or BLOCK.OPERATOR.
    Raises UserError for an operator that the graph does not have, and for a number that operators do not have.
    """
    found = _runs_of(one, name, stage)
    if field not in OPERATOR_FIGURES:
        raise unknown("number of an operator", field, OPERATOR_FIGURES)
    full = f"{found[0].block.name}.{found[0].operator.name}" if len(found) > 1 else name
    return OPERATOR_FIGURES[field](found[0], one.together(stage), f"{full}.{field}")


def blocks_of(one: Question, name: str, stage: str) -> list[str]:
    """The blocks that run an operator of this name in a stage, in their order; one for BLOCK.OPERATOR.

    Raises UserError for an operator that the graph does not have.
    """
    return list(dict.fromkeys(row.block.name for row in _runs_of(one, name, stage)))


def _runs_of(one: Question, name: str, stage: str) -> list[TimedOperator]:
    summed = one.summed(stage)
    rows = [row for row in one.analysis.evaluation.rows if summed(row.timing.time_s) > 0.0]
    found = [row for row in rows if name in (row.operator.name, f"{row.block.name}.{row.operator.name}")]
    if not found:
        counted = Counter(row.operator.name for row in rows)
        several = (f"{row.block.name}.{row.operator.name}" for row in rows if counted[row.operator.name] > 1)
        raise unknown("operator", name, [*counted, *several])
    return found


def stage_figure(one: Question, stage: str, field: str) -> Node:
    """Work, traffic or ideal time of a stage: of all its operators over their layers and passes."""
    unit = STAGE_FIGURES[field][1]
    summed = one.summed(stage)
    children = [*_operators(one, stage, field)]
    if field == "ideal_time_s":
        children += (
            Node(
                name=f"overlap: {layer.block.name}",
                value=-summed(layer.hidden_s) * float(layer.block.repeats),
                unit=unit,
                source="copies beside kernels, both ideal (timing/overlap.py)",
            )
            for layer in one.analysis.evaluation.bounds
        )
    source = f"operators of {stage}, over their layers"
    return sum_of(f"stages.{stage}.{field}", tuple(children), source, unit)


def _operators(one: Question, stage: str, field: str) -> Iterator[Node]:
    """A figure of every operator, over its layers and passes in units of the one shown."""
    quantity, unit = STAGE_FIGURES[field]
    shown, summed = one.at_pass(one.shown[stage]), one.summed(stage)
    for row in one.analysis.evaluation.rows:
        amounts = summed(quantity(row)), shown.at(quantity(row))
        if amounts[0]:
            yield over_layers(row, amounts, stage, partial(OPERATOR_FIGURES[field], row, shown), unit)
