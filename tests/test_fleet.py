"""Fleets are built from configurations: replicas, schedulers, pools of other layouts and chips, and their link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import llmviewer as lv
from llmviewer import api
from llmviewer.core.errors import UserError
from llmviewer.serving.scheduling import SCHEDULERS
from llmviewer.simulation.cache import BlockPool
from llmviewer.simulation.fleets import fleet_of, pooled, pools_of
from llmviewer.timing import engine as engines

SERVER = {"engine": "vllm", "batching": "continuous"}


def test_data_parallel_groups_are_replicas() -> None:
    one = api.configuration("llama-3.1-8b", "h100-sxm", **SERVER, tensor_parallel_size=2, data_parallel_size=4)
    fleet = fleet_of(one, "least-loaded", 1000.0)
    assert (fleet.prefill.replicas, fleet.prefill.devices, fleet.devices, fleet.decode) == (4, 2, 8, None)


@pytest.mark.parametrize("name", [name for name in engines.names() if engines.load(name).scheduler])
def test_the_scheduler_of_an_engine_is_known_and_has_a_source(name: str) -> None:
    assert SCHEDULERS[engines.load(name).scheduler].source.startswith("https://")


def test_an_engine_that_serves_no_requests_is_refused() -> None:
    with pytest.raises(UserError, match=r"engine gpt-fast does not serve requests; allowed: .*vllm"):
        lv.simulate("llama-2-7b", "a100-80gb-sxm", request_rate=1, engine="gpt-fast")


def test_the_cache_of_a_prompt_takes_its_bytes_over_the_link() -> None:
    # llama-3.1-8b: 2 x 32 layers x 1024 values x 2 bytes = 131,072 bytes per token; 1000 tokens at 50 GB/s
    text = "prefill=2xtp1@h100-sxm,decode=1xtp2@h200,link=50"
    fleet, configurations = pooled("llama-3.1-8b", "h100-sxm", SERVER, text, "round-robin", 1000.0)
    assert fleet.transfer_s(1000) == pytest.approx(1000 * 131072 / 50e9)
    assert [one.chip.name for one in configurations] == ["h100-sxm", "h200"]
    assert fleet.decode is not None
    assert (fleet.prefill.replicas, fleet.decode.devices, fleet.devices) == (2, 2, 4)


def test_devices_of_both_sides_send_side_by_side() -> None:
    one, two = (
        pooled("llama-3.1-8b", "h100-sxm", SERVER, f"prefill=1xtp{size},decode=1xtp{size},link=50", "round-robin", 1e3)[
            0
        ]
        for size in (1, 2)
    )
    assert one.transfer_s(4096) == pytest.approx(2.0 * two.transfer_s(4096))


def test_a_cache_that_every_device_holds_is_sent_once_per_receiver() -> None:
    # latent attention: eight senders to four receivers take as long as eight to eight
    options = {**SERVER, "quantization": "w4a16"}
    eight, four = (
        pooled("deepseek-v3", "h200", options, f"prefill=1xtp8,decode=1xtp{size},link=50", "round-robin", 1e3)[0]
        for size in (8, 4)
    )
    assert eight.transfer_s(1000) == pytest.approx(four.transfer_s(1000))


@pytest.mark.parametrize("batching", ["static", "disaggregated,prefill=2,decode=1"])
def test_pools_and_another_batching_contradict_each_other(batching: str) -> None:
    with pytest.raises(UserError, match="both say how requests share devices"):
        lv.simulate("llama-3.1-8b", "h100-sxm", request_rate=1, pools="prefill=1,decode=1", batching=batching)


def test_disaggregated_batching_is_two_pools_of_one_configuration() -> None:
    options = {**SERVER, "batching": "disaggregated,prefill=3,decode=2,link=100"}
    fleet = fleet_of(api.configuration("llama-3.1-8b", "h100-sxm", **options), "round-robin", 1000.0)
    assert fleet.decode is not None
    assert (fleet.prefill.replicas, fleet.decode.replicas) == (3, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prefill=2", "decode is missing"),
        ("prefill=2,decode=0", "pools has 'decode=0'"),
        ("prefill=2xzz2,decode=1", "allowed layouts: tpN, ppN, dpN, epN"),
        ("prefil=2,decode=1", "did you mean 'prefill'?"),
        ("prefill=1xtp2+tp4,decode=1", "allowed layouts"),
        ("prefill=1,decode=1,link=1,link=2", "pools has 'link=2'"),
        ("prefill=1,prefill=1,decode=1", "pools has 'prefill=1'"),
        ("", "pools has ''"),
    ],
)
def test_wrong_pools_are_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        pools_of(text)
    assert message in str(caught.value)


def test_both_signs_of_multiplication_are_read() -> None:
    found, link = pools_of("prefill=2×tp2+ep2@h100,decode=1xtp8@h200,link=infiniband-ndr")
    assert found["prefill"].options == {"tensor_parallel_size": "2", "expert_parallel_size": "2"}
    assert (found["decode"].instances, found["decode"].chip, link) == (1, "h200", "infiniband-ndr")


def test_an_unknown_router_is_named() -> None:
    with pytest.raises(UserError, match="did you mean 'round-robin'"):
        lv.simulate("llama-3.1-8b", "h100-sxm", request_rate=1, router="round-robbin")


def test_blocks_used_least_recently_are_overwritten_first() -> None:
    pool = BlockPool(total=4, width=1)
    for name in (1, 2, 3):
        pool.take(1)
        assert pool.store([name]) == [name]
    for name in (2, 1, 3):
        pool.give_back(0, [name])
    assert (pool.free, pool.matched([1], 9), pool.matched([2], 9)) == (4, 1, 1)
    pool.take(2)  # the block that was never used, then the content of 2
    assert (pool.matched([2], 9), pool.matched([1], 9), pool.matched([3], 9)) == (0, 1, 1)
    pool.read([1])
    pool.take(1)
    assert (pool.free, pool.matched([3], 9), pool.matched([1], 9)) == (0, 0, 1)


def test_an_ideal_server_is_faster() -> None:
    calibrated, ideal = (
        lv.simulate("llama-3.1-8b", "h100-sxm", request_rate=4, requests=200, efficiency=efficiency).records
        for efficiency in ("calibrated", "ideal")
    )
    assert np.median(ideal.e2e_s) < np.median(calibrated.e2e_s)


def test_a_run_repeats_to_the_digit() -> None:
    first, again = (lv.simulate("llama-3.1-8b", "h100-sxm", request_rate=9, requests=300) for _ in range(2))
    np.testing.assert_array_equal(first.records.finish_s, again.records.finish_s)
    assert replace(first.traffic, seed=1).requests().arrival_s[0] != first.records.arrival_s[0]
