"""Ideal times are lower bounds over engines and their chunks, and a faster chip never takes longer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer import api
from llmviewer.analysis.analysis import Analysis
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.specs import load
from llmviewer.serving.schedule import schedule
from llmviewer.timing import engine as engines

from .answers import analyze, answer

#: A model of few kinds of operators, and one with experts.
MODELS = ("phi-1.5", "qwen3-30b-a3b")
PIPELINES = ("1", "2", "4", "8")
#: The token budget of chunked batching is part of the configuration: both sides are given the same one.
BATCHINGS = ("static", "continuous", "chunked,tokens=512", "disaggregated")
METRICS = ("ttft_s", "tpot_s", "e2e_s")
ROUND_OFF = 1.0 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model under a batching policy on a pipeline, and the sizes of its requests."""

    model: str
    batching: str
    stages: str
    batch: int
    prompt: int

    @property
    def options(self) -> dict[str, str]:
        return {"batching": self.batching, "pipeline_parallel_size": self.stages}


cases = st.builds(
    Case,
    model=st.sampled_from(MODELS),
    batching=st.sampled_from(BATCHINGS),
    stages=st.sampled_from(PIPELINES),
    batch=st.integers(1, 4096),
    prompt=st.integers(1, 32768),
)


@cache
def configured(model: str, chip: str, efficiency: str, engine: str, **options: str) -> api.Configuration:
    return api.configuration(model, chip, efficiency=efficiency, engine=engine, **options)


def analyzed(case: Case, configuration: api.Configuration) -> Analysis:
    return configuration.answer(api.request(case.batch, case.prompt, 64)).analysis


def first_token(**options: Any) -> float:
    """TTFT of llama-2-70b on 4 H100 one after another [s]."""
    known = {"pipeline_parallel_size": "4", "batch_size": 8, "input_len": 512, "output_len": 1}
    return float(answer("llama-2-70b", "h100-sxm", **(known | options))["metrics"]["ttft_s"])


def test_the_bound_is_the_work_of_the_slowest_stage_and_one_token_on_the_others() -> None:
    """Stages of 2, 4, 3 and 1 s; a token takes 0.1 s on each.  Uncut: 2 + 4 + 3 + 1 = 10 s.  In chunks the slowest
    stage is busy for 4 s, and a token passes the three others in 0.3 s: no way to cut takes less than 4.3 s."""
    plan = schedule(api.request(1, 100, 1))
    assert plan.pipelined_prefill(10.0, 4.0) == 10.0
    assert plan.pipelined_prefill(10.0, 4.0, 0.4 - 0.1) == pytest.approx(4.3)


def test_an_engine_with_fewer_tokens_per_pass_is_never_faster_than_the_bound() -> None:
    """8 prompts of 512 tokens: the whole batch in one pass, or passes of 2,048 ... 16 tokens.

    The bound is a quarter of the uncut time on one of 4 equal stages, and one token on the three others, which reads
    their 60 layers of 855.7 M weights: 102.7 GB at 3.35 TB/s are 30.7 ms.
    """
    bound, uncut = first_token(), first_token(max_num_batched_tokens=0)
    cut = [first_token(max_num_batched_tokens=budget) for budget in (2048, 1024, 512, 128, 16)]
    assert bound < min(cut) < uncut
    assert bound == pytest.approx(uncut / 4 + 60 * 855.7e6 * 2 / 3.35e12, rel=0.01)
    assert min(cut) < 0.5 * uncut, "the uncut time is no bound"


def test_a_prompt_of_one_token_has_nothing_to_cut() -> None:
    """Its only pass goes through all stages; with two tokens the weights are read by the slowest stage once, by a first
    or last chunk on the others."""
    one = {"batch_size": 1, "input_len": 1}
    assert first_token(**one) == first_token(**one, max_num_batched_tokens=0)
    assert first_token(**one) <= first_token(batch_size=1, input_len=2)


def test_the_reproduced_fault_ideal_prefill_is_below_that_of_an_engine_with_chunks() -> None:
    """phi-1.5, -pp 4, batch 4,096 x 8,192 tokens: 27.2 PFLOP per stage at 209.5 TFLOP/s are 129.8 s at least."""
    case = Case(model="phi-1.5", batching="static", stages="4", batch=4096, prompt=8192)
    ideal, engine = (
        float(analyzed(case, configured(case.model, "rtx-5090", *how, **case.options)).ttft_s[0])
        for how in (("ideal", "kernels"), ("calibrated", "vllm"))
    )
    assert 129.8 < ideal < engine < 200.0


def test_an_engine_s_own_kernels_do_not_beat_the_roofline() -> None:
    """Attention of DeepSpeed-MII takes 0.55 of the time of the profile's kernels, which on prompts of 32,768 tokens
    would be less than the matrix units need."""
    case = Case(model="phi-1.5", batching="static", stages="1", batch=306, prompt=32768)
    ideal, engine = (
        float(analyzed(case, configured(case.model, "rtx-5090", *how, **case.options)).ttft_s[0])
        for how in (("ideal", "kernels"), ("calibrated", "deepspeed-mii"))
    )
    assert ideal < engine < 1.2 * ideal


def test_without_a_pipeline_the_prefill_is_one_pass() -> None:
    """The sum of its operators, whatever the budget is called."""
    free, uncut = (
        analyze("phi-1.5", "h100-sxm", input_len=700, **more) for more in ({}, {"max_num_batched_tokens": 0})
    )
    assert free.to_dict()["metrics"] == uncut.to_dict()["metrics"]
    assert free.analysis.ttft_s == free.analysis.evaluation.time_s[0]


#: Engines that run on NVIDIA's chips.
ON_NVIDIA = [name for name in engines.names() if {*engines.load(name).makers} <= {"NVIDIA"}]


@given(case=cases, chip=st.sampled_from(["h100-sxm", "rtx-5090"]), engine=st.sampled_from(ON_NVIDIA))
@settings(max_examples=60)
def test_ideal_times_are_at_most_those_of_every_engine(case: Case, chip: str, engine: str) -> None:
    """At the same number of running sequences, which engines limit.

    Where other requests' prefill falls, and thus the split of E2E into TTFT and TPOT, is a choice of the engine under
    continuous batching; under disaggregation requests queue for whatever is slowest, before or after the first token.
    """
    ideal, real = (
        analyzed(case, configured(case.model, chip, *how, **case.options))
        for how in (("ideal", "kernels"), ("calibrated", engine))
    )
    if _running(ideal) != _running(real):
        return
    compared = {"continuous": ("ttft_s", "decode_s", "e2e_s"), "disaggregated": ("decode_s", "e2e_s")}
    for metric in compared.get(case.batching, METRICS):
        assert np.all(getattr(ideal, metric) <= getattr(real, metric) * ROUND_OFF), metric


def _running(analysis: Analysis) -> float | None:
    return None if analysis.running is None else float(np.max(analysis.running.request.batch_size))


def faster(chip: Chip, what: str, factor: float) -> Chip:
    """The chip with one kind of rate multiplied: FLOP/s, memory bandwidth or links."""
    if what == "memory":
        cache_rate = chip.l2_bandwidth_bytes_per_s
        return replace(
            chip,
            bandwidth_bytes_per_s=chip.bandwidth_bytes_per_s * factor,
            l2_bandwidth_bytes_per_s=None if cache_rate is None else cache_rate * factor,
        )
    if what == "links":
        links = {
            n: replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
            for n, link in chip.links.items()
        }
        return replace(chip, links=links)
    special = chip.special_ops_per_s
    return replace(
        chip,
        matrix_flops_per_s={name: rate * factor for name, rate in chip.matrix_flops_per_s.items()},
        vector_flops_per_s={name: rate * factor for name, rate in chip.vector_flops_per_s.items()},
        special_ops_per_s=None if special is None else special * factor,
    )


@given(
    case=cases,
    how=st.sampled_from([("ideal", "kernels"), ("calibrated", "vllm")]),
    what=st.sampled_from(["compute", "memory", "links"]),
    factor=st.sampled_from([1.1, 2.0, 16.0]),
)
@settings(max_examples=60)
def test_a_higher_rate_of_the_chip_never_raises_a_time(
    case: Case, how: tuple[str, str], what: str, factor: float
) -> None:
    """The split of disaggregated pools' E2E apart: their queue moves to the resource that is now the slowest."""
    chip = load("rtx-5090")
    before, after = (
        analyzed(case, api.configuration(case.model, one, efficiency=how[0], engine=how[1], **case.options))
        for one in (chip, faster(chip, what, factor))
    )
    for metric in METRICS if case.batching != "disaggregated" else ("decode_s", "e2e_s"):
        assert np.all(getattr(after, metric) <= getattr(before, metric) * ROUND_OFF), metric


def test_the_reproduced_fault_more_flops_keep_tpot_of_disaggregated_pools() -> None:
    """phi-1.5, rtx-5090, -pp 4, 4,096 users, prompts of 8,192 tokens: doubled FLOP/s raised TPOT from 9.4 to 67.8 ms,
    because prefill fed more sequences to each decode step."""
    case = Case(model="phi-1.5", batching="disaggregated", stages="4", batch=4096, prompt=8192)
    chip = load("rtx-5090")
    before, after = (
        analyzed(case, api.configuration(case.model, one, efficiency="ideal", **case.options))
        for one in (chip, faster(chip, "compute", 2.0))
    )
    for metric in METRICS:
        assert float(getattr(after, metric)[0]) <= float(getattr(before, metric)[0])
