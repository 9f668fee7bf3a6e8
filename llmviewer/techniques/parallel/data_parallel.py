"""`--data-parallel-size`: replicas that divide the batch."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.techniques.parallel.devices import how_many, shared
from llmviewer.techniques.technique import Change, Technique


def _make(text: str) -> Change:
    replicas = how_many("--data-parallel-size", text)
    return lambda system: shared(system, replace(system.parallelism, data=replicas))


TECHNIQUE = Technique(
    name="data_parallel_size",
    kind="parallelism",
    summary="Runs n replicas, each on devices of its own; the fullest serves ceil(batch / n) sequences.",
    formula="counts, times and memory are those of the fullest replica: batch ceil(B / n), weights whole",
    source="vLLM --data-parallel-size, https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/",
    example="llmviewer analyze llama-3.1-8b --hardware h100 --batch-size 64 --data-parallel-size 4",
    make=_make,
)
