"""`--spatial`: as many chips as store the model in their on-chip memory."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_numbers

_SIZES = (
    Parameter(name="tokens", default=4096, low=0, high=1e9, whole=True),
    Parameter(name="microbatches", default=1, low=1, high=65536, whole=True),
)


def _make(text: str) -> Change:
    sizes = parse_numbers("--spatial", text.replace("on", "tokens=4096", 1) if text.startswith("on") else text, _SIZES)
    tokens, microbatches = sizes["tokens"], int(sizes["microbatches"])

    def change(system: System) -> System:
        if system.parallelism.pipeline > 1 and not system.spatial:
            raise UserError("--spatial chooses the pipeline stages itself; remove --pipeline-parallel-size")
        parallelism = replace(system.parallelism, microbatches=microbatches)
        return replace(system, parallelism=parallelism, spatial=True, resident_tokens=tokens)

    return change


TECHNIQUE = Technique(
    name="spatial",
    kind="spatial",
    summary="Uses the fewest chips that store weights and KV cache in on-chip memory, as a pipeline of stages.",
    formula="chips = tensor x stages, each with the weights of its layers and the cache of `tokens` tokens in "
    "its memory; a token streams all weights, stage after stage: weights / (tensor x SRAM bandwidth) + collectives + "
    "sends. "
    "Llama-2-70b, 138 GB: one 80 TB/s chip after another 1.7 ms, 580 tokens/s per user; stages of 32 Groq LPUs side by "
    "side, 864 in all, 12,000. Groq reports over 300: 3.3 ms over 160 collectives are 21 us each, latency and "
    "synchronisation that no data sheet states and a bound leaves out",
    source="Think Fast (Groq) https://doi.org/10.1109/ISCA45697.2020.00023; survey arXiv 2402.16363 section 6.1",
    example="llmviewer analyze llama-2-70b --hardware groq-lpu --max-num-batched-tokens 64 --spatial on",
    make=_make,
)
