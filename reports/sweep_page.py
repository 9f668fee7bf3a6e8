"""Points of a sweep as a table: varying inputs first, then metrics and memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from llmviewer.language.quantity import MEMORY, METRICS, SIZES
from llmviewer.reports import analysis_page
from llmviewer.reports import format as fmt
from llmviewer.reports.crossover_page import legend, letters
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right
from llmviewer.result.columns import SET, figure_text
from llmviewer.result.comparison import OPTION_COLUMNS, shown_when_shared
from llmviewer.result.result import Result

#: Points of a result that are shown; to_frame() returns all.
MAX_ROWS = 20
#: Heading, rank and format of a column.
Shown: TypeAlias = tuple[str, int, Callable[..., str]]


def _bounds_of(name: str) -> str:
    """Returns the column with the interval of a latency: `tpot_80`."""
    return f"{name.removesuffix('_s')}_80"


def _metrics() -> Iterator[tuple[str, Shown]]:
    """Yields the columns of all metrics, each followed by that of its interval."""
    for name, one in METRICS.items():
        yield name, (one.label, one.rank, partial(fmt.figure, name))
        if name in INTERVALS:
            yield _bounds_of(name), ("80 %", INTERVALS[name], fmt.bounds)


#: Latency whose interval is shown -> rank of that column.
INTERVALS = {"ttft_s": 3, "tpot_s": 1}
#: Column -> (heading, rank, format).
SHOWN: dict[str, Shown] = {
    **{name: (one.label, one.rank, fmt.whole) for name, one in SIZES.items()},
    "devices": ("Devices", 1, fmt.whole),
    "drafted_tokens": ("Drafted", 1, fmt.digits),
    "tokens_per_round": ("Tokens/round", 2, fmt.digits),
    **dict(_metrics()),
    **{name: (MEMORY[name].label, MEMORY[name].rank, fmt.memory) for name in ("kv_cache_bytes", "total_bytes")},
}
#: Sizes of a request -> their word in the line of those that all points have in common.
WORDS = {name: one.label.lower() for name, one in SIZES.items()}
#: Columns of numbers that stand above the table if all points have the same.
COMMON = (*SIZES, "devices")
#: Columns that are omitted if every point has this value.
OMITTED_VALUES = {"devices": 1, "drafted_tokens": 0, "tokens_per_round": 1}


def page(columns: Mapping[str, Sequence[Any]], more: int = 0, varied: Collection[str] = ()) -> Page:
    """Returns a table of points, below what they have in common.

    more: number of points that are not shown.  varied: columns that differ among all points, shown or not.
    """
    varied = {*varied, *(name for name, values in columns.items() if any(one != values[0] for one in values))}
    of_chips = [name for name in columns if name.startswith(SET)]
    figures = [name for name in of_chips if name in varied]
    columns = {name: values for name, values in columns.items() if name != "set" or not figures}
    texts = [name for name, values in columns.items() if isinstance(values[0], str) or name in OPTION_COLUMNS]
    columns = {**columns, **{name: list(map(str, columns[name])) for name in texts}}
    varying = [name for name in texts if name in varied]
    alike = {name: columns[name][0] for name in texts if name not in varied}
    of_chips = [name for name in of_chips if figures and name not in figures]
    short = {_title(name): letters(columns[name]) for name in varying}
    numbers = [name for name in SHOWN if _is_shown(name, columns) and (name in varied or name not in COMMON)]
    cells = [_texts(columns[name], short[_title(name)]) for name in varying]
    cells += [[figure_text(name, value) for value in columns[name]] for name in figures]
    cells += [_formatted(name, columns) for name in numbers]
    cells.append(["yes" if fits else "NO" for fits in columns["fits"]])
    heads = (
        *(left(_title(name)) for name in varying),
        *(right(name.removeprefix(SET)) for name in figures),
        *(right(_heading(name, alike.get("efficiency")), SHOWN[name][1]) for name in numbers),
        left("Fits"),
    )
    rest = (("", f"… {fmt.whole(more)} more points; --format csv, json or parquet contains all"),) if more else ()
    inputs = len(varying) + len(figures) + len(varied.intersection(SIZES))
    table = Table(columns=heads, rows=tuple(Row(cells=row) for row in zip(*cells, strict=True)), keep=max(inputs, 1))
    after = (Facts(lines=rest, emphasis=Emphasis.FAINT),) if rest else ()
    return (_in_common(columns, alike, of_chips, varied), *legend(short), table, *after)


def _in_common(
    columns: Mapping[str, Sequence[Any]], alike: Mapping[str, str], figures: Sequence[str], varied: Collection[str]
) -> Facts:
    """Returns texts, figures of the chip, sizes and devices that are the same at every point."""
    lines = [(_title(name), text) for name, text in alike.items() if shown_when_shared(name, text)]
    lines += [("Set", f"{name.removeprefix(SET)} {figure_text(name, columns[name][0])}") for name in figures]
    sizes = [f"{word} {fmt.whole(columns[name][0])}" for name, word in WORDS.items() if name not in varied]
    lines += [("Workload", ", ".join(sizes))] if sizes else []
    if "devices" not in varied and _is_shown("devices", columns):
        lines.append(("Devices", fmt.whole(columns["devices"][0])))
    return Facts(lines=tuple(lines))


def _is_shown(name: str, columns: Mapping[str, Sequence[Any]]) -> bool:
    if name.endswith("_80"):
        return name.replace("_80", "_low80_s") in columns
    values = columns[name]
    if name in METRICS:
        beside = columns.get(METRICS[name].beside, ())
        return list(values) != list(beside) and any(_known(one) is not None for one in values)
    return name not in OMITTED_VALUES or set(values) != {OMITTED_VALUES[name]}


def _formatted(name: str, columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """Returns the cells of a column; `tpot_80` is the interval of `tpot_s`."""
    bounds = (name.replace("_80", "_low80_s"), name.replace("_80", "_high80_s"))
    sources = bounds if name.endswith("_80") else (name,)
    return [SHOWN[name][2](*map(_known, values)) for values in zip(*map(columns.__getitem__, sources), strict=True)]


def _heading(name: str, efficiency: str | None) -> str:
    bound = efficiency == "ideal" and name in METRICS and METRICS[name].interval
    return f"{SHOWN[name][0]}, bound" if bound else SHOWN[name][0]


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize().replace("Kv ", "KV ")


def _texts(values: Sequence[Any], short: Mapping[str, str]) -> list[str]:
    return [short.get(str(value), str(value)) for value in values]


def _known(value: Any) -> float | None:
    """Returns None for a missing value, which is NaN in columns."""
    return None if value != value else float(value)  # noqa: PLR0124


def of_result(result: Result) -> Page:
    """Returns the page of a result: one point in full, or the first of many as rows."""
    if len(result) == 1:
        return analysis_page.page(result)
    answer, points = result.to_dict(0), len(result)
    numbers = {name: values for name, values in result.columns().items() if not isinstance(values[0], str)}
    varied = [name for name, values in numbers.items() if (values != values[0]).any()]
    model, hardware, _ = analysis_page.header(answer).lines
    options = f"{', '.join(answer['passes']) or 'no passes'}; efficiency: {answer['efficiency']['kind']}"
    rest = Facts(lines=(("", f"… {fmt.whole(points - MAX_ROWS)} more points; to_frame() returns all"),))
    warned = tuple(Facts(lines=(("Warning", text),), emphasis=Emphasis.WARNING) for text in result.warnings)
    table = page({name: list(values[:MAX_ROWS]) for name, values in numbers.items()}, 0, varied)
    first = Facts(lines=(model, hardware, ("Options", options)))
    return (first, *table, *((rest,) if points > MAX_ROWS else ()), *warned)
