"""`--batching static`: one batch whose slots stay occupied until the longest answer ends."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.workload import Request
from llmviewer.serving.batching import STATIC, Batching, BatchingFacts
from llmviewer.techniques.batching.sharing import with_batching
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_numbers

WHERE = "--batching static"
LONGEST = Parameter(name="longest", low=1, high=2.0**24, whole=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedStatic(Batching):
    """A static batch of answers of unequal length: output_len is the mean, `longest` the longest [tokens].

    Every step computes the whole batch, including ended sequences (padding), until the longest answer ends.  TTFT, TPOT
    and E2E are those of the longest answer; throughput counts output_len tokens per sequence.
    Source: Orca (OSDI 2022), request-level scheduling, https://www.usenix.org/conference/osdi22/presentation/yu
    """

    longest: float

    def padded(self, request: Request) -> Request:
        """The request with every answer as long as the longest."""
        mean = float(np.max(request.output_len))
        if mean > self.longest:
            raise UserError(
                f"{WHERE}: longest is {quoted(f'{self.longest:g}')}, the mean output is {mean:g} tokens; "
                "allowed: at least the mean"
            )
        return replace(request, output_len=0.0 * request.output_len + self.longest)

    def facts(self, request: Request) -> BatchingFacts:
        """The longest answer [tokens], and the share of decode slots that generate nothing."""
        steps = max(self.longest - 1.0, 1.0)
        return {"longest_output_tokens": self.longest, "empty_slots": (self.longest - request.output_len) / steps}


def _make(text: str) -> Change:
    if not text:
        return with_batching(STATIC)
    return with_batching(PaddedStatic(longest=parse_numbers(WHERE, text, (LONGEST,))["longest"]))


TECHNIQUE = Technique(
    name="static",
    kind="batching",
    summary="All prompts are prefilled together, and the whole batch decodes until the longest answer ends.",
    parameters={
        "longest": "tokens of the longest answer; output_len is the mean (default: output_len)",
    },
    formula="E2E = prefill of the batch + (longest - 1) steps of the whole batch; throughput = batch x mean output / "
    "E2E; slots of ended sequences stay empty for (longest - mean) / (longest - 1) of the steps",
    source="Orca, OSDI 2022, https://www.usenix.org/conference/osdi22/presentation/yu",
    example="llmviewer analyze llama-2-13b --hardware a100-sxm --batch-size 16 --batching static,longest=512",
    make=_make,
)
