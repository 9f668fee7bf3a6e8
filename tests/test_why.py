"""The difference between two runs by factor: axioms of Shapley values, chips between chips, and wrong lines."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.planning import shapley
from llmviewer.planning.chance import probability_below, ratio_at
from llmviewer.planning.run_metrics import RUN_METRICS, run_metric
from llmviewer.planning.why import grouped, pair
from llmviewer.planning.why_chips import CHIP_GROUPS, DESCRIPTION, hybrid
from llmviewer.planning.why_line import side

MODEL = "llama-3.2-1b"
A100, H100 = f"{MODEL} --hardware a100-80gb-sxm", f"{MODEL} --hardware h100-sxm"
CHIPS = ("a100-80gb-sxm", "h100-sxm", "l40s", "mi300x", "b200", "rtx-4090", "m2-ultra", "tpu-v5e", "v100-32gb-sxm")


def amounts(found: Any) -> dict[str, float]:
    return {share.name: share.amount for share in found.shares}


def values(function: Any, count: int) -> dict[shapley.Coalition, float]:
    return {one: function(one) for one in shapley.coalitions(count)}


def test_two_factors_worked_by_hand() -> None:
    # v() = 10, v(0) = 7, v(1) = 6, v(0, 1) = 2
    # factor 0 adds 7 - 10 = -3 first and 2 - 6 = -4 last, (-3 - 4) / 2 = -3.5
    # factor 1 adds 6 - 10 = -4 first and 2 - 7 = -5 last, -4.5; -3.5 - 4.5 = -8 = 2 - 10
    known = {frozenset(): 10.0, frozenset({0}): 7.0, frozenset({1}): 6.0, frozenset({0, 1}): 2.0}
    assert list(shapley.split(known, 2).amounts) == [-3.5, -4.5]


def test_a_glove_game_of_three_factors() -> None:
    # a pair needs factor 0 and one of the others: 0 is the second or third of an order in 4 of 6 orders
    known = values(lambda one: float(0 in one and len(one) > 1), 3)
    assert shapley.split(known, 3).amounts == pytest.approx([4 / 6, 1 / 6, 1 / 6])


@pytest.mark.parametrize("count", [1, 5, shapley.MOST_EXACT, shapley.MOST_EXACT + 1, shapley.MOST_EXACT + 4])
def test_amounts_sum_to_the_difference_exactly_and_by_samples(count: int) -> None:
    weights = np.random.default_rng(count).normal(size=count)
    known = values(lambda one: float(np.prod([1.0 + weights[at] for at in one]) * 3.0), count)
    whole = known[frozenset(range(count))] - known[frozenset()]
    made = shapley.split(known, count)
    assert made.amounts.sum() == pytest.approx(whole, rel=1e-9, abs=1e-12)
    assert (made.errors > 0.0).all() == (count > shapley.MOST_EXACT)


def test_a_sampled_amount_is_within_its_error_of_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def value(one: shapley.Coalition) -> float:
        return 100.0 / np.prod([1.0 + 0.3 * at for at in sorted(one) if at])

    exact = shapley.split(values(value, 9), 9)
    monkeypatch.setattr(shapley, "MOST_EXACT", 8)
    sampled = shapley.split(values(value, 9), 9)
    assert (np.abs(sampled.amounts - exact.amounts) < 4.0 * sampled.errors + 1e-9).all()
    assert sampled.amounts[0] == 0.0, "factor 0 is left out of the product"


def test_a_factor_without_effect_has_no_amount_and_equal_factors_have_equal_amounts() -> None:
    known = values(lambda one: 5.0 ** len(one - {3}), 4)
    made = shapley.split(known, 4).amounts
    assert made[3] == 0.0
    assert made[:3] == pytest.approx([(125.0 - 1.0) / 3.0] * 3)


def test_factors_that_cannot_change_alone_are_merged_and_the_reason_is_told() -> None:
    def evaluate(wanted: Any) -> Any:
        for names in wanted:
            impossible = "fp8" in names and "chip" not in names
            yield names, UserError("the chip has no fp8") if impossible else float(len(names))

    found = grouped(("batch", "chip", "fp8"), evaluate)
    assert sorted(map(sorted, found.groups)) == [["batch"], ["chip", "fp8"]]
    assert [one.reason for one in found.merges] == ["the chip has no fp8"]
    made = shapley.split(found.values, 2).amounts
    assert sorted(made) == [1.0, 2.0]


def test_every_field_of_a_chip_is_in_one_group() -> None:
    named = [name for group in CHIP_GROUPS.values() for name in group] + [*DESCRIPTION]
    assert sorted(named) == sorted(one.name for one in fields(Chip) if one.init)


def test_bandwidth_alone_explains_an_ideal_decode_step_that_memory_bounds() -> None:
    # 2.039 -> 3.35 TB/s, all else as it was: t B = t A x 2.039 / 3.35
    chip = specs.load("a100-80gb-sxm")
    faster = hybrid(chip, specs.load("h100-sxm"), frozenset({"bandwidth"}))
    words = {"model": MODEL, "efficiency": "ideal", "attention": "flash"}
    found = lv.why({**words, "hardware": chip}, {**words, "hardware": faster})
    assert amounts(found) == pytest.approx({"bandwidth": found.difference})
    assert found.b == pytest.approx(found.a * 2.039 / 3.35, rel=0.01)


@settings(max_examples=6, deadline=None)
@given(
    chips=st.tuples(st.sampled_from(CHIPS), st.sampled_from(CHIPS)),
    models=st.sampled_from([(MODEL, MODEL), (MODEL, "qwen3-0.6b"), ("gpt2", MODEL)]),
    words=st.sampled_from(["", "--quantization fp8", "--batch-size 8 --kv-cache-dtype fp8", "--engine vllm"]),
    metric=st.sampled_from(["ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "total_bytes"]),
)
def test_amounts_sum_to_the_difference_of_two_answers(
    chips: tuple[str, str], models: tuple[str, str], words: str, metric: str
) -> None:
    lines = (
        f"{models[0]} --hardware {chips[0]} --output-len 8",
        f"{models[1]} --hardware {chips[1]} --output-len 8 {words}",
    )
    found = lv.why(*lines, metric=metric)
    answers = [_answer(line) for line in lines]
    assert [found.a, found.b] == pytest.approx([run_metric(metric).of(answer) for answer in answers], rel=1e-12)
    assert sum(amounts(found).values()) == pytest.approx(found.difference, abs=1e-9 * max(found.a, found.b))
    assert (found.probability or 1.0) > 0.0


def _answer(line: str) -> lv.Result:
    stated = side(line)
    return lv.analyze(
        stated.model,
        stated.hardware,
        **{k: stated.words[k] for k in ("batch_size", "input_len", "output_len")},
        **stated.options,
    )


def test_runs_between_two_are_equal_alone_and_together() -> None:
    a, b = side(f"{A100} --engine vllm -tp 2"), side(f"{H100} --engine vllm --quantization fp8 --batch-size 4")
    both = pair(a, b, (a.chip, b.chip))
    names = [factor.name for factor in both.factors]
    wanted = [frozenset(names[:at]) for at in range(len(names) + 1)] + [frozenset(names[at:]) for at in range(1, 9)]
    metric = run_metric("e2e_s")
    for taken, value in both.values(list(dict.fromkeys(wanted)), metric):
        assert value == pytest.approx(metric.of(both.result(taken)), rel=1e-12), sorted(taken)


@pytest.mark.parametrize("figure", ["bandwidth=x2", "peak.fp8=3PFLOP/s"])
def test_chips_with_figures_that_are_set_are_compared_like_real_ones(figure: str) -> None:
    found = lv.why(f"opt-1.3b --hardware a100 --set {figure}", f"opt-1.3b --hardware h100 --set {figure}")
    a, b = (lv.analyze("opt-1.3b", chip, set=figure).tpot_s for chip in ("a100", "h100"))
    assert sum(amounts(found).values()) == pytest.approx(float(b - a), rel=1e-9)


def test_a_mapping_is_told_as_the_line_that_states_the_same() -> None:
    run = {"model": "llama-3.2-1b", "batch_size": 8, "quantization": "w4a16", "enforce_eager": True, "engine": "vllm"}
    found = lv.why({**run, "hardware": "a100-80gb-sxm"}, {**run, "hardware": "h100-sxm", "output_len": 64}).to_dict()
    line = "llama-3.2-1b --hardware a100-80gb-sxm --batch-size 8 --engine vllm --enforce-eager --quantization w4a16"
    assert found["lines"]["a"] == line
    assert lv.why(*found["lines"].values()).to_dict() == found


def test_a_figure_that_one_line_sets_is_one_factor_with_both_values() -> None:
    # 6 TB/s against the 4.8 TB/s of an H200, not 3.35 TB/s of the H100 and a factor `set` beside it
    found = lv.why(f"{MODEL} --hardware h100 --set bandwidth=6TB/s", f"{MODEL} --hardware h200")
    shown = {share.name: (share.factors[0].a, share.factors[0].b) for share in found.shares}
    assert shown["bandwidth"] == (6e12, 4.8e12)
    assert "set" not in shown
    assert amounts(found)["bandwidth"] > 0.0, "less bandwidth takes longer"
    assert found.a == float(lv.analyze(MODEL, "h100", set="bandwidth=6TB/s").tpot_s)
    assert sum(amounts(found).values()) == pytest.approx(found.difference, rel=1e-12)


SEVERAL = "bandwidth=6TB/s,launch=x0.5,peak.fp8=x2,l2=60MiB,links.nvlink=900GB/s,power=1kW,units=140,capacity=90GiB"


@pytest.mark.parametrize("words", [f"--set {SEVERAL}", " ".join(f"--set {one}" for one in SEVERAL.split(","))])
def test_every_figure_that_is_set_is_a_factor_of_its_own(words: str) -> None:
    found = lv.why(f"{MODEL} --hardware h100", f"{MODEL} --hardware h100 {words}")
    names = {"bandwidth", "launch", "peak.fp8", "l2", "links.nvlink", "power", "units", "capacity"}
    assert set(amounts(found)) == names
    assert found.b == float(lv.analyze(MODEL, "h100", set=SEVERAL).tpot_s)
    assert sum(amounts(found).values()) == pytest.approx(found.difference, rel=1e-12)


def test_runs_between_hypothetical_chips_are_equal_alone_and_together() -> None:
    a = side(f"{H100} --engine vllm --set bandwidth=6TB/s,peak.bf16=x2,launch=x0.5 -tp 2")
    b = side(f"{A100} --engine vllm --set peak.fp8=1PFLOP/s,links.nvlink=x2 -tp 2")
    both = pair(a, b, (a.chip, b.chip))
    names = [factor.name for factor in both.factors]
    wanted = [frozenset(names[:at]) for at in range(len(names) + 1)] + [frozenset(names[at:]) for at in range(1, 8)]
    metric = run_metric("tpot_s")
    for taken, value in both.values(list(dict.fromkeys(wanted)), metric):
        assert value == pytest.approx(metric.of(both.result(taken)), rel=1e-12), sorted(taken)


def test_settings_of_a_mapping_are_those_of_a_line() -> None:
    words = {"model": MODEL, "hardware": "h100", "set": {"bandwidth": 6e12, "launch": "x0.5"}}
    found = lv.why(f"{MODEL} --hardware h100 --set bandwidth=6TB/s --set launch=x0.5", words)
    assert found.difference == 0.0
    assert list(found.to_frame().columns) == ["name", "a", "b", "amount", "standard_error"], "also without a factor"


def test_identical_lines_have_no_difference() -> None:
    found = lv.why(A100, "meta-llama/Llama-3.2-1B --hardware a100")
    assert found.difference == 0.0
    assert set(amounts(found).values()) <= {0.0}
    assert found.probability is None


def test_links_and_capacity_change_nothing_on_one_device() -> None:
    found = amounts(lv.why(A100, H100))
    assert found["links"] == found["capacity"] == 0.0
    assert found["bandwidth"] < 0.0


def test_a_chip_without_links_changes_together_with_the_tensor_group() -> None:
    found = lv.why(f"{A100} -tp 4", f"{MODEL} --hardware m2-ultra")
    assert "tensor_parallel_size + links" in amounts(found)
    assert "publishes no link" in found.merges[0].reason


def test_a_and_b_swapped_change_every_sign() -> None:
    there, back = (
        amounts(lv.why(A100, f"{H100} --quantization fp8")),
        amounts(lv.why(f"{H100} --quantization fp8", A100)),
    )
    assert {name: -amount for name, amount in back.items()} == pytest.approx(there, abs=1e-12)


def test_more_factors_than_are_exact_are_sampled_with_an_error() -> None:
    more = "--batch-size 2 --input-len 64 --output-len 4 --quantization fp8 --kv-cache-dtype fp8"
    found = lv.why(f"{A100} --output-len 8", f"{H100} {more}")
    assert len(found.shares) > shapley.MOST_EXACT
    assert not found.exact
    assert max(share.error for share in found.shares) > 0.0
    assert sum(amounts(found).values()) == pytest.approx(found.difference, rel=1e-9)


#: Metrics of options that are none of a run: emissions of electricity, and prices of an API.
OF_COSTS = ("grams_co2_per_million_output_tokens", "break_even_utilization", "break_even_tokens_per_month")


@pytest.mark.parametrize("metric", OF_COSTS)
def test_a_metric_without_value_says_what_it_needs(metric: str) -> None:
    with pytest.raises(lv.UserError, match=r"has no value here; it needs (carbon|api_price)"):
        lv.why(A100, H100, metric=metric)


@pytest.mark.parametrize("metric", [name for name in RUN_METRICS if name not in OF_COSTS])
def test_every_metric_has_a_difference_that_adds_up(metric: str) -> None:
    found = lv.why(
        f"{A100} --output-len 8", f"{A100} --output-len 8 --quantization w8a16 --batch-size 4", metric=metric
    )
    assert sum(amounts(found).values()) == pytest.approx(found.difference, rel=1e-9)


def test_operators_sum_to_both_values() -> None:
    found = lv.why(A100, H100, metric="e2e_s")
    rows = found.operators()
    assert sum(row["a"] for row in rows) == pytest.approx(found.a, rel=1e-9)
    assert sum(row["amount"] for row in rows) == pytest.approx(found.difference, rel=1e-6)


SYMMETRIC: Mapping[str, tuple[float, float]] = {"80": (0.8, 1.25), "95": (0.7, 1 / 0.7)}


def test_equal_values_with_equal_errors_have_an_even_chance() -> None:
    assert probability_below((1.0, SYMMETRIC), (1.0, SYMMETRIC)) == pytest.approx(0.5, abs=1e-9)
    assert ratio_at(0.9, SYMMETRIC) == pytest.approx(1.25)


def test_the_chance_of_two_normal_errors_is_that_of_their_difference() -> None:
    # ln 1.25 is 1.2816 standard deviations s of one logarithm, so the difference of both has s x sqrt 2; values that
    # differ by a factor of 1.25 stand 1.2816 / sqrt 2 = 0.906 of these apart, probability 0.818
    ratios = {"80": (0.8, 1.25)}
    assert probability_below((1.0, ratios), (1.25, ratios)) == pytest.approx(0.818, abs=2e-3)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("llama-3.1-8b --hardware h1000", H100), "A: unknown chip 'h1000'"),
        ((A100, f"{MODEL}"), "B: no hardware"),
        ((A100, ""), "B: no model"),
        ((A100, f"{H100} --quantisation fp8"), "B: unknown option '--quantisation'"),
        ((A100, f"{H100} --batch-size"), "B: --batch-size has no value"),
        ((A100, f"{H100} --batch-size 1,2"), "B: batch_size is '1,2'"),
        ((A100, f"{H100} -tp 2 --tensor-parallel-size 4"), "B: tensor_parallel_size is given twice"),
        ((A100, f"{H100} 'x"), "B: "),
        ((A100, f"{H100} qwen3-8b"), "B: model is given twice"),
        ((A100, f"{H100} --quantization w99"), "B: "),
        ((f"{A100} --output-len 1", H100), "A: tpot_s has no value here; no pass follows the one of the first token"),
    ],
)
def test_wrong_lines_are_told_in_one_line_that_names_the_side(
    lines: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", *lines]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


def test_wrong_types_and_metrics_are_refused() -> None:
    with pytest.raises(UserError, match="A: a side is 3"):
        lv.why(3, H100)
    with pytest.raises(UserError, match=r"unknown metric 'tpot'.*did you mean 'tpot_s'"):
        lv.why(A100, H100, metric="tpot")


def test_the_object_has_the_nouns_of_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", A100, f"{H100} --quantization fp8", "--format", "json"]) == 0
    text = capsys.readouterr().out
    answer = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert answer["schema"] == "llmviewer.why/1"
    assert answer["difference"] == answer["b"] - answer["a"]
    assert {"name", "a", "b", "amount"} <= answer["factors"][0].keys()
    assert sum(one["amount"] for one in answer["factors"]) == pytest.approx(answer["difference"], rel=1e-9)


def test_a_sentence_tells_ratio_and_largest_factor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", A100, H100]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "B (h100-sxm) is" in words
    assert "% of the difference is bandwidth" in words
    assert "real: the sign holds" in words


def test_a_copied_command_and_equal_signs_are_read() -> None:
    stated = side(f"llmviewer analyze {shlex.quote(MODEL)} --hardware=h100 --batch=4k --enforce-eager --engine vllm")
    assert stated.words["batch_size"] == 4096
    assert stated.options == {"engine": "vllm", "enforce_eager": True}
