"""Options of a sizing beside those of a load and of a run, each declared once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.api.build import OF_ENGINE, own_chips
from llmviewer.api.configuration import images_of, tokens_of
from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.parsing import duration
from llmviewer.language.option import Kind, Option, Panel
from llmviewer.planning.screen import MOST_REPLICAS, Bounds
from llmviewer.planning.space import LAYOUT, SEARCHED
from llmviewer.planning.verification import Load
from llmviewer.planning.workload import Workload
from llmviewer.result.costs import OF_A_SIZING, Costs, PriceList, costs_of
from llmviewer.simulation import options as load
from llmviewer.simulation.fleet import ROUTERS, USUAL_ROUTER
from llmviewer.simulation.options import LOAD
from llmviewer.simulation.traffic import Traffic
from llmviewer.techniques.options import MODEL_OPTIONS, OPTIONS, with_bits

#: Objective -> what is least.
OBJECTIVES: Mapping[str, str] = {
    "usd": "dollars per hour",
    "gpus": "devices",
    "usd-per-token": "dollars per output token at full load",
    "watts": "power",
    "latency": "mean end-to-end latency within the bounds on devices and cost",
}
#: Figure against tokens/s per user on the front.
FRONTS = ("gpus", "usd")
#: Ways to share devices: one pool, or one for prompts and one for answers.
BATCHINGS = ("continuous", "disaggregated")
#: Options of a load that a sizing chooses itself or that make no steady load, and of a run that choose its server.
NOT_OF_A_SIZING = ("burst", "pools", "replicas", "find_rate", "replications", "main_gpu")
#: Options of which one says when requests arrive.
RATES = ("request_rate", "concurrency", "rate_curve", "trace")
#: Limits of the engine on a step, searched unless the user lists values.
STEP_LIMITS = ("max_num_batched_tokens", "max_num_seqs")


def _option(kind: Kind, summary: str, default: Any = None, **more: Any) -> Option:
    return Option(kind=kind, help=summary, default=default, group="sizing", panel=Panel.SIZING, **more)


SIZE: Mapping[str, Option] = {
    "max_usd_per_hour": _option(Kind.NUMBER, "Most dollars per hour."),
    "max_gpus": _option(Kind.WHOLE, "Most devices."),
    "objective": _option(
        Kind.WORD, f"The least of: {', '.join(OBJECTIVES)}.", "usd", choices=tuple(OBJECTIVES), closed=True
    ),
    "confidence": _option(
        Kind.FRACTION, "Least probability that all limits hold; 0: the prediction alone has to hold.", 0.9, least=0
    ),
    "spare": _option(Kind.WHOLE, "Replicas beyond those needed (N + 1: 1).", 0, least=0),
    "front": _option(
        Kind.WORD,
        "What the front sets against tokens/s per user: tokens/s per device (gpus) or dollars (usd).",
        "gpus",
        choices=FRONTS,
        closed=True,
    ),
    "autoscale": _option(
        Kind.TIME, "Window in which a perfect autoscaler changes the replicas: 5m; needs a trace or a rate curve."
    ),
    "start_up": _option(Kind.TIME, "Time that a replica takes to start: 3m.", "0s"),
}
#: Options of a sizing that are not those of a run.
OWN: Mapping[str, Option] = {
    **SIZE,
    **OF_A_SIZING,
    **{name: one for name, one in LOAD.items() if name not in NOT_OF_A_SIZING},
}


@frozen
class Question:
    """A sizing as it was asked.

    words: all options with their values.  lists: options of a run that the user set -> values.  traffic: of the load.
    """

    model: Any
    hardware: tuple[Any, ...]
    words: Mapping[str, Any]
    lists: Mapping[str, tuple[Any, ...]]
    traffic: Traffic
    workload: Workload
    load: Load
    bounds: Bounds
    costs: Costs

    @property
    def prices(self) -> PriceList:
        """The prices of chips."""
        return self.costs.prices

    @property
    def objective(self) -> str:
        """The figure that the answer has the least of."""
        return str(self.words["objective"])

    @property
    def only(self) -> str:
        """The one batching that the user asked for, and that of a closed loop: continuous; empty for both."""
        if self.load.users:
            return BATCHINGS[0]
        listed = self.lists.get("batching", ())
        return str(listed[0]) if len(listed) == 1 else ""

    @property
    def model_name(self) -> str:
        """The model as it was named."""
        return str(self.model) if isinstance(self.model, str) else str(getattr(self.model, "name", "model"))


def question(model: Any, hardware: Sequence[Any], options: Mapping[str, Any]) -> Question:
    """The checked sizing of these options.  Raises UserError."""
    for name in NOT_OF_A_SIZING:
        if options.get(name) is not None:
            raise UserError(f"size chooses the server and the load is steady; remove {name}")
    words = {
        name: one.checked(name, one.default if options.get(name) is None else options[name])
        for name, one in SIZE.items()
    }
    loads = load.checked({name: value for name, value in options.items() if name in LOAD})
    if not any(options.get(name) for name in RATES):
        held = "; --concurrency 1 sizes for one session, and its head-room says how many of them the server holds"
        held *= loads["sessions"] is not None
        raise UserError(f"nothing says when requests arrive; give one of {', '.join(RATES)}{held}")
    of_a_run = {name: value for name, value in options.items() if name not in {*SIZE, *LOAD, *OF_A_SIZING}}
    lists = _lists(with_bits(of_a_run))
    if loads["audio"] is not None:
        raise UserError("audio: servers of encoder-decoders are simulated, not sized; use simulate")
    as_read = {name: options[name] for name in MODEL_OPTIONS if options.get(name) is not None}
    images = images_of(model, as_read, loads["images"])
    traffic = replace(load.traffic_of(loads), image_tokens=tokens_of(images))
    workload = replace(_workload(traffic, loads), images=images)
    given = {name: value for name, value in loads.items() if options.get(name) is not None}
    rate = None if loads["trace"] or workload.users else workload.rate
    for name in (
        "request_rate",
        "concurrency",
        *(("rate_curve", "speed_up") if loads["rate_curve"] else ()),
    ):  # the rate has them
        given.pop(name, None)
    _check_scaling(words, loads, options)
    if workload.users and "disaggregated" in lists.get("batching", ()):
        raise UserError("a closed loop is sized for one pool; remove batching disaggregated, or give request_rate")
    if words["objective"] == "latency" and not (words["max_gpus"] or words["max_usd_per_hour"]):
        raise UserError("objective latency needs a bound; give max_gpus or max_usd_per_hour")
    for one in lists.get("batching", ()):
        if one not in BATCHINGS:
            raise unknown("batching of a sizing", str(one), BATCHINGS)
    return Question(
        model=model,
        hardware=tuple(hardware),
        words={**words, **loads},
        lists=lists,
        traffic=traffic,
        workload=workload,
        load=Load(
            words=given,
            rate=rate,
            users=workload.users,
            confidence=words["confidence"],
            widest=words["objective"] == "latency",
        ),
        bounds=Bounds(
            devices=words["max_gpus"] or np.inf,
            replicas=(workload.users or MOST_REPLICAS) + words["spare"],
            usd_per_hour=words["max_usd_per_hour"] or np.inf,
            spare=words["spare"],
        ),
        costs=costs_of({name: options.get(name) for name in OF_A_SIZING}, own_chips(hardware)),
    )


def _lists(options: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The values of every option of a run that the user set."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, value in options.items():
        if name not in OPTIONS or OPTIONS[name].group == "workload":
            raise unknown("option", name, [*SIZE, *LOAD, *OPTIONS])
        chosen_here = (*SEARCHED, *STEP_LIMITS, *OF_ENGINE, "batching")
        if value in (None, "") or (value == OPTIONS[name].default and name not in chosen_here):
            continue
        several = isinstance(value, list | tuple) and name != "ignore_fields"
        values = tuple(value) if several else tuple(_split(name, value))
        if not values:
            raise UserError(f"{name} has no values; give at least one")
        if name in (*STEP_LIMITS, *LAYOUT):
            values = tuple(_whole(name, one) for one in values)
        found[name] = values
    return found


def _whole(name: str, value: Any) -> int:
    """A limit of a step or the size of a group: a whole number from 1 on."""
    return arguments.whole_number(name, arguments.parse_size(value) if isinstance(value, str) else value, minimum=1)


def _split(name: str, value: Any) -> list[Any]:
    separator = "," if name in (*STEP_LIMITS, "batching") else OPTIONS[name].separator
    if not isinstance(value, str) or not separator:
        return [value]
    value = value.replace(";", ",") if name == "batching" else value  # words without parameters here
    words = [word.strip() for word in value.split(separator)]
    if not all(words):
        raise UserError(f"{name} is {quoted(value)}: a value is missing")
    return words


def _workload(traffic: Traffic, loads: Mapping[str, Any]) -> Workload:
    """Rate or users, mean lengths and limits; of a curve over the day its highest rate."""
    load.warm_up_of(loads)
    if (loads["router"] or USUAL_ROUTER) not in ROUTERS:
        raise unknown("router", loads["router"], ROUTERS)
    limits = load.limits_of(loads)
    if not limits:
        raise UserError("size needs a limit; give ttft, tpot or e2e, such as ttft=p99:1s")
    sample = traffic.requests()
    rate = traffic.mean_rate if traffic.curve is None else traffic.peak_rate
    if not (rate or traffic.users):
        raise UserError("size needs requests that arrive at different times; give request_rate, rate_curve or a trace")
    sessions = traffic.sessions
    return Workload(
        rate=float(rate or 0.0),
        users=traffic.users,
        think_s=sessions.pauses_s / sessions.mean_turns if sessions else 0.0,
        input_len=float(sample.input_len.mean()),
        output_len=float(sample.output_len.mean()),
        limits=limits,
        repeated=float(sample.repeated.mean()),
    )


def _check_scaling(words: Mapping[str, Any], loads: Mapping[str, Any], stated: Mapping[str, Any]) -> None:
    """Raise UserError for an autoscaler without a load that varies, and for its start-up without an autoscaler."""
    if words["autoscale"] is None:
        if stated.get("start_up") is not None:
            raise UserError(f"start_up is {quoted(words['start_up'])}; an autoscaler has it: give autoscale")
        return
    if not (loads["trace"] or loads["rate_curve"]):
        raise UserError("autoscale needs a load that varies; give trace or rate_curve")
    if not duration("autoscale", words["autoscale"]) > 0.0:
        raise UserError(f"autoscale is {quoted(words['autoscale'])}; allowed: a time above 0")
    duration("start_up", words["start_up"])
