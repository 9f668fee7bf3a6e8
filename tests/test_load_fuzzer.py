"""Random loads on random servers: every request is answered or refused, and no figure is out of order."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmviewer.core.errors import UserError
from llmviewer.simulation import options as load
from llmviewer.simulation.call import prepared
from llmviewer.simulation.result import METRICS, Simulation

#: One model of each kind with a chip: dense, mixture of experts, latent attention, recurrent, hybrid, sliding windows,
#: and a model that fills its chip.
MODELS = (
    ("llama-3.2-1b", "a6000"),
    ("qwen3-30b-a3b", "h100-sxm"),
    ("deepseek-v2-lite", "h100-sxm"),
    ("mamba-130m", "a6000"),
    ("granite-4.0-h-1b", "a6000"),
    ("gemma-3-1b", "rtx-4090"),
    ("llama-3.1-8b", "rtx-4090"),
)
ENGINES = ("vllm", "vllm==0.7.3", "sglang", "trtllm", "deepspeed-mii")
#: Options of a server; None leaves the default.  Most are at the edge of what an engine takes.
LIMITS: Mapping[str, tuple[Any, ...]] = {
    "max_num_seqs": (None, 1, 2, 3, 17, 300),
    "max_num_batched_tokens": (None, 1, 16, 17, 33, 2048),
    "max_model_len": (None, 2, 17, 300, 30000),
    "prefix_cache": (None, "0.5", "0.9,shared", "1"),
    "batching": (None, "chunked"),
    "efficiency": (None, None, "ideal"),
    "speculative": (None, None, "ngram,tokens=3,acceptance=0.6"),
    "pools": (None, None, None, "prefill=1,decode=2,link=50"),
    "replicas": (1, 1, 3),
    "router": ("round-robin", "least-loaded", "prefix-aware"),
}
PROMPTS = ("1", "2", "16", "300", "9000", "28k", "uniform,low=1,high=40", "lognormal,mean=2000,cv=2")
ANSWERS = ("1", "2", "17", "400", "uniform,low=1,high=3")
ARRIVALS: tuple[Mapping[str, Any], ...] = (
    {"request_rate": 0.05},
    {"request_rate": 5.0},
    {"request_rate": 3000.0},
    {"request_rate": 5.0, "arrivals": "gamma,cv=4"},
    {"concurrency": 1},
    {"concurrency": 7},
    {"concurrency": 500},
    {"burst": True},
    {"concurrency": 5, "burst": True},
    {"rate_curve": "0h:3,12h:40", "speed_up": 100.0},
)


@st.composite
def servers(draw: st.DrawFn) -> dict[str, Any]:
    model, hardware = draw(st.sampled_from(MODELS))
    words = {name: draw(st.sampled_from(values)) for name, values in LIMITS.items()}
    engine = {} if words["efficiency"] else {"engine": draw(st.sampled_from(ENGINES))}
    return {"model": model, "hardware": hardware, **engine, **{k: v for k, v in words.items() if v is not None}}


@st.composite
def loads(draw: st.DrawFn) -> dict[str, Any]:
    lengths = {"input_len": draw(st.sampled_from(PROMPTS)), "output_len": draw(st.sampled_from(ANSWERS))}
    count, seed = draw(st.integers(1, 50)), draw(st.integers(0, 5))
    return {**draw(st.sampled_from(ARRIVALS)), **lengths, "requests": count, "seed": seed}


@st.composite
def traces(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of a recorded trace, with prefixes in all of them or in none."""
    lengths, gaps = st.sampled_from((1, 2, 16, 500, 3000, 40000)), st.floats(0.0, 3.0)
    rows = draw(st.lists(st.tuples(gaps, lengths, lengths), min_size=1, max_size=30))
    times = np.cumsum([gap for gap, _, _ in rows]).tolist()
    made = [
        {"arrival_s": at, "input_len": prompt, "output_len": min(answer, 500)}
        for at, (_, prompt, answer) in zip(times, rows, strict=True)
    ]
    if draw(st.booleans()):
        return made
    return [{**row, "hash_ids": list(range(1, -(-row["input_len"] // 512) + 1))} for row in made]


def check(made: Simulation) -> None:
    """The laws of a run."""
    records, document = made.records, made.to_dict()
    json.dumps(document, allow_nan=False)
    accepted = records.refused == 0
    assert document["completed"] == np.count_nonzero(accepted)
    assert document["completed"] + sum(document["refused"].values()) == len(records)
    assert np.isnan(records.finish_s[~accepted]).all()
    times = (records.arrival_s, records.start_s, records.first_token_s, records.finish_s)
    for earlier, later in pairwise(one[accepted] for one in times):
        assert (earlier >= 0.0).all() and (earlier <= later + 1e-9).all()
    assert (records.cached_tokens[accepted] < records.input_len[accepted]).all()
    for name in METRICS:
        values = [document[name][which] for which in ("p50", "p90", "p95", "p99")]
        assert values == sorted(values) if None not in values else set(values) == {None}
    _check_tokens(made)
    for name in ("utilization", "kv_cache_occupancy_mean", "prefix_hit_rate"):
        assert 0.0 <= document[name] <= 1.0 + 1e-9
    bounds = document["intervals"]["calibration"].get("output_tokens_per_s", {})
    for low, high in bounds.values():
        assert 0.0 <= low <= high


def _check_tokens(made: Simulation) -> None:
    """Every token but the first of an answer comes from a decode step, or from computing a preempted request again."""
    records, per_round = made.records, made.fleet.answering.prices.tokens_per_round
    rounds = float(np.ceil((records.output_len[records.refused == 0] - 1.0) / per_round).sum())
    steps = sum(float((line.steps * line.decoding).sum()) for line in made.outcomes[0].timelines)
    prompts = sum(float(line.prompt_tokens.sum()) for line in made.outcomes[0].timelines)
    assert steps <= rounds <= steps + float(records.preemptions.sum()) * (1.0 if per_round == 1.0 else 2.0)
    new = float((records.input_len - records.cached_tokens)[records.refused == 0].sum())
    assert prompts >= new if records.preemptions.any() else prompts == new


def answered(server: dict[str, Any], words: dict[str, Any]) -> Simulation | None:
    """The simulation of a load; None where it is refused with one line.  Warnings of numpy are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return prepared(**server, **words).run()
        except UserError as error:
            assert "\n" not in str(error)
            return None


def fuzz_loads(server: dict[str, Any], words: list[dict[str, Any]]) -> None:
    """Run several loads on the server of the first, whose tables are built once."""
    made = answered(server, words[0])
    if made is None:
        return
    check(made)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for more in words[1:]:
            check(prepared_again(made, load.checked(more)))


def prepared_again(made: Simulation, words: Mapping[str, Any]) -> Simulation:
    """The simulation of another load on the same fleet."""
    from llmviewer.simulation.call import run_all

    made = replace(made, traffic=load.traffic_of(words))
    return replace(made, outcomes=tuple(run_all(made.fleet, made.traffic, 1)))


def fuzz_trace(server: dict[str, Any], rows: list[dict[str, Any]], words: dict[str, Any]) -> None:
    """Run a trace with times, or its requests in a closed loop."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows))
        made = answered(server, {"trace": str(path), **words})
    if made is not None:
        check(made)


UNHURRIED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
USERS = st.sampled_from(({}, {"concurrency": 3}, {"speed_up": 50.0}))


@settings(UNHURRIED, max_examples=40)
@given(server=servers(), words=st.lists(loads(), min_size=4, max_size=4))
def test_every_load_is_answered_or_refused(server: dict[str, Any], words: list[dict[str, Any]]) -> None:
    fuzz_loads(server, words)


@settings(UNHURRIED, max_examples=15)
@given(server=servers(), rows=traces(), words=USERS)
def test_every_trace_is_answered_or_refused(
    server: dict[str, Any], rows: list[dict[str, Any]], words: dict[str, Any]
) -> None:
    fuzz_trace(server, rows, words)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=150)
@given(server=servers(), words=st.lists(loads(), min_size=8, max_size=8))
def test_many_more_loads_are_answered_or_refused(server: dict[str, Any], words: list[dict[str, Any]]) -> None:
    fuzz_loads(server, words)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=60)
@given(server=servers(), rows=traces(), words=USERS)
def test_many_more_traces_are_answered_or_refused(
    server: dict[str, Any], rows: list[dict[str, Any]], words: dict[str, Any]
) -> None:
    fuzz_trace(server, rows, words)
