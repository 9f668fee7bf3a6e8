"""Values of all coalitions of factors; factors of which one cannot change without another are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from llmviewer.core.errors import UserError
from llmviewer.planning.shapley import Coalition, coalitions

#: Sets of names of the factors that have the value of B -> each with the value of the metric, or the error it raised.
Values = Callable[[Sequence[frozenset[str]]], Iterable[tuple[frozenset[str], float | UserError]]]
Group = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Factors that change together, and why they cannot change one by one."""

    names: Group
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouped:
    """Groups of factors that change together, with the value of every coalition of groups that a split needs."""

    groups: tuple[Group, ...]
    values: Mapping[Coalition, float]
    merges: tuple[Merge, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
