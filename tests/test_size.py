"""The measures of the house are right; sizes are reported at the end of a run and held to no limit (tests/house.py)."""

from __future__ import annotations

import ast

from tests import house

SOURCE = (
    """
def _used_once():
    return 1

def _used_twice():
    return _used_once()

def _by_name_only():
    return _used_twice() + _used_twice()

def long(format_: str):
"""
    + "    x = 1\n" * house.MAX_FUNCTION_LINES
)


def test_private_functions_are_counted_by_how_often_their_file_names_them() -> None:
    assert house.private_calls(ast.parse(SOURCE)) == {"_used_once": 1, "_used_twice": 2, "_by_name_only": 0}


def test_a_function_is_long_by_its_lines() -> None:
    assert house.long_functions(ast.parse(SOURCE)) == {"long": house.MAX_FUNCTION_LINES + 1}
    assert house.long_functions(ast.parse(SOURCE.replace("    x = 1\n", "", 1))) == {}


def test_a_command_may_have_many_options() -> None:
    assert house.long_functions(ast.parse(SOURCE.replace("format_", "format"))) == {}


def test_the_rooms_hold_every_line_and_file() -> None:
    *rooms, (name, lines, files) = house.rooms()
    assert name == "sum" and files == len(house.FILES)
    assert (lines, files) == (sum(row[1] for row in rooms), sum(row[2] for row in rooms))
    everything = "".join(path.read_text(encoding="utf-8") for path in house.FILES.values())
    assert lines == len(everything.splitlines())


def test_a_command_enters_files_that_it_imports() -> None:
    entered, imported = house.traced("hardware", "show", "h100")
    assert 5 < entered < imported < len(house.FILES) / 2
