"""The golden table: cheap lines still answer as it says, and its script tells figures, keys, statuses and words."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Picture

from llmviewer.cli import COMMANDS
from tests import golden_lines, goldens
from tests.golden_answers import answer, figures
from tests.goldens import compare, detail, differences, entry, read, write

#: Beginnings of lines that take little; the first line of the table with each is run.
CHEAP = (
    "analyze llama-3.2-1b", "sweep llama-3.2-1b", "compare llama-3.2-1b", "crossover llama-3.2-1b", "why 'llama-3.2-1b",
    "require llama-3.2-1b", "elasticity llama-3.2-1b", "train llama-3.2-1b", "simulate llama-3.2-1b", "explain e2e_s",
)  # fmt: skip
ANSWER = {
    "schema": "one/1",
    "ttft_s": 0.25,
    "provenance": {"seconds": 7},
    "rows": [{"name": "a", "time_s": 1e-3}, {"name": "b", "time_s": 2e-3}],
}


def of(answer: Any, status: int = 0) -> goldens.Entry:
    return entry(status, *figures(json.dumps(answer)))


def changed(**fields: Any) -> goldens.Entry:
    return of({**ANSWER, **fields})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the inputs, in which the lines run."""
    path = tmp_path_factory.mktemp("lines")
    golden_lines.prepare(path)
    before = Path.cwd()
    os.chdir(path)
    yield path
    os.chdir(before)


@pytest.mark.parametrize("beginning", CHEAP)
def test_a_line_answers_as_the_table_says(beginning: str, folder: Path) -> None:
    """Head figures to a relative 1e-9, as last bits differ between machines; the script compares all to the bit."""
    line, old = next((line, one) for line, one in read().items() if line.startswith(beginning) and one["heads"])
    new = entry(*answer(line))
    assert (new["status"], list(new["keys"])) == (old["status"], list(old["keys"])), line
    assert new["heads"] == pytest.approx(old["heads"], rel=1e-9), line


def test_the_table_has_every_command_that_answers() -> None:
    """Servers, the survey and what is measured have tests of their own."""
    assert set(COMMANDS) - {line.split()[0] for line in read()} == {"serve", "mcp", "survey"}


def test_an_equal_answer_differs_in_nothing() -> None:
    assert differences(of(ANSWER), of(ANSWER)) == []


def test_a_changed_figure_is_told_by_its_key_to_the_last_bit() -> None:
    rows = [{"name": "a", "time_s": 1e-3}, {"name": "b", "time_s": 2e-3 + 2**-61}]
    assert rows[1]["time_s"] != 2e-3
    assert differences(of(ANSWER), changed(rows=rows)) == ["figures changed: time_s"]
    assert differences(of(ANSWER), changed(ttft_s=0.5)) == ["figures changed: ttft_s 0.25 -> 0.5"]


def test_figures_in_another_order_are_changed() -> None:
    assert differences(of(ANSWER), changed(rows=ANSWER["rows"][::-1])) == ["figures changed: time_s"]


def test_a_changed_figure_whose_mark_is_equal_is_told_by_the_hash_of_all() -> None:
    old, new = of(ANSWER), changed(ttft_s=0.5)
    assert differences(old, {**new, "keys": old["keys"]}) == ["figures changed: unknown"]


def test_a_renamed_key_is_told_apart_from_figures() -> None:
    renamed = {("first_s" if name == "ttft_s" else name): value for name, value in ANSWER.items()}
    assert differences(of(ANSWER), of(renamed)) == ["keys gone: ttft_s", "keys new: first_s"]


def test_a_new_key_leaves_the_other_figures_comparable() -> None:
    assert differences(of(ANSWER), changed(mfu=0.4)) == ["keys new: mfu"]
    assert differences(of(ANSWER), changed(mfu=0.4, ttft_s=1.0)) == [
        "keys new: mfu", "figures changed: ttft_s 0.25 -> 1.0"
    ]  # fmt: skip


def test_an_exit_status_is_told() -> None:
    assert differences(of(ANSWER), of(ANSWER, 1)) == ["exit status 0 -> 1"]


def test_words_are_counted_and_no_difference() -> None:
    old, new = {"line": of(ANSWER)}, {"line": changed(schema="another name")}
    assert compare(old, new) == ([], ["line"])
    assert compare(old, {"line": changed(ttft_s=0.5)}) == (["line\n  figures changed: ttft_s 0.25 -> 0.5"], [])


def test_where_an_answer_was_made_does_not_count() -> None:
    assert changed(provenance={"seconds": 8, "host": "other"}) == of(ANSWER)


def test_a_text_has_the_numbers_of_its_rows_and_sentences() -> None:
    text = "llama-3.2-1b on h100-sxm takes 2.50 ms (1,978 requests, −7.4 %)\nq_proj  gemm  8.59 G  16.8 MB  60 %\n"
    found, words = figures(text)
    assert [(name, value) for _, name, value in found] == [
        ("(sentences)", "2.50"), ("(sentences)", "1,978"), ("(sentences)", "−7.4"),
        ("(rows)", "8.59"), ("(rows)", "16.8"), ("(rows)", "60"),
    ]  # fmt: skip
    assert "llama-3.2-1b on h100-sxm takes # ms" in words


def test_a_table_of_columns_has_its_figures_by_column() -> None:
    found, words = figures("name,time_s,rows\na,1e-3,4\nb,,5\n", "csv")
    assert found == [("[0].time_s", "time_s", "0.001"), ("[0].rows", "rows", "4.0"), ("[1].rows", "rows", "5.0")]
    assert words == "a\nb\n"


def test_a_picture_has_the_places_that_are_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Picture, "savefig", Picture.savefig)  # what the recorder sets ends with this test
    status, found, _ = answer("plot roofline llama-3.2-1b --hardware h100 -o drawn.svg")
    assert status == 0 and {name for _, name, _ in found} >= {"(lines)", "(groups)"}
    assert not (folder / "drawn.svg").exists()


def test_full_answers_are_compared_figure_by_figure() -> None:
    old, new = ({"figures": figures(json.dumps(one))[0]} for one in (ANSWER, {"ttft_s": 0.5, "rows": [], "mfu": 1}))
    assert detail(old, new) == [
        "  - .rows[0].time_s = 0.001", "  - .rows[1].time_s = 0.002", "  + .mfu = 1", "  .ttft_s: 0.25 -> 0.5"
    ]  # fmt: skip


def test_the_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    entries = {"first": of(ANSWER), "second": of({"mfu": 1.0}, 1), "third": of({})}
    write(entries, tmp_path / "table.json")
    assert read(tmp_path / "table.json") == entries
