"""`--speculative diffusion`: a diffusion language model (LLaDA, Dream) denoises blocks of masked tokens."""

from __future__ import annotations

from collections.abc import Mapping

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode
from llmviewer.models.model import Model
from llmviewer.serving.denoising import Cached, Denoising
from llmviewer.serving.generation import Generation
from llmviewer.techniques.speculation.draft_options import scheme_name
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

WHERE = "--speculative diffusion"
#: block_length of the published evaluation, https://github.com/ML-GSAI/LLaDA
BLOCK = Parameter(name="block", default=32, low=1, high=2.0**20, whole=True)
STEPS = Parameter(name="steps", low=1, high=2.0**20)
PER_PASS = Parameter(name="per_pass", low=1, high=2.0**20)
ALONE = "tokens that see each other cannot be divided into branches, chunks or instances"


def denoising_change(title: str, denoising: Denoising, facts: Mapping[str, float | str]) -> Change:
    """The change to denoised blocks, listed as `title`; raises UserError for incompatible options."""

    def make(target: Model) -> Generation:
        if target.encoder is not None and denoising.whole:
            raise UserError(
                f"{title}: the input of {target.name} is encoded once and not computed again; use cache=blocks, or "
                "--speculative nat"
            )
        if any(op.kind in (Kind.RECURRENCE, Kind.CONV) for _, op in target.graph(decode(1.0, 1.0))):
            raise UserError(
                f"{title}: recurrent layers of {target.name} see earlier tokens only; use a model of attention"
            )
        return Generation(denoising=denoising, facts=facts)

    generate = change_generation(title, make, alone=ALONE)

    def change(system: System) -> System:
        cache = system.kv_cache
        if cache.hit_rate or cache.evicts:
            raise UserError(f"{title}: every token depends on later ones; remove --prefix-cache and --kv-evict")
        return generate(system)

    return change


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("block", "steps", "per_pass", "cache")) if text else {}
    block, word = BLOCK.value(given, WHERE), given.get("cache", Cached.NONE.value)
    allowed = [one.value for one in Cached]
    if word not in allowed:
        raise unknown(f"value of cache in {WHERE}", word, allowed)
    if "steps" in given and "per_pass" in given:
        raise UserError(f"{WHERE}: give steps=8 of each block, or per_pass=4 tokens, not both")
    steps = block / PER_PASS.value(given, WHERE) if "per_pass" in given else block
    steps = STEPS.value(given, WHERE) if "steps" in given else steps
    if not 1.0 <= steps <= block:
        raise UserError(f"{WHERE}: {steps:g} steps; a block of {block:g} tokens takes 1 to {block:g}")
    facts: dict[str, float | str] = {"block_tokens": block, "steps": steps, "cache": word}
    return denoising_change(
        scheme_name("diffusion", text), Denoising(block=block, steps=steps, cached=Cached(word)), facts
    )


TECHNIQUE = Technique(
    name="diffusion",
    kind="speculation",
    summary="A diffusion language model decides the masked tokens of a block in a few passes, in which all tokens see "
    "each other.",
    parameters={
        "block": "tokens of a block (default: 32)",
        "steps": "passes per block, a mean (default: block, one token per pass)",
        "per_pass": "alternative to steps: tokens decided per pass, a mean",
        "cache": "none: every pass computes prompt and answer; prefix: keys and values of prompt and earlier blocks "
        "are kept within a block, dual: of later blocks too; blocks: kept for good, by models whose blocks see only "
        "earlier ones (default: none)",
    },
    formula="n / per_pass passes; each over S + n tokens (none), block and later ones (prefix), or block (dual, "
    "blocks); with prefix and dual the first of a block is over S + n, with blocks one more pass stores a finished "
    "block; T tokens that see each other and c cached ones attend T (T + c) pairs; TTFT is the first pass, or with "
    "blocks the prompt's prefill",
    source="LLaDA arXiv 2502.09992, Dream arXiv 2508.15487; caches: Fast-dLLM arXiv 2505.22618, "
    "https://github.com/NVlabs/Fast-dLLM; blocks: Block Diffusion arXiv 2503.09573",
    example="llmviewer analyze llada-8b --hardware h100 --input-len 128 --output-len 256 "
    "--speculative diffusion,block=32,per_pass=4,cache=dual",
    make=_make,
)
