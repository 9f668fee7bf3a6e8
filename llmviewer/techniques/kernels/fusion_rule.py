"""Form of a fusion rule, and of a candidate that it yields: operators of a block that can be one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from llmviewer.core.counts import Count
from llmviewer.ops.collective import CollectiveShape
from llmviewer.techniques.kernels.fusion_flow import Flow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """Operators that can be one kernel, by their places in the block.

    tile_bytes: intermediate bytes that one unit stores on the chip.  refused: reason why they cannot be fused.
    exchange: the collective among them, whose kernels fuse only small messages.
    """

    operators: tuple[int, ...]
    tile_bytes: Count = 0.0
    refused: str = ""
    exchange: CollectiveShape | None = None


Match: TypeAlias = Callable[[Flow], Iterator[Candidate]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionRule:
    """A pattern of operators that one kernel replaces.  missing: the reason reported if a graph has no candidate.

    named: applied only if named, not by `all`: kernels that span layers or devices, which few engines have.
    """

    name: str
    summary: str
    source: str
    missing: str
    match: Match
    named: bool = False
