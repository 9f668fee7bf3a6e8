"""Size limits of files and functions; exceptions need a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(
    path for folder in ("llmviewer", "reports", "calibrate", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
MAX_FILE_LINES = 300
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


MIN_LINES = 40
#: Folders whose files are registry entries or kernels of one table each, and may be short.
ENTRIES = (
    "llmviewer/techniques/",
    "calibrate/kernels/",
    "reports/plots/",
    "reports/web/tabs/",
    "llmviewer/timing/kernels/",
)
#: path -> reason why the short file is not part of another.
SHORT: dict[str, str] = {
    "llmviewer/__main__.py": "`python -m llmviewer`",
    "calibrate/lower_bound.py": "the bound that tables, diagnosis and the test of the ledger share",
    "llmviewer/api/catalog.py": "names that calls take, which need no analysis",
    "llmviewer/cli/calibrate/group.py": "the registry of calibrate's commands",
    "llmviewer/cli/mcp.py": "a command of one option",
    "llmviewer/cli/plot/loads.py": "loads among the data of plots; given.py is full",
    "calibrate/diagnosis/patterns.py": "the reader of one table of names",
    "calibrate/diagnosis/wording.py": "times and ratios in words, for parts, suspects and results",
    "llmviewer/core/counts.py": "the type that every formula uses; everything imports it",
    "llmviewer/core/malloc.py": "the only call of the C library",
    "llmviewer/core/running.py": "the last step of a graph's preparation; ir.py is full",
    "llmviewer/simulation/limits.py": "the grammar of limits, which several commands share",
    "llmviewer/simulation/rate_search.py": "a search that knows nothing of simulations",
    "llmviewer/simulation/separate_passes.py": "one of two prices of a mixed step",
    "llmviewer/core/version.py": "the version in one place; pyproject reads it",
    "llmviewer/layers/parallel_mixers.py": "one kind of layer",
    "llmviewer/models/rwkv.py": "one family",
    "llmviewer/ops/embedding.py": "one family of kernels",
    "llmviewer/serving/encoded_inputs.py": "the schedule of encoder-decoders, which no other file needs",
    "llmviewer/timing/regimes.py": "read by fits and by intervals, which must not import each other",
    "llmviewer/tracing/load.py": "what a call gives; the files beside it need no config's source",
    "reports/formulas.py": "formulas in words, for the report",
    "reports/fusions.py": "one table of the page",
    "reports/load_pictures.py": "pictures in a report; it alone draws plots for one",
    "reports/letters.py": "the only text that knows how wide a letter is",
    "reports/units.py": "units of columns, read by plots and the report",
    "reports/survey/ask.py": "figures and peers both ask, and must not import each other",
    "reports/survey/roof_axes.py": "axes that four figures share",
}


def test_a_short_file_has_a_reason() -> None:
    """Which file is it a part of?"""
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert [
        name
        for name, count in lines.items()
        if count < MIN_LINES and not name.endswith("__init__.py") and not name.startswith(ENTRIES) and name not in SHORT
    ] == []


def test_every_short_file_exception_is_still_needed() -> None:
    for name in SHORT:
        assert (ROOT / name).exists() and len((ROOT / name).read_text(encoding="utf-8").splitlines()) < MIN_LINES, name
