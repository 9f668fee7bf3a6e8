"""Energy: idle power, work and the board's limit by hand; chips under a power limit are slower and draw less."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.analysis.power import Energy, carbon_g, energy_of
from llmviewer.analysis.power_shares import PowerShares, all_in_w, shares_of
from llmviewer.cli import main
from llmviewer.core import data
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.timing.kernels.power import sustained_share

A100, H100 = specs.load("a100-80gb-sxm"), specs.load("h100-sxm")
BY_HAND = PowerShares(idle=0.25, compute=0.5, memory=0.75, link=0.1, server=0.2, basis="fitted")


@cache
def result(chip: str = "a100-80gb-sxm", **options: Any) -> lv.Result:
    given = {"batch_size": 8, "input_len": 512, "output_len": 32, "batching": "continuous"} | options
    return lv.analyze("llama-2-7b", chip, **given)


def energy(chip: str = "a100-80gb-sxm", **options: Any) -> Energy:
    analysis = result(chip, **options).analysis
    found = energy_of(analysis, shares_of(analysis.system.chip))
    assert found is not None
    return found


def test_a_device_draws_idle_power_and_a_share_for_each_second_at_a_peak() -> None:
    # A100, 400 W: 2 s idle at 0.25 are 200 J, 0.5 s of full dynamic power 200 J
    assert BY_HAND.joules(A100, 2.0, 0.5) == pytest.approx(400.0)


def test_energy_is_at_most_board_power_times_time() -> None:
    # 0.25 x 2 s + 3 s is 3.5 s of board power, but 2 s have passed: 800 J; under 250 W 500 J
    assert BY_HAND.joules(A100, 2.0, 3.0) == pytest.approx(800.0)
    assert BY_HAND.joules(replace(A100, power_limit_w=250.0), 2.0, 3.0) == pytest.approx(500.0)
    assert BY_HAND.joules(replace(A100, power_limit_w=250.0), 2.0, 0.5) == pytest.approx(400.0)  # not at the limit


def test_work_is_flop_and_bytes_over_their_peaks() -> None:
    one = result(fusion="none", attention="eager")
    evaluation, only = one.analysis.evaluation, {"idle": 0.0, "compute": 0.0, "memory": 0.0, "link": 0.0}
    memory = PowerShares(**{**only, "memory": 0.5}, server=0.0, basis="fitted").work_s(evaluation)
    traffic = evaluation.traffic_bytes
    assert memory == pytest.approx(0.5 * traffic / A100.bandwidth_bytes_per_s)
    compute = PowerShares(**{**only, "compute": 0.5}, server=0.0, basis="fitted").work_s(evaluation)
    matrix = 0.5 * evaluation.matmul_flops / A100.matrix_rate("fp16")
    assert np.all(matrix < compute)
    assert compute == pytest.approx(matrix, rel=0.25)  # the rest is vector work


def test_energy_of_requests_adds_up_to_the_power_of_the_devices() -> None:
    for options in ({}, {"tensor_parallel_size": "2"}, {"pipeline_parallel_size": "2"}, {"data_parallel_size": "2"}):
        one, found = result(**options), energy(**options)
        requests = float(one.output_tokens_per_s) / 32.0
        joules = 512.0 * found.joules_per_prompt_token + 32.0 * found.joules_per_answer_token
        devices = one.analysis.system.parallelism.devices
        assert joules * requests == pytest.approx(found.watts)
        assert np.all(found.watts < 400.0 * devices)
        assert np.all(found.watts > 0.28 * 400.0 * devices)
        shares = shares_of(A100)
        assert shares is not None
        assert found.wall_watts == pytest.approx(found.watts + devices * 400.0 * shares.server)


def test_a_static_batch_by_hand() -> None:
    # prefill and 31 decode steps follow each other, so that no time is idle
    one = result(batching="static", batch_size=4)
    found, plan, work = energy_of(one.analysis, BY_HAND), one.analysis.schedule, BY_HAND.work_s(one.analysis.evaluation)
    prompt = BY_HAND.joules(A100, float(one.ttft_s), plan.prefill(work))
    answer = BY_HAND.joules(A100, 31.0 * float(one.tpot_s), plan.decode_sum(work))
    assert found is not None
    assert found.joules_per_prompt_token == pytest.approx(prompt / (4 * 512))
    assert found.joules_per_answer_token == pytest.approx(answer / (4 * 32))
    assert found.watts == pytest.approx((prompt + answer) / (float(one.ttft_s) + 31.0 * float(one.tpot_s)))


def test_sequences_that_start_one_by_one_by_hand() -> None:
    """Prompts that meet by chance share a pass with 7 sequences that decode, by their tokens; 8 share a decode step."""
    for options in ({}, {"tensor_parallel_size": "2"}, {"prefix_cache": "0.5"}):
        one = result(**options)
        devices, plan, work = (
            one.analysis.system.parallelism.devices,
            one.analysis.schedule,
            BY_HAND.work_s(one.analysis.evaluation),
        )
        time_s = one.analysis.passes.time_s
        together = 7 / 32 / (1.0 - np.exp(-7 / 32))
        decoding = 8.0 - together
        new = 256.0 if options.get("prefix_cache") else 512.0
        riding = decoding / (decoding + together * new)
        prompt = devices * BY_HAND.joules(A100, plan.prefill(time_s), plan.prefill(work)) / together
        answer = devices * BY_HAND.joules(A100, plan.decode_sum(time_s), plan.decode_sum(work)) / 8.0
        found = energy_of(one.analysis, BY_HAND)
        assert found is not None
        assert found.joules_per_prompt_token == pytest.approx((1.0 - riding) * prompt / 512)
        # some of the 31 decode steps are those with prompts, so that fewer run without
        assert riding * prompt / 32 < found.joules_per_answer_token < (answer + riding * prompt) / 32


def test_every_stage_of_a_pipeline_counts() -> None:
    # without idle power: the work of both stages, each on its own device, for the prompts of a pass by their tokens
    busy = replace(BY_HAND, idle=0.0)
    one = result(pipeline_parallel_size="2")
    stages, plan = one.analysis.evaluation.stages, one.analysis.schedule
    found, work = energy_of(one.analysis, busy), [float(plan.prefill(busy.work_s(stage))[0]) for stage in stages]
    assert found is not None
    assert len(work) == 2
    together = 3 / 32 / (1.0 - np.exp(-3 / 32))  # 4 of 8 sequences in each stage
    riding = (4.0 - together) / (4.0 - together + together * 512.0)
    assert found.joules_per_prompt_token == pytest.approx((1.0 - riding) * 400.0 * sum(work) / together / 512.0)


def test_devices_never_draw_more_than_they_may() -> None:
    for batch, prompt, answer in ((200, 64, 1), (200, 64, 64), (16, 2048, 2), (1, 16, 8)):
        for batching in ("static", "continuous", "chunked,tokens=128"):
            found = energy(batch_size=batch, input_len=prompt, output_len=answer, batching=batching)
            assert 0.28 * 400.0 < found.watts <= 400.0 * (1.0 + 1e-12), (batch, prompt, answer, batching)


def test_larger_batches_take_less_energy_per_token_and_more_power() -> None:
    found = energy(batch_size=(1, 4, 16, 64))
    assert np.all(np.diff(found.joules_per_answer_token) < 0)
    assert np.all(np.diff(found.watts) > 0)
    assert found.watts[-1] < 400.0


def test_prompts_and_answers_in_one_pass_share_its_energy_by_their_tokens() -> None:
    one = result(batch_size=32, output_len=256, batching="chunked,tokens=256")
    plan, work, time_s = one.analysis.schedule, BY_HAND.work_s(one.analysis.evaluation), one.analysis.passes.time_s
    own, riding = (float(plan.prefill(group.batch_size * group.new_tokens)[0]) for group in plan.step.groups)
    prefill_s = float(plan.prefill(time_s)[0]) * 512.0 / own  # of one prompt, decode steps in its passes included
    decode_s = float(plan.decode_sum(time_s)[0]) / 32.0
    left_s = 256.0 / float(one.output_tokens_per_s) - prefill_s
    assert 0.0 < left_s < decode_s  # some steps are those that ride in prefill passes
    prompt = float(BY_HAND.joules(A100, prefill_s, plan.prefill(work) * 512.0 / own)[0])
    answer = float(BY_HAND.joules(A100, decode_s, plan.decode_sum(work) / 32.0)[0]) * left_s / decode_s
    found = energy_of(one.analysis, BY_HAND)
    assert found is not None
    assert found.joules_per_prompt_token == pytest.approx(prompt * own / (own + riding) / 512.0)
    assert found.joules_per_answer_token == pytest.approx((answer + prompt * riding / (own + riding)) / 256.0)


def test_pools_wait_at_idle_power() -> None:
    # prompts take 1 device of 4, decode steps another; what is left of the 4 draws idle power, 100 W each
    one = result(batching="disaggregated,prefill=1,decode=3", batch_size=6)
    plan, work, time_s = one.analysis.schedule, BY_HAND.work_s(one.analysis.evaluation), one.analysis.passes.time_s
    sequences, rate = float(plan.decode(plan.step.groups[0].batch_size)[0]), float(one.output_tokens_per_s) / 32.0
    prompts = float(plan.prefill(plan.step.groups[0].batch_size)[0])
    busy, used = (
        np.array([plan.prefill(each)[0] / prompts, plan.decode_sum(each)[0] / sequences]) for each in (time_s, work)
    )
    joules = BY_HAND.joules(A100, busy, used)
    found = energy_of(one.analysis, BY_HAND)
    assert found is not None
    assert sequences == 2.0  # 6 over 3 pools
    assert found.watts == pytest.approx(rate * joules.sum() + 100.0 * (4.0 - rate * busy.sum()))


def test_a_lower_limit_draws_less_and_takes_no_less_time() -> None:
    limits = ("none", "350W", "250W", "150W")
    watts = [float(energy(batch_size=64, power_limit=limit).watts[0]) for limit in limits]
    assert all(after < before for before, after in pairwise(watts))
    assert all(found <= limit for found, limit in zip(watts, (400.0, 350.0, 250.0, 150.0), strict=True))
    for metric in ("ttft_s", "tpot_s"):
        times = [float(getattr(result(batch_size=64, power_limit=limit), metric)) for limit in limits]
        assert all(after >= before for before, after in pairwise(times))  # 350 W are enough for the fitted 0.86
        assert times[-1] > times[1]


def test_large_products_slow_down_by_the_law_of_sustained_clocks() -> None:
    # half the power: 0.5 ** 0.45 = 0.732 of the rate; Splitwise states 1.3 times the prompt time at half the power
    limited = replace(H100, power_limit_w=350.0)
    assert sustained_share(limited) / sustained_share(H100) == pytest.approx(0.5**0.45)
    prompts = [
        float(lv.analyze("llama-2-70b", "h100", tensor_parallel_size="2", dtype="fp16", input_len=4096, **more).ttft_s)
        for more in ({}, {"power_limit": "350W"})
    ]
    assert 1.2 < prompts[1] / prompts[0] < 1.0 / 0.732


def test_a_limit_equal_to_the_board_power_changes_nothing() -> None:
    assert float(result(power_limit="400W").tpot_s) == float(result().tpot_s)
    assert float(energy(power_limit="400W").watts[0]) == float(energy().watts[0])


@pytest.mark.parametrize(
    ("chip", "limit", "message"),
    [
        ("h100", "800W", "--power-limit is 800 W; allowed for h100-sxm: 175 to 700 W"),
        ("h100", "100w", "--power-limit is 100 W; allowed for h100-sxm: 175 to 700 W"),
        ("h100", "1kW", "--power-limit is 1000 W; allowed for h100-sxm: 175 to 700 W"),
        ("h100", "half", "--power-limit is 'half'; allowed: watts such as 400W or 400"),
        ("h100", "-5", "--power-limit is '-5'; allowed: watts such as 400W or 400"),
        ("m2-ultra", "50W", "the board power of m2-ultra is not published"),
    ],
)
def test_wrong_limits_are_refused(chip: str, limit: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "llama-2-7b", "--hardware", chip, f"--power-limit={limit}"]) == 2
    assert message in capsys.readouterr().err


def test_the_answer_says_that_a_limit_is_set() -> None:
    assert result(power_limit="0.3kw").to_dict()["passes"][0] == "power_limit(300 W)"


def test_a_chip_without_board_power_has_no_energy() -> None:
    assert shares_of(replace(A100, tdp_w=None)) is None
    own = lv.analyze("llama-2-7b", "m2-ultra", batch_size=1, input_len=64, output_len=4).analysis
    assert energy_of(own, shares_of(own.system.chip)) is None


def test_borrowed_shares_say_so() -> None:
    own, borrowed = shares_of(A100), shares_of(specs.load("b200"))
    assert own is not None
    assert borrowed == replace(own, basis="borrowed from ampere")
    assert own.basis == "fitted"


def test_chips_of_a_measured_generation_have_its_shares() -> None:
    own = shares_of(H100)
    assert own is not None
    assert own == shares_of(specs.load("h200"))
    assert own.basis == "fitted"
    assert own.idle + own.memory < 1.0  # 501 W of 700 while an H100 reads its memory


def test_constants_have_a_source_and_stay_physical() -> None:
    constants = data.read_yaml(data.folder("calibrate") / "power.yaml")
    for entry in (*constants["generations"].values(), constants["server"]):
        assert "https://" in entry["source"]
    assert constants["generations"][constants["lender"]]["held_out_error"]["mean"] < 0.1
    for chip in (A100, H100):
        own, watts = shares_of(chip), float(np.max(chip.tdp_w))
        assert own is not None
        assert own.idle + own.memory < 1.1  # a chip that only reads its memory stays about within its board power
        assert 0.5e-12 < own.compute * watts / float(chip.matrix_rate("fp16")) < 3e-12  # 1.3 pJ per FLOP
        assert 50e-12 < own.memory * watts / float(chip.bandwidth_bytes_per_s) < 300e-12  # 6 pJ per bit at the least


def test_carbon_is_kilowatt_hours_times_intensity() -> None:
    # 7.2 MJ are 2 kWh: x 1.2 x 400 g
    assert carbon_g(7.2e6, 400.0, pue=1.2) == pytest.approx(960.0)
    assert carbon_g(np.array([0.0, 3.6e6]), 100.0) == pytest.approx([0.0, 100.0])


def _all_in() -> dict[str, Any]:
    return data.read_yaml(data.folder("hardware_specs/power") / "all-in.yaml")


@pytest.mark.parametrize("chip", _all_in()["all_in_kw_per_gpu"])
def test_power_provided_for_a_chip_is_beyond_its_board_power(chip: str) -> None:
    found, loaded = all_in_w(chip), specs.load(chip)
    assert found is not None
    assert isinstance(loaded, Chip)
    assert loaded.name == chip
    assert loaded.tdp_w is not None
    assert 1.2 * float(np.max(loaded.tdp_w)) < found < 4.0 * float(np.max(loaded.tdp_w))


def test_power_provided_has_a_source_and_unknown_chips_have_none() -> None:
    assert _all_in()["source"].startswith("https://")
    assert date.fromisoformat(_all_in()["date"])
    assert all_in_w("a100-80gb-sxm") is None
