"""Prompts that an engine holds back for steps, though it has room for them."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.frozen import frozen


class Until(StrEnum):
    """Conditions that let the held prompts go, beside the end of their steps.

    POLL: nothing; the scheduler looks for new requests every so many decode steps, and after each pass of prompts
    (SGLang's --scheduler-recv-interval:
    https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/scheduler_recv_skipper.py).
    FIRST: nothing; the steps are counted from the first of the prompts on (TensorRT-LLM's batch_wait_timeout_iters).
    RANKS: every rank has one; the steps are counted whether or not any has (attention_dp_config: enable_balance and
    timeout_iters).  Both: https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/pyexecutor/py_executor.py
    (_waiting_requests, _balance_adp_requests).
    """

    POLL = "poll"
    FIRST = "first"
    RANKS = "ranks"


@frozen
class Hold:
    """Prompts that come while others decode wait for at most so many steps."""

    steps: float
    until: Until

    def of(self, arriving: Count, ranks: Count) -> tuple[Count, Count]:
        """Mean steps that a prompt waits, from the end of the step in which it comes; prompts that go with it.

        arriving: prompts that come to each of the ranks in a step, at random.

        Windows of W steps hold a prompt for E[W^2] / 2 E[W] in the mean, and begin after those of the prompts before.
        """
        most = self.steps
        if self.until is Until.FIRST:  # the first waits for all of them, the others for half
            beside = arriving * most
            return most * (1.0 + 0.5 * beside) / (1.0 + beside), beside
        t = np.arange(most)[:, None]
        ended = 0.0 if self.until is Until.POLL else (-np.expm1(-np.atleast_1d(arriving) * t)) ** ranks
        lasts = 1.0 - ended * np.ones_like(t)
        met = np.sum((2.0 * t + 1.0) * lasts, axis=0) / np.sum(lasts, axis=0)
        return 0.5 * (met - 1.0), arriving * met
