"""Two pools, one for prompts and one for answers: each is sized alone, so the best pools make the best pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmviewer.core.frozen import frozen
from llmviewer.planning.screen import Bounds, Candidate, Order, Screened, candidates
from llmviewer.planning.space import LAYOUT
from llmviewer.planning.workload import Workload
from llmviewer.simulation.fleets import LAYOUT as PREFIXES

PREFIX_OF: Mapping[str, str] = {option: prefix for prefix, option in PREFIXES.items()}


@frozen
class Pair:
    """A pool for prompts and a pool for answers that meet the limits in the steady state.

    prefill, decode: candidates of the pools; their replicas are instances.  busy: the instances of each that would be
    busy all the time, fewer than which cannot do the work.
    """

    prefill: Candidate
    decode: Candidate
    busy: tuple[int, int] = (1, 1)

    @property
    def parts(self) -> tuple[Candidate, Candidate]:
        """The two pools in the order of a request."""
        return self.prefill, self.decode

    @property
    def chips(self) -> tuple[str, ...]:
        """The chips, one if both pools have the same."""
        return tuple(dict.fromkeys(part.screened.hardware for part in self.parts))

    @property
    def hardware(self) -> str:
        """The chip, or both as `a+b`."""
        return "+".join(self.chips)

    @property
    def one_maker(self) -> bool:
        """Whether both chips are of one maker, whose engines share a format of the KV cache."""
        return len({part.screened.maker for part in self.parts}) == 1

    @property
    def devices(self) -> int:
        """Devices of both pools."""
        return sum(part.devices for part in self.parts)

    @property
    def usd_per_hour(self) -> float:
        """Dollars per hour of both pools; infinite without prices."""
        return sum(part.usd_per_hour for part in self.parts)

    @property
    def key(self) -> dict[str, Any]:
        """Options by which candidates are told apart."""
        return self.words((1, 1))

    def order(self, objective: str, workload: Workload) -> Order:
        """The figures that an objective compares in the steady state, less is better."""
        seconds = self.prefill.mean_ttft_s + workload.steps * self.decode.mean_tpot_s
        devices = float(self.devices)
        measure = {
            "latency": seconds,
            "usd": self.usd_per_hour,
            "usd-per-token": self.usd_per_hour / (workload.rate * workload.output_len) / 3600.0,
            "gpus": devices,
            "watts": sum(part.devices * part.screened.watts for part in self.parts),
        }[objective]
        return measure, devices, self.usd_per_hour, len(self.key), seconds, str(self.key)

    def least(self, objective: str, workload: Workload) -> Order:
        """The least figures that it can have in simulation: with all instances busy all the time."""
        parts = [replace(part, replicas=count) for part, count in zip(self.parts, self.busy, strict=True)]
        return replace(self, prefill=parts[0], decode=parts[1]).order(objective, workload)

    def words(self, counts: Sequence[int]) -> dict[str, Any]:
        """Options of `simulate` with these instances."""
        common = {name: value for name, value in self.prefill.words.items() if name not in LAYOUT}
        texts = (
            f"{name}={_instances(part, count, with_chip=len(set(self.hardware.split('+'))) > 1)}"
            for name, part, count in zip(("prefill", "decode"), self.parts, counts, strict=True)
        )
        return {**common, "pools": ",".join(texts)}


def _instances(part: Candidate, count: int, *, with_chip: bool) -> str:
    """The instances of one pool as --batching takes them, such as `2xtp2+ep2@h200`."""
    sizes = [f"{PREFIX_OF[name]}{part.words[name]}" for name in LAYOUT if name in part.words]
    layout = "+".join(sizes) or "tp1"
    return f"{count}x{layout}{f'@{part.screened.hardware}' if with_chip else ''}"


def pairs(group: Sequence[Screened], workload: Workload, bounds: Bounds, most: int = 1) -> list[Pair]:
    """The cheapest pairs of pools, least cost first, at most so many per number format.

    group: structures; the two pools of a pair share all options but the layout.
    """
    found: list[Pair] = []
    for alike in _alike([one for one in group if not one.is_sum]).values():
        prompts = list(_pools(alike, of_prompts(workload), bounds, "prompts"))
        answers = list(_pools(alike, of_answers(workload), bounds, "answers"))
        made = (Pair(prefill=one, decode=other) for one in _best(prompts, most) for other in _best(answers, most))
        within = [one for one in made if one.devices <= bounds.devices and _affordable(one, bounds)]
        found += [replace(one, busy=_busy(one, workload, bounds)) for one in within]
    return sorted(found, key=_order)


def _busy(one: Pair, workload: Workload, bounds: Bounds) -> tuple[int, int]:
    """Instances of both pools that sustain the rate without any limit of latencies."""
    least = [
        candidates(part.screened, replace(work(workload), limits=()), bounds)
        for part, work in zip(one.parts, (of_prompts, of_answers), strict=True)
    ]
    first, then = (found[0].replicas if found else part.replicas for found, part in zip(least, one.parts, strict=True))
    return first, then


def of_prompts(workload: Workload) -> Workload:
    """The work of a pool that computes prompts and first tokens."""
    return replace(workload, output_len=1.0, limits=_limits(workload, "ttft_s"))


def of_answers(workload: Workload) -> Workload:
    """The work of a pool that generates all tokens after the first."""
    return replace(workload, limits=_limits(workload, "tpot_s"))


def _affordable(one: Pair, bounds: Bounds) -> bool:
    return bounds.usd_per_hour == float("inf") or one.usd_per_hour <= bounds.usd_per_hour


def _order(one: Pair) -> tuple[float, int, str]:
    return one.usd_per_hour, one.devices, str(one.words((1, 1)))


def _alike(group: Sequence[Screened]) -> dict[str, list[Screened]]:
    """Structures by all options but their layout."""
    found: dict[str, list[Screened]] = {}
    for one in group:
        rest = {name: value for name, value in one.options.items() if name not in LAYOUT}
        found.setdefault(str(sorted(rest.items())), []).append(one)
    return found


def _limits(workload: Workload, metric: str) -> tuple[Any, ...]:
    return tuple(one for one in workload.limits if one.metric == metric)


def _pools(group: Sequence[Screened], workload: Workload, bounds: Bounds, pool: str) -> Iterator[Candidate]:
    """One pool of each structure, with its first token budget."""
    for one in group:
        yield from candidates(one.as_pool(pool), workload, bounds)[:1]


def _best(pools: Sequence[Candidate], most: int) -> list[Candidate]:
    def order(one: Candidate) -> tuple[float, int, float]:
        return one.usd_per_hour, one.devices, one.mean_tpot_s

    return sorted(pools, key=order)[:most]
