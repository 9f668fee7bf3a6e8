"""`--batching continuous`: a new sequence starts whenever another ends (in-flight batching)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.workload import Request
from llmviewer.serving.batching import Batching, Replica, Running, prompts_per_pass
from llmviewer.techniques.batching.sharing import with_batching
from llmviewer.techniques.technique import Change, Technique


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuous(Batching):
    """Closed-loop users: each sends the next request when the last is answered; prefill runs between decode steps.

    A of U users run, as many as the KV cache holds.  While one request is answered, each of the other A - 1 users
    starts one: cycle = p + (A - 1) p + n t for a prefill of p and n steps of t.  The engine sets which share of the
    others' prefill falls between a sequence's tokens; the rest precedes its first token.  Arrivals are evenly spaced.
    """

    name: str = "continuous"
    fills_pipeline: ClassVar[bool] = True

    def admit(self, request: Request, replica: Replica) -> Running | None:
        """Sequences that fit in the KV cache."""
        places = replica.max_sequences(request, replica.token_budget)
        running = replace(request, batch_size=np.minimum(request.batch_size, places))
        return Running(request=running, prompts_per_pass=prompts_per_pass(running))


def _make(text: str) -> Change:
    if text:
        raise UserError(f"--batching continuous takes no parameter, not {quoted(text)}")
    return with_batching(Continuous())


TECHNIQUE = Technique(
    name="continuous",
    kind="batching",
    summary="A new sequence starts whenever another ends, and prompts are prefilled between decode steps; batch_size "
    "users each send their next request when the last is answered.",
    formula="A of U users run, in a pipeline as one micro-batch per stage; cycle = A p + n t (p: prefill of a prompt "
    "on the slowest stage, n steps of t, the larger of all stages and the slowest times their number); "
    "TPOT = t + phi (A - 1) p / n, "
    "TTFT = p + (1 - phi)(A - 1) p + (U/A - 1) cycle; phi: share of others' prefill between a sequence's tokens",
    source="Orca, OSDI 2022, https://www.usenix.org/conference/osdi22/presentation/yu; vLLM arXiv 2309.06180",
    example="llmviewer analyze llama-2-13b --hardware a100-sxm --batch-size 16 --batching continuous",
    make=_make,
)
