"""Fields of an engine preset that differ by version or by generation of chips, from the content of its file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llmviewer.core import data
from llmviewer.timing.engine_memory import version_numbers

#: Keys of a preset that may differ on chips of another generation, where the engine runs other kernels.
GENERATION_KEYS = ("constants", "factors", "ungrouped", "error", "residuals")
#: Keys of the versions of a preset; constants that are not stated are those of the newest versions.
VERSION_KEYS = ("constants", "source", "error", "residuals")


def of_generation(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of an engine on chips of one generation."""
    data.check_keys(content, GENERATION_KEYS, ("constants",), where)
    return {
        "constants": MappingProxyType(numbers(content["constants"])),
        "factors": MappingProxyType(numbers(content.get("factors"))),
        "ungrouped": float(content.get("ungrouped", 0.0)),
        "error": content.get("error", {}),
        "residuals": residuals(content),
    }


def versions(name: str, content: Mapping[str, Any], constants: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Fields of an engine by the first version that has them, oldest first.  constants: names that may be stated."""
    found: dict[str, dict[str, Any]] = {}
    for first in sorted(map(str, content), key=lambda one: version_numbers(one, name)):
        own, where = content[first], f"{name}: version {first}"
        data.check_keys(own, VERSION_KEYS, ("source",), where)
        data.check_keys(own.get("constants") or {}, constants, (), f"{where}: constants")
        fitted = {"error": own["error"], "residuals": residuals(own)} if "error" in own else {}
        found[first] = {"constants": numbers(own.get("constants")), "source": str(own["source"]), **fitted}
    return found


def residuals(content: Mapping[str, Any]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Quantiles of measured / predicted, by metric and origin of the kernels."""
    found = content.get("residuals", {})
    return {name: {key: tuple(map(float, bounds)) for key, bounds in by.items()} for name, by in found.items()}


def numbers(content: Mapping[str, Any] | None) -> dict[str, float]:
    """A mapping of numbers; empty where none is stated."""
    return {str(key): float(value) for key, value in (content or {}).items()}
