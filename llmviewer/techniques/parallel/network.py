"""`--network`: network between groups of devices that are connected by a link."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.hardware.chip import NETWORK
from llmviewer.hardware.specs import network
from llmviewer.techniques.technique import Change, Technique


def _make(text: str) -> Change:
    link, figure = network(text)

    def change(system: System) -> System:
        chip = system.chip
        figures = {**chip.figures, f"links.{NETWORK}.bandwidth_bytes_per_s": figure}
        return replace(system, chip=replace(chip, links={**chip.links, NETWORK: link}, figures=figures))

    return change


TECHNIQUE = Technique(
    name="network",
    kind="parallelism",
    summary="Connects groups of linked devices by a network, with one port per device.",
    formula="groups of g of n devices: reduce-scatter and all-gather inside over the link, (g-1)/g of the bytes each; "
    "1/g of them across n/g groups over the network, both at once",
    source="NCCL https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; BlueConnect arXiv 1810.11112",
    example="llmviewer analyze llama-3.1-405b --hardware h100-sxm -tp 16 --network infiniband-ndr",
    make=_make,
)
