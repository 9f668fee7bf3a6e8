"""`--speculative medusa`: extra LM heads on the last hidden state, each drafting one position further ahead."""

from __future__ import annotations

from collections.abc import Mapping

from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Block, Tensor
from llmviewer.core.workload import Step
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activate, activation, add
from llmviewer.ops.gemm import Linear
from llmviewer.serving.generation import Draft, Generation, PassShape
from llmviewer.techniques.speculation import rates, trees
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_options import required_acceptance, scheme_name
from llmviewer.techniques.speculation.module import Module, draft_module
from llmviewer.techniques.speculation.ranks import Ranks
from llmviewer.techniques.speculation.verification import round_facts, tree_verification_pass
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

SOURCE = "Medusa arXiv 2401.10774; https://github.com/FasterDecoding/Medusa, medusa/model/medusa_model.py"


def medusa_heads(target: Model, heads: int, layers: int = 1) -> Module:
    """`heads` heads of `layers` residual blocks, x + SiLU(W x + b), and a separate LM head each.

    Own parameters: heads (layers (h h + h) + V h).  They run at the positions that need logits.  With tensor
    parallelism the blocks are replicated and the LM heads split by vocabulary, as in vLLM.  The paper's code repeats
    one block if there are several layers; here each layer has its own weights.
    Source: arXiv 2401.10774, section 2.1.1 (one block).
    """
    width, dtype = target.hidden, target.dtype
    block = Linear(name="resblock_proj", in_features=width, out_features=width, dtype=dtype, bias=True)
    head = Linear(name="lm_head", in_features=width, out_features=target.head.lm_head.out_features, dtype=dtype)

    def blocks(step: Step) -> tuple[Block, ...]:
        x = Tensor(name="hidden", elements=step.logits * (1.0 * width), dtype=dtype)
        product = block.operator(x, step.logits)
        act = activate("resblock_act", product.output, step.logits, activation("silu"))
        residual = add("resblock_add", x, act.output, step.logits)
        return (
            Block(name="medusa_resblock", operators=(product, act, residual), repeats=heads * layers),
            Block(name="medusa_head", operators=(head.operator(x, step.logits),), repeats=heads, scope="model"),
        )

    return draft_module(target, f"Medusa, {heads} heads", blocks, SOURCE)


#: Nodes per level of the default tree of the paper's code, 63 in total:
#: https://github.com/FasterDecoding/Medusa, medusa/model/medusa_choices.py
LEVELS = (10, 28, 23, 2)
WHERE = "--speculative medusa"
HEADS = Parameter(name="heads", default=4, low=1, high=64, whole=True)
LAYERS = Parameter(name="layers", default=1, low=0, high=16, whole=True)
NODES = Parameter(name="nodes", default=sum(LEVELS), low=1, high=4096, whole=True)
#: Spec-Bench, Vicuna-7B: 2.32 tokens a pass with the tree above.
DEFAULT = "medusa-vicuna-7b"


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("heads", "layers", "nodes", "acceptance", "ranks"))
    heads, layers, nodes = (parameter.value(given, WHERE) for parameter in (HEADS, LAYERS, NODES))
    if "ranks" in given and "acceptance" in given:
        raise UserError(f"{WHERE}: give acceptance by level, or ranks to build the best tree from, not both")
    if nodes < heads:
        raise UserError(f"{WHERE}: a tree of {heads:g} levels has at least {heads:g} nodes; nodes is {nodes:g}")
    shape, expected, acceptance = _tree(given, heads, nodes)
    facts = round_facts(f"{heads:g} heads", nodes, acceptance)

    def make(target: Model) -> Generation:
        module = medusa_heads(target, int(heads), int(layers))
        draft = Draft(name=module.architecture, model=module, caches=False)
        return Generation(shape=shape, tokens=expected, drafts=(draft,), facts=facts)

    return change_generation(scheme_name("medusa", text), make)


def _tree(given: Mapping[str, str], heads: float, nodes: float) -> tuple[PassShape, Count, Acceptance | Ranks]:
    """Verification pass, expected tokens and rates of the best tree for given ranks, or of acceptance by level."""
    if "ranks" in given:
        ranked = rates.read_ranks(WHERE, given["ranks"])
        tree = trees.best(int(nodes), ranked, int(heads))
        shape = tree_verification_pass(float(len(tree)), heads, trees.pairs(tree))
        return shape, trees.expected(tree, ranked), ranked
    by_level = required_acceptance(WHERE, given, DEFAULT)
    published = (heads, nodes) == (len(LEVELS), sum(LEVELS))
    pairs = 1.0 + sum(count * (depth + 1.0) for depth, count in enumerate(LEVELS, 1)) if published else 0.0
    return tree_verification_pass(nodes, heads, pairs), by_level.tokens(heads), by_level


TECHNIQUE = Technique(
    name="medusa",
    kind="speculation",
    summary="Extra heads on the last hidden state draft one position each; a tree of their top choices is verified.",
    parameters={
        "heads": "number of heads (default: 4)",
        "nodes": "draft tokens of the tree (default: 63); equal to heads for a chain",
        "layers": "residual blocks per head (default: 1)",
        "acceptance": f"acceptance rate by level, or a published preset (default: {DEFAULT})",
        "ranks": "alternative: rates at which the first, second ... choice is right; the best tree is built from them",
    },
    formula="a head: h -> h (SiLU, residual), h -> V; verification of nodes + 1 tokens, a node at depth d attends "
    "d + 1; E = 1 + sum over levels of a_1 ... a_i; with ranks, the sum over nodes of the products along their paths",
    source=SOURCE,
    example="llmviewer analyze llama-2-7b --hardware a100 --speculative medusa,heads=4",
    make=_make,
)
