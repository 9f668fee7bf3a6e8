"""Copies that overlap with the kernels of a layer, as in offloading."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Operator
from llmviewer.ops.transfer import Direction, copy_direction
from llmviewer.timing.roofline import Timing

#: Name under which all kernels of a layer are listed among its resources.
KERNEL_RESOURCE = "kernels"


@frozen(eq=False)
class LayerWithCopies:
    """One layer whose kernels and copies run concurrently.

    serial_s: kernels and copies one after another.  engine_s: engine terms within the layer, included in serial_s and
    in the time of the kernels.  resources: time of the kernels, each direction of the link, host memory and disk [s].
    """

    block: Block
    serial_s: Count
    engine_s: Count
    resources: tuple[tuple[str, Count], ...]

    @property
    def kernels_s(self) -> Count:
        """Time of the kernels, one after another [s]."""
        return dict(self.resources)[KERNEL_RESOURCE]

    @property
    def time_s(self) -> Count:
        """Time of the slowest resource [s]: T = max(ctog, gtoc, dtoc, ctod, comp) (FlexGen, arXiv 2303.06865, 4.3)."""
        (_, slowest), *others = self.resources
        for _, seconds in others:
            slowest = np.maximum(slowest, seconds)
        return slowest

    def slowest_copy(self, at: Callable[[Count], float]) -> tuple[str, float, bool]:
        """Resource of the slowest copy, the seconds that it bounds, and whether it takes longer than the kernels.

        Kernels bound the rest of the layer.  at: a count of all passes -> that of a stage; some of its passes may wait
        for copies although the kernels of most take longer.
        """
        times = {name: at(seconds) for name, seconds in self.resources}
        kernels = times.pop(KERNEL_RESOURCE)
        slowest = max(times, key=lambda name: times[name])
        longer = times[slowest] > kernels
        return slowest.split()[0], at(self.time_s) - (0.0 if longer else kernels), longer

    @staticmethod
    def is_copy(operator: Operator) -> bool:
        """Whether the operator is a copy that runs concurrently with the kernels of a layer."""
        return copy_direction(operator) is not None

    @property
    def hidden_s(self) -> Count:
        """Time saved by running kernels and copies concurrently [s]."""
        return self.serial_s - self.time_s


def layers_with_copies(
    priced: Iterable[tuple[Block, Operator, Timing]], added: Count = 0.0
) -> tuple[LayerWithCopies, ...]:
    """Layers that copy while they compute, one of each kind.

    added: engine terms within layers as a fraction of the kernels' time; copies continue during these gaps.
    """
    by_block: dict[str, list[tuple[Block, Operator, Timing]]] = {}
    for block, operator, timing in priced:
        by_block.setdefault(block.name, []).append((block, operator, timing))
    copying = (rows for rows in by_block.values() if any(LayerWithCopies.is_copy(operator) for _, operator, _ in rows))
    return tuple(_layer(rows, added) for rows in copying)


def _layer(rows: list[tuple[Block, Operator, Timing]], added: Count) -> LayerWithCopies:
    kernels = total(timing.time_s for _, operator, timing in rows if not LayerWithCopies.is_copy(operator))
    engine = total(t.time_s for _, operator, t in rows if operator.is_kernel) * added
    taken: dict[str, Count] = {KERNEL_RESOURCE: kernels + engine}
    for _, operator, timing in rows:
        direction = copy_direction(operator)
        for name, seconds in timing.resources if direction else ():
            key = f"{name} {Direction.OUT.value}" if name == "link" and direction is Direction.OUT else name
            if name in ("link", "host", "disk"):
                taken[key] = taken[key] + seconds if key in taken else seconds
    serial = total(timing.time_s for _, _, timing in rows) + engine
    return LayerWithCopies(block=rows[0][0], serial_s=serial, engine_s=engine, resources=tuple(taken.items()))
