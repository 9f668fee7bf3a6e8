"""`--sequence-parallel`: norms and residual sums shared by tokens between the layers' collectives."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, unknown
from llmviewer.techniques.parallel.devices import shared
from llmviewer.techniques.technique import Change, Technique


def _make(text: str) -> Change:
    if text != "on":
        raise unknown("sequence_parallel", text, ("on", "off"))

    def change(system: System) -> System:
        if system.parallelism.tensor == 1:
            raise UserError("--sequence-parallel shares tokens in a tensor group; it needs --tensor-parallel-size > 1")
        return shared(system, replace(system.parallelism, sequence=True))

    return change


TECHNIQUE = Technique(
    name="sequence_parallel",
    kind="parallelism",
    summary="Turns each all-reduce into a reduce-scatter and an all-gather; norms and residual sums are shared.",
    formula="reduce-scatter and all-gather send (n-1)/n of tokens x hidden each: as many bytes as the all-reduce "
    "(where a parallel layer has two norms, one gather more; low-bit inputs gather fewer); "
    "norms, residual sums and the stream 1/n",
    source="Reducing Activation Recomputation, arXiv 2205.05198",
    example="llmviewer analyze llama-2-70b --hardware h100 -tp 4 --sequence-parallel on",
    make=_make,
)
