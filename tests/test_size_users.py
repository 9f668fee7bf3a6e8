"""`size` for users in a closed loop, and the engine that a server has where none is stated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer import api
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.planning.steady_state import Curves, Steady, closed
from llmviewer.planning.workload import Workload
from llmviewer.timing.engine import of_a_server

LOAD: dict[str, Any] = {"input_len": 500, "output_len": 60, "requests": 300}
MAC: dict[str, Any] = {"quantization": "q4_k_m", **LOAD}


def curves(slots: float = 100.0) -> Curves:
    """A rank whose steps take 10 ms and 1 ms more for each sequence, and whose prompts take 100 ms."""
    sequences = np.arange(1.0, 257.0)
    column = np.ones((1, 1, 1))
    return Curves(
        sequences=sequences,
        step_s=0.010 + 0.001 * sequences,
        alone_s=0.1 * column,
        together_s=0.1 * column,
        packed=column,
        passes=column,
        slots=slots * column,
        request_s=0.0,
    )


def state(users: float, most: float = 100.0, *, steps: float = 9.0, think_s: float = 0.0) -> Steady:
    work = Workload(rate=0.0, input_len=100.0, output_len=steps + 1.0, users=1, think_s=think_s)
    return closed(curves(), work, np.array([[[users]]]), np.array([[[most]]]))


def test_four_users_by_hand() -> None:
    """Four prompts of 100 ms and nine steps of 14 ms for four requests: 526 ms, after the first token 426 ms."""
    found = state(4.0)
    assert float(found.tpot_s.item()) == pytest.approx((0.4 + 9 * 0.014 - 0.1) / 9)
    assert float(found.ttft_s.item()) == pytest.approx(0.1 + 0.014)
    waiting = state(4.0, 2.0)  # two wait while two are served, in 200 ms and nine steps of 12 ms
    assert float(waiting.ttft_s.item()) == pytest.approx(0.1 + 0.012 + 0.2 + 9 * 0.012)


@given(st.integers(1, 200), st.integers(1, 100), st.floats(0.0, 30.0))
def test_more_users_or_fewer_slots_are_never_faster_and_pauses_never_slower(
    users: int, slots: int, think: float
) -> None:
    one, more, fewer = state(users, slots), state(users + 1, slots), state(users, max(slots - 1, 1))
    for other in (more, fewer):
        assert float(other.mean_ttft_s.item()) >= float(one.mean_ttft_s.item()) - 1e-12
    assert float(more.mean_tpot_s.item()) >= float(one.mean_tpot_s.item()) - 1e-12
    pausing = state(users, slots, think_s=think)
    assert float(pausing.mean_ttft_s.item()) <= float(one.mean_ttft_s.item()) + 1e-9


@pytest.mark.parametrize(
    ("model", "chip", "users", "options"),
    [
        ("llama-3.1-8b", "m3-ultra", 6, {"quantization": "q4_k_m", "max_num_seqs": 8, "tpot": "60ms", **LOAD}),
        ("llama-3.1-8b", "l40s", 40, {"quantization": "fp8", "tpot": "60ms", "ttft": "4s", **LOAD}),
    ],
)
def test_the_answer_is_that_of_a_simulation_and_its_next_number_of_users_breaks_a_limit(
    model: str, chip: str, users: int, options: dict[str, Any]
) -> None:
    best = lv.size(model, chip, concurrency=users, kv_cache_dtype="auto", tensor_parallel_size=1, **options).best
    assert best is not None
    assert best.users == -(-users // best.replicas)
    words = {**options, **best.options}
    made = lv.simulate(model, chip, concurrency=best.users, **words)
    assert made.holds
    assert made.latencies()["tpot_s"]["mean"] == best.tpot_s
    assert best.rate == pytest.approx(made.mean_load("requests_per_s"))
    most = best.most_users
    assert most is not None
    assert most >= best.users
    assert best.head_room == most / best.users - 1.0
    assert lv.simulate(model, chip, concurrency=most, **words).holds
    assert not lv.simulate(model, chip, concurrency=int(1.02 * most) + 1, **words).holds


def test_limits_without_the_wait_hold_for_any_number_of_users() -> None:
    """Four slots generate as fast with ten thousand users, who wait: no head-room, and a note says why."""
    made = lv.size("llama-3.1-8b", "m3-ultra", concurrency=5, tpot="60ms", max_num_seqs=4, kv_cache_dtype="auto", **MAC)
    assert made.best is not None
    assert made.best.head_room is None
    assert made.to_dict()["best"]["max_concurrency_per_server"] is None
    assert any("who wait for a slot" in note for note in made.notes)


def test_a_replica_more_where_the_users_of_one_are_too_many() -> None:
    few, many = (
        lv.size("llama-3.1-8b", "m3-ultra", concurrency=users, ttft="2s", confidence=0, max_num_seqs=4, **MAC)
        for users in (4, 9)
    )
    assert few.best is not None
    assert many.best is not None
    assert few.best.users <= 4
    assert many.best.replicas > few.best.replicas
    document = many.to_dict()
    assert document["request"]["concurrency"] == 9
    assert document["request"]["request_rate"] is None
    assert document["best"]["concurrency_per_replica"] == many.best.users
    assert f"--concurrency {many.best.users}" in document["best"]["command"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"request_rate": 2}, "request_rate and concurrency both say when requests arrive"),
        ({"rate_curve": "0h:2,8h:3"}, "both say when requests arrive"),
        ({"batching": "disaggregated"}, "a closed loop is sized for one pool"),
        ({"autoscale": "5m"}, "autoscale needs a load that varies"),
        ({"duration": "10m"}, "duration is not known before a closed loop"),
        ({"arrivals": "fixed"}, "concurrency has its own"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(UserError, match=error):
        lv.size("llama-3.1-8b", "h100", concurrency=8, ttft="2s", **options)


@pytest.mark.parametrize(
    ("chip", "engine"),
    [
        *((name, "llama.cpp") for name in ("m3-ultra", "m4", "ryzen-ai-max-395", "epyc-9654")),
        *((name, "llama.cpp") for name in ("core-i9-13900k", "rx-6800", "rx-9070-xt", "p40", "mi50-32gb")),
        *(
            (name, "vllm")
            for name in ("h100-sxm", "rtx-4090", "rx-7900-xtx", "mi300x", "gb10", "tpu-v6e", "ascend-910b")
        ),
        *((name, "vllm") for name in ("jetson-agx-orin-64gb", "gaudi-3", "b200", "l4")),
    ],
)
def test_a_server_has_the_engine_that_is_known_on_the_chip(chip: str, engine: str) -> None:
    assert of_a_server(specs.load(chip)) == engine


def test_doors_of_a_server_name_the_engine_of_the_chip() -> None:
    """`simulate`, `size` and `require` without --engine are those with it."""
    simulated, stated = (
        lv.simulate("llama-3.1-8b", "m4-max", concurrency=2, **MAC, **one) for one in ({}, {"engine": "llama.cpp"})
    )
    assert simulated.setting.engine == "llama.cpp with Metal"
    assert simulated.latencies() == stated.latencies()
    best = lv.size("llama-3.1-8b", "m4-max", concurrency=2, tpot="50ms", **MAC).best
    assert best is not None
    assert best.options["engine"] == "llama.cpp"
    found = lv.require("llama-3.1-8b", "m4-max", vary="concurrency", tpot="50ms", quantization="q4_k_m")
    assert found.configuration.system.engine.name == "llama.cpp"
    assert "--engine llama.cpp" in str(found.to_dict()["command"])


def test_the_most_concurrent_requests_hold_in_a_simulation() -> None:
    """`require --vary concurrency` and users in a closed loop agree on the time per token."""
    options = {"quantization": "q4_k_m", "max_num_seqs": 16}
    found = lv.require(
        "llama-3.1-8b", "m3-ultra", vary="concurrency", tpot="50ms", input_len=1000, output_len=200, **options
    )
    users = int(found.to_dict()["solutions"][0]["concurrency"])
    run = lv.simulate(
        "llama-3.1-8b",
        "m3-ultra",
        concurrency=users,
        input_len=1000,
        output_len="uniform,low=100,high=300",
        requests=400,
        **options,
    )
    answer = api.configuration("llama-3.1-8b", "m3-ultra", engine="llama.cpp", batching="continuous", **options)
    tpot_s = float(answer.answer(api.request(users, 1000, 200)).tpot_s)
    assert tpot_s <= 0.05
    assert run.latencies()["tpot_s"]["mean"] == pytest.approx(tpot_s, rel=0.1)
