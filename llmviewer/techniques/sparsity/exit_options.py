"""`--early-exit`: tokens whose prediction is confident exit before the last layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.ir import Pass
from llmviewer.techniques.sparsity.early_exit import EarlyExit, Fill, early_exit
from llmviewer.techniques.sparsity.exit_checks import Confidence, exit_checks
from llmviewer.techniques.sparsity.exit_depth import Exits
from llmviewer.techniques.technique import Change, Parameter, Technique

WHERE = "--early-exit"
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
    """Parse `8:0.3/16:0.4`: 30 % of the tokens exit after 8 layers, 40 % after 16."""
    at = []
    for pair in text.split("/"):
        depth, colon, probability = pair.partition(":")
        if not colon:
            raise UserError(
                f"{WHERE}: {quoted(pair)} is not an exit; write layers:probability, as in exits=8:0.3/16:0.4"
            )
        at.append((int(_DEPTH.parse(depth, WHERE)), _PROBABILITY.parse(probability, WHERE)))
    if len({depth for depth, _ in at}) < len(at) or sum(p for _, p in at) > 1.0 + 1e-9:
        raise UserError(f"{WHERE}: exits {quoted(text)} must name different layers, with probabilities up to 1 in all")
    return Exits(at=tuple(sorted(at)))


def _two_exit(text: str) -> Exits:
    if "/" in text:
        raise UserError(f"{WHERE}: two-exit is {quoted(text)}; allowed: one layer, as in two-exit=8:0.7")
    return _exits(text)


#: Parameter name -> (field of EarlyExit, parser of its value).
PARAMETERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "mean": ("exits", lambda text: Exits(mean=_MEAN.parse(text, WHERE))),
    "exits": ("exits", _exits),
    "two-exit": ("exits", _two_exit),
    "confidence": ("confidence", _choice(Confidence)),
    "kv": ("fill", _choice(Fill)),
    "jump": ("jump", lambda text: {"": True}[text]),
}


def parse(text: str) -> EarlyExit:
    """Parse `mean=0.6,confidence=softmax,kv=recompute,jump`; raises UserError."""
    given: dict[str, object] = {}
    for piece in text.split(","):
        name, equals, value = piece.strip().partition("=")
        if name not in PARAMETERS:
            raise unknown(f"parameter of {WHERE}", name, PARAMETERS)
        if bool(equals) == (name == "jump"):
            raise UserError(f"{WHERE}: write {'jump' if name == 'jump' else name + '=...'}, not {quoted(piece)}")
        field, read = PARAMETERS[name]
        if field in given:
            several = "mean, exits and two-exit exclude each other" if field == "exits" else f"{name} is given twice"
            raise UserError(f"{WHERE}: {several}")
        given[field] = read(value)
    if "exits" not in given:
        raise UserError(f"{WHERE}: no exits are given; write mean=0.6, exits=8:0.3/16:0.4 or two-exit=8:0.7")
    return EarlyExit(**given)  # type: ignore[arg-type]


def _make(text: str) -> Change:
    plan = parse(text)

    def change(system: System) -> System:
        if plan.exits.never:
            return system
        if system.parallelism.pipeline > 1:
            raise UserError(
                f"{WHERE}: pipeline stages after an exit are not modelled; remove {WHERE} or --pipeline-parallel-size"
            )
        checks = AppliedTechnique(
            name="exit_checks", make=lambda _: exit_checks(plan.exits, plan.confidence, jump=plan.jump)
        )  # first, so that later passes quantize, fuse and shard the checks too
        return replace(
            system, passes=(checks, *system.passes, AppliedTechnique(name=f"early_exit({text})", make=_pass))
        )

    def _pass(_: object) -> Pass:
        return early_exit(plan)

    return change


TECHNIQUE = Technique(
    name="early_exit",
    kind="sparsity",
    summary="Tokens with a confident prediction exit before the last layer; a batch runs as deep as its deepest token.",
    parameters={
        "mean": "mean share of the layers that a token runs",
        "exits": "layers:probability/...: share of the tokens that exits after so many layers, 8:0.3/16:0.4",
        "two-exit": "layers:probability of a single exit",
        "confidence": "confidence measure: classifier, softmax, similarity",
        "kv": "method that fills the cache of skipped layers: propagate, recompute, none",
        "jump": "without a value: a linear map replaces the skipped layers",
    },
    formula="work of layer l x (1 - (1 - Pr(depth >= l))^B); mean: Pr(depth > l) = r^l with mean r^l = share; checks: "
    "4 hidden (classifier), lm_head and 5 per logit (softmax), 6 hidden (similarity) FLOP per token; propagation keeps "
    "k_proj and v_proj",
    source="CALM arXiv 2207.07061; FREE arXiv 2310.05424 (two exits, recomputation); linear jump arXiv 2303.09435; "
    "batches run to their deepest token arXiv 2407.20272",
    example="llmviewer analyze llama-2-7b --hardware a6000 --early-exit mean=0.6",
    make=_make,
)
