"""A stage as a table: operators of one layer, grouped by kind of layer, with bound and share of time."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Align, Column, Emphasis, Row, Table, left, right

#: Bound -> terminal colour; the cell's text also states the bound.
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
#: Width of a full share bar [characters].
BAR_WIDTH = 12
EIGHTHS = " ▏▎▍▌▋▊▉█"

#: Least share of a stage's time that kernels spend on a limit of their own for it to be named.
LEAST_LIMIT = 0.05

#: Explains why operators of a layer add up to more than its time.
OVERLAP_NOTE = "; copies overlap kernels, so a layer takes the longer of both"
#: Title of the column of roofline time over predicted time.
ROOFLINE_TITLE = "Roofline"

#: Narrow screens drop the highest rank first and always show name, bound, time and share.  The roofline column is
#: for calibrated times only.
OPERATOR_COLUMNS = (
    left("Operator"),
    left("Kind", rank=8),
    right("FLOP", rank=3),
    right("Bytes", rank=2),
    right("Weights", rank=7),
    right("KV cache", rank=7),
    right("FLOP/B", rank=1),
    left("Dtype", rank=6),
    right("FLOP/s", rank=6),
    Column(title="Bound", align=Align.LEFT, styles=BOUND_STYLES),
    right("Time"),
    right("All layers", rank=4),
    right(ROOFLINE_TITLE, rank=1),
    right("Share"),
    Column(title="Share of stage time", align=Align.LEFT, rank=5, visual=True),
)


def stage_table(name: str, stage: dict[str, Any], tokens: str) -> Table:
    """Returns the table of one STAGE object.  tokens: input of one forward pass in words."""
    rows: list[Row] = []
    groups = [list(group) for _, group in groupby(stage["operators"], key=lambda row: (row["block"], row["layers"]))]
    for operators in groups:
        if len(operators) > 1:
            rows.append(_layer(operators, stage))
        indent = "  " if len(operators) > 1 else ""
        rows += [_operator(operator, stage, indent) for operator in operators]
    rows += [_engine_row(term, seconds, stage) for term, seconds in stage["served_s"].items() if seconds]
    table = Table(
        title=f"{name} {fmt.duration(stage['time_s'])}{_interval(stage)}: {_bounds(stage)}",
        note=f"{tokens}; figures per layer{OVERLAP_NOTE if any(stage['overlap_s'].values()) else ''}",
        columns=OPERATOR_COLUMNS,
        rows=tuple(rows),
        total=_total(stage),
    )
    return table if stage["time_interval_s"] is not None else table.without(ROOFLINE_TITLE)


def _interval(stage: dict[str, Any]) -> str:
    """Returns the 80 % interval of a calibrated time and its roofline time."""
    interval = stage["time_interval_s"]
    if interval is None:
        return ""
    return f" (80 % interval {fmt.durations(*interval['80'])}; roofline {fmt.duration(stage['ideal_time_s'])})"


def roofline_share(timed: dict[str, Any]) -> str:
    """Returns the data-sheet roofline time as a percentage of the predicted time."""
    return fmt.percent(timed["ideal_time_s"] / timed["time_s"]) if timed["time_s"] else ""


def _engine_row(term: str, seconds: float, stage: dict[str, Any]) -> Row:
    """Returns the row of one term of engine overhead."""
    share = seconds / stage["time_s"]
    known = {
        "Operator": f"{term} (engine)",
        "Bound": stage["served_bounds"][term],
        "Time": fmt.duration(seconds),
        "All layers": fmt.duration(seconds),
        "Share": fmt.share(share),
    }
    return Row(cells=tuple(known.get(column.title, "") for column in OPERATOR_COLUMNS))


def _bounds(stage: dict[str, Any]) -> str:
    """Returns shares of the time by bound: `98.2 % memory-bound, 1.8 % compute-bound`."""
    shares = {bound: seconds / stage["time_s"] for bound, seconds in stage["time_by_bound_s"].items() if seconds}
    ordered = sorted(shares.items(), key=lambda pair: -pair[1])
    limits = kernel_limits(stage)
    return ", ".join(f"{fmt.percent(share)} {bound}-bound" for bound, share in ordered) + (
        f"; {limits}" if limits else ""
    )


def kernel_limits(stage: dict[str, Any]) -> str:
    """Returns what limits kernels before the roofline does: `kernel-limited: unpacking of 4-bit weights (55 %)`."""
    shares = {name: seconds / stage["time_s"] for name, seconds in stage["time_by_kernel_limit_s"].items()}
    listed = [f"{name} ({fmt.percent(share)})" for name, share in shares.items() if share >= LEAST_LIMIT]
    return f"kernel-limited: {', '.join(listed)}" if listed else ""


def _operator(operator: dict[str, Any], stage: dict[str, Any], indent: str) -> Row:
    layers, share = operator["layers"], operator["time_s"] * operator["layers"] / stage["time_s"]
    computes = operator["flops"] > 0
    cells = (
        indent + operator["name"],
        operator["kind"],
        fmt.count(operator["flops"]),
        fmt.traffic(operator["traffic_bytes"]),
        _nonzero(operator["weight_read_bytes"]),
        _nonzero(operator["kv_read_bytes"] + operator["kv_write_bytes"]),
        fmt.intensity(operator["arithmetic_intensity"]),
        operator["compute_dtype"] if computes else "",
        fmt.rate(operator["flops"] / operator["time_s"]) if computes else "",
        operator["bound"],
        fmt.duration(operator["time_s"]),
        fmt.duration(operator["time_s"] * layers),
        roofline_share(operator),
        fmt.share(share),
        share_bar(share),
    )
    return Row(cells=cells)


def _layer(operators: list[dict[str, Any]], stage: dict[str, Any]) -> Row:
    """Returns the row of a kind of layer: sums over one layer minus overlap; the share is of all its layers."""
    first = operators[0]
    sums = {key: sum(row[key] for row in operators) for key in SUMMED_FIELDS}
    overlap = stage["overlap_s"].get(first["block"], 0.0)
    layer_s = sums["time_s"] - overlap
    cells = (
        first["block"] if first["block"] in SINGLE_BLOCKS else f"{first['block']} × {first['layers']}",
        "",
        fmt.count(sums["flops"]),
        fmt.traffic(sums["traffic_bytes"]),
        _nonzero(sums["weight_read_bytes"]),
        _nonzero(sums["kv_read_bytes"] + sums["kv_write_bytes"]),
        _intensity(sums),
        "",
        "",
        "",
        fmt.duration(layer_s),
        fmt.duration(layer_s * first["layers"]),
        "" if overlap else roofline_share(sums),
        fmt.share(layer_s * first["layers"] / stage["time_s"]),
        "",
    )
    return Row(cells=cells, emphasis=Emphasis.GROUP)


#: Blocks outside the repeated layers.
SINGLE_BLOCKS = ("embedding", "head")
SUMMED_FIELDS = (
    "flops",
    "traffic_bytes",
    "weight_read_bytes",
    "kv_read_bytes",
    "kv_write_bytes",
    "time_s",
    "ideal_time_s",
)


def _total(stage: dict[str, Any]) -> tuple[str, ...]:
    """Returns the total row: the stage over all layers."""
    return (
        "total, all layers",
        "",
        fmt.count(stage["flops"]),
        fmt.traffic(stage["traffic_bytes"]),
        _nonzero(sum_over_layers(stage, "weight_read_bytes")),
        _nonzero(sum_over_layers(stage, "kv_read_bytes") + sum_over_layers(stage, "kv_write_bytes")),
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
    """Returns FLOP per byte of device memory; a dash without traffic, as for work on the host."""
    traffic = counts["traffic_bytes"]
    return fmt.intensity(counts["flops"] / traffic if traffic else None)


def _nonzero(size: float) -> str:
    """Formats bytes; 0 gives an empty cell."""
    return fmt.traffic(size) if size else ""


def sum_over_layers(stage: dict[str, Any], field: str) -> float:
    """Returns a field summed over all operators and layers."""
    return float(sum(row[field] * row["layers"] for row in stage["operators"]))


#: What is moved -> fields of an operator with its bytes.
MOVED = {
    "weights": ("weight_read_bytes",),
    "activations": ("activation_read_bytes", "activation_write_bytes"),
    "KV cache": ("kv_read_bytes", "kv_write_bytes"),
}


def moved(stage: dict[str, Any]) -> dict[str, float]:
    """Returns the bytes of each kind that all operators and layers move."""
    return {what: sum(sum_over_layers(stage, field) for field in fields) for what, fields in MOVED.items()}


def share_bar(share: float, cells: int = BAR_WIDTH) -> str:
    """Returns a share as a bar of at most `cells` characters, with a resolution of 1/8 character."""
    eighths = round(share * cells * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
