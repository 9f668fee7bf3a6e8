"""Servers that copy weights from their host: a step takes the slower of copies and kernels."""

from __future__ import annotations

import numpy as np
import pytest

import llmviewer as lv
from llmviewer import api
from llmviewer.analysis.evaluation import evaluate
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Group, Step
from llmviewer.simulation.step_times import step_times

MODEL, CHIP = "llama-3.1-8b", "h100-sxm"
COPIES = ("weights=0.4", "weights=0.4,overlap=off", "weights=1,to=disk")


@pytest.mark.parametrize("offload", COPIES)
def test_a_lone_request_is_that_of_analyze(offload: str) -> None:
    words = {"engine": "vllm", "batching": "continuous", "offload": offload, "input_len": 512, "output_len": 64}
    alone, made = lv.analyze(MODEL, CHIP, **words), lv.simulate(MODEL, CHIP, concurrency=1, requests=20, **words)
    for name in ("ttft_s", "tpot_s", "e2e_s"):  # the host's time differs from request to request
        assert made.latencies()[name]["mean"] == pytest.approx(float(getattr(alone, name)), rel=0.02)


@pytest.mark.parametrize("offload", COPIES)
def test_a_closed_loop_is_the_steady_state_of_analyze(offload: str) -> None:
    """But for first tokens: a prompt that comes just after a slow step began waits for its end."""
    words = {"engine": "vllm", "batching": "continuous", "offload": offload, "input_len": 512}
    steady = lv.analyze(MODEL, CHIP, batch_size=16, output_len=64, **words)
    made = lv.simulate(MODEL, CHIP, concurrency=16, requests=200, output_len="uniform,low=32,high=96", **words)
    latencies = made.latencies()
    assert latencies["tpot_s"]["mean"] == pytest.approx(float(steady.tpot_s), rel=0.03)
    assert latencies["e2e_s"]["mean"] == pytest.approx(float(steady.e2e_s), rel=0.07)


@pytest.mark.parametrize("model", [MODEL, "mixtral-8x7b"])
@pytest.mark.parametrize(("sequences", "context"), [(1, 100), (64, 4096), (256, 2048)])
def test_decode_steps_are_those_of_the_whole_graph(model: str, sequences: int, context: int) -> None:
    one = api.configuration(model, CHIP, engine="vllm", batching="continuous", offload="weights=0.5")
    group = Group(batch_size=sequences, new_tokens=1.0, cached_tokens=1.0 * context, logit_positions=1.0)
    whole = float(np.max(evaluate(one.model, one.system, Step((group,))).time_s))
    base, rise, _ = step_times(one).decode_line(sequences, 1.0 * sequences * context)
    assert base + rise * sequences * context == pytest.approx(whole, rel=0.03)


@pytest.mark.parametrize("words", [{"offload": "kv=0.5"}, {"offload": "weights=0.4,compute=host"}])
def test_what_the_host_computes_or_keeps_is_refused(words: dict[str, str]) -> None:
    with pytest.raises(UserError, match="offload of layers or caches is not simulated"):
        lv.simulate(MODEL, CHIP, concurrency=1, requests=20, **words)
