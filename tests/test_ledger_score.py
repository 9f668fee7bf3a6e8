"""Every release is scored against the ledger, and never worse than the one before."""

from __future__ import annotations

import json

import pytest

from calibrate import ledger, ledger_score
from llmviewer.cli import main

#: Rounding of the record, and of sums in another order on another machine.
ROUNDING = 0.0005


@pytest.fixture(scope="module")
def scored() -> list[ledger_score.Scored]:
    return ledger_score.scored(ledger.load())


def test_no_source_is_predicted_worse_than_recorded(scored: list[ledger_score.Scored]) -> None:
    """An error that rises is a decision: `llmviewer calibrate ledger --record` keeps it, and the commit says why."""
    last = ledger_score.recorded()
    found = {source["source"]: source for source in ledger_score.document(scored)["sources"]}
    assert set(last) == {name for name, source in found.items() if source["rows"]}
    worse = {name: (was, found[name]["mape"]) for name, was in last.items() if found[name]["mape"] > was + ROUNDING}
    assert not worse


def test_every_figure_is_predicted_or_has_a_reason(scored: list[ledger_score.Scored]) -> None:
    assert len(scored) == sum(len(source.rows) for source in ledger.load())
    assert all(one.reason or one.low80 <= one.predicted <= one.high80 or one.basis for one in scored)
    assert sum(bool(one.reason) for one in scored) == 0


def test_the_roofline_is_further_off_than_we_are(scored: list[ledger_score.Scored]) -> None:
    total = ledger_score.summary(scored)
    assert total["mape"] < 0.5 * total["ideal_mape"]


def test_a_score_says_what_was_published_and_what_we_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "ledger", "--source", "gpt-fast", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (source,) = found["sources"]
    assert source["rows"] == len(found["rows"]) == 21
    first = found["rows"][0]
    assert first["error"] == pytest.approx(first["predicted"] / first["published"] - 1.0)
    assert source["address"].startswith("https://")


def test_an_unknown_source_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "ledger", "--source", "gpt-fats"]) == 2
    assert "gpt-fast" in capsys.readouterr().err
