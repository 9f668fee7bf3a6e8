"""`--branches METHOD,...`: an answer whose parts are written at once, each as a sequence of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.serving.branches import Branches
from llmviewer.serving.generation import Generation
from llmviewer.techniques import methods
from llmviewer.techniques.technique import Change, Technique, generating


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


TECHNIQUE = Technique(
    name="branches",
    kind="branches",
    summary="Parts of an answer that do not depend on each other are written at once, as sequences beside each other; "
    "the methods below say how.",
    parameters={
        "METHOD": "how they come about, then its own parameters: skeleton or apar",
    },
    formula="passes = o - 1 + ceil((output - o) / branches) for an outline of o tokens; batch x branches sequences in "
    "each of the later ones; as many tokens as without",
    source="survey arXiv 2402.16363, section 4.2; Skeleton-of-Thought arXiv 2307.15337; APAR arXiv 2401.06761",
    example="llmviewer analyze llama-2-7b --hardware a100-sxm --input-len 16 --output-len 256 "
    "--branches skeleton,outline=36,points=6,prompt=45",
    make=partial(methods.make, "branches"),
)
