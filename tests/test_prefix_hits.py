"""`--prefix-cache` under load: tokens found are not computed, and shared pages are stored once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.core.errors import UserError
from llmviewer.serving.kv_cache import KvCache
from llmviewer.simulation.fleet import Fleet
from llmviewer.simulation.requests import Records
from llmviewer.simulation.run import simulate_requests
from tests.simulated import Cache, fleet, requests

LLAMA = ("llama-3.1-8b", "h100-sxm")


def with_hits(served: Fleet, rate: float, *, shared: bool = False) -> Fleet:
    return replace(served, prefill=replace(served.prefill, kv_cache=KvCache(hit_rate=rate, shared=shared)))


def started_at_once(cache: KvCache) -> int:
    """The number of prompts of 160 tokens, 10 blocks each, that start at once in a cache of 20 blocks; eight wait."""
    served = fleet(room=Cache(blocks=20))
    served = replace(served, prefill=replace(served.prefill, kv_cache=cache))
    records = simulate_requests(requests([0.0] * 8, 160, 1), served).records
    return int(np.count_nonzero(records.start_s == 0.0))


def test_half_a_prompt_found_is_not_computed() -> None:
    # 50 of 100 tokens are new; they attend to 50 x 50 + 50 x 51 / 2 = 3775 pairs: 8 + 1 + 0.0003775 ms
    records = simulate_requests(requests([1.0], 100, 1), with_hits(fleet(), 0.5)).records
    assert records.first_token_s[0] == pytest.approx(1.0 + 0.008 + 50 * 2e-5 + 3775 * 1e-10, rel=1e-12)
    assert records.cached_tokens.tolist() == [50]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    records = simulate_requests(requests([0.0], 100, 1), with_hits(fleet(), 1.0)).records
    assert records.cached_tokens.tolist() == [99]


@pytest.mark.parametrize(
    ("cache", "started"),
    [
        (KvCache(), 2),  # 20 blocks hold two prompts of 10
        (KvCache(hit_rate=0.8), 2),  # each stores its own prefix
        (KvCache(hit_rate=0.8, shared=True), 6),  # 8 blocks are stored once; the other 12 hold six prompts of 2
        (KvCache(hit_rate=0.75, shared=True), 4),  # 120 tokens are 7 whole blocks; the other 13 hold four of 3
    ],
)
def test_pages_of_a_shared_prefix_are_stored_once(cache: KvCache, started: int) -> None:
    assert started_at_once(cache) == started


def test_a_request_that_fits_beside_the_shared_prefix_alone_is_refused() -> None:
    # prompts of 1600 and 32 tokens share 80 and 1 blocks: of 100, 20 are left, and the first needs 20 of its own
    served = with_hits(fleet(room=Cache(blocks=100)), 0.8, shared=True)
    found = simulate_requests(requests([0.0, 0.0], [1600, 32], 1), served).records
    assert found.refused.tolist() == [0, 0]
    longer = simulate_requests(requests([0.0, 0.0], [1600, 32], [17, 1]), served).records
    assert longer.refused.tolist() == [2, 0]  # its 101st block


def run(**options: object) -> Records:
    return lv.simulate(*LLAMA, request_rate=10, requests=200, input_len=2000, output_len=50, **options).records


def test_more_hits_mean_earlier_first_tokens() -> None:
    times = [run(prefix_cache=rate).ttft_s.mean() for rate in ("0", "0.3", "0.6", "0.9")]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-1]


@pytest.mark.parametrize("engine", ["vllm", "vllm==0.7.3", "sglang", "trtllm", "deepspeed-mii"])
def test_every_scheduler_uses_the_hits(engine: str) -> None:
    records = run(engine=engine, prefix_cache="0.9")
    assert set(records.cached_tokens.tolist()) == {1800}
    assert records.ttft_s.mean() < run(engine=engine).ttft_s.mean()


def test_the_highest_rate_rises_with_hits_and_with_sharing() -> None:
    rates = []
    for prefix in ("0", "0.9", "0.9,shared"):
        load = {"requests": 400, "input_len": 4000, "output_len": 100, "find_rate": True}
        rates.append(lv.simulate(*LLAMA, prefix_cache=prefix, **load).max_request_rate)
    assert rates[0] * 2.0 < rates[1] < rates[2]


def test_pools_use_the_hits_of_their_prompts() -> None:
    pools = {"pools": "prefill=1,decode=1", "request_rate": 5, "requests": 50}
    without, found = (lv.simulate(*LLAMA, prefix_cache=rate, **pools) for rate in ("0", "0.9"))
    assert found.to_dict()["prefix_hit_rate"] == pytest.approx(0.9, rel=0.01)
    assert found.records.ttft_s.mean() < without.records.ttft_s.mean()


def test_fewer_chips_are_needed_with_hits() -> None:
    limits = {"request_rate": 100, "requests": 1000, "ttft": "p99:1s", "tpot": "p99:50ms"}
    run = {"quantization": "fp8", "kv_cache_dtype": "auto", "tensor_parallel_size": "1", "batching": "continuous"}
    devices = [
        lv.size("llama-3.1-8b", "h100-sxm", prefix_cache=rate, **limits, **run).to_dict()["best"]["devices"]
        for rate in ("0", "0.9")
    ]
    assert devices[1] < devices[0]


def test_a_contract_of_a_load_counts_the_hits() -> None:
    condition = "ttft_s <= 9 s at 10 requests/s, requests 100, input 2000, output 20"
    lines = lv.check([{f"llama-3.1-8b on h100-sxm, prefix-cache {rate}": condition} for rate in ("0.1", "0.9")]).lines
    assert lines[1].value < 0.7 * lines[0].value


def test_a_cascade_under_load_says_what_is_not_priced() -> None:
    notes = lv.simulate(*LLAMA, request_rate=1, requests=10, prefix_cache="0.5,cascade").notes
    assert any("cascade" in note and "steps are priced as if" in note for note in notes)


def test_a_trace_with_hashes_says_itself_what_is_found(tmp_path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n')
    with pytest.raises(UserError, match="hash_ids of the trace say what the cache holds; remove prefix_cache"):
        lv.simulate(*LLAMA, trace=str(path), prefix_cache="0.5")
    assert lv.simulate(*LLAMA, trace=str(path), prefix_cache="0").records.cached_tokens.tolist() == [0]
