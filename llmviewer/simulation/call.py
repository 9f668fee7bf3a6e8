"""`lv.simulate`: a model on a fleet under a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer import api
from llmviewer.analysis.encoders import check_encoder
from llmviewer.api import build, devices
from llmviewer.api.build import check_devices, with_devices
from llmviewer.api.configuration import Configuration, images_of, images_s, sound_of, tokens_of
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.language.option import taking
from llmviewer.language.quantity import SERVED
from llmviewer.models.images import Seen
from llmviewer.result import interval
from llmviewer.simulation import options as load
from llmviewer.simulation import statistics as stats
from llmviewer.simulation.edges import edge_ratios
from llmviewer.simulation.fleet import Fleet, Pool
from llmviewer.simulation.fleets import fleet_of, pooled
from llmviewer.simulation.input_times import input_times
from llmviewer.simulation.limits import TOLERANCE, highest_rate
from llmviewer.simulation.pace import lasting_count, search_notes, short_run, staggered, throughput_ratios
from llmviewer.simulation.parallel import cores, on_all_cores
from llmviewer.simulation.requests import Requests
from llmviewer.simulation.result import Setting, Simulation
from llmviewer.simulation.run import Outcome, simulate_requests, whole_run
from llmviewer.simulation.tiers import tiers_of
from llmviewer.simulation.traffic import Traffic
from llmviewer.techniques.options import RUN_OPTIONS
from llmviewer.timing import engine as engines
from llmviewer.timing import engine_backends
from llmviewer.timing.engine_serving import AT_A_DESK

if TYPE_CHECKING:
    from typing import Unpack

    from llmviewer.api.calls import ChipName, ModelName
    from llmviewer.api.keywords import SimulationOptions

#: Options of a server that differ from those of an analysis unless the user sets them.
BATCHING = "continuous"
#: What of an encoder-decoder is not as an engine runs it.
OF_KERNELS = (
    "no preset of an engine times encoder-decoders: times are of kernels, inputs are read in passes of their own"
)
#: Metric of a simulation -> metric of an analysis whose interval it has.
CALIBRATED = {name: one.interval for name, one in SERVED.items()}


@taking(load.LOAD, RUN_OPTIONS, defaults={"engine": None, "batching": BATCHING})
def simulate(model: ModelName, hardware: ChipName, **options: Unpack[SimulationOptions]) -> Simulation:
    """Requests to a server of `model` on `hardware`: their latencies with percentiles, and its load.

    model, hardware: as of `analyze`.  options: when requests arrive (request_rate=8, concurrency=64, trace=PATH,
    burst=True or rate_curve="0h:2,8h:10"), their lengths (input_len, output_len: numbers or distributions), limits
    (ttft="p99:2s", tpot="p99:80ms", find_rate=True), and every option of `analyze`; the engine that serves
    the chip (vllm; llama.cpp on Macs, Ryzen AI and CPUs) unless given.
    Raises UserError.
    """
    ready = prepared(model, hardware, **options)
    if not ready.finds_rate:
        return ready.run()
    made, guess = ready.made, burst_rate(ready.made)
    found = highest_rate_of(made, guess)
    asked = made.traffic.searched(found or TOLERANCE * guess)
    last = _searched(made, asked)
    longer = f"a run at the highest rate needs more requests for a steady state: {len(last.records):,}"
    notes = (*made.notes, *search_notes(made, found), *(longer,) * (last.traffic is not asked))
    beyond = above(made, found) if found else None
    return ready.run(replace(made, traffic=last.traffic, max_request_rate=found, beyond=beyond, notes=notes))


@frozen
class Prepared:
    """A server with its load before any request: a simulation without outcomes.

    answering: configuration of the pool that decodes.  replications: runs with other random numbers.
    """

    made: Simulation
    answering: Configuration
    replications: int
    finds_rate: bool

    def run(self, made: Simulation | None = None) -> Simulation:
        """The simulation with its outcomes.  made: in place of the prepared one, under other traffic or already run.

        Raises UserError for a warm-up that no request outlasts.
        """
        made = made or self.made
        made = replace(made, outcomes=made.outcomes or tuple(run_all(made.fleet, made.traffic, self.replications)))
        _check_warm_up(made)
        ratios = made.ratios or ratios_of(self.answering, made)
        made = replace(
            made, ratios=ratios, throughput_ratios=throughput_ratios(made, ratios), near_capacity=edge_ratios
        )
        return replace(made, rate_bounds=_rate_bounds(made)) if made.max_request_rate else made


def of_server(hardware: Any, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a server: those that are stated, and the engine and batching of a simulation without.

    hardware: the chip, on which the engine depends.  Raises UserError for an unknown chip.
    """
    stated = {name: value for name, value in stated.items() if value is not None}
    if not ("engine" in stated or stated.get("efficiency") == "ideal"):  # ideal times have no engine
        several, rest, _ = devices.stated(hardware, stated)
        together = several is not None or rest != hardware
        stated["engine"] = AT_A_DESK if together else engines.of_a_server(build.chip_of(hardware))
    return {"batching": BATCHING, **stated}


def prepared(model: Any, hardware: Any, **options: Any) -> Prepared:
    """The server and load of `simulate`, whose arguments it takes.  Raises UserError."""
    words = load.checked({name: value for name, value in options.items() if name in load.LOAD})
    chosen = of_server(hardware, {name: value for name, value in options.items() if name not in load.LOAD})
    read, limits = with_devices(hardware, chosen)[1], load.limits_of(words)
    images = images_of(model, read, words["images"])
    if words["audio"] is not None:
        words["input_len"] = str(sound_of(model, read, words["audio"]).positions)
    traffic = replace(load.traffic_of(words), image_tokens=tokens_of(images))
    if words["find_rate"] and not traffic.is_open:
        raise UserError("find_rate searches for a rate of arrivals; remove concurrency and burst")
    if words["find_rate"] and traffic.mean_rate is None:
        if traffic.trace is not None and traffic.trace.after:
            raise UserError("find_rate searches for a rate of arrivals, but turns of the trace follow their answers")
        raise UserError("find_rate needs a trace whose requests arrive at different times")
    server = _server(model, hardware, chosen, words, traffic, images)
    idle = options.get("router") is not None and all(pool.replicas == 1 for pool in server.fleet.pools)
    made = Simulation(
        setting=server.setting,
        fleet=server.fleet,
        traffic=traffic,
        outcomes=(),
        warm_up_s=load.warm_up_of(words),
        limits=limits,
        notes=(*server.notes, *("--router: one replica, not used",) * idle),
    )
    replications, finds_rate = words["replications"], bool(words["find_rate"])
    return Prepared(made=made, answering=server.answering, replications=replications, finds_rate=finds_rate)


def _check_warm_up(made: Simulation) -> None:
    """Raise UserError for a requested warm-up that no request outlasts."""
    last_s = float(np.nanmax(made.records.arrival_s, initial=0.0))
    if made.warm_up_s and made.warm_up_s >= last_s and made.outcomes[0].completed:
        raise UserError(f"warm_up is {made.warm_up_s:g} s, but the last request arrives after {last_s:.3g} s")


@frozen
class Server:
    """A fleet with the configuration of the pool that decodes, and what a reader has to know."""

    fleet: Fleet
    answering: Configuration
    setting: Setting
    notes: tuple[str, ...]


def _server(
    model: Any,
    hardware: Any,
    chosen: Mapping[str, Any],
    words: Mapping[str, Any],
    traffic: Traffic,
    images: tuple[Seen, ...],
) -> Server:
    """The server of a simulation.  Raises UserError."""
    hardware, laid_out, count = with_devices(hardware, chosen)
    chosen = laid_out if words["pools"] is None else chosen
    sample = traffic.requests()
    if not len(sample):
        raise UserError("no request arrives in this time; give a longer duration, a higher rate, or requests")
    length = float(np.mean(sample.input_len + sample.output_len))
    configurations: tuple[Configuration, ...]
    if words["pools"] is None:
        one, inputs = api.on_devices(model, hardware, **chosen), None
        if one.model.is_encoder:
            one = _encoder(one, chosen, int(sample.output_len.max()))
        if one.model.encoder is not None:
            one = _alone(one, chosen)
            inputs = input_times(one, sample)
        fleet, configurations = fleet_of(one, words["router"], length, inputs), (one,)
    else:
        fleet, configurations = pooled(model, hardware, chosen, words["pools"], words["router"], length)
    if images:
        fleet = _with_images(fleet, configurations[0], images, sample)
        configurations = (*configurations[:-1], replace(configurations[-1], images=images))
    if words["kv_tiers"] is not None:
        if (sample.histories is None and sample.prefixes is None) or fleet.prefill.kv_cache.hit_rate:
            raise UserError(f"{load.UNNAMED_BLOCKS}, remove prefix_cache")
        tiers = tiers_of(configurations[0], words["kv_tiers"])
        fleet = replace(fleet, prefill=replace(fleet.prefill, tiers=tiers))
    fleet = fleet.with_policy(words["schedule_policy"]).times(words["replicas"])
    check_devices(hardware, count, fleet.devices)
    last, chips = configurations[-1], dict.fromkeys(_hardware(one) for one in configurations)
    workload = api.request(
        1, max(round(float(sample.input_len.mean())), 1), max(round(float(sample.output_len.mean())), 1)
    )
    notes = (
        *last.warnings(workload),
        *_trace_notes(traffic),
        *_session_notes(traffic, sample, fleet, words["router"]),
        *_in_step_notes(traffic, sample),
        *_room_notes(fleet),
        *(OF_KERNELS,) * (last.model.encoder is not None),
        *_prefix_notes(fleet, sample),
    )
    setting = Setting(
        model=last.model.name,
        hardware="+".join(chips),
        engine=last.system.engine.asked + engine_backends.suffix(last.system.engine.backend),
        efficiency=last.efficiency,
        schedulers=tuple(pool.scheduler.name for pool in fleet.pools),
        layout=" and ".join(
            _pool_text(name, pool, fleet) for name, pool in zip(("prefill", "decode"), fleet.pools, strict=False)
        ),
        workload=workload_text(words, sample),
    )
    return Server(fleet=fleet, answering=last, setting=setting, notes=notes)


def _with_images(fleet: Fleet, one: Configuration, images: tuple[Seen, ...], sample: Requests) -> Fleet:
    """The fleet whose prompts have images, each read by the vision tower in the step that ends its prompt."""
    if sample.prefixes is not None or sample.histories is not None:
        raise UserError("images: prompts of sessions and of hash_ids repeat text; remove images")
    prices = replace(fleet.prefill.prices, images_s=images_s(one, images))  # type: ignore[type-var]
    return replace(fleet, prefill=replace(fleet.prefill, prices=prices))


def _hardware(one: Configuration) -> str:
    return one.chip.name if one.devices is None else one.system.hardware


def _encoder(one: Configuration, chosen: Mapping[str, Any], longest: int) -> Configuration:
    """The configuration of an encoder, whose passes take whole inputs of several requests.  Raises UserError.

    longest: tokens of the longest answer.
    """
    if chosen["batching"] == BATCHING:
        one = api.configuration(one.model, one.chip, **{**chosen, "batching": None})
    check_encoder(one.model, one.system, api.request(1, 1, longest), inf)
    return one


def _alone(one: Configuration, chosen: Mapping[str, Any]) -> Configuration:
    """The configuration of an encoder-decoder by its kernels: no preset of an engine times any.  Raises UserError."""
    batching = None if chosen["batching"] == BATCHING else chosen["batching"]
    return api.configuration(one.model, one.chip, **{**chosen, "engine": "kernels", "batching": batching})


def _room_notes(fleet: Fleet) -> tuple[str, ...]:
    """A note where the weights do not fit."""
    full = any(pool.room.blocks < 1 for pool in fleet.pools)
    return ("the weights leave no room for a KV cache; llmviewer analyze shows the memory",) if full else ()


def _prefix_notes(fleet: Fleet, sample: Requests) -> tuple[str, ...]:
    """The notes on --prefix-cache.  Raises UserError beside a trace that says itself which prefixes are found."""
    if not any(pool.kv_cache.hit_rate for pool in fleet.pools):
        return ()
    if sample.prefixes is not None:
        raise UserError("the hash_ids of the trace say what the cache holds; remove prefix_cache")
    if sample.histories is not None:
        return ("--prefix-cache: every prompt finds the stated share; what sessions find in the cache is not counted",)
    cascade = "--prefix-cache cascade: pages are shared; steps are priced as if each sequence read the prefix itself"
    return (cascade,) if any(pool.kv_cache.cascade for pool in fleet.pools) else ()


def _trace_notes(traffic: Traffic) -> tuple[str, ...]:
    notes = tuple(note for one in (traffic.trace, traffic.pairs) if one is not None for note in one.notes)
    if traffic.trace is None or not traffic.trace.after:
        return notes
    if traffic.users:
        return (*notes, "delays of the trace are not used: each user sends the next request at once")
    return (*notes, f"{len(traffic.trace.after):,} of the requests are sent a delay after the turn before them ends")


def _session_notes(traffic: Traffic, sample: Requests, fleet: Fleet, router: str | None) -> tuple[str, ...]:
    """Notes on sessions: a run that is short beside them, and replicas that do not hold what the next turn repeats."""
    if traffic.sessions is None:
        return ()
    notes, first = list(short_run(traffic, sample)), fleet.prefill
    if first.replicas > 1 and router != "prefix-aware":
        notes.append("--router: turns go to any replica, which finds what it has stored; prefix-aware looks for it")
    if fleet.decode is not None:
        notes.append("answers are stored by the pool that decodes: the next turn's prompt is found without them")
    if first.room.block_tokens >= first.max_context:
        notes.append("the model's state has no blocks per token: no prompt of a session is found in the cache")
    return tuple(notes)


def _in_step_notes(traffic: Traffic, sample: Requests) -> tuple[str, ...]:
    """A note where users of a closed loop fall in step, which the steady state of `analyze` leaves out."""
    answers, steady = sample.output_len, traffic.users > 1 and not traffic.burst and sample.histories is None
    if not steady or np.any(answers != answers[0]) or np.all(answers < 2):
        return ()
    return (
        "all answers are alike: users fall in step and first tokens wait longer; the TTFT of analyze and require is of "
        f"lengths that vary, as --output-len uniform,low={answers[0] // 2},high={answers[0] + answers[0] // 2}",
    )


def _pool_text(name: str, pool: Pool, fleet: Fleet) -> str:
    devices = f"{pool.devices} device{'s' if pool.devices > 1 else ''}"
    text = f"{pool.replicas} replica{'s' if pool.replicas > 1 else ''} of {devices}"
    return text if fleet.decode is None else f"{text} for {name}"


def workload_text(words: Mapping[str, Any], sample: Requests) -> str:
    """When requests arrive and how long they are, in words."""
    when = {
        "request_rate": f"{words['arrivals']} arrivals at {words['request_rate']} requests/s",
        "concurrency": f"{words['concurrency']} user{'s' * (words['concurrency'] != 1)} in a closed loop",
        "trace": f"trace {words['trace']}",
        "burst": "all at once",
        "rate_curve": f"rate curve {words['rate_curve']}",
    }
    told = [text for name, text in when.items() if words[name]]
    if (past := sample.histories) is not None:
        told.append(f"sessions of {len(sample) / len(np.unique(past.session)):.3g} turns in the mean")
    lengths = f"input {sample.input_len.mean():,.0f}, output {sample.output_len.mean():,.0f} tokens in the mean"
    return ", ".join((*told, lengths))


def run_all(fleet: Fleet, traffic: Traffic, replications: int) -> list[Outcome]:
    """The outcomes of independent runs, on all cores; after an interrupt, the first with what it has."""

    def one(replication: int) -> Outcome:
        return simulate_requests(staggered(traffic.requests(replication), fleet, traffic), fleet)

    first = one(0)
    if replications == 1 or not first.completed:
        return [first]
    try:
        return [first, *on_all_cores(one, range(1, replications))]
    except KeyboardInterrupt:
        return [replace(first, completed=False)]


def _rate_bounds(made: Simulation) -> dict[str, list[float]]:
    """Bounds of the highest rate by level [1/s], if all times are as far off as the calibration's end-to-end latency.

    Where all steps take r times as long, a rate meets the limits if r times that rate meets limits 1/r times as long
    with the steps as they are: nothing but the unit of time differs.
    """
    found: dict[str, list[float]] = {}
    for level, bounds in made.ratios.get("e2e_s", {}).items():
        rates = []
        for ratio in sorted(bounds, reverse=True):
            limits = tuple(replace(one, seconds=one.seconds / ratio) for one in made.limits)
            scaled = made.max_request_rate or 0.0
            if limits:
                traffic = made.traffic.with_pauses(1.0 / ratio)
                scaled = highest_rate_of(replace(made, limits=limits, traffic=traffic), scaled)
            rates.append(scaled / ratio)
        found[level] = rates
    return found


def burst_rate(made: Simulation) -> float:
    """The rate at which a fleet answers the requests of a load that are sent at once [1/s]."""
    asked = made.traffic.searched(made.traffic.mean_rate or 1.0).requests()
    return stats.capacity(whole_run(replace(asked, arrival_s=np.zeros(len(asked))), made.fleet).records)


def highest_rate_of(made: Simulation, guess: float | None = None) -> float:
    """The highest mean rate [1/s] that a fleet sustains within the limits.  guess: a rate near it.

    made: its load, whose rate and outcomes do not matter.
    """

    def kept(rate: float) -> bool:
        return _searched(made, made.traffic.searched(rate)).holds

    return highest_rate(lambda rates: on_all_cores(kept, list(rates)), guess or burst_rate(made), cores())


def above(made: Simulation, rate: float) -> Simulation | None:
    """The run that ends a search, a little above the highest rate [1/s]; None where rates so near hold by chance."""
    for steps in (1.0, 2.0, 4.0, 8.0):
        found = _searched(made, made.traffic.searched(rate * (1.0 + steps * TOLERANCE)))
        if not found.holds:
            return found
    return None


def _searched(made: Simulation, traffic: Traffic) -> Simulation:
    """A run of a search under other traffic."""
    return lasting(replace(made, traffic=traffic, outcomes=(whole_run(traffic.requests(), made.fleet),)))


def lasting(made: Simulation) -> Simulation:
    """A run of a search; again with more requests where it ends before it tells whether its rate is sustained."""
    count = lasting_count(made)
    if count <= len(made.records):
        return made
    traffic = replace(made.traffic, count=count, duration_s=None)
    return replace(made, traffic=traffic, outcomes=(whole_run(traffic.requests(), made.fleet),))


def finished(made: Simulation) -> Simulation:
    """A simulation that ran to its end: part of a run says nothing of a server.  Raises KeyboardInterrupt."""
    if not made.outcomes[-1].completed:
        raise KeyboardInterrupt
    return made


def ratios_of(one: Configuration, made: Simulation) -> dict[str, dict[str, tuple[float, float]]]:
    """Bounds over value of each metric from the errors of the calibration, at the mean request and batch."""
    if one.efficiency == "ideal":
        return {}
    requests, pool = made.records, made.fleet.answering
    running = stats.load(made.outcomes[0], made.windows[0])["running_mean"] / pool.replicas
    sizes = (max(round(value), 1) for value in (running, requests.input_len.mean(), requests.output_len.mean()))
    found = interval.metric_ratios(replace(one, images=()).answer(api.request(*sizes)).analysis)
    return {
        name: {
            level: (float(found[own][low, 0]), float(found[own][high, 0]))
            for level, (low, high) in interval.LEVELS.items()
        }
        for name, own in CALIBRATED.items()
        if np.all(np.isfinite(found[own]))
    }
