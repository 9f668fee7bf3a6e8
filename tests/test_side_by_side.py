"""Sweeps and comparisons show draft tokens, devices and host memory; letters replace long option values."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable

import pytest

import llmviewer as lv
from llmviewer import analyze
from llmviewer.cli import main
from llmviewer.reports import comparison_page, terminal
from llmviewer.reports.crossover_page import MAX_TEXT_LENGTH, letters
from llmviewer.reports.report import Report
from llmviewer.result.comparison import Comparison
from llmviewer.server import limits
from tests.answers import refusal

BEST = "draft=llama-3.2-1b,tokens=best,acceptance=0.75"
MODEL = ("llama-3.1-70b", "--hardware", "h100", "-tp", "4")
Print = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Print:
    def run(*words: str, columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(list(words)) == 0
        return capsys.readouterr().out

    return run


def test_a_sweep_lists_draft_tokens_at_every_batch_size(printed: Print) -> None:
    words = ("sweep", *MODEL, "--batch-size", "1,256", "--speculative", f"none;{BEST}", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(printed(*words))))
    found = [(float(row["drafted_tokens"]), float(row["tokens_per_round"])) for row in rows]
    assert found[:2] == [(0, 1), (0, 1)]
    for batch, (drafted, tokens) in zip((1, 256), found[2:], strict=True):
        single = analyze(
            "llama-3.1-70b",
            "h100",
            batch_size=batch,
            tensor_parallel_size=4,
            speculative=BEST,
        ).to_dict()["generation"]
        assert (drafted, tokens) == (single["drafted_tokens"], single["tokens_per_round"])
    assert found[2][0] > found[3][0] >= 0, "larger batches use fewer draft tokens"


def test_tokens_per_round_of_branches_are_the_mean_over_passes(printed: Print) -> None:
    words = ("sweep", "llama-2-7b", "--hardware", "a100", "--output-len", "101", "--branches", "apar,branches=4")
    (row,) = csv.DictReader(io.StringIO(printed(*words, "--format", "csv")))
    # one token of the prefill, then 100 of four branches in 25 passes
    assert float(row["tokens_per_round"]) == 4


def test_a_sweep_shows_only_options_that_differ_from_defaults(printed: Print) -> None:
    head, _, table = printed("sweep", *MODEL, "--speculative", f"none;{BEST}").partition("\nSpeculative\n")
    assert "Devices               4" in head and "Expert skew" not in head
    assert f"A  none\nB  {BEST}\n" in table
    assert max(map(len, table.splitlines())) <= 80


def test_a_sweep_with_several_devices_has_a_devices_column(printed: Print) -> None:
    words = ("sweep", "llama-2-7b", "--hardware", "h100", "--batch-size", "8")
    text = printed(*words, "--batching", "continuous;disaggregated,prefill=2,decode=1", columns=120)
    assert [line.split()[1] for line in text.splitlines()[-2:]] == ["1", "3"]
    assert "Devices" not in printed(*words, columns=120)


def test_a_comparison_with_long_option_values_is_one_table_on_a_narrow_screen(printed: Print) -> None:
    texts = (BEST, BEST.replace("1b", "3b"), BEST.replace("0.75", "0.8"), "eagle3,tokens=3")
    lines = printed("compare", *MODEL, "--speculative", ";".join(texts)).splitlines()
    rows = {line[:16].strip(): line[16:].split() for line in lines}
    assert rows["Speculative"] == ["A", "B", "C", "D"]
    assert rows["Devices"] == ["4"] * 4 and rows["Tokens/s/device"]
    assert rows["Drafted tokens"][3] == "3" and len(rows["Tokens/round"]) == 4
    assert max(map(len, lines)) <= 120  # sentences; the table is narrower


def test_rows_of_drafts_devices_and_hosts_appear_only_where_used(printed: Print) -> None:
    plain = printed("compare", "llama-2-7b", "--hardware", "a6000,a100")
    assert not any(word in plain for word in ("Devices", "Tokens/s/device", "Drafted", "Host memory"))
    away = printed("compare", "llama-2-7b", "--hardware", "a6000", "--offload", "none;weights=0.5")
    assert "Host memory" in away


def test_comparison_rows_have_devices_and_tokens_per_round() -> None:
    results = [analyze("llama-2-7b", "a100", speculative=text) for text in ("none", "jacobi,tokens=8,iterations=4")]
    plain, blocks = Comparison(results=tuple(results)).rows()
    assert (plain["devices"], plain["drafted_tokens"], plain["tokens_per_round"]) == (1, 0, 1)
    assert (blocks["drafted_tokens"], blocks["tokens_per_round"]) == (7, 2)


def test_requests_of_other_sizes_state_theirs() -> None:
    """Sizes that all share stand above the table; others are a row, so that no memory stands beside another batch."""
    results = {str(batch): analyze("llama-2-7b", "h200", batch_size=batch) for batch in (1, 8)}
    text = terminal.text(comparison_page.side_by_side(Report(results=results).configurations), terminal.FILE)
    assert "batch 1, input 1,024, output 128" in text and "batch 8, input 1,024, output 128" in text


def test_letters_replace_only_long_texts() -> None:
    assert letters(["none", "w4a16"]) == {}
    assert letters(["none", "x" * (MAX_TEXT_LENGTH + 1), "none"]) == {"none": "A", "x" * (MAX_TEXT_LENGTH + 1): "B"}
    assert letters([f"{number:040}" for number in range(27)]) == {}


def test_a_comparison_marks_ratios_whose_intervals_overlap(printed: Print) -> None:
    rows = list(
        csv.DictReader(
            io.StringIO(printed("compare", "llama-3.1-8b", "--hardware", "h100,h200,a100", "--format", "csv"))
        )
    )
    for row in rows[1:]:
        for metric in ("ttft", "tpot"):
            apart = (
                row[f"{metric}_low80_s"] > rows[0][f"{metric}_high80_s"]
                or row[f"{metric}_high80_s"] < rows[0][f"{metric}_low80_s"]
            )
            assert row[f"{metric}_s_separable_from_first"] == str(apart)
    assert {row["ttft_s_separable_from_first"] for row in rows[1:]} == {"True", "False"}
    table = printed("compare", "llama-3.1-8b", "--hardware", "h100,h200,a100")
    assert "≈ 0.9" in table and "not separable from the first: the 80 % intervals overlap" in table


def test_bounds_are_called_bounds_and_calibrated_times_have_intervals(printed: Print) -> None:
    words = ("llama-2-7b", "--hardware", "h100,a100")
    for command in ("compare", "sweep"):
        ideal, calibrated = (
            printed(command, *words, "--efficiency", "ideal", columns=160),
            printed(command, *words, columns=160),
        )
        assert "TPOT, bound" in ideal and "80 %" not in ideal
        assert (
            "bound" not in calibrated.replace("Prefill bound", "").replace("Decode bound", "") and "80 %" in calibrated
        )


def test_intervals_are_those_of_80_percent_with_the_lower_bound_first(printed: Print) -> None:
    words = ("llama-2-7b", "--hardware", "h100,a100")
    known = analyze("llama-2-7b", "h100").to_dict()["metrics"]["intervals"]["tpot_s"]["80"]
    for command in ("compare", "sweep"):
        found = re.findall(r"([\d.]+)–([\d.]+) ms", printed(command, *words, columns=160))
        assert len(found) == 4 and all(float(low) < float(high) for low, high in found)  # TTFT and TPOT of two chips
        assert any(
            (float(low), float(high)) == pytest.approx([1e3 * one for one in known], rel=5e-3) for low, high in found
        )


def test_every_command_answers_alike(printed: Print) -> None:
    """analyze, sweep and compare print one number for one question."""
    words = ("llama-2-7b", "--hardware", "mi300x", "--batch-size", "4", "--format")
    single = json.loads(printed("analyze", *words, "json"))["metrics"]["tpot_s"]
    (swept,) = json.loads(printed("sweep", *words, "json"))["rows"]
    (compared,) = json.loads(printed("compare", *words, "json"))["configurations"]
    assert swept["tpot_s"] == pytest.approx(single, rel=1e-12)
    assert compared["metrics"]["tpot_s"] == single


def test_the_first_line_says_which_to_take_for_the_speed_and_for_the_money(printed: Print) -> None:
    """2 × 5090 at $0.50 are $1.00 an hour, half of $2.00, and less than half as slow again."""
    words = ("qwen3-30b-a3b", "--hardware", "2x5090,rtx-pro-6000", "--input-len", "32k", "-q", "fp8")
    text = printed("compare", *words, "--price", "5090=0.5,rtx-pro-6000-server=2", columns=120)
    line = " ".join(text.partition("\n\n")[0].split())
    answer = json.loads(printed("compare", *words, "--price", "5090=0.5,rtx-pro-6000-server=2", "--format", "json"))
    first, second = ({**one["metrics"]} for one in answer["configurations"])
    assert first["usd_per_hour"] == 1.0 and second["usd_per_hour"] == 2.0
    fast = int(second["e2e_s"] < first["e2e_s"])
    assert answer["best"] == {
        "e2e_s": fast,
        "usd_per_million_output_tokens": 0,
        "joules_per_output_token": int(second["joules_per_output_token"] < first["joules_per_output_token"]),
    }
    names = ("2 × rtx-5090", "1 × rtx-pro-6000-server")
    assert line.startswith(f"Take {names[fast]} for its speed: E2E ")
    assert f"; {names[0]} for the money: $" in line


def test_none_is_taken_for_its_memory_over_one_that_holds_as_many() -> None:
    def told(*rooms: int) -> list[str]:
        same = {"hardware": {"name": "l40s"}, "parallelism": {"devices": 1}}
        made = [{**same, "memory": {"max_batch_size": room}} for room in rooms]
        return [*comparison_page._roomier(made, ["none", "fp8", "w8a8"])]

    assert told(4, 9, 9) == told(9, 9, 9) == []
    assert told(4, 9, 7) == ["fp8 for its memory: 9 sequences of this length at once against 7"]


def test_a_comparison_takes_what_fits_and_fails_only_if_nothing_does(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "qwen3-30b-a3b", "--hardware", "rtx-5090,rtx-pro-6000"]  # 57 GiB of weights
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("Take  rtx-pro-6000-server: the only one that fits\n")
    assert main([*words[:3], "rtx-5090,rtx-4090"]) == 1
    assert capsys.readouterr().out.startswith("Take  none fits\n")


def test_every_known_chip_is_a_row_the_fastest_that_holds_the_request_first() -> None:
    found = lv.compare("llama-3.1-8b", "all", input_len=512)
    chips = [result.analysis.system.chip.name for result in found.results]
    assert found.refused is not None and sorted([*chips, *found.refused]) == lv.list_hardware()
    held = [result.fits for result in found.results]
    assert held == sorted(held, reverse=True) and {*held} == {True, False}
    speeds = [float(result.tpot_s) for result in found.results if result.fits]
    assert speeds == sorted(speeds)
    at = chips.index("h100-sxm")
    assert speeds[at] == lv.analyze("llama-3.1-8b", "h100-sxm", input_len=512).tpot_s


@pytest.mark.parametrize("columns", [80, 160])
def test_the_rows_of_every_chip_fit_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["compare", "llama-3.2-1b", "--hardware", "all", "--offload", "weights=0.5"]) == 0  # some hold it
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("Refused  --offload: the chip has no link to a host") for line in lines)
    assert {name for name in lv.list_hardware() if any(line.startswith(f"{name} ") for line in lines)} >= {
        "h100-sxm",
        "l4",
    }


@pytest.mark.parametrize("words", [["llama-3.1-8b,llama-3.2-1b"], ["llama-3.1-8b", "-q", "none,fp8"]])
def test_every_chip_is_compared_with_one_configuration(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "compares one configuration; the other lists make 2" in refusal(
        ["compare", *words, "--hardware", "all"], capsys
    )
    with pytest.raises(lv.UserError, match="the other lists make 2"):
        lv.compare(["llama-3.1-8b", "llama-3.2-1b"], "all")


def test_servers_compare_few_chips() -> None:
    with pytest.raises(lv.UserError, match="hardware is all; compare takes at most 12 chips here"):
        limits.check("compare", {"model": "llama-3.1-8b", "hardware": "all"})
