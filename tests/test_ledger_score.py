"""Scores against the ledger, which must not get worse than those of the last release."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from llmviewer.api import analyze
from llmviewer.calibrate import ledger, ledger_score
from llmviewer.cli import main
from llmviewer.timing import engine

#: Tolerance for rounding of the record and for another order of summation on other machines.
ROUNDING = 0.0005


@pytest.fixture(scope="module")
def scored() -> list[ledger_score.ScoredFigure]:
    return ledger_score.score(ledger.load())


def test_no_source_is_predicted_worse_than_recorded(scored: list[ledger_score.ScoredFigure]) -> None:
    """A larger error must be accepted by `llmviewer calibrate ledger --record`, with a reason in the commit."""
    last = ledger_score.recorded_errors()
    found = {source["source"]: source for source in ledger_score.document(scored)["sources"]}
    assert set(last) == {name for name, source in found.items() if source["rows"]}
    worse = {name: (was, found[name]["mape"]) for name, was in last.items() if found[name]["mape"] > was + ROUNDING}
    assert not worse


def test_every_figure_is_predicted_or_has_a_reason(scored: list[ledger_score.ScoredFigure]) -> None:
    assert len(scored) == sum(len(source.rows) for source in ledger.load())
    assert all(one.reason or one.low80 <= one.predicted <= one.high80 or one.basis for one in scored)
    assert sum(bool(one.reason) for one in scored) == 0


def test_the_roofline_has_larger_errors_than_calibrated_times(scored: list[ledger_score.ScoredFigure]) -> None:
    total = ledger_score.summary(scored)
    assert total["mape"] < 0.5 * total["ideal_mape"]


def test_training_steps_keep_their_median_error(scored: list[ledger_score.ScoredFigure]) -> None:
    """Time of a step, predicted / published - 1: 15 % is the goal, for sources held out from the choice of constants
    too; intervals hold what they say, and none is faster than the data sheet allows."""
    rows = [one for one in scored if one.row.metric == ledger.TRAINING]
    assert all(one.ideal > one.row.value for one in rows)
    for of in (False, True):
        own = [one for one in rows if ("Held out" in one.source.conditions) is of]
        assert len(own) >= 15
        assert np.median([abs(one.row.value / one.predicted - 1.0) for one in own]) < 0.08
    assert 0.75 < np.mean([one.low80 <= one.row.value <= one.high80 for one in rows]) < 0.95
    assert np.mean([one.low95 <= one.row.value <= one.high95 for one in rows]) > 0.9


def test_a_score_lists_published_and_predicted_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "ledger", "--source", "gpt-fast", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (source,) = found["sources"]
    assert source["rows"] == len(found["rows"]) == 21
    first = found["rows"][0]
    assert first["error"] == pytest.approx(first["predicted"] / first["published"] - 1.0)
    assert source["address"].startswith("https://")


def test_a_speedup_is_the_plain_time_over_that_with_options_on_the_roofline_too() -> None:
    (source, *_) = ledger.load()
    options = {"speculative": "eagle,tokens=2,acceptance=0.5"}
    run = {"hardware": "h200", "model": "llama-3.1-8b", "quantization": "none"}
    sizes = {"batch": 1, "input_len": 64, "output_len": 64}
    row = replace(source.rows[0], metric="speedup", value=1.5, options=tuple(options.items()), **run, **sizes)
    (one,) = ledger_score.score([replace(source, preset="vllm", rows=(row,))])
    requested = {"input_len": 64, "output_len": 64, "fusion": engine.load("vllm").fusion}

    def speedup(**how: str) -> float:
        plain, own = (analyze("llama-3.1-8b", "h200", **requested, **how, **more) for more in ({}, options))
        return float(plain.metrics()["e2e_s"] / own.metrics()["e2e_s"])

    # the source states a version that the preset tells apart
    assert source.engine_version == "0.11.2"
    assert one.predicted == pytest.approx(speedup(engine="vllm==0.11.2"), rel=1e-6)
    # the bound of a preset includes its kernel that writes the cache: 0.003 %
    assert one.ideal == pytest.approx(speedup(efficiency="ideal"), rel=1e-4)
    assert one.low80 < one.predicted < one.high80


def test_rows_with_per_request_choices_are_not_predicted() -> None:
    (source, *_) = ledger.load()
    row = replace(source.rows[0], options=(("speculative", "ngram,tokens=best,acceptance=0.5"),))
    (one,) = ledger_score.score([replace(source, rows=(row,))])
    assert "specify what was run" in one.reason


def test_an_unknown_source_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "ledger", "--source", "gpt-fats"]) == 2
    assert "gpt-fast" in capsys.readouterr().err
