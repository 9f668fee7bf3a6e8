"""One forward pass of one device as it runs: layers in their true order, operators with what the engine adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from llmviewer.analysis.evaluation import Evaluation, TimedOperator
from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core.ir import Block, Graph, Kind, Operator, Place
from llmviewer.hardware.chip import Chip
from llmviewer.ops.transfer import Direction, direction_of
from llmviewer.result.stages import At, operator_object, runs
from llmviewer.timing.engine import FACTORS, converts, unpacks

#: Terms of an engine that stand before kernels -> which; the others stand before the pass, `sampling` behind it.
BEFORE: dict[str, Callable[[Operator], bool]] = {
    "launch": lambda operator: True,
    "host": lambda operator: True,
    "collective": lambda operator: operator.kind is Kind.COLLECTIVE,
}
BEHIND = ("sampling",)
#: Terms that change what kernels take -> whose.
WITHIN: dict[str, Callable[[Operator], bool]] = {
    "conversion": converts,
    "own matrix-vector kernels": lambda operator: operator.kind is Kind.GEMM,
    "unpacking weights": lambda operator: any(unpacks(operator, access) for access in operator.reads),
}
#: What an engine spends, by name [s].
Terms: TypeAlias = tuple[tuple[str, float], ...]
#: Tracks of copies that run beside kernels, by resource and direction.
COPIES = {"link": "link in", "host": "host memory", "disk": "disk"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernel:
    """An operator of one layer.  counts: its OPERATOR object.

    alone_s: what it takes [s]; seconds: with what the engine adds.
    before: what the engine spends before it, by name [s].  copies: of a copy beside kernels what it takes of each track
    [s]; it takes no time of the chain then.
    """

    counts: Mapping[str, object]
    seconds: float
    alone_s: float
    track: str
    before: Terms = ()
    copies: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedLayer:
    """A layer, or what comes before and behind all layers.

    number: of the layer, from 0; None: no layer.  window_s: the least it takes, that of its copies [s].
    """

    name: str
    number: int | None
    kernels: tuple[Kernel, ...]
    before: Terms = ()
    window_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Kernels one after another with what the engine adds, and how much longer copies take than kernels alone."""
        chain = [kernel for kernel in self.kernels if not kernel.copies]
        spent = sum(kernel.seconds + sum(seconds for _, seconds in kernel.before) for kernel in chain)
        waiting = max(self.window_s - sum(kernel.alone_s for kernel in chain), 0.0)
        return sum(seconds for _, seconds in self.before) + spent + waiting


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unrolled:
    """A pass.  before, behind: what the engine spends at its ends, by name [s]."""

    seconds: float
    sections: tuple[TracedLayer, ...]
    before: Terms = ()
    behind: Terms = ()


def in_order(graph: Graph, first: int = 0) -> Iterator[tuple[Block, int | None]]:
    """The blocks of a graph layer by layer, each with the layer's number; None: no layer.  first: its first layer."""
    layers = [block for block in graph.blocks if block.scope != "model"]
    numbers = iter(layer_numbers(layers))
    reached, places = -1, []
    for at, block in enumerate(graph.blocks):
        if block.scope == "model":
            places += [(reached, at, block)] * block.repeats
            continue
        own = next(numbers)
        places += [(number, at, block) for number in own]
        reached = max(reached, *own) if own else reached
    counted = first
    for _, _, block in sorted(places, key=lambda place: place[:2]):
        if block.scope == "model":
            yield block, None
        else:
            yield block, counted
            counted += 1


def unrolled(totals: Evaluation, chip: Chip, at: At, first: int = 0) -> Unrolled:
    """A pass of an evaluation.  at: a count of all passes -> that of this.  first: its first layer."""
    run = [row for row in totals.rows if runs(row, at)]
    beside = {layer.block.name: at(layer.time_s) for layer in totals.copying}
    chain = [row for row in run if row.block.name not in beside or direction_of(row.operator) is None]
    spent = _Spent(chain=chain, at=at)
    for name, seconds in totals.served:
        spent.add(name, at(seconds))
    layers = sum(block.repeats for block in totals.graph.blocks if block.scope != "model")
    each = tuple((name, seconds / layers) for name, seconds in spent.layers)
    several = sum(block.scope != "model" for block in totals.graph.blocks) > 1
    made = {
        block.name: _Made(
            kernels=tuple(_kernel(row, chip, at, spent) for row in run if row.block.name == block.name),
            title=f" ({block.name})" if several else "",
            window_s=beside.get(block.name, 0.0),
        )
        for block in totals.graph.blocks
    }
    sections = tuple(made[block.name].section(block, number, each) for block, number in in_order(totals.graph, first))
    return Unrolled(
        seconds=at(totals.time_s), sections=sections, before=tuple(spent.before), behind=tuple(spent.behind)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Made:
    """What every layer of a kind runs.  title: the kind, where there are several."""

    kernels: tuple[Kernel, ...]
    title: str
    window_s: float

    def section(self, block: Block, number: int | None, each: Terms) -> TracedLayer:
        """One of these layers.  each: what the engine spends before every layer."""
        if number is None:
            return TracedLayer(name=block.name, number=None, kernels=self.kernels, window_s=self.window_s)
        name = f"layer {number}{self.title}"
        return TracedLayer(name=name, number=number, kernels=self.kernels, before=each, window_s=self.window_s)


@dataclass(slots=True, kw_only=True, eq=False)
class _Spent:
    """What an engine adds to a pass, dealt to where it is paid.

    chain: operators that run one after another.  within: seconds of a run of each, beyond its own.
    """

    chain: list[TimedOperator]
    at: At
    before: list[tuple[str, float]] = field(default_factory=list)
    behind: list[tuple[str, float]] = field(default_factory=list)
    layers: list[tuple[str, float]] = field(default_factory=list)
    gaps: dict[int, list[tuple[str, float]]] = field(default_factory=dict)
    within: dict[int, float] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        """A term of the whole pass."""
        if seconds == 0.0:
            return
        which = BEFORE.get(name)
        if seconds < 0.0 or name in WITHIN or name.startswith("own "):
            self._change(seconds, WITHIN.get(name) or _own(name))
        elif which is not None:
            self._gaps(name, seconds, [row for row in self.chain if which(row.operator)])
        elif name == "layer":
            self.layers.append((name, seconds))
        else:
            (self.behind if name in BEHIND else self.before).append((name, seconds))

    def _gaps(self, name: str, seconds: float, rows: list[TimedOperator]) -> None:
        """Evenly before each run of these operators."""
        often = sum(row.block.repeats for row in rows)
        for row in rows:
            self.gaps.setdefault(id(row), []).append((name, seconds / often))

    def _change(self, seconds: float, which: Callable[[Operator], bool]) -> None:
        """In proportion to what these kernels take; of all, where these take less than is saved."""
        rows = [row for row in self.chain if which(row.operator)]
        taken = sum(self.kernel_s(row) * row.block.repeats for row in rows)
        if not taken or taken < -seconds:
            rows = self.chain
            taken = sum(self.kernel_s(row) * row.block.repeats for row in rows)
        for row in rows:
            self.within[id(row)] = self.within.get(id(row), 0.0) + self.kernel_s(row) * seconds / taken

    def kernel_s(self, row: TimedOperator) -> float:
        """One run of an operator [s]."""
        return self.at(row.timing.time_s) + self.within.get(id(row), 0.0)


def _own(name: str) -> Callable[[Operator], bool]:
    """Kernels of the device of an engine's own: `own gemm kernels`."""
    kinds = FACTORS.get(name.removeprefix("own ").removesuffix(" kernels"), tuple(Kind))
    return lambda operator: operator.kind in kinds and operator.runs_on is Place.DEVICE


def _kernel(row: TimedOperator, chip: Chip, at: At, spent: _Spent) -> Kernel:
    counts = operator_object(row, chip, at, at)
    direction = direction_of(row.operator)
    if direction is not None and row not in spent.chain:
        copies = {
            ("link out" if name == "link" and direction is Direction.OUT else COPIES[name]): at(seconds)
            for name, seconds in row.timing.resources
            if name in COPIES and at(seconds)
        }
        return Kernel(counts=counts, seconds=0.0, alone_s=0.0, track="", copies=copies)
    return Kernel(
        counts=counts,
        seconds=max(spent.kernel_s(row), 0.0),
        alone_s=at(row.timing.time_s),
        track=_track(row.operator),
        before=tuple(spent.gaps.get(id(row), ())),
    )


def _track(operator: Operator) -> str:
    """Where an operator runs that the next one waits for."""
    if operator.runs_on is Place.HOST:
        return "host"
    return "copies" if operator.kind is Kind.COPY else "compute"
