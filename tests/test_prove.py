"""The mutation proof stays applicable: every fault still fits the code, and its page lists all of them as noticed.

Faults are not run here; `make prove` runs them.
"""

from __future__ import annotations

import pytest

from tests.prove.checkout import FAILED
from tests.prove.faults import ROOT, Fault, read_faults, select
from tests.prove.page import SURVIVED, page

FAULTS = read_faults()
PAGE = (ROOT / "docs" / "evidence" / "proof.md").read_text(encoding="utf-8")


def a_fault(**changed: str) -> Fault:
    words = {"name": "n", "what": "a product counts once", "path": "a.py", "old": "2.0 * n", "new": "n", **changed}
    return Fault(**words, tests=("test_ops",))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_one_place_and_is_valid_python(fault: Fault) -> None:
    text = (ROOT / fault.path).read_text(encoding="utf-8")
    wrong = fault.planted(text)
    assert wrong != text
    compile(wrong, fault.path, "exec")
    for path in fault.paths:
        file, _, test = path.partition("::")
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), f"fault {fault.name} names no test: {path}"


def test_the_page_lists_every_fault_as_noticed() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "| file |" not in line]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [fault.what for fault in FAULTS]
    assert SURVIVED not in PAGE


@pytest.mark.parametrize("text", ["x = 3.0 * n", "x = 2.0 * n + 2.0 * n"])
def test_code_that_is_missing_or_ambiguous_is_an_error_that_names_the_fault(text: str) -> None:
    with pytest.raises(ValueError, match=r"fault n: '2\.0 \* n' occurs [02] times in a\.py; expected: once"):
        a_fault().planted(text)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown fault nothing; known: "):
        select(["nothing"])
    assert select([FAULTS[3].name]) == (FAULTS[3],)


def test_the_first_failed_test_is_read_from_the_summary() -> None:
    summary = (
        "F.\nFAILED tests/test_ops.py::test_rope[a - b] - assert 4.0 == 6.0\n"
        "ERROR tests/test_report.py::test_page - OSError\nFAILED tests/test_e2e.py::test_row\n"
    )
    assert FAILED.findall(summary) == [
        "tests/test_ops.py::test_rope[a - b]",
        "tests/test_report.py::test_page",
        "tests/test_e2e.py::test_row",
    ]


def test_a_fault_that_no_test_notices_is_marked_on_the_page() -> None:
    text = page([a_fault(), a_fault(old="a | b")], ["tests/test_ops.py::test_product[1-2]", ""])
    assert "1 of 2 faults are noticed." in text
    assert "| a product counts once | `a.py` | `2.0 * n` | `n` | `tests/test_ops.py::test_product` |" in text
    assert rf"| a product counts once | `a.py` | `a \| b` | `n` | {SURVIVED} |" in text
