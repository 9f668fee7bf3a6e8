"""Options of a simulated load, each declared once; the command line, plots and Python calls read them here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.parsing import duration
from llmviewer.language.option import Kind, Option, Panel
from llmviewer.models.audio import AUDIO
from llmviewer.models.images import IMAGES
from llmviewer.serving.scheduling import POLICIES
from llmviewer.simulation import traces
from llmviewer.simulation.lengths import lengths_of
from llmviewer.simulation.limits import METRICS, Limit, limit
from llmviewer.simulation.sessions import sessions_of
from llmviewer.simulation.traffic import MOST_REQUESTS, Traffic, gaps_of, rate_curve


def _option(kind: Kind, summary: str, default: Any = None, **more: Any) -> Option:
    return Option(kind=kind, help=summary, default=default, group="load", panel=Panel.LOAD, **more)


#: Options that say when requests arrive; one of them is needed, but of sessions.
SOURCES = ("request_rate", "concurrency", "trace", "burst", "rate_curve")
#: Option -> those beside which it says nothing.
WITHOUT = {
    "input_len": ("trace", "lengths", "sessions", "audio"),
    "output_len": ("trace", "lengths", "sessions"),
    "sessions": ("trace", "lengths"),
    "arrivals": ("trace", "burst", "concurrency"),
}
LOAD: Mapping[str, Option] = {
    "request_rate": _option(
        Kind.NUMBER, "Requests per second that arrive (open loop), all turns of sessions included."
    ),
    "concurrency": _option(
        Kind.WHOLE,
        "Users who each send a request when their last one is answered (closed loop).",
        aliases=("--users",),
    ),
    "trace": _option(
        Kind.TEXT,
        "Recorded requests: a trace (Azure, Mooncake ...), usage log of a gateway, spans of agents, a dataset.",
    ),
    "burst": _option(Kind.SWITCH, "All requests, or all users, begin at once.", False),
    "rate_curve": _option(Kind.TEXT, "Request rate by time of day, repeated daily: 0h:2,8h:10,20h:4."),
    "arrivals": _option(Kind.TEXT, "Gaps between arrivals: poisson, fixed, or gamma,cv=2.", "poisson"),
    "input_len": _option(Kind.TEXT, "Prompt length: 1024, uniform,low=..,high=.. or lognormal,mean=..,cv=..", "1024"),
    "output_len": _option(Kind.TEXT, "Output length, in the same ways.", "128"),
    "lengths": _option(Kind.TEXT, "File of recorded requests of which pairs of lengths are drawn."),
    "sessions": _option(
        Kind.TEXT,
        "Turns of sessions, + between kinds: turns=8,think=20s,first=1500,then=400,output=300; "
        "simulate alone: of one user.",
    ),
    "images": replace(IMAGES["images"], group="load", panel=Panel.LOAD),
    "audio": replace(AUDIO["audio"], group="load", panel=Panel.LOAD),
    "speed_up": _option(Kind.NUMBER, "Factor of the rate of a trace or curve.", 1.0),
    "duration": _option(
        Kind.TIME, "Time in which requests arrive: 10m, 1h (default: 10m or 2,000 requests, the longer)."
    ),
    "requests": _option(Kind.WHOLE, "Number of requests."),
    "seed": _option(Kind.WHOLE, "Seed of the random numbers.", 0, least=0),
    "warm_up": _option(Kind.TIME, "Time that is cut from the beginning: 60s, or off (default: found by MSER-5)."),
    "replications": _option(Kind.WHOLE, "Runs with other random numbers, for intervals.", 1),
    "router": _option(
        Kind.TEXT,
        "How replicas get requests: round-robin, least-loaded, prefix-aware (default: the first; ranks: the second).",
    ),
    "schedule_policy": _option(
        Kind.WORD,
        "Order of the queue where the engine has it: fcfs (first come first served), shortest-prompt, longest-answer.",
        "fcfs",
        choices=POLICIES,
        closed=True,
    ),
    "replicas": _option(Kind.WHOLE, "Copies of the server behind the router.", 1),
    "pools": _option(Kind.TEXT, "Pools for prefill and decode: prefill=2xtp2@h100-sxm,decode=1xtp8@h200,link=..."),
    "kv_tiers": _option(
        Kind.TEXT, "Where lost blocks of the KV cache are still found: host=64,disk=1000 [GiB a replica]; cpu=, drive=."
    ),
    "find_rate": _option(Kind.SWITCH, "Find the highest rate that meets the limits.", False),
    "ttft": _option(Kind.TIME, "Limit of the time to first token: 2s (of the mean), p99:2s."),
    "tpot": _option(Kind.TIME, "Limit of the time per output token: p99:80ms."),
    "e2e": _option(Kind.TIME, "Limit of the end-to-end latency: p95:20s."),
}


#: Why tiers of the cache keep nothing of a load.
UNNAMED_BLOCKS = "kv_tiers keeps what sessions or a trace's hash_ids name; give sessions"


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """All options with their values; of those that are None, the defaults.  Sessions alone are those of one user.

    Raises UserError for a wrong type, and for an option that another one makes meaningless.
    """
    stated = {name: value for name, value in given.items() if value is not None}
    for name, others in WITHOUT.items():
        beside = next((one for one in others if stated.get(one)), None)
        if name in stated and beside:
            raise UserError(f"{name} is {quoted(stated[name])}, but {beside} has its own; remove one of them")
    if "speed_up" in stated and not (stated.get("trace") or stated.get("rate_curve")):
        raise UserError("speed_up is of a trace or a curve; change request_rate instead")
    words = {name: option.checked(name, stated.get(name, option.default)) for name, option in LOAD.items()}
    if words["sessions"] is not None and not any(words[name] for name in (*SOURCES, "find_rate")):
        words["concurrency"] = 1
    return words


def traffic_of(words: Mapping[str, Any]) -> Traffic:
    """The traffic that checked options describe.  Raises UserError for contradictions and files that are wrong."""
    _check_sources(words)
    length = None if words["duration"] is None else _duration(words["duration"])
    most = words["requests"]
    until_s = float("inf") if length is None else length * words["speed_up"]
    trace = None if words["trace"] is None else traces.read_trace(words["trace"], most, until_s)
    if (
        trace is not None
        and trace.arrival_s is None
        and not (words["request_rate"] or words["concurrency"] or words["find_rate"])
    ):
        raise UserError(f"{words['trace']} has no times; give request_rate or concurrency beside it")
    if trace is not None and trace.arrival_s is not None and words["request_rate"] is not None:
        raise UserError(f"{words['trace']} says when requests arrive; use speed_up in place of request_rate")
    return Traffic(
        input_len=lengths_of("input_len", words["input_len"]),
        output_len=lengths_of("output_len", words["output_len"]),
        gaps=gaps_of(words["arrivals"]),
        rate=words["request_rate"] or (1.0 if words["find_rate"] else None),
        curve=None if words["rate_curve"] is None else rate_curve(words["rate_curve"]),
        trace=trace,
        pairs=None if words["lengths"] is None else traces.read_trace(words["lengths"]),
        sessions=None if words["sessions"] is None else sessions_of(words["sessions"]),
        users=words["concurrency"] or 0,
        burst=words["burst"],
        speed_up=words["speed_up"],
        count=most,
        duration_s=length,
        seed=words["seed"],
    )


def _check_sources(words: Mapping[str, Any]) -> None:
    """Raise UserError unless exactly one option says when requests arrive."""
    given = [name for name in SOURCES if words[name]]
    beside = ({"concurrency", "burst"}, {"trace", "request_rate"}, {"trace", "concurrency"})
    if not given and not words["find_rate"]:
        raise UserError(f"nothing says when requests arrive; give one of {', '.join(SOURCES)}")
    if len(given) > 1 and set(given) not in beside:
        raise UserError(f"{' and '.join(given)} both say when requests arrive; remove one of them")
    if words["lengths"] and words["trace"]:
        raise UserError("lengths and trace both have lengths; remove one of them")
    if words["kv_tiers"] is not None:
        from llmviewer.simulation import tiers  # loads without tiers need neither hosts nor disks

        tiers.sizes_of(words["kv_tiers"])
        if not (words["sessions"] or words["trace"]):
            raise UserError(UNNAMED_BLOCKS)
    if words["duration"] is not None and (words["concurrency"] or words["burst"]):
        raise UserError("duration is not known before a closed loop or a burst ends; give requests instead")


def _duration(text: str) -> float:
    seconds = duration("duration", text)
    if seconds <= 0.0:
        raise UserError(f"duration is {quoted(text)}; allowed: a time above 0, with at most {MOST_REQUESTS:,} requests")
    return seconds


def limits_of(words: Mapping[str, Any]) -> tuple[Limit, ...]:
    """The limits on latencies.  Raises UserError."""
    return tuple(limit(name, words[name]) for name in METRICS if words[name] is not None)


def warm_up_of(words: Mapping[str, Any]) -> float | None:
    """The requested warm-up [s]; None: found by a rule.  Raises UserError."""
    text = words["warm_up"]
    return None if text is None else 0.0 if text == "off" else duration("warm_up", text)
