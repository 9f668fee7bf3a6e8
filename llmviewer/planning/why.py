"""`lv.why`: the difference between two runs, split over the factors in which they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from llmviewer.api.configuration import Configuration, configuration
from llmviewer.core.answer import Answer
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import TIMES
from llmviewer.language.option import Kind, Option
from llmviewer.planning.run_metrics import RUN_METRICS, RunMetric, run_metric
from llmviewer.planning.shapley import MOST_EXACT, SAMPLED_PAIRS, SEED, Coalition, coalitions, split
from llmviewer.planning.why_chips import Chips, chips_of_two, stacked, structure
from llmviewer.planning.why_line import Side, options_of, side
from llmviewer.result.request_time import ATTRIBUTED_METRICS, attribution_rows
from llmviewer.result.result import Result
from llmviewer.techniques.options import OPTIONS, WORKLOAD

if TYPE_CHECKING:
    import pandas as pd

#: Options that say how a model is read; they go with it.
OF_MODEL = ("trace_model", "ignore_fields", "model_set")
MODEL = "model"
#: Option whose figures and times are factors one by one.
SET = "set"
#: Factors with the value of B.
Taken = frozenset[str]


@frozen
class Factor:
    """One thing in which the runs differ, with the value of each run."""

    name: str
    a: Any
    b: Any


@frozen(eq=False)
class Pair:
    """Two runs.  chips: with the figures that the runs set.  configurations: those built, by what they depend on."""

    a: Side
    b: Side
    chips: Chips
    configurations: dict[Any, Configuration] = field(default_factory=dict)

    @property
    def factors(self) -> list[Factor]:
        """The model, sizes, options and groups of figures that differ."""
        a, b = self.a.words, self.b.words
        found = []
        if self.a.model != self.b.model or any(a[name] != b[name] for name in OF_MODEL):
            found.append(Factor(name=MODEL, a=_name(self.a), b=_name(self.b)))
        names = [name for name in OPTIONS if name not in (*OF_MODEL, SET) and a[name] != b[name]]
        found += [Factor(name=name, a=_told(a[name]), b=_told(b[name])) for name in names]
        for name in TIMES:
            times = [side.times.get(name, 1.0) for side in (self.a, self.b)]
            found += [Factor(name=name, a=times[0], b=times[1])] if times[0] != times[1] else []
        return found + [Factor(name=name, a=a, b=b) for name, (a, b) in self.chips.factors.items()]

    def result(self, taken: Taken) -> Result:
        """The result with some factors from B.  Raises UserError."""
        return self._configured([taken]).answer(self._request(taken))

    def values(self, wanted: Sequence[Taken], metric: RunMetric) -> Iterator[tuple[Taken, float | UserError]]:
        """The metric of each run between A and B, or the error of one that is impossible."""
        chips: dict[Any, list[Taken]] = {}
        for taken in wanted:
            key = (taken.difference(self.chips.stacked), structure(self._chip(taken)))
            chips.setdefault(key, []).append(taken)
        for together in chips.values():
            yield from self._together(together, metric)

    def _together(self, runs: list[Taken], metric: RunMetric) -> Iterator[tuple[Taken, float | UserError]]:
        """The metric of runs that differ only in figures of one structure."""
        try:
            made = self._configured(runs)
            if len(runs) > 1 and (made.most_points < len(runs) or made.system.spatial):
                for one in runs:
                    yield from self._together([one], metric)
                return
            result = made.answer(self._request(runs[0]))
            found = [metric.of(result, at if len(result) > 1 else 0) for at in range(len(runs))]
        except UserError as error:
            yield from ((one, error) for one in runs)
            return
        yield from zip(runs, found, strict=True)

    def _request(self, taken: Taken) -> Request:
        sizes = {name: (self.b if name in taken else self.a).request for name in WORKLOAD}
        return Request(**{name: getattr(request, name) for name, request in sizes.items()})

    def _configured(self, runs: Sequence[Taken]) -> Configuration:
        """The configuration of runs with the same model and options, on an array of their chips."""
        key = tuple(one.difference(WORKLOAD) for one in runs)
        if key not in self.configurations:
            taken, chips = runs[0], [self._chip(one) for one in runs]
            of_model = self.b if MODEL in taken else self.a
            words = {name: (self.b if name in taken else self.a).words[name] for name in OPTIONS}
            words |= {name: of_model.words[name] for name in OF_MODEL}
            words[SET] = self._times(taken)
            options = options_of(words)
            self.configurations[key] = configuration(of_model.model, stacked(chips), **options)
        return self.configurations[key]

    def _times(self, taken: Taken) -> str:
        """The text of `set` for launches and messages; the figures of the chip are its own."""
        stated = {name: (self.b if name in taken else self.a).times.get(name) for name in TIMES}
        factors = (f"{name}=x{factor!r}" for name, factor in stated.items() if factor is not None)
        return ",".join(factors) or str(OPTIONS[SET].default)

    def _chip(self, taken: Taken) -> Chip:
        return self.chips.between(taken)


def pair(a: Side, b: Side, chips: tuple[Chip, Chip]) -> Pair:
    """Two runs.  chips: of a and b, with the figures that they set."""
    named = [one.name for side in (a, b) for one in side.settings if one.name not in TIMES]
    return Pair(a=a, b=b, chips=chips_of_two(*chips, named))


def _told(value: Any) -> Any:
    """The value of an option, in words where the engine chooses it."""
    return "the engine's" if value is None else value


def _name(one: Side) -> str:
    name = one.model if isinstance(one.model, str) else str(getattr(one.model, "name", "a config"))
    changed = one.words["model_set"]
    return name if changed == OPTIONS["model_set"].default else f"{name}[{changed}]"


#: Sets of names of the factors that have the value of B -> each with the value of the metric, or the error it raised.
Values = Callable[[Sequence[frozenset[str]]], Iterable[tuple[frozenset[str], float | UserError]]]
Group = tuple[str, ...]


@frozen
class Merge:
    """Factors that change together, and why they cannot change one by one."""

    names: Group
    reason: str


@frozen(eq=False)
class Grouped:
    """Groups of factors that change together, with the value of every coalition of groups that a split needs."""

    groups: tuple[Group, ...]
    values: Mapping[Coalition, float]
    merges: tuple[Merge, ...] = ()


@frozen(eq=False)
class _Known:
    """Values that were computed, and messages of combinations that do not exist."""

    evaluate: Values
    values: dict[frozenset[str], float] = field(default_factory=dict)
    refused: dict[frozenset[str], str] = field(default_factory=dict)

    def learn(self, wanted: Iterable[frozenset[str]]) -> None:
        """Evaluate the combinations that are not known yet."""
        new = [names for names in wanted if names not in self.values and names not in self.refused]
        for names, found in self.evaluate(new):
            if isinstance(found, UserError):
                self.refused[names] = str(found)
            else:
                self.values[names] = found


def grouped(names: tuple[str, ...], evaluate: Values) -> Grouped:
    """The values of all coalitions, after merging the factors of impossible combinations.

    evaluate: has a value for no names (A) and for all names (B).
    """
    known = _Known(evaluate=evaluate)
    groups: tuple[Group, ...] = tuple((name,) for name in names)
    merges: list[Merge] = []
    while True:
        members = {one: frozenset(n for at in one for n in groups[at]) for one in coalitions(len(groups))}
        known.learn(members.values())
        refused = [one for one, taken in members.items() if taken in known.refused]
        if not refused:
            values = {one: known.values[taken] for one, taken in members.items()}
            return Grouped(groups=groups, values=values, merges=tuple(merges))
        first, second = _closest(refused, len(groups))
        joined = groups[first] + groups[second]
        merges = [one for one in merges if not set(one.names) <= set(joined)]
        merges.append(Merge(names=joined, reason=_reason(known, [members[one] for one in refused], joined)))
        groups = tuple(joined if at == first else one for at, one in enumerate(groups) if at != second)


def _closest(refused: list[Coalition], count: int) -> tuple[int, int]:
    """The two groups that stand apart in most of the refused coalitions; merged, none of these remains."""
    return max(combinations(range(count), 2), key=lambda two: sum((two[0] in s) != (two[1] in s) for s in refused))


def _reason(known: _Known, refused: list[frozenset[str]], joined: Group) -> str:
    """The message of the smallest refused combination that separates the factors."""
    apart = [taken for taken in refused if 0 < len(taken & set(joined)) < len(joined)]
    return known.refused[min(apart, key=len)]


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


@frozen
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


@frozen(slots=False, eq=False, repr=False)
class Why(Answer):
    """The difference between two runs.

    results, texts: of A and B.  shares: of the factors, the largest amounts first; they sum to the difference.  merges:
    factors that change only together.  evaluated: coalitions that were evaluated.
    """

    QUESTION: ClassVar[str] = "why"
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
