"""`--batching METHOD,...`: how sequences share a replica; static batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.serving.batching import STATIC, Batching, BatchingFacts
from llmviewer.serving.scheduling import SCHEDULERS, USUAL
from llmviewer.techniques.technique import Change, Whole, technique


def with_batching(batching: Batching) -> Change:
    """The change that sets the batching method; no change for the plain static batch."""
    return lambda system: system if batching is STATIC else replace(_filled(system, batching), batching=batching)


def _filled(system: System, batching: Batching) -> System:
    """The system with a micro-batch in every pipeline stage, if sequences start one by one and none were requested.

    Engines keep as many batches in flight as there are stages: max_concurrent_batches in
    https://github.com/vllm-project/vllm/blob/main/vllm/v1/executor/multiproc_executor.py, and micro-batches of
    https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/pyexecutor/py_executor.py.
    """
    own = system.parallelism
    if system.block:
        raise UserError(f"--batching {batching.name}: --offload gpu_batches divides a static batch; remove one of them")
    if not (batching.fills_pipeline and own.fills and SCHEDULERS[system.engine.scheduler or USUAL].pipelined):
        return system
    return replace(system, parallelism=replace(own, microbatches=own.pipeline))


def check_mixable(batching: str, system: System) -> None:
    """Raise UserError for micro-batches, and for schemes whose passes cannot be mixed or separated."""
    if system.parallelism.microbatches > 1:
        parts = "GPU batches of --offload" if system.block else "micro-batches of a pipeline"
        raise UserError(f"--batching {batching}: {parts} are not modelled with it; remove one of them")
    if system.scheme is not None and system.scheme.alone:
        raise UserError(f"--batching {batching} and {system.scheme.name}: {system.scheme.alone}; remove one of them")


@frozen
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
                f"--batching static: longest is {quoted(f'{self.longest:g}')}, the mean output is {mean:g} tokens; "
                "allowed: at least the mean"
            )
        return replace(request, output_len=0.0 * request.output_len + self.longest)

    def facts(self, request: Request) -> BatchingFacts:
        """The longest answer [tokens], and the share of decode slots that generate nothing."""
        steps = max(self.longest - 1.0, 1.0)
        return {"longest_output_tokens": self.longest, "empty_slots": (self.longest - request.output_len) / steps}


@technique(
    "static",
    where="--batching static",
    kind="batching",
    formula="E2E = prefill of the batch + (longest - 1) steps of the whole batch; throughput = batch x mean output / "
    "E2E; slots of ended sequences stay empty for (longest - mean) / (longest - 1) of the steps",
    source="Orca, OSDI 2022, https://www.usenix.org/conference/osdi22/presentation/yu",
    example="llama-2-13b --hardware a100-sxm --batch-size 16 --batching static,longest=512",
)
def static(
    longest: Annotated[
        float | None, Whole("tokens of the longest answer; output_len is the mean", 1, 2.0**24, unset="output_len")
    ] = None,
) -> Change:
    """All prompts are prefilled together, and the whole batch decodes until the longest answer ends."""
    return with_batching(STATIC if longest is None else PaddedStatic(longest=longest))
