"""Decode steps and prefill with draft models as trees: rounds of draft passes and a verification pass per token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.pricing import rounds_of_microbatches
from llmviewer.core.counts import Count, total
from llmviewer.result.explanation.metrics import REST, Question
from llmviewer.result.explanation.node import Node, of_formula, sum_of, unasked
from llmviewer.result.explanation.schedule import (
    Modes,
    in_flight_of,
    nodes,
    own_prefill,
    parts,
    round_modes,
    step_modes,
)
from llmviewer.result.stages import ValueOf
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft

VERIFICATION = "passes of the model that verify drafts, over the tokens that a round keeps (serving/generation.py)"
DRAFTING = "passes of the draft model, over the tokens that a round keeps (serving/generation.py)"
ROUND = "expected tokens of a round, the bonus token included: acceptance of --speculative ({facts})"
OUTSIDE = "time of a round outside kernels: the method's own, and the engine's to verify drafts (analysis/system.py)"
PASSES = "passes of the draft model in a round (--speculative)"
WITH_CACHE = "prompts that fill the cache of the draft model"
MIXED = "drafts of the sequences that decode in the mixed steps of a prompt (analysis/analysis.py)"


def decode_nodes(one: Question, share: float) -> tuple[Node, ...]:
    """All real decode steps, each part times a share (`Analysis.decode_s`)."""
    own, generation = one.analysis, one.analysis.system.generation
    if generation is AUTOREGRESSIVE:
        return tuple(_passes(one, step_modes(own), own.step_s, share))
    whole, modes = _round_of(own)
    verified = tuple(_passes(one, modes, whole, share))
    tokens, outside = _tokens(one), _outside(one, share)
    if not own.drafts and outside is None and tokens.value == 1.0:
        return verified
    pass_s = sum_of("pass_s", verified, "all decode passes, each position of the answer once")
    found = [of_formula("verification", "pass_s / tokens_per_round", (pass_s, tokens), VERIFICATION)]
    for draft, drafting in one.drafts:
        inner = _draft_passes(drafting, draft, own, share)
        count = Node(name="draft_passes", value=one.at(draft.passes), source=PASSES)
        formula = "draft_passes * pass_s / tokens_per_round"
        found.append(of_formula(f"draft: {draft.name}", formula, (count, inner, tokens), DRAFTING))
    if outside is not None:
        found.append(of_formula("outside kernels", "round_s / tokens_per_round", (outside, tokens), OUTSIDE))
    return tuple(found)


def per_token(formula: str, share: float) -> tuple[str, dict[str, float]]:
    """A formula times a share, as a division by the tokens of which one is asked, and their number."""
    return (formula, {}) if share == 1.0 else (f"{formula} / tokens", {"tokens": 1.0 / share})


def _round_of(own: Analysis) -> tuple[Count, Modes]:
    """Time per pass that the model and its drafts make together [s], and what their passes wait for."""
    if not own.drafts or own.system.parallelism.microbatches == 1:
        return own.step_s, step_modes(own)
    drafts = [(draft, one.passes) for draft, one in own.drafts]
    return rounds_of_microbatches(own.passes, drafts, in_flight_of(own, own.passes.time_s)), round_modes(own)


def _draft_passes(one: Question, draft: Draft, target: Analysis, share: float) -> Node:
    """One draft pass per position of the answer, with the draft model's own operators."""
    if target.system.parallelism.microbatches == 1:
        whole, modes = one.analysis.step_s, step_modes(one.analysis)
    else:
        whole, modes = _round_of(target)
        modes = modes if draft.same_weights else replace(modes, slowest=0.0)
    inner = tuple(map(unasked, _passes(one, modes, whole, share)))
    return sum_of("pass_s", inner, f"one pass of {one.analysis.model.name} per position of the answer")


def _passes(one: Question, modes: Modes, whole: Count, share: float) -> Iterator[Node]:
    """Decode passes of one model in what they wait for.  whole: time per pass of which they are a part [s]."""
    own, summed = one.analysis.evaluation, _decoded(one, whole)
    yield from nodes(one, parts(one.analysis, modes), summed, "decode", share)
    if own.known_s is not None:
        rest = summed((own.known_s - total(stage.time_s for stage in own.stages)) * modes.through)
        if rest:
            yield Node(name="rest_s", value=rest * share, unit="s", source=REST)


def _decoded(one: Question, whole: Count) -> ValueOf:
    """Function from a quantity of every pass to its sum over the real decode steps.

    Where these are too many to keep, the step shown is scaled to all of them.
    """
    plan, shown = one.analysis.schedule, one.summed("decode")
    if one.analysis.passes.is_whole:
        return lambda values: one.at(plan.decode_sum(values))
    scale = one.at(plan.decode_sum(whole)) / shown(whole)
    return lambda values: shown(values) * scale


def _tokens(one: Question) -> Node:
    generation = one.analysis.system.generation
    told = {name: fact if isinstance(fact, str) else f"{one.at(fact):g}" for name, fact in generation.facts.items()}
    facts = ", ".join(f"{name} {text}" for name, text in told.items())
    return Node(name="tokens_per_round", value=one.at(generation.tokens), source=ROUND.format(facts=facts))


def _outside(one: Question, share: float) -> Node | None:
    """Time of all rounds outside kernels, if any."""
    seconds = one.at(one.analysis.system.outside_kernels_s)
    positions = one.at(one.analysis.schedule.decode_steps) * share
    if not seconds:
        return None
    each = Node(name="outside_s", value=seconds, unit="s", source=OUTSIDE)
    source = "a round per position of the answer"
    return of_formula("round_s", "positions * outside_s", (each,), source, {"positions": positions})


def prefill_nodes(one: Question, *, fill: bool = True) -> tuple[Node, ...]:
    """Prefill of one batch of prompts, with draft models (`Analysis.prefill_s`).  fill: as of `own_prefill`."""
    own = one.analysis
    found = list(own_prefill(one, fill=fill))
    for draft, drafting in one.drafts:
        if draft.caches:
            inner = tuple(map(unasked, own_prefill(drafting)))
            found.append(sum_of(f"draft: {draft.name}", inner, WITH_CACHE))
    if own.drafts and own.running is not None and one.at(own.running.decodes) > 0.0:
        found.append(_drafting(one))
    return tuple(found)


def _drafting(one: Question) -> Node:
    """Drafts in mixed steps: the mean of what a round takes beside its verification pass, once per step."""
    own = one.analysis
    steps = one.at(own.schedule.prefill(1.0))
    rounds = max(one.at(own.schedule.decode_steps), 1.0)
    share = one.at(own.system.generation.tokens) / rounds
    inner = tuple(node for node in decode_nodes(one, share) if node.name != "verification")
    mean = sum_of("drafting_s", inner, "mean over the rounds of an answer")
    return of_formula("drafts in mixed steps", "mixed_steps * drafting_s", (mean,), MIXED, {"mixed_steps": steps})
