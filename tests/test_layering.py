"""Imports run downward only and without cycles, and the core needs only numpy and yaml."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.imports import FILES, QUESTIONS, ROOT, circles, imports, room_of, tree_of

PAGE = (ROOT / "docs" / "reference" / "architecture.md").read_text(encoding="utf-8")
#: room -> floor, from the table of docs/reference/architecture.md.
FLOORS: dict[str, int] = {
    room: int(floor)
    for floor, rooms in re.findall(r"^\| (\d+) \| ([a-z, ]+) \|$", PAGE, flags=re.MULTILINE)
    for room in rooms.split(", ")
}
#: The package's lazy public names and `python -m llmviewer` are above all rooms.
TOP = {"llmviewer", "__main__"}
#: Rooms that only the server, the command line and the lazy public names import.
VIEWS = {"reports", "calibrate"}
#: Files that a command imports in its body and that may therefore import views at module level.
BODIES = {"llmviewer.cli.plot.given", "llmviewer.cli.plot.loads"}
#: Modules that only functions that draw import, and that import matplotlib at module level.
DRAWING = {"llmviewer.reports.plots.figure"}
#: A dispatch mode of torch, which only functions of --trace-model import.
RECORDER = "llmviewer.tracing.recorder"
#: The worker of the server is a class of gunicorn's; `serve` imports it when it starts.
WORKER = "llmviewer.server.worker"
MAX_ROOMS = 18
#: Packages whose import takes a noticeable part of a second.
HEAVY = (
    "torch", "pandas", "matplotlib", "typer", "rich", "transformers", "scipy", "pyarrow", "distributed", "flask", "mcp",
)  # fmt: skip


def test_the_architecture_page_has_a_floor_for_every_room() -> None:
    assert {room_of(module) for module in FILES} - TOP == set(FLOORS)


def test_the_package_has_few_rooms() -> None:
    folders = [path for path in (ROOT / "llmviewer").iterdir() if path.is_dir() and not path.is_symlink()]
    assert len([path for path in folders if path.name != "__pycache__"]) <= MAX_ROOMS


def test_there_are_no_import_cycles() -> None:
    assert circles() == []


def test_imports_run_downward_only() -> None:
    reading = [module for module in FILES if room_of(module) not in TOP and module != QUESTIONS]
    imported = [(module, other) for module in reading for other in imports(module)]
    between = [(module, room_of(module), other, room_of(other)) for module, other in imported]
    assert [
        f"{module} on floor {FLOORS[own]} imports {other}"
        for module, own, other, room in between
        if room != own and (room in TOP or FLOORS[room] >= FLOORS[own])
    ] == []


def test_views_are_imported_by_the_command_line_and_lazy_names_inside_functions() -> None:
    others = [module for module in FILES if room_of(module) not in VIEWS and module not in BODIES]
    views = ("llmviewer.reports", "llmviewer.calib")
    assert [(m, name) for m in others for name in _top_level(tree_of(m)) if name.startswith(views)] == []
    below = [module for module in others if room_of(module) not in {"server", "cli", *TOP}]
    assert [(module, other) for module in below for other in imports(module) if room_of(other) in VIEWS] == []


#: Files of the simulation room that views read: results, and runs at other rates for the curve of a plot.
OF_SIMULATIONS = {f"llmviewer.simulation.{name}" for name in ("result", "requests", "limits", "call", "parallel")}


#: The web viewer and the page without a server ask questions too, and their controls are the declared options.
READ = {"reports", "result", "simulation", "planning", "core", "language"}
VIEWER = ("llmviewer.reports.web", "llmviewer.reports.offline")
ASKED = {*READ, "api", "techniques", "questions"}
REPORTS = [module for module in FILES if room_of(module) == "reports"]


@pytest.mark.parametrize("module", [module for module in REPORTS if module.startswith(VIEWER)])
def test_the_viewer_asks_through_the_calls(module: str) -> None:
    assert {room_of(other) for other in imports(module)} <= ASKED


@pytest.mark.parametrize("module", [module for module in REPORTS if not module.startswith(VIEWER)])
def test_reports_read_results_and_nothing_else(module: str) -> None:
    assert {room_of(other) for other in imports(module)} <= READ
    simulated = {other for other in imports(module) if room_of(other) == "simulation"}
    assert simulated <= OF_SIMULATIONS
    core = {other for other in imports(module) if room_of(other) == "core"}
    allowed = {"llmviewer.core.kinds", "llmviewer.core.errors", "llmviewer.core.frozen"}
    assert core <= allowed, "names of kinds, refusals of `plot`, how classes are made; all numbers come from the Result"


def test_code_lives_under_one_import_name() -> None:
    """A user's own package `reports` must not be confused with ours."""
    folders = {"reports", "calibrate", "hardware_specs", "model_configs"}
    imported = [(module, name) for module in FILES for name in _all_imports(tree_of(module))]
    assert [(module, name) for module, name in imported if name.split(".")[0] in folders] == []


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module


def _top_level(tree: ast.Module) -> Iterator[str]:
    """Modules imported at module level, except for type hints."""
    for node in tree.body:
        yield from _names(node)


def _all_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            yield from _names(node)


def test_heavy_packages_are_imported_where_they_are_needed() -> None:
    """Imported inside functions; only the command line imports typer, only calibrate/ and `RECORDER` import torch."""
    for module in FILES:
        allowed = {"cli": {"typer"}, "calibrate": {"torch", "scipy"}}.get(room_of(module), set())
        if module in DRAWING:
            allowed = {"matplotlib"}
        if module.startswith(VIEWER):
            allowed = {"dash", "dash_ag_grid", "dash_cytoscape", "flask"}
        if module == RECORDER:
            allowed = {"torch"}
        if module == WORKER:
            allowed = {"gunicorn"}
        direct = set(_top_level(tree_of(module)))
        others = {name.split(".")[0] for name in direct} - set(sys.stdlib_module_names)
        assert not others - allowed - {"llmviewer", "numpy", "yaml"}, module
        assert not direct & {*DRAWING, RECORDER, WORKER}, module


def test_one_answer_imports_nothing_heavy() -> None:
    code = (
        "import sys, llmviewer as lv; lv.analyze('llama-2-7b', 'a6000').to_json();"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "[]"
