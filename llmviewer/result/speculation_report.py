"""Reports of rounds and exits: time and tokens of speculation beside plain decoding, layers that early exit leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.analysis import limits
from llmviewer.analysis.analysis import Analysis, analyze
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.ir import Graph
from llmviewer.core.workload import Request, Step
from llmviewer.result.describe import number
from llmviewer.result.stages import request_at, stage_object, system_at, value_at
from llmviewer.serving.batching import STATIC
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft
from llmviewer.techniques.sparsity.early_exit import ExitingStep, plan_of, without_exits

#: Largest batch size of the break-even search.
MAX_BATCH_SIZE = 2.0**14


def generation_object(analysis: Analysis, point: int) -> dict[str, Any]:
    """The generation object of one point: passes, expected tokens and time of a round, and plain decoding's time.

    pays_up_to_batch_size: largest batch size at which a token takes no longer than with plain decoding, at the context
    of the decode step shown; 0: never faster; MAX_BATCH_SIZE: that batch size and beyond; None for branches and blocks.
    """
    system, request = system_at(analysis, point), request_at(analysis, point)
    generation = system.generation
    assert system.scheme is not None
    plain = analyze(analysis.model, _plain_decoding(system), request)
    own, other = _per_token(analysis, point), _per_token(plain, 0)
    return {
        "scheme": system.scheme.name,
        **{name: _fact(fact) for name, fact in generation.facts.items()},
        "new_tokens": number(value_at(generation.shape.new_tokens, 0)),
        "tokens_per_round": number(value_at(tokens_per_round(analysis), point)),
        "pass_s": number(analysis.schedule.decode(analysis.step_s)[point]),
        "extra_s": number(value_at(system.outside_kernels_s, 0)),
        "drafts": [
            _draft_object(draft, drafting, point)
            for draft, (_, drafting) in zip(generation.drafts, analysis.drafts, strict=True)
        ],
        "token_s": number(own),
        "plain_token_s": number(other),
        "speedup": number(other / own),
        "pays_up_to_batch_size": None if generation.counts_passes else _break_even_batch(analysis, system, request),
    }


def _fact(fact: Count | str) -> int | float | str | None:
    return fact if isinstance(fact, str) else number(value_at(fact, 0))


def drafted_tokens(analysis: Analysis) -> Count:
    """Draft tokens per round, by point: as the scheme reports them, else new tokens of the verification pass - 1."""
    generation = analysis.system.generation
    drafted = generation.facts.get("drafted_tokens", generation.shape.new_tokens - 1.0)
    assert not isinstance(drafted, str)
    return drafted


def tokens_per_round(analysis: Analysis) -> Count:
    """Expected output tokens per round, by point; for branches and blocks the mean over all passes after prefill."""
    generation, plan = analysis.system.generation, analysis.schedule
    if not generation.counts_passes:
        return generation.tokens
    passes, tokens = plan.decode_sum(1.0), generation.tokens * plan.tokens
    if generation.denoising is not None:  # its passes decide the first token, too, and may begin with prefill
        passes, tokens = passes + float(generation.denoising.whole), tokens + 1.0
    return np.asarray(tokens / np.maximum(passes, 1.0))


def _plain_decoding(system: System) -> System:
    return replace(system, scheme=None, generation=AUTOREGRESSIVE, drafters=())


def _per_token(analysis: Analysis, point: int) -> float:
    """Time per output token of a sequence [s]; if output_len is 1, that of the decode step shown."""
    mean = float(analysis.tpot_s[point])
    return mean if np.isfinite(mean) else float(analysis.token_s[point])


def _draft_object(draft: Draft, drafting: Analysis, point: int) -> dict[str, Any]:
    draft_memory = drafting.memory
    return {
        "name": draft.name,
        "passes": number(value_at(draft.passes, 0)),
        "new_tokens": number(value_at(draft.shape.new_tokens, 0)),
        "pass_s": number(drafting.schedule.decode(drafting.step_s)[point]),
        "prefill_s": number(drafting.own_prefill_s[point]) if draft.caches else 0,
        "weights_bytes": number(value_at(draft_memory.weights_bytes, point)),
        "kv_cache_bytes": number(value_at(draft_memory.kv_cache_bytes, point)),
        "stage": stage_object(drafting, "decode", point),
    }


def _break_even_batch(analysis: Analysis, system: System, request: Request) -> int | float | None:
    """Batch size before the first one at which plain decoding is faster, by decode steps only, ignoring memory."""
    systems = [replace(one, batching=STATIC) for one in (system, _plain_decoding(system))]

    def pays(batches: Count) -> Array:
        one_token = replace(request, output_len=1.0, batch_size=batches)
        own, plain = (analyze(analysis.model, one, one_token).token_s for one in systems)
        return np.where(own <= plain, 1.0, 0.0)

    tried = np.unique(np.round(2.0 ** np.arange(0.0, np.log2(MAX_BATCH_SIZE) + 0.1, 0.25)))
    lost = np.flatnonzero(pays(tried) == 0.0)
    if not lost.size:
        return number(MAX_BATCH_SIZE)
    first = int(lost[0])
    return number(limits.largest(pays, tried[first] - 1.0, tried[first - 1] if first else 0.0))


def exit_object(analysis: Analysis, point: int) -> dict[str, Any]:
    """The early_exit object of one point of a system with early exit.

    layers: those that a token passes.  token_layers, step_layers: how many of them a token and the deepest token of a
    decode step run (of an encoder: a sequence and the pass), means over the answer.  time_s, plain_time_s: time per
    output token after the first with and without exits (of an encoder, and of answers of one token: TTFT).
    """
    plan = plan_of(analysis.system)
    step = ExitingStep.of(plan, _last_pass(analysis, point), np.nan)
    system, request = system_at(analysis, point), request_at(analysis, point)
    plain = analyze(analysis.model, without_exits(system), request)
    own, other = _seconds(analysis, point), _seconds(plain, 0)
    return {
        "layers": len(step.runs),
        "token_layers": number(sum(float(np.max(reach)) for reach in plan.exits.reach(len(step.runs)))),
        "step_layers": number(sum(float(np.max(runs)) for runs in step.runs)),
        "time_s": number(own),
        "plain_time_s": number(other),
        "speedup": number(other / own),
    }


def _last_pass(analysis: Analysis, point: int) -> Graph:
    """The graph of the decode step of a point, or of the one pass of an encoder, before techniques change it."""
    plan = analysis.schedule
    last = np.flatnonzero(plan.point_of_pass[: plan.shown] == point)[-1:]
    return analysis.model.graph(Step(tuple(group.select(last) for group in plan.step.groups)))


def _seconds(analysis: Analysis, point: int) -> float:
    mean = float(value_at(analysis.tpot_s, point))
    return mean if np.isfinite(mean) else float(value_at(analysis.ttft_s, point))
