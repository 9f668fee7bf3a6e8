"""Passes of an encoder-decoder: the encoder reads the input in prefill; the decoder begins with one start token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.workload import Step
from llmviewer.serving.schedule import Schedule

#: Tokens with which a decoder begins.
START_TOKENS = 1.0


def with_encoder(plan: Schedule, input_len: Count) -> Schedule:
    """The schedule of a decoder over whole prompts as that of an encoder-decoder.

    A prefill pass decodes the start token in place of the prompt; a decode step has the start token and the generated
    ones in its cache, in place of prompt and generated ones.  The decode step shown is the first one.
    """
    (group,) = plan.step.groups
    inputs = (input_len * np.ones(plan.points))[plan.point_of_pass.astype(int)]
    is_prefill = np.arange(len(plan.repeats)) < plan.prefill_passes
    generated = np.maximum(group.cached_tokens - inputs, 0.0)
    group = replace(
        group,
        new_tokens=np.where(is_prefill, START_TOKENS, group.new_tokens),
        cached_tokens=np.where(is_prefill, 0.0, START_TOKENS + generated),
        input_len=inputs,
    )
    return replace(plan, step=Step((group,)))
