"""Events of a timeline, and the arrows between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

#: Number of an arrow, which one event sends and a later one receives, and the name of what it carries.
Arrow: TypeAlias = tuple[int, str]

#: Tracks of a device: kernels with the passes and layers that contain them, and engine time between kernels.
COMPUTE, ENGINE = "compute", "engine"
#: The track of prefill and decode steps as a whole.
REQUEST = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of the timeline, from start_s to end_s after the request arrives [s].

    kind: step, pass, layer, engine, transfer, or the kind of an operator.  stage: pipeline stage, from 0; None for
    events that are not on a device.  machine: pool of a disaggregated system, prefill or decode; "" if there is one.
    track: events on a track may nest but never overlap.  facts: counts of one device, named as in an OPERATOR object.
    sends, receives: arrows that leave at the end of the event and arrive at its start.
    """

    name: str
    kind: str
    start_s: float
    end_s: float
    track: str = REQUEST
    stage: int | None = None
    machine: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    sends: tuple[Arrow, ...] = ()
    receives: tuple[Arrow, ...] = ()

    def row(self) -> dict[str, Any]:
        """The event as a dict, by field name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}
