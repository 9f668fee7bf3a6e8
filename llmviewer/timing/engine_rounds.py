"""Host time that an engine adds to rounds of speculation, by its version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from llmviewer.core.errors import UserError
from llmviewer.language import record
from llmviewer.timing.engine_memory import version_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """Host time of a round of speculation in one engine [us].

    round: beside the kernels of all passes: building the draft tree and its mask, choosing the accepted tokens, moving
    their cache entries.  low, high: the smallest and largest that its sources give.
    draft: each draft pass, while its kernels run; the pass takes the longer of the two.
    """

    round: float
    low: float
    high: float
    draft: float = 0.0
    source: str

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.round <= self.high:
            raise UserError("low, round and high must rise from 0, in us")

    def assumption(self, engine: str) -> str:
        """The assumption behind rounds in this engine, for the provenance of a result."""
        if not self.source:
            return (
                f"rounds of speculation: host time of {engine} is not published, taken as 0 to {self.high / 1e3:g} ms"
            )
        published = f"{self.low / 1e3:g} to {self.high / 1e3:g} by its sources"
        return f"rounds of speculation: {self.round / 1e3:g} ms of host time in {engine}, {published}"


#: The costs of a version, as presets state them.
COSTS = partial(record.read, RoundCosts)
#: No host time at all, for kernels without an engine.
NO_HOST = RoundCosts(round=0.0, low=0.0, high=0.0, source="")
#: Costs of an engine whose rounds nobody has published: none are added, and the interval reaches to the smallest above
#: 0 that a preset states.
UNMEASURED = RoundCosts(round=0.0, low=0.0, high=1300.0, source="")


def chosen(versions: Mapping[str, RoundCosts], version: str, engine: str) -> RoundCosts:
    """Costs of a version; of the newest one for "", of the oldest for versions before it.

    versions: as parsed; empty: nothing is published about the engine.
    """
    if not versions:
        return UNMEASURED
    asked = version_numbers(version, engine) if version else None
    known = [one for first, one in versions.items() if asked is None or version_numbers(first, engine) <= asked]
    return (known or list(versions.values())[:1])[-1]
