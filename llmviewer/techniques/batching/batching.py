"""`--batching METHOD,...`: how sequences share a replica, and how long they queue."""

from __future__ import annotations

from functools import partial

from llmviewer.techniques import methods
from llmviewer.techniques.technique import Technique

TECHNIQUE = Technique(
    name="batching",
    kind="batching",
    summary="Selects how sequences share a replica: static, continuous, chunked or disaggregated batching.",
    parameters={
        "METHOD": "static, continuous, chunked or disaggregated, followed by its own parameters",
    },
    formula="Little: users = throughput x E2E; throughput is that of the slowest resource",
    source="Orca, OSDI 2022, https://www.usenix.org/conference/osdi22/presentation/yu; survey arXiv 2402.16363, "
    "section 5.2",
    example="llmviewer analyze llama-2-13b --hardware a100-sxm --batch-size 16 --batching chunked,tokens=512",
    make=partial(methods.make, "batching"),
)
