"""An inverse design as a page: the least figures in a sentence, their frontier, and the nearest real chip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmviewer.language.quantity import LATENCIES
from llmviewer.planning.largest_rate import LargestRate
from llmviewer.planning.largest_size import LargestSize
from llmviewer.planning.require import Required
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, plain, right
from llmviewer.reports.simulation_page import ending
from llmviewer.result.columns import figure_text

#: Size that varied -> its word, alone and with a number.
SIZE_WORDS = {
    "batch_size": ("batch", "batch {}"),
    "context": ("context", "{} tokens"),
    "concurrency": ("number of concurrent requests", "{} at once"),
}
#: What ends a size beside a latency -> its sentence.
ENDS = {
    "memory": "memory: {total} of a budget of {budget}",
    "max_num_seqs": "the most sequences that the engine runs at once (--max-num-seqs; -np of llama.cpp)",
    "max_context": "the longest context of the model or the engine",
    "search": "the end of the search",
}


def page(found: Required | LargestSize | LargestRate) -> Page:
    """Returns the verdict, the frontier if several figures vary, and what was assumed."""
    if isinstance(found, LargestRate):
        return (Facts(lines=_rate_lines(found)),)
    if isinstance(found, LargestSize):
        return (Facts(lines=_size_lines(found)),)
    parts = [Facts(lines=(("Verdict", verdict(found)), *_facts(found)))]
    if len(found.solutions) > 1:
        parts.append(_frontier(found))  # type: ignore[arg-type]
    return (*parts, Facts(lines=_assumed(found), title="Assumptions", emphasis=Emphasis.FAINT))


def verdict(found: Required) -> str:
    """Returns the least figures in a sentence, or why no figure meets the target."""
    name, target = LATENCIES[found.metric].label, fmt.duration(found.target)
    varied = " and ".join(found.vary)
    best = found.best
    if best is None:
        if not found.searched:
            return f"no {varied} meets {name} {target}: it is {fmt.duration(found.floor)} with any"
        return f"no {varied} meets {name} {target}: a thousand times as much leaves {fmt.duration(found.floor)}"
    least = {figure: value for figure, value in best.figures.items() if figure not in found.idle}
    if not least:
        return f"{name} {target}: it is {fmt.duration(best.reached)} with any {varied}"
    figures = ", ".join(_figure(found, figure, value) for figure, value in least.items())
    which = "the frontier passes through" if len(found.solutions) > 1 else "it takes"
    return f"{name} {target}: {which} {figures}"


def _figure(found: Required, name: str, value: float) -> str:
    own = found.to_dict()["own"][name]
    times = "" if not own else f" ({fmt.times(value / own)} of {found.configuration.chip.name})"
    return f"{name} {figure_text(name, value)}{times}"


def _rate_lines(found: LargestRate) -> tuple[tuple[str, str], ...]:
    """Returns the highest rate in a sentence, the limit that ends it, and the command."""
    answer, latencies = found.to_dict(), found.found.latencies()
    limits = " and ".join(
        f"{LATENCIES[one.metric].label} {one.statistic} ≤ {fmt.duration(one.seconds)}" for one in found.limited
    )
    if not found.holds:
        return (("Verdict", f"no rate of requests keeps {limits}"),)
    rate = answer["solutions"][0]["request_rate"]
    between = answer["intervals"]["request_rate"].get("80")
    interval = "" if between is None else f" (80 %: {' to '.join(map(fmt.per_second, between))})"
    reached = ", ".join(
        f"{LATENCIES[one.metric].label} {one.statistic} is {fmt.duration(latencies[one.metric][one.statistic])}"
        for one in found.limited
    )
    limited = (("Limited by", ending(answer["beyond"])),) if "beyond" in answer else ()
    return (
        ("Verdict", f"the highest rate with {limits} is {fmt.per_second(rate)} requests/s{interval}"),
        *limited,
        ("Reached", f"{reached} at this rate"),
        ("Server", f"{found.found.setting.hardware}, engine {found.found.setting.engine}; simulated"),
        ("Re-run", plain(answer["command"])),
    )


def _size_lines(found: LargestSize) -> tuple[tuple[str, str], ...]:
    """Returns the largest size in a sentence, what ends it, and the command."""
    answer = found.to_dict()
    noun, counted = SIZE_WORDS[found.name]
    limits = " and ".join(f"{LATENCIES[one.metric].label} ≤ {fmt.duration(one.seconds)}" for one in found.limits)
    within = f" with {limits}" if limits else " that fits"
    beyond = answer["beyond"]
    ends = "; ".join(_end(name, found, beyond) for name in answer["limited_by"])
    next_size = counted.format(fmt.whole(beyond[found.name]))
    if found.best is None:
        return (("Verdict", f"no {noun}{within}: {ends} at {next_size}"),)
    shown = (f"{LATENCIES[one].label} {fmt.duration(answer['at_most'][one])}" for one in ("ttft_s", "tpot_s"))
    engine = found.configuration.system.engine
    lines = [
        ("Verdict", f"the largest {noun}{within} is {fmt.whole(found.best.size)}: {', '.join(shown)}"),
        *((("Engine", engine.asked),) if found.name == "concurrency" else ()),
        ("Limited by", f"{ends} at {next_size}"),
        (
            "Memory",
            f"{fmt.memory(answer['at_most']['total_bytes'])} of {fmt.memory(answer['at_most']['budget_bytes'])}",
        ),
        ("Re-run", plain(answer["command"])),
    ]
    return tuple(lines)


def _end(name: str, found: LargestSize, beyond: Mapping[str, Any]) -> str:
    """Returns what a size breaks."""
    if name in LATENCIES:
        return f"{LATENCIES[name].label} {fmt.duration(beyond[name])}"
    if name == "memory" and found.name == "concurrency" and found.best is not None:
        return f"memory: the KV cache holds {fmt.whole(found.best.size)}, and others wait"
    total, budget = (fmt.memory(beyond.get(key)) for key in ("total_bytes", "budget_bytes"))
    return ENDS[name].format(total=total, budget=budget)


def _facts(found: Required) -> tuple[tuple[str, str], ...]:
    name = LATENCIES[found.metric].label
    real = fmt.duration(float(getattr(found.now, found.metric)))
    lines = [("Now", f"{name} {real} on {found.configuration.chip.name}")]
    if found.bound is not None:
        (rate,) = found.searched
        lines.append(("Roofline", f"{rate} {figure_text(rate, found.bound)} if kernels reached the data sheet"))
    if found.best is not None:
        near = found.nearest
        text = "no known chip meets the target in this way"
        if near is not None:
            text = (
                f"{near.hardware}: {name} {fmt.duration(near.reached)}, {fmt.times(near.excess)} of a figure required"
            )
        if set(found.vary) - set(found.idle):
            lines.append(("Nearest", text))
        lines.append(("Re-run", plain(found.command(found.best))))
    return tuple(lines)


def _frontier(found: Required) -> Table:
    rows = tuple(
        Row(cells=(*(figure_text(name, value) for name, value in one.figures.items()), fmt.duration(one.reached)))
        for one in found.solutions
    )
    columns = (*(right(name) for name in found.solutions[0].figures), left(LATENCIES[found.metric].label))
    return Table(columns=columns, rows=rows, title="Frontier: each line meets the target")


def _assumed(found: Required) -> tuple[tuple[str, str], ...]:
    return (
        ("Kernels", "reach the same share of the new figures as of the real ones; fixed times stay"),
        ("Chip", f"all other figures are those of {found.configuration.chip.name}"),
    )
