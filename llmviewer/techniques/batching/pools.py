"""Prefill and decode pools with links between them: their throughput, and the resulting decode batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmviewer.core.counts import Array, Count

#: Resources that may bound the throughput; ties go to the first.
BOUNDS = ("prefill", "link", "decode", "users")
#: Batches per iteration of the search for the decode batch, and iterations: precision 1 in 16^6.
CANDIDATES, SEARCH_ITERATIONS = 16, 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """Load of both pools and of the links between them, per point.

    users: concurrent requests of the whole system.  prefill, decode: instances.
    prefill_s: a prefill pass of `prompts_per_pass` prompts [s].  places: sequences that fit on a decode instance.
    transfer_s: KV-cache transfer of one prompt over one of as many links as the smaller pool has instances [s].
    """

    users: Count
    prefill: float
    decode: float
    prefill_s: Count
    transfer_s: Count
    places: Count
    prompts_per_pass: Count = 1.0

    @property
    def links(self) -> float:
        """Concurrent transfers: each instance sends or receives one at a time."""
        return min(self.prefill, self.decode)

    def rates(self, decode_s: Count) -> tuple[Array, ...]:
        """Requests per second that each of BOUNDS allows.  decode_s: all decode steps of a request [s]."""
        with np.errstate(divide="ignore"):
            allowed = (
                self.prefill * self.prompts_per_pass / self.prefill_s,
                self.links / np.asarray(self.transfer_s),
                self.decode * self.places / np.asarray(decode_s),
                self.users / (self.prefill_s + self.transfer_s + decode_s),
            )
        return tuple(np.asarray(rate, dtype=np.float64) for rate in np.broadcast_arrays(*allowed))

    def batch(self, decode_s: Callable[[Array], Array]) -> Array:
        """Sequences b that decode concurrently on each decode instance.

        The decode pool completes X(b) = D b / t_d(b) requests/s, which rises with b.  b is the largest batch at which
        prefill and links keep up, X <= P / t_p and X <= W / t_x, there are enough users, X (t_p + t_x) + D b <= U, and
        the KV cache fits.  decode_s: batches, one row per candidate -> t_d, all decode steps of a request [s].
        """
        first_s = np.asarray(self.prefill_s + self.transfer_s)
        prefill, link, _, _ = self.rates(0.0)
        high = np.minimum(self.users / self.decode, self.places) * np.ones_like(first_s)
        low = np.zeros_like(high)
        for _ in range(SEARCH_ITERATIONS):
            shares = np.arange(1.0, CANDIDATES + 1.0)[:, None] / CANDIDATES
            tried = low + (high - low) * shares
            with np.errstate(divide="ignore"):
                rate = self.decode * tried / decode_s(np.maximum(tried, 1.0))
            enough = (rate <= np.minimum(prefill, link)) & (rate * first_s + self.decode * tried <= self.users)
            found = np.cumprod(enough, axis=0).sum(axis=0)  # X rises with b: stop at the first that fails
            step = (high - low) / CANDIDATES
            low, high = low + step * found, np.minimum(low + step * (found + 1.0), high)
        return np.asarray(np.maximum(low, 1.0))
