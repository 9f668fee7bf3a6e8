"""The system change of the branching methods, and its checks."""

from __future__ import annotations

from collections.abc import Mapping

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.serving.branches import Branches
from llmviewer.serving.generation import Generation
from llmviewer.techniques.technique import Change, change_generation


def with_branches(title: str, branches: Branches, facts: Mapping[str, float | str]) -> Change:
    """The change to branched generation, listed as `title`; raises UserError for incompatible KV-cache options."""
    generate = change_generation(
        title, lambda _: Generation(branches=branches, facts={"branches": branches.points, **facts})
    )

    def change(system: System) -> System:
        cache = system.kv_cache
        if branches.shared and cache.reserves:
            raise UserError(f"{title}: branches cannot share a prefix in contiguously reserved KV cache (--kv-reserve)")
        if branches.shared and cache.kept < 1.0:
            raise UserError(f"{title}: branches evict different tokens and cannot share a prefix (--kv-evict)")
        if not branches.shared and cache.hit_rate:
            raise UserError(f"{title}: branches also hit the --prefix-cache; add shared=on")
        return generate(system)

    return change
