"""`--expert-parallel-size`: whole experts on each device."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.techniques.parallel.devices import how_many, shared
from llmviewer.techniques.technique import Change, Technique


def _make(text: str) -> Change:
    devices = how_many("--expert-parallel-size", text)

    def change(system: System) -> System:
        p = system.parallelism
        if devices not in (1, p.tensor * p.data):
            raise UserError(
                f"--expert-parallel-size {devices}: experts are dealt to the devices of the tensor and data groups; "
                f"allowed: 1, or {p.tensor * p.data} = tensor {p.tensor} x data {p.data}"
            )
        return shared(system, replace(p, expert=devices))

    return change


TECHNIQUE = Technique(
    name="expert_parallel_size",
    kind="parallelism",
    summary="Deals whole experts to the devices; with replicas, tokens travel to their experts and back.",
    formula="experts n/e on a device; the fullest one computes max(1/e, 1/active) of all rows and reads as many of the "
    "active experts, N(1 - (1 - k/N)^T) over the T tokens of all replicas; replicas exchange tokens x k rows twice by "
    "all-to-all, (e-1)/e of them over the link",
    source="GShard arXiv 2006.16668; vLLM --enable-expert-parallel, "
    "https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/",
    example="llmviewer analyze mixtral-8x7b --hardware h100 -tp 4 --expert-parallel-size 4",
    make=_make,
)
