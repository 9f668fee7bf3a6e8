"""Step times of a simulation: tables that agree with the price of the very step, and limits of a scheduler."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import ceil
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer import api
from llmviewer.analysis.evaluation import evaluate
from llmviewer.analysis.limits import largest_sizes
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Group, Request, Step
from llmviewer.simulation.cache_capacity import CacheCapacity, cache_capacity
from llmviewer.simulation.step_times import StepTimes, step_times

#: Steps of each kind that are compared.
STEPS = 40
#: Model, chip, engine and devices: grouped and latent attention, recurrent states, windows with sinks, kernels of
#: TensorRT-LLM that split keys by length, an engine without CUDA graphs, another maker's chip.
SYSTEMS = {
    "llama": ("llama-3.1-8b", "h100-sxm", "vllm", 1),
    "latent": ("deepseek-v2-lite", "h100-sxm", "sglang", 1),
    "recurrent": ("qwen3-next-80b-a3b", "h100-sxm", "vllm", 4),
    "windows": ("gpt-oss-120b", "h100-sxm", "vllm", 2),
    "tensorrt": ("llama-3.1-70b", "h200", "trtllm", 4),
    "eager": ("qwen3-0.6b", "h100-sxm", "torch-eager", 1),
    "mamba": ("mamba-2.8b", "a100-80gb-sxm", "vllm", 1),
    "amd": ("llama-3.1-8b", "mi300x", "vllm", 1),
    "pipeline": ("llama-3.1-8b", "a100-80gb-sxm", "vllm", 2),
}


#: Largest error of a mixed step; a last-level cache of 256 MB keeps what prompts and decodes read beside each other.
MIXED_ERROR = dict.fromkeys(SYSTEMS, 0.01) | {"amd": 0.015}


#: Experts of ten layers on the host, and slots.
EXPERTS_ON_HOST: dict[str, Any] = {
    "engine": "llama.cpp", "n_cpu_moe": "10", "quantization": "q4_k_m", "max_num_seqs": 8, "max_model_len": 32768,
}  # fmt: skip


@cache
def configured(name: str) -> tuple[api.Configuration, StepTimes, CacheCapacity]:
    model, chip, engine, devices = SYSTEMS[name]
    layout = {"pipeline_parallel_size" if name == "pipeline" else "tensor_parallel_size": devices}
    one = api.configuration(model, chip, engine=engine, **layout)
    return one, step_times(one), cache_capacity(one)


def direct_s(one: api.Configuration, *groups: tuple[float, float, float, float]) -> float:
    """The price of one step of groups (sequences, new tokens, cached tokens, rows of logits) on all stages [s]."""
    made = (Group(batch_size=b, new_tokens=n, cached_tokens=c, logit_positions=rows) for b, n, c, rows in groups)
    return float(np.max(evaluate(one.model, one.system, Step(tuple(made))).passing_s[0]))


def random_sizes(name: str, draw: np.random.Generator) -> tuple[int, int, int, int]:
    """Sequences, context, prompt tokens, and tokens before them, that the cache of the system holds."""
    one, _, capacity = configured(name)
    most = min(capacity.blocks * capacity.block_tokens * 0.9, 2e6)
    longest = min(one.model.max_context, 60_000)
    sequences = int(min(2 ** draw.uniform(0, 9), capacity.max_sequences))
    context = int(min(draw.uniform(0, 1) ** 3 * longest, most / sequences))
    prompt = int(min(2 ** draw.uniform(0, 13), capacity.token_budget))
    before = int(draw.uniform(0, 1) ** 3 * longest) * int(draw.integers(2))
    return sequences, context, prompt, int(min(before, max(most - sequences * context - prompt, 0)))


@pytest.mark.parametrize("name", SYSTEMS)
def test_decode_steps_cost_what_the_step_costs(name: str) -> None:
    one, times, _ = configured(name)
    draw = np.random.default_rng(1)
    for _ in range(STEPS):
        sequences, context, _, _ = random_sizes(name, draw)
        expected = direct_s(one, (sequences, 1, context, 1))
        assert times.decode_s(sequences, sequences * context) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_line_of_decode_steps_is_the_step_at_its_ends_in_whatever_order_it_is_asked(name: str) -> None:
    """Whether a segment is read first or again: the line is its own step at any context of it."""
    one, times, capacity = configured(name)
    fresh, sequences = replace(times, rows=[None] * len(times.rows)), min(7, capacity.max_sequences)
    contexts = [sequences * mean for mean in (3.0, 100.0, 5000.0)]
    first = [fresh.decode_line(sequences, context) for context in contexts]
    again = [fresh.decode_line(sequences, context) for context in reversed(contexts)][::-1]
    assert first == again
    for context, (base, slope, end) in zip(contexts, first, strict=True):
        assert end > context
        expected = direct_s(one, (sequences, 1, context / sequences, 1))
        assert base + slope * context == pytest.approx(expected, rel=0.01)


def test_step_times_of_a_configuration_are_built_once() -> None:
    words = {"engine": "vllm", "max_num_seqs": 8}
    one, other = (api.configuration("llama-3.1-8b", chip, **words) for chip in ("h100-sxm", "mi300x"))
    assert step_times(one) is step_times(one)
    assert step_times(one) is not step_times(other)


@pytest.mark.parametrize("name", SYSTEMS)
def test_mixed_steps_cost_what_the_step_costs(name: str) -> None:
    one, times, _ = configured(name)
    draw = np.random.default_rng(2)
    for _ in range(STEPS):
        sequences, context, prompt, before = random_sizes(name, draw)
        ends = int(draw.integers(2))
        pairs = prompt * before + prompt * (prompt + 1) / 2
        chunk = (1, prompt, before, ends)
        mixed = direct_s(one, (sequences, 1, context, 1), chunk)
        assert times.mixed_s(sequences, sequences * context, prompt, pairs, ends) == pytest.approx(
            mixed, rel=MIXED_ERROR[name]
        )
        assert times.mixed_s(0, 0, prompt, pairs, ends) == pytest.approx(direct_s(one, chunk), rel=0.01)


def test_experts_on_the_host_cost_what_the_step_costs() -> None:
    """From 32 tokens on the device computes with copies of the host's experts."""
    one = api.configuration("qwen3-30b-a3b", "rtx-4090", **EXPERTS_ON_HOST)
    times = step_times(one)
    for sequences, context in ((1, 100), (5, 1000), (8, 4000)):
        assert times.decode_s(sequences, sequences * context) == pytest.approx(
            direct_s(one, (sequences, 1, context, 1)), rel=0.001
        )
    for sequences, context, prompt in ((4, 1000, 27), (4, 1000, 28), (7, 3000, 500)):
        expected = direct_s(one, (sequences, 1, context, 1), (1, prompt, 0, 1))
        pairs = prompt * (prompt + 1) / 2
        assert times.mixed_s(sequences, sequences * context, prompt, pairs, 1) == pytest.approx(expected, rel=0.01)


def test_users_of_experts_on_the_host_wait_as_analyze_says() -> None:
    load: dict[str, Any] = {"input_len": 1024, "output_len": 128}
    loaded = lv.simulate("qwen3-30b-a3b", "rtx-4090", concurrency=4, requests=64, **EXPERTS_ON_HOST, **load).to_dict()
    steady = lv.analyze("qwen3-30b-a3b", "rtx-4090", batch_size=4, batching="continuous", **EXPERTS_ON_HOST, **load)
    for name in ("tpot_s", "e2e_s"):
        assert loaded[name]["p50"] == pytest.approx(getattr(steady, name), rel=0.02)


@pytest.mark.parametrize("name", ["llama", "recurrent", "amd"])
def test_prompts_of_one_length_cost_what_the_step_costs(name: str) -> None:
    one, times, capacity = configured(name)
    draw = np.random.default_rng(3)
    for _ in range(STEPS):
        length = int(2 ** draw.uniform(4, 10))
        prompts = min(int(draw.integers(2, 20)), capacity.token_budget // length)
        pairs = prompts * length * (length + 1) / 2
        expected = direct_s(one, (prompts, length, 0, 1))
        assert times.mixed_s(0, 0, prompts * length, pairs, prompts) == pytest.approx(expected, rel=0.01)


def test_shares_of_pipeline_stages_are_those_of_a_pass() -> None:
    """80 layers on three stages: 27, 27, 26 and the head; with prompts and without."""
    one = api.configuration("llama-3.1-70b", "h200", engine="vllm", pipeline_parallel_size=3)
    times = step_times(one)
    for sequences, tokens in ((1, 0), (40, 0), (16, 2000)):
        decodes = Group(batch_size=sequences, new_tokens=1.0, cached_tokens=2048.0, logit_positions=1.0)
        prompt = Group(batch_size=1.0, new_tokens=float(tokens), cached_tokens=0.0, logit_positions=1.0)
        groups = (decodes, prompt) if tokens else (decodes,)
        stages = evaluate(one.model, one.system, Step(groups)).stages
        expected = np.array([float(np.max(stage.time_s)) for stage in stages])
        assert times.stages(sequences, tokens) == pytest.approx(expected / expected.sum(), rel=0.02)
        assert sum(times.stages(sequences, tokens)) == pytest.approx(1.0)


def test_a_step_without_prompt_tokens_is_a_decode_step() -> None:
    _, times, _ = configured("llama")
    assert times.mixed_s(8, 8000, 0, 0.0, 0) == times.decode_s(8, 8000)


def test_a_round_of_speculation_is_a_verification_its_draft_passes_and_host_time() -> None:
    one = api.configuration(
        "llama-3.1-8b", "h100-sxm", engine="vllm", speculative="draft=llama-3.2-1b,tokens=3,acceptance=0.7"
    )
    times = step_times(one)
    system = one.system
    (drafter,) = system.drafters
    verify = direct_s(one, (8, 4, 1000, 4))
    group = Group(batch_size=8.0, new_tokens=1.0, cached_tokens=1000.0 + drafter.draft.shape.ahead, logit_positions=1.0)
    draft = float(np.max(evaluate(drafter.draft.model, drafter.system, Step((group,))).time_s))
    expected = verify + drafter.draft.passes * draft + float(np.max(system.outside_kernels_s))
    assert times.decode_s(8, 8000) == pytest.approx(expected, rel=0.01)
    assert times.tokens_per_round == pytest.approx(1 + 0.7 + 0.49 + 0.343)  # accepted drafts and the bonus token


def test_the_answer_of_analyze_is_the_same_decode_step() -> None:
    one, times, _ = configured("llama")
    answer = one.answer(Request(batch_size=16.0, input_len=1001.0, output_len=2.0)).analysis
    assert times.decode_s(16, 16 * 1001) == pytest.approx(float(answer.decode_s[0]), rel=0.01)


@pytest.mark.parametrize("name", ["llama", "windows", "recurrent", "latent"])
def test_as_many_requests_of_a_length_fit_as_analyze_says(name: str) -> None:
    one, _, _ = configured(name)
    capacity = cache_capacity(one, 4096)
    request = Request(batch_size=1.0, input_len=4095.0, output_len=1.0)
    said = largest_sizes(one.model, one.system, request, one.token_budget)["max_concurrent_requests"]
    each = ceil(4096 / capacity.block_tokens) + capacity.sequence_blocks
    assert capacity.blocks // each == pytest.approx(said, abs=1, rel=0.01)


def test_recurrent_state_is_one_block_whatever_the_context() -> None:
    _, _, capacity = configured("mamba")
    assert (capacity.block_tokens, capacity.sequence_blocks) == (capacity.max_context, 0)


def test_weights_that_do_not_fit_leave_no_block() -> None:
    assert cache_capacity(api.configuration("llama-3.1-70b", "h100-sxm", engine="vllm")).blocks == 0


def test_blocks_are_whole_ones_that_the_memory_holds() -> None:
    """A block of 16 tokens at 128 KiB each is 2 MiB; one block more would not fit."""
    one = api.configuration("llama-3.1-8b", "h100-sxm", engine="vllm")
    memory = one.answer(api.request(1, 1024, 128)).memory
    budget, blocks = float(memory["kv_cache_budget_bytes"]), cache_capacity(one).blocks
    assert blocks * 2**21 <= budget < (blocks + 1) * 2**21


def test_limits_are_those_of_the_options() -> None:
    one = api.configuration(
        "llama-3.1-8b", "h100-sxm", engine="vllm", max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=8192,
        kv_block_size="32",
    )  # fmt: skip
    found = cache_capacity(one)
    assert (found.max_sequences, found.token_budget, found.max_context, found.block_tokens) == (64, 2048, 8192, 32)


@pytest.mark.parametrize(
    ("model", "options", "what"),
    [
        ("t5-v1.1-base", {}, "a decoder beside its encoder"),
        ("llama-3.1-8b", {"pipeline_parallel_size": "2,microbatches=4"}, "a micro-batch per stage"),
        (
            "qwen3-30b-a3b",
            {"pipeline_parallel_size": 2, "data_parallel_size": 2, "expert_parallel_size": 2},
            "pipelines",
        ),
        ("llama-3.1-8b", {"early_exit": "mean=0.6"}, "early_exit is not simulated"),
        ("llama-3.1-8b", {"offload": "weights"}, "offload"),
        ("llama-3.1-8b", {"gpu_layers": "20"}, "experts that the host computes"),
        ("qwen3-30b-a3b", {"gpu_layers": "auto"}, "would depend on the request"),
    ],
)
def test_steps_that_are_not_priced_are_refused_by_name(model: str, options: dict[str, object], what: str) -> None:
    with pytest.raises(UserError, match=what):
        step_times(api.configuration(model, "h100-sxm", **options))
