"""`lv.why`: the difference between two runs, split over the factors in which they differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.language.option import Kind, Option
from llmviewer.planning.run_metrics import RUN_METRICS, RunMetric, run_metric
from llmviewer.planning.shapley import MOST_EXACT, SAMPLED_PAIRS, SEED, split
from llmviewer.planning.why_factors import Factor, Pair, pair
from llmviewer.planning.why_groups import Group, Grouped, Merge, grouped
from llmviewer.planning.why_line import side
from llmviewer.result.attribution import ATTRIBUTED_METRICS, attribution_rows
from llmviewer.result.result import Result

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.why/1"
Found = TypeVar("Found")
#: Relative error of a value by the order in which its operators are summed.
ROUNDING = 1e-12
_SIDE = Option(
    kind=Kind.TEXT,
    argument=True,
    help="A run as typed after `llmviewer analyze`, in quotes: 'MODEL --hardware CHIP ...'.",
    json={
        "type": ["string", "object"],
        "description": "A run: a line as typed after `llmviewer analyze` (llama-3.1-8b --hardware h100 --batch-size 8),"
        " or a mapping of the arguments of analyze with model and hardware.",
    },
)
OWN = {
    "a": _SIDE,
    "b": _SIDE,
    "metric": Option(
        kind=Kind.WORD, choices=tuple(RUN_METRICS), help="ttft_s, tpot_s, e2e_s, output_tokens_per_s, total_bytes ..."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A factor, or several that change together, with its amount of the difference.  error: 0 if exact."""

    factors: tuple[Factor, ...]
    amount: float
    error: float = 0.0

    @property
    def name(self) -> str:
        """The names of its factors."""
        return " + ".join(factor.name for factor in self.factors)

    def to_dict(self) -> dict[str, Any]:
        """The object of the JSON schema; factors that change together are listed beside it."""
        only = self.factors[0]
        joined = len(self.factors) > 1
        found = {
            "name": self.name,
            "a": ", ".join(f"{one.name} {one.a}" for one in self.factors) if joined else _plain(only.a),
            "b": ", ".join(f"{one.name} {one.b}" for one in self.factors) if joined else _plain(only.b),
            "amount": self.amount,
            "standard_error": self.error,
        }
        parts = [{"name": one.name, "a": _plain(one.a), "b": _plain(one.b)} for one in self.factors]
        return {**found, "together": parts} if joined else found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Why:
    """The difference between two runs.

    results, texts: of A and B.  shares: of the factors, the largest amounts first; they sum to the difference.  merges:
    factors that change only together.  evaluated: coalitions that were evaluated.
    """

    metric: RunMetric
    results: tuple[Result, Result]
    texts: tuple[str, str]
    shares: tuple[Share, ...]
    merges: tuple[Merge, ...]
    evaluated: int

    def __repr__(self) -> str:
        return f"<Why: {self.metric.name} {self.a:.4g} in A, {self.b:.4g} in B, {len(self.shares)} factors>"

    @property
    def a(self) -> float:
        """The metric of the first run."""
        return self.metric.of(self.results[0])

    @property
    def b(self) -> float:
        """The metric of the second run."""
        return self.metric.of(self.results[1])

    @property
    def difference(self) -> float:
        """The second value minus the first; 0 where they differ by rounding alone."""
        return 0.0 if abs(self.b - self.a) <= ROUNDING * max(abs(self.a), abs(self.b)) else self.b - self.a

    @property
    def exact(self) -> bool:
        """Whether all coalitions were evaluated; otherwise orders of the factors were sampled."""
        return len(self.shares) <= MOST_EXACT

    @property
    def probability(self) -> float | None:
        """The probability that the sign of the difference holds; None for counts, ideal times and equal values."""
        if not self.difference:
            return None
        order = self.results if self.difference > 0 else self.results[::-1]
        return self.metric.probability_less(order[0], order[1])

    def operators(self) -> list[dict[str, Any]]:
        """Seconds of every operator in A and B, which sum to the metric; empty for metrics other than times."""
        if self.metric.name not in ATTRIBUTED_METRICS:
            return []
        columns = [
            {(row["name"], row["kind"]): row["seconds"] for row in attribution_rows(r.analysis, self.metric.name, 0)}
            for r in self.results
        ]
        found = []
        for name, kind in dict.fromkeys((*columns[0], *columns[1])):
            a, b = (column.get((name, kind), 0.0) for column in columns)
            found.append({"name": name, "kind": kind, "a": a, "b": b, "amount": b - a})
        return found

    def to_dict(self) -> dict[str, Any]:
        """The object of the JSON schema."""
        intervals = [self.metric.interval(result) for result in self.results]
        method = {"kind": "exact"} if self.exact else {"kind": "sampled", "orders": 2 * SAMPLED_PAIRS, "seed": SEED}
        return {
            "schema": SCHEMA,
            "metric": self.metric.name,
            "less_is_better": self.metric.less_is_better,
            "a": self.a,
            "b": self.b,
            "difference": self.difference,
            "interval80": {"a": intervals[0], "b": intervals[1]},
            "probability": self.probability,
            "lines": {"a": self.texts[0], "b": self.texts[1]},
            "fits": {"a": self.results[0].fits, "b": self.results[1].fits},
            "factors": [share.to_dict() for share in self.shares],
            "method": {**method, "evaluated": self.evaluated},
            "merged": [{"factors": list(one.names), "reason": one.reason} for one in self.merges],
            "operators": self.operators(),
            "warnings": self.warnings(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per factor, after the metric and its difference."""
        shared = {"metric": self.metric.name, "difference": self.difference}
        factors = (share.to_dict() for share in self.shares)
        return [{**shared, **{name: value for name, value in one.items() if name != "together"}} for one in factors]

    def warnings(self) -> list[str]:
        """Warnings of both runs, each once, and those that do not fit in memory."""
        found = [text for result in self.results for text in result.warnings]
        found += [
            f"{name} does not fit in memory; its times are those of a device with more"
            for name, result in zip("AB", self.results, strict=True)
            if not result.fits
        ]
        return list(dict.fromkeys(found))

    def to_frame(self) -> pd.DataFrame:
        """One row per factor: name, its values in A and B, amount, standard error."""
        import pandas as pd

        rows = [share.to_dict() for share in self.shares]
        return pd.DataFrame(rows, columns=["name", "a", "b", "amount", "standard_error"])


def why(a: Any, b: Any, *, metric: str = "tpot_s") -> Why:
    """Why a metric of one run differs from that of another: the difference by factor, by Shapley values.

    a, b: lines as typed after `llmviewer analyze` ("llama-3.1-8b --hardware a100 --batch-size 8"), or mappings of the
    arguments of `lv.analyze` with `model` and `hardware`.  metric: a time, a rate or a size of memory: ttft_s, tpot_s,
    e2e_s, output_tokens_per_s, total_bytes ...  Raises UserError that names the side.
    """
    wanted = run_metric(metric)
    sides = _of_side("A", lambda: side(a)), _of_side("B", lambda: side(b))
    both = pair(*sides, (_of_side("A", lambda: sides[0].chip), _of_side("B", lambda: sides[1].chip)))
    names = frozenset(factor.name for factor in both.factors)
    results = _of_side("A", lambda: both.result(frozenset())), _of_side("B", lambda: both.result(names))
    for name, result in zip("AB", results, strict=True):
        _of_side(name, lambda result=result: wanted.of(result))  # type: ignore[misc]
    found = _values(both, wanted)
    return Why(
        metric=wanted,
        results=results,
        texts=(sides[0].text, sides[1].text),
        shares=_shares(both, found),
        merges=found.merges,
        evaluated=len(found.values),
    )


def _of_side(name: str, made: Callable[[], Found]) -> Found:
    """The outcome of a step; an error of it names the side."""
    try:
        return made()
    except UserError as error:
        raise UserError(f"{name}: {error.marked}") from error


def _values(both: Pair, metric: RunMetric) -> Grouped:
    return grouped(tuple(factor.name for factor in both.factors), lambda wanted: both.values(wanted, metric))


def _shares(both: Pair, found: Grouped) -> tuple[Share, ...]:
    """The amounts of all groups of factors, the largest first."""
    factors = {factor.name: factor for factor in both.factors}
    parts = split(found.values, len(found.groups))

    def share(group: Group, amount: float, error: float) -> Share:
        return Share(factors=tuple(factors[name] for name in group), amount=amount, error=error)

    values = found.values[frozenset()], found.values[frozenset(range(len(found.groups)))]
    amounts = _without_rounding(parts.amounts, *values)
    made = [share(*one) for one in zip(found.groups, map(float, amounts), map(float, parts.errors), strict=True)]
    return tuple(sorted(made, key=lambda one: -abs(one.amount)))


def _without_rounding(amounts: Array, a: float, b: float) -> Array:
    """The amounts with 0 for those that are rounding errors of the values, which sum to the difference as before."""
    kept = np.where(np.abs(amounts) <= ROUNDING * max(abs(a), abs(b)), 0.0, amounts)
    if kept.any():
        kept[np.argmax(np.abs(kept))] += (b - a) - kept.sum()
    return kept
