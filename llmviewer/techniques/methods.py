"""The registry of methods, and the options whose first word selects one, such as `--batching chunked,...`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

from llmviewer.core.errors import unknown
from llmviewer.techniques.technique import Change, Technique

#: Option name -> method -> its entry: module within `llmviewer.techniques`, or `module:NAME`.
METHODS: dict[str, dict[str, str]] = {
    "branches": {
        "skeleton": "branching.branches:skeleton_option",
        "apar": "branching.branches:apar_option",
    },
    "batching": {
        "static": "batching.batching:static",
        "continuous": "batching.continuous:continuous",
        "chunked": "batching.continuous:chunked",
        "disaggregated": "batching.disaggregated:disaggregated",
    },
    "speculative": {
        "draft": "speculation.drafts:DRAFT",
        "tree": "speculation.drafts:tree_rounds",
        "fallback": "speculation.drafts:fallback_rounds",
        "ngram": "speculation.copied:ngram",
        "llma": "speculation.copied:llma",
        "copy": "speculation.copied:copy",
        "rest": "speculation.copied:rest",
        "lookahead": "speculation.guessed:lookahead",
        "jacobi": "speculation.guessed:jacobi",
        "diffusion": "speculation.guessed:diffusion",
        "nat": "speculation.guessed:non_autoregressive",
        "self": "speculation.drafts:parts_skipped",
        "medusa": "speculation.heads:medusa",
        "eagle": "speculation.features:eagle",
        "eagle3": "speculation.features:eagle3",
        "mtp": "speculation.features:mtp",
        "speculator": "speculation.heads:speculator",
        "blockwise": "speculation.heads:blockwise",
        "pass": "speculation.guessed:look_ahead_tokens",
    },
}


def make(option: str, text: str) -> Change:
    """The change made by the method that the first word of `text` names; `draft=NAME,...` needs no method name."""
    methods = METHODS[option]
    word, _, rest = text.partition(",")
    name, equals, _ = (piece.strip() for piece in word.partition("="))
    if name not in methods:
        hint = "a smaller model: draft=NAME,tokens=4,acceptance=0.8" if "draft" in methods else ""
        raise unknown(f"method of --{option.replace('_', '-')}", name, methods, hint=hint)
    module, _, attribute = methods[name].partition(":")
    technique: Technique = getattr(import_module(f"llmviewer.techniques.{module}"), attribute or "TECHNIQUE")
    return technique.make(text if equals else rest)


SPECULATIVE = Technique(
    name="speculative",
    kind="speculation",
    summary="Speculative and parallel decoding: one of the methods below drafts tokens that one pass of the target "
    "verifies, or decides several tokens at once.",
    parameters={
        "METHOD": "one of the methods listed here, followed by its own parameters",
        "draft": "short for the method draft: name of a smaller model",
    },
    formula="time per token = (verification + drafting) / expected tokens per round; verification computes all draft "
    "tokens and the one before them, and is never free",
    source="survey arXiv 2402.16363, section 4.2; Leviathan et al. arXiv 2211.17192",
    example="llmviewer analyze llama-2-70b --hardware h100 -tp 4 "
    "--speculative draft=tinyllama-1.1b,tokens=4,acceptance=0.7",
    make=partial(make, "speculative"),
)
BRANCHES = Technique(
    name="branches",
    kind="branches",
    summary="Generates independent parts of an answer in parallel, each as its own sequence, by one of the methods "
    "below.",
    parameters={
        "METHOD": "skeleton or apar, followed by its own parameters",
    },
    formula="passes = o - 1 + ceil((output - o) / branches) for an outline of o tokens; batch x branches sequences in "
    "each pass after the outline; same number of tokens as plain decoding",
    source="survey arXiv 2402.16363, section 4.2; Skeleton-of-Thought arXiv 2307.15337; APAR arXiv 2401.06761",
    example="llmviewer analyze llama-2-7b --hardware a100-sxm --input-len 16 --output-len 256 "
    "--branches skeleton,outline=36,points=6,prompt=45",
    make=partial(make, "branches"),
)
BATCHING = Technique(
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
    make=partial(make, "batching"),
)


def preset_names(technique: str) -> tuple[str, ...]:
    """Preset names of an option or of one of its methods, in the order of their file; empty if it has none."""
    if technique in METHODS["speculative"]:
        return _acceptance(technique)
    return _NAMES[technique]() if technique in _NAMES else ()


def _acceptance(method: str) -> tuple[str, ...]:
    """Published acceptance rates of a speculative method; of all methods for ""."""
    from llmviewer.techniques.speculation.acceptance_presets import PRESETS

    measured = ((one.name, one.method.replace("eagle2", "eagle")) for one in PRESETS.values())
    return tuple(name for name, of in measured if method in ("", of))


def _quantization() -> tuple[str, ...]:
    from llmviewer.techniques.quantization.presets import PRESETS

    return tuple(PRESETS)


def _cache_dtypes() -> tuple[str, ...]:
    from llmviewer.techniques.quantization.grammar import CACHE_DTYPES

    return tuple(CACHE_DTYPES)


def _fusion_rules() -> tuple[str, ...]:
    from llmviewer.techniques.kernels.fusion_rules import RULES

    return tuple(rule.name for rule in RULES)


def _networks() -> tuple[str, ...]:
    from llmviewer.hardware.specs import network_names

    return tuple(network_names())


#: Option -> its names; files are read only when asked for.
_NAMES: dict[str, Callable[[], tuple[str, ...]]] = {
    "quantization": _quantization,
    "kv_cache_dtype": _cache_dtypes,
    "network": _networks,
    "fusion": _fusion_rules,
    "speculative": lambda: _acceptance(""),
}
