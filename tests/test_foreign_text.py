"""Text from files of others is harmless where it is shown: terminals, spreadsheets, Markdown."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from llmviewer.cli import main, views
from llmviewer.core import data
from llmviewer.core.errors import MAX_LINE_CHARACTERS, UserError
from llmviewer.reports import markdown
from llmviewer.reports.page import Facts, Row, Table, left
from llmviewer.reports.tables import csv_text, safe_cell, safe_columns

from .answers import refusal

#: Clears the screen, rings, starts a line, and reverses the direction of text.
HOSTILE = "\x1b[2J\x07\n\r\x9b\u202eRED"
H100: dict[str, Any] = data.read_yaml(data.folder("hardware_specs") / "h100-sxm.yaml")
LLAMA: dict[str, Any] = data.read_yaml(data.folder("model_configs") / "llama-2-7b.yaml")["config"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_error_is_one_printable_line_of_bounded_length() -> None:
    line = str(UserError(f"{HOSTILE} {'x' * 10**6}"))
    assert line.isprintable()
    assert len(line) == MAX_LINE_CHARACTERS
    assert str(UserError("plain")) == "plain"


def test_names_of_columns_do_not_reach_the_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pandas")
    names = [f"{HOSTILE}{number}" for number in range(900)]
    text = io.StringIO()
    csv.writer(text).writerows([names, range(900)])
    Path("table.csv").write_text(text.getvalue())
    for words in (["calibrate", "validate", "table.csv"], ["plot", "parity", "table.csv"]):
        line = refusal(words, capsys)
        assert line.isprintable() and len(line) < 600


def test_names_of_links_do_not_reach_the_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    links = {HOSTILE: H100["links"]["nvlink"]} | {
        f"{number}{'y' * 999}": H100["links"]["nvlink"] for number in range(9)
    }
    Path("chip.yaml").write_text(json.dumps({**H100, "links": links, "default_link": "none"}))
    line = refusal(["analyze", "llama-2-7b", "--hardware", "chip.yaml"], capsys)
    assert line.isprintable() and len(line) < 600


@pytest.mark.parametrize("words", [["analyze", "NAME", "--hardware", "h100"], ["calibrate", "validate", "NAME"]])
def test_names_of_files_do_not_reach_the_terminal_raw(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pandas")
    name = f"{HOSTILE.replace('/', '')}.json"
    Path(name).write_text("{")
    line = refusal([name if word == "NAME" else word for word in words], capsys)
    assert line.isprintable() and len(line) < 600


def test_a_warning_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    views.print_warnings([f"{HOSTILE} {'x' * 10**6}"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable() and len(line) < 600


# --- cells that a spreadsheet would run ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ('=HYPERLINK("http://x","y")', '\'=HYPERLINK("http://x","y")'),
        ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "'?=1"),
        ("\r=1", "'?=1"),
        ("a\x1b[2J\nb", "a?[2J?b"),
        ("-1.5", "-1.5"),  # a number
        ("+3", "+3"),
        ("llama-2-7b", "llama-2-7b"),
        ("a=b", "a=b"),
        ("", ""),
        (-1.5, -1.5),
        (None, None),
    ],
)
def test_a_cell_that_begins_like_a_formula_is_text(text: object, cell: object) -> None:
    assert safe_cell(text) == cell


def test_columns_of_rows_are_made_safe_with_their_names() -> None:
    made = safe_columns({"=n": ["=1", "x", None, "=1"], "m": [1.0, None], "k": (1, 2)})
    assert made == {"'=n": ["'=1", "x", None, "'=1"], "m": [1.0, None], "k": (1, 2)}
    assert csv_text([{"@a": "=1", "b": -1}]) == "'@a,b\n'=1,-1\n"


@pytest.mark.parametrize(
    "words",
    [
        "analyze model --hardware h100 --format csv",
        "sweep model --hardware h100 --format csv",
        "compare model --hardware h100 --format csv",
        "report model --hardware h100 --format csv --batch-size 1",
        "hardware show chip.yaml --format csv",
    ],
)
def test_no_csv_has_a_cell_that_a_spreadsheet_runs(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    formula = "=1+1"
    Path(formula).mkdir()
    (Path(formula) / "config.json").write_text(json.dumps(LLAMA))
    bandwidth = {"value": 3350, "source": formula}
    Path("chip.yaml").write_text(json.dumps({**H100, "memory_bandwidth_gb_per_s": bandwidth}))
    assert main([formula if word == "model" else word for word in words.split()]) == 0
    cells = [cell for row in csv.reader(io.StringIO(capsys.readouterr().out)) for cell in row]
    assert f"'{formula}" in cells
    assert formula not in cells


def test_predictions_written_as_csv_have_no_formula() -> None:
    pd = pytest.importorskip("pandas")
    row = {"device": "h100_sxm", "dtype": "bfloat16", "m": 64, "n": 64, "k": 64, "latency_us": 9.0, "=a": "@b"}
    pd.DataFrame([row]).to_csv("table.csv", index=False)
    assert main(["calibrate", "validate", "table.csv", "-o", "rows.csv"]) == 0
    written = pd.read_csv("rows.csv")
    assert written["'=a"].tolist() == ["'@b"]
    assert written["latency_us"].tolist() == [9.0]


# --- links -----------------------------------------------------------------------------------------------------------


def test_a_name_makes_no_link_in_markdown() -> None:
    name = "[see](javascript:alert(1)) ![x](data:y) [r]: javascript:z"
    page = (Table(columns=(left("name"),), rows=(Row(cells=(name,)),), title=name), Facts(lines=((name, name),)))
    text = markdown.text(page)
    assert text.count(r"\[see\](javascript:") == 4
    assert "[" not in text.replace(r"\[", "") and "]" not in text.replace(r"\]", "")


def test_a_source_with_another_scheme_makes_no_link_in_the_report() -> None:
    pytest.importorskip("markupsafe")
    from llmviewer.reports.html.provenance import link

    assert "<a" not in str(link('javascript:alert(1) data:text/html,x <a href="javascript:x">'))
    assert str(link("see https://a.b/c")) == 'see <a href="https://a.b/c" rel="noreferrer">https://a.b/c</a>'


# --- Excel -----------------------------------------------------------------------------------------------------------


def test_more_rows_than_a_sheet_takes_are_refused_before_they_are_computed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """6 chips x 200,000 batch sizes are 1.2 M rows; a sheet has 2^20, one of them the heading."""
    pytest.importorskip("openpyxl")
    words = "report llama-2-7b --hardware a6000,h100,a100,t4,l4,v100 --batch-size 1:200000 -o report.xlsx"
    assert refusal(words.split(), capsys).startswith("error: 1,200,000 rows of points; an Excel sheet takes 1,048,575")
    assert not Path("report.xlsx").exists()


def test_any_table_longer_than_a_sheet_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("llmviewer.reports.tables.MAX_ROWS", 12)
    words = ["report", "llama-2-7b", "--hardware", "a6000", "--batch-size", "1,2", "-o", "report.xlsx"]
    assert "rows of operators; an Excel sheet takes 12" in refusal(words, capsys)
    assert not Path("report.xlsx").exists()
