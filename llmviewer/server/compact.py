"""Documents made short for an assistant: values with their intervals, what they rest on, and where that is from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: Metrics that an assistant reads, with their units.
METRICS: Mapping[str, str] = {
    "ttft_s": "s",
    "tpot_s": "s",
    "e2e_s": "s",
    "output_tokens_per_s": "tokens/s",
    "output_tokens_per_s_per_user": "tokens/s",
    "prefill_mfu": "share of the peak",
    "decode_mbu": "share of the bandwidth",
}
MEMORY = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "framework_bytes", "total_bytes", "budget_bytes")
#: Level of the intervals [%].
LEVEL = "80"
#: Levels of a tree, parts of a sum, rows of a table, and sources that are shown.
LEVELS, PARTS, ROWS, SOURCES = 3, 8, 10, 24
#: Facts of a sizing's configuration that an assistant needs.
OF_A_CHOICE = (
    "hardware", "devices", "replicas", "options", "ttft_s", "tpot_s", "e2e_s", "probability",
    "output_tokens_per_s_per_device", "output_tokens_per_s_per_user", "usd_per_hour", "usd_per_million_output_tokens",
    "watts", "price", "head_room", "command",
)  # fmt: skip


def analysis(answer: Mapping[str, Any], *, fits: bool) -> dict[str, Any]:
    """An analysis: metrics with 80 % intervals, memory, what limits each stage, the basis of its times, sources."""
    return {
        "model": answer["model"]["name"],
        "hardware": answer["hardware"]["name"],
        "devices": answer["parallelism"]["devices"],
        "workload": answer["workload"],
        "fits": fits,
        "metrics": _metrics(answer["metrics"]),
        "memory": {name: answer["memory"][name] for name in MEMORY if name in answer["memory"]},
        "bound": {name: stage["bound"] for name, stage in answer["stages"].items()},
        "basis": basis(answer),
        "sources": _sources(answer),
        "warnings": answer["warnings"],
    }


def _metrics(found: Mapping[str, Any]) -> dict[str, Any]:
    intervals = found["intervals"]
    return {
        name: {"value": found[name], "unit": unit, "interval80": intervals.get(name, {}).get(LEVEL)}
        for name, unit in METRICS.items()
        if found.get(name) is not None
    }


def basis(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The basis of the times of an analysis: the data sheet, or kernels that were measured, and on which chip."""
    efficiency = answer["efficiency"]
    kinds: dict[str, list[str]] = {}
    for name, one in (efficiency.get("kernels") or {}).items():
        kinds.setdefault(one["basis"], []).append(name)
    times = answer["provenance"]["times"]
    return {"kind": efficiency["kind"], "engine": efficiency.get("engine"), "times": times, "kernels_by_basis": kinds}


def _sources(answer: Mapping[str, Any]) -> list[str]:
    """Sources of the config, of the figures of the chip and of the calibration."""
    own = answer["provenance"]
    figures = (one["source"] for one in own["figures"].values() if one.get("source"))
    named = (own.get("model"), own.get("hardware"), answer["efficiency"].get("profile"), *figures)
    return list(dict.fromkeys(str(one) for one in named if one))[:SOURCES]


def comparison(answer: Mapping[str, Any], fits: Sequence[bool]) -> dict[str, Any]:
    """Configurations side by side: each analysis in short, its options, its ratios to the first."""
    rows = []
    for one, fitting in zip(answer["configurations"], fits, strict=True):
        short = analysis(one, fits=fitting)
        more = {name: one[name] for name in ("dtype", "techniques", "ratio_to_first", "separable_from_first")}
        rows.append({**short, **more})
    return {"workload": answer["workload"], "configurations": rows}


def sizing(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A sizing: the best configuration and others, or the gate that rejected every candidate."""
    found = [_choice(one) for one in answer["configurations"]]
    rejected = [{name: one[name] for name in ("hardware", "constraint", "text")} for one in answer["rejected"]]
    made = {
        "feasible": answer["feasible"],
        "best": found[0] if found else None,
        "others": found[1:ROWS],
        "rejected": rejected,
        "request": answer["request"],
        "basis": "step times as of analyze, simulated request by request; probability: chance that every limit holds",
        "searched": answer["searched"],
        "sources": list(dict.fromkeys(one["price"]["source"] for one in found if one.get("price"))),
        "warnings": answer["notes"],
    }
    if not found:
        reasons = "; ".join(f"{one['hardware']}: {one['text']}" for one in rejected)
        made["reason"] = f"nothing fits: {reasons or 'no candidate'}"
    return made


def _choice(one: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one[name] for name in OF_A_CHOICE if one.get(name) is not None}


def explanation(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A number with its formula and largest parts, and the sources of all its leaves."""
    sources = list(dict.fromkeys(_leaf_sources(answer)))
    made = _node(answer, LEVELS)
    return {**made, "sources": sources[:SOURCES], "sources_left_out": max(len(sources) - SOURCES, 0)}


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


def difference(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The difference between two runs by factor, with the operators that differ most."""
    left_out = ("schema", "operators", "merged")
    operators = sorted(answer["operators"], key=lambda one: -abs(one["amount"]))[:ROWS]
    return {**{name: value for name, value in answer.items() if name not in left_out}, "operators": operators}


def diagnosis(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A measured run against its prediction: the largest parts of the difference and what to try."""
    left_out = ("schema", "operators", "kernels", "parts")
    parts = sorted(answer.get("parts") or [], key=lambda one: -abs(one.get("amount_s") or 0.0))[:ROWS]
    operators = [one for one in answer.get("operators") or [] if one.get("verdict") not in ("fine", "no kernel")]
    kept = {name: value for name, value in answer.items() if name not in left_out}
    return {**kept, "parts": parts, "operators": operators[:ROWS]}
