"""Names that a technique's option takes for settings stored elsewhere: published methods, rates, rules, networks."""

from __future__ import annotations

from collections.abc import Callable

from llmviewer.techniques.methods import METHODS


def names(technique: str) -> tuple[str, ...]:
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
