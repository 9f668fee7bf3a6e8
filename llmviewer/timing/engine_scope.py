"""Runs to which an engine was fitted, and by how much intervals are wider for other runs."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.frozen import frozen
from llmviewer.language import record
from llmviewer.language.record import stated
from llmviewer.timing.profile import SIGNS, WIDTH_OVER_80, farther

#: Errors of predictions outside the runs of a fit, which add in squares: half the 80 % interval of log(measured /
#: predicted).  Chosen on two thirds of the pairs of source and chip of 277 published figures of vLLM, SGLang and
#: llama.cpp that no fit had seen: 35 % of those lay inside intervals without these errors, 77 % with them; of the other
#: third 46 and 79 %.
OTHER_CHIP = 0.20
#: Of another figure (a whole batch for a time per token), or another load (static batches for users who come and go).
OTHER_FIGURE, OTHER_LOAD = 0.25, 0.15
#: Of kernels alone, where the engine was not measured on such chips at all: SGLang's 24 prompts and steps on five
#: such boards (https://github.com/zksainx/pipeweave) all lie inside, and 92 % of 51 figures of vLLM on RTX 3090 that
#: did not choose it.  On chips of a maker without measured kernels (of 22 published figures of vLLM on Ascend and TPU
#: 55 % lay inside intervals of the kernels, 70 % with it).
NO_RUNS, NO_RUNS_AFAR = 0.15, 0.80
#: Of residuals of other versions.
OTHER_VERSION = 0.25
#: Of a program that was not measured, for which a preset stands.
OTHER_PROGRAM = 0.25
#: Of another model, format or layout than those of a user's engine file, whose constants then change by that share of
#: the logarithm: docs/guide/calibration.md#your-server.
OTHER_CONFIGURATION, OTHER_SHARE = 0.25, 0.5
#: Per factor of two beyond the fitted sizes, at most MOST_OCTAVES of them; fewer users meet less that is unknown.
FEWER_USERS, MORE_USERS, SHORTER_PROMPTS, LONGER_PROMPTS, MOST_OCTAVES = 0.05, 0.15, 0.20, 0.10, 3.0
#: Per share of the time that the engine adds beyond that of the fitted runs, at most MOST_HOST: hosts with the same GPU
#: take 2.2 to 5.2 ms for a token of a model of 0.5B.
PER_HOST_SHARE, MOST_HOST = 1.0, 0.5

_RANGE = record.numbers(2, record.NUMBER, rising=True)


@frozen
class Scope:
    """Runs whose residuals are kept.

    chips: names.  batching: of their loads.  batch, input_len: fewest and most users and prompt tokens; empty: not
    stated.  host_share: share of the time that the engine adds to kernels, which 95 % of the runs do not exceed.
    """

    chips: tuple[str, ...] = field(default=(), metadata=stated(record.listed(record.text)))
    batching: tuple[str, ...] = field(default=(), metadata=stated(record.listed(record.text)))
    batch: tuple[float, ...] = field(default=(), metadata=stated(_RANGE))
    input_len: tuple[float, ...] = field(default=(), metadata=stated(_RANGE))
    host_share: float = 1.0

    def beyond(
        self, *, chip: str, batching: str, batch: Count, input_len: Count, host_share: Array
    ) -> dict[str, Array]:
        """Errors for all that lies outside these runs, by what it is, per point; 0 for what does not.

        A static batch is no other load: it is the simplest of all.
        """
        (fewer, more), (shorter, longer) = _octaves(batch, self.batch), _octaves(input_len, self.input_len)
        host = np.minimum(PER_HOST_SHARE * np.maximum(host_share - self.host_share, 0.0), MOST_HOST)
        return {
            "chip": OTHER_CHIP * np.full(1, chip not in self.chips),
            "load": OTHER_LOAD * np.full(1, batching not in ("static", *self.batching)),
            "number of users": FEWER_USERS * fewer + MORE_USERS * more,
            "prompt length": SHORTER_PROMPTS * shorter + LONGER_PROMPTS * longer,
            "share of host time": host,
        }


def _octaves(value: Count, known: tuple[float, ...]) -> tuple[Array, Array]:
    """Factors of two by which a value lies below and above a range, at most MOST_OCTAVES; 0 without one."""
    number = np.maximum(value, 1e-9)
    low, high = np.maximum(known or (0.0, 1e18), 1e-9)
    return np.clip(np.log2(low / number), 0.0, MOST_OCTAVES), np.clip(np.log2(number / high), 0.0, MOST_OCTAVES)


def widened(ratios: Array, error: Array) -> Array:
    """Bounds over value, shape (4, points), with an independent error (half an 80 % interval of the logarithm).

    Either side is widened from the predicted value on, as the middle of a fit's residuals is that of its own runs.
    """
    away = np.maximum(SIGNS * np.log(np.maximum(ratios, 1e-9)), 0.0)
    wider = np.exp(SIGNS * np.hypot(away, error * WIDTH_OVER_80))
    return np.where(error > 0.0, farther(ratios, wider), ratios)
