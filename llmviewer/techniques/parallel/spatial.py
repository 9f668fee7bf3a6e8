"""`--spatial`: as many chips as store the model in their on-chip memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_numbers

_SIZES = (
    Parameter(name="tokens", default=4096, low=0, high=1e9, whole=True),
    Parameter(name="microbatches", default=1, low=1, high=65536, whole=True),
    Parameter(name="hop_ns", default=0, high=1e6),
    Parameter(name="load_gb_per_s", default=0, high=1e9),
)


def _make(text: str) -> Change:
    sizes = parse_numbers("--spatial", text.replace("on", "tokens=4096", 1) if text.startswith("on") else text, _SIZES)
    tokens, microbatches = sizes["tokens"], int(sizes["microbatches"])

    def change(system: System) -> System:
        if system.parallelism.pipeline > 1 and not system.spatial:
            raise UserError("--spatial chooses the pipeline stages itself; remove --pipeline-parallel-size")
        parallelism = replace(system.parallelism, microbatches=microbatches)
        spatial = replace(system, parallelism=parallelism, spatial=True, resident_tokens=tokens)
        return _with_floor_plan(spatial, sizes["hop_ns"], sizes["load_gb_per_s"])

    return change


def _with_floor_plan(system: System, hop_ns: float, load_gb_per_s: float) -> System:
    """The system whose messages take a latency, and whose matrix units receive operands at a limited rate."""
    given = [f"hop {hop_ns:g} ns"] * (hop_ns > 0.0) + [f"load {load_gb_per_s:g} GB/s"] * (load_gb_per_s > 0.0)
    if not given:
        return system
    chip = replace(system.chip, hop_s=hop_ns * 1e-9, load_bytes_per_s=load_gb_per_s * 1e9 or np.inf)
    return replace(system, chip=chip).listing(f"floor_plan({', '.join(given)})")


TECHNIQUE = Technique(
    name="spatial",
    kind="spatial",
    summary="Uses the fewest chips that store weights and KV cache in on-chip memory, as a pipeline of stages.",
    parameters={
        "tokens": "tokens whose cache the chips hold; default 4096 (on)",
        "microbatches": "batches that follow each other through the stages; default 1",
        "hop_ns": "latency of a message between chips [ns]; default 0. Groq: 722 "
        "(https://doi.org/10.1145/3470496.3527405), later 300 (https://openreview.net/forum?id=IZaXDwDtL1)",
        "load_gb_per_s": "rate at which weights, keys and values enter the matrix units of a chip, as wide as the "
        "product's numbers; default that of its memory. Groq: 9216, 409,600 weights of a byte in 40 cycles of 900 MHz (https://doi.org/10.1109/ISCA45697.2020.00023)",
    },
    formula="chips = tensor x stages, each with the weights of its layers and the cache of `tokens` tokens in "
    "its memory; a token streams all weights, stage after stage: weights / (tensor x SRAM bandwidth) + collectives + "
    "sends. "
    "Llama-2-70b, 138 GB: one 80 TB/s chip after another 1.7 ms, 580 tokens/s per user; stages of 32 Groq LPUs side by "
    "side, 864 in all, 12,000, or 1,380 with 300 ns a message, the ports of its nodes (--link node --network "
    "groq-quadfour) and matrix units that load 9,216 GB/s; in stages of one node of 8, with weights in 8 bits, 480. "
    "Groq reports over 300: what passes between two operators is not published",
    source="Think Fast (Groq) https://doi.org/10.1109/ISCA45697.2020.00023; survey arXiv 2402.16363 section 6.1",
    example="llmviewer analyze llama-2-70b --hardware groq-lpu --max-num-batched-tokens 64 --spatial on",
    make=_make,
)
