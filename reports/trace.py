"""The timeline of a request in the Trace Event Format, for https://ui.perfetto.dev and chrome://tracing.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import inf, nextafter
from typing import Any, TypeAlias

from llmviewer.core.frozen import frozen
from llmviewer.result.result import Result

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


@frozen
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


#: Fields of operators and forward passes that become arguments of an event.
EVENT_FIELDS = (
    "layer", "block", "batch_size", "new_tokens", "cached_tokens", "decoding_beside", "expected_tokens",
    "flops", "matmul_flops", "traffic_bytes", "weight_read_bytes", "kv_read_bytes", "kv_write_bytes",
    "arithmetic_intensity", "bound", "compute_dtype", "time_s", "time_interval_s", "ideal_time_s", "kv_cache_bytes",
)  # fmt: skip
#: Tracks of a chip from top to bottom.
TRACKS = ("compute", BOUND, "engine", "host", "copies", "link in", "link out", "host memory", "disk")


def lines(result: Result, events: Sequence[Event], chips: int = 1) -> Iterator[str]:
    """Yields the lines of the JSON object, one per event, with the track of bounds, counters and arrows.

    events: of `result.timeline()`.  chips: chips per pipeline stage, which all do the same work.
    The request is one process, and so is each pipeline stage of each instance, with a thread per stream of each chip.
    Times are rounded to the nanoseconds that viewers keep.
    """
    answer = result.to_dict()
    processes = list(dict.fromkeys((REQUEST, *sorted(map(process_of, events), key=_order))))
    events = sorted((*events, *bounds(events)), key=lambda event: (event["start_s"], -event["end_s"]))
    samples = counters(events, 0.0 if result.analysis.running is None else answer["memory"]["kv_cache_bytes"])
    yield '{"displayTimeUnit": "ns",'
    yield f'"otherData": {json.dumps(_about(answer))},'
    yield '"traceEvents": ['
    last = ""
    drawn = (_drawn(events, processes, chips), _sampled(samples, processes))
    for event in (*_names(answer, events, processes, chips), *(event for part in drawn for event in part)):
        if last:
            yield f"{last},"
        last = json.dumps(event)
    yield last
    yield "]}"


def _order(process: Process) -> tuple[bool, str, int]:
    """Returns the sort key of a process: the request first, prefill before decode."""
    machine, stage = process
    return stage is not None, "" if machine == "prefill" else machine, stage or 0


def _drawn(events: Sequence[Event], processes: list[Process], chips: int) -> Iterator[Event]:
    """Yields complete events in the order of their start, each followed by the ends of its arrows."""
    for event in events:
        start, end = (round(event[name] * 1e9) for name in ("start_s", "end_s"))
        facts = event["facts"]
        fields = {
            "name": event["name"],
            "cat": event["kind"],
            "ph": "X",
            "ts": microseconds(start),
            "dur": microseconds(end - start),
            "pid": processes.index(process_of(event)) + 1,
        }
        if facts.get("bound") in COLOURS:
            fields["cname"] = COLOURS[facts["bound"]]
        args = {name: facts[name] for name in EVENT_FIELDS if facts.get(name) is not None}
        for chip in range(1 if event["stage"] is None else chips):
            yield {**fields, "tid": _thread(event["track"], chip), "args": args}
        yield from _arrows(event, fields["pid"], (start, end))


def _arrows(event: Event, pid: int, when: tuple[int, int]) -> Iterator[Event]:
    """Yields flow events within the event on the first chip: arrows that arrive at its start, and leave at its end.

    A viewer binds a flow event to the event that encloses its time, which ends one nanosecond after the last arrow.
    """
    where, (start, end) = {"cat": "flow", "pid": pid, "tid": _thread(event["track"], 0)}, when
    for number, name in event["receives"]:
        yield {**where, "name": name, "id": number, "ph": "f", "bp": "e", "ts": microseconds(start)}
    for number, name in event["sends"]:
        yield {**where, "name": name, "id": number, "ph": "s", "ts": microseconds(max(end - 1, start))}


def _sampled(samples: Iterator[Sample], processes: list[Process]) -> Iterator[Event]:
    """Yields counter events; a counter belongs to a process."""
    for sample in samples:
        yield {
            "name": sample.counter,
            "ph": "C",
            "ts": microseconds(round(sample.time_s * 1e9)),
            "pid": processes.index(sample.process) + 1,
            "args": {"value": sample.value},
        }


def microseconds(nanoseconds: int) -> float:
    """Converts so that a viewer that truncates to nanoseconds recovers the same value."""
    value = nanoseconds / 1e3
    return value if int(value * 1e3) >= nanoseconds else nextafter(value, inf)


def _thread(track: str, chip: int) -> int:
    """Returns the thread id of a chip's stream; the request has 1."""
    return 1 + chip * len(TRACKS) + (TRACKS.index(track) if track in TRACKS else 0)


def _names(answer: dict[str, Any], events: Sequence[Event], processes: list[Process], chips: int) -> Iterator[Event]:
    """Yields metadata events: names and order of processes and threads."""
    tracks = {process: {event["track"] for event in events if process_of(event) == process} for process in processes}
    for pid, process in enumerate(processes, 1):
        yield _metadata("process_name", pid, 0, {"name": _title(answer, process, processes)})
        yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
        for chip in range(1 if process == REQUEST else chips):
            for track in sorted(tracks[process], key=lambda track: _thread(track, chip)):
                tid = _thread(track, chip)
                yield _metadata(
                    "thread_name", pid, tid, {"name": f"chip {chip}: {track}" if chips > 1 and pid > 1 else track}
                )
                yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> Event:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _title(answer: dict[str, Any], process: Process, processes: list[Process]) -> str:
    machine, stage = process
    if stage is None:
        return f"{answer['model']['name']} on {answer['hardware']['name']}"
    stages = 1 + max(other for name, other in processes if other is not None and name == machine)
    parts = [answer["hardware"]["name"]]
    parts += [f"{machine} instance"] if machine else []
    parts += [f"pipeline stage {stage + 1} of {stages}"] if stages > 1 else []
    return ", ".join(parts)


def _about(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the request, the configuration and the provenance of times."""
    keys = ("model", "hardware")
    return {
        **{key: answer[key]["name"] for key in keys},
        **{key: answer[key] for key in ("workload", "parallelism", "passes", "batching")},
        "efficiency": answer["efficiency"]["kind"],
        "engine": answer["efficiency"].get("engine"),
        "times": answer["provenance"]["times"],
        "llmviewer": answer["provenance"]["llmviewer"],
    }
