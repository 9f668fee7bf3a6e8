"""Slots of llama.cpp's server and of programs like it: how many requests run, in which cache, and what a step takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer import api
from llmviewer.analysis.evaluation import evaluate
from llmviewer.core.workload import Group, Step
from llmviewer.simulation.cache_capacity import CacheCapacity, cache_capacity
from llmviewer.simulation.fleets import fleet_of
from llmviewer.simulation.step_times import step_times

MODEL, MAC = "llama-3.1-8b", "m4-max"


def served(**options: Any) -> api.Configuration:
    words = {"engine": "llama.cpp", "quantization": "q4_k_m", "batching": "continuous", **options}
    return api.configuration(MODEL, words.pop("hardware", MAC), **words)


def running(users: int = 8, **options: Any) -> float:
    answer = served(**options).answer(api.request(users, 1000, 100)).to_dict()
    return float(answer["serving"]["running"])


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ({}, 4),  # -np auto
        ({"max_num_seqs": 6}, 6),
        ({"engine": "lm-studio"}, 4),
        ({"engine": "ollama"}, 1),
        ({"engine": "ollama", "max_num_seqs": 2}, 2),
        ({"engine": "ik_llama.cpp"}, 1),
        ({"max_model_len": 3360}, 3),  # cells of three requests of 1,100 tokens
    ],
)
def test_as_many_requests_run_as_there_are_slots_and_cells(options: dict[str, Any], slots: int) -> None:
    assert running(**options) == slots
    made = lv.simulate(
        MODEL, MAC, **{"engine": "llama.cpp", "quantization": "q4_k_m", **options}, concurrency=8, input_len=1000,
        output_len=100, requests=40,
    ).to_dict()  # fmt: skip
    assert made["running_mean"] == pytest.approx(slots, rel=0.1)


def test_a_static_batch_is_no_matter_of_slots() -> None:
    """llama-batched-bench runs any batch: the server's slots limit requests that come one by one alone."""
    static, server = (served(batching=way) for way in ("static", "continuous"))
    assert (static.system.engine.max_num_seqs, server.system.engine.max_num_seqs) == (np.inf, 4)
    rooms = [one.answer(api.request(8, 1000, 100)).memory["max_concurrent_requests"] for one in (static, server)]
    assert rooms[0] == rooms[1] > 100  # of the memory, whatever its slots


def limits(**options: Any) -> CacheCapacity:
    return cache_capacity(served(**options))


def test_slots_share_a_cache_unless_their_number_is_stated() -> None:
    """-np auto has a unified cache; -np 4 divides the context of -c by four."""
    shared, divided = limits(max_model_len=8192), limits(max_model_len=8192, max_num_seqs=4)
    assert (shared.max_sequences, shared.max_context, divided.max_context) == (4, 8192, 2048)
    assert shared.blocks * shared.block_tokens == divided.blocks * divided.block_tokens == 8192
    assert limits().blocks > 10 * shared.blocks  # what the memory holds


@pytest.mark.parametrize(
    ("options", "step", "of_pass"),
    [
        ({}, 2048, 512),
        ({"logical_batch": 1024}, 1024, 512),
        ({"logical_batch": 256}, 256, 256),
        ({"max_num_batched_tokens": 4096}, 4096, 4096),
        ({"engine": "ollama"}, 512, 512),
        ({"batching": "chunked"}, 512, 512),
    ],
)
def test_a_step_is_the_logical_batch_in_micro_batches(options: dict[str, Any], step: int, of_pass: int) -> None:
    found = limits(**options)
    assert (found.token_budget, found.pass_tokens) == (step, of_pass)


def test_a_step_takes_the_time_of_its_micro_batches() -> None:
    """Three sequences and a prompt of 1,300 tokens: passes of 3 + 509, 512 and 279 tokens, each with its constants."""
    one = served(hardware="rtx-4090")
    passes: tuple[tuple[tuple[float, ...], ...], ...] = (
        ((3, 1, 700, 1), (1, 509, 0, 0)),
        ((1, 512, 509, 0),),
        ((1, 279, 1021, 1),),
    )

    def seconds(*groups: tuple[float, ...]) -> float:
        made = (Group(batch_size=b, new_tokens=n, cached_tokens=c, logit_positions=rows) for b, n, c, rows in groups)
        return float(np.max(evaluate(one.model, one.system, Step(tuple(made))).passing_s[0]))

    found = step_times(one).mixed_s(3, 2100, 1300, 1300 * 1301 / 2, 1)
    assert found == pytest.approx(sum(seconds(*groups) for groups in passes), rel=0.01)
    alone = seconds((3, 1, 700, 1), (1, 1300, 0, 1))
    # two passes more: two times the host's time of a pass, and weights that are read again
    assert found > alone + 2 * one.system.engine.constants["step"] * 1e-6


def test_more_slots_answer_more_users_at_once_and_each_more_slowly() -> None:
    words: dict[str, Any] = {"engine": "llama.cpp", "quantization": "q4_k_m", "concurrency": 8, "requests": 60}
    few, many = (
        lv.simulate(MODEL, MAC, **words, input_len=200, output_len=200, max_num_seqs=slots).to_dict()
        for slots in (2, 8)
    )
    assert many["requests_per_s"] > few["requests_per_s"]
    assert many["tpot_s"]["mean"] > few["tpot_s"]["mean"]
    assert many["ttft_s"]["mean"] < few["ttft_s"]["mean"]


def test_layers_split_over_gpus_compute_one_step_at_a_time() -> None:
    """A step leaves the last GPU before the next begins, so that two GPUs decode no faster than their sum."""
    one = served(hardware="rtx-4090", pipeline_parallel_size=2)
    assert one.system.parallelism.microbatches == 1
    assert fleet_of(one, None, 1000.0).prefill.stages == 1
    vllm = api.configuration(MODEL, "rtx-4090", engine="vllm", batching="continuous", pipeline_parallel_size=2)
    assert fleet_of(vllm, None, 1000.0).prefill.stages == vllm.system.parallelism.microbatches == 2


def test_the_logical_batch_is_used_where_requests_come_one_by_one() -> None:
    noted = [
        any("-b: " in note for note in served(batching=way, logical_batch=4096).warnings(api.request(1, 100, 10)))
        for way in ("static", "chunked", "continuous")
    ]
    assert noted == [True, True, False]


def test_at_a_desk_it_answers_for_requests_that_come_one_by_one() -> None:
    answer = lv.analyze(MODEL, MAC, quantization="q4_k_m", batching="continuous").to_dict()
    assert answer["served"]["engine"] == "llama.cpp"


def allocated_gib(model: str, chip: str, **options: Any) -> dict[str, Any]:
    return dict(api.configuration(model, chip, **options).answer(api.request(1, 64, 16)).memory)


def test_the_cache_of_gpt_oss_under_ollama_is_that_of_its_log() -> None:
    """18 layers of 131,072 cells and 18 of 1,280 (window 128 and a micro-batch of 1,024, padded), in each of two slots.

    9,216 and 90 MiB, and compute buffers of 796 MiB: https://github.com/ollama/ollama/issues/16480, 16416.
    """
    found = allocated_gib(
        "gpt-oss-120b", "ryzen-ai-max-395", engine="ollama", max_model_len=131072, max_num_seqs=2,
        max_num_batched_tokens=1024,
    )  # fmt: skip
    assert found["kv_cache_bytes"] == (9216 + 90) * 2**20
    assert found["activations_bytes"] == pytest.approx(796 * 2**20, rel=0.03)
    assert found["max_model_len"] == 131072


@pytest.mark.parametrize(("slots", "cells"), [({}, 1280 + 256), ({"max_num_seqs": 4}, 4 * 1536)])
def test_windows_take_a_micro_batch_more_padded_to_256(slots: dict[str, Any], cells: int) -> None:
    """Gemma 3 27B: 52 layers with a window of 1,024 tokens and 10 of all, each 2 x 16 heads of 128 in 16 bit.

    llama-kv-cache-iswa.cpp: 1,024 + 512 cells in each of the caches that -np states.
    """
    token = 2 * 16 * 128 * 2
    found = allocated_gib("gemma-3-27b", "rtx-4090", engine="llama.cpp", max_model_len=32768, **slots)
    assert found["kv_cache_bytes"] == token * (52 * cells + 10 * 32768)
    whole = allocated_gib("gemma-3-27b", "rtx-4090", engine="ik_llama.cpp", max_model_len=32768)
    assert whole["kv_cache_bytes"] == token * 62 * 32768


@pytest.mark.parametrize(("chip", "context"), [("rtx-3060-12gb", 4096), ("rtx-4090", 32768), ("m4-max", 131072)])
def test_ollama_allocates_its_default_context_by_memory(chip: str, context: int) -> None:
    """4k below 23 GiB, 32k, and from 47 GiB on 256k, of which Llama 3.1 has half (docs.ollama.com/context-length)."""
    found = api.configuration("llama-3.1-8b", chip, engine="ollama", quantization="q4_k_m")
    memory = found.answer(api.request(1, 64, 16)).memory
    assert memory["kv_cache_bytes"] == context * 131072
    assert memory["max_model_len"] == context
    assert any(f"a context of {context:,} tokens is allocated" in one for one in found.warnings(api.request(1, 64, 16)))
    longer = found.warnings(api.request(1, context, 16))
    assert any(one.startswith("Ollama cuts a request") for one in longer)


def test_ollama_puts_what_does_not_fit_on_the_host() -> None:
    found = allocated_gib("llama-3.1-70b", "rtx-4090", engine="ollama", quantization="q4_k_m")
    assert found["fits"]
    assert found["host"] == "desktop-ddr5-6000"
    assert found["host_bytes"] > 15 * 2**30
    whole = allocated_gib("llama-3.1-70b", "rtx-4090", engine="ollama", quantization="q4_k_m", gpu_layers="all")
    assert not whole["fits"]
