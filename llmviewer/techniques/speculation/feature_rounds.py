"""Rounds of drafters that run on the target's hidden states, in a chain or in a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from llmviewer.core.errors import UserError, quoted
from llmviewer.models.model import Model
from llmviewer.serving.generation import Draft, Generation, PassShape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_options import (
    ACCEPTANCE_HELP,
    TOKENS_HELP,
    draft_tokens_change,
    required_acceptance,
    scheme_name,
)
from llmviewer.techniques.speculation.verification import round_facts, tree_verification_pass, verification_pass
from llmviewer.techniques.technique import Change, Parameter


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureDrafter:
    """A drafter on the target's hidden states.  first, later: its model in the first pass of a round and in later ones.

    shared: names of weights that it shares with the target.  modules: drafters with separate weights and caches, used
    in turn for one token each.
    """

    name: str
    first: Model
    later: Model
    shared: tuple[str, ...]
    modules: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShape:
    """Shape of a draft tree.  topk: nodes extended per level, and children of each.  nodes: draft tokens to verify."""

    topk: float
    nodes: float


def feature_round(
    drafter: FeatureDrafter, tokens: float, by_position: Acceptance, tree: TreeShape | None = None
) -> Generation:
    """A round: `tokens` passes of the drafter, then one verification pass of the target.

    The first pass processes the hidden states of all tokens of the previous round, E on average; later passes process
    one token, or `topk` tokens of a tree, each of which attends only its own path.  The cache of the i-th later pass is
    i - 1 tokens longer; all use the mean.
    tokens: for a tree its depth; acceptance is then the probability that a level contains the target's token.
    Source: arXiv 2401.15077; https://github.com/vllm-project/vllm, vllm/v1/spec_decode/eagle.py.
    """
    expected = by_position.tokens(tokens)
    width = tree.topk if tree else 1.0
    later = PassShape(
        new_tokens=width,
        logit_positions=width,
        attended_new_pairs=width if tree else None,
        ahead=max(tokens - 2.0, 0.0) / 2.0,
    )
    verified = tree_verification_pass(tree.nodes, tokens) if tree else verification_pass(tokens)
    return Generation(
        shape=verified,
        tokens=expected,
        drafts=tuple(_module_passes(drafter, tokens, PassShape(new_tokens=expected), later)),
        facts=round_facts(drafter.name, tree.nodes if tree else tokens, by_position),
    )


def _module_passes(drafter: FeatureDrafter, tokens: float, first: PassShape, later: PassShape) -> Iterator[Draft]:
    """First and later passes of every module in a round; both use the same weights and cache."""
    for module in range(drafter.modules):
        passes = max(float(np.ceil((tokens - module) / drafter.modules)), 0.0)
        name = drafter.name if drafter.modules == 1 else f"{drafter.name} {module + 1}"
        yield Draft(name=name, model=drafter.first, passes=min(passes, 1.0), shape=first, shared=drafter.shared)
        yield Draft(
            name=f"{name}, later passes",
            model=drafter.later,
            passes=max(passes - 1.0, 0.0),
            shape=later,
            caches=False,
            shared=None,
        )


WIDTH = Parameter(name="width", default=0, low=1, high=1e6, whole=True)
TOPK = Parameter(name="topk", default=1, low=1, high=64, whole=True)
NODES = Parameter(name="nodes", low=1, high=4096, whole=True)
DEPTH = Parameter(name="tokens", low=1, high=64, whole=True)


def feature_parameters(default: str) -> dict[str, str]:
    """Parameters of chain and tree drafters with their help texts.  default: acceptance preset of a chain."""
    return {
        "tokens": f"{TOKENS_HELP}; for a tree its depth",
        "acceptance": f"{ACCEPTANCE_HELP} (default for a chain: {default})",
        "topk": "children of each tree node (default: 1, a chain)",
        "nodes": "draft tokens of a tree to verify (SGLang's num-draft-tokens - 1)",
        "width": "width of the drafter's MLP (default: that of the target)",
    }


def feature_method(
    method: str,
    text: str,
    given: Mapping[str, str],
    drafter: Callable[[Model], FeatureDrafter],
    default: str,
    tokens: float = 0.0,
) -> Change:
    """The change to rounds of a drafter on hidden states.

    given: parameters of `text`.  default: published acceptance of a chain, "" if there is none.  tokens: default number
    of draft tokens; 0 if the user must give it.
    """
    where = f"--speculative {method}"
    tree = read_tree(where, given)
    by_position = required_acceptance(where, given, "" if tree else default)

    def make(drafted: float, target: Model) -> Generation:
        return feature_round(drafter(target), drafted, by_position, tree)

    return draft_tokens_change(scheme_name(method, text), where, given, make, tokens)


def read_tree(where: str, given: Mapping[str, str]) -> TreeShape | None:
    """The requested tree, checked; None for a chain."""
    topk = TOPK.value(given, where)
    if topk == 1.0:
        if "nodes" in given:
            raise UserError(f"{where}: a tree of {quoted(given['nodes'])} nodes needs topk=2 or more")
        return None
    if given.get("tokens") == "best":
        raise UserError(
            f"{where}: tokens=best works only for chains; for a tree with topk={topk:g} give its depth: tokens=5"
        )
    depth, nodes = DEPTH.value(given, where), NODES.value(given, where)
    most = topk + topk * topk * (depth - 1.0)
    if not depth <= nodes <= most:
        raise UserError(f"{where}: nodes is {nodes:g}; {depth:g} levels of topk={topk:g} have {depth:g} to {most:g}")
    return TreeShape(topk=topk, nodes=nodes)
