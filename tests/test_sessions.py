"""Sessions find in the cache what a brute-force cache of single blocks finds, to the token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.core.errors import UserError
from llmviewer.reports import simulation_page
from llmviewer.simulation.fleet import Fleet, LeastLoaded
from llmviewer.simulation.options import checked, traffic_of
from llmviewer.simulation.requests import Requests
from llmviewer.simulation.run import Driven, Outcome, drive, simulate_requests
from tests.simulated import Cache, Linear, fleet, requests
from tests.test_scheduler import One, Reference, assert_alike

LLAMA = ("llama-3.1-8b", "h100-sxm")
BLOCK = 16


def drawn(**words: Any) -> Requests:
    return traffic_of(checked(words)).requests()


class Blocks:
    """A cache of single blocks, each with the name of its content or None, evicted least recently used first."""

    def __init__(self, total: int) -> None:
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))
        self.name: dict[int, Hashable] = {}
        self.holder: dict[Hashable, int] = {}
        self.readers = dict.fromkeys(range(total), 0)

    def found(self, names: Sequence[Hashable]) -> list[int]:
        blocks = []
        for name in names:
            if name not in self.holder:
                break
            blocks.append(self.holder[name])
        return blocks

    def read(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.free.pop(block, None)
            self.readers[block] += 1

    def new(self) -> int:
        block, _ = self.free.popitem(last=False)
        if self.holder.get(self.name.get(block)) == block:
            del self.holder[self.name[block]]
        self.name.pop(block, None)
        self.readers[block] = 1
        return block

    def call(self, block: int, name: Hashable) -> None:
        self.name[block] = name
        self.holder.setdefault(name, block)

    def give_back(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # the last block of a sequence is the first to be lost
            self.readers[block] -= 1
            if not self.readers[block]:
                self.free[block] = None


def names_of(asked: Requests, request: int, tokens: int) -> list[Hashable]:
    """Names of the whole blocks of so many tokens of a turn: by their place in its session or system prompt."""
    past = asked.histories
    assert past is not None
    system, whole = int(past.system[request]), int(past.system_tokens[request]) // BLOCK
    owner = [system] * whole + [int(past.session[request])] * (tokens // BLOCK)
    return [(owner[at], at) for at in range(tokens // BLOCK)]


def one_by_one(asked: Requests, outcome: Outcome, total: int) -> list[int]:
    """Prompt tokens that each request finds where one runs at a time, in the order in which they began."""
    cache, driven, hits = Blocks(total), np.lexsort((outcome.records.turn, outcome.records.session)), {}
    starts = outcome.records.start_s[driven]  # in the order of `asked`: session by session
    for request in np.argsort(starts, kind="stable").tolist():
        prompt, stored = int(asked.input_len[request]), int(asked.input_len[request] + asked.output_len[request] - 1)
        names = names_of(asked, request, stored)
        held = cache.found(names[: (prompt - 1) // BLOCK])
        hits[request] = len(held) * BLOCK
        cache.read(held)
        held += [cache.new() for _ in range(-(-stored // BLOCK) - len(held))]
        for block, name in zip(held, names, strict=False):
            cache.call(block, name)
        cache.give_back(held)
    return [hits[request] for request in range(len(asked))]


def found(asked: Requests, outcome: Outcome) -> list[int]:
    order = np.lexsort((outcome.records.turn, outcome.records.session))
    return outcome.records.cached_tokens[order].tolist()


def test_two_sessions_of_three_turns_by_hand() -> None:
    """System prompt 40, first 20, then 10, answers of 8 tokens, blocks of 16: prompts of 60, 78 and 96 tokens.

    The system prompt is 2 whole blocks.  Of a turn, prompt + 7 tokens are stored: 67, 85, 103: 4, 5 and 6 whole blocks.
    The first session finds 0, 4 and 5 blocks, the second 2 (the system prompt), 4 and 5.
    """
    asked = drawn(sessions="turns=3,system=40,first=20,then=10,output=8,think=1s,pauses=fixed", requests=6, burst=True)
    assert asked.input_len.tolist() == [60, 78, 96] * 2
    outcome = simulate_requests(asked, fleet())
    assert found(asked, outcome) == [0, 64, 80, 32, 64, 80]
    records = outcome.records
    for session in (0, 1):
        own = np.flatnonzero(records.session == session)
        assert records.turn[own].tolist() == [1, 2, 3]
        assert records.arrival_s[own][1:] == pytest.approx(records.finish_s[own][:-1] + 1.0)


@st.composite
def kinds(draw: st.DrawFn) -> str:
    turns = draw(st.sampled_from(("1", "2", "5", "1..6")))
    lengths = {
        name: draw(st.sampled_from(("1", "7", "16", "40", "1..60", "30~1"))) for name in ("first", "then", "output")
    }
    system = draw(st.sampled_from((0, 5, 16, 47, 100)))
    think = draw(st.sampled_from(("0s", "50ms", "2s")))
    words = ",".join(f"{name}={value}" for name, value in lengths.items())
    return f"turns={turns},system={system},think={think},{words}"


loads = st.fixed_dictionaries(
    {
        "sessions": st.lists(kinds(), min_size=1, max_size=3).map("+".join),
        "requests": st.integers(1, 60),
        "seed": st.integers(0, 3),
    }
)
sources = st.sampled_from(
    ({"request_rate": 8.0}, {"request_rate": 0.5}, {"concurrency": 1}, {"concurrency": 4}, {"burst": True})
)


def fitting(asked: Requests, blocks: int) -> Requests:
    """The turns that a cache of so many blocks can hold: all before the first that it cannot, of each session."""
    return asked.select(np.flatnonzero(-(-(asked.input_len + asked.output_len - 1) // BLOCK) <= blocks))


@settings(max_examples=120, deadline=None)
@given(load=loads, source=sources, blocks=st.sampled_from((8, 20, 60, 1000)))
def test_hits_of_one_request_at_a_time_are_those_of_a_dictionary(load: Any, source: Any, blocks: int) -> None:
    asked = fitting(drawn(**load, **source), blocks)
    outcome = simulate_requests(asked, fleet(room=Cache(blocks=blocks, max_sequences=1)))
    assert found(asked, outcome) == one_by_one(asked, outcome, blocks)


@dataclass(slots=True)
class Held(One):
    """A request of the reference with its blocks."""

    own: list[int] | None = None


class Cached(Reference):
    """vLLM's scheduler with its cache, block by block: blocks get names when their tokens are scheduled."""

    def __init__(self, asked: Requests, served: Fleet) -> None:
        super().__init__(asked, served)
        self.cache = Blocks(self.room.blocks)
        self.hits: dict[int, int] = {}
        turns = [Held(i, *sizes, own=[]) for i, sizes in enumerate(zip(asked.input_len, asked.output_len, strict=True))]
        self.arrival = dict(enumerate(asked.arrival_s.tolist()))
        self.later = {one.index: one for one in turns if one.index in asked.after}
        begins = [one for one in turns if one.index not in asked.after]
        users = asked.concurrency or len(begins)
        self.coming, self.unbegun = list(begins[:users]), list(begins[users:])

    @property
    def free(self) -> int:
        return len(self.cache.free)

    @free.setter
    def free(self, value: int) -> None:
        pass

    def run(self) -> None:
        while self.coming or self.waiting or self.running:
            self.coming.sort(key=lambda one: self.arrival[one.index])
            while self.coming and self.arrival[self.coming[0].index] <= self.clock:
                self.waiting.append(self.coming.pop(0))
            if self.waiting or self.running:
                self.step()
            else:
                self.clock = self.arrival[self.coming[0].index]

    def take(self, one: One, tokens: int) -> None:
        assert isinstance(one, Held) and one.own is not None
        one.own += [self.cache.new() for _ in range(self.needed(one, tokens))]
        one.blocks = len(one.own)
        for block, name in zip(one.own, names_of(self.asked, one.index, one.computed + tokens), strict=False):
            self.cache.call(block, name)

    def preempt(self, one: One) -> None:
        self._leave(one)
        super().preempt(one)

    def _leave(self, one: One) -> None:
        assert isinstance(one, Held) and one.own is not None
        self.cache.give_back(one.own)
        one.own, one.blocks = [], 0

    def admit(self, budget: int) -> list[tuple[One, int]]:
        chosen: list[tuple[One, int]] = []
        while self.waiting and budget > 0 and len(self.running) < self.room.max_sequences:
            one = self.waiting[0]
            assert isinstance(one, Held)
            held = self.cache.found(names_of(self.asked, one.index, one.tokens - 1))
            missing = -(-one.tokens // BLOCK) - len(held)
            if missing + sum(block in self.cache.free for block in held) > self.free:
                break
            self.cache.read(held)
            one.own, one.blocks, one.computed = held, len(held), len(held) * BLOCK
            self.hits.setdefault(one.index, one.computed)
            tokens = min(one.tokens - one.computed, budget)
            self.take(self.waiting.pop(0), tokens)
            self.running.append(one)
            chosen.append((one, tokens))
            budget -= tokens
        return chosen

    def finish(self, chosen: list[tuple[One, int]]) -> None:
        before = list(self.running)
        super().finish(chosen)
        for one in before:
            if one in self.running:
                continue
            self._leave(one)
            following = [at for at, (last, _) in self.asked.after.items() if last == one.index]
            for at in following:
                self.arrival[at] = self.clock + self.asked.after[at][1]
                self.coming.append(self.later[at])
            if not following and self.unbegun:
                self.arrival[self.unbegun[0].index] = self.clock
                self.coming.append(self.unbegun.pop(0))


@settings(max_examples=150, deadline=None)
@given(load=loads, source=sources, blocks=st.sampled_from((20, 40, 1000)), budget=st.sampled_from((20, 100, 2000)))
def test_hits_times_and_evictions_equal_a_reference_of_single_blocks(
    load: Any, source: Any, blocks: int, budget: int
) -> None:
    asked = fitting(drawn(**load, **source), blocks)
    assume(asked.after or not asked.concurrency)
    served = fleet(room=Cache(blocks=blocks, token_budget=budget, max_sequences=6))
    reference, outcome = Cached(asked, served), simulate_requests(asked, served)
    reference.run()
    assert found(asked, outcome) == [reference.hits[at] for at in range(len(asked))]
    order = np.lexsort((outcome.records.turn, outcome.records.session))
    records = replace(
        outcome.records,
        **{name: getattr(outcome.records, name)[order] for name in ("first_token_s", "finish_s", "preemptions")},
    )
    assert_alike(reference, replace(outcome, records=records))


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=30),
    width=st.sampled_from((1, 3)),
    blocks=st.sampled_from((14, 20, 40)),
)
def test_hits_of_a_trace_with_hashes_are_those_of_a_dictionary(ids: list[list[int]], width: int, blocks: int) -> None:
    """Ids name `width` blocks each, their path included; a prompt ends in the middle of a block behind them."""
    tokens = width * BLOCK
    paths = [tuple(hash(tuple(one[: at + 1])) for at in range(len(one))) for one in ids]
    made = requests([100.0 * at for at in range(len(ids))], [tokens * len(one) + 5 for one in ids], 20)
    asked = replace(made, prefixes=tuple(paths), prefix_tokens=tokens)
    outcome = simulate_requests(asked, fleet(room=Cache(blocks=blocks)))
    cache, expected = Blocks(blocks), []
    for path in paths:
        names = [(one, at) for one in path for at in range(width)]
        held = cache.found(names)[: len(cache.found(names)) // width * width]
        expected.append(len(held) * BLOCK)
        cache.read(held)
        held += [cache.new() for _ in range(-(-(len(names) * BLOCK + 24) // BLOCK) - len(held))]
        for block, name in zip(held, names, strict=False):
            cache.call(block, name)
        cache.give_back(held)
    assert outcome.records.cached_tokens.tolist() == expected


class First(LeastLoaded):
    """All requests to the first replica."""

    def choose(self, request: int, prefixes: Sequence[int], replicas: Sequence[Any]) -> int:
        return 0


@pytest.mark.parametrize("source", [{"request_rate": 8.0}, {"concurrency": 5}, {"concurrency": 5, "burst": True}])
def test_a_replica_that_sends_turns_itself_equals_one_of_several(source: Any) -> None:
    asked = drawn(sessions="turns=1..6,think=1s,system=100,first=300,output=1..40", requests=300, **source)
    room = Cache(blocks=400, token_budget=256)
    alone, second = (
        simulate_requests(asked, fleet(room=room, replicas=count, router=First)).records for count in (1, 2)
    )
    np.testing.assert_allclose(alone.finish_s, second.finish_s, rtol=1e-9)
    np.testing.assert_array_equal(alone.cached_tokens, second.cached_tokens)


@pytest.mark.parametrize("per_round", [1.0, 1.7])
@pytest.mark.parametrize("scheduler", ["vllm", "sglang", "trtllm", "vllm-v0"])
def test_all_blocks_are_free_in_the_end(per_round: float, scheduler: str) -> None:
    asked = drawn(sessions="turns=1..6,think=1s,system=100,first=90,then=20~1,output=1..80", requests=400, burst=True)
    served = fleet(Linear(tokens_per_round=per_round), Cache(blocks=200, token_budget=512), scheduler)
    driven = Driven.of(fitting(asked, 190), served)
    drive(driven)
    assert not np.isnan(driven.records().finish_s).any() and driven.records().cached_tokens.any()
    assert driven.replicas[0].pool.free == driven.replicas[0].pool.total == 200


def test_users_of_a_closed_loop_have_one_session_each() -> None:
    asked = drawn(sessions="turns=2..6,think=1s,first=300,output=20", requests=400, concurrency=7)
    records = simulate_requests(asked, fleet()).records
    ends = {one: records.finish_s[records.session == one].max() for one in set(records.session.tolist())}
    begins = {one: records.arrival_s[records.session == one].min() for one in ends}
    alive = [sum(begins[one] <= at < ends[one] for one in ends) for at in sorted(begins.values())]
    assert max(alive) == 7 and alive[6:] == [7] * (len(alive) - 6)
    assert (records.tpot_s[records.turn > 1] > 0.0).all() and len(records) == 400


def test_a_rate_is_that_of_all_turns() -> None:
    asked = drawn(
        sessions="turns=4,first=10,output=5,share=0.25+turns=2..10,first=10,output=5", request_rate=10, duration="1h"
    )
    assert len(asked) == 36_000 and asked.arrival_s.max() == pytest.approx(3600.0)
    # 0.25 x 4 + 0.75 x 6 = 5.5 turns in the mean
    assert len(set(asked.histories.session.tolist())) == pytest.approx(36_000 / 5.5, rel=0.05)  # type: ignore[union-attr]
    assert len(drawn(sessions="turns=3,first=10,output=5", request_rate=10, requests=100)) == 100


@pytest.mark.parametrize("turns", ["turns=8,think=20s", "turns=1..15,think=20s", "turns=4,think=60s,pauses=fixed"])
@pytest.mark.parametrize("seed", [0, 1])
def test_turns_are_sent_at_the_stated_rate(turns: str, seed: int) -> None:
    """From when the turns of the first sessions are under way until the last begins, whatever the seed."""
    words = {"request_rate": 4, "requests": 8000, "seed": seed, "sessions": f"{turns},first=40,then=10,output=4"}
    made = lv.simulate(*LLAMA, **words)
    assert made.to_dict()["requests_per_s"] == pytest.approx(4.0, rel=0.03)
    sent = made.records.arrival_s
    window = made.windows[0]
    arrived = np.count_nonzero((sent >= window.start_s) & (sent <= window.end_s))
    assert arrived / window.length_s == pytest.approx(4.0, rel=0.03)


def test_kinds_have_their_shares_and_their_system_prompt() -> None:
    asked = drawn(
        sessions="turns=1,first=10,output=5,share=0.3,system=7+turns=1,first=100..300,output=5+turns=1,first=50~0.5,output=5",
        request_rate=10, requests=20_000,
    )  # fmt: skip
    counts = np.unique(asked.histories.system, return_counts=True)[1] / len(asked)  # type: ignore[union-attr]
    assert sorted(counts.tolist()) == pytest.approx([0.3, 0.35, 0.35], abs=0.02)
    assert set(asked.input_len[asked.input_len <= 17].tolist()) >= {17}
    assert asked.input_len.max() <= 1000 and asked.input_len.mean() == pytest.approx(0.3 * 17 + 0.35 * 250, rel=0.03)


def test_pauses_are_exponential_unless_they_are_fixed() -> None:
    words = {"sessions": "turns=50,think=4s,first=10,output=5", "requests": 20_000, "request_rate": 1.0}
    pauses = np.array([delay_s for _, delay_s in drawn(**words).after.values()])
    assert (pauses.mean(), pauses.std()) == (pytest.approx(4.0, rel=0.03), pytest.approx(4.0, rel=0.03))
    fixed = drawn(**words | {"sessions": "turns=50,think=4s,pauses=fixed,first=10,output=5"}).after.values()
    assert {delay_s for _, delay_s in fixed} == {4.0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"sessions": "turns=2,first=5"}, "sessions: output is missing"),
        ({"sessions": "turn=2,first=5,output=3"}, "unknown parameter of sessions 'turn'"),
        (
            {"sessions": "turns=0,first=5,output=3"},
            "turns is '0'; allowed: a whole number from 1, LOW..HIGH, or MEAN~CV",
        ),
        ({"sessions": "turns=2,first=9..5,output=3"}, "first is '9..5'; allowed"),
        ({"sessions": "turns=2,first=5,output=3~x"}, "allowed after ~"),
        ({"sessions": "turns=2,first=5,output=3,think=20"}, "has no unit"),
        ({"sessions": "turns=2,first=5,output=3,pauses=some"}, "exponential, fixed"),
        ({"sessions": "turns=2,first=5,output=3,share=0.4"}, "the shares sum to 0.4"),
        ({"sessions": "turns=2,first=5,output=3", "input_len": 7}, "sessions has its own"),
        ({"sessions": "turns=2,first=5,output=3", "trace": "x.csv"}, "but trace has its own"),
    ],
)
def test_what_is_wrong_is_said(words: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        drawn(request_rate=1.0, **words)
    assert message in str(error.value) and "\n" not in str(error.value)


AGENTS = "turns=8,think=5s,system=2000,first=1500,then=400,output=100"


def test_sessions_find_their_history_and_a_stated_share_takes_its_place() -> None:
    words = {"request_rate": 4, "requests": 400, "sessions": AGENTS}
    own, stated, none = (lv.simulate(*LLAMA, **words, prefix_cache=share) for share in ("0", "0.5", "0.001"))
    assert own.to_dict()["prefix_hit_rate"] > 0.8
    assert stated.to_dict()["prefix_hit_rate"] == pytest.approx(0.5, rel=0.01)
    assert any("what sessions find in the cache is not counted" in note for note in stated.notes)
    assert own.records.ttft_s.mean() < stated.records.ttft_s.mean() < none.records.ttft_s.mean()
    assert {"session", "turn"} <= set(own.request_columns())


def test_the_highest_rate_and_the_chips_of_sessions_are_found() -> None:
    words = {"requests": 600, "sessions": AGENTS.replace("think=5s", "think=1s"), "ttft": "p99:1s", "tpot": "50ms"}
    rates = [
        lv.simulate(*LLAMA, find_rate=True, **words, prefix_cache=share).max_request_rate for share in ("0", "0.001")
    ]
    assert rates[0] > 1.5 * rates[1] > 0.0


def test_fewer_chips_are_needed_than_without_what_sessions_repeat() -> None:
    words = {"request_rate": 60, "requests": 1000, "sessions": AGENTS.replace("think=5s", "think=1s"), "ttft": "p99:1s"}
    run = {"quantization": "fp8", "kv_cache_dtype": "auto", "tensor_parallel_size": "1", "batching": "continuous"}
    devices = [
        lv.size("llama-3.1-8b", "h100-sxm", tpot="50ms", prefix_cache=share, **words, **run).to_dict()["best"][
            "devices"
        ]
        for share in ("0", "0.001")
    ]
    assert devices[0] < devices[1]


def test_sessions_without_a_rate_are_those_of_one_user_turn_by_turn() -> None:
    alone = lv.simulate(*LLAMA, sessions="turns=4,first=2000,then=100,output=60", requests=400).to_dict()
    stated = lv.simulate(*LLAMA, sessions="turns=4,first=2000,then=100,output=60", requests=400, concurrency=1)
    assert alone == stated.to_dict() and "1 user in a closed loop" in alone["workload"]
    turns = alone["turns"]
    assert [one["turn"] for one in turns] == [1, 2, 3, 4]
    assert sum(one["requests"] for one in turns) == np.count_nonzero(stated.windows[0].chosen)
    assert [one["input_len"] for one in turns] == [2000, 2160, 2320, 2480]  # each 100 + 60 tokens longer
    whole_blocks = [(before - 1) // BLOCK * BLOCK for before in (2060, 2220, 2380)]  # the last token was never run
    assert [one["cached_tokens"] for one in turns] == [0, *whole_blocks]
    assert turns[0]["ttft_s"] > 2.0 * turns[1]["ttft_s"] and turns[1]["ttft_s"] < turns[3]["ttft_s"]


def test_the_last_turn_of_the_table_stands_for_all_later_ones() -> None:
    made = lv.simulate(*LLAMA, sessions="turns=30,first=100,output=20", requests=600)
    turns = made.to_dict()["turns"]
    assert [one["turn"] for one in turns] == list(range(1, 21))
    assert turns[-1]["requests"] > 5 * turns[0]["requests"]
    assert "20 on" in str(simulation_page.page(made))
