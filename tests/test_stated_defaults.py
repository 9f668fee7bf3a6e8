"""A stated value that equals a default is stated: it is refused or noted as any other value of its option."""

from __future__ import annotations

from typing import Any

import pytest

import llmviewer as lv
from llmviewer.core.errors import UserError
from llmviewer.planning.options import NOT_OF_A_SIZING, SIZE, question
from llmviewer.planning.train import OF_SERVING, train
from llmviewer.result.crossover import CONTEXTS
from llmviewer.simulation.call import prepared
from llmviewer.simulation.options import LOAD
from llmviewer.techniques.options import OPTIONS

SMALL = ("llama-3.2-1b", "h100-sxm")
LOADED: dict[str, Any] = {"request_rate": 4, "input_len": 256, "output_len": 32}
#: A sizing of one structure, without the times of an engine.
ONE: dict[str, Any] = {
    "input_len": 256, "output_len": 32, "ttft": "p99:2s", "max_gpus": 4, "engine": "kernels", "quantization": "fp8",
    "kv_cache_dtype": "fp8", "tensor_parallel_size": 1, "batching": "continuous",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in OF_SERVING if OPTIONS[name].default is not None])
def test_a_training_step_refuses_options_of_serving(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} is .*; a training step has {OF_SERVING[name]}; remove it"):
        train(*SMALL, **{name: OPTIONS[name].default})
    assert train(*SMALL, **{name: None}).step == train(*SMALL).step


@pytest.mark.parametrize("name", [name for name in NOT_OF_A_SIZING if {**LOAD, **OPTIONS}[name].default is not None])
def test_a_sizing_refuses_options_of_a_server(name: str) -> None:
    with pytest.raises(UserError, match=f"remove {name}"):
        lv.size(*SMALL, request_rate=4, **ONE, **{name: {**LOAD, **OPTIONS}[name].default})


def test_a_sizing_refuses_a_start_up_without_an_autoscaler() -> None:
    with pytest.raises(UserError, match="start_up is '0s'; an autoscaler has it"):
        lv.size(*SMALL, request_rate=4, **ONE, start_up=SIZE["start_up"].default)


@pytest.mark.parametrize("call", [lv.simulate, lv.size])
def test_a_speed_is_of_a_trace_or_a_curve(call: Any) -> None:
    with pytest.raises(UserError, match="speed_up is of a trace or a curve"):
        call(*SMALL, **LOADED, ttft="p99:2s", speed_up=LOAD["speed_up"].default)


@pytest.mark.parametrize("router", [None, "round-robin", "least-loaded"])
def test_a_router_without_replicas_is_noted_where_it_is_stated(router: str | None) -> None:
    noted = lv.simulate(*SMALL, **LOADED, requests=20, router=router).notes
    assert ("--router: one replica, not used" in noted) is (router is not None)


def test_a_sizing_serves_the_peak_of_a_curve_that_is_sped_up() -> None:
    """Twice 2 to 4 requests/s over the day are 8 at most, where it was rejected as a speed without a curve."""
    load = question(SMALL[0], SMALL[1:], {"rate_curve": "0h:2,8h:4", "speed_up": 2, **ONE}).load
    assert load.rate == 8.0
    assert prepared(*SMALL, **load.words, request_rate=load.rate).made.traffic.mean_rate == 8.0


@pytest.mark.parametrize("engine", ["trtllm", "llama.cpp", "vllm"])
def test_a_stated_share_of_the_memory_is_that_share_of_it(engine: str) -> None:
    """TensorRT-LLM takes a share of what is free and llama.cpp all but a margin, unless a share is stated: 0.9 is."""
    known = [
        lv.analyze(*SMALL, engine=engine, batching="continuous", gpu_memory_utilization=share).memory
        for share in (0.8, 0.9, 1.0)
    ]
    budgets = [float(one["budget_bytes"]) for one in known]
    assert (
        budgets[1] - budgets[0]
        == pytest.approx(budgets[2] - budgets[1])
        == pytest.approx(0.1 * float(known[0]["capacity_bytes"]))
    )


def test_stated_contexts_of_a_crossover_are_all_there() -> None:
    """Contexts of a map without any are cut at what every model has; the same ones stated are not."""
    asked: dict[str, Any] = {"quantization": ["none", "w4a16"], "batch_size": [1]}
    assert list(lv.crossover("llama-2-7b", "h100", **asked).contexts) == [512, 1024, 2048, 4096]
    assert lv.crossover("llama-2-7b", "h100", **asked, context=CONTEXTS).contexts[-1] == 131072
