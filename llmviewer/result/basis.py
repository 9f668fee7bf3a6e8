"""Basis of predicted times: shares of the kernels' time by where their constants were fitted, or guessed."""

from __future__ import annotations

from collections.abc import Iterator

from llmviewer.analysis.analysis import Analysis
from llmviewer.result.stages import ValueOf, value_at, values_of_stage
from llmviewer.timing.calibrated import Calibrated, SelectedFit
from llmviewer.timing.lending import ASSUMED, MEASURED, OTHER_ENGINE

#: Basis of lending.BASES -> the words for it; all others are transferred from other chips.
WORDS = {MEASURED: "measured", OTHER_ENGINE: "another engine's on this chip", ASSUMED: "assumed"}
TRANSFERRED = "transferred"
#: Smallest share of the time that is told.
LEAST_SHARE = 0.005


def time_by_basis(analysis: Analysis, calibration: Calibrated, point: int) -> dict[str, float]:
    """Share of the kernels' time of a request by basis, nearest first; its decode steps count as the one shown."""
    seconds = dict.fromkeys((*WORDS.values(), TRANSFERRED), 0.0)
    for found, spent in _fits(analysis, calibration, point):
        seconds[WORDS.get(found.basis, TRANSFERRED)] += spent
    order = (WORDS[MEASURED], WORDS[OTHER_ENGINE], TRANSFERRED, WORDS[ASSUMED])
    whole = sum(seconds.values())
    return {name: seconds[name] / whole for name in order if seconds[name]}


def _fits(analysis: Analysis, calibration: Calibrated, point: int) -> Iterator[tuple[SelectedFit, float]]:
    """The fit of every kernel of a request, with its time over all layers and passes [s]."""
    steps = 0.0 if analysis.model.is_encoder else max(value_at(analysis.request.output_len, point) - 1.0, 0.0)
    for stage, passes in (("prefill", 1.0), ("decode", steps)):
        if passes:
            at, _ = values_of_stage(analysis.schedule, stage, point)
            yield from _fits_of_stage(analysis, calibration, at, passes)


def _fits_of_stage(
    analysis: Analysis, calibration: Calibrated, at: ValueOf, passes: float
) -> Iterator[tuple[SelectedFit, float]]:
    for row in analysis.evaluation.rows:
        seconds = at(row.timing.time_s) * row.block.repeats * passes if row.operator.is_kernel else 0.0
        if seconds > 0.0:
            yield calibration.fit_in(row.operator, at), seconds


def summary(analysis: Analysis, calibration: Calibrated, point: int) -> str:
    """One line about the origin of the times: `kernels measured on h200 for 62 % of their time, assumed for 38 %`."""
    shares = {
        name: share for name, share in time_by_basis(analysis, calibration, point).items() if share >= LEAST_SHARE
    }
    donors = {found.chip for found, _ in _fits(analysis, calibration, point) if found.basis not in WORDS}
    own, here = shares.get(WORDS[MEASURED], 0.0), f"kernels measured on {calibration.chip}"
    words = {
        WORDS[MEASURED]: here,
        WORDS[OTHER_ENGINE]: f"{'' if own else f'{here}, '}those of another engine",
        TRANSFERRED: f"transferred from {', '.join(sorted(donors))}",
        WORDS[ASSUMED]: WORDS[ASSUMED],
    }
    listed = [
        words[name] + ("" if len(shares) == 1 else f" for {100.0 * share:.0f} %") for name, share in shares.items()
    ]
    if len(listed) > 1:
        listed[0] += " of their time"
    if own and len(listed) == 1:
        return listed[0]
    unmeasured = "" if own or WORDS[OTHER_ENGINE] in shares else "kernels not measured on this chip: "
    return f"{unmeasured}{', '.join(listed)}; intervals widened"
