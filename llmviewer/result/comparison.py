"""Comparison of several configurations for the same request, with ratios to the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmviewer.core.answer import Answer
from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen
from llmviewer.language.quantity import METRICS, Quantity
from llmviewer.result.columns import ALWAYS_SHOWN, flat, without_defaults
from llmviewer.result.devices import hardware_name
from llmviewer.result.result import Result
from llmviewer.result.separable import in_common, overlap
from llmviewer.techniques.registry import TECHNIQUES

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.comparison/1"
#: Metrics by which one configuration is taken: time, money, energy.
DECIDING = ("e2e_s", "usd_per_million_output_tokens", "joules_per_output_token")
#: Columns with the value of a technique's option.
OPTION_COLUMNS = tuple(TECHNIQUES)
MEMORY_COLUMNS = (
    "weights_bytes",
    "kv_cache_bytes",
    "activations_bytes",
    "framework_bytes",
    "total_bytes",
    "capacity_bytes",
)
#: Limits, and the assumptions on which they depend.
LIMIT_COLUMNS = (
    "max_batch_size",
    "max_context_len",
    "model_max_context_len",
    "token_budget",
    "gpu_memory_utilization",
)


@frozen(eq=False, repr=False)
class Comparison(Answer):
    """Results of one point each, in the order of the command line.

    refused: chip that does not take the run -> why, where every known chip was tried; the results are then the fastest
    that fit first.  None otherwise.
    """

    QUESTION: ClassVar[str] = "compare"
    results: tuple[Result, ...]
    refused: Mapping[str, str] | None = None

    @property
    def fits(self) -> bool:
        """Whether every configuration fits in memory."""
        return all(result.fits for result in self.results)

    @property
    def runs(self) -> bool:
        """Whether any configuration fits, and its engine starts where --max-model-len is stated."""
        return any(result.runs for result in self.results)

    @property
    def techniques(self) -> list[str]:
        """Names of techniques that some configuration changes from the default, and always the number formats."""
        shown = {name for r in self.results for name, text in r.techniques.items() if shown_when_shared(name, text)}
        return [name for name in TECHNIQUES if name in shown]

    def to_dict(self) -> dict[str, Any]:
        """The comparison object: the workload and the full analysis of every configuration."""
        configurations = self.configurations()
        best = {name: best_of(configurations, METRICS[name]) for name in DECIDING}
        found = {
            "schema": SCHEMA, "workload": configurations[0]["workload"], "best": best, "configurations": configurations
        }  # fmt: skip
        return found if self.refused is None else {**found, "refused": dict(self.refused)}

    def configurations(self) -> list[dict[str, Any]]:
        """Analysis objects with dtype, techniques and `ratio_to_first`."""
        answers = [result.alone() for result in self.results]
        first = answers[0]["metrics"]
        return [
            {
                "dtype": answer["model"]["dtype"],
                "techniques": {name: result.techniques[name] for name in self.techniques},
                **result.techniques,
                "ratio_to_first": {name: _ratio(answer["metrics"], first, one) for name, one in METRICS.items()},
                "separable_from_first": {
                    name: _separable(answer["metrics"], first, one, partial(_in_common, result, self.results[0]))
                    for name, one in METRICS.items()
                },
                **answer,
            }
            for result, answer in zip(self.results, answers, strict=True)
        ]

    def to_frame(self) -> pd.DataFrame:
        """One row per configuration: metrics, their bounds and ratios to the first, by the names of the CSV.

        Options that all have at their defaults have no column.
        """
        import pandas as pd

        return without_defaults(pd.DataFrame([flat(row) for row in self.rows()]))

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per configuration."""
        return [_row(configuration) for configuration in self.configurations()]


def runs(configuration: Mapping[str, Any]) -> bool:
    """Whether an analysis object fits, and its engine starts where --max-model-len is stated (which it warns of)."""
    memory = configuration["memory"]
    return bool(memory["fits"]) and memory["refusal"] not in configuration["warnings"]


def ranked(configurations: Sequence[Mapping[str, Any]], metric: Quantity) -> list[int]:
    """Positions of the configurations that run and have a metric, the least first."""
    values = {
        at: metric.of(one["metrics"])
        for at, one in enumerate(configurations)
        if runs(one) and metric.of(one["metrics"]) is not None
    }
    return sorted(values, key=values.__getitem__)


def best_of(configurations: Sequence[Mapping[str, Any]], metric: Quantity) -> int | None:
    """Position of the configuration that runs with the least of a metric; None where none does."""
    return next(iter(ranked(configurations, metric)), None)


def shown_when_shared(name: str, text: str) -> bool:
    """Whether a table names a value that all configurations share: not techniques at their defaults."""
    return bool(text) and (name not in TECHNIQUES or name in ALWAYS_SHOWN or text != TECHNIQUES[name].default)


def _ratio(one: dict[str, Any], first: dict[str, Any], metric: Quantity) -> float | None:
    """A metric over that of the first; None if either is missing, or the first is 0."""
    values = metric.of(one), metric.of(first)
    return None if values[0] is None or not values[1] else values[0] / values[1]


def _separable(
    one: dict[str, Any], first: dict[str, Any], metric: Quantity, common: Callable[[str], Array | float]
) -> bool | None:
    """Whether the 80 % intervals of two values have no common point; without intervals, whether the values differ.

    common: time -> the share of its errors that both have, which count for neither.  None if either value is missing.
    """
    values = metric.of(one), metric.of(first)
    if None in values:
        return None
    name = metric.interval
    known = [metrics["intervals"].get(name) for metrics in (one, first)]
    if None in known:
        return bool(values[0] != values[1])
    bounds = [
        np.array([levels["80"][0], metrics[name], levels["80"][1]])
        for levels, metrics in zip(known, (one, first), strict=True)
    ]
    return not bool(np.all(overlap(bounds[0][:, None], bounds[1][:, None], common(name))))


def _in_common(one: Result, first: Result, metric: str) -> Array | float:
    from llmviewer.result import interval  # ideal times have none

    return in_common(interval.sources(one.analysis, metric), interval.sources(first.analysis, metric))


def _row(configuration: dict[str, Any]) -> dict[str, Any]:
    memory, stages, round_ = configuration["memory"], configuration["stages"], configuration["generation"]
    return {
        "model": configuration["model"]["name"],
        "hardware": hardware_name(configuration),
        "dtype": configuration["dtype"],
        **{name: configuration["techniques"].get(name, configuration[name]) for name in TECHNIQUES},
        "efficiency": configuration["efficiency"]["kind"],
        "engine": configuration["efficiency"].get("engine"),
        **configuration["workload"],
        "devices": configuration["parallelism"]["devices"],
        "drafted_tokens": 0 if round_ is None else round_.get("drafted_tokens", round_["new_tokens"] - 1),
        "tokens_per_round": 1 if round_ is None else round_["tokens_per_round"],
        **{name: memory[name] for name in (*MEMORY_COLUMNS, "fits", *LIMIT_COLUMNS)},
        **{name: one.of(configuration["metrics"]) for name, one in METRICS.items()},
        **({"intervals": intervals} if (intervals := configuration["metrics"]["intervals"]) else {}),
        **{f"total_{name}": total for name, total in configuration["totals"].items()},
        **{f"{name}_ideal_time_s": stage["ideal_time_s"] for name, stage in stages.items()},
        **{f"{name}_bound": stage["bound"] for name, stage in stages.items()},
        **{f"{name}_ratio_to_first": ratio for name, ratio in configuration["ratio_to_first"].items()},
        **{f"{name}_separable_from_first": known for name, known in configuration["separable_from_first"].items()},
    }
