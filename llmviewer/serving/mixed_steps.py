"""Prefill passes that chunks of two prompts share, or chunks and decoding sequences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.workload import Step
from llmviewer.serving.generation import ONE_TOKEN, PassShape
from llmviewer.serving.schedule import Schedule


def with_filled_chunks(plan: Schedule, chunk: Count) -> Schedule:
    """The schedule if a prompt's last chunk shares its pass with the next prompt's first one.

    The chunk is charged its part of a pass of `chunk` tokens and attends to as many pairs as before.  chunk 0: it
    has its own pass.
    """
    group, points = plan.step.groups[0], plan.point_of_pass[: plan.prefill_passes].astype(int)
    new, cached, repeats = (np.array(column) for column in (group.new_tokens, group.cached_tokens, plan.repeats))
    own = new[: plan.prefill_passes]
    full = np.maximum((chunk * np.ones(plan.points))[points], own)
    repeats[: plan.prefill_passes] *= own / full
    cached[: plan.prefill_passes] -= (full - own) / 2.0
    new[: plan.prefill_passes] = full
    return replace(plan, step=Step((replace(group, new_tokens=new, cached_tokens=cached),)), repeats=repeats)


def with_decodes(plan: Schedule, decodes: Count, cached: Count, shape: PassShape = ONE_TOKEN) -> Schedule:
    """The schedule with `decodes` decoding sequences over `cached` tokens in each prefill pass of a point.

    shape: tokens of these sequences.
    """
    points = plan.point_of_pass[: plan.prefill_passes].astype(int)
    rest = len(plan.repeats) - plan.prefill_passes
    sequences, context = ((count * np.ones(plan.points))[points] for count in (decodes, cached))
    (group,) = plan.step.groups

    def each(count: Count) -> Array:
        """A count of the shape in prefill passes, and any in the others, which have no decoding sequences."""
        return np.concatenate(((count * np.ones(plan.points))[points], np.ones(rest)))

    pairs = shape.attended_new_pairs
    decoding = replace(
        group,
        batch_size=np.concatenate((sequences, np.zeros(rest))),
        new_tokens=each(shape.new_tokens),
        cached_tokens=np.concatenate((context, np.zeros(rest))),
        logit_positions=each(shape.logit_positions),
        attended_new_pairs=None if pairs is None else each(pairs),
    )
    return replace(plan, step=Step((group, decoding)))
