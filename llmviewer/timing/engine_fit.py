"""Figures that fits give a serving engine: for all chips, on those of a generation, from a version on, or a user's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Any

from llmviewer.core.frozen import frozen
from llmviewer.language import record
from llmviewer.language.record import stated
from llmviewer.timing import engine_memory, engine_work
from llmviewer.timing.engine_scope import Scope
from llmviewer.timing.profile import RATIOS

#: Constants of an engine [us]: name -> what it is paid for.
CONSTANTS: dict[str, str] = {
    "launch": "each kernel of a step: gap before it starts",
    "layer": "each decoder layer of a step",
    "routing": "each layer of a step with routed experts: choosing them, gathering their inputs, adding their outputs",
    "step": "each forward pass: scheduling, preparing inputs, reading the result",
    "group": "each forward pass on several devices: broadcasting the step to all of them",
    "collective": "each collective: synchronization in addition to its kernel",
    "sequence": "each sequence of a pass: metadata and detokenization",
    "sampling": "each row of logits that is sampled",
    "request": "each request, before its first token: HTTP, tokenization, first scheduling",
    "eager": "each kernel of a pass without a CUDA graph: host time to launch it, which overlaps with kernels",
    "expert": "as eager, each kernel of every further distinct expert of a layer, if experts run one by one",
}
#: Constants that are not times of a pass.
NOT_OF_PASSES = ("eager", "expert", "request")
#: Fields of Fitted that describe the runs of a fit.
OF_RUNS = ("error", "residuals", "scope")
#: Metric -> origin of the kernels -> ... numbers, as a fit writes them.
_ERRORS = record.mapped(record.mapped(record.mapped(record.mapped(record.unchanged(record.ANY_NUMBER)))))


@frozen
class Fitted:
    """Figures that a fit gives an engine, or the engine on chips of a generation, or its versions.

    constants: of CONSTANTS [us].
    factors: of engine_work.FACTORS; time of its own kernels over that of the kernels in profiles.
    error: metric -> origin of the kernels -> what was held out -> errors.
    residuals: metric -> origin of the kernels (Calibrated.origin) -> QUANTILES (profile.py) of measured / predicted.
    scope: metric -> origin of the kernels -> the runs of these residuals.
    """

    constants: Mapping[str, float] = field(
        default_factory=dict, metadata=stated(record.mapped(record.NUMBER, CONSTANTS))
    )
    factors: Mapping[str, float] = field(
        default_factory=dict, metadata=stated(record.mapped(record.NUMBER, engine_work.FACTORS))
    )
    error: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, metadata=stated(_ERRORS))
    residuals: Mapping[str, Mapping[str, tuple[float, ...]]] = field(
        default_factory=dict, metadata=stated(record.mapped(record.mapped(RATIOS)))
    )
    scope: Mapping[str, Mapping[str, Scope]] = field(
        default_factory=dict, metadata=stated(record.mapped(record.mapped(partial(record.read, Scope))))
    )


@frozen
class Own(Fitted):
    """A user's engine file, as `calibrate engine` writes it: a preset, and what rows of one server change of it.

    name: the file as it was asked for.  base: the preset, as --engine names it.  generation: of the measured chip.
    configurations: measured models with the weights of one device, as of_engine.configuration_of words them.
    constants, factors, share, integer_share: on that generation in these configurations; those not stated are the
    preset's.  source: rows, files and their dates.
    """

    name: str
    base: str
    generation: str
    configurations: tuple[str, ...] = field(metadata=stated(record.listed(record.filled, least=1)))
    share: float | None = field(default=None, metadata=stated(record.or_null(record.ABOVE_ZERO)))
    integer_share: float | None = field(default=None, metadata=stated(record.or_null(record.ABOVE_ZERO)))
    source: str


@frozen(kw_only=False)
class Residuals:
    """Residuals of a metric that an engine was fitted on: QUANTILES of measured / predicted time, and their runs.

    of_version: whether the runs were of the versions in question.
    """

    metric: str
    quantiles: tuple[float, ...]
    scope: Scope
    of_version: bool


@frozen
class OfGeneration(Fitted):
    """Fields of an engine on chips of one generation, where it runs other kernels.

    before: first version that no longer runs them, and `changed`, where that stands; empty: all versions do.
    share, integer_share, tile_columns, vector_experts, graph_tokens, late_from: as of Engine, where they are others.
    source: of figures that no fit of ours gives.
    """

    ungrouped: float = 0.0
    before: str = ""
    changed: str = ""
    share: float | None = field(default=None, metadata=stated(record.NUMBER))
    integer_share: float | None = field(default=None, metadata=stated(record.NUMBER))
    tile_columns: float | None = field(default=None, metadata=stated(record.NUMBER))
    vector_experts: float | None = field(default=None, metadata=stated(record.NUMBER))
    graph_tokens: float | None = field(default=None, metadata=stated(record.NUMBER))
    late_from: str | None = field(default=None, metadata=stated(engine_memory.a_version))
    source: str = ""


@frozen
class OfVersion(Fitted):
    """Fields of an engine from one version on; constants that are not stated are those of the newest versions."""

    source: str
