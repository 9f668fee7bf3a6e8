"""A verdict: the answer to a request, and the changes of one option that were tried to make it fit or faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmviewer.result.result import Result

#: A change that saves less of the time of a request than this is none worth making.
LEAST_GAIN = 1.02


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """One or more options with other values, and the result they would have.

    option: as typed on the command line.  words: the same by name.
    """

    option: str
    result: Result
    words: Mapping[str, Any] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Devices that the changed configuration needs."""
        return int(self.result.analysis.system.parallelism.devices)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdict:
    """The result of one point and the changes that were tried.

    remedies: for a result that does not fit, the least change of each kind that does.
    changes: for one that fits, every change that was tried.
    """

    result: Result
    remedies: tuple[Change, ...] = ()
    changes: tuple[Change, ...] = ()

    @property
    def best(self) -> Change | None:
        """The change with the least time of a request on as many devices; None if none saves LEAST_GAIN."""
        return self._best(lambda change: change.devices <= self._devices)

    @property
    def best_with_more_devices(self) -> Change | None:
        """The change with the least time of a request among those that need more devices, if it saves LEAST_GAIN."""
        return self._best(lambda change: change.devices > self._devices)

    @property
    def _devices(self) -> int:
        return int(self.result.analysis.system.parallelism.devices)

    def _best(self, allowed: Callable[[Change], bool]) -> Change | None:
        tried = [change for change in self.changes if allowed(change) and change.result.fits]
        fastest = min(tried, key=lambda change: float(change.result.e2e_s), default=None)
        if fastest is None or float(fastest.result.e2e_s) * LEAST_GAIN > float(self.result.e2e_s):
            return None
        return fastest
