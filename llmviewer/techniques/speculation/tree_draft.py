"""`--speculative tree`: one or more smaller models draft a token tree that one pass of the target verifies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from llmviewer.core.errors import UserError, quoted
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft, Generation, PassShape
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
#: Most nodes of a tree.
MAX_NODES = 4096
#: Default depth limit of the best tree: SpecInfer's speculation length.
DEPTH = Parameter(name="depth", default=8, low=1, high=64, whole=True)
BUDGET = Parameter(name="budget", low=0, high=MAX_NODES, whole=True)
OVERLAP = Parameter(name="overlap", default=0.0, low=0.0, high=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLevel:
    """One draft pass, over the nodes of one depth that have children.  before: nodes processed in earlier passes."""

    nodes: int
    depth: int
    before: int

    @property
    def pairs(self) -> float:
        """Query-key pairs in addition to new tokens x cached tokens; may be negative.

        Every node attends only the depth + 1 tokens of its own path, while the cache contains all earlier nodes.
        """
        return self.nodes * (self.depth + 1.0 - self.before)


def levels(tree: Tree) -> tuple[DraftLevel, ...]:
    """The passes that draft a tree; the first one processes the root, which is the last accepted token."""
    node_depths = (0, *trees.depths(tree))
    expanded = [node_depths[node] for node in sorted(set(tree))]
    counts = [expanded.count(depth) for depth in range(max(expanded, default=-1) + 1)]
    return tuple(
        DraftLevel(nodes=count, depth=depth, before=sum(counts[:depth])) for depth, count in enumerate(counts) if count
    )


def draft_passes(draft: Draft, tree: Tree) -> tuple[Draft, ...]:
    """The draft passes of a tree, grouped by number of nodes; a group has the mean counts, which keeps all sums.

    All groups use the same weights and cache, so only the first one stores them.
    """
    passes: dict[int, list[DraftLevel]] = {}
    for level in levels(tree):
        passes.setdefault(level.nodes, []).append(level)
    groups = [_passes(draft, nodes, group) for nodes, group in passes.items()]
    return (*groups[:1], *(replace(group, caches=False, shared=None) for group in groups[1:]))


def _passes(draft: Draft, nodes: int, group: Sequence[DraftLevel]) -> Draft:
    chain = all(level.pairs == nodes == 1 for level in group)
    shape = PassShape(
        new_tokens=float(nodes),
        logit_positions=float(nodes),
        attended_new_pairs=None if chain else sum(level.pairs for level in group) / len(group),
        ahead=sum(level.before for level in group) / len(group),
    )
    name = draft.name if nodes == 1 else f"{draft.name}, {nodes} tokens side by side"
    return replace(draft, name=name, passes=float(len(group)), shape=shape)


def tree_round(
    drafts: Sequence[Draft], draft_trees: Sequence[Tree], rates: Sequence[Ranks], overlap: float
) -> Generation:
    """A round: the draft models build their trees one after another; one pass verifies all, merged at the root.

    E = sum over nodes of the products of rates along their paths, where the root (bonus token) counts 1; for several
    draft models see `MergedTrees`.  A tree without branches is a chain of draft tokens.
    Source: SpecInfer, arXiv 2305.09781.
    """
    merged = MergedTrees(trees=tuple(draft_trees), overlap=overlap)
    (first, *others), nodes = draft_trees, merged.new_tokens - 1.0
    depth = max(max(trees.depths(tree)) for tree in draft_trees)
    return Generation(
        shape=tree_verification_pass(nodes, float(depth), merged.pairs),
        tokens=merged.expected(rates) if others else trees.expected(first, rates[0]),
        drafts=tuple(
            part for draft, tree in zip(drafts, draft_trees, strict=True) for part in draft_passes(draft, tree)
        ),
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
    if ("widths" in given) == ("budget" in given):
        raise UserError(f"{WHERE}: give widths=1/1/3/1 by level, or budget=16 for the best tree of that many nodes")
    drafts = _numbered([load_draft(name, given) for name in names])
    draft_trees, rates = _read_trees(given, len(names))
    if not draft_trees[0]:
        return change_generation(scheme_name("tree", text), lambda _: AUTOREGRESSIVE)
    generation = tree_round(drafts, draft_trees, rates, OVERLAP.value(given, WHERE))
    return change_generation(scheme_name("tree", text), lambda _: generation)


def _numbered(drafts: Sequence[Draft]) -> list[Draft]:
    """The draft models with a number after names that occur again: checkpoints of one architecture, tuned apart."""
    before = [[one.name for one in drafts[:at]].count(draft.name) for at, draft in enumerate(drafts)]
    return [replace(one, name=f"{one.name} ({n + 1})") if n else one for one, n in zip(drafts, before, strict=True)]


def _read_trees(given: Mapping[str, str], drafts: int) -> tuple[list[Tree], list[Ranks]]:
    """A tree and its rates by rank for each draft model."""
    if "budget" in given:
        budget, depth = int(BUDGET.value(given, WHERE)), int(DEPTH.value(given, WHERE))
        rates = _read_rates(given, drafts, budget)
        return [trees.best(budget, rate, depth) for rate in rates], rates
    if "depth" in given:
        raise UserError(f"{WHERE}: widths already set the depth of the tree; remove depth")
    widths = _widths(given["widths"])
    return [trees.full(widths)] * drafts, _read_rates(given, drafts, max(widths))


def _widths(text: str) -> list[int]:
    parts = text.split("/")
    allowed = f"allowed: whole numbers from 1, one per level, with at most {MAX_NODES:,} nodes in total"
    if not all(part.strip().isdecimal() and int(part[:6]) > 0 for part in parts) or len(parts) > DEPTH.high:
        raise UserError(f"{WHERE}: widths is {quoted(text)}; {allowed}")
    widths = [int(part) for part in parts]
    if sum(prod(widths[: depth + 1]) for depth in range(len(widths))) > MAX_NODES:
        raise UserError(f"{WHERE}: widths is {quoted(text)}; {allowed}")
    return widths


def _read_rates(given: Mapping[str, str], drafts: int, widest: int) -> list[Ranks]:
    """Rates by rank for each draft model; a single text applies to all."""
    if "ranks" in given and "acceptance" in given:
        raise UserError(f"{WHERE}: give either ranks or the acceptance of independent draws, not both")
    by_draws = "acceptance" in given
    texts = given["acceptance" if by_draws else "ranks"].split("+") if by_draws or "ranks" in given else [DEFAULT]
    if len(texts) not in (1, drafts):
        raise UserError(f"{WHERE}: rates are given for {len(texts)} draft models, but there are {drafts}")
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
    summary="One or more smaller models draft a tree of tokens level by level; the target verifies it in one pass with "
    "tree attention.",
    parameters={
        "draft": "name of the draft model; several, joined by +, draft one after another, and their trees are merged "
        "at the root; x+x: two checkpoints of one architecture, tuned apart",
        "widths": "children per node by level, e.g. 1/1/3/1",
        "budget": "alternative to widths: nodes of the best tree",
        "depth": "most levels of the best tree (default: 8)",
        "ranks": "rates at which the first, second ... choice is right, or a published preset "
        f"(default: {DEFAULT}); per draft model, joined by +",
        "acceptance": "alternative to ranks: rate of one independent draw",
        "overlap": "share of tokens that several draft models have in common (default: 0)",
        "quantization": "number format of the draft model's weights, e.g. w4a16 (default: its checkpoint's)",
        "tensor_parallel_size": "devices that share the draft model (default: those of the target)",
    },
    formula="one draft pass over the nodes of each level, verification of all nodes and the root, where a node at "
    "depth d attends d + 1; E = 1 + sum over nodes of the products of rates along their paths; one of k independent "
    "draws is right with 1 - (1-a)^k, an upper bound; several draft models: 1 - product of (1 - Pr(right to depth d))",
    source="SpecInfer arXiv 2305.09781; best tree: Sequoia arXiv 2402.12374",
    example="llmviewer analyze llama-2-70b --hardware h100 -tp 4 "
    "--speculative tree,draft=tinyllama-1.1b,widths=1/1/3/1",
    make=_make,
)
