"""`--batching continuous`: a sequence begins whenever another ends (in-flight batching)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.workload import Request
from llmviewer.serving.batching import Batching, Replica, Running, together
from llmviewer.techniques.batching.sharing import sharing
from llmviewer.techniques.technique import Change, Technique


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuous(Batching):
    """As many users, each of whom sends a request when the one before is answered; prompts go between decode steps.

    Of U users A run, as many as the cache holds.  While one request is answered each of the other A - 1 begins one:
    cycle = p + (A - 1) p + n t for a prefill of p and n steps of t.  The engine says what share of the others' prefill
    lies between a sequence's tokens; the rest comes before its first.  Arrivals are spread evenly.
    """

    name: str = "continuous"

    def admit(self, request: Request, machine: Replica) -> Running | None:
        """As many sequences as the cache holds at once."""
        places = machine.places(request, machine.token_budget)
        running = replace(request, batch_size=np.minimum(request.batch_size, places))
        return Running(request=running, together=together(running))


def _make(text: str) -> Change:
    if text:
        raise UserError(f"--batching continuous takes no parameter, not {quoted(text)}")
    return sharing(Continuous())


TECHNIQUE = Technique(
    name="continuous",
    kind="batching",
    summary="A sequence begins whenever another ends, prompts are prefilled between decode steps; batch_size "
    "users each send a request when the one before is answered.",
    formula="of U users A run; cycle = A p + n t (p: prefill of a prompt, n steps of t); TPOT = t + phi (A - 1) p / n, "
    "TTFT = p + (1 - phi)(A - 1) p + (U/A - 1) cycle; phi: share of others' prefill between a sequence's tokens",
    source="Orca, OSDI 2022, https://www.usenix.org/conference/osdi22/presentation/yu; vLLM arXiv 2309.06180",
    example="llmviewer analyze llama-2-13b --hardware a100-sxm --batch-size 16 --batching continuous",
    make=_make,
)
