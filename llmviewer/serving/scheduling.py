"""How an engine fills its steps: which tokens share a forward pass, and when a request is admitted."""

from __future__ import annotations

from llmviewer.core.frozen import frozen

#: Orders of the queue: first come first served; the shortest prompt first (vLLM's --scheduling-policy priority, where
#: clients send the length as priority: https://docs.vllm.ai/en/v0.13.0/api/vllm/config/scheduler/; SGLang's
#: --enable-priority-scheduling; TensorRT-LLM's context_scheduling_policy shortest_uncached_first:
#: https://nvidia.github.io/TensorRT-LLM/1.4.0rc4/llm-api/reference/SchedulerConfig.html); the longest answer first
#: (SGLang's --schedule-policy lof: its schedule_policy.py, below).
POLICIES = ("fcfs", "shortest-prompt", "longest-answer")


@frozen
class Scheduler:
    """A policy of an engine's scheduler.

    mixes: a step decodes all running sequences and fills the rest of its token budget with prompts; otherwise prompts
    run in steps of their own, before decode steps.  chunks: a prompt longer than the rest of the budget is cut;
    otherwise it waits for a step with room.  alone: a prompt longer than a whole step, which is not cut, runs alone
    unless the user states the budget; otherwise it is refused.  reserved: share of the output for which blocks must be
    free when a request is admitted; with 1.0 nothing is ever preempted.  keeps: the blocks of a preempted request keep
    their content until others take them, so that only the lost ones are computed again.

    logical_batch: tokens of a step that runs as forward passes of the engine's token budget, one after another; 0: a
    step is one pass, and has that budget.  pipelined: steps follow each other through the stages of a pipeline;
    otherwise one leaves the last stage before the next begins.

    policies: orders of the queue that it has, of which the first is usual.  policy: that of a run, in which a preempted
    request keeps its place.

    A request is admitted when the free blocks hold all of its prompt, not its first chunk alone, as in vLLM since March
    2026 (scheduler_reserve_full_isl, true by default: https://github.com/vllm-project/vllm/pull/37307); versions before
    begin prompts that the cache cannot hold, compute them in part and begin them anew.
    """

    name: str
    mixes: bool = True
    chunks: bool = True
    alone: bool = False
    reserved: float = 0.0
    keeps: bool = False
    logical_batch: float = 0.0
    pipelined: bool = True
    policies: tuple[str, ...] = ("fcfs",)
    policy: str = "fcfs"
    source: str = ""


#: Value of an engine preset's `scheduler` -> policy.
SCHEDULERS = {
    scheduler.name: scheduler
    for scheduler in (
        Scheduler(
            name="vllm",
            policies=POLICIES[:2],
            keeps=True,  # answers are hashed for it: cache_full_blocks of vllm/v1/core/block_pool.py
            source="https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/sched/scheduler.py",
        ),
        Scheduler(
            name="vllm-v0",
            mixes=False,
            chunks=False,
            alone=True,  # max_num_batched_tokens is max_model_len where it is not stated (vllm/config.py)
            source="https://github.com/vllm-project/vllm/blob/v0.6.6/vllm/core/scheduler.py",
        ),
        Scheduler(
            name="sglang",
            mixes=False,
            policies=POLICIES,
            reserved=0.1,  # new_token_ratio falls from 0.7 to 0.1 in 600 steps, and begins anew only when idle
            source="https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/schedule_policy.py",
        ),
        Scheduler(
            name="trtllm",
            policies=POLICIES[:2],
            chunks=False,
            reserved=1.0,
            source="https://nvidia.github.io/TensorRT-LLM/llm-api/reference/TorchLlmArgs.html (enable_chunked_prefill, "
            "capacity_scheduler_policy); prompts beyond max_num_tokens: _check_arguments of "
            "https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/llmapi/llm.py",
        ),
        Scheduler(name="splitfuse", source="https://arxiv.org/abs/2401.08671"),
        Scheduler(
            name="mlx-lm",
            mixes=False,  # BatchGenerator runs a chunk of prompts by itself
            reserved=1.0,  # no request is ever preempted
            source="https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/generate.py (BatchGenerator); "
            "its options: https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/server.py; "
            "since https://github.com/ml-explore/mlx-lm/pull/626",
        ),
        Scheduler(
            name="llama.cpp",
            reserved=1.0,  # a slot keeps its part of the cache until its answer ends
            logical_batch=2048.0,  # -b, in micro-batches of -ub
            pipelined=False,
            source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-context.cpp (update_slots: a "
            "token of every slot that generates, then prompts up to the logical batch); -b, -ub, -np and -cb: "
            "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        ),
    )
}
#: Policy of an engine that states none.
USUAL = "vllm"
