"""Figures are declared once: each stands in every view that should have it, and one entry makes a new one."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.analysis import power, power_shares
from llmviewer.core.errors import UserError
from llmviewer.hardware import prices
from llmviewer.language.quantity import LATENCIES, METRICS, QUANTITIES, Quantity, Unit, names_in, nested, unit_of
from llmviewer.language.quantity import evaluated_formula as evaluated
from llmviewer.planning.run_metrics import RUN_METRICS
from llmviewer.reports import analysis_page, comparison_page, sweep_page
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Facts, Table
from llmviewer.result.figures import INPUTS
from llmviewer.server import compact
from tests.imports import FILES, ROOT, tree_of

SIZES = {"batch_size": 4, "input_len": 256, "output_len": 32}
#: What some metrics are only known with.
STATED: dict[str, Any] = {"carbon": 400, "api_price": "in=0.3,out=1.2"}
OF_STATED = {"grams_co2_per_million_output_tokens", "break_even_utilization", "break_even_tokens_per_month"}


@cache
def run(chip: str = "h100", **options: Any) -> lv.Result:
    return lv.analyze("llama-3.1-8b", chip, **{**SIZES, "tensor_parallel_size": 2, **STATED, **options})


def test_every_name_says_its_unit_and_no_two_labels_of_metrics_are_alike() -> None:
    assert all(name == one.name for name, one in QUANTITIES.items())
    counts = {"max_batch_size", "max_context_len", "max_concurrent_requests"}
    assert {name for name, one in QUANTITIES.items() if one.unit is Unit.COUNT} <= counts
    assert len({one.label for one in METRICS.values()}) == len(METRICS)
    assert all(one.interval in {"", *LATENCIES} for one in QUANTITIES.values())


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("ttft_s", Unit.SECOND),
        ("latencies.ttft_s.p99", Unit.SECOND),
        ("kv_cache_bytes_per_token", Unit.BYTE),
        ("output_tokens_per_s_per_user", Unit.USER_RATE),
        ("usd_per_million_tokens.input", Unit.DOLLAR),
        ("bandwidth_bytes_per_s", Unit.BYTE_RATE),
        ("decode_mfu", Unit.SHARE),
        ("layers", Unit.COUNT),
    ],
)
def test_the_end_of_a_name_is_its_unit(name: str, unit: Unit) -> None:
    assert unit_of(name) is unit


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_stands_in_every_view(name: str) -> None:
    one, found = METRICS[name], run()
    value = one.of(found.metrics())
    assert value is not None
    assert value > 0.0
    assert float(getattr(found, name) if "." not in name else found.figures[name][0]) == value
    assert float(found.to_frame()[name][0]) == value
    swept = lv.sweep("llama-3.1-8b", "h100", tensor_parallel_size=2, **SIZES, **STATED).to_frame()
    assert float(swept[name][0]) == value
    compared = lv.compare("llama-3.1-8b", ["h100", "a100"], **SIZES).to_frame()
    assert {name, f"{name}_ratio_to_first"} <= set(compared)
    stated = STATED if name in OF_STATED else {}
    kept = {one: stated[one] for one in stated if (one == "carbon") is name.startswith("grams")}
    explained = lv.explain(name, "llama-3.1-8b", "h100", tensor_parallel_size=2, **SIZES, **kept)
    assert explained.value == pytest.approx(value)
    assert RUN_METRICS[name].of(found) == value
    short = compact.analysis(found)["metrics"][name]
    assert (short["value"], short["unit"]) == (value, one.unit.symbol)
    facts = [part for part in analysis_page.page(found) if isinstance(part, Facts)]
    assert (one.label, fmt.figure(name, value)) in [line[:2] for part in facts for line in part.lines]


def labels(found: lv.Comparison) -> set[str]:
    """Labels of the rows of a comparison."""
    tables = [part for part in comparison_page.page(found) if isinstance(part, Table)]
    return {row.cells[0].strip() for table in tables for row in table.rows}


def test_tables_have_every_metric_that_says_something_new() -> None:
    found = lv.compare("llama-3.1-8b", ["h100", "a100"], tensor_parallel_size=2, **SIZES, **STATED)
    rows = [
        row.cells[0].strip() for part in comparison_page.page(found) if isinstance(part, Table) for row in part.rows
    ]
    assert {one.label for one in METRICS.values()} <= set(rows)
    columns = {name: list(values) for name, values in run().columns().items()}
    heads = [head.title for part in sweep_page.page(columns) if isinstance(part, Table) for head in part.columns]
    assert {one.label for one in METRICS.values()} <= set(heads)
    alone = lv.compare("llama-3.1-8b", ["h100", "m4-max"], batch_size=1, input_len=64, output_len=8)
    rows = [
        row.cells[0].strip() for part in comparison_page.page(alone) if isinstance(part, Table) for row in part.rows
    ]
    assert not {"Tokens/s/user", "Tokens/s/device"} & set(rows)  # the same as Tokens/s


def test_costs_and_energy_by_hand() -> None:
    found, answer = run(), run().metrics()
    rate = 4 * 32 / answer["e2e_s"]
    assert answer["output_tokens_per_s"] == rate
    price = prices.least(prices.all_prices(), "rented")["h100-sxm"].usd_per_hour
    whole = 2 * price / 3600.0 / rate * 1e6
    assert answer["usd_per_million_output_tokens"] == pytest.approx(whole)
    split = answer["usd_per_million_tokens"]
    assert (split["input"] * 256 + split["output"] * 32) / 32 == pytest.approx(whole)
    share = split["input"] * 256 / (whole * 32)
    # of a static batch the prompts take the prefill, the answers the steps
    assert share == pytest.approx(answer["ttft_s"] / answer["e2e_s"], rel=0.02)
    energy = power.energy_of(found.analysis, power_shares.shares_of(found.analysis.system.chip))
    assert energy is not None
    assert answer["joules_per_output_token"] == pytest.approx(float(energy.watts[0]) / rate)


def test_decode_mfu_is_the_products_of_the_steps_over_time_and_peak() -> None:
    one = lv.analyze("llama-3.1-8b", "h100", batch_size=8, input_len=128, output_len=2, efficiency="ideal")
    stage = one.stage("decode")
    by_hand = stage["matmul_flops"] / (float(one.tpot_s) * float(one.analysis.system.chip.matrix_rate("bf16")))
    assert one.metrics()["decode_mfu"] == pytest.approx(by_hand, rel=1e-3)  # the stage shows a step at another context
    pieces = lv.analyze("llama-3.1-8b", "h100", batch_size=8, input_len=128, output_len=70_000, max_model_len=None)
    assert 0.0 < pieces.metrics()["decode_mfu"] < 1.0


@pytest.mark.parametrize("options", [{}, {"speculative": "ngram"}, {"pipeline_parallel_size": 2}])
def test_a_utilization_is_explained_to_its_value(options: dict[str, Any]) -> None:
    asked = {**SIZES, **options}
    value = lv.analyze("llama-3.1-8b", "h100", **asked).metrics()["decode_mfu"]
    found = lv.explain("decode_mfu", "llama-3.1-8b", "h100", **asked)
    assert found.value == pytest.approx(value, rel=1e-9)
    assert found.evaluated() == pytest.approx(value, rel=1e-9)


PRICED = {
    *("usd_per_million_output_tokens", "usd_per_million_tokens", "usd_per_run", "usd_per_million_requests"),
    *("usd_per_hour", "output_tokens_per_usd"),
}


@pytest.mark.parametrize(
    ("chip", "options", "unknown"),
    [
        ("m4-max", {}, {"joules_per_output_token", "watts", *PRICED}),
        ("h100", {"set": "bandwidth=6TB/s"}, PRICED),
        ("h100", {"output_len": 1}, {"tpot_s", "decode_mfu", "decode_mbu"}),
    ],
)
def test_what_is_unknown_is_null_and_refused_with_its_reason(
    chip: str, options: dict[str, Any], unknown: set[str]
) -> None:
    given = {**SIZES, **options}
    answer = lv.analyze("llama-3.1-8b", chip, **given).metrics()
    assert {name for name, value in answer.items() if value is None} == unknown | OF_STATED
    with pytest.raises(UserError, match=r"is undefined: \w+"):
        lv.explain(min(unknown & set(METRICS)), "llama-3.1-8b", chip, **given)


def test_formulas_name_metrics_and_inputs_only_and_give_their_value() -> None:
    for one in METRICS.values():
        if one.formula:
            assert set(names_in(one.formula)) <= {*METRICS, *INPUTS}
    assert evaluated("2 * (a + b) ** 2 / c - 1", {"a": 1.0, "b": np.array([2.0, 3.0]), "c": 2.0}).tolist() == [
        8.0,
        15.0,
    ]
    with pytest.raises(ValueError, match="no formula"):
        evaluated("a if b else c", {"a": 1.0, "b": 2.0, "c": 3.0})


def test_names_with_dots_are_objects() -> None:
    assert nested({"a": 1, "b.x": 2, "b.y": 3, "c.x": None}) == {"a": 1, "b": {"x": 2, "y": 3}, "c": None}


NEW = """
import sys
from llmviewer.language import quantity
quantity.QUANTITIES["tokens_per_joule"] = quantity.METRICS["tokens_per_joule"] = quantity.Quantity(
    name="tokens_per_joule", label="Tokens/J", title="output tokens per joule", less_is_better=False,
    formula="1 / joules_per_output_token", meaning="output tokens / energy of all devices",
)
from llmviewer.cli import run
run()
"""


def asked(*words: str) -> str:
    line = [sys.executable, "-c", NEW, *words]
    return subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT, env={"COLUMNS": "200"}).stdout


def test_a_new_metric_is_one_entry() -> None:
    small = ("--batch-size", "2", "--input-len", "64", "--output-len", "8")
    answer = json.loads(asked("analyze", "llama-3.1-8b", "--hardware", "h100", *small, "--format", "json"))
    value = answer["metrics"]["tokens_per_joule"]
    assert value == pytest.approx(1.0 / answer["metrics"]["joules_per_output_token"])
    assert "Tokens/J" in asked("analyze", "llama-3.1-8b", "--hardware", "h100", *small)
    assert "Tokens/J" in asked("compare", "llama-3.1-8b", "--hardware", "h100,a100", *small)
    assert "Tokens/J" in asked("sweep", "llama-3.1-8b", "--hardware", "h100", *small)
    assert "tokens_per_joule" in asked("sweep", "llama-3.1-8b", "--hardware", "h100", *small, "--format", "csv")
    tree = json.loads(
        asked("explain", "tokens_per_joule", "llama-3.1-8b", "--hardware", "h100", *small, "--format", "json")
    )
    assert (tree["value"], tree["formula"]) == (value, "1 / joules_per_output_token")


def words(one: Quantity) -> set[str]:
    """The words and the unit of a figure, without regard to case."""
    return {text.lower() for text in (one.label, one.title, one.unit.symbol)}


def test_no_dictionary_beside_the_declarations_has_labels_or_units_of_figures() -> None:
    found = []
    for module in FILES.keys() - {"llmviewer.language.quantity"}:
        for one in (node for node in ast.walk(tree_of(module)) if isinstance(node, ast.Dict)):
            pairs = [
                (key.value, value.value)
                for key, value in zip(one.keys, one.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant) and key.value in QUANTITIES
            ]
            if sum(str(text).lower() in words(QUANTITIES[name]) for name, text in pairs) > 1:
                found.append(f"{module}:{one.lineno}")
    assert found == []
