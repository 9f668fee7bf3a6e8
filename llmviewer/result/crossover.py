"""Which configuration wins where: batch against context, the winner at every point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.result.result import Result
from llmviewer.result.sweep import Grid
from llmviewer.techniques.registry import TECHNIQUES

SCHEMA = "llmviewer.crossover/1"
#: metric -> what is compared, less is better.
CROSSOVER_METRICS: dict[str, Callable[[Analysis], Array]] = {
    "decode_time_s": lambda a: a.token_s,
    "ttft_s": lambda a: a.ttft_s,
    "tpot_s": lambda a: a.tpot_s,
    "e2e_s": lambda a: a.e2e_s,
    "device_time_s": lambda a: a.token_s * a.system.parallelism.devices,
}
#: Those of whole answers; the others look at prefill, or at one token of the decode step that is shown.
OF_ANSWERS = ("tpot_s", "e2e_s")
#: Values that do not say what they are of where several options differ.
SILENT = ("none", "off", "on", "auto")
#: The index of a point where no configuration fits in memory.
NOBODY = -1
#: Points of one map: all stay in memory, and no eye tells more apart.
MOST_POINTS = 10**5


class Contender(Protocol):
    """A configuration that answers requests: `api.Configuration`."""

    @property
    def efficiency(self) -> str:
        """`ideal` or `calibrated`."""

    @property
    def most_points(self) -> float:
        """Requests that may be answered together."""

    def answer(self, workload: Request) -> Result:
        """The result of a request."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crossover:
    """values: metric by configuration, context and batch; inf where the configuration does not fit in memory.

    efficiency: what times are, ideal or calibrated.
    winner: index of the configuration with the least value, NOBODY where none fits; ties go to the first.
    """

    names: tuple[str, ...]
    metric: str
    efficiency: str
    batch_sizes: Array
    contexts: Array
    values: Array

    @property
    def winner(self) -> Array:
        """[context, batch]"""
        best = np.argmin(self.values, axis=0)
        return np.where(np.isfinite(np.min(self.values, axis=0)), best, NOBODY)

    def to_dict(self) -> dict[str, Any]:
        """Axes, names, winners, values (null where it does not fit): data for a plot."""
        return {
            "schema": SCHEMA,
            "metric": self.metric,
            "efficiency": self.efficiency,
            "configurations": list(self.names),
            "batch_sizes": self.batch_sizes.astype(int).tolist(),
            "contexts": self.contexts.astype(int).tolist(),
            "winner": self.winner.astype(int).tolist(),
            "values": np.where(np.isfinite(self.values), self.values, None).tolist(),  # type: ignore[call-overload]
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per point."""
        winner = self.winner.astype(int)
        return [
            {
                "batch_size": int(batch),
                "context": int(context),
                "winner": self.names[winner[i, j]] if winner[i, j] != NOBODY else None,
                **{name: float(self.values[k, i, j]) for k, name in enumerate(self.names)},
            }
            for i, context in enumerate(self.contexts)
            for j, batch in enumerate(self.batch_sizes)
        ]


def crossover(
    configurations: Mapping[str, Contender],
    batch_sizes: Array,
    contexts: Array,
    metric: str,
    output_len: int = 128,
) -> Crossover:
    """Evaluate every configuration on the grid.  contexts: keys a decode step sees, or prompt tokens of a prefill.

    output_len: tokens of an answer, for OF_ANSWERS.
    """
    if len(configurations) < 2:
        raise UserError("a crossover needs two configurations or more: give a comma list (--quantization none,w4a16)")
    grid = Grid(
        batch_sizes=batch_sizes,
        input_lens=contexts,
        output_lens=np.array([output_len if metric in OF_ANSWERS else 1.0]),
    )
    if len(grid) > MOST_POINTS:
        raise UserError(f"the map has {len(grid):,} points; allowed: at most {MOST_POINTS:,}")
    shape = (len(contexts), len(batch_sizes))
    values = np.stack([_plane(c, grid, metric).reshape(shape) for c in configurations.values()])
    return Crossover(
        names=tuple(configurations),
        metric=metric,
        efficiency=", ".join(dict.fromkeys(c.efficiency for c in configurations.values())),
        batch_sizes=batch_sizes,
        contexts=contexts,
        values=values,
    )


def _plane(configuration: Contender, grid: Grid, metric: str) -> Array:
    """The metric of one configuration at every point, inf where it does not fit."""
    pieces = []
    for request in grid.chunks(most=configuration.most_points):
        done = configuration.answer(request).analysis
        pieces.append(np.where(done.memory.fits, CROSSOVER_METRICS[metric](done), np.inf))
    return np.concatenate(pieces)


def names(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for every combination of options: the values by which they differ, model and chip first."""
    varying = [name for name in options[0] if len({str(o[name]) for o in options}) > 1]
    varying.sort(key=lambda name: name not in ("model", "hardware"))
    silent = SILENT if len(varying) > 1 else ()
    return [", ".join(_called(name, str(o[name]), silent) for name in varying) or "alone" for o in options]


def switched_on(options: Mapping[str, Any]) -> list[str]:
    """The techniques among these options that are not as they are unless asked for, as `names` calls them."""
    given = {name: str(options[name]) for name in TECHNIQUES if name in options}
    return [_called(name, text, SILENT) for name, text in given.items() if text != TECHNIQUES[name].default]


def _called(name: str, text: str, silent: Sequence[str]) -> str:
    """`w4a16` speaks for itself; `4` does not, nor does what is silent."""
    return f"{name.replace('_', ' ')} {text}" if text in silent or text.replace(".", "").isdigit() else text
