"""Whether an engine starts: one sequence of its longest context in the KV cache, and doubt about what fits."""

from __future__ import annotations

import json
import shlex
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.analysis.capacity import CacheBlocks
from llmviewer.analysis.limits import blocks_of_engine
from llmviewer.api.configuration import configuration
from llmviewer.cli import main
from llmviewer.timing import engine

GIB = 2.0**30
L4 = ("llama-3.1-8b", "--hardware", "l4", "--engine", "vllm")


def memory(model: str, chip: str, **options: Any) -> dict[str, Any]:
    return lv.analyze(model, chip, **{"engine": "vllm", **options}).memory


def blocks_of(model: str, chip: str = "h200", **options: Any) -> CacheBlocks:
    one = configuration(model, chip, engine="vllm", **options)
    found = blocks_of_engine(one.model, one.system)
    assert found is not None
    return found


def test_vllm_refuses_a_context_that_its_cache_does_not_hold() -> None:
    """1,681 whole blocks of 16 tokens on an L4, whose driver reports 22.05 GiB."""
    found = memory("llama-3.1-8b", "l4")
    assert (found["fits"], found["starts"], found["max_model_len_to_start"]) == (True, False, 26896)
    assert found["refusal"] == "vLLM refuses to start at 131,072 tokens: pass --max-model-len 26896 or less"
    assert found["kv_cache_budget_bytes"] // (16 * 32 * 2 * 8 * 128 * 2) * 16 == 26896


@pytest.mark.parametrize(("chip", "model"), [("l4", "llama-3.1-8b"), ("h100", "gpt-oss-120b"), ("a100", "gemma-4-31b")])
def test_an_engine_starts_with_the_length_that_is_told_and_not_with_one_more(chip: str, model: str) -> None:
    most = memory(model, chip)["max_model_len_to_start"]
    assert [memory(model, chip, max_model_len=n)["starts"] for n in (most, most + 1)] == [True, False]
    assert memory(model, chip, max_model_len=most)["max_concurrency"] >= 1.0


@pytest.mark.parametrize(
    ("words", "status"),
    [((), 0), (("--max-model-len", "131072"), 1), (("--max-model-len", "26896"), 0)],
)
def test_only_a_stated_length_that_does_not_start_fails(
    words: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", *L4, *words]) == status
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("WILL NOT START  vLLM refuses") is not (words[-1:] == ("26896",))
    assert main(["analyze", *L4, *words, "--format", "json"]) == status
    assert json.loads(capsys.readouterr().out)["memory"]["fits"] is True


def test_rules_of_engines_differ() -> None:
    """SGLang and TensorRT-LLM 1.x limit requests to what the cache holds; llama.cpp allocates what -c asks for."""
    found = {name: memory("llama-3.1-8b", "l4", engine=name) for name in ("sglang", "trtllm", "llama.cpp")}
    assert [one["starts"] for one in found.values()] == [True, True, None]
    stated = memory("llama-3.1-8b", "l4", engine="llama.cpp", max_model_len=131072)
    assert stated["starts"] is False and stated["max_model_len_to_start"] < 131072
    assert memory("llama-3.1-8b", "l4", engine="kernels")["starts"] is None


def test_weights_that_leave_nothing_do_not_start() -> None:
    found = memory("llama-3.1-70b", "l4")
    assert (found["fits"], found["starts"], found["max_model_len_to_start"]) == (False, False, 0)


@pytest.mark.parametrize("name", [name for name in engine.names() if name != "kernels"])
def test_a_rule_has_its_page(name: str) -> None:
    found = engine.load(name)
    assert (found.start is not engine.AtStart.UNKNOWN) == found.start_source.startswith("https://")


def test_kinds_of_other_widths_share_blocks() -> None:
    """Gemma-4-31B: 50 windowed layers of 16 KiB per token, 10 full ones of 8: blocks of 16 and of 32 tokens.

    Its full group takes ceil(262,144 / 32) blocks, each of five windowed ones ceil((1,024 - 1 + 2,048) / 16) + 1.
    """
    found = blocks_of("gemma-4-31b")
    assert (found.layers, found.groups, found.tokens, found.longer) == (10, {1024.0: 5, np.inf: 1}, 16, {np.inf: 2})
    assert found.blocks_of(262144.0, 2048.0) == 8192 + 5 * (192 + 1)
    assert found.block_bytes == 10 * 16 * 2 * 4096 * 2


def test_deepseek_v4_refuses_as_logged() -> None:
    """30,000 tokens need 6.66 GiB, and 5.44 GiB hold 13,528 (https://github.com/vllm-project/vllm/issues/44376).

    22 rooms of pages of 37,440, 8,640 and 1,728 bytes; 118 compressed blocks, 2 x 259 of the window, and 4,099 and
    2,065 of the compressors' states, with 16,384 tokens in a pass.
    """
    found = blocks_of("deepseek-v4-flash")
    assert found.block_bytes == 22 * (37440 + 8640 + 1728)
    assert found.blocks_of(30000.0, 16384.0) == 118 + 2 * 259 + 4099 + 2065
    assert found.blocks_of(30000.0, 16384.0) * found.block_bytes == pytest.approx(6.66 * GIB, rel=1e-3)
    assert found.blocks_of(13528.0, 16384.0) * found.block_bytes == pytest.approx(5.44 * GIB, rel=1e-3)


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma-3-27b", "gemma-4-31b", "qwen3-next-80b-a3b", "llama-3.1-8b"])
def test_kv_tokens_are_those_of_its_requests_since_0_20_2(model: str) -> None:
    found = memory(model, "h200", max_model_len=32768)
    assert found["kv_cache_tokens"] == np.floor(found["max_concurrency"] * 32768)


def test_kv_tokens_that_are_not_known_say_why() -> None:
    found = memory("mamba-2.8b", "l4")
    assert found["kv_cache_tokens"] is None and "no layer stores keys" in found["kv_cache_tokens_unknown"]


def test_gpt_oss_120b_on_80_gb_is_at_the_edge() -> None:
    """People serve it; 61 % of 2.87 GiB, 76 % of 0.26 and 64 % of 1.15 are not known well enough."""
    found = [memory("gpt-oss-120b", "h100", batch_size=b, input_len=n) for b, n in ((1, 1024), (8, 8192))]
    assert [(one["fits"], one["at_edge"]) for one in found] == [(True, True), (False, True)]
    expected = 0.61 * found[0]["activations_bytes"] + 0.76 * found[0]["framework_bytes"]
    assert found[0]["uncertainty_bytes"] == pytest.approx(expected + 0.64 * found[0]["cuda_graphs_bytes"], abs=2)
    plain = memory("llama-3.1-8b", "h100")
    assert plain["at_edge"] is False and memory("llama-3.1-8b", "h100", engine="sglang")["at_edge"] is None


def test_the_verdict_says_at_the_edge_with_both_figures(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gpt-oss-120b", "--hardware", "h100", "--engine", "vllm", "--batch-size", "8", "--input-len", "8192")
    assert main(["analyze", *words]) == 1
    line = next(one for one in capsys.readouterr().out.splitlines() if one.startswith("At the edge"))
    assert "72.5 GiB of a budget of 71.3 GiB per device, ± 2.69 GiB" in line


def test_memory_of_a_tensor_group_goes_by_link() -> None:
    """0.41 GiB on each of two PCIe cards, 2.087 with NVLink."""
    pcie = memory("llama-3.1-8b", "rtx-4090", tensor_parallel_size=2)["framework_bytes"]
    nvlink = memory("llama-3.1-8b", "h100-sxm", tensor_parallel_size=2)["framework_bytes"]
    assert (pcie / GIB, nvlink / GIB) == pytest.approx((0.41, 2.087), abs=1e-6)
    assert memory("llama-3.1-8b", "h100-sxm", tensor_parallel_size=2, link="pcie")["framework_bytes"] == pcie


REFUSED = f"{' '.join(L4)} --max-model-len 32768"


@pytest.mark.parametrize(
    "line",
    [
        f"compare {REFUSED}",
        f"sweep {REFUSED} --batch-size 1,2",
        f"crossover {REFUSED} --batch-size 1,2 --context 512 --quantization none,w8a16",
        f"advise {REFUSED}",
        f"explain tpot_s {REFUSED}",
        f"elasticity {REFUSED}",
        f"require {REFUSED} --vary concurrency",
        f"require {REFUSED} --vary bandwidth --tpot 20ms",
        f"why '{REFUSED}' '{' '.join(L4)} --max-model-len 16k'",
        f"simulate {REFUSED} --request-rate 1 --requests 20",
    ],
)
def test_every_question_of_a_server_that_does_not_start_says_so(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(shlex.split(line))
    said = " ".join("".join(capsys.readouterr()).split())
    assert "vLLM refuses to start at 32,768 tokens: pass --max-model-len 26896 or less" in said


def test_what_starts_is_taken_and_advised(capsys: pytest.CaptureFixture[str]) -> None:
    chips = ["compare", "llama-3.1-8b", "--hardware", "l4,l40s", "--engine", "vllm", "--max-model-len", "32768"]
    assert main(chips) == 0 and capsys.readouterr().out.startswith("Take  l40s: the only one that fits and starts\n")
    found = lv.advise("llama-3.1-8b", "l4", engine="vllm", max_model_len=32768)
    assert not found.result.runs and found.holds and found.best.runs
    alone = {one.option: one.result for one in found.changes}
    assert alone["--max-model-len 26896"].tpot_s == found.result.tpot_s
    assert all(one.runs and one.memory["starts"] for one in alone.values())
    drafts = [one for one in found.broken if "speculative" in one.words]  # they add to what does not start without
    assert drafts and all(one.result.memory["starts"] is False for one in drafts)
    assert found.to_dict()["refusal"] == found.result.refusal == found.result.memory["refusal"]
