"""The result of a simulation: latencies with intervals, throughput, load, and whether they are sustainable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from llmviewer.core.answer import Answer
from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen
from llmviewer.language.quantity import SERVED
from llmviewer.simulation import statistics as stats
from llmviewer.simulation.fleet import Fleet
from llmviewer.simulation.limits import Limit
from llmviewer.simulation.requests import Gaps, Records
from llmviewer.simulation.run import REFUSALS, Outcome
from llmviewer.simulation.statistics import around, in_order, of_replications, scaled
from llmviewer.simulation.traffic import Traffic

#: Metric -> statistic -> level -> bounds over value.
Edges: TypeAlias = Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "llmviewer.simulation/1"
#: Metrics of the result with percentiles; time between tokens is weighted by tokens, the others are of requests.
METRICS = tuple(SERVED)
#: Turn of a session that stands for itself and all later ones.
MOST_TURNS = 20


@frozen
class Setting:
    """Words for what was simulated.  engine: with version and backend.  scheduler, layout: of the pools."""

    model: str
    hardware: str
    engine: str
    efficiency: str
    schedulers: tuple[str, ...]
    layout: str
    workload: str


@frozen(slots=False, eq=False, repr=False)
class Simulation(Answer):
    """Requests of a run and of its replications, with the times of each.

    outcomes: one per replication.  warm_up_s: as requested [s]; None: found by a rule.  limits: on latencies.
    ratios: metric -> bounds over value by level, from the calibration; empty for ideal times.  max_request_rate: found
    by a search [1/s]; None: not searched.  rate_bounds: of that rate by level, from the calibration [1/s].  beyond: a
    run just above it.  throughput_ratios: bounds over value of the output tokens per second by level, from the
    calibration.  near_capacity: bounds over value of latencies near the capacity, for which it runs again; None: the
    ratios hold there too.
    """

    QUESTION: ClassVar[str] = "simulate"
    setting: Setting
    fleet: Fleet
    traffic: Traffic
    outcomes: tuple[Outcome, ...]
    warm_up_s: float | None = None
    limits: tuple[Limit, ...] = ()
    ratios: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    throughput_ratios: Mapping[str, Sequence[float]] = field(default_factory=dict)
    max_request_rate: float | None = None
    beyond: Simulation | None = None
    rate_bounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    near_capacity: Callable[[Simulation], Edges] | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Simulation: {self.setting.model} on {self.setting.hardware}, {len(self.records):,} requests>"

    @property
    def records(self) -> Records:
        """The requests of the first replication."""
        return self.outcomes[0].records

    @cached_property
    def saturated(self) -> bool:
        """Whether requests arrive faster than they can be answered, in most replications."""
        if not self.traffic.is_open:
            return False
        return sum(stats.is_saturated(one.records) for one in self.outcomes) * 2 > len(self.outcomes)

    @cached_property
    def windows(self) -> tuple[stats.Window, ...]:
        """The part of each replication whose requests count."""
        return tuple(map(self._window, self.outcomes))

    def _window(self, outcome: Outcome) -> stats.Window:
        records, traffic = outcome.records, self.traffic
        recorded = traffic.trace is not None and traffic.trace.arrival_s is not None
        if self.saturated or (self.warm_up_s is None and (traffic.burst or traffic.curve is not None or recorded)):
            return stats.whole_run(records)
        start_s = self.warm_up_s
        if start_s is None:
            start_s = max(stats.warm_up_s(records), stats.under_way_s(records) if traffic.is_open else 0.0)
        found = stats.steady_window(records, start_s, traffic.users)
        return found if stats.answers_within(records, found) else stats.whole_run(records)

    def latencies(self) -> dict[str, dict[str, float | None]]:
        """Mean and percentiles of every metric over all replications [s]."""
        return {name: dict(values) for name, values in self._summaries.items()}

    @cached_property
    def _summaries(self) -> dict[str, dict[str, float | None]]:
        return _latencies(self.outcomes, self.windows)

    @cached_property
    def broken(self) -> tuple[Limit, ...]:
        """Limits that are exceeded; all of them where the server is saturated."""
        return self.limits if self.saturated else stats.broken(self.latencies(), self.limits)

    @property
    def holds(self) -> bool:
        """Whether requests are answered, the load is sustained and all limits hold."""
        return self.answers and not self.saturated and not self.broken

    @property
    def answers(self) -> bool:
        """Whether any request is answered."""
        return self.completed > 0

    @property
    def completed(self) -> int:
        """Requests of the first replication that are answered."""
        return int(np.count_nonzero(~np.isnan(self.records.finish_s)))

    def mean_load(self, name: str) -> float:
        """A figure of `loads`, the mean over the replications."""
        return float(np.mean([one[name] for one in self.loads]))

    @cached_property
    def loads(self) -> tuple[dict[str, float], ...]:
        """Throughput, utilization and occupancy of each replication."""
        return tuple(stats.load(*pair) for pair in zip(self.outcomes, self.windows, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """The simulation object of the JSON schema."""
        accepted = self.records.refused == 0
        means = {name: self.mean_load(name) for name in self.loads[0]}
        return {
            "schema": SCHEMA,
            "requests": len(self.records),
            "completed": self.completed,
            "saturated": self.saturated,
            "request_rate": self.traffic.mean_rate,
            "max_request_rate": self.max_request_rate,
            **self.latencies(),
            "output_tokens_per_s": means["output_tokens_per_s"],
            "requests_per_s": means["requests_per_s"],
            "goodput_requests_per_s": self._goodput(),
            "running_mean": means["running_mean"],
            "waiting_mean": means["waiting_mean"],
            "kv_cache_occupancy_mean": means["kv_cache_occupancy_mean"],
            "preemptions": round(means["preemptions"]),
            "prefix_hit_rate": means["prefix_hit_rate"],
            **({"prefix_hit_rates": self._hits_by_tier()} if self.fleet.prefill.tiers else {}),
            **({"turns": self._turns()} if self.traffic.sessions is not None else {}),
            "warm_up_s": self.windows[0].start_s,
            "intervals": self.intervals(),
            "seed": self.traffic.seed,
            "replications": len(self.outcomes),
            "utilization": means["utilization"],
            **self._server(),
            "limits": [
                {
                    "metric": one.metric,
                    "statistic": one.statistic,
                    "limit_s": one.seconds,
                    "holds": one not in self.broken,
                }
                for one in self.limits
            ],
            "refused": {
                reason: int(np.count_nonzero(self.records.refused == index))
                for index, reason in enumerate(REFUSALS)
                if index and not accepted.all()
            },
            "interrupted": not self.outcomes[0].completed,
            **({} if self.beyond is None else {"beyond": self.beyond.ends()}),
            "notes": list(self.notes),
        }

    def ends(self) -> dict[str, Any]:
        """Limits that this run does not keep, a growing queue among them, and how full its KV cache gets."""
        latencies, last_s = self.latencies(), stats.last_begin_s(self.records)
        crowded = replace(self.windows[0], start_s=0.5 * last_s, end_s=last_s)
        return {
            "request_rate": self.traffic.mean_rate,
            "saturated": self.saturated,
            "broken": []
            if self.saturated
            else [
                {"metric": one.metric, "statistic": one.statistic, "value_s": latencies[one.metric][one.statistic]}
                for one in self.broken
            ],
            "completed": self.completed,
            "kv_cache_occupancy_mean": stats.load(self.outcomes[0], crowded)["kv_cache_occupancy_mean"],
            "preemptions": round(self.mean_load("preemptions")),
        }

    def _turns(self) -> list[dict[str, Any]]:
        """Means of each turn of the sessions over all replications; those from MOST_TURNS on together."""
        pairs = list(zip((one.records for one in self.outcomes), self.windows, strict=True))

        def of(name: str) -> Array:
            return np.concatenate([getattr(records, name)[window.chosen] for records, window in pairs])

        turn = np.minimum(of("turn"), MOST_TURNS)
        means = {name: of(name) for name in ("input_len", "cached_tokens", "ttft_s", "tpot_s", "e2e_s")}
        return [
            {
                "turn": at,
                "requests": int(np.count_nonzero(turn == at)),
                **{name: stats.summary(values[turn == at])["mean"] for name, values in means.items()},
            }
            for at in np.unique(turn).tolist()
        ]

    def _hits_by_tier(self) -> dict[str, float]:
        """Share of the prompt tokens of the first replication that each tier of the cache had, the device first."""
        records, chosen = self.records, self.windows[0].chosen
        prompts = max(float(records.input_len[chosen].sum()), 1.0)
        shares = {
            one.name: float(self._tokens_of(one.name)[chosen].sum()) / prompts for one in self.fleet.prefill.tiers
        }
        found = float(records.cached_tokens[chosen].sum()) / prompts
        return {"device": found - sum(shares.values()), **shares}

    def _tokens_of(self, tier: str) -> Array:
        """Prompt tokens that each request of the first replication loaded from a tier."""
        found: Array = np.zeros(len(self.records)) + getattr(self.records, f"{tier}_tokens")
        return found

    def _server(self) -> dict[str, Any]:
        """Server and load in words, and the number of devices."""
        return {
            "model": self.setting.model,
            "hardware": self.setting.hardware,
            "engine": self.setting.engine,
            "efficiency": self.setting.efficiency,
            "schedulers": list(self.setting.schedulers),
            "layout": self.setting.layout,
            "devices": self.fleet.devices,
            "workload": self.setting.workload,
        }

    def _goodput(self) -> float:
        """Requests per second within all limits, each request held to their seconds."""
        rates = [
            np.count_nonzero(stats.meets(one.records, window.chosen, self.limits)) / max(window.length_s, 1e-12)
            for one, window in zip(self.outcomes, self.windows, strict=True)
        ]
        return float(np.mean(rates))

    def intervals(self) -> dict[str, dict[str, Any]]:
        """Intervals by source, metric, statistic and level [s]: from replications or parts of one run, and from the
        errors of the calibration; those of output tokens per second and of a searched rate by level [1/s]."""
        pairs, latencies = self._parts(), self.latencies()
        parts = [_latencies((one,), (window,)) for one, window in pairs]
        tokens = [stats.output_tokens_per_s(one.records, window) for one, window in pairs if window.length_s]
        mean = self.mean_load("output_tokens_per_s")
        throughput = {level: [mean * ratio for ratio in bounds] for level, bounds in self.throughput_ratios.items()}
        return {
            "replications": {
                **in_order(
                    {name: of_replications([part[name] for part in parts], latencies[name]) for name in METRICS},
                    latencies,
                ),
                "output_tokens_per_s": around(tokens, mean),
            },
            "calibration": {
                **in_order(
                    {name: scaled(latencies[name], own, self._edges.get(name)) for name, own in self.ratios.items()},
                    latencies,
                ),
                **({"output_tokens_per_s": throughput} if throughput else {}),
                **({"max_request_rate": dict(self.rate_bounds)} if self.rate_bounds else {}),
            },
        }

    @cached_property
    def _edges(self) -> Edges:
        return {} if self.near_capacity is None else self.near_capacity(self)

    def _parts(self) -> list[tuple[Outcome, stats.Window]]:
        """Replications with their windows; of a single run, its parts in order of arrival, unless its queue grows."""
        if len(self.outcomes) > 1 or self.saturated:
            return list(zip(self.outcomes, self.windows, strict=True))
        return [(self.outcomes[0], part) for part in stats.parts(self.records, self.windows[0])]

    def to_frame(self) -> pd.DataFrame:
        """One row per request of the first replication."""
        import pandas as pd

        return pd.DataFrame(self.request_columns())

    def request_columns(self) -> dict[str, Any]:
        """Column name -> values, one per request of the first replication."""
        records = self.records
        status = np.where(np.isnan(records.finish_s), "unfinished", "completed").astype(object)
        status[records.refused > 0] = "refused"
        names = ("arrival_s", "input_len", "output_len", "queue_s", "ttft_s", "tpot_s", "e2e_s")
        more = ("cached_tokens", "preemptions", "replica")
        columns = {name: getattr(records, name) for name in (*names, *more)}
        if np.any(records.turn):
            columns |= {"session": records.session, "turn": records.turn}
        columns |= {f"{one.name}_tokens": self._tokens_of(one.name) for one in self.fleet.prefill.tiers}
        return {"request": np.arange(len(records)), **columns, "status": status}

    def request_rows(self) -> list[dict[str, Any]]:
        """One row per request of the first replication; None for what has not happened."""
        columns = {name: values.tolist() for name, values in self.request_columns().items()}
        return [
            {name: _cell(value) for name, value in zip(columns, cells, strict=True)}
            for cells in zip(*columns.values(), strict=True)
        ]


def _cell(value: Any) -> Any:
    """The value of a cell; None for what has not happened."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _latencies(outcomes: Sequence[Outcome], windows: Sequence[stats.Window]) -> dict[str, dict[str, float | None]]:
    """Mean and percentiles of every metric in these windows [s]."""
    pairs = list(zip(outcomes, windows, strict=True))

    def of(name: str) -> Array:
        return np.concatenate([getattr(one.records, name)[window.chosen] for one, window in pairs])

    gaps = [_within(one.gaps, window) for one, window in pairs]
    tokens = stats.summary(np.concatenate([gap for gap, _ in gaps]), np.concatenate([weight for _, weight in gaps]))
    return {name: tokens if name == "itl_s" else stats.summary(of(name)) for name in METRICS}


def _within(gaps: Gaps, window: stats.Window) -> tuple[Array, Array]:
    """Times between tokens that end in a window, and their weights."""
    kept = (gaps.at_s >= window.start_s) & (gaps.at_s <= window.end_s)
    return gaps.gap_s[kept], gaps.weights[kept]
