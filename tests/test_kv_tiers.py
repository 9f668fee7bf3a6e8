"""Blocks that the device lost are found on the host and its disk, loaded over the link, and counted by tier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer import api
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.simulation.requests import Requests
from llmviewer.simulation.run import Outcome, simulate_requests
from llmviewer.simulation.tiers import Tier, tiers_of
from tests.simulated import Cache, Linear, fleet
from tests.test_sessions import BLOCK, Blocks, drawn, fitting, found, loads, names_of, sources

#: Bytes of a token of Llama-3.1-8B: keys and values of 8 heads of 128 in 32 layers, two bytes each.
TOKEN = 2 * 8 * 128 * 32 * 2


def with_tiers(*tiers: Tier, **room: int) -> Any:
    served = fleet(Linear(cached=0.0, pair=0.0), Cache(**room))
    return replace(served, prefill=replace(served.prefill, tiers=tiers))


def test_a_lost_session_is_loaded_by_hand() -> None:
    """Two sessions of 160 + 33 tokens, 12 blocks stored, in a cache of 13; the second turn of each has 203 tokens.

    The first session is lost while the second runs, all but its first block.  With the host its other 11 blocks are
    loaded in 11 x 2 ms, and 11 tokens are computed: 8 ms + 11 x 20 us; without, all 187 behind the first block.  Its
    second turn fills the cache, so that of the second session nothing is left.
    """
    asked = drawn(sessions="turns=2,first=160,then=10,output=33,think=20s,pauses=fixed", requests=4, request_rate=1e-3)
    asked = replace(asked, arrival_s=np.array([0.0, 0.0, 10.0, 10.0]))
    asked = replace(asked, output_len=np.array([33, 1, 33, 1]))
    host = Tier(name="host", blocks=100, block_s=0.002)
    loaded, computed = (simulate_requests(asked, with_tiers(*one, blocks=13)).records for one in ((host,), ()))
    assert loaded.turn.tolist() == [1, 1, 2, 2]
    assert loaded.cached_tokens.tolist() == [0, 0, 192, 192] and loaded.host_tokens.tolist() == [0, 0, 176, 192]
    assert computed.cached_tokens.tolist() == [0, 0, 16, 0]
    assert loaded.ttft_s[2] == pytest.approx(11 * 0.002 + 0.008 + 11 * 2e-5)
    assert computed.ttft_s[2] == pytest.approx(0.008 + 187 * 2e-5)


class Touched:
    """A tier as a dictionary of single blocks, the one touched last at the end."""

    def __init__(self, blocks: int) -> None:
        self.blocks, self.names = blocks, OrderedDict[Hashable, None]()

    def keep(self, names: list[Hashable]) -> None:
        for name in reversed(names):  # the first block of a sequence is the last to be lost
            self.names[name] = None
            self.names.move_to_end(name)
        while len(self.names) > self.blocks:
            self.names.popitem(last=False)

    def reached(self, names: list[Hashable], at: int) -> int:
        while at < len(names) and names[at] in self.names:
            at += 1
        return at


def by_tier(asked: Requests, outcome: Outcome, total: int, sizes: list[int]) -> list[tuple[int, ...]]:
    """Tokens that each request finds on the device and in each tier, where one runs at a time."""
    cache, tiers, order = Blocks(total), [Touched(one) for one in sizes], np.lexsort(_keys(outcome))
    hits: dict[int, tuple[int, ...]] = {}
    for request in np.argsort(outcome.records.start_s[order], kind="stable").tolist():
        prompt, stored = int(asked.input_len[request]), int(asked.input_len[request] + asked.output_len[request] - 1)
        names = names_of(asked, request, stored)
        held = cache.found(names[: (prompt - 1) // BLOCK])
        reached = [len(held)]
        for tier in tiers:
            reached.append(tier.reached(names[: (prompt - 1) // BLOCK], reached[-1]))
        hits[request] = tuple(np.diff([0, *reached]) * BLOCK)
        cache.read(held)
        held += [cache.new() for _ in range(-(-stored // BLOCK) - len(held))]
        for block, name in zip(held, names, strict=False):
            cache.call(block, name)
        cache.give_back(held)
        for tier in tiers:
            tier.keep(names)
    return [hits[request] for request in range(len(asked))]


def _keys(outcome: Outcome) -> tuple[Any, Any]:
    return outcome.records.turn, outcome.records.session


@settings(max_examples=100, deadline=None)
@given(
    load=loads, source=sources, blocks=st.sampled_from((8, 20, 60)),
    host=st.sampled_from((0, 5, 30, 1000)), disk=st.sampled_from((0, 60, 1000)),
)  # fmt: skip
def test_hits_by_tier_are_those_of_dictionaries(load: Any, source: Any, blocks: int, host: int, disk: int) -> None:
    asked = fitting(drawn(**load, **source), blocks)
    tiers = (Tier(name="host", blocks=host, block_s=1e-12), Tier(name="disk", blocks=disk, block_s=1e-12))
    outcome = simulate_requests(asked, with_tiers(*tiers, blocks=blocks, max_sequences=1))
    order, count = np.lexsort(_keys(outcome)), len(asked)
    loaded = [(np.zeros(count) + one)[order] for one in (outcome.records.host_tokens, outcome.records.disk_tokens)]
    device = np.array(found(asked, outcome)) - sum(loaded)
    expected = by_tier(asked, outcome, blocks, [host, disk])
    assert list(zip(device, *loaded, strict=True)) == expected


def test_a_block_takes_its_bytes_over_the_link_of_each_device() -> None:
    """PCIe 5 x16 of an H100 SXM: 64 GB/s; two devices hold half a block each; the disk reads at its own rate."""
    one = api.configuration("llama-3.1-8b", "h100-sxm", engine="vllm", batching="continuous")
    two = api.configuration("llama-3.1-8b", "h100-sxm", engine="vllm", batching="continuous", tensor_parallel_size=2)
    size, link = BLOCK * TOKEN, one.system.chip.host_link_rate
    host, disk = tiers_of(one, "host=64,disk=1000")
    assert (host.name, host.blocks, host.block_s) == ("host", 64 * 2**30 // size, pytest.approx(size / link))
    assert (disk.blocks, disk.block_s) == (1000 * 2**30 // size, pytest.approx(size / disk_rate(), rel=1e-9))
    assert tiers_of(two, "host=64")[0].block_s == pytest.approx(size / 2 / link)
    assert tiers_of(two, "host=64")[0].blocks == host.blocks


def disk_rate() -> float:
    return specs.disk("samsung-pm1743")[0].read_bytes_per_s


AGENTS = "turns=8,think=20s,system=2000,first=1500,then=400,output=300"


def test_the_answer_tells_hits_by_tier_and_earlier_first_tokens() -> None:
    words = {"request_rate": 0.7, "requests": 500, "gpu_memory_utilization": 0.5, "sessions": AGENTS}
    without, tiered = (lv.simulate("llama-3.1-8b", "l40s", **words, kv_tiers=one) for one in (None, "host=16,disk=200"))
    shares = tiered.to_dict()["prefix_hit_rates"]
    assert sum(shares.values()) == pytest.approx(tiered.to_dict()["prefix_hit_rate"]) and shares["host"] > 0.1
    assert set(shares) == {"device", "host", "disk"} and "prefix_hit_rates" not in without.to_dict()
    assert tiered.records.ttft_s.mean() < without.records.ttft_s.mean()
    assert {"host_tokens", "disk_tokens"} <= set(tiered.request_columns())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"kv_tiers": "host=8"}, "kv_tiers keeps what sessions or a trace's hash_ids name"),
        ({"kv_tiers": "disk=8", "sessions": AGENTS}, "kv_tiers: host is missing"),
        ({"kv_tiers": "host=8,cpu=abacus", "sessions": AGENTS}, "unknown host 'abacus'"),
        ({"kv_tiers": "host=8", "sessions": AGENTS, "prefix_cache": "0.5"}, "remove prefix_cache"),
        ({"kv_tiers": "host=8", "sessions": AGENTS, "model": "mamba-130m"}, "has no blocks per token"),
    ],
)
def test_what_is_wrong_is_said(words: dict[str, Any], message: str) -> None:
    model = words.pop("model", "llama-3.1-8b")
    with pytest.raises(UserError) as error:
        lv.simulate(model, "h100-sxm", request_rate=1, requests=20, **words)
    assert message in str(error.value)
