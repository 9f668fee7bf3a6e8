"""Exchanges between devices: latency per message and the share of the link's rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.chip import Chip
from llmviewer.efficiency import Rates, ideal
from llmviewer.ir import Count, Operator
from llmviewer.kernels.family import Constant, Constants, Family
from llmviewer.ops.collective import CollectiveShape


def rates(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """A floor, a latency per message, and a share of the link's rate."""
    sheet = ideal(operator, chip)
    link = sheet.link_bytes_per_s
    return replace(
        sheet,
        link_bytes_per_s=None if link is None else link * constants["link"],
        l2_bytes_per_s=None,
        vector_flops_per_s=None,
        hop_s=constants["hop"] * 1e-6,
        fixed_s=constants["floor"] * 1e-6,
    )


def covers(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Devices, and bytes of the whole tensor."""
    shape = operator.shape
    assert isinstance(shape, CollectiveShape)
    return {"devices": shape.devices, "bytes": shape.size_bytes}


FAMILY = Family(
    name="collective",
    constants=(
        Constant(name="floor", unit="us", meaning="shortest exchange", start=5.0, low=0.0, high=200.0),
        Constant(name="hop", unit="us", meaning="latency of one message", start=1.0, low=0.0, high=50.0),
        Constant(name="link", unit="1", meaning="share of the link's rate", start=0.8, low=0.02, high=1.5),
    ),
    rates=rates,
    covers=covers,
    variant=lambda operator: operator.shape.pattern.value,  # type: ignore[attr-defined]
)
