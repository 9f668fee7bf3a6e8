"""Models that run on a chip as a page: how many, in which order, a row for each, and why others do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from llmviewer.planning.fitting import MEMORY, REFUSED, SHORT, SLOW, Fitting
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Column, Emphasis, Facts, Page, Row, Table, left, plain, right

#: Kind of reason -> what models are left out for.
KINDS = {MEMORY: "for memory", SHORT: "for their longest context", SLOW: "for speed", REFUSED: "by the engine"}
#: Models named for one kind of reason.
NAMED = 3
#: Meaning of the column of perplexities.
NOTE = "PPL: increase of the perplexity of Llama 3 8B in this format over 16 bit"


def page(found: Fitting) -> Page:
    """Returns the verdict, the order of the rows, the rows, and what was left out."""
    answer = found.to_dict()
    parts: list[Any] = [Facts(lines=(("Verdict", verdict(answer)), *_facts(found, answer)))]
    if answer["models"]:
        parts.append(_table(answer))
    lines = (*_left_out(answer), *_ends(answer))
    return (*parts, Facts(lines=lines, emphasis=Emphasis.FAINT)) if lines else tuple(parts)


def verdict(answer: dict[str, Any]) -> str:
    """Returns how many models run, and the largest one."""
    count, of_all = answer["fitting"], answer["fitting"] + len(answer["left_out"])
    is_counted = answer["devices"] > 1 and "+" not in answer["hardware"]
    chips = f"{answer['devices']} × {answer['hardware']}" if is_counted else answer["hardware"]
    where = f"on {chips} with a context of {fmt.whole(answer['context'])} tokens"
    fast = "" if answer["min_speed"] is None else f" at {fmt.digits(answer['min_speed'])} tokens/s or more"
    if not count:
        return f"none of {of_all} models runs {where}{fast}"
    largest = answer["models"][0]
    return (
        f"{count} of {of_all} models run {where}{fast}; the largest: {plain(largest['model'])}"
        f"{_format(largest)}, {fmt.per_second(largest['tokens_per_s'])} tokens/s"
    )


def _format(one: dict[str, Any]) -> str:
    return "" if one["quantization"] == "none" else f" in {one['quantization']}"


def _facts(found: Fitting, answer: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    engines = dict.fromkeys(
        one.result.analysis.system.engine.called for one in found.shown if one.result.efficiency != "ideal"
    )
    fast = "" if answer["min_speed"] is None else " and is fast enough"
    lines = [
        (
            "Order",
            f"parameters, the largest first, as no source ranks these models; each in the first format that fits{fast}",
        ),
        (
            "Speed",
            f"one user, the context full: {fmt.whole(answer['input_len'])} tokens of prompt (TTFT) and"
            f" {fmt.whole(answer['output_len'])} of answer (tokens/s)",
        ),
    ]
    return (("Engine", "; ".join(engines)), *lines) if engines else tuple(lines)


def _table(answer: dict[str, Any]) -> Table:
    models = answer["models"]
    several = len({one["engine"] for one in models}) > 1
    columns: list[tuple[Column, Callable[[dict[str, Any]], str]]] = [
        (left("Model"), lambda one: plain(one["model"])),
        (right("Params", 1), lambda one: fmt.parameters(one["parameters"])),
        (right("Active", 4), _active),
        *([(left("Engine", 2), lambda one: one["engine"])] if several else []),
        (left("Format"), lambda one: one["quantization"]),
        (right("tok/s"), lambda one: fmt.per_second(one["tokens_per_s"])),
        (right("80 %", 3), lambda one: fmt.rates(one["tpot_interval80_s"] or ())),
        (right("TTFT", 1), lambda one: fmt.duration(one["ttft_s"])),
        (right("Memory"), lambda one: fmt.memory(one["total_bytes"])),
        (
            right("Max context", 1),
            lambda one: fmt.DASH if one["max_context"] is None else fmt.whole(one["max_context"]),
        ),
        (right("PPL", 1), lambda one: _perplexity(one["perplexity_increase"])),
        (left("Same network", 5), lambda one: ", ".join(one["also"])),
    ]
    columns = [(column, cell) for column, cell in columns if any(cell(one) for one in models)]
    rows = tuple(Row(cells=tuple(cell(one) for _, cell in columns)) for one in models)
    more = answer["fitting"] - len(models)
    known = any(one["perplexity_increase"] is not None for one in models)
    note = "; ".join((*([f"{more} more: --top {answer['fitting']}"] if more else []), *([NOTE] if known else [])))
    return Table(columns=tuple(column for column, _ in columns), rows=rows, note=note)


def _active(one: dict[str, Any]) -> str:
    sparse = one["active_parameters"] < one["parameters"]
    return fmt.parameters(one["active_parameters"]) if sparse else ""


def _perplexity(increase: float | None) -> str:
    if increase is None:
        return fmt.DASH
    text = fmt.percent(increase)
    return text if text.startswith("<") else f"+{text}"


def _left_out(answer: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns how many models were left out for each kind of reason, and the first of them with theirs."""
    counts = Counter(one["kind"] for one in answer["left_out"])
    lines = []
    for kind, count in counts.items():
        first = [one for one in answer["left_out"] if one["kind"] == kind][:NAMED]
        told = "; ".join(f"{plain(one['model'])}: {one['reason']}" for one in first)
        lines.append(f"{count} {KINDS[kind]} ({told}{'; ...' if count > NAMED else ''})")
    return tuple(("Left out" if at == 0 else "", line) for at, line in enumerate(lines))


def _ends(answer: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the source of the figures of quality and the command of the first row."""
    sources = dict.fromkeys(one["source"] for one in answer["models"] if one["perplexity_increase"] is not None)
    lines = [("Quality", source) for source in sources]
    if answer["models"]:
        lines.append(("Re-run", plain(answer["models"][0]["command"])))
    return tuple(lines)
