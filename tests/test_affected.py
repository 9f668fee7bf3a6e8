"""`make check` runs the tests of what changed."""

from __future__ import annotations

from tests.affected import ALWAYS, of_files
from tests.imports import FILES, ROOT


def test_a_module_has_the_tests_that_import_it() -> None:
    found = of_files([FILES["llmviewer.planning.why"]])
    assert {*ALWAYS, "tests/test_why.py"} <= {*found}
    assert len(found) < len(ALWAYS) + 20


def test_a_module_that_no_test_imports_has_the_tests_of_what_imports_it() -> None:
    found = of_files([FILES["llmviewer.planning.shapley"]])
    assert "tests/test_why.py" in found


def test_a_changed_test_runs_itself_and_other_files_run_the_rules_alone() -> None:
    assert of_files([ROOT / "tests/test_ir.py"]) == sorted([*ALWAYS, "tests/test_ir.py"])
    assert of_files([ROOT / "README.md", ROOT / "tests/gone.py"]) == sorted(ALWAYS)
