"""`--batching static`: one batch from start to end, its slots held until the longest answer is there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.workload import Request
from llmviewer.serving.batching import STATIC, Batching, Facts
from llmviewer.techniques.batching.sharing import sharing
from llmviewer.techniques.technique import Change, Parameter, Technique, numbers

WHERE = "--batching static"
LONGEST = Parameter(name="longest", low=1, high=2.0**24, whole=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestMember(Batching):
    """A static batch of answers of unequal length: output_len is their mean, `longest` [tokens] the longest.

    Every step computes the whole batch, ended sequences included (padding), until the longest has ended.  TTFT, TPOT
    and E2E are those of the longest member, that is of the batch; output_len tokens of each sequence count.
    Source: Orca (OSDI 2022), request-level scheduling, https://www.usenix.org/conference/osdi22/presentation/yu
    """

    longest: float

    def lasting(self, request: Request) -> Request:
        """The request with answers as long as the longest."""
        most = float(np.max(request.output_len))
        if most > self.longest:
            raise UserError(
                f"{WHERE}: longest is {quoted(f'{self.longest:g}')}, the mean output is {most:g} tokens; "
                "allowed: no less than the mean"
            )
        return replace(request, output_len=0.0 * request.output_len + self.longest)

    def facts(self, request: Request) -> Facts:
        """The longest answer, and the share of the slots' decode steps in which nothing is generated."""
        steps = max(self.longest - 1.0, 1.0)
        return {"longest_output_tokens": self.longest, "empty_slots": (self.longest - request.output_len) / steps}


def _make(text: str) -> Change:
    if not text:
        return sharing(STATIC)
    return sharing(LongestMember(longest=numbers(WHERE, text, (LONGEST,))["longest"]))


TECHNIQUE = Technique(
    name="static",
    kind="batching",
    summary="One batch from start to end: all prompts together, then steps until the longest answer is there.",
    parameters={
        "longest": "tokens of the longest answer; output_len, which is the mean one, unless said",
    },
    formula="E2E = prefill of the batch + (longest - 1) steps of the whole batch; throughput = batch x mean output / "
    "E2E; slots of ended sequences stand empty, (longest - mean) / (longest - 1) of the steps",
    source="Orca, OSDI 2022, https://www.usenix.org/conference/osdi22/presentation/yu",
    example="llmviewer analyze llama-2-13b --hardware a100-sxm --batch-size 16 --batching static,longest=512",
    make=_make,
)
