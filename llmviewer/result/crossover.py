"""Crossover map: the fastest configuration at each batch size and context length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.core.answer import Answer
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.language.option import Kind, Option
from llmviewer.language.quantity import LATENCIES, STEPS
from llmviewer.result.separable import Sources, in_common, joined, overlap
from llmviewer.result.sweep import Candidate, Grid
from llmviewer.techniques.options import WORKLOAD
from llmviewer.techniques.registry import TECHNIQUES

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.crossover/1"
#: Metrics that a map minimizes: latencies of a request, and times of a decode step per token.
CROSSOVER_METRICS = LATENCIES | STEPS
#: Contexts of a map where none are stated, of which those that every model has count.
CONTEXTS = "512:131072:*2"
#: Metrics of whole answers; the others are of prefill, or of one token of the decode step shown.
ANSWER_METRICS = ("tpot_s", "e2e_s")
#: Option values that need the option's name beside them where several options differ.
AMBIGUOUS_VALUES = ("none", "off", "on", "auto")
#: Winner index where no configuration fits in memory.
NO_WINNER = -1
#: Points of one map: all are kept in memory, and a plot cannot resolve more.
MAX_MAP_POINTS = 10**5
OWN = {
    "context": Option(
        kind=Kind.WHOLE,
        array=True,
        help=f"Tokens in the KV cache: a list or ranges; default: {CONTEXTS}, as far as every model goes.",
    ),
    "metric": Option(
        kind=Kind.WORD,
        choices=tuple(CROSSOVER_METRICS),
        help="decode_time_s, ttft_s, tpot_s, e2e_s, or device_time_s (decode time x devices).",
    ),
}


@frozen(eq=False, repr=False)
class Crossover(Answer):
    """Values of a metric by configuration, context length and batch size, and the winner at each point.

    values: shape (configurations, contexts, batch sizes); inf where the configuration does not fit in memory.
    low, high: bounds of the 80 % intervals of `values`; the values themselves for ideal times.
    sources: of each configuration, the kernels in which its values have their errors (interval.sources).
    efficiency: ideal or calibrated.  engine: of calibrated times, in words.
    winner: index of the configuration with the least value, NO_WINNER where none fits; ties go to the first.
    figure, figure_values: name and texts of a figure of the chips that takes the place of the contexts, then one.
    warnings: of all configurations at the largest point, and of options that the metric does not use.
    """

    QUESTION: ClassVar[str] = "crossover"
    names: tuple[str, ...]
    metric: str
    efficiency: str
    engine: str
    batch_sizes: Array
    contexts: Array
    values: Array
    low: Array
    high: Array
    sources: tuple[Sources, ...] = ()
    figure: str = ""
    figure_values: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        points = " x ".join(f"{size:,}" for size in self.values.shape[1:])
        return f"<Crossover: {self.metric} of {', '.join(self.names)} over {points} points>"

    @property
    def winner(self) -> Array:
        """Index of the best configuration, shape (contexts, batch sizes)."""
        best = np.argmin(self.values, axis=0)
        return np.where(np.isfinite(np.min(self.values, axis=0)), best, NO_WINNER)

    @property
    def margin(self) -> Array:
        """Second-best value over the best, minus 1, shape (contexts, batch sizes); inf where only one fits."""
        best, second = np.partition(self.values, 1, axis=0)[:2]
        lead: Array = np.divide(second, best, out=np.full(best.shape, np.inf), where=np.isfinite(best)) - 1.0
        return lead

    @property
    def tied(self) -> Array:
        """Whether the interval of another configuration overlaps that of the winner, shape (contexts, batch sizes).

        Errors that both share, of the same kernels on the same chip, are left out of both intervals.
        """
        winner, found = self.winner.astype(int), np.zeros(self.values.shape[1:], dtype=bool)
        bounds = np.where(np.isfinite(self.values), np.stack([self.low, self.values, self.high]), np.nan)
        for one, other in permutations(range(len(self.names)), 2):
            common = in_common(self.sources[one], self.sources[other]) if self.sources else 0.0
            found |= (winner == one) & overlap(bounds[:, one], bounds[:, other], common)
        return found

    @property
    def along(self) -> str:
        """The name of the map's rows: `context`, or the figure of the chips."""
        return self.figure or "context"

    @property
    def row_names(self) -> tuple[str, ...]:
        """The context, or the value of the figure, of every row of the map."""
        return self.figure_values or tuple(f"{int(context):,}" for context in self.contexts)

    def to_dict(self) -> dict[str, Any]:
        """The crossover object: axes, names, winners, values (null where a configuration does not fit)."""
        figure = {"figure": self.figure, "figure_values": list(self.figure_values)} if self.figure else {}
        return {
            "schema": SCHEMA,
            "warnings": list(self.warnings),
            "metric": self.metric,
            "efficiency": self.efficiency,
            "engine": self.engine,
            "configurations": list(self.names),
            "batch_sizes": self.batch_sizes.astype(int).tolist(),
            "contexts": self.contexts.astype(int).tolist(),
            **figure,
            "winner": self.winner.astype(int).tolist(),
            "margin": _or_null(self.margin),
            "tied": self.tied.tolist(),
            **{name: _or_null(getattr(self, name)) for name in ("values", "low", "high")},
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per point."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Table rows, one per point."""
        winner, margin, tied = self.winner.astype(int), self.margin, self.tied
        contexts = np.resize(self.contexts, len(self.row_names))  # one context for every value of a figure
        return [
            {
                "batch_size": int(batch),
                "context": int(context),
                **({self.figure: self.figure_values[i]} if self.figure else {}),
                "winner": self.names[winner[i, j]] if winner[i, j] != NO_WINNER else None,
                "margin": float(margin[i, j]) if np.isfinite(margin[i, j]) else None,
                "tied": bool(tied[i, j]),
                **{name: float(self.values[k, i, j]) for k, name in enumerate(self.names)},
            }
            for i, context in enumerate(contexts)
            for j, batch in enumerate(self.batch_sizes)
        ]


def _or_null(values: Array) -> Any:
    """Nested lists of the values, with None for infinite ones."""
    return np.where(np.isfinite(values), values, None).tolist()  # type: ignore[call-overload]


def crossover(
    configurations: Mapping[str, Candidate],
    batch_sizes: Array,
    contexts: Array,
    metric: str,
    output_len: int = 128,
) -> Crossover:
    """Evaluate every configuration on the grid.

    contexts: keys that a decode step attends, or prompt tokens of a prefill.
    output_len: output tokens per request, used for ANSWER_METRICS.
    """
    if len(configurations) < 2:
        listed = "give a list (--quantization none,w4a16; in Python a list of texts)"
        raise UserError(f"a crossover needs two configurations or more: {listed}")
    grid = Grid(
        batch_sizes=batch_sizes,
        input_lens=contexts,
        output_lens=np.array([output_len if metric in ANSWER_METRICS else 1.0]),
    )
    if len(grid) > MAX_MAP_POINTS:
        raise UserError(f"the map has {len(grid):,} points; allowed: at most {MAX_MAP_POINTS:,}")
    shape = (len(contexts), len(batch_sizes))
    answers = [_metric_values(one, grid, metric) for one in configurations.values()]
    low, values, high = np.stack([found.reshape(3, *shape) for found, _ in answers], axis=1)
    return Crossover(
        names=tuple(configurations),
        metric=metric,
        efficiency=", ".join(dict.fromkeys(c.efficiency for c in configurations.values())),
        engine=", ".join(dict.fromkeys(c.engine_title for c in configurations.values() if c.engine_title)),
        batch_sizes=batch_sizes,
        contexts=contexts,
        values=values,
        low=low,
        high=high,
        sources=tuple({name: share.reshape(shape) for name, share in found.items()} for _, found in answers),
        warnings=tuple(dict.fromkeys(_warnings(configurations.values(), grid, metric, output_len))),
    )


def within(contexts: Array, configurations: Iterable[Candidate], metric: str, output_len: int) -> Array:
    """The contexts of a default grid that every model has; the shortest where none is."""
    longest = min(one.model.max_context for one in configurations)
    kept = contexts[contexts + (output_len if metric in ANSWER_METRICS else 0) <= longest]
    return kept if len(kept) else contexts[:1]


def _warnings(found: Iterable[Candidate], grid: Grid, metric: str, output_len: int) -> Iterator[str]:
    largest = grid.largest()
    if metric not in ANSWER_METRICS:  # a context holds the tokens of the step too
        largest = replace(largest, output_len=0.0 * largest.output_len)
    for one in found:
        yield from one.warnings(largest)
    if metric not in ANSWER_METRICS and output_len != WORKLOAD["output_len"].default:
        yield f"--output-len: {metric} is of no whole answer, not used"


@frozen(eq=False)
class FigureAxis:
    """A figure of the chips as an axis: its name, texts of its values, and each configuration with every value."""

    figure: str
    values: tuple[str, ...]
    configurations: Mapping[str, Sequence[Candidate]]


def over_figure(axis: FigureAxis, batch_sizes: Array, contexts: Array, metric: str, output_len: int = 128) -> Crossover:
    """Evaluate every configuration over batch sizes and values of a figure of its chip, at one context.

    Raises UserError for several contexts.
    """
    if len(contexts) > 1:
        raise UserError(f"the rows of the map are {axis.figure}; give one context instead of {len(contexts)}")
    maps = [
        crossover(
            {name: one[at] for name, one in axis.configurations.items()}, batch_sizes, contexts, metric, output_len
        )
        for at in range(len(axis.values))
    ]
    names = ("values", "low", "high")
    of_all: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in maps], axis=1) for name in names}
    shapes = [(1, len(batch_sizes))] * len(maps)
    of_all["sources"] = tuple(joined(found, shapes) for found in zip(*(one.sources for one in maps), strict=True))
    of_all["warnings"] = tuple(dict.fromkeys(text for one in maps for text in one.warnings))
    return replace(maps[0], **of_all, figure=axis.figure, figure_values=axis.values)


def _metric_values(configuration: Candidate, grid: Grid, metric: str) -> tuple[Array, Sources]:
    """Lower bound, value and upper bound of the metric at every point, shape (3, points), and sources of the errors.

    They are inf where the configuration does not fit.
    """
    pieces, sources, kind = [], [], CROSSOVER_METRICS[metric].interval
    for request in grid.chunks(max_points=configuration.most_points):
        analysis = configuration.answer(request).analysis
        values = _values(metric, analysis) * _ratios(analysis, kind)
        pieces.append(np.where(analysis.memory.fits, values, np.inf))
        found: Sources = {}
        if analysis.calibration is not None:
            from llmviewer.result import interval  # ideal times have none

            found = interval.sources(analysis, kind)
        sources.append(found)
    return np.concatenate(pieces, axis=1), joined(sources, [piece.shape[1:] for piece in pieces])


def _values(metric: str, analysis: Analysis) -> Array:
    """A metric of every point; less is better."""
    if metric in LATENCIES:
        return np.asarray(getattr(analysis, metric))
    return np.asarray(analysis.token_s * (1 if metric == "decode_time_s" else analysis.system.parallelism.devices))


def _ratios(analysis: Analysis, metric: str) -> Array:
    """Lower bound, value and upper bound of a metric over its value, shape (3, points); ones for ideal times."""
    ones = np.ones((1, analysis.schedule.points))
    if analysis.calibration is None:
        return np.repeat(ones, 3, axis=0)
    from llmviewer.result import interval  # ideal times have none

    low, high = (interval.metric_ratios(analysis)[metric][at] for at in interval.LEVELS["80"])
    return np.concatenate([low[None], ones, high[None]])


def configuration_names(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for every combination of options: the values that differ, model and chip first."""
    varying = [name for name in options[0] if len({str(o[name]) for o in options}) > 1]
    varying.sort(key=lambda name: name not in ("model", "hardware"))
    ambiguous = AMBIGUOUS_VALUES if len(varying) > 1 else ()
    return [", ".join(_value_label(name, str(o[name]), ambiguous) for name in varying) or "alone" for o in options]


def non_default_techniques(options: Mapping[str, Any]) -> list[str]:
    """Labels of the techniques among these options that differ from their defaults."""
    given = {name: str(options[name]) for name in TECHNIQUES if name in options}
    return [
        _value_label(name, text, AMBIGUOUS_VALUES) for name, text in given.items() if text != TECHNIQUES[name].default
    ]


def _value_label(name: str, text: str, ambiguous: Sequence[str]) -> str:
    """A value as a label: `w4a16` is clear without its option name; numbers and `ambiguous` values are not."""
    return f"{name.replace('_', ' ')} {text}" if text in ambiguous or text.replace(".", "").isdigit() else text
