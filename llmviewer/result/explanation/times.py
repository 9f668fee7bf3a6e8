"""Times of operators in one forward pass: the largest of its resources' times, each by the formulas that price it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.analysis.evaluation import TimedOperator
from llmviewer.core.counts import Count
from llmviewer.core.terms import Term
from llmviewer.result.explanation.kernels import timing_of_terms
from llmviewer.result.explanation.node import Formulas, Node
from llmviewer.result.explanation.work import Pass
from llmviewer.timing.roofline import OVERHEAD


def operator_time(row: TimedOperator, one: Pass, name: str = "") -> Node:
    """Time of one run of an operator [s]: the largest of its resources' times, and the fixed time of a launch."""
    if row.operator.one_run is not None:
        return _mean_time(row, one, name)
    seconds = {resource: one.at(spent) for resource, spent in row.timing.resources}
    terms, sharpness = timing_of_terms(row, one)
    named, formulas = dict(terms.resources), Formulas()
    children = [
        _resource(formulas, named[resource], f"{resource}_s", spent)
        for resource, spent in seconds.items()
        if spent > 0.0 and resource != OVERHEAD
    ]
    formula, values = _largest([child.name for child in children], sharpness)
    if values and isinstance(sharpness, Term):
        children.append(formulas.node(sharpness, "sharpness"))
    if seconds.get(OVERHEAD, 0.0):
        formula = f"{formula} + overhead_s" if formula else "overhead_s"
        children.append(_resource(formulas, named[OVERHEAD], "overhead_s", seconds[OVERHEAD]))
    return Node(
        name=name or f"{row.operator.name}_s",
        value=one.at(row.timing.time_s),
        unit="s",
        formula=formula or "0",
        values=values,
        source="time of one layer's operator (timing/roofline.py)",
        children=tuple(children),
    )


def _mean_time(row: TimedOperator, one: Pass, name: str) -> Node:
    """Mean time of an operator that only some steps run [s]."""
    once = row.operator.one_run
    assert once is not None
    runs = one.at(row.operator.runs)
    timing = row.timing.times(1.0 / np.maximum(row.operator.runs, np.finfo(np.float64).tiny))
    run = operator_time(replace(row, operator=once, traffic_bytes=once.traffic_bytes, timing=timing), one, "one_run_s")
    return Node(
        name=name or f"{row.operator.name}_s",
        value=one.at(row.timing.time_s),
        unit="s",
        formula="runs * one_run_s" if runs else "0",
        values={"runs": runs} if runs else {},
        source="mean over the steps that run it and those that do not (timing/roofline.py)",
        children=(run,) if runs else (),
    )


def _largest(names: list[str], sharpness: Count | None) -> tuple[str, dict[str, float]]:
    """The formula of the largest of several times, and its values."""
    if len(names) < 2:
        return "".join(names), {}
    if sharpness is None:
        return f"max({', '.join(names)})", {}
    return f"smooth_max({', '.join(names)}, sharpness)", {"sharpness": float(sharpness)}


def _resource(formulas: Formulas, term: Count, name: str, seconds: float) -> Node:
    """Time of one resource by its formula; a leaf where the formula has no numbers of its own."""
    if isinstance(term, Term):
        return replace(formulas.node(term, name), value=seconds, unit="s")
    return Node(name=name, value=seconds, unit="s", source="rates of the data sheet (timing/roofline.py)")
