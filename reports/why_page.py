"""The difference between two runs as a page: a sentence, the factors, the operators, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmviewer.language.quantity import LATENCIES, QUANTITIES
from llmviewer.planning.why import Why
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, plain, right
from llmviewer.reports.plots.waterfall import group

#: Metric -> its name in a sentence; others are their own words.
#: Factor, or its name before a dot -> formatter of its values; others are printed as they are.
FACTORS: dict[str, Callable[[Any], str]] = {
    "bandwidth": fmt.bandwidth,
    "peak": fmt.flops_per_s,
    "vector units": fmt.flops_per_s,
    "capacity": fmt.capacity,
    "L2": fmt.memory,
    "links": fmt.bandwidth,
    "vector": fmt.flops_per_s,
    "l2": fmt.memory,
    "l2_bandwidth": fmt.bandwidth,
    "on_chip": fmt.memory,
    "special": lambda rate: _counted(rate, "OP/s"),
    "power": lambda watts: _counted(watts, "W"),
    **dict.fromkeys(("launch", "latency"), fmt.times),
    **dict.fromkeys(("batch_size", "input_len", "output_len"), fmt.whole),
}
#: A part of the difference that is told in the sentence.
LEAST_TOLD = 0.02
#: Amounts against the difference from which on the sentence tells amounts, as shares would exceed the whole.
OPPOSED = 0.25
#: Probability from which on a difference is called real, and from which on likely.
REAL, LIKELY = 0.9, 0.7
#: Probabilities beyond this are printed as more than it.
MOST = 0.999


def page(found: Why) -> Page:
    """Returns the page of a difference between two runs."""
    answer = found.to_dict()
    lines = [("Answer", sentence(answer)), *(_line(answer, name) for name in "ab"), ("Certainty", certainty(answer))]
    parts: list[Any] = [Facts(lines=tuple((label, plain(text)) for label, text in lines))]
    if answer["factors"]:
        parts.append(_factors(answer))
    if answer["operators"] and answer["difference"]:
        parts.append(_operators(answer))
    together = [
        ("Together", f"{', '.join(one['factors'])}: {plain(one['reason'])} (between A and B)")
        for one in answer["merged"]
    ]
    if together:
        parts.append(Facts(lines=tuple(together), title="Factors that change only together"))
    warnings = tuple(("Warning", plain(text)) for text in answer["warnings"])
    return (*parts, Facts(lines=warnings, emphasis=Emphasis.WARNING)) if warnings else tuple(parts)


def value(metric: str, number: float | None) -> str:
    """Returns a value of a metric with its unit."""
    return fmt.told(metric, number)


def change(metric: str, number: float) -> str:
    """Returns a signed amount of a metric with its unit."""
    sign = "+" if number > 0 else "−" if number < 0 else ""
    return f"{sign}{value(metric, abs(number))}"


def label(metric: str) -> str:
    """Returns the name of a metric in a sentence."""
    return LATENCIES[metric].label if metric in LATENCIES else QUANTITIES[metric].title


def sentence(answer: dict[str, Any]) -> str:
    """Returns the difference and its largest parts in words."""
    metric, a, b = answer["metric"], answer["a"], answer["b"]
    values = f"{label(metric)} {value(metric, b)} against {value(metric, a)}"
    if not answer["difference"]:
        inner = "; their factors cancel" if any(one["amount"] for one in answer["factors"]) else ""
        return f"no difference: {label(metric)} is {value(metric, a)} in A and B{inner}"
    return f"{_ratio(answer)}: {values} ({change(metric, answer['difference'])}); {_parts(answer)}"


def _ratio(answer: dict[str, Any]) -> str:
    """Returns the ratio of the two runs: `B (h100-sxm) is 1.75× as fast as A (a100-80gb-sxm)`."""
    metric, a, b = answer["metric"], answer["a"], answer["b"]
    first, second = _names(answer)
    if not min(a, b) > 0.0:
        return f"{second} differs from {first}"
    if metric in LATENCIES:
        return (
            f"{second} {f'is {fmt.times(a / b)} as fast' if a > b else f'takes {fmt.times(b / a)} as long'} as {first}"
        )
    return f"{second} has {fmt.times(b / a)} the {label(metric)} of {first}"


def _names(answer: dict[str, Any]) -> tuple[str, str]:
    """Returns A and B, with the chips or else the models where these differ."""
    told = {one["name"]: one for factor in answer["factors"] for one in factor.get("together", [factor])}
    one = told.get("kernels") or told.get("model")
    return ("A", "B") if one is None else (f"A ({plain(str(one['a']))})", f"B ({plain(str(one['b']))})")


def _parts(answer: dict[str, Any]) -> str:
    """Returns the factors of a difference as shares, or as amounts where large ones oppose each other."""
    metric, whole = answer["metric"], answer["difference"]
    parts = [(_name(one), one["amount"]) for one in answer["factors"] if abs(one["amount"] / whole) >= LEAST_TOLD]
    against = [(name, amount) for name, amount in parts if amount / whole < 0.0]
    if any(amount / whole < -OPPOSED for _, amount in against):
        return ", ".join(f"{name} {change(metric, amount)}" for name, amount in parts)
    shares = [(fmt.percent(round(amount / whole, 2)), name) for name, amount in parts if amount / whole > 0.0]
    rest = "".join(f", {share} {name}" for share, name in shares[1:])
    told = f"{shares[0][0]} of the difference is {shares[0][1]}{rest}"
    opposed = ", ".join(f"{name} ({change(metric, amount)})" for name, amount in against)
    return f"{told}; against it: {opposed}" if against else told


def _name(factor: dict[str, Any]) -> str:
    return str(factor["name"]).replace("_", " ")


def _line(answer: dict[str, Any], name: str) -> tuple[str, str]:
    metric, interval = answer["metric"], answer["interval80"][name]
    low_high = (
        "" if interval is None else f" (80 % interval {value(metric, interval[0])} to {value(metric, interval[1])})"
    )
    line = answer["lines"][name]
    return name.upper(), f"{line + ': ' if line else ''}{value(metric, answer[name])}{low_high}"


def certainty(answer: dict[str, Any]) -> str:
    """Returns whether the sign of the difference holds, by the intervals of both values."""
    found = answer["probability"]
    if not answer["difference"]:
        return "nothing to judge"
    if found is None:
        counted = all(one is None for one in answer["interval80"].values()) and not answer["metric"].endswith("_s")
        return "counted, not predicted" if counted else "unknown: times of the data sheet are bounds without intervals"
    verdict = "real" if found >= REAL else "likely" if found >= LIKELY else "not separable"
    told = f"more than {MOST}" if found > MOST else f"{found:.2f}" if found < REAL else f"{found:.3f}"
    return (
        f"{verdict}: the sign holds with probability {told}, by the intervals of both with independent errors; errors "
        "that both share would make it surer"
    )


def _factors(answer: dict[str, Any]) -> Table:
    metric, whole = answer["metric"], answer["difference"]
    sampled = answer["method"]["kind"] == "sampled"

    def cells(one: dict[str, Any]) -> tuple[str, ...]:
        error = (f"±{value(metric, one['standard_error'])}",) if sampled else ()
        part = fmt.percent(round(one["amount"] / whole, 3) + 0.0).replace("-", "−") if whole else fmt.DASH
        return (_name(one), _shown(one, "a"), _shown(one, "b"), change(metric, one["amount"]), *error, part)

    rows = tuple(Row(cells=cells(one)) for one in answer["factors"])
    error = (right("Std. error", 1),) if sampled else ()
    columns = (left("Factor"), left("A"), left("B"), right("Amount"), *error, right("Share"))
    blank = ("",) if sampled else ()
    total = (
        "sum",
        value(metric, answer["a"]),
        value(metric, answer["b"]),
        change(metric, whole),
        *blank,
        "100 %" if whole else "",
    )
    return Table(columns=columns, rows=rows, total=total, title="Factors", note=_method(answer))


def _method(answer: dict[str, Any]) -> str:
    method = answer["method"]
    how = f"{fmt.whole(method['evaluated'])} combinations of A and B evaluated"
    if method["kind"] == "sampled":
        return f"Shapley values by {method['orders']} sampled orders (seed {method['seed']}), {how}"
    return f"Shapley values: mean over all orders in which the factors may change; {how}"


def _shown(factor: dict[str, Any], side: str) -> str:
    """Returns the value of a factor, or of each of several that change together."""
    parts = factor.get("together", [factor])
    return plain(", ".join(FACTORS.get(one["name"].partition(".")[0], _text)(one[side]) for one in parts))


def _counted(found: float | None, unit: str) -> str:
    number, _, prefix = fmt.count(found).partition(" ")
    return number if found is None else f"{number} {prefix}{unit}"


def _text(found: Any) -> str:
    if isinstance(found, bool):
        return "on" if found else "off"
    return fmt.DASH if found in (None, "", []) else ", ".join(found) if isinstance(found, list) else str(found)


def _operators(answer: dict[str, Any]) -> Table:
    """Returns the same difference by group of operators."""
    metric, groups = answer["metric"], dict[str, list[float]]()
    for one in answer["operators"]:
        found = groups.setdefault(group(one["name"], one["kind"]), [0.0, 0.0])
        found[0] += one["a"]
        found[1] += one["b"]
    order = sorted(groups.items(), key=lambda one: -abs(one[1][1] - one[1][0]))
    rows = tuple(Row(cells=(name, value(metric, a), value(metric, b), change(metric, b - a))) for name, (a, b) in order)
    total = ("sum", value(metric, answer["a"]), value(metric, answer["b"]), change(metric, answer["difference"]))
    columns = (left("Operators"), right("A"), right("B"), right("Amount"))
    return Table(columns=columns, rows=rows, total=total, title="Operators")
