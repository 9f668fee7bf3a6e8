"""Points of a sweep as a table: what changes from point to point, then what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reports import format as fmt
from reports.page import Emphasis, Facts, Page, Row, Table, left, right

#: column -> (heading, rank, how it is printed).
SHOWN: dict[str, tuple[str, int, Callable[[Any], str]]] = {
    "batch_size": ("Batch", 0, fmt.whole),
    "input_len": ("Input", 0, fmt.whole),
    "output_len": ("Output", 0, fmt.whole),
    "ttft_s": ("TTFT", 0, fmt.duration),
    "tpot_s": ("TPOT", 0, fmt.duration),
    "e2e_s": ("E2E", 1, fmt.duration),
    "output_tokens_per_s": ("Tokens/s", 0, fmt.per_second),
    "prefill_mfu": ("MFU", 2, fmt.share),
    "decode_mbu": ("MBU", 2, fmt.share),
    "kv_cache_bytes": ("KV cache", 3, fmt.memory),
    "total_bytes": ("Memory", 1, fmt.memory),
}


def page(columns: Mapping[str, Sequence[Any]], more: int) -> Page:
    """A table of these points.  more: how many points are not shown."""
    count = len(columns["batch_size"])
    words = [name for name, values in columns.items() if isinstance(values[0], str)]
    varying = [name for name in words if len(set(columns[name])) > 1]
    fixed = tuple((_title(name), columns[name][0]) for name in words if name not in varying and columns[name][0])
    rows = tuple(Row(cells=_cells(columns, varying, index)) for index in range(count))
    heads = (
        *(left(_title(name)) for name in varying),
        *(right(title, rank) for title, rank, _ in SHOWN.values()),
        left("Fits"),
    )
    rest = (("", f"… {fmt.whole(more)} more points; --format csv, json or parquet holds all"),) if more else ()
    table = Table(columns=heads, rows=rows)
    return (Facts(lines=fixed), table, *((Facts(lines=rest, emphasis=Emphasis.FAINT),) if rest else ()))


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize().replace("Kv ", "KV ")


def _cells(columns: Mapping[str, Sequence[Any]], varying: list[str], index: int) -> tuple[str, ...]:
    numbers = (show(_known(columns[name][index])) for name, (_, _, show) in SHOWN.items())
    words = (str(columns[name][index]) for name in varying)
    return (*words, *numbers, "yes" if columns["fits"][index] else "NO")


def _known(value: Any) -> float | None:
    """None for what does not exist (NaN in columns)."""
    return None if value != value else float(value)  # noqa: PLR0124
