"""Launches that are printed start: every target states the limits on which the prediction of its engine rests."""

from __future__ import annotations

import re
from typing import Any

import pytest

from llmviewer import analyze, size
from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import EMITTERS, emit, launch
from llmviewer.planning.manifests.commands import ENGINES

#: Engine -> flags that are always stated -> option of a prediction; None: in terms that no option has.
FLAGS: dict[str, dict[str, str | None]] = {
    "vllm": {
        "max-model-len": "max_model_len",
        "max-num-seqs": "max_num_seqs",
        "max-num-batched-tokens": "max_num_batched_tokens",
        "gpu-memory-utilization": "gpu_memory_utilization",
        "kv-cache-dtype": "kv_cache_dtype",
    },
    "sglang": {
        "context-length": "max_model_len",
        "chunked-prefill-size": "max_num_batched_tokens",
        "mem-fraction-static": None,
        "kv-cache-dtype": "kv_cache_dtype",
    },
    "trtllm": {
        "max[-_]seq[-_]len": "max_model_len",
        "max[-_]batch[-_]size": "max_num_seqs",
        "max[-_]num[-_]tokens": "max_num_batched_tokens",
        "(?:kv_cache_)?free_gpu_memory_fraction|free-gpu-memory-fraction": "kv_cache_free_gpu_memory_fraction",
    },
}
#: Targets that start one engine only.
ONLY = {"llm-d": "vllm", **{engine: engine for engine in ENGINES}}
#: Model, chip, devices and options: the context does not fit the cache in the first two.
CASES: tuple[tuple[str, str, int, dict[str, str]], ...] = (
    ("llama-3.1-8b", "l4", 1, {}),
    ("gpt-oss-120b", "h100-sxm", 1, {}),
    ("gemma-2-9b", "a100", 2, {"tensor_parallel_size": "2", "kv_cache_dtype": "fp8"}),
    ("qwen3-8b", "rtx-4090", 1, {"gpu_memory_utilization": "0.95", "max_num_seqs": "16"}),
)


def stated(text: str, flag: str) -> str | None:
    """The value of a flag in a command, in arguments of a container or in a file of an engine's own; not in a note."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    found = re.search(rf"(?:--|\b)(?:{flag})['\"]?(?:=|:?\s+(?:\\\n)?(?:-\s+)?)['\"]?([\w.]+)", text)
    return found and found[1]


def words(engine: str, printed: dict[str, Any]) -> dict[str, Any]:
    """Options of a prediction from the flags of a launch."""
    found = {option: printed[flag] for flag, option in FLAGS[engine].items() if option and printed[flag] != "auto"}
    kinds = {name: float if "fraction" in name or "utilization" in name else int for name in found}
    return {name: value if name == "kv_cache_dtype" else kinds[name](value) for name, value in found.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} on {case[1]}")
@pytest.mark.parametrize(
    ("target", "engine"), [(one, engine) for one in EMITTERS for engine in ENGINES if ONLY.get(one, engine) == engine]
)
def test_what_a_target_prints_starts(target: str, engine: str, case: tuple[str, str, int, dict[str, str]]) -> None:
    model, chip, devices, options = case
    options = {name: value for name, value in options.items() if engine == "vllm" or name != "gpu_memory_utilization"}
    whole: dict[str, Any] = {"model": model, "hardware": chip, "devices": devices, "replicas": 1}
    try:
        text = emit(target, whole | {"options": options | {"engine": engine}})
    except UserError as error:
        assert (target, engine) == ("k8s", "trtllm"), error
        return
    printed = {flag: stated(text, flag) for flag in FLAGS[engine]}
    assert None not in printed.values(), (printed, text)
    same = {name: value for name, value in options.items() if name in ("tensor_parallel_size", "kv_cache_dtype")}
    found = analyze(model, chip, engine=engine, **{**words(engine, printed), **same}).to_dict()["memory"]
    assert found["starts"] is True, (printed, found["refusal"])


def test_the_static_share_of_sglang_holds_the_weights_and_the_longest_context() -> None:
    """Llama-3.1-8B on an L4 of 24 GiB: 8.03e9 weights of 2 byte, and 128 KiB per token of the context."""
    whole: dict[str, Any] = {"model": "llama-3.1-8b", "hardware": "l4", "devices": 1, "replicas": 1}
    text = emit("sglang", whole | {"options": {"engine": "sglang"}})
    share, context = (float(stated(text, flag) or 0) for flag in ("mem-fraction-static", "context-length"))
    capacity = analyze("llama-3.1-8b", "l4").to_dict()["memory"]["capacity_bytes"]
    assert 8.03e9 * 2 + context * 131_072 <= share * capacity < capacity
    assert context > 1000


def test_a_sizing_says_what_to_start_its_answer_with() -> None:
    """vLLM has 22.05 GiB of an L4: beside Llama-3.1-8B 26,896 tokens are left of a context of 131,072."""
    words = {"ttft": "2s", "batching": "continuous", "tensor_parallel_size": "1", "quantization": "none"}
    made = size("llama-3.1-8b", "l4", request_rate=1, kv_cache_dtype="auto", **words)
    (found,) = made.to_dict()["best"]["launch"]
    assert found["max_model_len"] == 26_896 and found["max_num_batched_tokens"] == 2048 and found["role"] is None
    assert "launch" not in made.rows()[0]


def test_pools_are_started_with_limits_of_their_own() -> None:
    options = {"pools": "prefill=2xtp2,decode=1xtp1"}
    pools = launch({"model": "llama-3.1-8b", "hardware": "l4", "devices": 5, "replicas": 1, "options": options})
    assert [one["role"] for one in pools] == ["prefill", "decode"]
    assert pools[0]["max_model_len"] == 131_072 > pools[1]["max_model_len"]


def test_a_configuration_that_no_engine_runs_has_no_launch() -> None:
    options = {"engine": "llama.cpp"}
    assert launch({"model": "llama-3.1-8b", "hardware": "l4", "devices": 1, "replicas": 1, "options": options}) == []
