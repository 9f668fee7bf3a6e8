"""A sizing as a page: the winner in a sentence, the best of each chip, what rejects the others, front, sensitivity."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llmviewer.language.quantity import LATENCIES
from llmviewer.planning.sizing import Sizing
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Column, Emphasis, Facts, Page, Row, Table, left, right

#: Option -> its short name in a table.
SHORT = {
    "tensor_parallel_size": "tp",
    "data_parallel_size": "dp",
    "expert_parallel_size": "ep",
    "quantization": "",
    "kv_cache_dtype": "kv",
    "max_num_batched_tokens": "budget",
    "max_num_seqs": "seqs",
    "engine": "",
    "pools": "",
}
#: Points of the front in the table.
FRONT_ROWS = 10
#: Objective of the request -> adjective of the winner, and what it has the least of.
BEST = {
    "usd": ("cheapest", "cost"),
    "gpus": ("smallest", "devices"),
    "usd-per-token": ("cheapest per token", "cost per token"),
    "watts": ("least power", "power"),
    "latency": ("fastest", "latency"),
}
#: Kinds of configurations beside which a winner stands.
AGAINST = {"aggregated": "aggregated", "wider": "8 bits and more"}


def page(found: Sizing, *, explain: bool = False) -> Page:
    """Returns the page of a sizing.  explain: with the reason why the runner-up lost."""
    answer = found.to_dict()
    parts: list[Any] = [Facts(lines=(("Verdict", verdict(answer)),)), _header(answer)]
    if answer["configurations"]:
        parts.append(_configurations(answer))
    if explain and answer["why"]:
        parts.append(_why(answer))
    if len(answer["frontier"]) > 1:
        parts.append(_front(answer))
    if answer["rejected"]:
        parts.append(_rejected(answer))
    if answer["autoscaling"]:
        parts.append(_autoscaling(answer["autoscaling"]))
    if answer["sensitivity"]:
        parts.append(_sensitivity(answer))
    return (*parts, _sources(answer), *_notes(answer))


def verdict(answer: dict[str, Any]) -> str:
    """Returns the winner in a sentence, or the nearest miss."""
    best = answer["best"]
    if best is None:
        return f"no configuration meets the limits; {_nearest(answer)}"
    request = answer["request"]
    cost = "" if best["usd_per_hour"] is None else f" for ${best['usd_per_hour']:,.2f} an hour"
    token = best["usd_per_million_output_tokens"]
    per_token = "" if token is None else f", ${fmt.digits(token)} per million output tokens"
    chance = "" if best["probability"] is None else f"; the limits hold with probability {best['probability']:.2f}"
    figures = ", ".join(f"{name} {fmt.duration(best[key])}" for name, key in _limited(request))
    fleet = f"{_fleet(best)}, {options_text(best)}"
    return f"{BEST[request['objective']][0]}: {fleet}{cost}{per_token}; {figures}{chance}{_against(answer)}"


def _fleet(one: dict[str, Any]) -> str:
    """Devices of a configuration, or servers of unlike devices: `2 × (rtx-4090+rtx-3090)`."""
    if "+" in one["hardware"] and "batching" not in one["options"]:
        return f"{one['replicas']} × ({one['hardware']})"
    return f"{one['devices']} × {one['hardware']}"


def _against(answer: dict[str, Any]) -> str:
    """Returns how many times as much the best configuration of another kind needs: `; against aggregated: 1.2 ×`."""
    told = []
    for kind, one in answer["against"].items():
        text, other = "none meets the limits", one["configuration"]
        if other is not None:
            times = f"{fmt.digits(one['ratio'])} × the {BEST[answer['request']['objective']][1]}"
            text = f"{times} ({_fleet(other)}, {options_text(other)})"
        told.append(f"; against {AGAINST[kind]}: {text}")
    return "".join(told)


def _nearest(answer: dict[str, Any]) -> str:
    misses = answer["rejected"]
    if not misses:
        return "no chip was searched"
    order = {name: at for at, name in enumerate(("simulation", "usd_per_hour", "devices", "rate", "e2e_s", "tpot_s"))}
    nearest = min(misses, key=lambda one: (order.get(one["constraint"], len(order)), one["margin"] or 0.0))
    return f"nearest: {nearest['hardware']}, {nearest['text']}"


def _limited(request: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns latencies with the statistic that is shown: the limited one, else the mean."""
    statistics = {one["metric"]: one["statistic"] for one in request["limits"]}
    shown = ("ttft_s", "tpot_s", "e2e_s") if "e2e_s" in statistics else ("ttft_s", "tpot_s")
    return [(f"{LATENCIES[key].label} {statistics.get(key, 'mean')}", key) for key in shown]


def options_text(one: dict[str, Any]) -> str:
    """Returns the options of a configuration in a few words: `4 replicas, fp8, kv fp8, tp 2`."""
    words = []
    if "pools" in one["options"]:
        words.append(one["options"]["pools"].replace("x", "×").replace(",", ", "))
    elif one["replicas"] > 1:
        words.append(f"{one['replicas']} replicas")
    for name, value in one["options"].items():
        if name not in ("pools", "replicas"):
            mark = "*" if name == "quantization" and one.get("quality_not_judged") else ""
            words.append(f"{SHORT.get(name, name.replace('_', '-'))} {value}{mark}".strip())
    return ", ".join(words) or "defaults"


def _header(answer: dict[str, Any]) -> Facts:
    request = answer["request"]
    limits = ", ".join(
        f"{LATENCIES[one['metric']].label} {one['statistic']} ≤ {fmt.duration(one['limit_s'])}"
        for one in request["limits"]
    )
    bounds = []
    if request["max_gpus"] is not None:
        plural = "" if request["max_gpus"] == 1 else "s"
        bounds.append(f"at most {fmt.whole(request['max_gpus'])} device{plural}")
    if request["max_usd_per_hour"] is not None:
        bounds.append(f"at most ${request['max_usd_per_hour']:,.2f} an hour")
    users = request.get("concurrency")
    when = (
        f"{fmt.whole(users)} user{'s' * (users != 1)} in a closed loop"
        if users
        else f"{fmt.per_second(request['request_rate'])} requests/s"
    )
    load = (
        f"{when}, input {fmt.whole(round(request['input_len']))}, "
        f"output {fmt.whole(round(request['output_len']))} tokens in the mean"
    )
    engines = dict.fromkeys(one["engine"] for one in answer["configurations"])
    spare = f"; {request['spare']} spare" if request["spare"] else ""
    if request["confidence"]:
        bounds.append(f"with probability {request['confidence']:g}")
    return Facts(
        lines=(
            ("Model", request["model"]),
            *((("Engine", ", ".join(engines)),) if engines else ()),
            ("Load", load),
            ("Limits", "; ".join((limits, *bounds)) + spare),
        )
    )


def _configurations(answer: dict[str, Any]) -> Table:
    limited = _limited(answer["request"])
    columns: list[tuple[Column, Callable[[dict[str, Any]], str]]] = [
        (left("Hardware"), lambda one: one["hardware"]),
        (right("GPUs"), lambda one: fmt.whole(one["devices"])),
        (left("Options", wraps=True), options_text),
        (right("$/h"), lambda one: _usd(one["usd_per_hour"])),
        (left("Term"), lambda one: fmt.term(one["price"])),
        *((right(title), partial(_latency, name=key)) for title, key in limited),
        (right("P(holds)", 2), lambda one: fmt.DASH if one["probability"] is None else f"{one['probability']:.2f}"),
        (right("$/Mtok in", 4), lambda one: _split(one, "input")),
        (right("out", 4), lambda one: _split(one, "output")),
        (right("Users/replica", 5), lambda one: _whole(one.get("concurrency_per_replica"))),
        (right("req/s/replica", 5), lambda one: fmt.per_second(one["request_rate_per_replica"])),
        (right("tok/s/GPU", 3), lambda one: fmt.per_second(one["output_tokens_per_s_per_device"])),
        (right("W", 4), lambda one: fmt.DASH if one["watts"] is None else fmt.whole(round(one["watts"]))),
        (right("J/token", 4), lambda one: _number(one["joules_per_output_token"])),
        (right("gCO2/Mtok", 4), lambda one: _number(one.get("grams_co2_per_million_output_tokens"))),
        (right("Sessions", 3), lambda one: _whole(one.get("sessions_held"))),
        (right("per $/h", 3), lambda one: _whole(one.get("sessions_per_usd_hour"))),
        (right("Head-room", 3), lambda one: fmt.DASH if one["head_room"] is None else fmt.percent(one["head_room"])),
    ]
    hidden = _hidden(answer["configurations"])
    shown = [(column, cell) for column, cell in columns if column.title not in hidden]
    rows = [Row(cells=tuple(cell(one) for _, cell in shown)) for one in answer["configurations"]]
    steady = not all(one["simulated"] for one in answer["configurations"])
    note = "simulated; ≈: in the steady state" if steady else "simulated"
    note += _few_bits(answer["configurations"])
    return Table(columns=tuple(c for c, _ in shown), rows=tuple(rows), title="Best of each chip", note=note)


def _hidden(configurations: list[dict[str, Any]]) -> set[str]:
    """Returns the columns without any figure."""
    columns = {
        "usd_per_hour": {"$/h", "Term", "$/Mtok in", "out"},
        "watts": {"W", "J/token"},
        "grams_co2_per_million_output_tokens": {"gCO2/Mtok"},
        "sessions_held": {"Sessions"},
        "concurrency_per_replica": {"Users/replica"},
        "sessions_per_usd_hour": {"per $/h"},
    }
    unknown = [titles for name, titles in columns.items() if all(one.get(name) is None for one in configurations)]
    return set().union(*unknown)


def _latency(one: dict[str, Any], name: str) -> str:
    """Returns a latency, marked where it is that of the steady state."""
    return f"{'' if one['simulated'] else '≈ '}{fmt.duration(one[name])}"


def _usd(value: float | None) -> str:
    return fmt.DASH if value is None else f"{value:,.2f}"


def _whole(value: float | None) -> str:
    return fmt.DASH if value is None else fmt.whole(round(value))


def _number(value: float | None) -> str:
    return fmt.DASH if value is None else fmt.digits(value)


def _split(one: dict[str, Any], which: str) -> str:
    found = one["usd_per_million_tokens"]
    return fmt.DASH if found is None else fmt.digits(found[which])


def _few_bits(configurations: list[dict[str, Any]]) -> str:
    """The meaning of the mark of `options_text`, where it stands."""
    marked = any(one["quality_not_judged"] for one in configurations)
    return "; *: 4-bit weights, the quality of answers is not judged" if marked else ""


def _front(answer: dict[str, Any]) -> Table:
    points = answer["frontier"]
    step = max((len(points) - 1) / (FRONT_ROWS - 1), 1.0)
    chosen = [points[round(at * step)] for at in range(FRONT_ROWS) if round(at * step) < len(points)]
    rows = [
        Row(
            cells=(
                fmt.per_second(one["output_tokens_per_s_per_user"]),
                fmt.per_second(one["output_tokens_per_s_per_device"]),
                _usd(one["usd_per_hour"]),
                fmt.whole(one["devices"]),
                one["hardware"],
                options_text(one),
            )
        )
        for one in chosen
    ]
    heads = (
        right("tok/s/user"),
        right("tok/s/GPU"),
        right("$/h", 1),
        right("GPUs"),
        left("Hardware"),
        left("Options", wraps=True),
    )
    against = "$/h" if answer["request"]["front"] == "usd" else "GPUs"
    note = (
        f"{len(points)} points, none worse in both tok/s/user and {against}; all hold in simulation; no fleet is beyond"
        " twice the winner" + _few_bits(points)
    )
    return Table(columns=heads, rows=tuple(rows), title="Pareto front", note=note)


def _rejected(answer: dict[str, Any]) -> Table:
    rows = [Row(cells=(one["hardware"], one["text"])) for one in answer["rejected"]]
    note = "the gate that rejects the configuration that comes farthest"
    return Table(columns=(left("Hardware"), left("Gate")), rows=tuple(rows), title="Rejected", note=note)


def _why(answer: dict[str, Any]) -> Table:
    why, best, other = answer["why"], answer["best"], answer["runner_up"]
    unit = "$/h" if why["metric"] == "usd_per_hour" else "devices"
    rows = [
        Row(cells=(one["name"], fmt.digits(one["a"]), fmt.digits(one["b"]), f"{one['amount']:+,.2f}"))
        for one in why["factors"]
    ]
    total = (unit, fmt.digits(why["a"]), fmt.digits(why["b"]), f"{why['difference']:+,.2f}")
    heads = (left("Factor"), right("Winner"), right("Runner-up"), right(f"Amount, {unit}"))
    note = f"runner-up: {_fleet(other)}, {options_text(other)}; winner: {best['hardware']}"
    return Table(columns=heads, rows=tuple(rows), total=total, title="Why the runner-up lost", note=note)


def _autoscaling(found: dict[str, float]) -> Facts:
    saved = 1.0 - found["gpu_hours"] / found["constant_gpu_hours"]
    text = (
        f"{fmt.digits(found['gpu_hours'])} GPU hours with a perfect autoscaler every {fmt.duration(found['window_s'])}"
        f" (start-up {fmt.duration(found['start_up_s'])}); {fmt.digits(found['constant_gpu_hours'])} with a constant"
        f" number: {fmt.percent(round(saved, 3))} less; {fmt.whole(found['fewest_replicas'])} to"
        f" {fmt.whole(found['most_replicas'])} replicas in {fmt.duration(found['duration_s'])}"
    )
    return Facts(title="Autoscaling", lines=(("Hours", text),))


def _sensitivity(answer: dict[str, Any]) -> Facts:
    users = answer["request"].get("concurrency")
    most = ("most users", fmt.whole, "") if users else ("highest rate", fmt.per_second, " requests/s")
    names = {
        "input_len": ("Input length", *most),
        "output_len": ("Output length", *most),
        "request_rate": ("Rate", "replicas needed", fmt.whole, ""),
        "concurrency": ("Users", "replicas needed", fmt.whole, ""),
    }
    room, lines = answer["best"]["head_room"], list[tuple[str, str]]()
    if room is not None and users:
        held = answer["best"]["max_concurrency_per_server"]
        replicas = "" if answer["best"]["replicas"] == 1 else " a replica"
        lines.append(("Head-room", f"{fmt.percent(room)}: it holds {fmt.whole(held)} users{replicas}"))
    elif room is not None:
        rate = answer["request"]["request_rate"] * (1.0 + room)
        lines.append(("Head-room", f"{fmt.percent(room)}: the highest rate is {fmt.per_second(rate)} requests/s"))
    for name, (label, figure, text, unit) in names.items():
        if name in answer["sensitivity"]:
            changes = answer["sensitivity"][name]
            told = ", ".join(f"{text(value)}{unit} at {change}" for change, value in changes.items())
            lines.append((label, f"{figure} {told}"))
    return Facts(title="Sensitivity of the winner", lines=tuple(lines))


def _sources(answer: dict[str, Any]) -> Facts:
    best = answer["best"]
    lines = [
        (
            "Searched",
            f"{fmt.whole(answer['searched'])} points of {fmt.whole(answer['structures'])} structures in the steady "
            f"state; {fmt.whole(answer['simulated'])} simulated",
        )
    ]
    if best is not None:
        if best["price"] is not None:
            when = f" ({best['price']['date']})" if best["price"]["date"] else ""
            lines.append(("Price", f"{answer['request']['price_kind']}: {best['price']['source']}{when}"))
        lines.append(("Check", best["command"]))
        lines += [("Start with", launch_text(one)) for one in best["launch"]]
    return Facts(title="Sources", lines=tuple(lines), emphasis=Emphasis.FAINT)


def launch_text(pool: dict[str, Any]) -> str:
    """Returns the limits of a launch, on which the prediction rests: `max_model_len 26896, max_num_seqs 256, ...`."""
    stated = [f"{name} {value}" for name, value in pool.items() if value is not None and name != "role"]
    return f"{pool['role'] + ': ' if pool['role'] else ''}{', '.join(stated)}; --emit prints the whole command"


def _notes(answer: dict[str, Any]) -> tuple[Facts, ...]:
    lines = tuple(("Warning", text) for text in answer["notes"])
    return (Facts(lines=lines, emphasis=Emphasis.WARNING),) if lines else ()
