"""Runs that a server cannot keep up with have percentiles of their own; output tokens per second have intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main

SERVER = ("llama-3.1-8b", "h100-sxm")
SATURATED = {"request_rate": 100, "requests": 3000}


def bounds(made: Any, source: str = "calibration", level: str = "80") -> list[float]:
    return list(made.to_dict()["intervals"][source]["output_tokens_per_s"][level])


def test_a_saturated_trace_has_the_percentiles_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"{0.01 * index},1024,128" for index in range(3000)]  # 100 a second; about 31 are answered
    path.write_text("\n".join(["arrival_s,input_len,output_len", *rows]) + "\n")
    assert main(["simulate", SERVER[0], "--hardware", SERVER[1], "--trace", str(path)]) == 1
    page = capsys.readouterr().out
    assert page.startswith("Verdict  saturated: more requests arrive than the ")
    made = lv.simulate(*SERVER, trace=str(path))
    records, document = made.records, made.to_dict()
    assert document["saturated"] and document["completed"] == 3000
    assert document["ttft_s"]["mean"] == pytest.approx(records.ttft_s.mean())
    assert document["e2e_s"]["p99"] == pytest.approx(sorted(records.e2e_s)[-30], rel=0.01)
    assert document["output_tokens_per_s"] == pytest.approx(3000 * 128 / records.finish_s.max())


def test_a_saturated_server_is_as_far_off_as_its_times() -> None:
    made = lv.simulate(*SERVER, **SATURATED)
    low, high = made.ratios["e2e_s"]["80"]
    value = made.to_dict()["output_tokens_per_s"]
    assert bounds(made) == pytest.approx([value / high, value / low])


@pytest.mark.parametrize("words", [{"concurrency": 8, "requests": 80}, {"burst": True, "requests": 300}])
def test_users_who_wait_for_answers_get_as_many_as_the_times_allow(words: dict[str, Any]) -> None:
    made = lv.simulate(*SERVER, **words)
    (low, high), (wide, wider) = (bounds(made, level=level) for level in ("80", "95"))
    assert wide < low < made.to_dict()["output_tokens_per_s"] < high < wider


def test_requests_far_below_the_capacity_are_answered_as_they_arrive() -> None:
    made = lv.simulate(*SERVER, request_rate=2, requests=400)
    value = made.to_dict()["output_tokens_per_s"]
    assert bounds(made, level="95") == [value, value]
    low, high = bounds(made, "replications")
    assert low < value < high


def test_near_the_capacity_a_slower_server_would_saturate() -> None:
    # about 27 requests/s are the most: if all steps took as long as the upper bound of the calibration says, fewer
    made = lv.simulate(*SERVER, request_rate=24)
    value = made.to_dict()["output_tokens_per_s"]
    low, high = bounds(made)
    assert not made.saturated
    assert low < value == high


def test_replications_scatter() -> None:
    low, high = bounds(lv.simulate(*SERVER, request_rate=4, requests=300, replications=4), "replications")
    assert 0.0 < low < high


def test_ideal_times_have_no_error_of_a_calibration() -> None:
    document = lv.simulate(*SERVER, request_rate=2, requests=400, efficiency="ideal").to_dict()
    assert "output_tokens_per_s" not in document["intervals"]["calibration"]
    assert document["intervals"]["replications"]["output_tokens_per_s"]["80"][0] is not None


def test_the_page_shows_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    main(["simulate", SERVER[0], "--hardware", SERVER[1], "--concurrency", "8", "--requests", "80"])
    line = next(line for line in capsys.readouterr().out.splitlines() if "output tokens" in line)
    assert "(80 %: " in line and " to " in line
