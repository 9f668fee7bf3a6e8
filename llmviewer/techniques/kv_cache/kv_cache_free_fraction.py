"""`--kv-cache-free-gpu-memory-fraction`: the budget as TensorRT-LLM counts it."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.core.ir import as_built
from llmviewer.techniques.technique import Change, Parameter, Technique, numbers

_FRACTION = Parameter(name="fraction", low=1e-6, high=1.0)


def _make(text: str) -> Change:
    """The cache may take this fraction of what weights, activations and framework leave of the capacity.

    vLLM (--gpu-memory-utilization) counts a fraction of the whole capacity for everything; this rule takes its place.
    """
    fraction = numbers("--kv-cache-free-gpu-memory-fraction", text, (_FRACTION,))["fraction"]
    applied = AppliedTechnique(name=f"kv_budget({fraction:g} of free)", make=lambda _: as_built)

    def change(system: System) -> System:
        return replace(system, cache_fraction=fraction, passes=(*system.passes, applied))

    return change


TECHNIQUE = Technique(
    name="kv_cache_free_gpu_memory_fraction",
    kind="kv cache",
    summary="The cache may take a fraction of the free memory, instead of all tensors one of the whole memory.",
    formula="cache <= fraction (capacity - weights - activations - framework); vLLM: cache <= utilization capacity - "
    "weights - activations - framework",
    source="TensorRT-LLM, https://nvidia.github.io/TensorRT-LLM/reference/memory.html",
    example="llmviewer analyze llama-2-7b --hardware a100 --kv-cache-free-gpu-memory-fraction 0.9",
    make=_make,
)
