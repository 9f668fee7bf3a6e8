"""Reader of torch.profiler's traces (Kineto's JSON, packed with gzip or not).

Kernels are linked to their launch by `correlation` and to the operator of the framework by `External id`; with
record_shapes the operator states the shapes of its inputs.  Fields: https://github.com/pytorch/kineto.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import inf, prod
from typing import Any, NamedTuple

from llmviewer.calibrate.diagnosis.recording import Kernel, Mark, Recording, in_order, seconds, whole
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
#: Characters of a stream's name that hold its number.
STREAM_DIGITS = 18
NO_KERNELS = "the profile has no kernels of a device: the operators on the CPU are compared"


class Event(NamedTuple):
    """An event of a trace, its fields of the types that they have to be.  category: in lower case."""

    name: str
    category: str
    start_s: float
    seconds: float
    pid: Hashable
    tid: Hashable
    args: Mapping[str, Any]

    @property
    def end_s(self) -> float:
        """Time at which the event ended [s]."""
        return self.start_s + self.seconds

    def number(self, name: str) -> Hashable:
        """A number or a name in the arguments; None without one."""
        return _plain(self.args.get(name))

    @property
    def device(self) -> tuple[Hashable, Hashable]:
        """Its device, and its track: merged recordings of several ranks may have one device 0 each."""
        return (self.number("device") if "device" in self.args else self.pid), self.pid


def is_trace(content: object) -> bool:
    """Whether parsed JSON is a trace of events."""
    return isinstance(content, Mapping) and isinstance(content.get("traceEvents"), list)


def recording(content: Mapping[str, Any]) -> Recording:
    """The recording of a trace: of its busiest device.  Raises UserError if it has neither kernels nor operators."""
    found = [event for event in content["traceEvents"] if isinstance(event, Mapping) and event.get("ph") == "X"]
    events = [event for event in map(_checked, found) if event is not None]
    left_out = len(found) - len(events)
    if left_out and not events:
        raise UserError("the trace cannot be read: none of its events has a time")
    notes = (f"{left_out:,} events of the trace without a time are left out",) if left_out else ()
    about = content.get("distributedInfo")
    world = whole(about.get("world_size")) if isinstance(about, Mapping) else 0
    on_device = [event for event in events if event.category in ON_DEVICE]
    if not on_device:
        own = tuple(_marks(events))
        return Recording(
            program=PROGRAM, kernels=_operators(events), marks=own, on_host=True, world_size=world,
            notes=(NO_KERNELS, *notes),
        )  # fmt: skip
    busy: dict[tuple[Hashable, Hashable], float] = {}
    for event in on_device:
        busy[event.device] = busy.get(event.device, 0.0) + event.seconds
    device = max(busy, key=lambda name: busy[name])
    several = f"{len(busy)} devices are recorded: device {whole(device[0])}, the busiest, is compared"
    own_kernels = [event for event in on_device if event.device == device]
    tracks = {*_hosts(events, own_kernels), device[1]}
    events = [event for event in events if event.pid in tracks]
    kernels, cut = in_order(_kernels(own_kernels, events))
    return Recording(
        program=PROGRAM,
        kernels=kernels,
        marks=tuple(_marks(events)),
        device=_device_name(content.get("deviceProperties"), device[0]),
        world_size=world,
        notes=(*((several,) if len(busy) > 1 else ()), *cut, *notes),
    )


def _plain(value: object) -> Hashable:
    """A value that can be compared and is no container; None for another."""
    return value if isinstance(value, (str, int, float)) else None


def _checked(event: Mapping[str, Any]) -> Event | None:
    """The event of an object of the file; None if it states no time."""
    start, length, args = (
        seconds(event.get("ts"), MICROSECOND),
        seconds(event.get("dur"), MICROSECOND),
        event.get("args"),
    )
    if start is None or length is None or length < 0.0:
        return None
    return Event(
        name=str(_plain(event.get("name")) or ""),
        category=str(_plain(event.get("cat")) or "").lower(),
        start_s=start,
        seconds=length,
        pid=_plain(event.get("pid")),
        tid=_plain(event.get("tid")),
        args=args if isinstance(args, Mapping) else {},
    )


def _device_name(properties: object, device: Hashable) -> str:
    """Name of a device; of the first that has one if it is not listed, "" without any."""
    listed = [one for one in properties if isinstance(one, Mapping)] if isinstance(properties, list) else []
    names = {_plain(one.get("id")): str(_plain(one.get("name")) or "") for one in listed}
    return names.get(device) or next(filter(None, names.values()), "")


def _hosts(events: Sequence[Event], own: Sequence[Event]) -> set[Hashable]:
    """The host process that launched the kernels of a device, of several that one file has; all if none is linked.

    Ranks number their launches alike: a launch counts if it precedes its kernel.
    """
    starts = {event.number("correlation"): event.start_s for event in own}
    launches = Counter(
        event.pid
        for event in events
        if event.category in LAUNCHES and event.start_s <= starts.get(event.number("correlation"), -inf)
    )
    hosts = {event.pid for event in events if event.category in (OPERATOR, "user_annotation", *LAUNCHES)}
    return hosts if len(hosts) < 2 or not launches else {launches.most_common(1)[0][0]}


def _marks(events: Sequence[Event]) -> Iterator[Mark]:
    for event in events:
        if event.category in MARKS:
            yield Mark(name=event.name, start_s=event.start_s, end_s=event.end_s, on_device=MARKS[event.category])


def _kernels(on_device: Sequence[Event], events: Sequence[Event]) -> Iterator[Kernel]:
    launches = {event.number("correlation"): event for event in events if event.category in LAUNCHES}
    operators = {event.number("External id"): event for event in events if event.category == OPERATOR}
    for event in on_device:
        launch = launches.get(event.number("correlation"))
        number = event.number("External id")
        operator = operators.get(number if number is not None or launch is None else launch.number("External id"))
        yield Kernel(
            name=event.name,
            start_s=event.start_s,
            seconds=event.seconds,
            stream=_stream(event),
            launch_s=None if launch is None or event.number("correlation") is None else launch.start_s,
            operator="" if operator is None else operator.name,
            shape=None if operator is None else _shape(operator),
        )


def _stream(event: Event) -> int:
    stated = str(event.number("stream") or event.tid or 0)[:STREAM_DIGITS]
    return int("".join(letter for letter in stated if letter in "0123456789") or 0)


def _shape(operator: Event) -> tuple[float, float, float] | None:
    """Rows, inputs and outputs of the matrix product of an operator; None for another one or without shapes."""
    places = PRODUCTS.get(operator.name)
    shapes = operator.args.get("Input Dims")
    if places is None or not isinstance(shapes, list) or len(shapes) <= places[1]:
        return None
    first, second = (_sizes(shapes[place]) for place in places[:2])
    if len(first) < 2 or len(second) < 2:
        return None
    return prod(first[:-1]), first[-1], second[-2] if places[2] else second[-1]


def _sizes(shape: object) -> list[float]:
    """Sizes of a tensor; none for what is no shape of one with entries."""
    sizes = [seconds(size, 1.0) for size in shape] if isinstance(shape, list) else []
    return [size for size in sizes if size] if all(size is not None and size >= 1.0 for size in sizes) else []


def _operators(events: Sequence[Event]) -> tuple[Kernel, ...]:
    """Operators on the CPU that do work and call no other that does, as kernels of one stream.

    Raises UserError if there is none.
    """
    work = [event for event in events if event.category == OPERATOR and event.name not in VIEWS]
    work.sort(key=lambda event: (event.start_s, -event.end_s))
    found: list[Kernel] = []
    for event, following in zip_longest(work, work[1:]):
        if following is not None and following.start_s < event.end_s and event.tid == following.tid:
            continue
        kernel = Kernel(
            name=event.name, start_s=event.start_s, seconds=event.seconds, launch_s=event.start_s,
            operator=event.name, shape=_shape(event),
        )  # fmt: skip
        found.append(kernel)
    if not found:
        raise UserError("the profile has neither kernels of a device nor operators of the framework")
    return tuple(sorted(found, key=lambda kernel: (kernel.start_s, kernel.end_s)))
