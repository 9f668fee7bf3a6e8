"""What a round of generation takes and brings, against plain decoding: the object that every view reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.analysis import memory
from llmviewer.analysis.analysis import Analysis, analyze
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.workload import Request
from llmviewer.result.describe import number
from llmviewer.result.stages import request_at, stage_object, system_at, value_at
from llmviewer.serving.batching import STATIC
from llmviewer.serving.generation import PLAIN, Draft

#: Batches beyond this are not asked whether a scheme still pays.
MOST_SEQUENCES = 2.0**14


def generation_object(analysis: Analysis, point: int) -> dict[str, Any]:
    """Passes, expected tokens and time of a round at one point of a scheme, and what plain decoding takes.

    pays_up_to_batch_size: the batch beyond which a token takes longer than from plain decoding, at the context of the
    decode step shown; 0: never pays; MOST_SEQUENCES: that batch and beyond; None where passes are not one round after
    another.
    """
    system, request = system_at(analysis, point), request_at(analysis, point)
    generation = system.generation
    assert system.scheme is not None
    plain = analyze(analysis.model, _plain(system), request)
    own, other = _per_token(analysis, point), _per_token(plain, 0)
    return {
        "scheme": system.scheme.name,
        **{name: _fact(fact) for name, fact in generation.facts.items()},
        "new_tokens": number(value_at(generation.shape.new_tokens, 0)),
        "tokens_per_round": number(value_at(tokens_per_round(analysis), point)),
        "pass_s": number(analysis.schedule.decode(analysis.step_s)[point]),
        "extra_s": number(value_at(generation.extra_s, 0)),
        "drafts": [
            _draft_object(draft, drafting, point)
            for draft, (_, drafting) in zip(generation.drafts, analysis.drafts, strict=True)
        ],
        "token_s": number(own),
        "plain_token_s": number(other),
        "speedup": number(other / own),
        "pays_up_to_batch_size": None if generation.branches is not None else _pays_up_to(analysis, system, request),
    }


def _fact(fact: Count | str) -> int | float | str | None:
    return fact if isinstance(fact, str) else number(value_at(fact, 0))


def drafted_tokens(analysis: Analysis) -> Count:
    """Tokens guessed in a round, by point: what a scheme says of itself, else what one pass verifies."""
    generation = analysis.system.generation
    said = generation.facts.get("drafted_tokens", generation.shape.new_tokens - 1.0)
    assert not isinstance(said, str)
    return said


def tokens_per_round(analysis: Analysis) -> Count:
    """Output tokens of a round, by point; where it is branches that decode, the mean over all passes after prefill."""
    generation, plan = analysis.system.generation, analysis.schedule
    if generation.branches is None:
        return generation.tokens
    return np.asarray(plan.tokens / np.maximum(plan.generated(1.0), 1.0))


def _plain(system: System) -> System:
    return replace(system, scheme=None, generation=PLAIN, drafters=())


def _per_token(analysis: Analysis, point: int) -> float:
    """Time per output token of a sequence [s]; of an answer of one token, that of the step shown."""
    mean = float(analysis.tpot_s[point])
    return mean if np.isfinite(mean) else float(analysis.token_s[point])


def _draft_object(draft: Draft, drafting: Analysis, point: int) -> dict[str, Any]:
    held = drafting.memory
    return {
        "name": draft.name,
        "passes": number(value_at(draft.passes, 0)),
        "new_tokens": number(value_at(draft.shape.new_tokens, 0)),
        "pass_s": number(drafting.schedule.decode(drafting.step_s)[point]),
        "prefill_s": number(drafting.own_prefill_s[point]) if draft.caches else 0,
        "weights_bytes": number(value_at(held.weights_bytes, point)),
        "kv_cache_bytes": number(value_at(held.kv_cache_bytes, point)),
        "stage": stage_object(drafting, "decode", point),
    }


def _pays_up_to(analysis: Analysis, system: System, request: Request) -> int | float | None:
    """The batch before the first at which plain decoding is faster, by decode steps alone; memory is not asked."""
    ways = [replace(way, batching=STATIC) for way in (system, _plain(system))]

    def pays(batches: Count) -> Array:
        asked = replace(request, output_len=1.0, batch_size=batches)
        own, plain = (analyze(analysis.model, way, asked).token_s for way in ways)
        return np.where(own <= plain, 1.0, 0.0)

    tried = np.unique(np.round(2.0 ** np.arange(0.0, np.log2(MOST_SEQUENCES) + 0.1, 0.25)))
    lost = np.flatnonzero(pays(tried) == 0.0)
    if not lost.size:
        return number(MOST_SEQUENCES)
    first = int(lost[0])
    return number(memory.largest(pays, tried[first] - 1.0, tried[first - 1] if first else 0.0))
