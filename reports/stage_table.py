"""A stage of an analysis as a table: operators of one layer each, grouped by kind of layer, with bound and share."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Align, Column, Emphasis, Row, Table, left, right

#: Colours of the bounds; the words say the same.
BOUND_STYLES = {
    "compute": "yellow",
    "memory": "cyan",
    "vector": "magenta",
    "special": "magenta",
    "l2": "blue",
    "link": "red",
    "host": "red",
    "disk": "red",
    "overhead": "red",
}
#: Cells of the picture of shares.
PICTURE = 12
EIGHTHS = " ▏▎▍▌▋▊▉█"

#: Why operators of a layer add up to more than it takes.
SIDE_BY_SIDE = "; copies and kernels of a layer run side by side, it takes the longer"
#: Share of the time that the data sheet's roofline would take.
OF_ROOFLINE = "Roofline"

#: Narrow screens lose the highest rank first; name, bound, time and share always stand.  The last but two is for
#: calibrated times only.
OPERATOR_COLUMNS = (
    left("Operator"),
    left("Kind", rank=8),
    right("FLOP", rank=3),
    right("Bytes", rank=2),
    right("of weights", rank=7),
    right("of KV cache", rank=7),
    right("FLOP/B", rank=1),
    left("Dtype", rank=6),
    right("FLOP/s", rank=6),
    Column(title="Bound", align=Align.LEFT, styles=BOUND_STYLES),
    right("Time"),
    right("All layers", rank=4),
    right(OF_ROOFLINE, rank=1),
    right("Share"),
    Column(title="of the stage's time", align=Align.LEFT, rank=5, visual=True),
)


def stage_table(name: str, stage: dict[str, Any], tokens: str) -> Table:
    """The table of one STAGE object.  tokens: what one pass takes, in words."""
    rows: list[Row] = []
    groups = [list(group) for _, group in groupby(stage["operators"], key=lambda row: (row["block"], row["layers"]))]
    for operators in groups:
        if len(operators) > 1:
            rows.append(_layer(operators, stage))
        indent = "  " if len(operators) > 1 else ""
        rows += [_operator(operator, stage, indent) for operator in operators]
    rows += [_served(term, seconds, stage) for term, seconds in stage["served_s"].items() if seconds]
    table = Table(
        title=f"{name} {fmt.duration(stage['time_s'])}{_within(stage)}: {_bounds(stage)}",
        note=f"{tokens}; figures per layer{SIDE_BY_SIDE if any(stage['overlap_s'].values()) else ''}",
        columns=OPERATOR_COLUMNS,
        rows=tuple(rows),
        total=_total(stage),
    )
    return table if stage["time_interval_s"] is not None else table.without(OF_ROOFLINE)


def _within(stage: dict[str, Any]) -> str:
    """The 80 % interval of a calibrated time, and the bound below it."""
    interval = stage["time_interval_s"]
    if interval is None:
        return ""
    return f" (80 %: {fmt.durations(*interval['80'])}; roofline {fmt.duration(stage['ideal_time_s'])})"


def roofline_share(timed: dict[str, Any]) -> str:
    """How much of a time the data sheet's roofline explains."""
    return fmt.percent(timed["ideal_time_s"] / timed["time_s"]) if timed["time_s"] else ""


def _served(term: str, seconds: float, stage: dict[str, Any]) -> Row:
    """What the engine adds beside kernels."""
    share = seconds / stage["time_s"]
    known = {
        "Operator": f"{term} (engine)",
        "Bound": "overhead",
        "Time": fmt.duration(seconds),
        "All layers": fmt.duration(seconds),
        "Share": fmt.share(share),
    }
    return Row(cells=tuple(known.get(column.title, "") for column in OPERATOR_COLUMNS))


def _bounds(stage: dict[str, Any]) -> str:
    """`98.2 % memory-bound, 1.8 % compute-bound`, of the time."""
    shares = {bound: seconds / stage["time_s"] for bound, seconds in stage["time_by_bound_s"].items() if seconds}
    ordered = sorted(shares.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{fmt.percent(share)} {bound}-bound" for bound, share in ordered)


def _operator(operator: dict[str, Any], stage: dict[str, Any], indent: str) -> Row:
    layers, share = operator["layers"], operator["time_s"] * operator["layers"] / stage["time_s"]
    computes = operator["flops"] > 0
    cells = (
        indent + operator["name"],
        operator["kind"],
        fmt.count(operator["flops"]),
        fmt.traffic(operator["traffic_bytes"]),
        _some(operator["weight_read_bytes"]),
        _some(operator["kv_read_bytes"] + operator["kv_write_bytes"]),
        fmt.intensity(operator["arithmetic_intensity"]),
        operator["compute_dtype"] if computes else "",
        fmt.rate(operator["attainable_flops_per_s"]) if computes else "",
        operator["bound"],
        fmt.duration(operator["time_s"]),
        fmt.duration(operator["time_s"] * layers),
        roofline_share(operator),
        fmt.share(share),
        share_bar(share),
    )
    return Row(cells=cells)


def _layer(operators: list[dict[str, Any]], stage: dict[str, Any]) -> Row:
    """A kind of layer: sums over its operators, for one layer, less what runs side by side; share of all of them."""
    first = operators[0]
    sums = {key: sum(row[key] for row in operators) for key in SUMMED}
    beside = stage["overlap_s"].get(first["block"], 0.0)
    each = sums["time_s"] - beside
    cells = (
        first["block"] if first["block"] in ONCE else f"{first['block']} × {first['layers']}",
        "",
        fmt.count(sums["flops"]),
        fmt.traffic(sums["traffic_bytes"]),
        _some(sums["weight_read_bytes"]),
        _some(sums["kv_read_bytes"] + sums["kv_write_bytes"]),
        _intensity(sums),
        "",
        "",
        "",
        fmt.duration(each),
        fmt.duration(each * first["layers"]),
        "" if beside else roofline_share(sums),
        fmt.share(each * first["layers"] / stage["time_s"]),
        "",
    )
    return Row(cells=cells, emphasis=Emphasis.GROUP)


#: Blocks that are not layers.
ONCE = ("embedding", "head")
SUMMED = ("flops", "traffic_bytes", "weight_read_bytes", "kv_read_bytes", "kv_write_bytes", "time_s", "ideal_time_s")


def _total(stage: dict[str, Any]) -> tuple[str, ...]:
    """The stage over all layers."""
    return (
        "total, all layers",
        "",
        fmt.count(stage["flops"]),
        fmt.traffic(stage["traffic_bytes"]),
        _some(sum_over_layers(stage, "weight_read_bytes")),
        _some(sum_over_layers(stage, "kv_read_bytes") + sum_over_layers(stage, "kv_write_bytes")),
        _intensity(stage),
        "",
        fmt.rate(stage["flops"] / stage["time_s"]),
        stage["bound"],
        fmt.duration(stage["time_s"]),
        fmt.duration(stage["time_s"]),
        roofline_share(stage),
        "100 %",
        "",
    )


def _intensity(counts: dict[str, Any]) -> str:
    """FLOP per byte of device memory; what the host runs moves none."""
    traffic = counts["traffic_bytes"]
    return fmt.intensity(counts["flops"] / traffic if traffic else None)


def _some(size: float) -> str:
    """Bytes of one kind; an operator that moves none of it leaves the cell empty."""
    return fmt.traffic(size) if size else ""


def sum_over_layers(stage: dict[str, Any], field: str) -> float:
    """A field of the operators summed over operators and layers."""
    return float(sum(row[field] * row["layers"] for row in stage["operators"]))


def share_bar(share: float, cells: int = PICTURE) -> str:
    """A share as a bar of at most `cells` characters, in eighths of one."""
    eighths = round(share * cells * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
