"""Cases of published end-to-end figures, evaluated by the code that answers `analyze`, those of a run at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmviewer import api
from llmviewer.analysis import analysis, capacity, limits
from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.system import System
from llmviewer.calibrate.e2e_rows import RequestCase, load
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.serving.batching import STATIC, RequestTimes
from llmviewer.timing import calibrated, engine
from llmviewer.timing.engine import Engine
from llmviewer.timing.profile import Profile

#: Forward passes of one evaluation, all of which stay in memory.
MAX_PASSES = 2**15 - 64
#: Chips of two dies, each of which frameworks see as a device.
TWO_DIES = ("mi250", "mi250x")
#: Metrics that fall as time rises.
RATE_METRICS = ("throughput_tok_s", "decode_tok_s")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestSizes:
    """The request of every case of a group; waves: how often the machine must be filled to serve a static batch."""

    batch: Array
    input_len: Array
    output_len: Array
    waves: Array


def _latency(times: RequestTimes, sizes: RequestSizes) -> Array:
    return (times.ttft_s + times.generation_s) * sizes.waves


def _throughput(times: RequestTimes, sizes: RequestSizes) -> Array:
    """Output tokens per second; where nothing is generated, those of the prompt."""
    tokens = np.where(sizes.output_len > 0, sizes.output_len, sizes.input_len)
    return sizes.batch * tokens / _latency(times, sizes)


def _decode(times: RequestTimes, sizes: RequestSizes) -> Array:
    """Tokens per second of the decode steps; after a prompt (gpt-fast), over the whole time."""
    return np.where(sizes.input_len > 0, _throughput(times, sizes), sizes.batch / times.tpot_s)


#: metric -> its value in its own unit.
METRIC_OF_TIMES: dict[str, Callable[[RequestTimes, RequestSizes], Array]] = {
    "ttft_ms": lambda times, sizes: times.ttft_s * 1e3,
    "tpot_ms": lambda times, sizes: times.tpot_s * 1e3,
    "latency_ms": lambda times, sizes: _latency(times, sizes) * 1e3,
    "throughput_tok_s": _throughput,
    "decode_tok_s": _decode,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CaseGroup:
    """Cases of one run, evaluated; places: where they stand among all."""

    cases: tuple[RequestCase, ...]
    places: tuple[int, ...]
    analysis: Analysis
    sizes: RequestSizes

    def values(self, times: RequestTimes) -> Array:
        """The figure of every case, in its own unit."""
        found = {name: METRIC_OF_TIMES[name](times, self.sizes) for name in {case.metric for case in self.cases}}
        return np.array([found[case.metric][at] for at, case in enumerate(self.cases)])

    def bound(self) -> Array:
        """The same on the data sheet's roofline, kernels alone and nobody waiting."""
        return self.values(_on_the_roofline(self.analysis).times)


def _on_the_roofline(asked: Analysis) -> Analysis:
    """The same at the data sheet's rates, what drafts included."""
    stages = asked.evaluation.stages or (asked.evaluation,)
    ideal = [stage.ideal_time_s * np.ones(len(asked.schedule.repeats)) for stage in stages]
    drafts = tuple((draft, _on_the_roofline(analysis)) for draft, analysis in asked.drafts)
    passes = replace(asked.passes, time_s=sum(ideal), busiest_s=np.max(ideal, axis=0))
    return replace(asked, passes=passes, running=None, drafts=drafts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedCases:
    """Cases that cannot be evaluated, and why."""

    places: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """What cases are evaluated with: engines by name, and a profile before the shipped ones."""

    presets: Callable[[str], Engine] = engine.load
    own: Profile | None = None


DEFAULT_OPTIONS = EvaluationOptions()


def evaluate_groups(
    cases: Mapping[int, RequestCase], setting: EvaluationOptions = DEFAULT_OPTIONS
) -> Iterator[CaseGroup | RejectedCases]:
    """Cases run by run, evaluated; a run that cannot be with the reason."""
    runs: dict[tuple[Any, ...], list[int]] = {}
    for at, case in cases.items():
        runs.setdefault(case.run, []).append(at)
    for places in runs.values():
        for piece in _batches(places, cases):
            try:
                yield evaluate_group([cases[at] for at in piece], piece, setting)
            except UserError as error:
                yield RejectedCases(places=tuple(piece), reason=str(error))


def _batches(places: Sequence[int], cases: Mapping[int, RequestCase]) -> Iterator[list[int]]:
    """Of many passes a few at a time."""
    piece: list[int] = []
    passes = 0.0
    for at in places:
        more = cases[at].output_len + cases[at].input_len / 256.0 + 2.0
        if piece and passes + more > MAX_PASSES:
            yield piece
            piece, passes = [], 0.0
        piece.append(at)
        passes += more
    yield piece


def evaluate_group(
    cases: Sequence[RequestCase], places: Sequence[int], setting: EvaluationOptions = DEFAULT_OPTIONS
) -> CaseGroup:
    """Cases of one run in one array evaluation.  Raises UserError."""
    preset = setting.presets(cases[0].engine)
    configuration, system = _configured(cases[0], preset, setting.own)
    budget = preset.max_num_batched_tokens
    asked = Request(
        batch_size=np.array([case.batch or limits.SEARCH_LIMIT for case in cases]),
        input_len=np.array([max(case.input_len, 1.0) for case in cases]),
        # an empty context is one token here, and a prompt alone has one output token
        output_len=np.array([max(case.output_len + (case.input_len < 1.0), 1.0) for case in cases]),
    )
    fits = capacity.admitted(configuration.model, system, asked, budget)
    unsaid = np.array([case.batch == 0.0 for case in cases])
    batch = np.where(unsaid, fits.batch_size, asked.batch_size)
    running = np.minimum(batch, fits.batch_size) if system.batching is STATIC else batch
    sizes = RequestSizes(
        batch=batch,
        input_len=np.array([case.input_len for case in cases]),
        output_len=np.array([case.output_len for case in cases]),
        waves=batch / running,
    )
    answer = analysis.analyze(configuration.model, system, replace(asked, batch_size=running), budget)
    return CaseGroup(cases=tuple(cases), places=tuple(places), analysis=answer, sizes=sizes)


def _configured(case: RequestCase, preset: Engine, own: Profile | None) -> tuple[api.Configuration, System]:
    """The model on the chip with the engine's kernels and fusions; a preset on trial need not be shipped."""
    chip = chip_of(case.hardware)
    served = {"batching": case.batching, "fusion": preset.fusion, "attention": preset.attention}
    configuration = api.configuration(load(case.model), chip, **{**served, **dict(case.options)})
    if configuration.candidates or configuration.system.policy is not None:
        raise UserError("what is chosen for each request is not predicted here; say what was run")
    efficiency = calibrated.calibrated(chip, preset.kernels, own, preset.borrowed)
    system = replace(configuration.system, engine=preset, efficiency=efficiency)
    within = preset.within_a_step()
    drafters = [
        replace(one, system=replace(one.system, engine=within, efficiency=efficiency)) for one in system.drafters
    ]
    return configuration, replace(system, drafters=tuple(drafters))


def chip_of(name: str) -> Chip:
    """What a table counts as one device.

    MI250: published times are those of one of its two dies, while models that need the memory of both ran: the dies
    work one after the other.
    """
    chip = specs.load(name)
    if name not in TWO_DIES:
        return chip

    def half(figure: Count | None) -> Count | None:
        return None if figure is None else figure / 2.0

    return replace(
        chip,
        matrix_flops_per_s={dtype: rate / 2.0 for dtype, rate in chip.matrix_flops_per_s.items()},
        vector_flops_per_s={dtype: rate / 2.0 for dtype, rate in chip.vector_flops_per_s.items()},
        bandwidth_bytes_per_s=chip.bandwidth_bytes_per_s / 2.0,
        units=half(chip.units),
        l2_bytes=half(chip.l2_bytes),
        special_ops_per_s=half(chip.special_ops_per_s),
        l2_bandwidth_bytes_per_s=half(chip.l2_bandwidth_bytes_per_s),
    )
