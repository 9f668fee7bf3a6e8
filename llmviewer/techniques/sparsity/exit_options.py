"""`--early-exit`: tokens whose prediction is confident exit before the last layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TypeVar

import numpy as np

from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.techniques.sparsity.early_exit import EarlyExit, Fill, early_exit
from llmviewer.techniques.sparsity.exit_checks import Confidence, exit_checks
from llmviewer.techniques.sparsity.exit_depth import Exits
from llmviewer.techniques.sparsity.exit_stages import in_pipeline
from llmviewer.techniques.technique import Change, Parameter, Technique

WHERE = "--early-exit"
#: Names under which results list the technique, before its parameters, and the checks of confidence.
NAME, CHECKS = "early_exit", "exit_checks"
_MEAN = Parameter(name="mean", low=0.0, high=1.0)
_TAU = Parameter(name="tau", low=0.0, high=100.0)
_DEFICIENT = Parameter(name="deficient", low=1, high=1000, whole=True)
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


def _mean(text: str) -> Exits:
    """Parse `0.6`, or `0.9..0.4` for a share that falls over the answer."""
    start, dots, end = text.partition("..")
    first = _MEAN.parse(start, WHERE)
    return Exits(mean=first, end=_MEAN.parse(end, WHERE)) if dots else Exits(mean=first)


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
    "mean": ("exits", _mean),
    "exits": ("exits", _exits),
    "two-exit": ("exits", _two_exit),
    "tau": ("tau", lambda text: _TAU.parse(text, WHERE)),
    "confidence": ("confidence", _choice(Confidence)),
    "kv": ("fill", _choice(Fill)),
    "deficient": ("deficient", lambda text: int(_DEFICIENT.parse(text, WHERE))),
    "jump": ("jump", lambda text: {"": True}[text]),
}


def parse(text: str) -> EarlyExit:
    """Parse `mean=0.9..0.4,tau=2,confidence=softmax,kv=recompute,deficient=8,jump`; raises UserError."""
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
    exits, tau = given["exits"], given.pop("tau", None)
    assert isinstance(exits, Exits)
    if isinstance(tau, float):
        if exits.end is None:
            raise UserError(f"{WHERE}: tau needs a share that falls; write mean=0.9..0.4,tau=...")
        given["exits"] = replace(exits, tau=tau)
    plan = EarlyExit(**given)  # type: ignore[arg-type]
    if plan.deficient is not None and plan.fill is not Fill.RECOMPUTE:
        raise UserError(f"{WHERE}: deficient limits recomputation; add kv=recompute or remove it")
    return plan


def _make(text: str) -> Change:
    plan = parse(text)
    name = f"{NAME}({text})"

    def change(system: System) -> System:
        if plan.exits.never:
            return system
        if plan.fill is Fill.PIPELINE and system.parallelism.pipeline == 1:
            raise UserError(f"{WHERE}: kv=pipeline needs pipeline stages; add --pipeline-parallel-size 2 or more")
        checks = AppliedTechnique(
            name=CHECKS, make=lambda _: exit_checks(plan.exits, plan.confidence, jump=plan.jump)
        )  # first, so that later passes quantize, fuse and shard the checks too
        changed = replace(system, passes=(checks, *system.passes)).listing(name)
        over_answer = partial(_exiting, plan=plan, name=name) if plan.exits.end is not None else None
        return replace(_exiting(changed, np.nan, plan=plan, name=name), over_answer=over_answer)

    return change


def plan_of(system: System) -> EarlyExit:
    """The plan of a system that lists early exit."""
    return parse(_listed(system).removeprefix(f"{NAME}(").removesuffix(")"))


def without_exits(system: System) -> System:
    """The system whose tokens all pass the layers that those of this one, which lists early exit, may skip."""
    left_out = (CHECKS, _listed(system))
    kept = tuple(applied for applied in system.passes if applied.name not in left_out)
    return replace(system, passes=kept, exits=None, over_answer=None)


def _listed(system: System) -> str:
    """The name under which a system lists early exit."""
    return next(applied.name for applied in system.passes if applied.name.startswith(f"{NAME}("))


def _exiting(system: System, place: Count, *, plan: EarlyExit, name: str) -> System:
    """The system whose passes exit as tokens at `place` of their answers do."""
    if system.parallelism.pipeline > 1:
        return replace(system, exits=in_pipeline(plan, place))
    passes = (
        replace(one, make=lambda _: early_exit(plan, place)) if one.name == name else one for one in system.passes
    )
    return replace(system, passes=tuple(passes))


TECHNIQUE = Technique(
    name=NAME,
    kind="sparsity",
    summary="Tokens with a confident prediction exit before the last layer; a batch runs as deep as its deepest token. "
    "Of an encoder, whole sequences exit.",
    parameters={
        "mean": "mean share of the layers that a token runs; 0.9..0.4 falls from the start of the answer to its end",
        "tau": "how fast that share falls, as exp(-tau t / N) (4); 0: a straight line",
        "exits": "layers:probability/...: share of the tokens that exits after so many layers, 8:0.3/16:0.4",
        "two-exit": "layers:probability of a single exit",
        "confidence": "what decides: classifier, softmax, similarity, policy (a network of two layers), position (no "
        "check; all sequences of a batch exit after the same layer)",
        "kv": "method that fills the cache of skipped layers: propagate, recompute, none; pipeline: later pipeline "
        "stages run all layers while the next token is on its way",
        "deficient": "most steps in a row whose caches wait to be recomputed; then one runs all layers",
        "jump": "without a value: a linear map replaces the skipped layers",
    },
    formula="work of layer l x (1 - (1 - Pr(depth >= l))^B); mean: Pr(depth > l) = r^l with mean r^l = share; checks: "
    "4 hidden (classifier), lm_head and 5 per logit (softmax), 6 hidden (similarity), 64 hidden (policy) FLOP per "
    "token; propagation keeps k_proj and v_proj; of an encoder-decoder the decoder's layers with cross attention; "
    "kv=pipeline: a token takes mean max(time to its exit, slowest stage)",
    source="CALM arXiv 2207.07061; FREE arXiv 2310.05424 (two exits, recomputation); linear jump arXiv 2303.09435; "
    "batches run to their deepest token arXiv 2407.20272; ConsistentEE arXiv 2312.11882; EE-LLM arXiv 2312.04916; "
    "SkipDecode arXiv 2307.02628; DeeBERT arXiv 2004.12993 (encoders)",
    example="llmviewer analyze llama-2-7b --hardware a6000 --early-exit mean=0.6",
    make=_make,
)
