"""The change of generation that a branching method makes."""

from __future__ import annotations

from collections.abc import Mapping

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.serving.branches import Branches
from llmviewer.serving.generation import Generation
from llmviewer.techniques.technique import Change, generating


def branching(title: str, branches: Branches, facts: Mapping[str, float | str]) -> Change:
    """The change of generation, listed under `title`; refuses a cache that cannot be what the branches need of it."""
    generate = generating(title, lambda _: Generation(branches=branches, facts={"branches": branches.points, **facts}))

    def change(system: System) -> System:
        cache = system.kv_cache
        if branches.shared and cache.reserve:
            raise UserError(f"{title}: a contiguous reservation (--kv-reserve) cannot share its beginning")
        if branches.shared and cache.kept < 1.0:
            raise UserError(f"{title}: branches evict different tokens and cannot share a beginning (--kv-evict)")
        if not branches.shared and cache.hit_rate:
            raise UserError(f"{title}: branches find their beginning in a --prefix-cache as well; add shared=on")
        return generate(system)

    return change
