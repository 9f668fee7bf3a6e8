"""How an engine fills its steps: which tokens share a forward pass, and when a request is admitted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A policy of an engine's scheduler, first come first served.

    mixes: a step decodes all running sequences and fills the rest of its token budget with prompts; otherwise prompts
    run in steps of their own, before decode steps.  chunks: a prompt longer than the rest of the budget is cut;
    otherwise it waits for a step with room, or runs alone.  reserved: share of the output for which blocks must be free
    when a request is admitted; with 1.0 nothing is ever preempted.
    """

    name: str
    mixes: bool = True
    chunks: bool = True
    reserved: float = 0.0
    source: str = ""


#: Value of an engine preset's `scheduler` -> policy.
SCHEDULERS = {
    scheduler.name: scheduler
    for scheduler in (
        Scheduler(
            name="vllm",
            source="https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/sched/scheduler.py",
        ),
        Scheduler(
            name="vllm-v0",
            mixes=False,
            chunks=False,
            source="https://github.com/vllm-project/vllm/blob/v0.6.6/vllm/core/scheduler.py",
        ),
        Scheduler(
            name="sglang",
            mixes=False,
            reserved=0.1,  # new_token_ratio falls from 0.7 to 0.1 in 600 steps, and begins anew only when idle
            source="https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/schedule_policy.py",
        ),
        Scheduler(
            name="trtllm",
            chunks=False,
            reserved=1.0,
            source="https://nvidia.github.io/TensorRT-LLM/llm-api/reference/TorchLlmArgs.html (enable_chunked_prefill, "
            "capacity_scheduler_policy)",
        ),
        Scheduler(name="splitfuse", source="https://arxiv.org/abs/2401.08671"),
    )
}
