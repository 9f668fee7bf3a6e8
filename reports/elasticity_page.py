"""Elasticities as a page: what ten percent more of each resource saves, as a table with bars."""

from __future__ import annotations

from llmviewer.language.quantity import LATENCIES
from llmviewer.planning.elasticity import Elasticities
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right

#: Resource -> what more of it means, where that is not a figure of the chip.
MEANINGS = {
    "launch": "launches and other fixed times of kernels that are shorter",
    "latency": "messages between devices that arrive sooner",
    "host": "time of the engine on the host that is shorter",
}
#: Share of the time below which nothing is left over: steps of the differences.
NOTHING = 1e-4


def page(found: Elasticities) -> Page:
    """Returns the largest elasticity in words, and a row per resource."""
    name = LATENCIES[found.metric].label
    rows = tuple(
        Row(cells=(resource, f"{share:.3f}", fmt.share(found.saved(resource)), MEANINGS.get(resource, "")))
        for resource, share in found.by_resource.items()
    )
    if abs(found.rest) > NOTHING:
        rest = "what no resource changes alone: cycles of the clock, sizes of tiles"
        rows = (*rows, Row(cells=("rest", f"{found.rest:.3f}", "", rest)))
    facts = (
        ("Verdict", f"{found.sentence()} of {name}"),
        ("Time", f"{name} {fmt.duration(found.value)} of {found.model} on {found.hardware}"),
    )
    columns = (left("Resource"), right("Elasticity"), right("10 % more saves"), left("", 1))
    return (
        Facts(lines=facts),
        Table(columns=columns, rows=rows, note="elasticity: percent of the time per percent of the resource"),
        Facts(lines=(("", "kernels are assumed to reach the same share of a larger figure"),), emphasis=Emphasis.FAINT),
    )
