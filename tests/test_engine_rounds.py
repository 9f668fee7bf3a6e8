"""Host time that engines add to rounds of speculation, and how far it widens an interval."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from llmviewer.analysis.analysis import Analysis
from llmviewer.api import analyze
from llmviewer.core.errors import UserError
from llmviewer.result import interval
from llmviewer.timing import engine, engine_work

RUN: dict[str, Any] = {"batch_size": 1, "input_len": 128, "output_len": 64}
CHAIN = "eagle3,tokens=3,acceptance=0.5"
COSTS = {"round": 3000, "low": 1000, "high": 4000, "source": "https://example.org"}
PRESET: dict[str, Any] = {"title": "X", "kernels": "vllm", "constants": {}, "source": "https://example.org"}


def result(preset: str, speculative: str = CHAIN, **more: Any) -> Any:
    return analyze("llama-3.1-8b", "h100-sxm", engine=preset, speculative=speculative, **{**RUN, **more})


def test_a_round_takes_its_passes_and_the_hosts_time() -> None:
    """SGLang: verification + one first draft pass + two later ones + 4 ms."""
    generation = result("sglang").to_dict()["generation"]
    passes = generation["pass_s"] + sum(draft["passes"] * draft["pass_s"] for draft in generation["drafts"])
    assert generation["extra_s"] == pytest.approx(4e-3)
    # the passes are those of one context, the time per token the mean over all
    assert generation["token_s"] * generation["tokens_per_round"] == pytest.approx(passes + 4e-3, rel=2e-3)


def test_a_plain_step_pays_no_round() -> None:
    """Plain decoding, a chain of no tokens, and kernels without an engine."""
    plain = analyze("llama-3.1-8b", "h100-sxm", engine="sglang", **RUN).metrics()["tpot_s"]
    assert result("sglang", "eagle3,tokens=0,acceptance=0.5").metrics()["tpot_s"] == plain
    assert result("kernels").to_dict()["generation"]["extra_s"] == 0.0
    best = result("sglang", "eagle3,tokens=best,acceptance=0.05").metrics()["tpot_s"]
    assert best == pytest.approx(plain, rel=1e-9)  # 0.05 tokens do not pay 4 ms


def test_a_version_pays_the_costs_of_the_last_change_before_it() -> None:
    """vLLM needs 1.3 ms before 0.11 and no synchronization since."""
    preset = engine.load("vllm")
    costs = {version: engine_work.chosen(preset.round_versions, version, "vllm").round for version in ("0.8", "0.10")}
    assert costs == {"0.8": 1300.0, "0.10": 1300.0}
    assert engine.load("vllm==0.11").rounds.round == engine.load("vllm").rounds.round == 0.0
    assert engine_work.chosen(preset.round_versions, "0.7", "vllm").round == 1300.0  # the oldest that is known


def test_a_draft_pass_takes_the_longer_of_host_and_kernels() -> None:
    """0.9 ms in vLLM 0.9: an EAGLE-3 layer of Llama 3.1 8B is shorter, that of a batch of 4,096 tokens longer."""
    few = [draft["pass_s"] for draft in result("vllm==0.9").to_dict()["generation"]["drafts"]]
    assert few == pytest.approx([0.9e-3, 0.9e-3])
    many = result("vllm==0.9", batch_size=1024).to_dict()["generation"]["drafts"]
    assert all(draft["pass_s"] > 0.95e-3 for draft in many)


def test_a_draft_model_runs_kernel_by_kernel_where_no_graph_holds_it() -> None:
    """vLLM 0.11 to 0.25: 35.43 us for each of the kernels of Llama 3.2 1B on any chip; graphs since, and for heads."""

    def pass_s(version: str, chip: str) -> float:
        draft = {"speculative": "draft=llama-3.2-1b,tokens=3,acceptance=0.7"}
        found = analyze("llama-3.1-8b", chip, engine=f"vllm=={version}", **draft, **RUN)
        return float(found.to_dict()["generation"]["drafts"][0]["pass_s"])

    launched = pass_s("0.25", "h100-sxm")
    assert launched == pass_s("0.25", "h200")
    assert launched / 35.43e-6 == pytest.approx(16 * 10 + 3)
    assert pass_s("0.26", "h100-sxm") < 0.5 * launched
    assert result("vllm==0.25").metrics()["tpot_s"] == result("vllm==0.26").metrics()["tpot_s"]


def test_an_unpublished_round_is_named_and_widens_the_interval() -> None:
    found = result("trtllm")
    assert any("host time of trtllm is not published" in text for text in found.to_dict()["provenance"]["assumed"])
    assert any("4 ms of host time in sglang" in text for text in result("sglang").to_dict()["provenance"]["assumed"])


def test_deviations_of_tokens_passes_and_host_add_in_squares() -> None:
    """At 80 %: sqrt((1 - low)^2 + 0.08^2 + (2.1 to 4 ms over the round)^2); `low` is wider beyond the fitted runs."""

    def low_of(found: Analysis) -> float:
        beyond = math.hypot(*(float(error[0]) for error in interval.errors_beyond(found, "tpot_s").values()))
        low = np.array(engine.load("sglang").residuals["tpot_ms"]["fitted"])[1]
        return float(np.exp(-np.hypot(np.log(low), beyond)))

    found = result("sglang").analysis
    low = low_of(found)
    host = 1.9e-3 / (found.token_s * found.system.generation.tokens)
    expected = 1.0 - np.sqrt((1.0 - low) ** 2 + 0.08**2 + host**2)
    assert interval.metric_ratios(found)["tpot_s"][1] == pytest.approx(expected)
    plain = analyze("llama-3.1-8b", "h100-sxm", engine="sglang", **RUN).analysis
    assert interval.metric_ratios(plain)["tpot_s"][1] == pytest.approx(low_of(plain))


def test_the_first_token_has_the_interval_of_a_prompt() -> None:
    plain = analyze("llama-3.1-8b", "h100-sxm", engine="gpt-fast", **RUN).analysis
    ratios = [interval.metric_ratios(one)["ttft_s"] for one in (plain, result("gpt-fast").analysis)]
    assert ratios[0] == pytest.approx(ratios[1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"round": 500}, "must rise from 0"),
        ({"round": "long"}, "expected a finite number from 0, got 'long'"),
        ({"rounds": 3}, "rounds"),
    ],
)
def test_wrong_costs_are_refused_with_their_version(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=r"rounds\.1\.0") as error:
        engine.parse("x", {**PRESET, "rounds": {"1.0": {**COSTS, **wrong}}})
    assert message in str(error.value)


def test_costs_need_a_source_and_their_range() -> None:
    with pytest.raises(UserError, match="source"):
        engine.parse("x", {**PRESET, "rounds": {"1.0": {key: COSTS[key] for key in COSTS if key != "source"}}})
