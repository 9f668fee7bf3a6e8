"""`--speculative tree`: a smaller model, or several, draft a tree of tokens that one pass of the model verifies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from llmviewer.core.errors import UserError, quoted
from llmviewer.serving.generation import PLAIN, Draft, Generation, Shape
from llmviewer.techniques.speculation import ranks, rates, trees
from llmviewer.techniques.speculation.draft_model import DRAFT_TECHNIQUES, load_draft
from llmviewer.techniques.speculation.draft_options import scheme_name
from llmviewer.techniques.speculation.ranks import Ranks
from llmviewer.techniques.speculation.trees import MergedTrees, Tree
from llmviewer.techniques.speculation.verification import tree_verification_pass
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

WHERE = "--speculative tree"
#: SpecInfer, table 1: LLaMA-68M for LLaMA-7B, Alpaca, greedy.
DEFAULT = "draft-llama-68m"
#: Nodes beyond which no tree is built.
MAX_NODES = 4096
#: Levels of the best tree unless told otherwise: SpecInfer's speculation length.
DEPTH = Parameter(name="depth", default=8, low=1, high=64, whole=True)
BUDGET = Parameter(name="budget", low=0, high=MAX_NODES, whole=True)
OVERLAP = Parameter(name="overlap", default=0.0, low=0.0, high=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLevel:
    """A pass of the draft: nodes of one depth that have children, side by side; before: nodes processed before them."""

    nodes: int
    depth: int
    before: int

    @property
    def pairs(self) -> float:
        """Query-key pairs beyond new tokens x cached ones: every node sees the depth + 1 tokens of its own path alone,
        while the cache holds all nodes before."""
        return self.nodes * (self.depth + 1.0 - self.before)


def levels(tree: Tree) -> tuple[DraftLevel, ...]:
    """The passes that draft a tree; the first processes its root, the last accepted token."""
    deep = (0, *trees.depths(tree))
    nodes = [deep[node] for node in sorted(set(tree))]
    counts = [nodes.count(depth) for depth in range(max(nodes, default=-1) + 1)]
    return tuple(
        DraftLevel(nodes=count, depth=depth, before=sum(counts[:depth])) for depth, count in enumerate(counts) if count
    )


def draft_passes(draft: Draft, tree: Tree) -> tuple[Draft, ...]:
    """The draft's passes, those of as many nodes together: counts are their means, which keeps every sum.

    One model, one cache: only the first of them is stored.
    """
    passes: dict[int, list[DraftLevel]] = {}
    for level in levels(tree):
        passes.setdefault(level.nodes, []).append(level)
    made = [_passes(draft, nodes, alike) for nodes, alike in passes.items()]
    return (*made[:1], *(replace(one, caches=False, shared=None) for one in made[1:]))


def _passes(draft: Draft, nodes: int, alike: Sequence[DraftLevel]) -> Draft:
    chain = all(level.pairs == nodes == 1 for level in alike)
    shape = Shape(
        new_tokens=float(nodes),
        logit_positions=float(nodes),
        attended_new_pairs=None if chain else sum(level.pairs for level in alike) / len(alike),
        ahead=sum(level.before for level in alike) / len(alike),
    )
    name = draft.name if nodes == 1 else f"{draft.name}, {nodes} tokens side by side"
    return replace(draft, name=name, passes=float(len(alike)), shape=shape)


def tree_round(drafts: Sequence[Draft], grown: Sequence[Tree], rates: Sequence[Ranks], overlap: float) -> Generation:
    """A round: each draft grows its tree, one after another, then one pass verifies all trees, merged at the root.

    E = sum over nodes of the products of rates along their paths, the root (bonus token) counting 1; of several
    drafts see `Merged`.  A tree without branches is a chain of drafted tokens.  Source: SpecInfer, arXiv 2305.09781.
    """
    merged = MergedTrees(trees=tuple(grown), overlap=overlap)
    (first, *others), nodes = grown, merged.new_tokens - 1.0
    depth = max(max(trees.depths(tree)) for tree in grown)
    return Generation(
        shape=tree_verification_pass(nodes, float(depth), merged.pairs),
        tokens=merged.expected(rates) if others else trees.expected(first, rates[0]),
        drafts=tuple(part for draft, tree in zip(drafts, grown, strict=True) for part in draft_passes(draft, tree)),
        facts={
            "draft": "+".join(draft.name for draft in drafts),
            "drafted_tokens": nodes,
            "depth": float(depth),
            "acceptance": "+".join(map(str, rates)),
        },
    )


def _make(text: str) -> Change:
    known = ("draft", "widths", "budget", "depth", "ranks", "acceptance", "overlap", *DRAFT_TECHNIQUES)
    given = parse_parameters(WHERE, text, known)
    names = given.get("draft", "").split("+")
    if len(set(names)) < len(names):
        raise UserError(f"{WHERE}: draft is {quoted(given['draft'])}; for more choices of one draft give widths")
    if ("widths" in given) == ("budget" in given):
        raise UserError(f"{WHERE}: give widths=1/1/3/1 by level, or budget=16, the nodes of the best tree")
    drafts = [load_draft(name, given) for name in names]
    grown, rates = _read_trees(given, len(names))
    if not grown[0]:
        return change_generation(scheme_name("tree", text), lambda _: PLAIN)
    generation = tree_round(drafts, grown, rates, OVERLAP.value(given, WHERE))
    return change_generation(scheme_name("tree", text), lambda _: generation)


def _read_trees(given: Mapping[str, str], drafts: int) -> tuple[list[Tree], list[Ranks]]:
    """A tree and rates by rank for each draft."""
    if "budget" in given:
        budget, depth = int(BUDGET.value(given, WHERE)), int(DEPTH.value(given, WHERE))
        rates = _read_rates(given, drafts, budget)
        return [trees.best(budget, rate, depth) for rate in rates], rates
    if "depth" in given:
        raise UserError(f"{WHERE}: widths say how deep the tree is; leave out depth")
    widths = _widths(given["widths"])
    return [trees.full(widths)] * drafts, _read_rates(given, drafts, max(widths))


def _widths(text: str) -> list[int]:
    parts = text.split("/")
    allowed = f"allowed: whole numbers from 1, one for each level, that make up to {MAX_NODES:,} nodes"
    if not all(part.strip().isdecimal() and int(part[:6]) > 0 for part in parts) or len(parts) > DEPTH.high:
        raise UserError(f"{WHERE}: widths is {quoted(text)}; {allowed}")
    widths = [int(part) for part in parts]
    if sum(prod(widths[: depth + 1]) for depth in range(len(widths))) > MAX_NODES:
        raise UserError(f"{WHERE}: widths is {quoted(text)}; {allowed}")
    return widths


def _read_rates(given: Mapping[str, str], drafts: int, widest: int) -> list[Ranks]:
    """For each draft how often its first, second, ... choice is right: of one text that of all drafts."""
    if "ranks" in given and "acceptance" in given:
        raise UserError(f"{WHERE}: give ranks, or the acceptance of independent draws, not both")
    by_draws = "acceptance" in given
    texts = given["acceptance" if by_draws else "ranks"].split("+") if by_draws or "ranks" in given else [DEFAULT]
    if len(texts) not in (1, drafts):
        raise UserError(f"{WHERE}: rates of {len(texts)} drafts are given, and {drafts} drafts")
    found = [
        ranks.from_independent_draws(rates.read_acceptance(WHERE, one), max(widest, 1))
        if by_draws
        else rates.read_ranks(WHERE, one)
        for one in texts
    ]
    return found * drafts if len(found) == 1 else found


TECHNIQUE = Technique(
    name="tree",
    kind="speculation",
    summary="A smaller model drafts a tree of tokens level by level, the model verifies it in one pass with tree "
    "attention.",
    parameters={
        "draft": "name of the smaller model; several joined by + draft one after another, their trees "
        "merged at the root",
        "widths": "children of a node by level: 1/1/3/1",
        "budget": "instead: nodes of the best tree",
        "depth": "levels of the best tree at most; 8 unless said",
        "ranks": "how often the first, second ... choice is right: rates, or a published preset; "
        f"{DEFAULT} unless said; by draft, joined by +",
        "acceptance": "instead: rate of one independent draw",
        "overlap": "of several drafts, share of the tokens that they have in common; 0 unless said",
        "quantization": "number format of the draft's weights: w4a16 ...; its checkpoint's unless said",
        "tensor_parallel_size": "devices that share the draft; those of the model unless said",
    },
    formula="a pass of the draft over the nodes of each level, verification of all nodes and the root, of which a node "
    "at depth d sees d + 1; E = 1 + sum over nodes of the products of rates along their paths; k independent draws are "
    "right with 1 - (1-a)^k, an upper bound; several drafts: 1 - product of (1 - Pr(right to depth d))",
    source="SpecInfer arXiv 2305.09781; best tree: Sequoia arXiv 2402.12374",
    example="llmviewer analyze llama-2-70b --hardware h100 -tp 4 "
    "--speculative tree,draft=tinyllama-1.1b,widths=1/1/3/1",
    make=_make,
)
