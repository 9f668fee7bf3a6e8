"""The load and the limits that a sizing is for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.models.images import Seen
from llmviewer.simulation.limits import QUANTILES, Limit

#: Standard deviations of a normal distribution at the quantiles of limits; the mean has none.
DEVIATIONS: Mapping[str, float] = {"mean": 0.0, "p50": 0.0, "p90": 1.282, "p95": 1.645, "p99": 2.326}


@frozen
class Workload:
    """Requests per second or users, mean lengths in tokens, and limits on latencies.

    users: of a closed loop, who each send a request when their last one is answered, and pause think_s in the mean
    before it; 0: requests arrive at `rate`, which is 0 with users.
    A limit of a metric that the user did not set is infinite, of the mean.  repeated: tokens of a prompt that earlier
    turns of its session had, in the mean; they are taken to be in the cache.  images: of each prompt, whose tokens are
    among its own.
    """

    rate: float
    input_len: float
    output_len: float
    limits: tuple[Limit, ...] = ()
    users: int = 0
    think_s: float = 0.0
    repeated: float = 0.0
    images: tuple[Seen, ...] = ()

    @property
    def steps(self) -> float:
        """Tokens of an answer after the first."""
        return max(self.output_len - 1.0, 0.0)

    def limit(self, metric: str) -> float:
        """The limit of a latency [s]; infinite if there is none."""
        return min((one.seconds for one in self.limits if one.metric == metric), default=np.inf)

    def statistic(self, metric: str) -> str:
        """The statistic that the limit of a latency holds: mean, p50, p90, p95 or p99."""
        return next((one.statistic for one in self.limits if one.metric == metric), "mean")

    def deviations(self, metric: str) -> float:
        """Standard deviations of a normal distribution between its mean and the limited statistic."""
        return DEVIATIONS[self.statistic(metric)]

    def exceeding(self, metric: str) -> float:
        """Share of requests that may exceed the limit: 0.01 for p99; 0 for the mean, which is handled apart."""
        return 1.0 - QUANTILES[name] if (name := self.statistic(metric)) in QUANTILES else 0.0
