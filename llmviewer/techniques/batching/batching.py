"""`--batching METHOD,...`: who waits for whom when several sequences share a machine."""

from __future__ import annotations

from functools import partial

from llmviewer.techniques import methods
from llmviewer.techniques.technique import Technique

TECHNIQUE = Technique(
    name="batching",
    kind="batching",
    summary="How sequences share the machine: one of the methods below.",
    parameters={
        "METHOD": "static, continuous, chunked or disaggregated, then its own parameters",
    },
    formula="Little: users = throughput x E2E; throughput is that of the slowest resource",
    source="Orca, OSDI 2022, https://www.usenix.org/conference/osdi22/presentation/yu; survey arXiv 2402.16363, "
    "section 5.2",
    example="llmviewer analyze llama-2-13b --hardware a100-sxm --batch-size 16 --batching chunked,tokens=512",
    make=partial(methods.make, "batching"),
)
