"""Prediction intervals (80 and 95 %) of calibrated times: operators, stages and metrics.

Errors of kernels from one fit are correlated, so their deviations add.  Errors of different fits are independent, so
their deviations add in squares; if the fits come from another chip, all errors are correlated and deviations add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation, TimedOperator
from llmviewer.core.counts import Array, Count, total
from llmviewer.hardware.chip import Chip
from llmviewer.result.describe import number
from llmviewer.timing.calibrated import Calibrated
from llmviewer.timing.engine import OTHER_GENERATION
from llmviewer.timing.engine_fit import Residuals
from llmviewer.timing.engine_scope import (
    NO_RUNS,
    NO_RUNS_AFAR,
    OTHER_CONFIGURATION,
    OTHER_FIGURE,
    OTHER_LOAD,
    OTHER_PROGRAM,
    OTHER_VERSION,
    widened,
)
from llmviewer.timing.profile import SIGNS, farther

#: Level -> indices of its bounds in profile.QUANTILES.
LEVELS: dict[str, tuple[int, int]] = {"80": (1, 2), "95": (0, 3)}
#: Metric -> published figures whose residuals give its interval, in order of preference.
PUBLISHED_FIGURES: dict[str, tuple[str, ...]] = {
    "ttft_s": ("ttft_ms", "latency_ms"),
    "tpot_s": ("tpot_ms", "decode_tok_s", "latency_ms"),
    "e2e_s": ("latency_ms", "tpot_ms", "decode_tok_s"),
}
#: Metric -> published figures that say the same.
OWN_FIGURES: dict[str, tuple[str, ...]] = {
    "ttft_s": ("ttft_ms",),
    "tpot_s": ("tpot_ms", "decode_tok_s"),
    "e2e_s": PUBLISHED_FIGURES["e2e_s"],
}
#: Deviations of tokens per round on other text, for the bounds in profile.QUANTILES.  EAGLE, arXiv 2401.15077, table 1:
#: 3.86 to 4.29 tokens with Vicuna 7B and 3.95 to 4.39 with 13B over four datasets, up to 8 % off their mean; 20 % less
#: at temperature 1.
TOKENS = np.array([0.20, 0.08, 0.08, 0.20])[:, None]

#: Source of the errors of copies and of operators of the host.
BESIDE = "host and link"

Pick = Callable[[Count], Array]


def levels(bounds: Array | list[list[float]], point: int = 0) -> dict[str, list[int | float | None]]:
    """Level -> [low, high] for one point."""
    return {level: [number(bounds[low][point]), number(bounds[high][point])] for level, (low, high) in LEVELS.items()}


@lru_cache(maxsize=4)
def _ratios(analysis: Analysis) -> dict[int, Array]:
    """`bound_ratios` of an analysis; cached because both stages and all metrics use them."""
    assert analysis.calibration is not None
    return bound_ratios(analysis.evaluation, analysis.calibration, analysis.chip_per_pass())


def bound_ratios(evaluation: Evaluation, calibration: Calibrated, chip: Chip) -> dict[int, Array]:
    """id(row) -> bounds of the operator's time over its time, shape (4, passes)."""
    return {id(row): calibration.interval(row.operator, chip, row.timing) for row in evaluation.rows}


def operator_bounds(analysis: Analysis, row: TimedOperator, at: Callable[[Count], float]) -> list[list[float]]:
    """Bounds of the time of one operator of a stage [s], for one point.  at: values of all passes -> of the point."""
    return [[at(row.timing.time_s * ratio)] for ratio in _ratios(analysis)[id(row)]]


def _row_bounds(row: TimedOperator, ratios: Array, pick: Pick) -> Array:
    return np.stack([pick(row.timing.time_s * ratio) for ratio in ratios])


@lru_cache(maxsize=8)
def stage_bounds(analysis: Analysis, stage: str) -> Array:
    """Bounds of the time of a stage, `prefill` or `decode` [s], shape (4, points)."""
    assert analysis.calibration is not None
    pick: Pick = getattr(analysis.schedule, stage)
    time_s = pick(analysis.evaluation.time_s)
    return sum_bounds(analysis.evaluation, analysis.calibration, _ratios(analysis), pick, time_s)


def sum_bounds(
    evaluation: Evaluation, calibration: Calibrated, ratios: Mapping[int, Array], pick: Pick, time_s: Array
) -> Array:
    """Bounds of a time that is a sum over operators x repeats [s], shape (4, points).

    `analyze` prints it for a stage, and `calibrate validate` scores it on measured layers and models.
    ratios: from `bound_ratios`.  pick: the values of all passes -> one value per point.  time_s: per point.
    """
    deviations: dict[str, Array] = {}
    for row in evaluation.rows:
        deviation = (_row_bounds(row, ratios[id(row)], pick) - pick(row.timing.time_s)) * float(row.block.repeats)
        if evaluation.copying:
            deviation = deviation * _on_slower_side(evaluation, row, pick)
        fit = _fit(calibration, row)
        deviations[fit] = deviations.get(fit, 0.0) + deviation
    by_fit = np.stack(list(deviations.values()))  # fits, bounds, points
    spread = np.sqrt(np.sum(by_fit**2, axis=0)) if calibration.fitted else np.sum(np.abs(by_fit), axis=0)
    bounds: Array = np.maximum(time_s + SIGNS * spread * _kernels_share(evaluation, pick), 0.0)
    return bounds


def _kernels_share(evaluation: Evaluation, pick: Pick) -> Array:
    """Time of kernels over that of the rows: less than 1.0 if faster kernels of the engine replace some of them."""
    saved = pick(total(np.minimum(seconds, 0.0) for _, seconds in evaluation.served))
    return 1.0 + saved / pick(evaluation.sum(lambda row: row.timing.time_s))


def _on_slower_side(evaluation: Evaluation, row: TimedOperator, pick: Pick) -> Array:
    """1.0 if an operator is on the slower side, kernels or copies, of a layer in which the two overlap; else 0.0."""
    layer = next((one for one in evaluation.copying if one.block.name == row.block.name), None)
    if layer is None:
        return np.ones(1)
    longest = pick(layer.kernels_s) >= pick(layer.time_s)
    return np.where(longest == row.operator.is_kernel, 1.0, 0.0)


def metric_bounds(analysis: Analysis) -> dict[str, Array]:
    """Bounds of TTFT, TPOT and E2E [s], shape (4, points) each."""
    return {name: ratios * getattr(analysis, name) for name, ratios in metric_ratios(analysis).items()}


@lru_cache(maxsize=8)
def metric_ratios(analysis: Analysis) -> dict[str, Array]:
    """Bounds of TTFT, TPOT and E2E over their values, shape (4, points) each.

    They come from the residuals of the engine's published figures, else from the bounds of the stages in proportion.
    The queue of users for slots of the KV cache, whole cycles of others, is as far off as the end-to-end latency.
    """
    first, further = step_ratios(analysis).values()
    for _, tower in analysis.towers:  # errors of the same kernels: correlated with those of prefill
        first = first + (step_ratios(tower)["prefill"] - first) * (tower.own_prefill_s / analysis.ttft_s)
    both = (analysis.ttft_s * first + analysis.generation_s * further) / analysis.e2e_s
    e2e = _over_devices(analysis, "decode", lambda one: _metric_ratios(one, "e2e_s", both))
    if analysis.running is not None:
        first = first + (e2e - first) * (analysis.times.queue_s / analysis.ttft_s)
    least = e2e[[0, 1, 1, 0]]  # of each level: a request takes its first token, and the rest so long at least
    beyond = least + (first - least) * (analysis.ttft_s / analysis.e2e_s)
    return {"ttft_s": first, "tpot_s": further, "e2e_s": np.fmax(e2e, beyond)}


def step_ratios(analysis: Analysis) -> dict[str, Array]:
    """Bounds over time of prefill and of a decode step or round, shape (4, points) each."""
    return {"prefill": _over_devices(analysis, "prefill", _prefill_ratios), "decode": tpot_ratios(analysis)}


def tpot_ratios(analysis: Analysis) -> Array:
    """Bounds of TPOT over its value, shape (4, points): those of a decode step or round."""
    return _over_devices(analysis, "decode", _decode_ratios)


def sources(analysis: Analysis, metric: str) -> dict[str, Array]:
    """The fits of kernels in which a time has its error -> the share of the time that they make up, per point.

    Names hold chip and engine, whose error a fit has too.  Copies and operators of the host are left out, as runs use
    either otherwise.  Empty for ideal times, and for a split over unlike devices.
    """
    if analysis.calibration is None or analysis.system.split is not None:
        return {}
    passes = (analysis, *(draft for _, draft in analysis.drafts))
    fits = list(dict.fromkeys(_fit(one.calibration, row) for one in passes for row in one.evaluation.rows))
    prefill = _spent(analysis, "prefill", fits)
    decode = analysis.per_round(lambda one: _spent(one, "decode", fits))
    prefill, decode = (each / np.maximum(each.sum(axis=0), 1e-300) for each in (prefill, decode))
    both = (analysis.ttft_s * prefill + analysis.generation_s * decode) / analysis.e2e_s
    shares = {"ttft_s": prefill, "tpot_s": decode, "e2e_s": both}[metric]
    where = f"{analysis.system.chip.name} {analysis.system.engine.name}"
    return {f"{where} {fit}": share for fit, share in zip(fits, shares, strict=True) if fit != BESIDE}


def _fit(calibration: Calibrated | None, row: TimedOperator) -> str:
    """The fit in which an operator has its error."""
    assert calibration is not None
    return calibration.primary_fit(row.operator).fit.key if row.operator.is_kernel else BESIDE


def _spent(analysis: Analysis, stage: str, fits: list[str]) -> Array:
    """The time of a stage by fit [s], shape (fits, points)."""
    pick: Pick = getattr(analysis.schedule, stage)
    spent = np.zeros((len(fits), analysis.schedule.points))
    for row in analysis.evaluation.rows:
        spent[fits.index(_fit(analysis.calibration, row))] += pick(row.timing.time_s) * float(row.block.repeats)
    return spent


def _over_devices(analysis: Analysis, stage: str, ratios: Callable[[Analysis], Array]) -> Array:
    """Bounds over time, of a split the mean of its devices by their times: their errors are taken to be correlated."""
    if analysis.system.split is None:
        return ratios(analysis)
    pick: Pick = getattr(analysis.schedule, stage)
    seconds = [pick(one.evaluation.time_s) for one in analysis.devices]
    summed = total(ratios(one) * each for one, each in zip(analysis.devices, seconds, strict=True))
    return np.asarray(summed / total(seconds))


def _prefill_ratios(analysis: Analysis) -> Array:
    prefill = stage_bounds(analysis, "prefill") / analysis.schedule.prefill(analysis.evaluation.time_s)
    return _metric_ratios(analysis, "ttft_s", _launched(analysis, prefill))


def _decode_ratios(analysis: Analysis) -> Array:
    rounds = _widened(analysis, _round_ratios(analysis))
    return _metric_ratios(analysis, "tpot_s", _launched(analysis, rounds))


def _round_ratios(analysis: Analysis) -> Array:
    """Bounds over time of a decode round; its passes use the same kernels, so their errors are correlated."""
    bounds = analysis.per_round(lambda one: stage_bounds(one, "decode"))
    return bounds / analysis.per_round(lambda one: one.schedule.decode(one.evaluation.time_s))


def _launched(analysis: Analysis, ratios: Array) -> Array:
    """Bounds over value of a time, shape (4, points), with those of the host's launches where these are not fitted."""
    shorter, longer = analysis.system.engine.launch_range
    widened: Array = ratios * np.array([shorter, shorter, longer, longer])[:, None]
    return widened


def _metric_ratios(analysis: Analysis, metric: str, kernels: Array) -> Array:
    """Bounds over value of a metric: residuals of the engine preset if it has any, else `kernels`.

    kernels: bounds over value by the kernels, with those of the launches.
    """
    assert analysis.calibration is not None
    known, beyond = _residuals(analysis, metric), errors_beyond(analysis, metric)
    error = np.sqrt(sum(np.square(each) for each in beyond.values())) * np.ones_like(kernels[0])
    if known is None:
        return widened(kernels, error)
    published = widened(np.array(known.quantiles)[:, None] * np.ones_like(kernels[0]), error)
    if metric != "ttft_s":  # the published rows of presets were run without speculation
        published = _widened(analysis, published)
    published = _launched(analysis, published)
    if all(row.operator.is_kernel for row in analysis.evaluation.rows):
        return published
    # residuals were measured without offloading: widen them by the bounds of copies and host operators
    return farther(published, kernels)


def _residuals(analysis: Analysis, metric: str) -> Residuals | None:
    """Residuals of the engine preset for a metric; None: the kernels' alone, as of first tokens under another load."""
    assert analysis.calibration is not None
    engine = analysis.system.engine
    if metric == "ttft_s" and engine.batching != analysis.system.batching.name:
        return None
    return engine.residuals_of(PUBLISHED_FIGURES[metric], analysis.calibration.origin)


def errors_beyond(analysis: Analysis, metric: str) -> dict[str, Array]:
    """Errors for all that lies outside the runs of the engine's fit (engine_scope.py), by what it is, per point."""
    program = analysis.system.engine.program
    other = {"program": np.array([OTHER_PROGRAM])} if program and program.nearest else {}
    if (beyond := analysis.system.engine.beyond) and beyond != OTHER_GENERATION:
        other[beyond] = np.array([OTHER_CONFIGURATION])
    return {**_errors_of_preset(analysis, metric), **other}


def _errors_of_preset(analysis: Analysis, metric: str) -> dict[str, Array]:
    """Errors outside the runs of the preset itself."""
    engine, known = analysis.system.engine, _residuals(analysis, metric)
    if known is None:
        origins = {origin for of_origin in engine.residuals.values() for origin in of_origin}
        origin = analysis.calibration.origin if analysis.calibration else ""
        if not origins or origin in origins:
            return {"load": np.array([OTHER_LOAD])} if origins else {}
        return {"kind of chip": np.array([NO_RUNS_AFAR if origin == "afar" else NO_RUNS])}
    found = known.scope.beyond(
        chip=analysis.system.chip.name,
        batching=analysis.system.batching.name,
        batch=analysis.request.batch_size,
        input_len=analysis.request.input_len,
        host_share=host_share(analysis, "prefill" if metric == "ttft_s" else "decode"),
    )
    if known.metric not in OWN_FIGURES[metric]:
        found["load"] = np.array([OTHER_FIGURE])
    return found if known.of_version else {**found, "version": np.array([OTHER_VERSION])}


def host_share(analysis: Analysis, stage: str) -> Array:
    """Share of the time of a stage that the engine adds to kernels, per point."""
    pick: Pick = getattr(analysis.schedule, stage)
    added = total(np.maximum(seconds, 0.0) for _, seconds in analysis.evaluation.served)
    return pick(added) / np.maximum(pick(analysis.evaluation.time_s), 1e-12)


def _widened(analysis: Analysis, ratios: Array) -> Array:
    """Bounds over value of a time per token, shape (4, points): those of the passes, with those of the rounds.

    Tokens per round, host time of a round and the times of the passes are independent: deviations add in squares.
    The host time lies between the smallest and the largest figure of its sources at 80 %, twice as far at 95 %.
    """
    verifies = analysis.system.generation.verifies
    if not np.any(verifies):
        return ratios
    lower, higher = _host_share(analysis)
    host = np.stack([2.0 * lower, lower, higher, 2.0 * higher])
    spread: Array = np.maximum(1.0 + SIGNS * np.sqrt((ratios - 1.0) ** 2 + TOKENS**2 + host**2), 0.0)
    return np.where(np.asarray(verifies) > 0.0, spread, ratios)


def _host_share(analysis: Analysis) -> tuple[Array, Array]:
    """Host time by which a round of this engine may be shorter or longer, over the time of the round."""
    costs, round_s = analysis.system.engine.rounds, analysis.token_s * analysis.system.generation.tokens
    shorter, longer = costs.round - costs.low, costs.high - costs.round
    return shorter * 1e-6 / round_s, longer * 1e-6 / round_s
