"""The system change of the branching methods, and its checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.serving.branches import Branches
from llmviewer.serving.generation import AUTOREGRESSIVE, Generation
from llmviewer.techniques.technique import Change, change_generation


def with_branches(title: str, branches: Branches, facts: Mapping[str, float | str]) -> Change:
    """The change to branched generation, listed as `title`; raises UserError for incompatible options.

    With speculation every branch drafts and verifies by itself: a pass verifies the draft tokens of all branches, and
    the passes of a branch fall by its tokens per round (APAR with Medusa, arXiv 2401.06761).
    """

    def branched(generation: Generation) -> Generation:
        known = {**generation.facts, "branches": branches.points, **facts}
        return replace(generation, branches=branches, facts=known)

    def change(system: System) -> System:
        _check(title, branches, system)
        if system.scheme is not None:
            return replace(system, scheme=system.scheme.changed(title, branched)).listing(title)
        alone = "branches prefill prompts of their own while others decode" if branches.prefilled else ""
        return change_generation(title, lambda _: branched(AUTOREGRESSIVE), alone=alone)(system)

    return change


def _check(title: str, branches: Branches, system: System) -> None:
    cache = system.kv_cache
    if branches.shared and cache.reserves:
        raise UserError(f"{title}: branches cannot share a prefix in contiguously reserved KV cache (--kv-reserve)")
    if branches.shared and cache.evicts:
        raise UserError(f"{title}: branches evict different tokens and cannot share a prefix (--kv-evict)")
    if not branches.shared and cache.hit_rate:
        raise UserError(f"{title}: branches also hit the --prefix-cache; add shared=on")
    if system.scheme is not None and system.scheme.alone:
        raise UserError(f"{title} and {system.scheme.name}: {system.scheme.alone}; remove one of them")
    if system.scheme is not None and branches.prefilled:
        raise UserError(
            f"{title} and {system.scheme.name}: prompts of branches would be prefilled between rounds, which is not "
            "modelled; remove one of them, or use --branches apar, whose branches have no prompts"
        )
