"""The largest batch, context, concurrency or rate keeps all limits, and one more does not."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.planning.largest_size import LargestSize
from tests.answers import refusal

RUN = ("llama-3.1-8b", "h100-sxm")


def largest(vary: str, model: str = RUN[0], hardware: str = RUN[1], **words: Any) -> LargestSize:
    found = lv.require(model, hardware, vary=vary, **words)
    assert isinstance(found, LargestSize)
    return found


def size(found: LargestSize) -> int:
    assert found.best is not None
    return found.best.size


@pytest.mark.parametrize("engine", ["kernels", "vllm", "sglang", "llama.cpp"])
def test_the_largest_batch_meets_the_target_and_one_more_does_not(engine: str) -> None:
    found = largest("batch-size", tpot="20ms", engine=engine)
    most = size(found)
    tpots = [float(lv.analyze(*RUN, engine=engine, batch_size=most + more).tpot_s) for more in (0, 1)]
    assert tpots[0] <= 20e-3 < tpots[1]
    assert found.beyond.broken == ("tpot_s",)


def test_without_a_target_sizes_are_those_that_fit_as_an_analysis_tells_them() -> None:
    memory = lv.analyze(*RUN, engine="vllm").memory
    assert size(largest("batch-size", engine="vllm")) == memory["max_batch_size"]
    words = {"quantization": "q4_k_m", "engine": "llama.cpp"}
    found = largest("context", hardware="rtx-4090", **words)
    assert size(found) == 131072 < lv.analyze("llama-3.1-8b", "rtx-4090", **words).memory["max_context_len"]  # type: ignore[arg-type]
    found = largest("context", hardware="rtx-4060", **words)
    assert size(found) == lv.analyze("llama-3.1-8b", "rtx-4060", **words).memory["max_context_len"]  # type: ignore[arg-type]
    assert found.beyond.broken == ("memory",)


def test_a_step_that_reads_memory_alone_bounds_the_batch_by_hand() -> None:
    """8.03e9 weights less 128,256 x 4,096 of the embedding are read once, and per sequence 2 x 32 x 8 x 128 elements of
    each of 4,096 + 64 cached tokens in the mean, all of 2 bytes, at 3.35 TB/s; activations take little more.
    """
    weights, cached = 2 * (8.03e9 - 128256 * 4096), 2 * 2 * 32 * 8 * 128 * (4096 + 64)
    expected = (10e-3 * 3.35e12 - weights) / cached
    found = largest("batch-size", tpot="10ms", efficiency="ideal", input_len=4096)
    assert size(found) == pytest.approx(expected, rel=0.03)


def test_the_longest_context_meets_the_target_and_a_token_more_does_not() -> None:
    found = largest("context", ttft="1s", engine="vllm", output_len=100)
    most = size(found)
    times = [
        float(lv.analyze(*RUN, engine="vllm", output_len=100, input_len=most - 100 + more).ttft_s) for more in (0, 1)
    ]
    assert times[0] <= 1.0 < times[1]


def test_the_context_ends_at_that_of_the_model_or_of_the_engine() -> None:
    words = {"quantization": "q4_k_m", "engine": "llama.cpp"}
    assert size(largest("context", "qwen3-14b", "rtx-4090", **words)) == 40960
    found = largest("context", "qwen3-14b", "rtx-4090", max_model_len=5000, **words)
    assert (size(found), found.beyond.broken) == (5000, ("max_context",))


def test_concurrent_requests_all_run_and_one_more_waits() -> None:
    found = largest("concurrency", engine="vllm")
    most = size(found)
    for users, running in ((most, most), (most + 1, most)):
        a = lv.analyze(*RUN, engine="vllm", batching="continuous", batch_size=users).analysis
        assert a.running is not None and float(a.running.request.batch_size[0]) == running  # type: ignore[index]
    few = largest("concurrency", engine="vllm", max_num_seqs=16)
    assert (size(few), few.beyond.broken) == (16, ("max_num_seqs",))


def test_several_limits_leave_the_least_of_the_sizes_of_each() -> None:
    limits = {"tpot": "25ms", "ttft": "150ms", "e2e": "2s"}
    alone = [size(largest("concurrency", engine="vllm", **{name: text})) for name, text in limits.items()]
    assert size(largest("concurrency", engine="vllm", **limits)) == min(alone) < max(alone)


def test_the_command_of_an_answer_gives_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("--vary concurrency --tokens-per-s 40", "--vary context --e2e 3s", "--vary batch-size --ttft 1s"):
        assert main(shlex.split(f"require llama-3.1-8b --engine vllm {line} --format json")) == 0
        found = json.loads(capsys.readouterr().out)
        assert main([*shlex.split(found["command"])[1:], "--format", "json"]) == 0
        again = json.loads(capsys.readouterr().out)["metrics"][found["metric"]]
        assert again == pytest.approx(found["reached"], rel=1e-12)
        assert found["reached"] <= found["target"] < found["beyond"][found["metric"]]


def test_a_limit_that_one_request_breaks_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("require llama-3.1-8b --vary batch-size --tpot 1ms")) == 1
    assert "no batch with TPOT ≤ 1.00 ms: TPOT" in capsys.readouterr().out
    assert main(shlex.split("require llama-3.1-405b --vary batch-size --format json")) == 1
    assert json.loads(capsys.readouterr().out)["limited_by"] == ["memory"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--vary batch-size,bandwidth --tpot 5ms", "a size or a rate varies alone: batch-size, context, concurrency"),
        ("--vary batchsize --tpot 5ms", "did you mean 'batch-size'?"),
        ("--vary concurrency --batching static", "concurrent requests start one by one: use continuous"),
        ("--vary batch-size --tpot 5ms --output-len 1", "needs at least 2"),
    ],
)
def test_wrong_questions_are_refused(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(["require", "llama-3.1-8b", *shlex.split(line)], capsys)


def test_a_frontier_is_of_figures_of_the_chip(capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(
        "plot frontier llama-2-70b --hardware h100 --vary batch-size --metric ttft_s --target 1s -o a.png"
    )
    assert "a frontier is of figures of the chip" in refusal(words, capsys)


def test_the_highest_rate_is_that_of_a_search_by_simulation_and_its_command_holds_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = {"input_len": 256, "output_len": 8}
    found = lv.require("llama-3.2-1b", "l4", vary="request-rate", ttft="p99:200ms", tokens_per_s=20, **words)
    made = lv.simulate("llama-3.2-1b", "l4", find_rate=True, ttft="p99:200ms", tpot="50ms", **words)
    assert found.to_dict()["solutions"] == [{"request_rate": made.max_request_rate}]
    beyond = found.to_dict()["beyond"]
    assert beyond["request_rate"] > made.max_request_rate
    assert found.to_dict()["limited_by"] == [one["metric"] for one in beyond["broken"]] != []
    limits = {"ttft_s": 0.2, "tpot_s": 0.05}
    assert all(one["value_s"] > limits[one["metric"]] for one in beyond["broken"])
    assert str(found).startswith("Verdict     the highest rate with TTFT p99 ")
    assert found.to_dict()["at_most"] == {
        "ttft_s.p99": made.latencies()["ttft_s"]["p99"],
        "tpot_s.mean": made.latencies()["tpot_s"]["mean"],
    }
    command = shlex.split(found.command)
    assert main([*command[1:], "--format", "json"]) == 0  # the limits hold there
    assert json.loads(capsys.readouterr().out)["request_rate"] == pytest.approx(made.max_request_rate, rel=0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "vary request-rate needs a limit; give ttft, "),
        ({"ttft": "p98:1s"}, "unknown statistic of ttft 'p98'"),
        ({"ttft": "1s", "batch_size": 8}, "batch_size is 8; a server makes its batches itself"),
        ({"tpot": "1s", "tokens_per_s": 8}, "tokens_per_s and tpot limit the same"),
    ],
)
def test_a_rate_of_requests_has_limits_and_no_batch(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lv.require("llama-3.2-1b", "l4", vary="request-rate", **words)
    assert not lv.require("llama-3.2-1b", "l4", vary="request-rate", tpot="1us", input_len=16, output_len=2).holds
