"""Synthetic servers and loads for tests of the event loop: prices that are easy to work out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmviewer.serving.scheduling import SCHEDULERS
from llmviewer.simulation.fleet import Fleet, Pool
from llmviewer.simulation.requests import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Prices of a step: `step` [s], and so much per decoding sequence, cached token, prompt token and pair [s].

    shared_step, shared_token: the part of `step` and `prompt` that is work for all ranks.  shares: of pipeline stages.
    """

    step: float = 0.008
    sequence: float = 1e-5
    cached: float = 1.5e-8
    prompt: float = 2e-5
    pair: float = 1e-10
    tokens_per_round: float = 1.0
    shared_step: float = 0.0
    shared_token: float = 0.0
    shares: tuple[float, ...] = (1.0,)

    def stages(self, sequences: int, tokens: int) -> tuple[float, ...]:
        return self.shares

    def shared_s(self, sequences: float, tokens: float) -> float:
        return self.shared_step + self.shared_token * tokens

    def decode_line(self, sequences: int, context: float) -> tuple[float, float, float]:
        return self.step + self.sequence * sequences, self.cached, float("inf")

    def mixed_s(self, sequences: int, context: float, tokens: int, pairs: float, prompts: int) -> float:
        decoding = self.sequence * sequences + self.cached * context if sequences else 0.0
        return self.step + decoding + self.prompt * tokens + self.pair * pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Room of a replica: by default more than any test needs."""

    blocks: int = 10**6
    block_tokens: int = 16
    sequence_blocks: int = 0
    max_sequences: int = 256
    token_budget: int = 8192


def fleet(prices: Linear | None = None, room: Cache | None = None, scheduler: str = "vllm", **more: object) -> Fleet:
    """A fleet of one pool."""
    pool = Pool(prices=prices or Linear(), room=room or Cache(), scheduler=SCHEDULERS[scheduler], **more)  # type: ignore[arg-type]
    return Fleet(prefill=pool)


def requests(
    arrivals: Sequence[float], prompts: int | Sequence[int], answers: int | Sequence[int], concurrency: int = 0
) -> Requests:
    """Requests at these times."""
    count = len(arrivals)
    lengths = (np.broadcast_to(np.asarray(one, dtype=np.int64), count).copy() for one in (prompts, answers))
    return Requests(
        arrival_s=np.asarray(arrivals, dtype=np.float64),
        input_len=next(lengths),
        output_len=next(lengths),
        concurrency=concurrency,
    )


def poisson(rate: float, count: int, prompts: int = 1155, answers: int = 211, seed: int = 0) -> Requests:
    """Requests of a Poisson process."""
    return requests(np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count)), prompts, answers)
