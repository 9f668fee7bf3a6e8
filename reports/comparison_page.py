"""Configurations side by side, one column each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from llmviewer.language.quantity import MEMORY as DECLARED
from llmviewer.language.quantity import METRICS, QUANTITIES, Quantity
from llmviewer.reports import format as fmt
from llmviewer.reports.crossover_page import legend, letters
from llmviewer.reports.memory_bar import assumed_limits, beyond_model
from llmviewer.reports.page import Align, Column, Emphasis, Facts, Page, Row, Table
from llmviewer.reports.stage_table import BOUND_STYLES
from llmviewer.result.comparison import Comparison, ranked, runs
from llmviewer.result.describe import number
from llmviewer.result.devices import hardware_name
from llmviewer.result.result import Result

Configuration: TypeAlias = dict[str, Any]
Show: TypeAlias = Callable[[Configuration], str]
#: Row label -> long text of that row -> the letter that replaces it.
Shorts: TypeAlias = Mapping[str, Mapping[str, str]]

#: Engine of ideal times.
NO_ENGINE = "none: the data sheet's roofline"
STYLES = {**BOUND_STYLES, "NO": "bold red"}
#: Properties of a configuration: a row if they differ, otherwise stated once above the table.
PROPERTIES: dict[str, Show] = {
    "Model": lambda c: str(c["model"]["name"]),
    "Hardware": hardware_name,
    "Dtype": lambda c: str(c["dtype"]),
    "Engine": lambda c: str(c["efficiency"].get("engine_title", NO_ENGINE)),
}
#: Label of ratios to the first configuration; trailing blanks make the keys distinct.
RATIO = "  vs first"
INTERVAL = "  80 %"
TERM = "  term"
#: Mark of a ratio whose 80 % intervals overlap, and its meaning.
TIED = "≈"
TIED_MEANING = "not separable from the first: the 80 % intervals overlap, even without the errors that both share"


def _interval(c: Configuration, metric: str) -> str:
    return fmt.bounds(*c["metrics"]["intervals"][metric]["80"]) if c["metrics"]["intervals"] else fmt.DASH


def _ratio(c: Configuration, metric: str) -> str:
    """Returns the ratio to the first configuration, marked where it is not separable from 1."""
    ratio = c["ratio_to_first"][metric]
    tied = c["separable_from_first"][metric] is False and ratio != 1.0
    return f"{TIED} {fmt.times(ratio)}" if tied else fmt.times(ratio)


def _figure(part: str, name: str, c: Configuration) -> str:
    """Returns a declared figure of a part of a configuration."""
    return fmt.figure(name, QUANTITIES[name].of(c[part]))


def _term(c: Configuration) -> str:
    return fmt.term(c["provenance"]["price"])


def _rows_of(name: str, at: int) -> Iterator[tuple[str, Show]]:
    """Yields the rows of a metric; trailing blanks, its place among the metrics, make the keys distinct."""
    yield METRICS[name].label, partial(_figure, "metrics", name)
    if name in ("ttft_s", "tpot_s"):
        yield f"{INTERVAL}{' ' * at}", partial(_interval, metric=name)
    if name == "usd_per_hour":
        yield TERM, _term
    if METRICS[name].rank == 0:
        yield f"{RATIO}{' ' * at}", partial(_ratio, metric=name)


def _is_new(one: Quantity, c: Configuration) -> bool:
    """Whether a metric is known and says more than the one that it stands beside."""
    return one.of(c["metrics"]) is not None and not one.adds_nothing(c["metrics"])


def _has_intervals(c: Configuration) -> bool:
    return bool(c["metrics"]["intervals"])


#: Rows that are bounds where times are ideal, and rows that stand out.
BOUNDS = {one.label for one in METRICS.values() if one.interval}
MAIN = {one.label for one in METRICS.values() if one.rank == 0}
CHIP: dict[str, Show] = {
    "Devices": lambda c: fmt.whole(c["parallelism"]["devices"]),
    "Compute dtype": lambda c: str(c["roofline"]["compute_dtype"]),
    "Dense TFLOP/s": lambda c: fmt.tera(c["roofline"]["peak_flops_per_s"]),
    "Bandwidth": lambda c: fmt.bandwidth(c["roofline"]["bandwidth_bytes_per_s"]),
}
#: Tokens of one round of speculative decoding.
ROUND: dict[str, Show] = {
    "Drafted tokens": lambda c: fmt.digits(_round(c)[0]),
    "Tokens/round": lambda c: fmt.digits(_round(c)[1]),
}
MEMORY: dict[str, Show] = {
    **{one.label: partial(_figure, "memory", name) for name, one in DECLARED.items()},
    "Host memory": lambda c: fmt.memory(c["memory"]["host_bytes"]),
    "Budget": lambda c: fmt.memory(c["memory"]["budget_bytes"]),
    "Fits": lambda c: "yes" if c["memory"]["fits"] else "NO",
    "Max batch size": lambda c: fmt.whole(c["memory"]["max_batch_size"]),
    "Max context": lambda c: fmt.whole(c["memory"]["max_context_len"]),
    "  built for": lambda c: fmt.whole(c["memory"]["model_max_context_len"]),
}
TIMES: dict[str, Show] = {
    "Prefill bound": lambda c: str(c["stages"]["prefill"]["bound"]),
    "Decode bound": lambda c: str(c["stages"]["decode"]["bound"]),
    **{label: show for at, name in enumerate(METRICS) for label, show in _rows_of(name, at)},
}
#: Rows that are shown only if a configuration needs them.
OPTIONAL_ROWS: dict[str, Callable[[Configuration], bool]] = {
    "Devices": lambda c: c["parallelism"]["devices"] > 1,
    "Host memory": lambda c: c["memory"]["host_bytes"] > 0,
    TERM: lambda c: c["provenance"]["price"] is not None,
    "  built for": lambda c: bool(beyond_model(c["memory"])),
    **dict.fromkeys(ROUND, lambda c: c["generation"] is not None),
    **{one.label: partial(_is_new, one) for one in METRICS.values()},
    **{f"{INTERVAL}{' ' * at}": _has_intervals for at in range(len(METRICS))},
}


def _round(c: Configuration) -> tuple[float, float]:
    """Returns drafted and generated tokens per round; plain decoding has 0 and 1."""
    found = c["generation"]
    if found is None:
        return 0.0, 1.0
    return found.get("drafted_tokens", found["new_tokens"] - 1), found["tokens_per_round"]


def configuration_rows(first: Configuration) -> dict[str, Show]:
    """Returns the properties of a configuration, including every technique and the sizes of the request."""

    def technique(name: str) -> Show:
        return lambda c: str(c["techniques"][name]) or "–"

    titles = {name: name.replace("_", " ").capitalize().replace("Kv ", "KV ") for name in first["techniques"]}
    return PROPERTIES | {title: technique(name) for name, title in titles.items()} | {"Workload": _workload}


def _workload(c: Configuration) -> str:
    sizes = [fmt.whole(c["workload"][name]) for name in ("batch_size", "input_len", "output_len")]
    return "batch {}, input {}, output {}".format(*sizes)


def page(comparison: Comparison) -> Page:
    """Returns common properties, the table and warnings; of every known chip a row each."""
    if comparison.refused is not None:
        return _ranking(comparison.results, comparison.refused)
    return side_by_side(comparison.configurations())


def _speeds(result: Result) -> str:
    """Returns the bounds of tokens/s per user from those of the time per token."""
    known = result.tpot_interval80()
    return fmt.DASH if known is None else fmt.rates(known)


#: Heading of a figure of a ranking, its rank, and what a result has there.
RANKED: tuple[tuple[str, int, Callable[[Result], str]], ...] = (
    ("tok/s/user", 0, lambda r: fmt.per_second(1.0 / float(r.tpot_s)) if float(r.tpot_s) > 0.0 else fmt.DASH),
    ("80 %", 3, _speeds),
    ("TTFT", 0, lambda r: fmt.duration(float(r.ttft_s))),
    ("E2E", 2, lambda r: fmt.duration(float(r.e2e_s))),
    ("J/token", 4, lambda r: fmt.figure("joules_per_output_token", known(r, "joules_per_output_token"))),
    ("$/Mtok", 4, lambda r: fmt.figure("usd_per_million_output_tokens", known(r, "usd_per_million_output_tokens"))),
    ("Term", 5, lambda r: fmt.term(_price(r))),
    ("Memory", 0, lambda r: fmt.memory(float(np.max(r.analysis.memory.total_bytes)))),
    ("Budget", 1, lambda r: fmt.memory(float(np.max(r.analysis.memory.budget_bytes)))),
)


def _price(result: Result) -> dict[str, Any] | None:
    found = result.figures.costs.price_of(result.analysis.system.chip)
    return None if found is None else found.to_dict()


def known(result: Result, name: str) -> float | None:
    """Returns a metric; None where it is not known."""
    return number(result.figures[name][0])


def _ranking(results: tuple[Result, ...], refused: Mapping[str, str]) -> Page:
    """Returns a row per chip, in the order of the results, and why other chips do not take the run."""
    (first,) = Comparison(results=results[:1]).configurations()
    holding = sum(result.fits for result in results)
    lines = [(title, show(first)) for title, show in configuration_rows(first).items() if title != "Hardware"]
    note = f"{holding} of {len(results) + len(refused)} chips hold it, the fastest per user first"
    columns = (
        Column(title="Hardware", align=Align.LEFT),
        *(Column(title=title, rank=rank) for title, rank, _ in RANKED),
        Column(title="Fits", align=Align.LEFT, styles=STYLES),
    )
    rows = tuple(
        Row(
            cells=(
                result.analysis.system.chip.name,
                *(cell(result) for _, _, cell in RANKED),
                "yes" if result.fits else "NO",
            )
        )
        for result in results
    )
    table = Table(columns=columns, rows=rows, note=note)
    if not refused:
        return (Facts(lines=tuple(lines)), table)
    reasons: dict[str, list[str]] = {}
    for chip, text in refused.items():
        reasons.setdefault(text.replace(chip, "the chip"), []).append(chip)
    told = tuple(("Refused", f"{text}: {', '.join(chips)}") for text, chips in reasons.items())
    return (Facts(lines=tuple(lines)), table, Facts(lines=told, emphasis=Emphasis.FAINT))


def side_by_side(configurations: list[Configuration]) -> Page:
    """Returns the page of the given configurations, first one as reference."""
    differing = [
        label
        for label, show in configuration_rows(configurations[0]).items()
        if len({show(c) for c in configurations}) > 1
    ]
    made = configuration_rows(configurations[0])
    short = {label: letters([made[label](c) for c in configurations]) for label in differing}
    return (
        *_decision(configurations, _names(configurations, differing)),
        _common(configurations, differing),
        *legend(short),
        _table(configurations, differing, short),
        *_warnings(configurations, differing),
    )


def _names(configurations: list[Configuration], differing: list[str]) -> list[str]:
    """Returns what tells each configuration from the others, with its devices in front where their number differs."""
    made = configuration_rows(configurations[0])
    labels = [label for label in differing if not label.endswith("parallel size")]
    counts = [c["parallelism"]["devices"] for c in configurations]
    if len(set(counts)) > 1 and "Hardware" not in labels:
        labels.append("Hardware")
    names = [", ".join(made[label](c) for label in labels) for c in configurations]
    return [f"{n} × {name}" if len(set(counts)) > 1 else name for n, name in zip(counts, names, strict=True)]


def _decision(configurations: list[Configuration], names: list[str]) -> tuple[Facts, ...]:
    """Returns a sentence on which configuration to take: for its time, and for the money."""
    fits = [at for at, c in enumerate(configurations) if runs(c)]
    if len(configurations) < 2 or len(set(names)) < len(names):
        return ()
    if len(fits) < 2:
        starts = "" if all(runs(c) or not c["memory"]["fits"] for c in configurations) else " and starts"
        text = f"{names[fits[0]]}: the only one that fits{starts}" if fits else f"none fits{starts}"
        return (Facts(lines=(("Take", text),)),)
    told = [
        _told(configurations, names, ranked(configurations, METRICS["e2e_s"]), "e2e_s"),
        *_roomier(configurations, names),
    ]
    priced = ranked(configurations, METRICS["usd_per_million_output_tokens"])
    if len(priced) > 1:
        told.append(_told(configurations, names, priced, "usd_per_million_output_tokens"))
        terms = {_term(configurations[at]) for at in priced}
        if len(terms) > 1:
            each = (f"{names[at]} {_term(configurations[at])}" for at in priced)
            told.append(f"their prices are of different terms: {', '.join(each)}")
    unpriced = [names[at] for at in fits if at not in priced]
    if unpriced and priced:
        told.append(f"no price of {', '.join(unpriced)} is known")
    return (Facts(lines=(("Take", "; ".join(told)),)),)


def _roomier(configurations: list[Configuration], names: list[str]) -> Iterator[str]:
    """Yields which configuration holds the most sequences of this length, where the devices are the same."""
    rooms = [c["memory"]["max_batch_size"] or 0 for c in configurations]
    devices = {(c["hardware"]["name"], c["parallelism"]["devices"]) for c in configurations}
    if len(devices) == 1 and rooms.count(max(rooms)) == 1:
        most, others = rooms.index(max(rooms)), fmt.whole(sorted(rooms)[-2])
        yield f"{names[most]} for its memory: {fmt.whole(max(rooms))} sequences of this length at once against {others}"


def _told(configurations: list[Configuration], names: list[str], order: list[int], metric: str) -> str:
    """Returns which configuration has the least of a metric, and what the next one has.  order: the least first."""
    one, (best, next_best) = METRICS[metric], order[:2]
    values = [one.of(configurations[at]["metrics"]) for at in (best, next_best)]
    told = [fmt.told(metric, value) for value in values]
    if told[0] == told[1]:
        return f"{names[best]} and {names[next_best]} have the same {one.title}, {told[0]}"
    ends = [configurations[at]["metrics"]["intervals"].get(one.interval) for at in (best, next_best)]
    tied = all(ends) and ends[0]["80"][1] >= ends[1]["80"][0]
    amounts = " against ".join(told)
    if metric != "e2e_s":
        return f"{names[best]} for the money: {amounts} per million output tokens"
    return f"{names[best]} for its speed: {one.label} {amounts}{', within the errors of both' * bool(tied)}"


def _common(configurations: list[Configuration], differing: list[str]) -> Facts:
    first = configurations[0]
    pairs = [(label, show(first)) for label, show in configuration_rows(first).items() if label not in differing]
    return Facts(lines=(*pairs, *_times(configurations), *_limits(configurations)))


def _limits(configurations: list[Configuration]) -> list[tuple[str, str]]:
    """Returns what the largest batch and context assume, once or per configuration if it differs."""
    texts = [assumed_limits(c["memory"]) for c in configurations]
    if len(set(texts)) == 1:
        return [("Limits for", texts[0])]
    return [("Limits for" if n == 1 else "", f"column {n}: {text}") for n, text in enumerate(texts, 1)]


def _times(configurations: list[Configuration]) -> list[tuple[str, str]]:
    """Returns the provenance of times, once or per chip if it differs."""
    kind = configurations[0]["efficiency"]["kind"]
    by_chip = {c["hardware"]["name"]: c["provenance"]["times"] for c in configurations}
    if len(set(by_chip.values())) == 1:
        return [("Times", f"{kind}: {configurations[0]['provenance']['times']}")]
    return [("Times", kind), *(("", f"{chip}: {times}") for chip, times in by_chip.items())]


def _table(configurations: list[Configuration], differing: list[str], short: Shorts) -> Table:
    """Returns the table: the first differing property is the heading, the others are the first rows."""
    made = configuration_rows(configurations[0])
    heading = made[differing[0]] if differing else made["Hardware"]
    sections = [
        {label: show for label, show in section.items() if _is_shown(label, configurations)}
        for section in ({label: made[label] for label in differing[1:]}, CHIP, ROUND, MEMORY, TIMES)
    ]
    rows = [
        Row(
            cells=(
                _label(label, configurations),
                *(short.get(label, {}).get(show(c), show(c)) for c in configurations),
            ),
            emphasis=_emphasis(label),
            closes=label == list(section)[-1] and section is not sections[-1],
        )
        for section in sections
        for label, show in section.items()
    ]
    titles = [heading(c) for c in configurations]
    first = differing[0] if differing else "Hardware"
    columns = (
        Column(title=first, align=Align.LEFT),
        *(Column(title=short.get(first, {}).get(title, title), styles=STYLES) for title in titles),
    )
    note = f"{TIED} {TIED_MEANING}" if any(TIED in cell for row in rows for cell in row.cells) else ""
    return Table(columns=columns, rows=tuple(rows), keep=1, note=note)


def _label(label: str, configurations: list[Configuration]) -> str:
    """Returns the label of a row; times of the roofline are called bounds."""
    ideal = all(c["efficiency"]["kind"] == "ideal" for c in configurations)
    return f"{label}, bound" if ideal and label in BOUNDS else label.rstrip()


def _is_shown(label: str, configurations: list[Configuration]) -> bool:
    return label not in OPTIONAL_ROWS or any(OPTIONAL_ROWS[label](c) for c in configurations)


def _emphasis(label: str) -> Emphasis:
    if label in PROPERTIES or label in (*MAIN, "Fits"):
        return Emphasis.GROUP
    return Emphasis.FAINT if label.startswith("  ") else Emphasis.PLAIN


def _warnings(configurations: list[Configuration], differing: list[str]) -> tuple[Facts, ...]:
    """Returns each warning once, with the configurations it concerns unless it concerns all."""
    concerned: dict[str, list[str]] = {}
    made = configuration_rows(configurations[0])
    for c in configurations:
        name = " ".join(made[label](c) for label in differing)
        for text in (*c["warnings"], *(() if c["memory"]["fits"] else ("does not fit",))):
            concerned.setdefault(text, []).append(name)
    lines = tuple(
        ("Warning", text if len(names) == len(configurations) else f"{text}: {', '.join(names)}")
        for text, names in concerned.items()
    )
    return (Facts(lines=lines, emphasis=Emphasis.WARNING),) if lines else ()
