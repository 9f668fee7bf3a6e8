"""`--early-exit`: tokens that are sure of their next word leave before the last layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TypeVar

import numpy as np

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Role
from llmviewer.core.kinds import Kind
from llmviewer.techniques.sparsity.exit_checks import Confidence, exit_checks
from llmviewer.techniques.sparsity.exit_depth import Exits, StepTokens
from llmviewer.techniques.sparsity.expected_work import map_operators, with_probability
from llmviewer.techniques.technique import Change, Parameter, Technique

WHERE = "--early-exit"


class Fill(Enum):
    """How the cache of skipped layers gets the keys and values of a token that left early."""

    PROPAGATE = "propagate"  # made from its last hidden state (CALM, arXiv 2207.07061)
    RECOMPUTE = "recompute"  # with the next token that goes deeper (FREE, arXiv 2310.05424)
    NONE = "none"  # never: a bound


#: What skipped layers still make where hidden states are propagated.
KEYS_AND_VALUES = frozenset(
    "attn_norm attn_norm_quantize k_proj v_proj k_norm v_norm k_cache v_cache kv_a_proj kv_a_norm latent_cache".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExit:
    """When tokens leave, how they are asked, what becomes of the layers they skip."""

    exits: Exits
    confidence: Confidence = Confidence.CLASSIFIER
    fill: Fill = Fill.PROPAGATE
    jump: bool = False


def early_exit(plan: EarlyExit) -> Pass:
    """Expected work where tokens leave early: that of a layer times the probability that the step gets there.

    A batch goes as deep as its deepest token and whoever is done is carried along: 1 - (1 - Pr(depth >= l))^B.  Only
    steps whose tokens all ask for logits leave early: decode and verification, not a prefill, a chunk or a batch with
    either in it.  Skipped layers stay stored; their cache is filled as `plan.fill` says.  Where it is recomputed, the
    FLOPs of tokens are deferred, not saved; weights and cached keys are read when a layer runs.  The checks come from
    `exit_checks`; this pass goes last, so that collectives are skipped with their layers.
    """

    def change(graph: Graph) -> Graph:
        asked = StepTokens.of(graph)
        kinds = [block for block in graph.blocks if block.is_layer]
        depth = sum(block.repeats for block in kinds)
        reach, checked = plan.exits.reach(depth), plan.exits.checked(depth)
        runs = {
            block.name: asked.mean(reach[at] for at in numbers)
            for block, numbers in zip(kinds, layer_numbers(kinds), strict=True)
        }
        left = asked.may_leave * np.power(1.0 - reach[-1], asked.logits)
        chance = {
            "exit_check": asked.may_leave * asked.mean(reach[layer] for layer in checked),
            "exit_jump": left / len(checked),  # one matrix of those stored
        }

        def of(block: Block) -> Block:
            if block.name in chance:  # pruning may have left fewer layers to check than there were
                return map_operators(
                    replace(block, repeats=len(checked)), partial(with_probability, probability=chance[block.name])
                )
            if not block.is_layer:
                return block
            return map_operators(
                _check_fill(block, plan.fill), partial(_run_with_probability, runs=runs[block.name], fill=plan.fill)
            )

        return graph.map_blocks(of)

    return change


def _check_fill(block: Block, fill: Fill) -> Block:
    if fill is not Fill.RECOMPUTE and any(state.per_sequence for state in block.states):
        raise UserError(
            f"--early-exit: recurrent layers need every token, kv={fill.value} skips some; try kv=recompute"
        )
    return block


def _run_with_probability(operator: Operator, runs: Count, fill: Fill) -> Operator:
    """An operator of a layer that runs with probability `runs`."""
    if fill is Fill.RECOMPUTE:
        reads = tuple(a if a.tensor.role is Role.ACTIVATION else _scale_access(a, runs) for a in operator.reads)
        return replace(operator, reads=reads)
    kept = _cached_share(operator) if fill is Fill.PROPAGATE else 0.0
    if kept == 0.0:
        return with_probability(operator, runs)
    if kept == 1.0:
        return operator
    writes = tuple(a if a.tensor.name in KEYS_AND_VALUES else _scale_access(a, runs) for a in operator.writes)
    return replace(with_probability(operator, runs + (1.0 - runs) * kept), writes=writes)


def _scale_access(access: Access, share: Count) -> Access:
    return Access(access.tensor, access.elements * share)


def _cached_share(operator: Operator) -> float:
    """The share of an operator's output that ends in the cache; a copy that takes it elsewhere carries nothing else."""
    sizes = [float(np.max(access.elements)) for access in operator.writes]  # it may not run at the first point
    kept = sum(size for size, a in zip(sizes, operator.writes, strict=True) if a.tensor.name in KEYS_AND_VALUES)
    if kept == 0.0:
        return 0.0
    return 1.0 if operator.kind is Kind.COPY else kept / sum(sizes)


_MEAN = Parameter(name="mean", low=0.0, high=1.0)
_DEPTH = Parameter(name="layer", low=1, high=10000, whole=True)
_PROBABILITY = Parameter(name="probability", low=0.0, high=1.0)

Choice = TypeVar("Choice", bound=Enum)


def _choice(kind: type[Choice]) -> Callable[[str], Choice]:
    words = {member.value: member for member in kind}

    def read(text: str) -> Choice:
        if text not in words:
            raise unknown(f"word of {WHERE}", text, words)
        return words[text]

    return read


def _exits(text: str) -> Exits:
    """`8:0.3/16:0.4`: 30 % leave after 8 layers, 40 % after 16."""
    at = []
    for pair in text.split("/"):
        depth, colon, probability = pair.partition(":")
        if not colon:
            raise UserError(f"{WHERE}: {quoted(pair)} is no exit; write layers:probability, as in exits=8:0.3/16:0.4")
        at.append((int(_DEPTH.parse(depth, WHERE)), _PROBABILITY.parse(probability, WHERE)))
    if len({depth for depth, _ in at}) < len(at) or sum(p for _, p in at) > 1.0 + 1e-9:
        raise UserError(f"{WHERE}: exits {quoted(text)} must name different layers, with probabilities up to 1 in all")
    return Exits(at=tuple(sorted(at)))


def _two_exit(text: str) -> Exits:
    if "/" in text:
        raise UserError(f"{WHERE}: two-exit is {quoted(text)}; allowed: one layer, as in two-exit=8:0.7")
    return _exits(text)


#: name=... -> (field of EarlyExit, how it is read).
PARAMETERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "mean": ("exits", lambda text: Exits(mean=_MEAN.parse(text, WHERE))),
    "exits": ("exits", _exits),
    "two-exit": ("exits", _two_exit),
    "confidence": ("confidence", _choice(Confidence)),
    "kv": ("fill", _choice(Fill)),
    "jump": ("jump", lambda text: {"": True}[text]),
}


def parse(text: str) -> EarlyExit:
    """`mean=0.6,confidence=softmax,kv=recompute,jump` -> EarlyExit."""
    given: dict[str, object] = {}
    for piece in text.split(","):
        name, equals, value = piece.strip().partition("=")
        if name not in PARAMETERS:
            raise unknown(f"parameter of {WHERE}", name, PARAMETERS)
        if bool(equals) == (name == "jump"):
            raise UserError(f"{WHERE}: write {'jump' if name == 'jump' else name + '=...'}, not {quoted(piece)}")
        field, read = PARAMETERS[name]
        if field in given:
            raise UserError(f"{WHERE}: {name} says again what was said")
        given[field] = read(value)
    if "exits" not in given:
        raise UserError(f"{WHERE}: when do tokens leave? write mean=0.6, exits=8:0.3/16:0.4 or two-exit=8:0.7")
    return EarlyExit(**given)  # type: ignore[arg-type]


def _make(text: str) -> Change:
    plan = parse(text)

    def change(system: System) -> System:
        if plan.exits.never:
            return system
        if system.parallelism.pipeline > 1:
            raise UserError(
                f"{WHERE}: idle stages behind an exit are not modelled; leave out it or --pipeline-parallel-size"
            )
        checks = AppliedTechnique(
            name="exit_checks", make=lambda _: exit_checks(plan.exits, plan.confidence, jump=plan.jump)
        )  # first: what is checked is quantized, fused and shared as the rest
        return replace(
            system, passes=(checks, *system.passes, AppliedTechnique(name=f"early_exit({text})", make=_pass))
        )

    def _pass(_: object) -> Pass:
        return early_exit(plan)

    return change


TECHNIQUE = Technique(
    name="early_exit",
    kind="sparsity",
    summary="Tokens that are sure leave before the last layer; a batch goes as deep as its deepest one.",
    parameters={
        "mean": "share of the layers that a token takes in the mean",
        "exits": "layers:probability/...: who leaves where, 8:0.3/16:0.4",
        "two-exit": "layers:probability of a single exit",
        "confidence": "how a token is found sure: classifier, softmax, similarity",
        "kv": "what fills the cache of skipped layers: propagate, recompute, none",
        "jump": "alone: a linear map instead of the skipped layers",
    },
    formula="work of layer l x (1 - (1 - Pr(depth >= l))^B); mean: Pr(depth > l) = r^l with mean r^l = share; checks: "
    "4 hidden (classifier), lm_head and 5 per logit (softmax), 6 hidden (similarity) FLOP per token; propagation keeps "
    "k_proj and v_proj",
    source="CALM arXiv 2207.07061; FREE arXiv 2310.05424 (two exits, recomputation); linear jump arXiv 2303.09435; "
    "batches run to their deepest token arXiv 2407.20272",
    example="llmviewer analyze llama-2-7b --hardware a6000 --early-exit mean=0.6",
    make=_make,
)
