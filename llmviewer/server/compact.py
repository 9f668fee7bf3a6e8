"""Answers made short for an assistant: values with their intervals, what they rest on, and where that is from.

Each function takes the answer of a question and the arguments with which it was asked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from llmviewer.api.calls import analyze, request
from llmviewer.language.quantity import MEMORY, METRICS, unit_of
from llmviewer.planning.run_metrics import RUN_METRICS
from llmviewer.result.devices import hardware_name
from llmviewer.simulation.call import of_server
from llmviewer.techniques.options import OPTIONS, RUN_OPTIONS, WORKLOAD
from llmviewer.timing.engine_serving import ENGINE

if TYPE_CHECKING:
    from llmviewer.calibrate.diagnosis.diagnosis import Diagnosis
    from llmviewer.planning.advise import Advice
    from llmviewer.planning.fitting import Fitting
    from llmviewer.planning.largest_rate import LargestRate
    from llmviewer.planning.largest_size import LargestSize
    from llmviewer.planning.require import Required
    from llmviewer.planning.sizing import Sizing
    from llmviewer.planning.why import Why
    from llmviewer.result.comparison import Comparison
    from llmviewer.result.explanation.explain import Explanation
    from llmviewer.result.result import Result
    from llmviewer.result.sweep import Sweep
    from llmviewer.simulation.result import Simulation

Words: TypeAlias = Mapping[str, Any]
NO_WORDS: Words = MappingProxyType({})
#: Memory that an assistant reads.
MEMORY_KEYS = (*MEMORY, "budget_bytes")
#: Level of the intervals [%].
LEVEL = "80"
#: Levels of a tree, parts of a sum, rows of a table, and sources that are shown.
LEVELS, PARTS, ROWS, SOURCES = 3, 8, 10, 24
#: Metrics of configurations side by side.
COMPARED = (
    "ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "output_tokens_per_s_per_user", "joules_per_output_token",
    "usd_per_million_output_tokens", "grams_co2_per_million_output_tokens", "break_even_utilization",
    "break_even_tokens_per_month",
)  # fmt: skip
#: Points of a sweep that are shown.
POINTS = 100
#: Facts of a sizing's configuration that an assistant needs.
OF_A_CHOICE = (
    "hardware", "devices", "replicas", "options", "ttft_s", "tpot_s", "e2e_s", "probability", "intervals",
    "output_tokens_per_s_per_device", "output_tokens_per_s_per_user", "usd_per_hour", "usd_per_million_output_tokens",
    "watts", "sessions_held", "sessions_per_usd_hour", "concurrency_per_replica", "max_concurrency_per_server", "price",
    "head_room", "command",
)  # fmt: skip


def analysis(run: Result, words: Words = NO_WORDS) -> dict[str, Any]:
    """An analysis: metrics with 80 % intervals, memory, what limits each stage, the basis of its times, sources."""
    answer = run.to_dict()
    return {
        **_short(run, answer),
        "sources": sources(run),
        "warnings": answer["warnings"],
    }


def _short(run: Result, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of an analysis.  answer: the analysis object, of one among many without the key `served`."""
    return {
        "model": answer["model"]["name"],
        "hardware": hardware_name(answer),
        "devices": answer["parallelism"]["devices"],
        "workload": answer["workload"],
        "fits": run.fits,
        "metrics": _metrics(run, answer["metrics"]),
        **_served(run, answer),
        "memory": {name: answer["memory"][name] for name in MEMORY_KEYS if name in answer["memory"]},
        "bound": {name: stage["bound"] for name, stage in answer["stages"].items()},
        "basis": basis(answer),
    }


def _served(run: Result, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as the usual engine serves the request, or why there are none; nothing for one run among many."""
    found = answer.get("served")
    if found is None or not isinstance(run.as_served, type(run)):
        return {name: text for name in ("served_unknown",) if (text := answer.get(name))}
    named = {"engine": found["engine_title"], "fits": found["fits"]}
    return {"served": {**named, "metrics": _metrics(run.as_served, found)}}


def _metrics(run: Result, found: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with their intervals: of rates and shares those of the times that they are divided by, inverted."""
    return {
        name: {"value": one.of(found), "unit": one.unit.symbol, "interval80": _interval(run, name)}
        for name, one in METRICS.items()
        if one.of(found) is not None
    }


def _interval(run: Result, name: str) -> list[float] | None:
    """Bounds of the 80 % interval of a metric, a stage's time or an operator's time; None where it is not known."""
    known = run.intervals().get(name)
    if known:
        return list(known[LEVEL])
    if name in RUN_METRICS:
        return RUN_METRICS[name].interval(run)
    parts = name.split(".")
    if parts[-1] != "time_s":
        return None
    stage = run.stage(parts[1] if parts[0] == "stages" else "decode")
    if "operators" in parts:
        operator = ".".join(parts[parts.index("operators") + 1 : -1])
        rows = stage["operators"]
        stage = next((one for one in rows if operator in (one["name"], f"{one['block']}.{one['name']}")), {})
    return (stage.get("time_interval_s") or {}).get(LEVEL)


def basis(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The basis of the times of an analysis: the data sheet, or kernels that were measured, and on which chip."""
    efficiency = answer["efficiency"]
    kinds: dict[str, list[str]] = {}
    for name, one in (efficiency.get("kernels") or {}).items():
        kinds.setdefault(one["basis"], []).append(name)
    times = answer["provenance"]["times"]
    return {"kind": efficiency["kind"], "engine": efficiency.get("engine"), "times": times, "kernels_by_basis": kinds}


def sources(*runs: Result) -> list[str]:
    """Sources of the configs, of the figures of the chips and of the calibrations of runs, each once."""
    return list(dict.fromkeys(one for run in runs for one in _of_a_run(run)))[:SOURCES]


def _of_a_run(run: Result) -> Iterable[str]:
    parts = run.parts()
    own, efficiency = parts["provenance"](), parts["efficiency"]()
    figures = (one["source"] for one in own["figures"].values() if one.get("source"))
    named = (own.get("model"), own.get("hardware"), efficiency.get("profile"), *figures)
    return (str(one) for one in named if one)


def basis_of(run: Result) -> dict[str, Any]:
    """The basis of the times of a run."""
    parts = run.parts()
    return basis({name: parts[name]() for name in ("efficiency", "provenance")})


def comparison(found: Comparison, words: Words = NO_WORDS) -> dict[str, Any]:
    """Configurations side by side: each analysis in short, its options, its ratios to the first; sources of all."""
    rows, answer = [], found.to_dict()
    for one, run in zip(answer["configurations"], found.results, strict=True):
        short = {name: value for name, value in _short(run, one).items() if name != "workload"}
        more = {name: one[name] for name in ("dtype", "techniques")}
        for name in ("ratio_to_first", "separable_from_first"):
            more[name] = {metric: one[name][metric] for metric in COMPARED if metric in one[name]}
        metrics = short["metrics"]
        short["metrics"] = {metric: metrics[metric] for metric in COMPARED if metric in metrics}
        memory = {name: short["memory"][name] for name in ("total_bytes", "budget_bytes") if name in short["memory"]}
        rests_on = {name: value for name, value in short["basis"].items() if name != "kernels_by_basis"}
        rows.append({**short, "memory": memory, "basis": rests_on, "warnings": one["warnings"], **more})
    return {"workload": answer["workload"], "configurations": rows, "sources": sources(*found.results)}


def sweep(found: Sweep, words: Words) -> dict[str, Any]:
    """The points of a sweep: sizes, what differs between its configurations, and metrics with 80 % intervals.

    What all points share stands once; the rest as one row of values per point, after the names of its columns.
    """
    frame = found.to_frame()
    differing = [name for name in frame.columns if name in OPTIONS and frame[name].nunique(dropna=False) > 1]
    kept = dict.fromkeys(("model", "hardware", *WORKLOAD, *differing, "fits", *METRICS))
    bounds = [name for name in frame.columns if name.endswith(("_low80_s", "_high80_s"))]
    listed = frame[[name for name in (*kept, *bounds) if name in frame.columns]].dropna(axis="columns", how="all")
    shared = [name for name in listed.columns if listed[name].nunique(dropna=False) == 1]
    table = listed.drop(columns=shared).head(POINTS)
    of_all = json.loads(listed[shared].head(1).to_json(orient="records"))[0]
    rows = json.loads(table.to_json(orient="values"))
    grid, left_out = found.grid, max(len(listed) - POINTS, 0)
    first = found.configurations[0].answer(request(grid.batch_sizes[:1], grid.input_lens[:1], grid.output_lens[:1]))
    named = {"of_all": of_all, "columns": [*table.columns], "rows": rows}
    return {**named, "rows_left_out": left_out, "basis": basis_of(first), "sources": sources(first)}


def simulation(found: Simulation, words: Words) -> dict[str, Any]:
    """A server under load: percentiles with their intervals, throughput, queues, and what the times rest on."""
    options = {name: value for name, value in of_server(words["hardware"], words).items() if name in RUN_OPTIONS}
    run = analyze(words["model"], words["hardware"], **options)
    answer = {name: value for name, value in found.to_dict().items() if name not in ("schema", "notes")}
    return {**answer, "basis": basis_of(run), "sources": sources(run), "warnings": list(found.notes)}


def _with_basis(found: Any, run: Result) -> dict[str, Any]:
    """A whole document, with what its times rest on."""
    answer = {name: value for name, value in found.to_dict().items() if name != "schema"}
    return {**answer, "basis": basis_of(run), "sources": sources(run)}


def advice(found: Advice, words: Words) -> dict[str, Any]:
    """Changes that were tried, and what the times rest on."""
    return _with_basis(found, found.result)


def required(found: Required | LargestSize | LargestRate, words: Words) -> dict[str, Any]:
    """Figures that meet a target, and what the times rest on."""
    return _with_basis(found, found.now)


def fitting(found: Fitting, words: Words) -> dict[str, Any]:
    """Models that run, and what the times of the first rest on; why the others do not is counted."""
    answer = {name: value for name, value in found.to_dict().items() if name != "schema"}
    reasons = Counter(one["kind"] for one in answer["left_out"])
    first = [one.result for one in found.shown[:1]]
    rests_on = {"basis": basis_of(*first), "sources": sources(*first)} if first else {}
    return {**answer, "left_out": dict(reasons), **rests_on}


def of_a_run(found: Any, words: Words) -> dict[str, Any]:
    """The answer of a question about one run, and what its times rest on."""
    options = {name: value for name, value in words.items() if name in OPTIONS and value is not None}
    return _with_basis(found, analyze(words["model"], words["hardware"], **options))


#: How a sizing has its figures, before the basis of the times of steps.
SIMULATED = "simulated request by request with times of steps as of analyze; probability: chance that every limit holds"


def sizing(found_by: Sizing, words: Words) -> dict[str, Any]:
    """A sizing: the best configuration and others, or the gate that rejected every candidate."""
    run = _best_run(found_by, words)
    answer = found_by.to_dict()
    found = [_choice(one) for one in answer["configurations"]]
    rejected = [{name: one[name] for name in ("hardware", "constraint", "text")} for one in answer["rejected"]]
    prices = [one["price"]["source"] for one in found if one.get("price")]
    made = {
        "feasible": answer["feasible"],
        "best": found[0] if found else None,
        "others": found[1:ROWS],
        "rejected": rejected,
        "request": answer["request"],
        "basis": {"latencies": SIMULATED, **({} if run is None else basis_of(run))},
        "searched": answer["searched"],
        "sources": list(dict.fromkeys([*prices, *(() if run is None else sources(run))]))[:SOURCES],
        "warnings": answer["notes"],
    }
    if not found:
        reasons = "; ".join(f"{one['hardware']}: {one['text']}" for one in rejected)
        made["reason"] = f"nothing fits: {reasons or 'no candidate'}"
    return made


def _best_run(found: Sizing, words: Words) -> Result | None:
    """An analysis of the best configuration, on which the basis of its times is read; None if there is none."""
    if found.best is None:
        return None
    workload = found.question.workload
    sizes = {"input_len": workload.input_len, "output_len": workload.output_len}
    options = {name: value for name, value in found.best.options.items() if name in OPTIONS}
    run: dict[str, Any] = {"engine": ENGINE, **options}
    run |= {name: max(round(value), 1) for name, value in sizes.items()}
    return analyze(words["model"], found.best.parts[0][0].screened.hardware, **run)


def _choice(one: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a configuration, with the 80 % intervals of its latencies; null for those of the steady state."""
    kept = {name: one[name] for name in OF_A_CHOICE if one.get(name) is not None}
    bounds = {name: levels[LEVEL] for name, levels in one["intervals"].items()}
    return {**{name: value for name, value in kept.items() if name != "intervals"}, "interval80": bounds or None}


def explanation(found: Explanation, words: Words = NO_WORDS) -> dict[str, Any]:
    """A number with its interval, its formula and largest parts, and the sources of all its leaves."""
    run = found.result
    answer = found.to_dict()
    leaves = list(dict.fromkeys(_leaf_sources(answer)))
    made = _node(answer, LEVELS)
    return {
        **made,
        "interval80": _interval(run, found.metric.removeprefix("metrics.").removeprefix("memory.")),
        "basis": basis_of(run),
        "sources": leaves[:SOURCES],
        "sources_left_out": max(len(leaves) - SOURCES, 0),
        "warnings": list(found.warnings),
    }


def _node(one: Mapping[str, Any], levels: int) -> dict[str, Any]:
    """A node of the tree with its largest parts; the others are counted."""
    children = one.get("children") or []
    made = {name: one[name] for name in ("name", "value", "unit", "formula", "values", "source") if one.get(name)}
    if not children or levels == 1:
        return made
    largest = sorted(children, key=lambda child: -abs(child.get("value") or 0.0))[:PARTS]
    more = {"parts_left_out": len(children) - PARTS} if len(children) > PARTS else {}
    return {**made, "parts": [_node(child, levels - 1) for child in largest], **more}


def _leaf_sources(one: Mapping[str, Any]) -> Iterator[str]:
    children = one.get("children") or []
    for child in children:
        yield from _leaf_sources(child)
    if not children and one.get("source"):
        yield str(one["source"])


def difference(found: Why, words: Words = NO_WORDS) -> dict[str, Any]:
    """The difference between two runs by factor, with the operators that differ most, and what both rest on."""
    answer, left_out = found.to_dict(), ("schema", "operators", "merged")
    operators = sorted(answer["operators"], key=lambda one: -abs(one["amount"]))[:ROWS]
    a, b = found.results
    return {
        **{name: value for name, value in answer.items() if name not in left_out},
        "unit": unit_of(answer["metric"]).symbol,
        "operators": operators,
        "basis": {"a": basis_of(a), "b": basis_of(b)},
        "sources": sources(a, b),
    }


def diagnosis(found: Diagnosis, words: Words) -> dict[str, Any]:
    """A measured run against its prediction: the largest parts of the difference and what to try."""
    asked = {name: value for name, value in words.items() if name not in ("measured", "stage", "passes")}
    stated = {name: value for name, value in asked.items() if value is not None}
    run = analyze(**{**stated, "engine": found.engine})
    answer = found.to_dict()
    left_out = ("schema", "operators", "kernels", "parts")
    parts = sorted(answer.get("parts") or [], key=lambda one: -abs(one.get("amount_s") or 0.0))[:ROWS]
    operators = [one for one in answer.get("operators") or [] if one.get("verdict") not in ("fine", "no kernel")]
    kept = {name: value for name, value in answer.items() if name not in left_out}
    rests_on = {"basis": basis_of(run), "sources": sources(run)}
    return {**kept, "parts": parts, "operators": operators[:ROWS], **rests_on}
