"""Fields of an engine preset from the content of its file, those that differ by version or generation among them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import UserError, printable
from llmviewer.timing import engine_memory, engine_rounds, engine_serving
from llmviewer.timing.engine_memory import version_numbers
from llmviewer.timing.engine_work import FACTORS

TEXT_KEYS = (
    *("title", "kernels", "fusion", "attention", "batching", "scheduler", "mxfp8_inputs", "accumulation", "source"),
    *("start", "start_source"),
)
NUMBER_KEYS = (
    *("max_num_batched_tokens", "max_num_seqs", "graph_tokens", "reserved", "interference", "unit_bytes", "share"),
    *("unpacked_bytes", "ungrouped", "cache_write", "expert_skew", "uncompiled"),
)
#: Keys that a fit adds to a preset: its errors and quantiles on held-out rows.
FITTED_KEYS = ("error", "residuals", "rows")
#: Keys with mappings.
PART_KEYS = ("constants", "factors", "borrowed", "generations", "versions", "memory", "rounds", "serves")
#: Keys of a preset that may differ on chips of another generation, where the engine runs other kernels.
GENERATION_KEYS = ("constants", "factors", "ungrouped", "error", "residuals")
#: Keys of the versions of a preset; constants that are not stated are those of the newest versions.
VERSION_KEYS = ("constants", "source", "error", "residuals")


def of_file(name: str, content: Mapping[str, Any], constants: Mapping[str, str]) -> dict[str, Any]:
    """Fields of an engine, by name.  constants: names that may be stated.

    Raises UserError for an unknown key or a value of wrong type.
    """
    known = (*TEXT_KEYS, *NUMBER_KEYS, *PART_KEYS, *FITTED_KEYS)
    data.check_keys(content, known, ("title", "kernels", "constants", "source"), name)
    generations = content.get("generations") or {}
    for where, part in ((name, content), *((f"{name}: {own}", generations[own]) for own in generations)):
        data.check_keys(part.get("constants") or {}, constants, (), f"{where}: constants")
        data.check_keys(part.get("factors") or {}, FACTORS, (), f"{where}: factors")
    try:
        return {
            **{key: str(content[key]) for key in TEXT_KEYS if key in content},
            **{key: float(content[key]) for key in NUMBER_KEYS if key in content},
            "constants": MappingProxyType(numbers(content["constants"])),
            "factors": MappingProxyType(numbers(content.get("factors"))),
            "borrowed": {str(key): str(other) for key, other in content.get("borrowed", {}).items()},
            "generations": {str(own): of_generation(part, f"{name}: {own}") for own, part in generations.items()},
            "versions": versions(name, content.get("versions") or {}, constants),
            "error": content.get("error", {}),
            "memory_versions": engine_memory.parse(name, content.get("memory")),
            "residuals": residuals(content),
            "round_versions": engine_rounds.parse(name, content.get("rounds")),
            "serves": engine_serving.parse(name, content.get("serves")),
        }
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"engine {name}: {printable(error, 120)}; expected numbers") from error


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
