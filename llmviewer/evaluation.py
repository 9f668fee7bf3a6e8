"""One forward pass evaluated on a system: every operator's counts and times, and their totals."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer import roofline
from llmviewer.efficiency import ideal
from llmviewer.ir import Block, Count, Graph, Operator
from llmviewer.models.model import Model
from llmviewer.roofline import Timing
from llmviewer.system import System
from llmviewer.workload import Step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One operator of one kind of layer; counts and times are for one layer."""

    block: Block
    operator: Operator
    traffic_bytes: Count
    timing: Timing
    ideal: Timing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Totals:
    """Sums over operators x layers, in the graph's order."""

    time_s: Count = 0.0
    ideal_time_s: Count = 0.0
    flops: Count = 0.0
    matmul_flops: Count = 0.0
    model_flops: Count = 0.0
    traffic_bytes: Count = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """A graph after all passes, its rows, and the totals."""

    graph: Graph
    rows: tuple[Row, ...]
    totals: Totals


def evaluate(model: Model, system: System, step: Step) -> Evaluation:
    """Build the graph of `step`, apply the passes, time every operator.

    Sums run over operators in one fixed order, one addition at a time, so that a point alone and the same point
    inside a sweep give the same bits.
    """
    graph = system.prepared(model.graph(step))
    rows = tuple(_row(system, block, operator) for block, operator in graph)
    return Evaluation(graph=graph, rows=rows, totals=_totals(rows))


def _row(system: System, block: Block, operator: Operator) -> Row:
    traffic = operator.traffic_bytes
    timing = roofline.time(operator, system.chip, system.efficiency, traffic)
    bound = timing if system.efficiency is ideal else roofline.time(operator, system.chip, ideal, traffic)
    return Row(block=block, operator=operator, traffic_bytes=traffic, timing=timing, ideal=bound)


def _totals(rows: tuple[Row, ...]) -> Totals:
    time_s: Count = 0.0
    ideal_s: Count = 0.0
    flops: Count = 0.0
    matmul: Count = 0.0
    masked: Count = 0.0
    traffic: Count = 0.0
    for row in rows:
        layers, operator = float(row.block.times), row.operator
        time_s = time_s + row.timing.time_s * layers
        flops = flops + operator.flops * layers
        matmul = matmul + operator.matmul_flops * layers
        masked = masked + operator.masked_flops * layers
        traffic = traffic + row.traffic_bytes * layers
        if row.ideal is not row.timing:
            ideal_s = ideal_s + row.ideal.time_s * layers
    if all(row.ideal is row.timing for row in rows):
        ideal_s = time_s
    return Totals(
        time_s=time_s,
        ideal_time_s=ideal_s,
        flops=flops,
        matmul_flops=matmul,
        model_flops=matmul - masked,
        traffic_bytes=traffic,
    )
