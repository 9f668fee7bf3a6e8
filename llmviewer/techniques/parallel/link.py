"""`--link`: link over which the devices of a node exchange data, where it is not the chip's default."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.errors import UserError, unknown
from llmviewer.hardware.chip import HOST_PATH, NETWORK, Chip
from llmviewer.techniques.technique import Change, Technique


def linked_by(chip: Chip, name: str) -> Chip:
    """The chip with another of its links between devices, or its PCIe without peer-to-peer access; raises UserError."""
    links = {known: link for known, link in chip.links.items() if known != NETWORK}
    if "pcie" in links:
        links[HOST_PATH] = replace(links["pcie"], name=HOST_PATH)
    if not links:
        raise UserError(f"--link: {chip.name} publishes no link between devices")
    if name not in links:
        raise unknown(f"link of {chip.name}", name, links)
    return replace(chip, links={**chip.links, name: links[name]}, default_link=name)


def _make(text: str) -> Change:
    return lambda system: replace(system, chip=linked_by(system.chip, text))


TECHNIQUE = Technique(
    name="link",
    kind="parallelism",
    summary="Chooses the link between devices: nvlink over a bridge, or pcie-host for PCIe cards without peer-to-peer "
    "access, which exchange data through the host's memory.",
    formula="share of the link's rate, n cards: over pcie bus x (far + (1 - far) (2/n)^2); over pcie-host bus for 2 "
    "cards, crossing x (4/n)^crowding for more; all four are fitted",
    source="NCCL timed by aiconfigurator: 8 RTX PRO 6000 with peer-to-peer access, 8 L40S without "
    "https://github.com/ai-dynamo/aiconfigurator",
    example="llmviewer analyze llama-2-7b --hardware l40s -tp 2 --link pcie-host",
    make=_make,
)
