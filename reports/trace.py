"""The timeline of a request in the Trace Event Format, for https://ui.perfetto.dev and chrome://tracing.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import inf, nextafter
from typing import Any, TypeAlias

from llmviewer.result.result import Result

Event: TypeAlias = dict[str, Any]
#: (instance of disaggregated serving or "", pipeline stage); stage None is the request as a whole.
Process: TypeAlias = tuple[str, int | None]

#: Fields of operators and forward passes that become arguments of an event.
EVENT_FIELDS = (
    "layer", "block", "batch_size", "new_tokens", "cached_tokens", "decoding_beside", "expected_tokens",
    "flops", "matmul_flops", "traffic_bytes", "weight_read_bytes", "kv_read_bytes", "kv_write_bytes",
    "arithmetic_intensity", "bound", "compute_dtype", "time_s", "ideal_time_s",
)  # fmt: skip
#: Tracks of a chip from top to bottom.
TRACKS = ("compute", "engine", "host", "copies", "link in", "link out", "host memory", "disk")
REQUEST: Process = ("", None)


def lines(result: Result, events: Sequence[Event], chips: int = 1) -> Iterator[str]:
    """Yields the lines of the JSON object, one per event.

    events: of `result.timeline()`.  chips: chips per pipeline stage, which all do the same work.
    The request is one process, and so is each pipeline stage of each instance, with a thread per stream of each chip.
    Times are rounded to the nanoseconds that viewers keep.
    """
    answer = result.to_dict()
    processes = list(dict.fromkeys((REQUEST, *sorted(map(_process, events), key=_order))))
    yield '{"displayTimeUnit": "ns",'
    yield f'"otherData": {json.dumps(_about(answer))},'
    yield '"traceEvents": ['
    last = ""
    for event in (*_names(answer, events, processes, chips), *_drawn(events, processes, chips)):
        if last:
            yield f"{last},"
        last = json.dumps(event)
    yield last
    yield "]}"


def _process(event: Event) -> Process:
    return event["machine"], event["stage"]


def _order(process: Process) -> tuple[bool, str, int]:
    """Returns the sort key of a process: the request first, prefill before decode."""
    machine, stage = process
    return stage is not None, "" if machine == "prefill" else machine, stage or 0


def _drawn(events: Sequence[Event], processes: list[Process], chips: int) -> Iterator[Event]:
    """Yields complete events in the order of their start."""
    for event in events:
        start, end = (round(event[name] * 1e9) for name in ("start_s", "end_s"))
        facts = event["facts"]
        fields = {
            "name": event["name"],
            "cat": event["kind"],
            "ph": "X",
            "ts": microseconds(start),
            "dur": microseconds(end - start),
            "pid": processes.index(_process(event)) + 1,
        }
        args = {name: facts[name] for name in EVENT_FIELDS if facts.get(name) is not None}
        for chip in range(1 if event["stage"] is None else chips):
            yield {**fields, "tid": _thread(event["track"], chip), "args": args}


def microseconds(nanoseconds: int) -> float:
    """Converts so that a viewer that truncates to nanoseconds recovers the same value."""
    value = nanoseconds / 1e3
    return value if int(value * 1e3) >= nanoseconds else nextafter(value, inf)


def _thread(track: str, chip: int) -> int:
    """Returns the thread id of a chip's stream; the request has 1."""
    return 1 + chip * len(TRACKS) + (TRACKS.index(track) if track in TRACKS else 0)


def _names(answer: dict[str, Any], events: Sequence[Event], processes: list[Process], chips: int) -> Iterator[Event]:
    """Yields metadata events: names and order of processes and threads."""
    tracks = {process: {event["track"] for event in events if _process(event) == process} for process in processes}
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
