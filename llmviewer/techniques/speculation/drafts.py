"""Methods of --speculative whose drafts come from a smaller model, or from parts of the target itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Annotated

import numpy as np

from llmviewer import models
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.language.grammar import Form, Grammar, Number
from llmviewer.layers.decoder import DecoderLayer, Residual
from llmviewer.models.model import Model
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft, Generation, PassShape
from llmviewer.techniques.speculation import trees
from llmviewer.techniques.speculation.acceptance import Acceptance, Ranks, from_independent_draws
from llmviewer.techniques.speculation.head_files import head_change, head_of
from llmviewer.techniques.speculation.method import (
    Rates,
    Rounds,
    Tokens,
    drafted,
    read_acceptance,
    read_ranks,
    round_change,
    round_facts,
    scheme_name,
    speculation,
    tree_verification_pass,
    verification_pass,
)
from llmviewer.techniques.speculation.module import checkpoint_formats
from llmviewer.techniques.speculation.trees import MergedTrees, Tree
from llmviewer.techniques.technique import Change, Whole, called, declared, refusing

#: SpecInfer, table 1: LLaMA-68M for LLaMA-7B, Alpaca, greedy.
DEFAULT_RANKS = "draft-llama-68m"
#: Most nodes and levels of a tree, and default limit of the levels of the best one: SpecInfer's speculation length.
MAX_NODES, MAX_DEPTH, USUAL_DEPTH = 4096, 64, 8
#: Options that the draft model may have for itself.
Formats = Annotated[str, Form(help="number format of the draft model's weights, e.g. w4a16", unset="its checkpoint's")]
Devices = Annotated[str, Form(help="devices that share the draft model", unset="those of the target")]


@frozen
class Stopping:
    """How well a draft model's confidence tells right from wrong tokens.

    right, wrong: probability that it drafts another token after one that the target accepts, or one that it rejects (or
    that follows a rejected one).
    """

    right: float
    wrong: float


def read_stopping(text: str) -> Stopping:
    """The two probabilities of a text such as 0.95/0.3.  Raises ValueError."""
    right, _, wrong = text.partition("/")
    try:
        stopping = Stopping(right=float(right), wrong=float(wrong))
    except ValueError:
        stopping = Stopping(right=-1.0, wrong=-1.0)
    if not 0.0 <= stopping.wrong <= stopping.right <= 1.0:
        raise ValueError(
            "allowed: two probabilities from 0 to 1, of going on after a right and after a wrong token, the second not "
            "above the first: 0.95/0.3"
        )
    return stopping


ADAPTIVE = Form(
    help="probabilities that drafting goes on after a token that the target will accept, and after one that it will "
    "reject: 0.95/0.3; 1/0 for an oracle; tokens is then the most",
    parse=read_stopping,
    unset="a fixed number",
)


def adaptive_round(draft: Draft, tokens: float, accepted: Acceptance, stopping: Stopping) -> Generation:
    """A round of at most `tokens` draft tokens; the target verifies as many as were drafted.

    With right tokens only, i draft tokens are followed by another pass with r_i = r_(i-1) a_i right, with a wrong one
    among them with w_i = (r_(i-1) (1 - a_i) + w_(i-1)) wrong; pass i + 1 runs with r_i + w_i.  All passes: their sum;
    expected tokens: 1 + sum of r_(i-1) a_i; pairs: 1 + sum of (i + 1)(r_(i-1) + w_(i-1)).  One pass over the mean
    number of tokens replaces passes over each number.  Source: Kangaroo arXiv 2404.18911, DISCO arXiv 2405.04304; their
    code keeps the token that ends a round.
    """
    rates = np.array([accepted.at(position) for position in range(1, int(tokens) + 1)])
    right = np.cumprod([1.0, *(rates[:-1] * stopping.right)])  # all tokens before a pass are right
    wrong = np.zeros_like(right)
    for at in range(1, len(right)):
        wrong[at] = (right[at - 1] * (1.0 - rates[at - 1]) + wrong[at - 1]) * stopping.wrong
    runs, number = right + wrong, np.arange(1.0, len(right) + 1.0)
    passes = float(runs.sum())
    ahead = float((runs * (number - 1.0)).sum()) / passes
    pairs = 1.0 + float((runs * (number + 1.0)).sum())
    known = f"{stopping.right:g}/{stopping.wrong:g}"
    return Generation(
        shape=PassShape(new_tokens=passes + 1.0, logit_positions=passes + 1.0, attended_new_pairs=pairs),
        tokens=1.0 + float((right * rates).sum()),
        drafts=(replace(draft, passes=passes, shape=PassShape(ahead=ahead)),),
        facts={**round_facts(draft.name, passes, accepted), "most_tokens": tokens, "adaptive": known},
        min_spare_tokens=tokens,
    )


def draft_round(draft: Draft, tokens: float, accepted: Acceptance) -> Generation:
    """A round: `tokens` passes of the draft model, one token each, then one verification pass over tokens + 1 tokens.

    Expected tokens per round, including the bonus token: 1 + a_1 + a_1 a_2 + ..., for a constant rate a
    (1 - a^(g+1)) / (1 - a).  The cache of the i-th draft pass is i - 1 tokens longer than that of the first; all passes
    use the mean, (g - 1) / 2.  Not modelled: after a round without rejection the draft model processes one more token.
    Source: Leviathan et al., arXiv 2211.17192, equation 1.
    """
    return Generation(
        shape=verification_pass(tokens),
        tokens=accepted.tokens(tokens),
        drafts=(replace(draft, passes=tokens, shape=PassShape(ahead=max(tokens - 1.0, 0.0) / 2.0)),),
        facts=round_facts(draft.name, tokens, accepted),
    )


def drafting(draft: Draft, tokens: float, accepted: Acceptance, stopping: Stopping | None) -> Generation:
    """A round of a fixed number of draft tokens, or of at most that many if drafting may end before."""
    if stopping is None or not tokens:
        return draft_round(draft, tokens, accepted)
    return adaptive_round(draft, tokens, accepted, stopping)


def draft_of(model: Model, quantization: str, tensor_parallel_size: str) -> Draft:
    """A known model as draft model, with its own options."""
    own = {"quantization": quantization or model.quantization, "tensor_parallel_size": tensor_parallel_size}
    return Draft(name=model.name, model=model, techniques={name: text for name, text in own.items() if text})


def smaller_model(
    *,
    draft: Annotated[
        Model,
        Form(
            help="name or path of the draft model, or path of a draft head's config (EAGLE, EAGLE-3, DFlash, DSpark, "
            "Domino, MTP, Medusa, MLP speculator)",
            parse=models.load,
        ),
    ],
    tokens: Tokens,
    acceptance: Rates,
    adaptive: Annotated[Stopping | None, ADAPTIVE] = None,
    distilled: Annotated[
        float,
        Number(
            "share of rejections that distillation of the draft model avoids, before or while it serves (online, on "
            "spare compute)",
            0.0,
            1.0,
        ),
    ] = 0.0,
    topk: Annotated[str, Form(help="children of every node of an EAGLE head's tree (only with its config)")] = "",
    nodes: Annotated[str, Form(help="drafted tokens of an EAGLE head's tree (only with its config)")] = "",
    quantization: Formats = "",
    tensor_parallel_size: Devices = "",
) -> Rounds:
    """A smaller model drafts tokens one after another; the target model verifies them in one pass."""
    if topk or nodes:
        raise UserError(f"{'topk' if topk else 'nodes'} is an option of EAGLE heads; a draft model drafts a chain")
    model, rates = draft_of(draft, quantization, tensor_parallel_size), acceptance.distilled(distilled)
    return drafted(tokens, lambda drafts, _: drafting(model, drafts, rates, adaptive))


def _make(text: str) -> Change:
    with refusing(WHERE):
        words = GRAMMAR.words(text)
    head = head_of(words["draft"]) if words.get("draft") else None
    if head is not None:
        return head_change(head, text, words)
    return round_change(scheme_name("", text), called(smaller_model, WHERE, GRAMMAR, text))


WHERE = "--speculative draft=NAME"
GRAMMAR = Grammar.of(smaller_model)
DRAFT = declared(
    smaller_model,
    GRAMMAR,
    _make,
    name="draft",
    kind="speculation",
    formula="time per token = (verification of g + 1 tokens + g passes of the draft model) / E; "
    "E = 1 + sum over i of a_1 ... a_i = (1 - a^(g+1)) / (1 - a), including the bonus token; distilled: "
    "1 - (1 - a)(1 - share); adaptive r/w: pass i + 1 runs with (a r)^i, or after wrong tokens with a power of w; "
    "memory: both models and both caches, g tokens longer",
    source="Leviathan et al. arXiv 2211.17192 (equation 1, theorem 3.8); distillation arXiv 2310.08461, while serving "
    "(online) arXiv 2310.07177; adaptive: DISCO arXiv 2405.04304, Kangaroo arXiv 2404.18911; "
    "vLLM https://docs.vllm.ai/en/latest/features/spec_decode/",
    example="llama-2-70b --hardware h100 -tp 4 --speculative draft=tinyllama-1.1b,tokens=4,acceptance=0.7",
)


@speculation(
    "fallback",
    formula="q = 1 - fallback: draft passes 1 + q + ... + q^(g-1); the target verifies 1 + q + ... + q^g tokens; "
    "E = 1 + sum over i = 1..g of (q (1 - rollback))^i",
    source="BiLD arXiv 2302.07863; https://github.com/kssteven418/BigLittleDecoder (10 tokens at most)",
    example="llama-2-70b --hardware h100 -tp 4 --speculative fallback,draft=tinyllama-1.1b,fallback=0.2,rollback=0.1",
)
def fallback_rounds(
    *,
    draft: Annotated[Model, Form(help="name or path of the draft model", parse=models.load)],
    fallback: Annotated[float, Number("probability that the draft model is not confident of a token", 0.0, 1.0)],
    rollback: Annotated[float, Number("probability that the target rejects a token", 0.0, 1.0)] = 0.0,
    tokens: Annotated[float, Whole("most draft tokens per round", 0, 1024)] = 10.0,
    quantization: Formats = "",
    tensor_parallel_size: Devices = "",
) -> Generation:
    """A smaller model writes tokens while it is confident; the target then verifies them in one pass and adds a token
    (BiLD).  Answers may differ from the target's own.

    Each token is confident with q = 1 - fallback, independently, so k tokens are kept with Pr(k >= i) = q^i:
    - the i-th draft pass runs if the i - 1 before it were confident: sum over i < tokens of q^i passes (the token of
      the unconfident pass is dropped), on average sum i q^i / sum q^i tokens ahead;
    - verified tokens: E[k] = sum over i = 1 .. tokens of q^i, and the token before them;
    - pairs among them: E[(k+1)(k+2)/2] = 1 + sum (i + 1) q^i;
    - the target rolls back a token with probability `rollback` if it kept all before, and writes its own; it also adds
      a token after the last one: 1 + sum (q (1 - rollback))^i tokens per round.
    Approximation: one pass over the mean number of tokens replaces passes over each number, whose mean time may be a
    little longer.  Unlike speculative sampling, answers change: accepted tokens need not be the target's own choice.
    Source: BiLD, arXiv 2302.07863.
    """
    if not tokens:
        return AUTOREGRESSIVE
    model = draft_of(draft, quantization, tensor_parallel_size)
    confident = (1.0 - fallback) ** np.arange(tokens + 1.0)
    passes, kept = float(confident[:-1].sum()), float(confident[1:].sum())
    ahead = float((confident[:-1] * np.arange(tokens)).sum()) / passes
    pairs = 1.0 + float((confident[1:] * np.arange(2.0, tokens + 2.0)).sum())
    accepted = Acceptance(rates=((1.0 - fallback) * (1.0 - rollback),))
    return Generation(
        shape=PassShape(
            new_tokens=kept + 1.0, logit_positions=kept + 1.0, attended_new_pairs=pairs if fallback % 1.0 else None
        ),
        tokens=accepted.tokens(tokens),
        drafts=(replace(model, passes=passes, shape=PassShape(ahead=ahead)),),
        facts={"draft": model.name, "drafted_tokens": kept, "fallback": fallback, "rollback": rollback},
    )


@frozen
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


def _numbered(drafts: Sequence[Draft]) -> list[Draft]:
    """The draft models with a number after names that occur again: checkpoints of one architecture, tuned apart."""
    before = [[one.name for one in drafts[:at]].count(draft.name) for at, draft in enumerate(drafts)]
    return [replace(one, name=f"{one.name} ({n + 1})") if n else one for one, n in zip(drafts, before, strict=True)]


def read_widths(text: str) -> list[int]:
    """Parse `1/1/3/1`, the children of a node by level."""
    allowed = f"allowed: whole numbers from 1, one per level, with at most {MAX_NODES:,} nodes in total"
    parts = text.split("/")
    if not all(part.strip().isdecimal() and int(part[:6]) > 0 for part in parts) or len(parts) > MAX_DEPTH:
        raise ValueError(allowed)
    widths = [int(part) for part in parts]
    if sum(prod(widths[: depth + 1]) for depth in range(len(widths))) > MAX_NODES:
        raise ValueError(allowed)
    return widths


DraftModels = Annotated[
    list[Model],
    Form(
        help="name of the draft model; several, joined by +, draft one after another, and their trees are merged "
        "at the root; x+x: two checkpoints of one architecture, tuned apart",
        parse=lambda text: [models.load(name) for name in text.split("+")],
    ),
]
RanksOfModels = Annotated[
    list[Ranks] | None,
    Form(
        help="rates at which the first, second ... choice is right, or a published preset; per draft model, joined "
        "by +",
        parse=lambda text: [read_ranks(one) for one in text.split("+")],
        unset=DEFAULT_RANKS,
    ),
]


@speculation(
    "tree",
    formula="one draft pass over the nodes of each level, verification of all nodes and the root, where a node at "
    "depth d attends d + 1; E = 1 + sum over nodes of the products of rates along their paths; one of k independent "
    "draws is right with 1 - (1-a)^k, an upper bound; several draft models: 1 - product of (1 - Pr(right to depth d))",
    source="SpecInfer arXiv 2305.09781; best tree: Sequoia arXiv 2402.12374",
    example="llama-2-70b --hardware h100 -tp 4 --speculative tree,draft=tinyllama-1.1b,widths=1/1/3/1",
)
def tree_rounds(
    *,
    draft: DraftModels,
    widths: Annotated[
        list[int] | None, Form(help="children per node by level, e.g. 1/1/3/1", parse=read_widths)
    ] = None,
    budget: Annotated[float | None, Whole("alternative to widths: nodes of the best tree", 0, MAX_NODES)] = None,
    depth: Annotated[float | None, Whole("most levels of the best tree", 1, MAX_DEPTH, unset=f"{USUAL_DEPTH}")] = None,
    ranks: RanksOfModels = None,
    acceptance: Annotated[
        list[Acceptance] | None,
        Form(
            help="alternative to ranks: rate of one independent draw",
            parse=lambda text: [read_acceptance(one) for one in text.split("+")],
        ),
    ] = None,
    overlap: Annotated[float, Number("share of tokens that several draft models have in common", 0.0, 1.0)] = 0.0,
    quantization: Formats = "",
    tensor_parallel_size: Devices = "",
) -> Generation:
    """One or more smaller models draft a tree of tokens level by level; the target verifies it in one pass with tree
    attention.
    """
    if (widths is None) == (budget is None):
        raise UserError("give widths=1/1/3/1 by level, or budget=16 for the best tree of that many nodes")
    if widths is not None and depth is not None:
        raise UserError("widths already set the depth of the tree; remove depth")
    if ranks and acceptance:
        raise UserError("give either ranks or the acceptance of independent draws, not both")
    widest = max(widths) if widths else max(int(budget or 0), 1)
    rates = ranks or [from_independent_draws(one, widest) for one in acceptance or ()] or [read_ranks(DEFAULT_RANKS)]
    if len(rates) not in (1, len(draft)):
        raise UserError(f"rates are given for {len(rates)} draft models, but there are {len(draft)}")
    rates = rates * len(draft) if len(rates) == 1 else rates
    if widths:
        draft_trees = [trees.full(widths)] * len(draft)
    else:
        draft_trees = [trees.best(int(budget or 0), rate, int(depth or USUAL_DEPTH)) for rate in rates]
    if not draft_trees[0]:
        return AUTOREGRESSIVE
    drafts = _numbered([draft_of(model, quantization, tensor_parallel_size) for model in draft])
    return tree_round(drafts, draft_trees, rates, overlap)


def with_parts_skipped(target: Model, attention: float, mlp: float) -> Model:
    """The target without the shares `attention` and `mlp` of its attention (or recurrent) and MLP parts.

    The number of skipped parts is rounded per kind of layer; each is skipped with its norm and residual sum.  The
    method chooses them by a search on sample data.  The remaining parts read the caches that the target has filled.
    """
    kept = [(layer.name, part) for layer in target.layers for part in _kept(layer, attention, mlp)]
    formats = checkpoint_formats(target, {part.name: (source, part.repeats) for source, part in kept})
    layers = tuple(part for _, part in kept)
    return replace(target, name=f"{target.name} with layers skipped", layers=layers, checkpoint=formats)


def _kept(layer: DecoderLayer, attention: float, mlp: float) -> Iterator[DecoderLayer]:
    """Layers that keep both parts, then layers that keep only one, both spread evenly."""
    mixers = layer.repeats - round(layer.repeats * attention) if layer.mixer else 0
    parts = layer.repeats - round(layer.repeats * mlp) if layer.feed_forward else 0
    both, kept = min(mixers, parts), _spread(layer.numbers or range(layer.repeats), max(mixers, parts))
    whole = _spread(kept, both)
    partly = tuple(number for number in kept if number not in whole)
    if both:
        yield replace(layer, repeats=both, numbers=whole)
    if mixers > both:
        name = layer.name if not layer.feed_forward else f"{layer.name}_attention"
        yield replace(layer, name=name, repeats=mixers - both, numbers=partly, feed_forward=None)
    if parts > both:
        norms = layer.norms
        if layer.residual is Residual.PARALLEL and norms.mlp is None:  # one norm is used by both parts
            norms = replace(norms, mlp=norms.attn)
        name = layer.name if not layer.mixer else f"{layer.name}_mlp"
        yield replace(layer, name=name, repeats=parts - both, numbers=partly, mixer=None, norms=norms)


def _spread(numbers: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` of the layer numbers, spread evenly."""
    return tuple(numbers[at * len(numbers) // count] for at in range(count))


@speculation(
    "self",
    formula="time per token = (verification of g + 1 tokens + g passes of the remaining parts) / E; "
    "E = 1 + a_1 + a_1 a_2 + ...; extra memory: KV cache of g tokens only",
    source="Draft & Verify arXiv 2309.08168",
    example="llama-2-13b --hardware a100 --speculative self,attention=0.5,mlp=0.25,tokens=4,acceptance=0.8",
)
def parts_skipped(
    *,
    attention: Annotated[float, Number("share of attention parts that drafting skips", 0.0, 0.99)],
    mlp: Annotated[float, Number("share of MLP parts that drafting skips", 0.0, 0.99)],
    tokens: Tokens,
    acceptance: Rates,
    adaptive: Annotated[Stopping | None, ADAPTIVE] = None,
) -> Rounds:
    """The target drafts for itself with some of its layer parts skipped, using its own weights and KV cache."""

    def round_of(drafts: float, target: Model) -> Generation:
        model = with_parts_skipped(target, attention, mlp)
        draft = Draft(name=model.name, model=model, caches=False, shared=None, same_weights=True)
        return drafting(draft, drafts, acceptance, adaptive)

    return drafted(tokens, round_of)
