"""Size limits of files and functions; exceptions need a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(
    path for folder in ("llmviewer", "reports", "calibrate", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 50
MAX_PARAMETERS = 7
#: path or path::function -> reason for its size.
REASONS: dict[str, str] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Function):
            yield node


def parameters(function: Function) -> int:
    of = function.args
    names = [argument.arg for argument in (*of.posonlyargs, *of.args, *of.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def is_command(path: Path, function: Function) -> bool:
    """A command's parameters are its options: typer reads them from the signature."""
    options = {argument.arg for argument in function.args.args}
    return "cli" in path.parts and (function.name == "command" or "format" in options)


def too_large_in(path: Path) -> dict[str, str]:
    """The file and its functions that are too large, with what to ask of each."""
    name = str(path.relative_to(ROOT))
    too_large = {}
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > MAX_FILE_LINES:
        too_large[name] = f"{lines} lines; which second concept is in it?"
    for function in functions(path):
        called = f"{name}::{function.name}"
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > MAX_FUNCTION_LINES and not is_command(path, function):
            too_large[called] = f"{length} lines; which part of it has a name of its own?"
        if parameters(function) > MAX_PARAMETERS and not is_command(path, function):
            too_large[called] = f"{parameters(function)} parameters; which noun is missing?"
    return too_large


def test_every_file_and_function_is_small_or_has_a_reason() -> None:
    found = {key: why for path in FILES for key, why in too_large_in(path).items()}
    assert {key: why for key, why in found.items() if key not in REASONS} == {}


def test_every_size_exception_is_still_needed() -> None:
    for key in REASONS:
        path, _, function = key.partition("::")
        assert (ROOT / path).exists()
        assert not function or function in {found.name for found in functions(ROOT / path)}
