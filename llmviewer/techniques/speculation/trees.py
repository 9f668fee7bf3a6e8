"""Draft-token trees for one verification pass: attended pairs and expected tokens.

A tree is a tuple of parents, one per node: element i - 1 is the parent of node i, and is less than i.  Node 0 is the
root, the last accepted token, which the pass also processes.  Children of a node are in order of rank, the drafter's
likeliest first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

from llmviewer.core.frozen import frozen
from llmviewer.techniques.speculation.acceptance import Ranks

Tree: TypeAlias = tuple[int, ...]


def chain(drafted: int) -> Tree:
    """A chain of draft tokens; attention is causal with (drafted+1)(drafted+2)/2 pairs."""
    return tuple(range(drafted))


def full(widths: Sequence[int]) -> Tree:
    """The tree in which every node of a level has that level's number of children.

    This is SpecInfer's expansion <k1, k2, ...> (arXiv 2305.09781) and the cartesian product of the top choices of
    Medusa's heads (arXiv 2401.10774).
    """
    parents: list[int] = []
    level = [0]
    for width in widths:
        first = len(parents) + 1
        parents += [parent for parent in level for _ in range(width)]
        level = list(range(first, len(parents) + 1))
    return tuple(parents)


def depths(tree: Tree) -> tuple[int, ...]:
    """Depth of each draft node; children of the root have depth 1."""
    found = [0]
    for parent in tree:
        found.append(found[parent] + 1)
    return tuple(found[1:])


def pairs(tree: Tree) -> float:
    """Query-key pairs among the tokens of the pass, root included: each attends its ancestors and itself."""
    return 1.0 + sum(depth + 1.0 for depth in depths(tree))


def ranks(tree: Tree) -> tuple[int, ...]:
    """Rank of each draft node among its siblings, from 1."""
    seen = [0] * (len(tree) + 1)
    found = []
    for parent in tree:
        seen[parent] += 1
        found.append(seen[parent])
    return tuple(found)


def depth_probabilities(tree: Tree, rates: Ranks) -> tuple[float, ...]:
    """Probability that at least 0, 1, 2 ... draft tokens are accepted; the first is 1.

    Siblings exclude each other, so the probability of a depth is the sum over its nodes of the products of rates along
    their paths.
    """
    products, levels = [1.0], [1.0] + [0.0] * max(depths(tree), default=0)
    for parent, depth, rank in zip(tree, depths(tree), ranks(tree), strict=True):
        products.append(products[parent] * rates.at(depth, rank))
        levels[depth] += products[-1]
    return tuple(levels)


def expected(tree: Tree, rates: Ranks) -> float:
    """Expected tokens of a pass: the sum over all nodes of the product of rates along the path.

    The root counts 1 for the bonus token (Sequoia, arXiv 2402.12374).
    """
    return list(accumulate(depth_probabilities(tree, rates)))[-1]


def best(budget: int, rates: Ranks, depth: int) -> Tree:
    """The tree of at most `budget` draft nodes and `depth` levels with the most expected tokens.

    Nodes with rate 0 are not included.  Expected tokens are the sum of path products; a child's product never exceeds
    its parent's, nor a later rank's an earlier one's, so the nodes with the largest products form a tree, and it is
    optimal.  Sequoia (arXiv 2402.12374) finds the same tree by dynamic programming.
    """
    parents: list[int] = []
    waiting: list[tuple[float, int, int, int, int]] = []  # -product, order of discovery, parent, depth, rank

    def discover(product: float, parent: int, at: int, rank: int) -> None:
        worth = product * rates.at(at, rank)
        if worth > 0.0 and at <= depth:
            heapq.heappush(waiting, (-worth, len(parents) * 2 + (rank > 1), parent, at, rank))

    products = [1.0]
    discover(1.0, 0, 1, 1)
    while waiting and len(parents) < budget:
        negative, _, parent, at, rank = heapq.heappop(waiting)
        parents.append(parent)
        products.append(-negative)
        discover(products[parent], parent, at, rank + 1)
        discover(products[-1], len(parents), at + 1, 1)
    return tuple(parents)


@frozen
class MergedTrees:
    """Trees of several draft models, or of several samples of one, verified in one pass with a common root.

    overlap: share of the later trees' nodes that are also in the first, from 0 (independent draft models) to 1
    (identical trees); a merged node is stored and verified once (SpecInfer, arXiv 2305.09781).
    """

    trees: tuple[Tree, ...]
    overlap: float = 0.0

    @property
    def new_tokens(self) -> float:
        """Tokens of the verification pass, root included."""
        return 1.0 + self._first_and_new([float(len(tree)) for tree in self.trees])

    @property
    def pairs(self) -> float:
        """Query-key pairs among the tokens of the pass."""
        return 1.0 + self._first_and_new([pairs(tree) - 1.0 for tree in self.trees])

    def expected(self, rates: Sequence[Ranks]) -> float:
        """Expected tokens of a pass.  rates: one entry per tree.

        Independent draft models give 1 + sum_d 1 - prod_t (1 - Pr(tree t is right to depth d)); overlapping nodes add
        nothing to the first tree.
        """
        by_tree = [depth_probabilities(tree, rate) for tree, rate in zip(self.trees, rates, strict=True)]
        independent = 0.0
        for depth in range(max(map(len, by_tree))):
            missed = 1.0
            for levels in by_tree:
                missed *= 1.0 - (levels[depth] if depth < len(levels) else 0.0)
            independent += 1.0 - missed
        first = expected(self.trees[0], rates[0])
        return first + (1.0 - self.overlap) * (independent - first)

    def _first_and_new(self, counts: Sequence[float]) -> float:
        return counts[0] + (1.0 - self.overlap) * sum(counts[1:])
