"""What a model runs on, and how: one noun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmviewer.efficiency import Efficiency, ideal
from llmviewer.hardware import Chip
from llmviewer.ir import Count, Graph, Pass
from llmviewer.kv_cache import PLAIN, KvCache


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fired:
    """What a rule did: its operators of a block, at which points (1.0: fired), the kernel it made, and why so.

    assumed: that a tile fits the chip.
    """

    rule: str
    block: str = ""
    operators: tuple[str, ...] = ()
    where: Count = 0.0
    kernel: str = ""
    reason: str = ""
    assumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Applied:
    """A technique and the name under which results list it.  make: the chip it runs on -> the pass.

    explain: which of its rules fire on the graph that the pass gets, where it has rules.
    """

    name: str
    make: Callable[[Chip], Pass]
    explain: Callable[[Graph, Chip], tuple[Fired, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How many devices share the work, by what they share.  A graph is always that of one device.

    expert: devices to which whole experts are dealt, those of the tensor and data groups; 1: they are split.
    sequence: norms and residual sums are shared by tokens in a tensor group.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    sequence: bool = False

    @property
    def devices(self) -> int:
        """All of them."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def exchanging(self) -> int:
        """Those that send each other messages: replicas do not, unless they share experts."""
        return self.devices if self.expert > 1 else self.tensor * self.pipeline * self.context


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class System:
    """A chip, the passes applied to every graph in order, and the efficiency of kernels.

    memory_utilization: the fraction of the capacity an engine may use.  cache_fraction: instead of it, the fraction of
    what weights and activations leave that the cache may use.  kv_cache: how the cache is kept.
    """

    chip: Chip
    passes: tuple[Applied, ...] = ()
    efficiency: Efficiency = ideal
    memory_utilization: float = 0.9
    cache_fraction: float | None = None
    kv_cache: KvCache = PLAIN
    parallelism: Parallelism = Parallelism()

    def prepared(self, graph: Graph) -> Graph:
        """The graph after all passes."""
        for applied in self.passes:
            graph = applied.make(self.chip)(graph)
        return graph
