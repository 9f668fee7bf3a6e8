"""Unlike devices in one system: layers divided as llama.cpp does, each priced on its own chip."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.analysis.pipeline import layers_by_share
from llmviewer.cli import main
from llmviewer.core.errors import UserError

DENSE, EXPERT, LARGE = "llama-3.1-8b", "qwen3-30b-a3b", "llama-3.3-70b"
PAIR = "rtx-4090+rtx-3090"
GB = 1e9


@functools.cache
def run(model: str = DENSE, hardware: str = PAIR, **options: Any) -> Any:
    return lv.analyze(model, hardware, **{"engine": "llama.cpp", "quantization": "q4_k_m", **options})


def devices(found: Any) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = found.to_dict()["devices"]
    return listed


# The rule that divides layers


@pytest.mark.parametrize(
    ("shares", "layers", "on_host", "sizes", "head"),
    [
        ((1, 1), 32, 0, [17, 15], 1),  # of 33 with the head, those below 16.5
        ((3, 2), 32, 0, [20, 12], 1),  # below 19.8
        ((24, 12, 12), 80, 0, [41, 20, 19], 2),  # below 40.5 and 60.75 of 81
        ((1, 1), 32, 20, [27, 5], 1),  # 13 on the devices: below 6.5
        ((100, 1), 4, 0, [4, 0], 0),  # the last of five is at 0.8, before 0.99
        ((1, 1), 32, 32, [32, 0], 0),  # the head alone
    ],
)
def test_layers_are_divided_by_shares_of_which_the_head_counts_as_one(
    shares: tuple[float, ...], layers: int, on_host: int, sizes: list[int], head: int
) -> None:
    assert layers_by_share(shares, layers, on_host) == (sizes, head)


@given(
    st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6), st.integers(1, 200), st.floats(0.001, 1000.0), st.data()
)
def test_every_layer_is_on_one_device_whatever_the_unit_of_the_shares(
    shares: list[float], layers: int, unit: float, data: st.DataObject
) -> None:
    on_host = data.draw(st.integers(0, layers))
    sizes, head = layers_by_share(shares, layers, on_host)
    assert sum(sizes) == layers and sizes[0] >= on_host and not any(sizes[head + 1 :])
    more = np.array(shares) * unit
    assert all(
        abs(one - other) <= 1 for one, other in zip(sizes, layers_by_share(more, layers, on_host)[0], strict=True)
    )


# Times


def test_a_step_is_the_sum_of_both_devices_each_by_its_own_bandwidth() -> None:
    """17 layers of 436.2 MB at 1,008 GB/s, and 15 with the head of 1,051 MB at 936 GB/s; KV cache and norms are 1 %."""
    found = run(efficiency="ideal", engine=None, quantization=None)
    first, second = devices(found)
    layer = 2.0 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert first["decode_s"] == pytest.approx(17 * layer / (1008 * GB), rel=0.015)
    assert second["decode_s"] == pytest.approx((15 * layer + 2.0 * 128256 * 4096) / (936 * GB), rel=0.015)
    assert found.tpot_s == pytest.approx(first["decode_s"] + second["decode_s"], rel=0.01)


@pytest.mark.parametrize("chip", ["rtx-4090", "rtx-3090"])
def test_a_layer_takes_on_a_device_of_several_what_it_takes_alone(chip: str) -> None:
    alone = {row.operator.name: row.timing.time_s for row in run(hardware=chip).analysis.evaluation.rows}
    place = PAIR.split("+").index(chip)
    part = run().analysis.evaluation.stages[place]
    here = {row.operator.name: row.timing.time_s for row in part.rows if row.block.is_layer}
    assert here and all(np.array_equal(seconds, alone[name]) for name, seconds in here.items())


def test_devices_that_are_alike_are_a_pipeline_of_one_kind() -> None:
    summed, counted = run(hardware="rtx-3090+rtx-3090"), run(hardware="2xrtx-3090")
    stages = run(hardware="rtx-3090", pipeline_parallel_size=2)
    assert summed.to_dict() == counted.to_dict() == stages.to_dict()
    assert "devices" not in summed.to_dict()
    sums = [lv.simulate(DENSE, text, request_rate=1, requests=20) for text in ("h100+h100", "h100 + h100", " 2x h100")]
    assert sums[0].to_dict() == sums[1].to_dict() == sums[2].to_dict() and sums[0].setting.engine == "vllm"
    tensors = lv.analyze(DENSE, "h100+h100", engine="vllm").to_dict()
    assert tensors == lv.analyze(DENSE, "h100", engine="vllm", tensor_parallel_size=2).to_dict()


def test_stated_shares_that_make_even_stages_take_the_times_of_a_pipeline() -> None:
    """47 of 100 parts hold the layers below 15.51 of 33: 16 and 16, as of -pp 2."""
    uneven, even = run(hardware="2xrtx-3090", tensor_split="47,53"), run(hardware="2xrtx-3090")
    assert [one["layers"] for one in devices(uneven)] == [16, 16]
    assert uneven.tpot_s == pytest.approx(even.tpot_s, rel=1e-12)
    assert uneven.ttft_s == pytest.approx(even.ttft_s, rel=1e-12)


def test_more_layers_on_the_faster_card_make_a_token_faster() -> None:
    times = [run(tensor_split=split).tpot_s for split in ("1,5", "1,2", "1,1", "2,1", "5,1")]
    assert times == sorted(times, reverse=True)
    assert run(hardware="rtx-4090").tpot_s < times[-1]


def test_the_interval_of_a_pair_lies_between_those_of_both_cards() -> None:
    def spread(found: Any) -> float:
        low, high = found.to_dict()["metrics"]["intervals"]["tpot_s"]["80"]
        return float(high / low)

    pair, alone = (
        spread(run(hardware="gb10+rx-7900-xtx", network="ethernet-10g")),
        [spread(run(hardware=chip)) for chip in ("gb10", "rx-7900-xtx")],
    )
    assert min(alone) < pair < max(alone)


# Memory


def test_devices_store_the_model_once() -> None:
    pair, alone = devices(run()), run(hardware="rtx-4090").to_dict()["memory"]
    for name in ("weights_bytes", "kv_cache_bytes"):
        assert sum(one["memory"][name] for one in pair) == pytest.approx(alone[name], rel=1e-9)


def test_memory_is_that_of_the_card_with_the_least_room() -> None:
    found = run(LARGE, "rtx-4090+rtx-3060-12gb")
    listed = devices(found)
    room = [one["memory"]["budget_bytes"] - one["memory"]["total_bytes"] for one in listed]
    memory = found.to_dict()["memory"]
    assert not found.fits and not all(one["memory"]["fits"] for one in listed)
    assert memory["budget_bytes"] - memory["total_bytes"] == pytest.approx(min(room))


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    largest = run().to_dict()["memory"]["max_batch_size"]
    assert run(batch_size=largest).fits and not run(batch_size=largest + 1).fits


def test_an_allocated_cache_leaves_as_many_slots_as_its_tokens_allow() -> None:
    """`-c` allocates cells on both cards; how many requests there is room for does not depend on them."""
    figures = [run(max_model_len=length).to_dict()["memory"]["max_concurrent_requests"] for length in (None, 100_000)]
    assert figures[0] == figures[1] > 0
    cells = [one["memory"]["kv_cache_bytes"] for one in devices(run(max_model_len=100_000))]
    assert cells[0] / cells[1] == pytest.approx(17 / 15)


# The host


def test_layers_on_the_host_are_the_first_and_the_devices_share_the_rest() -> None:
    """-ngl 61 of 81 with the head: 20 on the host, and of the others those below 30.5 on the first of two alike."""
    found = run(LARGE, "2xrtx-3090", gpu_layers=61)
    assert [one["layers"] for one in devices(found)] == [20 + 31, 29]
    assert found.to_dict()["memory"]["host_layers"] == {"whole": 20, "part": 0, "all": 80}


def test_as_few_layers_as_possible_are_on_the_host() -> None:
    found = run(LARGE, "rtx-4090+rtx-3060-12gb", gpu_layers="auto")
    moved = found.to_dict()["memory"]["host_layers"]["whole"]
    assert found.fits and moved > 0
    assert not run(LARGE, "rtx-4090+rtx-3060-12gb", gpu_layers=81 - moved + 1).fits
    assert found.to_dict()["memory"] == run(LARGE, "rtx-4090+rtx-3060-12gb+cpu").to_dict()["memory"]


def test_every_device_keeps_the_experts_of_as_many_of_its_layers_as_fit() -> None:
    found = run("gpt-oss-120b", PAIR, quantization=None, gpu_layers="auto")
    layer = found.to_dict()["memory"]["host_bytes"] / found.to_dict()["memory"]["host_layers"]["part"]
    assert found.fits
    assert all(one["memory"]["budget_bytes"] - one["memory"]["total_bytes"] < layer for one in devices(found))


def test_a_host_in_the_sum_is_the_one_that_computes() -> None:
    named = run(LARGE, "rtx-4090+desktop-ddr4-3200").to_dict()
    assert named["memory"]["host"] == "desktop-ddr4-3200"
    stated = run(LARGE, "rtx-4090", gpu_layers="auto", offload="host=desktop-ddr4-3200").to_dict()
    assert named["metrics"] == stated["metrics"]


# Machines


def test_parts_of_a_sum_are_machines_where_a_network_is_stated() -> None:
    """The hidden state of a token, 4,096 numbers of 16 bit: 6.55 us at 1.25 GB/s."""
    apart = run(network="ethernet-10g", efficiency="ideal", engine=None)
    (send,) = (row for row in apart.analysis.evaluation.stages[0].rows if row.operator.name == "send")
    assert float(apart.analysis.schedule.decode(send.timing.time_s)[0]) == pytest.approx(8192 / 1.25e9)
    assert [one["machine"] for one in devices(apart)] == [0, 1]
    assert [one["machine"] for one in devices(run())] == [0, 0]
    three = run(hardware="2xrtx-3090+rtx-4090", network="ethernet-10g")
    assert [one["machine"] for one in devices(three)] == [0, 0, 1]
    assert [one["machine"] for one in devices(run(hardware="3090+3090", network="ethernet-10g"))] == [0, 1]


# Published figures


@pytest.mark.parametrize(
    ("model", "hardware", "options", "published"),
    [
        # https://redlib.private.coffee/r/LocalLLaMA, "Building LocalLlama Machine, episode 3": default splits
        ("qwen3-32b", "rtx-3090+2xrtx-3060-12gb", {"quantization": "q8_0"}, 13.0),
        (LARGE, "rtx-3090+2xrtx-3060-12gb", {}, 10.3),
        # https://ai-maestro.online/dual-gpu-llama-cpp-speedup, layers
        (
            "qwen3.5-27b",
            "rtx-3060-12gb+rtx-4070-super",
            {"max_num_batched_tokens": 128, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "output_len": 32},
            21.22,
        ),
        # https://hub.lhzy.net/nerdpudding/llama_cpp/blob/master/docs/bench-test-results.md
        ("glm-4.7-flash", "rtx-4090+rtx-5070-ti", {"quantization": "q8_0", "tensor_split": "35,12"}, 105.0),
    ],
)
def test_tokens_per_second_of_unlike_cards_are_near_published_ones(
    model: str, hardware: str, options: dict[str, Any], published: float
) -> None:
    """No constant is fitted to runs of several cards."""
    found = run(model, hardware, **{"input_len": 64, **options})
    assert 1.0 / found.tpot_s == pytest.approx(published, rel=0.12)


# Doors and refusals


def test_every_door_lists_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["analyze", DENSE, "--hardware", "4090 + 3090", "--engine", "llama.cpp", "-q", "q4_k_m"]
    assert main([*line, "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["devices"] == devices(run())
    assert printed["parallelism"]["devices"] == 2
    assert main(line) == 0
    page = capsys.readouterr().out
    assert "rtx-4090" in page and "0-16" in page and "17-31, head" in page and "limits the memory" in page
    assert main(["compare", DENSE, "--hardware", f"{PAIR},rtx-4090", "--engine", "llama.cpp", "-q", "q4_k_m"]) == 0
    assert PAIR in capsys.readouterr().out
    assert run().to_frame()["hardware"][0] == PAIR


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["analyze", DENSE, "--hardware", PAIR, "--engine", "vllm"], "--engine llama.cpp does"),
        (["analyze", DENSE, "--hardware", PAIR, "--engine", "llama.cpp", "-tp", "2"], "-tp is not modelled on devices"),
        (["analyze", DENSE, "--hardware", PAIR, "--engine", "llama.cpp", "-pp", "3"], "are 2 devices"),
        (["analyze", DENSE, "--hardware", PAIR, "--engine", "llama.cpp", "-sm", "tensor"], "-sm tensor needs"),
        (["analyze", DENSE, "--hardware", PAIR, "--engine", "llama.cpp", "-ts", "1,1,1"], "-ts has 3 shares for 2"),
        (["analyze", DENSE, "--hardware", PAIR, "--set", "capacity=48GiB"], "--set is not modelled"),
        (["analyze", DENSE, "--hardware", f"{PAIR}+"], "a chip on both sides of each +"),
        (["analyze", DENSE, "--hardware", "rtx-4090+rtx-309"], "did you mean 'rtx-3090'"),
        (["analyze", DENSE, "--hardware", "gb10+rtx-4090"], "machines need --network"),
        (["analyze", DENSE, "--hardware", "rtx-4090+cpu", "--engine", "sglang"], "--engine llama.cpp does"),
        (["simulate", DENSE, "--hardware", PAIR, "--engine", "vllm", "--concurrency", "1"], "--engine llama.cpp does"),
        (["analyze", DENSE, "--hardware", PAIR, "--batching", "disaggregated,prefill=1"], "--batching is not modelled"),
        (["sweep", DENSE, "--hardware", PAIR], "answered by analyze, compare, fit, simulate and size"),
        (["crossover", DENSE, "--hardware", f"{PAIR},h100"], "answered by analyze, compare, fit, simulate and size"),
        (["train", DENSE, "--hardware", PAIR], "answered by analyze, compare, fit, simulate and size"),
        (["explain", "tpot_s", DENSE, "--hardware", PAIR], "shown by analyze and compare"),
        (["advise", DENSE, "--hardware", PAIR], "answered by analyze, compare, fit, simulate and size"),
        (["hardware", "show", PAIR], "name one kind of chip"),
        (["fit", "--hardware", PAIR, "--engine", "vllm"], "--engine llama.cpp does"),
        (["analyze", DENSE, "--hardware", "+".join(["h100", "a100"] * 9)], "18 parts; allowed: at most 16"),
    ],
)
def test_what_is_not_modelled_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_fit_asks_for_models_that_run_on_both() -> None:
    found = lv.fit(PAIR, models=[LARGE, DENSE], quantization="q4_k_m").to_dict()
    assert found["hardware"] == PAIR and found["devices"] == 2
    assert [one["model"] for one in found["models"]] == [LARGE, DENSE]


@pytest.mark.parametrize("hardware", [PAIR, "2xrtx-3090"])
def test_users_of_slots_wait_on_several_cards_as_analyze_says(hardware: str) -> None:
    words: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 16384, "input_len": 1024, "output_len": 128}
    if hardware != PAIR:
        words["tensor_split"] = "3,1"
    steady = run(hardware=hardware, batching="continuous", batch_size=4, **words)
    words |= {"engine": "llama.cpp", "quantization": "q4_k_m"}
    loaded = lv.simulate(DENSE, hardware, concurrency=4, requests=64, **words).to_dict()
    assert loaded["hardware"] == hardware and loaded["devices"] == 2
    for name in ("tpot_s", "e2e_s"):
        assert loaded[name]["p50"] == pytest.approx(getattr(steady, name), rel=0.03)


def test_none_takes_the_first_card_alone() -> None:
    first = run(split_mode="none")
    assert first.tpot_s == run(hardware="rtx-4090").tpot_s
    assert not any("-sm" in text for text in first.warnings)
    assert run(split_mode="none", main_gpu=1).tpot_s == run(hardware="rtx-3090").tpot_s
    with pytest.raises(UserError, match="main_gpu is 2; allowed: 0 to 1"):
        run(split_mode="none", main_gpu=2)
    assert any("-mg: it chooses" in text for text in run(main_gpu=1).warnings)


def test_a_share_of_zero_leaves_a_card_out() -> None:
    assert run(tensor_split="0,1").tpot_s == run(hardware="rtx-3090").tpot_s


def test_timelines_are_refused() -> None:
    with pytest.raises(UserError, match="shows devices of one kind"):
        run().timeline()


def test_size_serves_users_of_the_pair_as_simulate_does() -> None:
    load = {"concurrency": 4, "input_len": 1000, "output_len": 200, "requests": 60, "quantization": "q4_k_m"}
    found = lv.size(DENSE, "4090+rtx-3090", **load, tpot="100ms", price=["rtx-4090=0.40", "rtx-3090=0.20"])
    best = found.to_dict()["best"]
    assert (best["hardware"], best["devices"], best["replicas"]) == (PAIR, 2, 1)
    assert best["usd_per_hour"] == pytest.approx(0.60)  # both cards by the hour
    simulated = lv.simulate(DENSE, PAIR, **load).latencies()
    assert best["tpot_s"] == pytest.approx(simulated["tpot_s"]["mean"], rel=1e-12)
    assert best["watts"] is None
    with pytest.raises(UserError, match="power of unlike devices"):
        lv.size(DENSE, PAIR, **load, tpot="100ms", objective="watts")
    with pytest.raises(UserError, match="not modelled on devices with unlike shares"):
        lv.size(DENSE, PAIR, **load, tpot="100ms", tensor_parallel_size=2)


def test_prices_of_parts_of_unlike_devices_are_taken() -> None:
    run = {"engine": "llama.cpp", "quantization": "q4_k_m", "input_len": 1000, "output_len": 200}
    found = lv.analyze(DENSE, "rtx-4090+cpu", **run, price="rtx-4090=0.5")
    assert found.e2e_s == lv.analyze(DENSE, "rtx-4090+cpu", **run).e2e_s
    with pytest.raises(UserError, match="unlike devices"):
        lv.analyze(DENSE, PAIR, **run, price="0.5")
    owned = "capex=1600,years=4,utilization=0.5,usd_per_kwh=0.2,pue=1"
    assert lv.size(DENSE, "2xrtx-3090+4090", concurrency=2, requests=40, **run, tpot="900ms", owned=owned).best
