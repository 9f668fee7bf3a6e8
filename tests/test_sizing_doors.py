"""Sizing at its doors: pools are as small as they can be, objectives are met, winners launch, wrong input is told."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import emit
from llmviewer.planning.sizing import Sizing
from tests.test_sizing import LOAD, MODEL

PAIR: dict[str, Any] = {
    "request_rate": 30, "input_len": 1000, "output_len": 200, "requests": 1500, "tpot": "p99:50ms",
    "quantization": "fp8", "kv_cache_dtype": "fp8", "batching": "disaggregated", "confidence": 0,
}  # fmt: skip


@cache
def sized(hardware: str, **options: Any) -> Sizing:
    return lv.size(MODEL, hardware, **{**LOAD, **options})


@cache
def paired(ttft: str) -> Sizing:
    return lv.size("llama-3.1-8b", "l40s", ttft=ttft, **PAIR)


def test_a_tighter_limit_of_first_tokens_does_not_explode_the_pool_for_prompts() -> None:
    """Four instances hold 200 ms and six hold 130 ms by the prediction alone; M/D/1 tails would ask for 46."""
    devices = []
    for limit in ("p99:200ms", "p99:150ms", "p99:130ms"):
        best = paired(limit).best
        assert best is not None
        devices.append(best.devices)
    assert devices == sorted(devices)
    assert devices[-1] <= 8


def test_restricting_the_batching_never_gives_a_cheaper_answer() -> None:
    load = {"request_rate": 40, "input_len": 1000, "output_len": 200, "requests": 2000}
    limits = {"ttft": "p99:1s", "tpot": "p99:50ms"}
    free, only = (
        lv.size("llama-3.1-8b", "l40s", **load, **limits, **more).best for more in ({}, {"batching": "disaggregated"})
    )
    assert free is not None and free.usd_per_hour is not None
    assert only is not None and only.usd_per_hour is not None
    assert free.usd_per_hour <= only.usd_per_hour


def test_more_devices_make_the_fastest_answer_no_slower() -> None:
    seconds = []
    for most in (1, 2, 4):
        best = sized("h100", objective="latency", max_gpus=most).best
        assert best is not None and best.mean_e2e_s is not None
        assert best.devices <= most
        seconds.append(best.mean_e2e_s)
    assert seconds == sorted(seconds, reverse=True)


def test_the_least_power_is_not_more_than_with_its_formats_named() -> None:
    free, named = (
        sized("h100", objective="watts", **more).best for more in ({}, {"quantization": "fp8", "kv_cache_dtype": "fp8"})
    )
    assert free is not None and free.watts is not None
    assert named is not None and named.watts is not None
    assert free.watts <= named.watts * (1.0 + 1e-9)


def test_head_room_is_below_the_rate_that_takes_another_replica() -> None:
    best = sized("l40s").best
    assert best is not None and best.head_room is not None
    if best.replicas > 1:
        assert best.head_room <= 1.0 / (best.replicas - 1.0) + 1e-12


def test_answers_of_one_token_have_no_time_per_output_token_to_limit() -> None:
    with_limit, without = (
        lv.size(MODEL, "l40s", request_rate=20, output_len=1, requests=400, ttft="p99:300ms", **more).best
        for more in ({"tpot": "p99:15ms"}, {})
    )
    assert with_limit is not None and without is not None
    assert with_limit.devices == without.devices


def test_a_limit_of_the_whole_request_is_shown() -> None:
    found = lv.size(MODEL, "l40s", **{**LOAD, "ttft": None, "tpot": None, "e2e": "p95:4s"}).to_dict()["best"]
    assert found["e2e_s"] <= 4.0


@pytest.mark.parametrize("target", ["vllm", "k8s", "dynamo", "llm-d"])
def test_spare_pools_and_power_limits_can_be_launched(target: str) -> None:
    spared = sized("l40s", spare=1, batching="disaggregated").best
    limited = sized("h100", power_limit="350W").best
    assert spared is not None and limited is not None
    assert emit(target, spared.to_dict())
    assert "nvidia-smi -pl 350" in emit(target, limited.to_dict())


def test_replicas_behind_a_trace_can_be_launched(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "\n".join(f"2023-11-16 18:15:{second / 90:06.3f},1000,200" for second in range(900))
    trace.write_text(f"timestamp,contexttokens,generatedtokens\n{rows}\n", encoding="utf-8")
    best = lv.size("llama-3.1-8b", "l40s", trace=str(trace), ttft="p99:1s", tpot="p99:50ms", batching="continuous").best
    assert best is not None and best.options["replicas"] > 1
    assert f"{best.options['replicas']} replicas" in emit("vllm", best.to_dict())


def test_a_price_of_zero_is_explained_by_devices() -> None:
    made = sized("h100,l40s", price="h100=0")
    why = made.to_dict()["why"]
    if why:
        assert why["metric"] == "devices"
        assert sum(one["amount"] for one in why["factors"]) == pytest.approx(why["difference"])


def test_the_user_s_own_chip_can_be_owned_and_priced(tmp_path: Path) -> None:
    path = tmp_path / "mychip.yaml"
    path.write_bytes((data.folder("hardware_specs") / "l40s.yaml").read_bytes())
    owned = "capex=30000,years=4,utilization=0.8,usd_per_kwh=0.08,pue=1.3"
    for more in ({"price_kind": "owned", "owned": owned}, {"price": "mychip=1.5"}):
        best = sized(str(path), **more).best
        assert best is not None and best.usd_per_hour


@pytest.mark.parametrize("value", [0, -5, "nan", "x", 2.5, 10**30])
@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
def test_limits_of_a_step_are_whole_numbers_from_one_on(name: str, value: object) -> None:
    with pytest.raises(UserError, match="whole numbers from 1"):
        sized("h100", **{name: value})
