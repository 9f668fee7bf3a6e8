"""The system change of the batching methods, and its checks."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.serving.batching import STATIC, Batching
from llmviewer.techniques.technique import Change


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
    if not (batching.fills_pipeline and own.fills):
        return system
    return replace(system, parallelism=replace(own, microbatches=own.pipeline))


def check_mixable(batching: str, system: System) -> None:
    """Raise UserError for micro-batches, and for schemes whose passes cannot be mixed or separated."""
    if system.parallelism.microbatches > 1:
        parts = "GPU batches of --offload" if system.block else "micro-batches of a pipeline"
        raise UserError(f"--batching {batching}: {parts} are not modelled with it; remove one of them")
    if system.scheme is not None and system.scheme.alone:
        raise UserError(f"--batching {batching} and {system.scheme.name}: {system.scheme.alone}; remove one of them")
