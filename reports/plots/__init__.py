"""Pictures: the registry, one line a kind.  Every kind is a file with `frame` (results -> rows) and `draw` (rows ->
Figure), so that a notebook draws rows of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How the command line offers a picture.

    module: of reports.plots.  summary: what it shows.  axis: the list of sizes along which points lie, and what it is
    unless asked otherwise ("" and "": one point).  fewest: configurations it compares at least.
    """

    module: str
    summary: str
    axis: str = ""
    values: str = ""
    fewest: int = 1


KINDS: dict[str, Kind] = {
    "roofline": Kind(module="roofline", summary="Operators under the roofs of memory and compute, log-log."),
}
