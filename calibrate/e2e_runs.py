"""Evaluate cases of published end-to-end figures with the code of `analyze`, all cases of a run together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llmviewer import api
from llmviewer.analysis import analysis, capacity, limits
from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation, evaluate, system_per_pass
from llmviewer.analysis.system import System
from llmviewer.calibrate.e2e_rows import RequestCase, load
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.serving.batching import STATIC, RequestTimes, per_token
from llmviewer.serving.schedule import check_passes
from llmviewer.techniques.kernels.of_engine import with_engine_kernels, with_own_constants, with_own_limits
from llmviewer.timing import calibrated, engine
from llmviewer.timing.engine import Engine
from llmviewer.timing.profile import Profile

#: Most forward passes of one evaluation; all of them are in memory.
MAX_PASSES = 2**15 - 64
#: Chips of two dies; frameworks see each die as a device.
TWO_DIES = ("mi250", "mi250x")
#: Metrics that are rates: they fall as time rises.
RATE_METRICS = ("throughput_tok_s", "decode_tok_s")
#: A published figure below this share of the roofline's time is wrong in its source: a run that stopped early, a cache
#: of prompts, another model.
POSSIBLE_SHARE = 0.9
IMPOSSIBLE_REASON = (
    f"takes less than {POSSIBLE_SHARE:g} of the time of the roofline: wrong chip, model, format or number of devices, "
    "or wrong in its source"
)


@frozen(eq=False)
class RequestSizes:
    """Request of every case of a group.

    waves: runs of the replica needed for a static batch that does not fit.  per_user: requests of each user.
    """

    batch: Array
    input_len: Array
    output_len: Array
    waves: Array
    per_user: Array


def _latency(times: RequestTimes, sizes: RequestSizes) -> Array:
    return (times.ttft_s + times.generation_s) * sizes.waves


def _throughput(times: RequestTimes, sizes: RequestSizes) -> Array:
    """Output tokens per second; prompt tokens per second if nothing is generated."""
    tokens = np.where(sizes.output_len > 0, sizes.output_len, sizes.input_len)
    return sizes.batch * tokens / _latency(times, sizes)


def _decode(times: RequestTimes, sizes: RequestSizes) -> Array:
    """Tokens per second of the decode steps, without prefill."""
    return sizes.batch / times.tpot_s


#: metric -> its value in its unit.
METRIC_OF_TIMES: dict[str, Callable[[RequestTimes, RequestSizes], Array]] = {
    "ttft_ms": lambda times, sizes: times.begun_together(sizes.per_user)[0] * 1e3,
    "tpot_ms": lambda times, sizes: per_token(times.begun_together(sizes.per_user)[1], times.steps) * 1e3,
    "latency_ms": lambda times, sizes: _latency(times, sizes) * 1e3,
    "throughput_tok_s": _throughput,
    "decode_tok_s": _decode,
}


@frozen(eq=False)
class CaseGroup:
    """Evaluated cases of one run.  places: their numbers among all cases."""

    cases: tuple[RequestCase, ...]
    places: tuple[int, ...]
    analysis: Analysis
    sizes: RequestSizes

    def values(self, times: RequestTimes) -> Array:
        """Value of every case, in the unit of its metric."""
        found = {name: METRIC_OF_TIMES[name](times, self.sizes) for name in {case.metric for case in self.cases}}
        return np.array([found[case.metric][at] for at, case in enumerate(self.cases)])

    def bound(self) -> Array:
        """Values on the data-sheet roofline: kernels only, without engine time or queueing."""
        return self.values(_on_the_roofline(self.analysis).times)

    def possible(self, measured: Array) -> npt.NDArray[np.bool_]:
        """Whether each published value takes at least POSSIBLE_SHARE of the roofline's time.

        Without a stated batch every value is possible: the bound is that of the batch that is predicted to fit.
        """
        bound, stated = self.bound(), np.array([case.batch > 0.0 for case in self.cases])
        rates = np.array([case.metric in RATE_METRICS for case in self.cases])
        share = np.where(rates, bound / measured, measured / bound)
        return np.asarray(~stated | ~(share < POSSIBLE_SHARE), dtype=np.bool_)


def _on_the_roofline(priced: Analysis) -> Analysis:
    """The analysis with data-sheet times, including those of draft models, and without the host's time of a request."""
    ideal = _ideal_times(priced)
    drafts = tuple((draft, _on_the_roofline(analysis)) for draft, analysis in priced.drafts)
    passes = replace(priced.passes, time_s=sum(ideal), busiest_s=np.max(ideal, axis=0))
    engine = priced.system.engine
    constants = {name: value for name, value in engine.constants.items() if name != "request"}
    system = replace(priced.system, engine=replace(engine, constants=constants, late_from=""))
    return replace(priced, system=system, passes=passes, running=None, drafts=drafts)


def _ideal_times(priced: Analysis) -> list[Array]:
    """Data-sheet time of every pass [s], by pipeline stage; an analysis of many passes keeps those of the first."""
    if priced.passes.is_whole:
        return _ideal_of_stages(priced.evaluation, len(priced.schedule.repeats))
    pieces = (
        _ideal_of_stages(evaluate(priced.model, system_per_pass(priced.system, priced.schedule, piece), step), passes)
        for piece, step in priced.schedule.pieces()
        for passes in (len(priced.schedule.repeats[piece]),)
    )
    return [np.concatenate(stage) for stage in zip(*pieces, strict=True)]


def _ideal_of_stages(evaluation: Evaluation, passes: int) -> list[Array]:
    return [stage.ideal_time_s * np.ones(passes) for stage in evaluation.stages or (evaluation,)]


@frozen
class RejectedCases:
    """Cases that cannot be evaluated, with the reason."""

    places: tuple[int, ...]
    reason: str


@frozen
class EvaluationOptions:
    """Options of an evaluation.

    presets: engine name -> engine.  profile: searched before the shipped profiles.
    """

    presets: Callable[[str], Engine] = engine.load
    profile: Profile | None = None


DEFAULT_OPTIONS = EvaluationOptions()


def evaluate_groups(
    cases: Mapping[int, RequestCase], options: EvaluationOptions = DEFAULT_OPTIONS
) -> Iterator[CaseGroup | RejectedCases]:
    """Yield the evaluated cases of each run, or the reason why a run cannot be evaluated."""
    runs: dict[tuple[Any, ...], list[int]] = {}
    for at, case in cases.items():
        runs.setdefault(case.run, []).append(at)
    for places in runs.values():
        try:
            configured(cases[places[0]], options.presets(cases[places[0]].preset), options.profile)
        except UserError as error:  # holds for every case of the run
            yield RejectedCases(places=tuple(places), reason=error.marked)
            continue
        for part in _batches(places, cases):
            yield from _evaluated(part, cases, options)


def _evaluated(
    places: Sequence[int], cases: Mapping[int, RequestCase], options: EvaluationOptions
) -> Iterator[CaseGroup | RejectedCases]:
    """Cases of one run, evaluated together; one that cannot be evaluated is rejected without the others."""
    try:
        yield evaluate_group([cases[at] for at in places], places, options)
    except UserError as error:
        if len(places) == 1:
            yield RejectedCases(places=tuple(places), reason=error.marked)
            return
        middle = len(places) // 2
        for half in (places[:middle], places[middle:]):
            yield from _evaluated(half, cases, options)


def _batches(places: Sequence[int], cases: Mapping[int, RequestCase]) -> Iterator[list[int]]:
    """Split places so that each part needs at most MAX_PASSES forward passes."""
    part: list[int] = []
    passes = 0.0
    for at in places:
        needed = cases[at].output_len + cases[at].input_len / 256.0 + 2.0
        if part and passes + needed > MAX_PASSES:
            yield part
            part, passes = [], 0.0
        part.append(at)
        passes += needed
    yield part


def evaluate_group(
    cases: Sequence[RequestCase], places: Sequence[int], options: EvaluationOptions = DEFAULT_OPTIONS
) -> CaseGroup:
    """Evaluate cases of one run as arrays.  Raises UserError."""
    preset = options.presets(cases[0].preset)
    configuration, system = configured(cases[0], preset, options.profile)
    budget = cases[0].token_budget or preset.max_num_batched_tokens
    request = Request(
        batch_size=np.array([case.batch or limits.SEARCH_LIMIT for case in cases]),
        input_len=np.array([max(case.input_len, 1.0) for case in cases]),
        # analyze needs at least one prompt token and one output token
        output_len=np.array([max(case.output_len + (case.input_len < 1.0), 1.0) for case in cases]),
    )
    check_passes(request, budget)
    fits = capacity.admitted(configuration.model, system, request, budget)
    unspecified = np.array([case.batch == 0.0 for case in cases])
    batch = np.where(unspecified, fits.batch_size, request.batch_size)
    running = np.minimum(batch, fits.batch_size) if system.batching is STATIC else batch
    sizes = RequestSizes(
        batch=batch,
        input_len=np.array([case.input_len for case in cases]),
        output_len=np.array([case.output_len for case in cases]),
        waves=batch / running,
        per_user=np.array([case.per_user for case in cases]),
    )
    answer = analysis.analyze(configuration.model, system, replace(request, batch_size=running), budget)
    return CaseGroup(cases=tuple(cases), places=tuple(places), analysis=answer, sizes=sizes)


def configured(case: RequestCase, preset: Engine, profile: Profile | None) -> tuple[api.Configuration, System]:
    """Configuration and system of a case with the preset's kernels and fusion; the preset need not be shipped."""
    chip = chip_of(case.hardware)
    preset = replace(preset, backend=case.backend).on(chip)
    chip = preset.rates_of(chip)
    engine_options = {"batching": case.batching, "fusion": preset.fusion, "attention": preset.attention}
    configuration = api.configuration(load(case.model), chip, **{**engine_options, **dict(case.options)})
    if configuration.candidates or configuration.system.policy is not None:
        raise UserError("options that are chosen per request cannot be scored; specify what was run")
    efficiency = calibrated.calibrated(chip, preset.kernels, profile, preset.borrowed)
    system = replace(configuration.system, hold=case.hold)
    routed = "expert_skew" in dict(case.options)
    own, *drafting = (
        with_engine_kernels(replace(one, engine=engine_of, efficiency=efficiency), routed=routed)
        for one, engine_of in (
            (system, preset),
            *((one.system, preset.without_step_terms()) for one in configuration.system.drafters),
        )
    )
    pairs = zip(own.drafters, drafting, strict=True)
    own = with_own_constants(configuration.model, own)
    drafters = tuple(replace(one, system=system) for one, system in pairs)
    return configuration, with_own_limits(replace(own, drafters=drafters))


def chip_of(name: str) -> Chip:
    """The chip that a table counts as one device.

    MI250: published times match one of its two dies, although models that need the memory of both ran: the dies work
    one after the other.  So rates are halved, and memory is not.
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
