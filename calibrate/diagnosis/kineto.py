"""Reader of torch.profiler's traces (Kineto's JSON, packed with gzip or not).

Kernels are linked to their launch by `correlation` and to the operator of the framework by `External id`; with
record_shapes the operator states the shapes of its inputs.  Fields: https://github.com/pytorch/kineto.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from math import inf
from typing import Any

from llmviewer.calibrate.diagnosis.recording import Kernel, Mark, Recording
from llmviewer.core.errors import UserError

PROGRAM = "torch.profiler"
MICROSECOND = 1e-6
#: Categories of events in lower case: on the device, calls that launch them, operators of the framework, marks.  Those
#: of one word are of PyTorch before 1.12.
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "runtime", "driver")
OPERATOR, MARKS = "cpu_op", {"user_annotation": False, "gpu_user_annotation": True}
#: Operator -> places of its two factors among its inputs, and whether the second one is transposed.
PRODUCTS: dict[str, tuple[int, int, bool]] = {
    "aten::mm": (0, 1, False),
    "aten::bmm": (0, 1, False),
    "aten::matmul": (0, 1, False),
    "aten::addmm": (1, 2, False),
    "aten::baddbmm": (1, 2, False),
    "aten::_scaled_mm": (0, 1, False),
    "aten::linear": (0, 1, True),
}
#: Operators that only describe a tensor anew, without work of their own.
VIEWS = frozenset(
    f"aten::{name}"
    for name in "view _unsafe_view t transpose permute reshape expand expand_as as_strided slice select unsqueeze "
    "squeeze detach alias split chunk narrow empty empty_like empty_strided new_empty resize_ resolve_conj lift_fresh "
    "_reshape_alias item _local_scalar_dense is_nonzero unbind to movedim flatten result_type".split()
)
NO_KERNELS = "the profile has no kernels of a device: the operators on the CPU are compared"

Event = Mapping[str, Any]


def is_trace(content: object) -> bool:
    """Whether parsed JSON is a trace of events."""
    return isinstance(content, Mapping) and isinstance(content.get("traceEvents"), list)


def recording(content: Mapping[str, Any]) -> Recording:
    """The recording of a trace: of its busiest device.  Raises UserError if it has neither kernels nor operators."""
    events = [event for event in content["traceEvents"] if isinstance(event, Mapping) and event.get("ph") == "X"]
    try:
        return _recording(events, content)
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(f"an event of the trace cannot be read: {type(error).__name__}: {error}") from error


def _recording(events: Sequence[Event], content: Mapping[str, Any]) -> Recording:
    on_device = [event for event in events if _category(event) in ON_DEVICE]
    if not on_device:
        marks = tuple(_marks(events))
        return Recording(program=PROGRAM, kernels=_operators(events), marks=marks, on_host=True, notes=(NO_KERNELS,))
    busy: dict[tuple[Any, Any], float] = {}
    for event in on_device:
        busy[_device(event)] = busy.get(_device(event), 0.0) + float(event["dur"])
    device = max(busy, key=lambda name: busy[name])
    several = f"{len(busy)} devices are recorded: device {device[0]}, the busiest, is compared"
    notes = (several,) if len(busy) > 1 else ()
    own = [event for event in on_device if _device(event) == device]
    tracks = {*_hosts(events, own), device[1]}
    events = [event for event in events if event.get("pid") in tracks]
    names = {one.get("id"): str(one.get("name", "")) for one in content.get("deviceProperties") or ()}
    name = names.get(device[0]) or next(iter(names.values()), "")
    marks = tuple(_marks(events))
    return Recording(program=PROGRAM, kernels=_kernels(own, events), marks=marks, device=name, notes=notes)


def _category(event: Event) -> str:
    return str(event.get("cat")).lower()


def _device(event: Event) -> tuple[Any, Any]:
    """Device of an event, and its track: merged recordings of several ranks may have one device 0 each."""
    return event.get("args", {}).get("device", event.get("pid")), event.get("pid")


def _hosts(events: Sequence[Event], own: Sequence[Event]) -> set[Any]:
    """The host process that launched the kernels of a device, of several that one file has; all if none is linked.

    Ranks number their launches alike: a launch counts if it precedes its kernel.
    """
    starts = {_number(event, "correlation"): float(event["ts"]) for event in own}
    launches = Counter(
        event.get("pid")
        for event in events
        if _category(event) in LAUNCHES and float(event["ts"]) <= starts.get(_number(event, "correlation"), -inf)
    )
    hosts = {event.get("pid") for event in events if _category(event) in (OPERATOR, "user_annotation", *LAUNCHES)}
    return hosts if len(hosts) < 2 or not launches else {launches.most_common(1)[0][0]}


def _marks(events: Sequence[Event]) -> Iterator[Mark]:
    for event in events:
        if _category(event) in MARKS:
            start, end = _span(event)
            yield Mark(name=str(event["name"]), start_s=start, end_s=end, on_device=MARKS[_category(event)])


def _span(event: Event) -> tuple[float, float]:
    start = float(event["ts"]) * MICROSECOND
    return start, start + float(event["dur"]) * MICROSECOND


def _kernels(on_device: Sequence[Event], events: Sequence[Event]) -> tuple[Kernel, ...]:
    launches = {_number(event, "correlation"): event for event in events if _category(event) in LAUNCHES}
    operators = {_number(event, "External id"): event for event in events if _category(event) == OPERATOR}
    found = []
    for event in on_device:
        launch = launches.get(_number(event, "correlation"))
        number = _number(event, "External id")
        operator = operators.get(number if number is not None or launch is None else _number(launch, "External id"))
        start, end = _span(event)
        found.append(
            Kernel(
                name=str(event["name"]),
                start_s=start,
                seconds=end - start,
                stream=_stream(event),
                launch_s=None if launch is None or _number(event, "correlation") is None else _span(launch)[0],
                operator="" if operator is None else str(operator["name"]),
                shape=None if operator is None else _shape(operator),
            )
        )
    return _ordered(found)


def _stream(event: Event) -> int:
    digits = "".join(letter for letter in str(_number(event, "stream") or event.get("tid") or 0) if letter.isdigit())
    return int(digits or 0)


def _ordered(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    return tuple(sorted(kernels, key=lambda kernel: (kernel.start_s, kernel.end_s)))


def _number(event: Event, name: str) -> Any:
    return event.get("args", {}).get(name)


def _shape(operator: Event) -> tuple[float, float, float] | None:
    """Rows, inputs and outputs of the matrix product of an operator; None for another one or without shapes."""
    places = PRODUCTS.get(str(operator["name"]))
    shapes = _number(operator, "Input Dims")
    if places is None or not isinstance(shapes, list) or len(shapes) <= places[1]:
        return None
    first, second = shapes[places[0]], shapes[places[1]]
    if len(first) < 2 or len(second) < 2:
        return None
    rows = 1.0
    for size in first[:-1]:
        rows *= float(size)
    return rows, float(first[-1]), float(second[-2] if places[2] else second[-1])


def _operators(events: Sequence[Event]) -> tuple[Kernel, ...]:
    """Operators on the CPU that do work and call no other that does, as kernels of one stream.

    Raises UserError if there is none.
    """
    work = [event for event in events if _category(event) == OPERATOR and event["name"] not in VIEWS]
    work.sort(key=lambda event: (_span(event)[0], -_span(event)[1]))
    found: list[Kernel] = []
    for event, following in zip_longest(work, work[1:]):
        start, end = _span(event)
        if following is not None and _span(following)[0] < end and event.get("tid") == following.get("tid"):
            continue
        name = str(event["name"])
        kernel = Kernel(
            name=name, start_s=start, seconds=end - start, launch_s=start, operator=name, shape=_shape(event)
        )
        found.append(kernel)
    if not found:
        raise UserError("the profile has neither kernels of a device nor operators of the framework")
    return _ordered(found)
