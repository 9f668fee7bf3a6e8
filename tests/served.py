"""Forward passes as engines launch them, with the true operator of every kernel, written by hand in served_passes.yaml.

Unlike the passes of tests/planted.py they do not follow our graph: engines fuse, reorder, split and add kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import nan
from pathlib import Path
from typing import Any

from llmviewer.analysis.evaluation import evaluate
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.calibrate.diagnosis.annotation import Stated, step_of, work_of
from llmviewer.calibrate.diagnosis.assignment import as_recorded, assigned
from llmviewer.calibrate.diagnosis.call import ENGINES
from llmviewer.calibrate.diagnosis.comparison import OWN_KINDS
from llmviewer.calibrate.diagnosis.recording import Kernel, Mark, Recording, passes_of
from llmviewer.calibrate.diagnosis.slots import Slot, kind_of, slots_of
from llmviewer.core import data
from llmviewer.core.ir import Graph

PASSES = Path(__file__).with_name("data") / "served_passes.yaml"
MICROSECOND, BETWEEN_KERNELS = 1e-6, 0.5e-6
NOTHING = ("", "prepare", "sampling")


@cache
def cases() -> dict[str, Any]:
    """Title of a case -> its model, hardware, options, mark and kernels."""
    return dict(data.read_yaml(PASSES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A recording, the true operator of each of its kernels, and the places of our graph of the pass."""

    recording: Recording
    truth: tuple[str, ...]
    slots: tuple[Slot, ...]

    def changed(self, change: Callable[[Kernel], Kernel | None], *, marks: tuple[Mark, ...] | None = None) -> Served:
        """A copy with kernels changed, or left out if None.  marks: instead of the recorded ones."""
        pairs = [
            (new, one) for old, one in zip(self.recording.kernels, self.truth, strict=True) if (new := change(old))
        ]
        kernels, truth = zip(*pairs, strict=True)
        kept = self.recording.marks if marks is None else marks
        return Served(
            recording=Recording(program="torch.profiler", kernels=kernels, marks=kept), truth=truth, slots=self.slots
        )

    def shares(self) -> tuple[float, float]:
        """Shares of the kernels' time that are assigned, and assigned right."""
        every = placed = right = 0.0
        truth = iter(self.truth)
        mains: dict[str, set[str]] = {}
        for slot in self.slots:
            mains.setdefault(slot.operator, set()).update(slot.kind.main)
        for one in passes_of(self.recording):
            found = assigned(one.kernels, self.slots, most=float("inf") if one.work is None else 1.0)
            for kernel, name, beside in zip(one.kernels, found.operators, found.beside.tolist(), strict=True):
                kind, true = kind_of(kernel.name), next(truth)
                every += kernel.seconds
                placed += kernel.seconds * (bool(name) or kind in OWN_KINDS)
                runs = kind in mains.get(name, set()) and not beside
                right += kernel.seconds * (name in NOTHING or not runs if true == "-" else _same(true, name))
        return placed / every, right / every


def _same(true: str, name: str) -> bool:
    """Whether an operator is one of the true ones, or shares a part with one: engines fuse in other ways."""
    return bool(set(true.replace("|", "+").split("+")) & set(name.split("+"))) or (true == "sampling" and not name)


def setup(case: Mapping[str, Any]) -> Configuration:
    """The configuration of a case, with the engine that it or its mark names, and attention as it was run."""
    mark = case.get("mark", "")
    engine = case.get("engine") or next(preset for start, preset in ENGINES.items() if mark.startswith(start))
    chosen = configuration(case["model"], case["hardware"], engine=engine, **case.get("options", {}))
    texts = (case["before"], *case["layers"].values(), case["after"])
    names = {name for text in texts for _, _, name in _lines(text)}
    return as_recorded(chosen, [Kernel(name=name, start_s=0.0, seconds=0.0) for name in names])[0]


def served(case: Mapping[str, Any], *, passes: int = 1) -> Served:
    """The recording of a case."""
    chosen, mark, stated = setup(case), case.get("mark", ""), Stated(**case.get("stated", {}))
    work = work_of(mark) or stated.work(nan)
    graph = evaluate(chosen.model, chosen.system, step_of(work, stated)).graph
    kernels: list[tuple[Kernel, str]] = []
    marks: list[Mark] = []
    now = 1.0
    for _ in range(passes):
        begin, now, side = now, now + 200 * MICROSECOND, 0.0
        for operator, seconds, name in _program(case, graph):
            if operator == "join":
                now = max(now, side)
                continue
            beside = operator.startswith("~")
            start = max(side, now) if beside else now
            kernel = Kernel(name=name, start_s=start, seconds=seconds, stream=7 + beside, launch_s=begin + MICROSECOND)
            kernels.append((kernel, operator.removeprefix("~").replace("other_models", "other models")))
            side, now = (start + seconds, now) if beside else (side, now + seconds + BETWEEN_KERNELS)
        if mark:
            marks.append(Mark(name=mark, start_s=begin, end_s=begin + 100 * MICROSECOND))
    kernels.sort(key=lambda one: one[0].start_s)
    recording = Recording(program="torch.profiler", kernels=tuple(kernel for kernel, _ in kernels), marks=tuple(marks))
    return Served(recording=recording, truth=tuple(true for _, true in kernels), slots=tuple(slots_of(graph)))


def _program(case: Mapping[str, Any], graph: Graph) -> Iterator[tuple[str, float, str]]:
    """Operator, seconds and name of every kernel of a pass; the norm at the end of the last layer is the final one."""
    blocks = sorted((n, one.name) for one in graph.blocks if one.is_layer for n in one.numbers or range(one.repeats))
    yield from _lines(case["before"])
    for number, (_, block) in enumerate(blocks):
        rows = list(_lines(case["layers"][block]))
        ends = [at for at, (operator, _, _) in enumerate(rows) if "add" in operator and "norm" in operator]
        yield from rows[: ends[-1]] if number == len(blocks) - 1 and ends else rows
    yield from _lines(case["after"])


def _lines(text: str) -> Iterator[tuple[str, float, str]]:
    for line in text.strip().splitlines():
        operator, seconds, name = (*line.split(" ", 2), "0", "")[:3]
        yield operator, float(seconds) * MICROSECOND, name
