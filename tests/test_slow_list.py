"""The list of slow tests: read from a log of durations, and every name in it is that of a test."""

from __future__ import annotations

import re

from tests.slow_list import ROOT, listed, slow_in

LOG = """
11.00s setup    tests/test_a.py::test_one
0.10s call     tests/test_a.py::test_one
2.40s call     tests/test_b.py::test_two[a b-1]
1.90s call     tests/test_b.py::test_three
3.00s teardown tests/test_b.py::test_four
"""


def test_slow_tests_and_files_with_a_slow_fixture_are_listed() -> None:
    assert slow_in(LOG, 4.0) == ["tests/test_b.py::test_two[a b-1]"]
    assert slow_in(LOG, 1.0) == ["tests/test_a.py", "tests/test_b.py::test_three", "tests/test_b.py::test_two[a b-1]"]


def test_every_name_is_that_of_a_test() -> None:
    stale = []
    for name in listed():
        file, _, test = name.partition("::")
        found = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).exists() else ""
        function = test.partition("[")[0].rpartition("::")[2]
        if not found or not re.search(rf"def {re.escape(function)}\b" if function else "def test_", found):
            stale.append(name)
    assert stale == []
