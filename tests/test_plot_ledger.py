"""The ledger plot accepts tables edited by users."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmviewer.cli import main
from llmviewer.core.kinds import Kind
from llmviewer.reports.html.roofline import SYMBOLS
from llmviewer.reports.plots import marks

from .answers import refusal

HEAD = "source,metric,published,predicted,low80,high80,hardware\n"


def drawn(folder: Path, rows: str) -> int:
    (folder / "rows.csv").write_text(HEAD + rows)
    return main(["plot", "ledger", str(folder / "rows.csv"), "-o", str(folder / "ledger.png")])


def test_rows_without_a_figure_or_a_prediction_are_left_out(tmp_path: Path) -> None:
    rows = "a,ttft_ms,10,11,9,12,h100\nb,tok/s,,5,4,6,h100\nb,tok/s,0,5,4,6,h100\nb,tok/s,5,0,,,h100\n"
    assert drawn(tmp_path, rows) == 0
    assert (tmp_path / "ledger.png").is_file()


def test_a_table_without_usable_rows_is_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert drawn(tmp_path, "a,ttft_ms,10,0,,,h100\n") == 2
    assert capsys.readouterr().err == "error: no row has a prediction\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--hardware", "nope"], "--hardware is 'nope'; this plot does not take it"),
        (["--batch-size", "4"], "--batch-size is '4'; this plot does not take it"),
        (["--ignore-field", "zzz"], "--ignore-field is 'zzz'; this plot does not take it"),
        (["-tp", "2"], "-tp is '2'; this plot does not take it"),
        (["--efficiency", "ideal"], "--efficiency is 'ideal'; this plot does not take it"),
    ],
)
@pytest.mark.parametrize("kind", ["ledger", "parity"])
def test_options_of_a_run_are_refused_by_plots_of_a_table(
    kind: str, words: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error in refusal(["plot", kind, *words, "-o", str(tmp_path / "plot.png")], capsys)
    assert not list(tmp_path.iterdir())


def test_every_operator_kind_has_a_marker_in_plots_and_on_the_page() -> None:
    assert set(marks.KINDS) == set(SYMBOLS) == {kind.value for kind in Kind}
