"""`--pipeline-parallel-size`: stages of layers on devices one after another."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.techniques.parallel.devices import MOST, shared
from llmviewer.techniques.technique import Change, Parameter, Technique, numbers

_SIZES = (
    Parameter(name="stages", low=1, high=MOST, whole=True),
    Parameter(name="microbatches", default=1, low=1, high=MOST, whole=True),
)


def _make(text: str) -> Change:
    sizes = numbers("--pipeline-parallel-size", text, _SIZES)
    stages, parts = int(sizes["stages"]), int(sizes["microbatches"])
    return lambda system: shared(system, replace(system.parallelism, pipeline=stages, microbatches=parts))


TECHNIQUE = Technique(
    name="pipeline_parallel_size",
    kind="parallelism",
    summary="Deals layers to p stages; micro-batches follow each other through them.",
    formula="fullest stage ceil(layers/p) layers, embedding on the first, head on the last; a stage sends tokens x "
    "hidden to the next; m micro-batches of B/m: prefill takes the sum over stages + (m-1) x the slowest stage, "
    "(p-1)/(m+p-1) of it idle; a decode step the larger of the sum over stages and m x the slowest",
    source="GPipe arXiv 1811.06965; Megatron-LM arXiv 2104.04473",
    example="llmviewer analyze llama-2-70b --hardware h100 --batch-size 32 --pipeline-parallel-size 4,microbatches=4",
    make=_make,
)
