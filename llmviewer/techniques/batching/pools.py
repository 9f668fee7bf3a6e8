"""Prefill and decode pools with links between them: their throughput, and the decode batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmviewer.core.counts import Array, Count

#: Resources that may bound the throughput; ties go to the first.
BOUNDS = ("prefill", "link", "decode", "users")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """Load of both pools and of the links between them, per point.

    users: concurrent requests of the whole system.  prefill, decode: instances.
    transfer_s: KV-cache transfer of one prompt over one of as many links as the smaller pool has instances [s].
    places: sequences that fit on a decode instance.  prompts_per_pass: prompts of a prefill pass.
    """

    users: Count
    prefill: float
    decode: float
    transfer_s: Count
    places: Count
    prompts_per_pass: Count = 1.0

    @property
    def links(self) -> float:
        """Concurrent transfers: each instance sends or receives one at a time."""
        return min(self.prefill, self.decode)

    @property
    def batch(self) -> Count:
        """Sequences of a full decode instance: its part of the users, as many as its KV cache stores.

        It depends on no rate of the chip.  Were it the mean batch X t_d / D instead, a faster prefill would let more
        sequences decode at once and slow down the tokens of each, although nothing became slower.
        """
        return np.maximum(np.minimum(self.users / self.decode, self.places), 1.0)

    def rates(self, prefill_s: Count, decode_s: Count) -> tuple[Array, ...]:
        """Requests per second that each of BOUNDS allows.

        prefill_s: a prefill pass [s].  decode_s: all decode steps of a request in a batch of `batch` sequences [s].
        """
        with np.errstate(divide="ignore"):
            allowed = (
                self.prefill * self.prompts_per_pass / prefill_s,
                self.links / np.asarray(self.transfer_s),
                self.decode * self.places / np.asarray(decode_s),
                self.users / (prefill_s + self.transfer_s + decode_s),
            )
        return tuple(np.asarray(rate, dtype=np.float64) for rate in np.broadcast_arrays(*allowed))
