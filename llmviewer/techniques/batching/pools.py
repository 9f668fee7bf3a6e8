"""Prefill and decode pools with links between them: how fast each is, and the batch that results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmviewer.core.counts import Array, Count

#: What may bound the throughput; the first of equals.
BOUNDS = ("prefill", "link", "decode", "users")
#: Batches tried at once in the search for the one that results, and rounds of it: to 1 in 16^6.
TRIED, ROUNDS = 16, 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """What a request asks of either pool and of the links between them, per point.

    users: requests at once in the whole.  prefill, decode: instances.  prefill_s: of a pass of `together` prompts.
    transfer_s: of the cache of a prompt, on one of as many links as the smaller pool has instances.
    places: sequences that a decode instance has room for.
    """

    users: Count
    prefill: float
    decode: float
    prefill_s: Count
    transfer_s: Count
    places: Count
    together: Count = 1.0

    @property
    def ways(self) -> float:
        """Transfers at once: an instance sends or receives one at a time."""
        return min(self.prefill, self.decode)

    def rates(self, decode_s: Count) -> tuple[Array, ...]:
        """Requests per second that each of BOUNDS allows, where decode steps of a request take decode_s."""
        with np.errstate(divide="ignore"):
            allowed = (
                self.prefill * self.together / self.prefill_s,
                self.ways / np.asarray(self.transfer_s),
                self.decode * self.places / np.asarray(decode_s),
                self.users / (self.prefill_s + self.transfer_s + decode_s),
            )
        return tuple(np.asarray(rate, dtype=np.float64) for rate in np.broadcast_arrays(*allowed))

    def batch(self, decode_s: Callable[[Array], Array]) -> Array:
        """Sequences b that decode at once on each decode instance.

        X(b) = D b / t_d(b) requests a second leave the decode pool and rise with b.  b is the largest at which neither
        prefill nor the links fall behind, X <= P / t_p and X <= W / t_x, the users suffice, X (t_p + t_x) + D b <= U,
        and there is room.  decode_s: t_d, all decode steps of a request, of batches with one row per try.
        """
        first_s = np.asarray(self.prefill_s + self.transfer_s)
        prefill, link, _, _ = self.rates(0.0)
        high = np.minimum(self.users / self.decode, self.places) * np.ones_like(first_s)
        low = np.zeros_like(high)
        for _ in range(ROUNDS):
            shares = np.arange(1.0, TRIED + 1.0)[:, None] / TRIED
            tried = low + (high - low) * shares
            with np.errstate(divide="ignore"):
                rate = self.decode * tried / decode_s(np.maximum(tried, 1.0))
            enough = (rate <= np.minimum(prefill, link)) & (rate * first_s + self.decode * tried <= self.users)
            found = np.cumprod(enough, axis=0).sum(axis=0)  # rising: the first that fails ends them
            step = (high - low) / TRIED
            low, high = low + step * found, np.minimum(low + step * (found + 1.0), high)
        return np.asarray(np.maximum(low, 1.0))
