"""A request waits, gets its first token, then all others: intervals of these times keep that order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.result import interval
from llmviewer.simulation.limits import STATISTICS
from llmviewer.simulation.statistics import in_order, scaled

SERVER = ("llama-3.1-8b", "h100-sxm")
RATIOS = st.tuples(st.floats(0.2, 1.0), st.floats(1.0, 3.0))


@given(parts=st.tuples(*[st.floats(0.0, 9.0)] * 3), ratios=st.tuples(RATIOS, RATIOS, RATIOS))
def test_no_interval_begins_or_ends_before_that_of_a_part(parts: Any, ratios: Any) -> None:
    values = {
        name: dict.fromkeys(STATISTICS, float(value))
        for name, value in zip(("queue_s", "ttft_s", "e2e_s"), np.cumsum(parts), strict=True)
    }
    own = {name: scaled(values[name], {"80": one}) for name, one in zip(values, ratios, strict=True)}
    found = in_order(own, values)
    queue, first, whole = (np.array(found[name]["p99"]["80"]) for name in values)
    assert np.all(queue <= first) and np.all(first <= whole)
    assert np.all(whole - first >= ratios[2][0] * parts[2] - 1e-9)  # the rest at its own lower bound
    alike = {name: scaled(values[name], {"80": ratios[0]}) for name in values}
    for name, levels in in_order(alike, values).items():
        assert levels["mean"]["80"] == pytest.approx(alike[name]["mean"]["80"])  # in proportion they are in order


@pytest.mark.parametrize(
    "load",
    [
        {"request_rate": 2, "requests": 400, "output_len": 1},
        {"request_rate": 100, "requests": 1500},
        {"burst": True, "requests": 300},
        {"concurrency": 500, "requests": 1500, "output_len": 16},
    ],
)
def test_intervals_of_a_run_are_in_order(load: dict[str, Any]) -> None:
    for source in lv.simulate(*SERVER, **load).to_dict()["intervals"].values():
        for statistic in STATISTICS:
            for level in ("80", "95"):
                bounds = [source[name][statistic][level] for name in ("queue_s", "ttft_s", "e2e_s")]
                assert None in bounds[0] or np.all(np.diff(np.array(bounds), axis=0) >= 0.0), (statistic, level)


@pytest.mark.parametrize("engine", ["vllm", "trtllm", "llama.cpp"])
def test_a_request_takes_its_first_token_at_least(engine: str) -> None:
    """With one token the two are one time; with few, the published errors of whole requests are not those of it."""
    for tokens in (1, 2, 4):
        found = lv.analyze(*SERVER, engine=engine, output_len=tokens).analysis
        bounds = interval.metric_bounds(found)
        assert np.all(bounds["e2e_s"] >= bounds["ttft_s"])
