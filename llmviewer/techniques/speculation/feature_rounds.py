"""Rounds in which a layer on the model's features drafts, token after token, in a chain or in a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from llmviewer.core.errors import UserError, quoted
from llmviewer.models.model import Model
from llmviewer.serving.generation import Draft, Generation, Shape
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
    """What drafts.  first, later: as it runs in the first pass of a round and in those after it.

    shared: weights that are the model's.  modules: as many with weights and caches of their own, one a token in turn.
    """

    name: str
    first: Model
    later: Model
    shared: tuple[str, ...]
    modules: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShape:
    """topk: nodes of a level that are continued, and children that each gets.  nodes: drafted ones to verify."""

    topk: float
    nodes: float


def feature_round(
    layers: FeatureDrafter, tokens: float, by_position: Acceptance, tree: TreeShape | None = None
) -> Generation:
    """A round: the layer's `tokens` passes, then one pass of the model over what they drafted.

    The first pass takes in the model's features of all tokens that the round before has brought, E of them in the
    mean; those after it one token, or the `topk` of a tree, each of which sees its own path alone.  The i-th of them
    finds i - 1 tokens more in the cache; the mean stands for all.
    tokens: of a tree its depth; acceptance then says how often one of a level's nodes is right.
    Source: arXiv 2401.15077; https://github.com/vllm-project/vllm, vllm/v1/spec_decode/eagle.py.
    """
    expected = by_position.tokens(tokens)
    width = tree.topk if tree else 1.0
    later = Shape(
        new_tokens=width,
        logit_positions=width,
        attended_new_pairs=width if tree else None,
        ahead=max(tokens - 2.0, 0.0) / 2.0,
    )
    verified = tree_verification_pass(tree.nodes, tokens) if tree else verification_pass(tokens)
    return Generation(
        shape=verified,
        tokens=expected,
        drafts=tuple(_module_passes(layers, tokens, Shape(new_tokens=expected), later)),
        facts=round_facts(layers.name, tree.nodes if tree else tokens, by_position),
    )


def _module_passes(layers: FeatureDrafter, tokens: float, first: Shape, later: Shape) -> Iterator[Draft]:
    """Every module's first pass of a round and the passes after it, which read the same weights and cache."""
    for module in range(layers.modules):
        passes = max(float(np.ceil((tokens - module) / layers.modules)), 0.0)
        name = layers.name if layers.modules == 1 else f"{layers.name} {module + 1}"
        yield Draft(name=name, model=layers.first, passes=min(passes, 1.0), shape=first, shared=layers.shared)
        yield Draft(
            name=f"{name}, later passes",
            model=layers.later,
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
    """Words of layers that draft in chains or trees, and what the registry says of them.  default: of acceptance."""
    return {
        "tokens": f"{TOKENS_HELP}; of a tree its depth",
        "acceptance": f"{ACCEPTANCE_HELP}; of a chain {default} unless said",
        "topk": "of a tree: children of a node; 1 unless said",
        "nodes": "of a tree: drafted tokens to verify (SGLang's num-draft-tokens - 1)",
        "width": "of its feed-forward part; the model's unless said",
    }


def feature_method(
    method: str,
    text: str,
    given: Mapping[str, str],
    layers: Callable[[Model], FeatureDrafter],
    default: str,
    tokens: float = 0.0,
) -> Change:
    """The change by which layers draft.

    given: the words of the text.  default: published acceptance of a chain, "" where there is none; tokens: drafted
    unless said otherwise, 0 where that must be said.
    """
    where = f"--speculative {method}"
    tree = read_tree(where, given)
    by_position = required_acceptance(where, given, "" if tree else default)

    def make(drafting: float, target: Model) -> Generation:
        return feature_round(layers(target), drafting, by_position, tree)

    return draft_tokens_change(scheme_name(method, text), where, given, make, tokens)


def read_tree(where: str, given: Mapping[str, str]) -> TreeShape | None:
    """The tree that is asked for, checked; None is a chain."""
    topk = TOPK.value(given, where)
    if topk == 1.0:
        if "nodes" in given:
            raise UserError(f"{where}: a tree of {quoted(given['nodes'])} nodes needs topk=2 or more")
        return None
    if given.get("tokens") == "best":
        raise UserError(f"{where}: tokens=best is of a chain; of a tree with topk={topk:g} give its depth: tokens=5")
    depth, nodes = DEPTH.value(given, where), NODES.value(given, where)
    most = topk + topk * topk * (depth - 1.0)
    if not depth <= nodes <= most:
        raise UserError(f"{where}: nodes is {nodes:g}; {depth:g} levels of topk={topk:g} have {depth:g} to {most:g}")
    return TreeShape(topk=topk, nodes=nodes)
