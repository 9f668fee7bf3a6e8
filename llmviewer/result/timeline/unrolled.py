"""One forward pass of one device as events on tracks: layers in execution order, operators with engine time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.capacity import memory_of
from llmviewer.analysis.evaluation import Evaluation, TimedOperator
from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Graph, Operator, Place
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Chip
from llmviewer.ops.transfer import Direction, copy_direction
from llmviewer.result.describe import number
from llmviewer.result.stages import Interval, ValueOf, does_run, operator_object, request_at, system_at, value_at
from llmviewer.timing.engine_work import changed_kernels

#: Number of an arrow, which one event sends and a later one receives, and the name of what it carries.
Arrow: TypeAlias = tuple[int, str]

#: Tracks of a device: kernels with the passes and layers that contain them, and engine time between kernels.
COMPUTE, ENGINE = "compute", "engine"
#: The track of prefill and decode steps as a whole.
REQUEST = "request"


@frozen
class Event:
    """An event of the timeline, from start_s to end_s after the request arrives [s].

    kind: step, pass, layer, engine, transfer, or the kind of an operator.  stage: pipeline stage, from 0; None for
    events that are not on a device.  machine: pool of a disaggregated system, prefill or decode; "" if there is one.
    track: events on a track may nest but never overlap.  facts: counts of one device, named as in an OPERATOR object.
    sends, receives: arrows that leave at the end of the event and arrive at its start.
    """

    name: str
    kind: str
    start_s: float
    end_s: float
    track: str = REQUEST
    stage: int | None = None
    machine: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    sends: tuple[Arrow, ...] = ()
    receives: tuple[Arrow, ...] = ()

    def row(self) -> dict[str, Any]:
        """The event as a dict, by field name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


@frozen(eq=False)
class StepFacts:
    """Facts of the steps of one point.

    cache_bytes: KV cache of one device after prefill, and after each step.  ratios: stage -> bounds of its time over
    the time; empty for ideal times.
    """

    cache_bytes: Array
    ratios: Mapping[str, Array]

    @classmethod
    def of(cls, analysis: Analysis, steps: int, point: int) -> StepFacts:
        """Facts of prefill and the first `steps` decode steps."""
        ratios: Mapping[str, Array] = {}
        if analysis.calibration is not None:
            from llmviewer.result import interval  # ideal times have no interval

            ratios = {name: bounds[:, point] for name, bounds in interval.step_ratios(analysis).items()}
        return cls(cache_bytes=_cache_bytes(analysis, steps, point), ratios=ratios)

    def at(self, step: int, seconds: float) -> dict[str, object]:
        """Facts of a decode step, counted from 1, that takes `seconds`."""
        return {**self.interval("decode", seconds), "kv_cache_bytes": self.cache(step)}

    def cache(self, step: int) -> int | float | None:
        """KV cache after prefill (step 0) or a decode step [byte]."""
        return number(float(self.cache_bytes[step]))

    def interval(self, stage: str, seconds: float) -> dict[str, object]:
        """The time of a prefill or decode step with its interval."""
        if stage not in self.ratios:
            return {"time_s": seconds}
        from llmviewer.result import interval

        return {"time_s": seconds, "time_interval_s": interval.levels(self.ratios[stage][:, None] * seconds, 0)}


def _cache_bytes(analysis: Analysis, steps: int, point: int) -> Array:
    """KV cache of one device after 0 ... steps decode steps [byte].

    A request of t + 1 output tokens has stored input_len + t tokens when it ends, so the memory of shorter requests is
    the memory along the way.  A batching policy reserves the cache of its running sequences: it does not grow.
    """
    whole = value_at(analysis.memory.kv_cache_bytes, point)
    if analysis.running is not None:
        return np.full(steps + 1, whole)
    request, system = request_at(analysis, point), system_at(analysis, point)
    further, plan = value_at(request.output_len, 0) - 1.0, analysis.schedule
    per_step = value_at(system.generation.tokens, 0)
    if system.generation.counts_passes:  # branches end at different times: drawn as growing evenly
        first = int(plan.decode_starts[point])
        taken = plan.repeats[first : first + int(plan.decode_steps[point])]
        per_step *= further / max(float(np.sum(taken)), 1.0)
    tokens = np.minimum(np.floor(np.arange(steps + 1.0) * per_step + 1e-9), further)
    ones = np.ones(steps + 1)
    shorter = Request(batch_size=request.batch_size * ones, input_len=request.input_len * ones, output_len=1.0 + tokens)
    return np.asarray(memory_of(analysis.model, system, shorter).kv_cache_bytes) * ones


@frozen
class PassPlacement:
    """Name and position of a pass.  start: earliest start [s].  share: fraction of the pass that runs.

    sends, receives: arrows of the whole pass, which may run on several pipeline stages.
    """

    name: str
    start: float
    share: float = 1.0
    pool: str = ""
    sends: tuple[Arrow, ...] = ()
    receives: tuple[Arrow, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class PassWriter:
    """Writes the events of one device in one pass.

    clock: start of the next kernel [s].  end: end of the pass [s]; no event exceeds it by rounding.
    """

    events: list[Event]
    event: partial[Event]
    share: float
    clock: float
    end: float

    def write(self, unrolled: UnrolledPass, whole: partial[Event]) -> None:
        """Add the events of a pass, its engine time and its layers.  whole: the event of the pass without its times."""
        self.events.append(whole(kind="pass", start_s=self.clock, end_s=self.end, track=COMPUTE))
        self._engine(unrolled.before)
        for section in unrolled.sections:
            self._section(section)
        self._engine(unrolled.after)

    def _section(self, section: LayerRun) -> None:
        start = self.clock
        whole = (start, min(start + section.seconds * self.share, self.end))
        layer = {} if section.number is None else {"layer": section.number}
        self._add(section.name, "layer", whole, COMPUTE, layer)
        self._engine(section.before)
        for kernel in section.kernels:
            if not kernel.copies:
                self._engine(kernel.before)
                begin, self.clock = self.clock, min(self.clock + kernel.seconds * self.share, whole[1])
                self._kernel(kernel, (begin, self.clock), kernel.track, layer)
        for track in dict.fromkeys(name for kernel in section.kernels for name in kernel.copies):
            self._copies([kernel for kernel in section.kernels if track in kernel.copies], track, whole, layer)
        self.clock = whole[1]

    def _copies(
        self, copies: list[KernelRun], track: str, whole: tuple[float, float], layer: Mapping[str, object]
    ) -> None:
        """Add the copies of one track, one after another within the layer."""
        clock, end = whole
        taken = sum(kernel.copies[track] for kernel in copies)
        for kernel in copies:
            begin, clock = clock, min(clock + kernel.copies[track] * min(self.share, (end - whole[0]) / taken), end)
            self._kernel(kernel, (begin, clock), track, layer)

    def _kernel(self, kernel: KernelRun, when: tuple[float, float], track: str, layer: Mapping[str, object]) -> None:
        counts = kernel.counts
        self._add(str(counts["name"]), str(counts["kind"]), when, track, {**counts, **layer})

    def _engine(self, terms: EngineTerms) -> None:
        for name, seconds in terms:
            begin, self.clock = self.clock, min(self.clock + seconds * self.share, self.end)
            self._add(name, "engine", (begin, self.clock), ENGINE, {})

    def _add(self, name: str, kind: str, when: tuple[float, float], track: str, facts: Mapping[str, object]) -> None:
        start, end = when
        self.events.append(self.event(name=name, kind=kind, start_s=start, end_s=end, track=track, facts=facts))


#: Engine term spent before kernels -> which kernels; other terms are spent before the pass, `sampling` after it.
BEFORE_KERNEL: dict[str, Callable[[Operator], bool]] = {
    "launch": lambda operator: True,
    "host": lambda operator: True,
    "collective": lambda operator: operator.kind is Kind.COLLECTIVE,
}
AFTER_PASS = ("sampling",)
#: An operator -> the interval of its time.
IntervalOf: TypeAlias = Callable[[TimedOperator], Interval]
#: Engine time as (name, seconds) pairs.
EngineTerms: TypeAlias = tuple[tuple[str, float], ...]
#: Resource -> track of copies that overlap with kernels; `link out` is the track of the other direction.
COPY_TRACKS = {"link": "link in", "host": "host memory", "disk": "disk"}


@frozen(eq=False)
class KernelRun:
    """One run of an operator in a layer.  counts: its OPERATOR object.

    kernel_s: time of the operator [s]; seconds: the same with the engine's change [s].
    before: engine time spent before it.  copies: track -> time [s] of a copy that overlaps with kernels; `seconds` is 0
    then.
    """

    counts: Mapping[str, object]
    seconds: float
    kernel_s: float
    track: str
    before: EngineTerms = ()
    copies: Mapping[str, float] = field(default_factory=dict)


@frozen(eq=False)
class LayerRun:
    """A layer, or a block before or after all layers.

    number: index of the layer, from 0; None if it is not a layer.  window_s: time of its overlapped copies, a lower
    bound of its time [s].
    """

    name: str
    number: int | None
    kernels: tuple[KernelRun, ...]
    before: EngineTerms = ()
    window_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Time of kernels and engine, plus the excess of copies over kernels [s]."""
        chain = [kernel for kernel in self.kernels if not kernel.copies]
        spent = sum(kernel.seconds + sum(seconds for _, seconds in kernel.before) for kernel in chain)
        waiting = max(self.window_s - sum(kernel.kernel_s for kernel in chain), 0.0)
        return sum(seconds for _, seconds in self.before) + spent + waiting


@frozen(eq=False)
class UnrolledPass:
    """One unrolled forward pass.  before, after: engine time spent before and after it."""

    seconds: float
    sections: tuple[LayerRun, ...]
    before: EngineTerms = ()
    after: EngineTerms = ()


def blocks_in_order(graph: Graph, first: int = 0) -> Iterator[tuple[Block, int | None]]:
    """Blocks of a graph in execution order with layer numbers from `first`; None for blocks that are not layers."""
    layers = [block for block in graph.blocks if block.is_layer]
    numbers = iter(layer_numbers(layers))
    last, places = -1, []
    for at, block in enumerate(graph.blocks):
        if not block.is_layer:
            places += [(last, at, block)] * block.repeats
            continue
        own = next(numbers)
        places += [(number, at, block) for number in own]
        last = max(last, *own) if own else last
    layer = first
    for _, _, block in sorted(places, key=lambda place: place[:2]):
        if not block.is_layer:
            yield block, None
        else:
            yield block, layer
            layer += 1


def unroll_pass(totals: Evaluation, chip: Chip, at: ValueOf, interval: IntervalOf, first: int = 0) -> UnrolledPass:
    """Unroll one pass of an evaluation.

    at: a count -> its value for this pass.  interval: that of an operator's time.  first: number of its first layer.
    """
    rows = [row for row in totals.rows if does_run(row, at)]
    windows = {layer.block.name: at(layer.time_s) for layer in totals.copying}
    chain = [row for row in rows if row.block.name not in windows or copy_direction(row.operator) is None]
    engine = _EngineTimes(chain=chain, at=at)
    for name, seconds in totals.served:
        engine.add(name, at(seconds))
    layers = sum(block.repeats for block in totals.graph.blocks if block.is_layer)
    per_layer = tuple((name, seconds / layers) for name, seconds in engine.layers)
    several_kinds = sum(block.is_layer for block in totals.graph.blocks) > 1
    templates = {
        block.name: _LayerTemplate(
            kernels=tuple(
                _kernel(row, operator_object(row, chip, at, at) | {"time_interval_s": interval(row)}, at, engine)
                for row in rows
                if row.block.name == block.name
            ),
            title=f" ({block.name})" if several_kinds else "",
            window_s=windows.get(block.name, 0.0),
        )
        for block in totals.graph.blocks
    }
    blocks = blocks_in_order(totals.graph, first)
    sections = tuple(templates[block.name].section(block, number, per_layer) for block, number in blocks)
    return UnrolledPass(
        seconds=at(totals.time_s), sections=sections, before=tuple(engine.before), after=tuple(engine.after)
    )


@frozen(eq=False)
class _LayerTemplate:
    """Kernels of every layer of one kind.  title: suffix that names the kind, if the model has several kinds."""

    kernels: tuple[KernelRun, ...]
    title: str
    window_s: float

    def section(self, block: Block, number: int | None, per_layer: EngineTerms) -> LayerRun:
        """The layer with this number.  per_layer: engine time spent before every layer."""
        if number is None:
            return LayerRun(name=block.name, number=None, kernels=self.kernels, window_s=self.window_s)
        name = f"layer {number}{self.title}"
        return LayerRun(name=name, number=number, kernels=self.kernels, before=per_layer, window_s=self.window_s)


@dataclass(slots=True, kw_only=True, eq=False)
class _EngineTimes:
    """Engine time of a pass, split by the position at which it is spent.

    chain: operators that run one after another, without overlapped copies.  gaps: by operator, engine time before each
    run.  within: by operator, seconds that the engine adds to each run.
    """

    chain: list[TimedOperator]
    at: ValueOf
    before: list[tuple[str, float]] = field(default_factory=list)
    after: list[tuple[str, float]] = field(default_factory=list)
    layers: list[tuple[str, float]] = field(default_factory=list)
    gaps: dict[int, list[tuple[str, float]]] = field(default_factory=dict)
    within: dict[int, float] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        """Add one engine term of the whole pass [s]."""
        if seconds == 0.0:
            return
        which = BEFORE_KERNEL.get(name)
        changed = changed_kernels(name)
        if seconds < 0.0 or changed is not None:
            self._change(seconds, changed or (lambda operator: operator.runs_on is Place.DEVICE))
        elif which is not None:
            self._gaps(name, seconds, [row for row in self.chain if which(row.operator)])
        elif name == "layer":
            self.layers.append((name, seconds))
        else:
            (self.after if name in AFTER_PASS else self.before).append((name, seconds))

    def _gaps(self, name: str, seconds: float, rows: list[TimedOperator]) -> None:
        """Split the time evenly before each run of these operators."""
        runs = sum(row.block.repeats for row in rows)
        for row in rows:
            self.gaps.setdefault(id(row), []).append((name, seconds / runs))

    def _change(self, seconds: float, which: Callable[[Operator], bool]) -> None:
        """Split a change over these kernels in proportion to their time; over all if it saves more than they take."""
        rows = [row for row in self.chain if which(row.operator)]
        taken = sum(self.kernel_s(row) * row.block.repeats for row in rows)
        if not taken or taken < -seconds:
            rows = self.chain
            taken = sum(self.kernel_s(row) * row.block.repeats for row in rows)
        for row in rows:
            self.within[id(row)] = self.within.get(id(row), 0.0) + self.kernel_s(row) * seconds / taken

    def kernel_s(self, row: TimedOperator) -> float:
        """Time of one run of an operator, with the engine's change [s]."""
        return self.at(row.timing.time_s) + self.within.get(id(row), 0.0)


def _kernel(row: TimedOperator, counts: Mapping[str, object], at: ValueOf, engine: _EngineTimes) -> KernelRun:
    direction = copy_direction(row.operator)
    if direction is not None and row not in engine.chain:
        copies = {
            ("link out" if name == "link" and direction is Direction.OUT else COPY_TRACKS[name]): at(seconds)
            for name, seconds in row.timing.resources
            if name in COPY_TRACKS and at(seconds)
        }
        return KernelRun(counts=counts, seconds=0.0, kernel_s=0.0, track="", copies=copies)
    return KernelRun(
        counts=counts,
        seconds=max(engine.kernel_s(row), 0.0),
        kernel_s=at(row.timing.time_s),
        track=_track(row.operator),
        before=tuple(engine.gaps.get(id(row), ())),
    )


def _track(operator: Operator) -> str:
    """Track of an operator that blocks the next one."""
    if operator.runs_on is Place.HOST:
        return "host"
    return "copies" if operator.kind is Kind.COPY else "compute"
