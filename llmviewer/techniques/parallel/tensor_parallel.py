"""`--tensor-parallel-size`: every layer shared by several devices."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.techniques.parallel.devices import how_many, shared
from llmviewer.techniques.technique import Change, Technique


def _make(text: str) -> Change:
    devices = how_many("--tensor-parallel-size", text)
    return lambda system: shared(system, replace(system.parallelism, tensor=devices))


TECHNIQUE = Technique(
    name="tensor_parallel_size",
    kind="parallelism",
    summary="Deals heads, channels and vocabulary to n devices; each branch of a layer ends in an all-reduce.",
    formula="work and weights 1/n but for norms, routers, latents and KV heads beyond one per device; "
    "all-reduce sends 2(n-1)/n of tokens x hidden over the link",
    source="Megatron-LM arXiv 1909.08053",
    example="llmviewer analyze llama-2-70b --hardware h100 --tensor-parallel-size 4",
    make=_make,
)
