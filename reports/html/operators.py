"""Operators of all configurations as rows of a sortable table, with their formulas."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from llmviewer.core.frozen import frozen
from llmviewer.reports import bottleneck
from llmviewer.reports import format as fmt
from llmviewer.reports.stage_table import roofline_share


@frozen
class Cell:
    """Text of a cell and the number by which it is sorted."""

    text: str
    value: float | None = None


@frozen
class ColumnHead:
    """A column.  note: explanation.  chosen: has a filter list.  extra: omitted in print."""

    title: str
    note: str = ""
    number: bool = False
    chosen: bool = False
    extra: bool = False


@frozen(slots=False, eq=False)
class Line:
    """An operator: `key` is the id of its row, `share` its share of the stage's time.

    efficiency: `ideal` or `calibrated`.
    """

    key: str
    configuration: str
    stage: str
    operator: dict[str, Any]
    share: float
    efficiency: str

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """A cell per column."""
        return tuple(_cells(self.configuration, self.stage, self.operator, self.share))

    @property
    def formulas(self) -> tuple[tuple[str, str], ...]:
        """Formulas of its counts and its time, with their names."""
        counts = (("FLOP =", bottleneck.FLOPS[self.operator["kind"]]), ("Bytes =", bottleneck.BYTES))
        return (*counts, ("Time =", bottleneck.seconds(self.operator, self.efficiency)))


HEADS = (
    ColumnHead(title="Configuration", chosen=True),
    ColumnHead(title="Stage", note="prefill, or a representative decode step", chosen=True),
    ColumnHead(title="Layer", note="kind of layer × number of such layers", chosen=True),
    ColumnHead(title="Operator"),
    ColumnHead(title="Kind", chosen=True),
    ColumnHead(title="Bound", note="the resource that takes longest on the roofline, or overhead", chosen=True),
    ColumnHead(title="Time", note="of one layer", number=True),
    ColumnHead(title="All layers", note="time × layers", number=True),
    ColumnHead(title="Share", note="share of the stage's time, all layers", number=True),
    ColumnHead(title="Roofline", note="data-sheet roofline time / predicted time", number=True),
    ColumnHead(title="FLOP", note="of one layer", number=True),
    ColumnHead(title="Bytes", note="device-memory traffic of one layer", number=True),
    ColumnHead(title="Weights", note="bytes of weights read", number=True, extra=True),
    ColumnHead(title="KV cache", note="bytes of KV cache read and written", number=True, extra=True),
    ColumnHead(title="FLOP/B", note="arithmetic intensity", number=True),
    ColumnHead(title="Attainable FLOP/s", note="by the roofline of the data sheet", number=True, extra=True),
    ColumnHead(title="Reached FLOP/s", note="FLOP / predicted time", number=True, extra=True),
    ColumnHead(title="Dtype", note="of the compute units used"),
    ColumnHead(title="80 % interval", note="80 % interval of the time of one layer", extra=True),
    ColumnHead(title="Output", note="output shape", extra=True),
    ColumnHead(title="Kernel limit", note="what limits the kernel before the roofline does", extra=True),
)


def heads(configurations: list[dict[str, Any]]) -> tuple[ColumnHead, ...]:
    """Returns the columns, without the configuration if there is only one."""
    return HEADS if len(configurations) > 1 else HEADS[1:]


def lines(configurations: list[dict[str, Any]]) -> list[Line]:
    """Returns a line per configuration, stage and operator."""
    return [
        _line(f"op{number}-{stage[0]}{at}", answer, stage, operator)
        for number, answer in enumerate(configurations)
        for stage in ("prefill", "decode")
        for at, operator in enumerate(answer["stages"][stage]["operators"])
    ]


def _line(key: str, answer: dict[str, Any], stage: str, operator: dict[str, Any]) -> Line:
    all_layers_s = operator["time_s"] * operator["layers"]
    share = all_layers_s / answer["stages"][stage]["time_s"]
    return Line(
        key=key,
        configuration=answer["configuration"],
        stage=stage,
        operator=operator,
        share=share,
        efficiency=answer["efficiency"]["kind"],
    )


def _cells(configuration: str, stage: str, operator: dict[str, Any], share: float) -> Iterator[Cell]:
    layers, cache = operator["layers"], operator["kv_read_bytes"] + operator["kv_write_bytes"]
    computes = operator["flops"] > 0
    block = operator["block"] if layers == 1 else f"{operator['block']} × {layers}"
    interval = operator["time_interval_s"]
    for text in (configuration, stage, block, operator["name"], operator["kind"], operator["bound"]):
        yield Cell(text=text)
    yield Cell(text=fmt.duration(operator["time_s"]), value=operator["time_s"])
    yield Cell(text=fmt.duration(operator["time_s"] * layers), value=operator["time_s"] * layers)
    yield Cell(text=fmt.share(share), value=share)
    yield Cell(text=roofline_share(operator), value=operator["ideal_time_s"] / operator["time_s"])
    yield Cell(text=fmt.count(operator["flops"]), value=operator["flops"])
    yield Cell(text=fmt.traffic(operator["traffic_bytes"]), value=operator["traffic_bytes"])
    yield Cell(text=_nonzero(operator["weight_read_bytes"]), value=operator["weight_read_bytes"])
    yield Cell(text=_nonzero(cache), value=cache)
    yield Cell(text=fmt.intensity(operator["arithmetic_intensity"]), value=operator["arithmetic_intensity"])
    for rate in (operator["attainable_flops_per_s"], operator["flops"] / operator["time_s"]):
        yield Cell(text=fmt.rate(rate) if computes else "", value=rate if computes else 0.0)
    yield Cell(text=operator["compute_dtype"] if computes else "")
    yield Cell(text="" if interval is None else fmt.durations(*interval["80"]))
    yield Cell(text=" × ".join(fmt.whole(size) for size in operator["output_shape"]))
    yield Cell(text=operator["kernel_limit"])


def _nonzero(size: float) -> str:
    return fmt.traffic(size) if size else ""
