"""The viewer's table of operators: the columns of the address, and sums of the rows that it shows."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs dash: pip install '.[web]'")

from llmviewer.core.errors import UserError
from llmviewer.reports import format as fmt
from llmviewer.reports.web import app
from llmviewer.reports.web.state import SHOWN, parsed
from llmviewer.reports.web.tabs.operators import SUMS, content, sums
from llmviewer.reports.web.view import View

JAMBA = "model=jamba-v0.1&hardware=h200&tab=operators"


def view(query: str) -> View:
    return View(state=parsed(query))


def table(html: str) -> dict[tuple[str, str], list[str]]:
    """Cells of the sums, by stage and name of the row."""
    found, stage = {}, ""
    for kind, row in re.findall(r'<tr class="(group|plain)">(.*?)</tr>', html, re.DOTALL):
        name, *cells = (unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row))
        stage = name if kind == "group" or not stage else stage
        found[stage, name] = cells
    return found


def heads(query: str) -> list[str]:
    return [one["headerName"] for one in content(view(query))[2]["grid"]["columnDefs"]]


def test_the_script_knows_what_an_address_shows() -> None:
    script = (Path(app.__file__).parent / "assets" / "viewer.js").read_text(encoding="utf-8")
    (listed,) = re.findall(r"const SHOWN = \[(.*?)\]", script)
    assert re.findall(r'"(\w+)"', listed) == list(SHOWN)


def test_columns_of_the_address_are_shown_beside_the_name() -> None:
    assert heads(f"{JAMBA}&columns=flop_b,time,share") == ["Operator", "Time", "Share", "FLOP/B"]
    assert heads(f"{JAMBA}&columns=operator") == ["Operator"]
    boxes = content(view(f"{JAMBA}&columns=time"))[1]["html"]
    assert re.findall(r'data-column="(\w+)" checked', boxes) == ["time"]
    every = re.findall(r'data-column="(\w+)"', boxes)
    assert heads(JAMBA) == heads(f"{JAMBA}&columns={','.join(every)}") and len(heads(JAMBA)) == 1 + len(every)


@pytest.mark.parametrize(("part", "why"), [("columns=time,shares", "share"), ("sums=layers", "layer")])
def test_a_name_of_no_column_is_refused_with_the_nearest(part: str, why: str) -> None:
    with pytest.raises(UserError, match=f"{why}s.*{why}"):
        content(view(f"{JAMBA}&{part}"))


def test_sums_of_a_stage_are_its_time_and_counts() -> None:
    one = view(JAMBA)
    found = table(sums(one, {line.key for line in one.lines}))
    for stage, (_, own) in zip(("prefill", "decode"), found.items(), strict=True):
        ran = one.answer["stages"][stage]
        seconds = sum(each["time_s"] * each["layers"] for each in ran["operators"])
        flops = sum(each["flops"] * each["layers"] for each in ran["operators"])
        cells = [f"{len(ran['operators'])}", fmt.duration(seconds), "100.0 %", fmt.count(flops)]
        assert own[:4] == cells


def test_sums_are_of_the_rows_that_are_shown() -> None:
    """Two operators of 1 and 4 layers by hand; a key of no row counts nothing, and no row has no sums."""
    one = view(JAMBA)
    head, q = (
        next(line for line in one.lines if (line.stage, line.operator["name"]) == ("decode", name))
        for name in ("lm_head", "q_proj")
    )
    (cells,) = table(sums(one, {head.key, q.key, "op0-d999"})).values()
    assert (head.operator["layers"], q.operator["layers"]) == (1, 4)
    assert cells[:2] == ["2", fmt.duration(head.operator["time_s"] + 4 * q.operator["time_s"])]
    assert sums(one, ()) == ""
    assert app._sums(("?" + JAMBA, ["op0-d999"])) == app._sums(("?nonsense=1", [head.key])) == app._sums(()) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize("by", [one for one in SUMS if one])
def test_parts_of_a_stage_have_all_of_its_operators_the_longest_first(by: str) -> None:
    one = view(f"{JAMBA}&sums={by}")
    found = table(app._sums((f"?{JAMBA}&sums={by}", [line.key for line in one.lines])))
    place = {"layer": 2, "bound": 5, "kind": 4}[by]
    for stage in ("prefill", "decode"):
        lines = [line for line in one.lines if line.stage == stage]
        own = {name: cells for (whole, name), cells in found.items() if whole == stage and name != stage}
        assert {*own} == {line.cells[place].text for line in lines}
        assert sum(int(cells[0]) for cells in own.values()) == int(found[stage, stage][0]) == len(lines)
        shares = [sum(line.share for line in lines if line.cells[place].text == name) for name in own]
        assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1.0, abs=1e-9)
        assert [cells[2] for cells in own.values()] == [fmt.share(share) for share in shares]
