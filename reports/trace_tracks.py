"""Additions of a trace to the events of a timeline: a track of bounds, and counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]
#: (instance of disaggregated serving or "", pipeline stage); stage None is the request as a whole.
Process: TypeAlias = tuple[str, int | None]

REQUEST: Process = ("", None)
#: The track of bounds, below the kernels.
BOUND = "bound"
#: Tracks whose operators run one after another on a device.
CHAIN = ("compute", "copies", "host")
#: Bound -> reserved colour name of chrome://tracing.  Perfetto ignores these and colours by name, hence the track.
COLOURS = {
    "compute": "thread_state_running",
    "vector": "rail_animation",
    "special": "rail_response",
    "memory": "thread_state_iowait",
    "l2": "yellow",
    "link": "rail_load",
    "host": "olive",
    "disk": "terrible",
    "overhead": "grey",
}
#: Counter of a device, in SI units -> the count of an operator that it divides by the operator's time.
RATES = {"memory bandwidth (bytes/s)": "traffic_bytes", "matrix units (FLOP/s)": "matmul_flops"}
NO_ARROWS: Event = {"sends": (), "receives": ()}
CACHE = "KV cache of a device (bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A value of a counter from `time_s` on."""

    process: Process
    counter: str
    time_s: float
    value: float


def process_of(event: Event) -> Process:
    """The process that shows an event."""
    return event["machine"], event["stage"]


def chains(events: Sequence[Event]) -> dict[Process, list[Event]]:
    """Operators of every device in the order of their start, without copies that run beside kernels."""
    found: dict[Process, list[Event]] = {}
    for event in events:
        if event["track"] in CHAIN and "bound" in event["facts"]:
            found.setdefault(process_of(event), []).append(event)
    return found


def bounds(events: Sequence[Event]) -> Iterator[Event]:
    """Yields events of the track of bounds: neighbouring operators with one bound are one event named after it."""
    for chain in chains(events).values():
        current: Event | None = None
        for event in chain:
            bound = event["facts"]["bound"]
            if current is not None and current["name"] == bound and not _apart(current["end_s"], event["start_s"]):
                current["end_s"] = event["end_s"]
                continue
            if current is not None:
                yield current
            current = {**event, "name": bound, "kind": BOUND, "track": BOUND, "facts": {"bound": bound}, **NO_ARROWS}
        if current is not None:
            yield current


def counters(events: Sequence[Event], cache_at_start: float) -> Iterator[Sample]:
    """Yields samples of all counters where they change: rates of the kernels of each device, KV cache of the request.

    cache_at_start: KV cache before prefill [byte].  A rate is that of a kernel's own time, without engine time; it is 0
    between kernels.
    """
    for process, chain in chains(events).items():
        for counter, count in RATES.items():
            yield from _changes(process, counter, chain, count)
    yield Sample(process=REQUEST, counter=CACHE, time_s=0.0, value=cache_at_start)
    for event in events:
        if event["kind"] == "step" and "kv_cache_bytes" in event["facts"]:
            yield Sample(process=REQUEST, counter=CACHE, time_s=event["end_s"], value=event["facts"]["kv_cache_bytes"])


def _apart(end_s: float, start_s: float) -> bool:
    """Whether two times differ in the nanoseconds that viewers keep."""
    return round(end_s * 1e9) != round(start_s * 1e9)


def _changes(process: Process, counter: str, chain: Sequence[Event], count: str) -> Iterator[Sample]:
    value, end = 0.0, 0.0
    for event in chain:
        facts = event["facts"]
        rate = facts[count] / facts["time_s"] if event["track"] == "compute" and facts["time_s"] else 0.0
        if value and _apart(end, event["start_s"]):
            value = 0.0
            yield Sample(process=process, counter=counter, time_s=end, value=value)
        if rate != value:
            value = rate
            yield Sample(process=process, counter=counter, time_s=event["start_s"], value=value)
        end = event["end_s"]
    if value:
        yield Sample(process=process, counter=counter, time_s=end, value=0.0)
