"""Copies that run while layers compute: what of their time nobody waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.ir import Block, Operator
from llmviewer.ops.transfer import Direction, direction_of
from llmviewer.timing.roofline import Timing

#: What stands for all kernels of a layer among its resources.
KERNELS = "kernels"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerWithCopies:
    """One layer of a kind, its kernels and copies side by side.

    serial_s: one after another.  engine_s: what an engine adds to the kernels, in both.  resources: what kernels, each
    direction of the link, the host's memory and its disk take alone [s].
    """

    block: Block
    serial_s: Count
    engine_s: Count
    resources: tuple[tuple[str, Count], ...]

    @property
    def kernels_s(self) -> Count:
        """Kernels, one after another [s]."""
        return dict(self.resources)[KERNELS]

    @property
    def time_s(self) -> Count:
        """The slowest of them: T = max(ctog, gtoc, dtoc, ctod, comp) (FlexGen, arXiv 2303.06865, section 4.3)."""
        (_, slowest), *others = self.resources
        for _, seconds in others:
            slowest = np.maximum(slowest, seconds)
        return slowest

    def waits(self, at: Callable[[Count], float]) -> tuple[str, float, bool]:
        """The slowest copy's resource, the seconds it is waited for, and whether it takes longer than the kernels.

        Kernels bound what else there is of the layer.  at: a count of all passes -> that of a stage's passes, of which
        some may wait for copies though the kernels of most take longer.
        """
        taken = {name: at(seconds) for name, seconds in self.resources}
        kernels = taken.pop(KERNELS)
        slowest = max(taken, key=lambda name: taken[name])
        alone = taken[slowest] > kernels
        return slowest.split()[0], at(self.time_s) - (0.0 if alone else kernels), alone

    @staticmethod
    def copies(operator: Operator) -> bool:
        """Whether it is a copy that runs beside the kernels of a layer."""
        return direction_of(operator) is not None

    @property
    def hidden_s(self) -> Count:
        """What kernels and copies run side by side."""
        return self.serial_s - self.time_s


def layers(priced: Iterable[tuple[Block, Operator, Timing]], added: Count = 0.0) -> tuple[LayerWithCopies, ...]:
    """The kinds of layers that copy anything while they compute.

    added: what an engine adds within layers, as a share of the kernels' time: copies go on in its gaps.
    """
    by_block: dict[str, list[tuple[Block, Operator, Timing]]] = {}
    for block, operator, timing in priced:
        by_block.setdefault(block.name, []).append((block, operator, timing))
    copying = (rows for rows in by_block.values() if any(LayerWithCopies.copies(operator) for _, operator, _ in rows))
    return tuple(_layer(rows, added) for rows in copying)


def _layer(rows: list[tuple[Block, Operator, Timing]], added: Count) -> LayerWithCopies:
    kernels = total(timing.time_s for _, operator, timing in rows if not LayerWithCopies.copies(operator))
    engine = total(t.time_s for _, operator, t in rows if operator.is_kernel) * added
    taken: dict[str, Count] = {KERNELS: kernels + engine}
    for _, operator, timing in rows:
        direction = direction_of(operator)
        for name, seconds in timing.resources if direction else ():
            key = f"{name} {Direction.OUT.value}" if name == "link" and direction is Direction.OUT else name
            if name in ("link", "host", "disk"):
                taken[key] = taken[key] + seconds if key in taken else seconds
    serial = total(timing.time_s for _, _, timing in rows) + engine
    return LayerWithCopies(block=rows[0][0], serial_s=serial, engine_s=engine, resources=tuple(taken.items()))
