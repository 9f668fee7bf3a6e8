"""Imports run downward only, and the core needs numpy and yaml alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: What stands left may be imported by what stands right of it, never back.
ORDER = (
    "errors < dtypes < ir < workload < ops < formats < layers < models",
    "errors < parsing < data < hardware, models",
    "ir < chip < hardware",
    "workload, formats, hardware < passes",
    "hardware < efficiency < roofline < system",
    "ops, efficiency < kernels < calibrated < analysis",
    "data, hardware < profile < calibrated",
    "roofline < regimes < calibrated < calibrate",
    "data, workload, chip < engine < system",
    "ir, workload < serving < system, schemes",
    "capacity, evaluation, schedule, serving < machine < analysis",
    "schedule, memory, system, models, pipeline < capacity < analysis, limits",
    "capacity, evaluation, schedule, serving, heap < pricing < analysis",
    "limits, columns < result",
    "interval, rounds < columns",
    "ops < roofline",
    "ops, system < pipeline < evaluation, passes",
    "pipeline, memory < spatial < api",
    "ir < memory < system",
    "models, roofline, system < evaluation < analysis",
    "evaluation, capacity < placement < passes",
    "ops, roofline < overlap < evaluation",
    "workload < kv_cache < prompts < schedule < analysis",
    "kv_cache < memory < analysis",
    "prompts < branches < generation",
    "models, workload < generation < schedule, system, schemes",
    "technique, data < schemes < techniques, result",
    "hardware, models < describe < result",
    "analysis, describe, calibrated < interval < stages < result",
    "analysis < fired < result < api",
    "fired, capacity, describe, calibrated < provenance < result",
    "analysis < attribution < result",
    "stages, generation < rounds < result",
    "engine, pipeline, stages < unrolled < traced < timeline < result",
    "traced < cli",
    "system < technique < passes, techniques < api",
    "passes < techniques",
    "techniques, arguments < comparison, cli",
    "ir < arguments < api",
    "passes, hardware, models < api < sweep, comparison < cli",
    "heap < pricing, sweep",
    "sweep < crossover < reports, cli",
    "describe < catalog < cli",
    "result, comparison, catalog < reports < cli",
    "ir, ops, hardware, efficiency, formats, passes, api < calibrate < cli",
    "cli, api < __init__",
)
#: A notebook asks the Result itself how it looks; the method that answers imports the view.
ASKED_BY_NOTEBOOKS = {"result": {"reports"}}
#: Packages whose import alone costs a noticeable part of a second.
HEAVY = ("torch", "pandas", "matplotlib", "typer", "rich", "transformers", "scipy", "pyarrow")


def chains() -> Iterator[tuple[str, str]]:
    """Pairs (lower, higher) as they stand in ORDER."""
    for line in ORDER:
        ranks = [[name.strip() for name in rank.split(",")] for rank in line.split("<")]
        for lower, higher in pairwise(ranks):
            yield from ((low, high) for low in lower for high in higher)


def below() -> dict[str, set[str]]:
    """Everything that a module may import, directly or not named in ORDER."""
    found: dict[str, set[str]] = {}
    for low, high in chains():
        found.setdefault(low, set())
        found.setdefault(high, set()).add(low)
    for _ in found:
        for lower in found.values():
            lower |= {deeper for low in lower for deeper in found[low]}
    return found


BELOW = below()


def concept(path: Path) -> str:
    """`layers` of llmviewer/layers/mla.py, `ir` of llmviewer/ir.py, `reports` of reports/table.py."""
    first, *rest = path.relative_to(ROOT).with_suffix("").parts
    return rest[0] if first == "llmviewer" else first


def imported(path: Path) -> Iterator[str]:
    """Our own concepts that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            first, *rest = name.split(".")
            if first in ("reports", "calibrate"):
                yield first
            elif first == "llmviewer" and rest and not rest[0].startswith("__"):
                yield rest[0]


FILES = sorted(path for folder in ("llmviewer", "reports", "calibrate") for path in (ROOT / folder).rglob("*.py"))


def test_the_order_has_no_cycle() -> None:
    assert not [name for name, lower in BELOW.items() if name in lower]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_downward_only(path: Path) -> None:
    own = concept(path)
    assert own in BELOW, f"{own} has no place in ORDER: say what it stands above and below"
    upward = {name for name in imported(path) if name not in BELOW[own] | {own}} - ASKED_BY_NOTEBOOKS.get(own, set())
    assert not upward, f"{own} stands below {', '.join(sorted(upward))}"


@pytest.mark.parametrize("path", [path for path in FILES if concept(path) == "reports"], ids=lambda path: path.name)
def test_reports_read_results_and_nothing_else(path: Path) -> None:
    assert set(imported(path)) <= {"result", "comparison", "catalog", "crossover", "reports"}


def top_level(path: Path) -> Iterator[str]:
    """Packages imported when the file is, type hints aside."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_packages_are_imported_where_they_are_needed(path: Path) -> None:
    """Inside the function; the command line alone stands on typer.  calibrate/ is the place for torch."""
    allowed = {"cli": {"typer"}, "calibrate": {"torch", "scipy"}}.get(concept(path), set())
    others = {name for name in top_level(path) if name not in sys.stdlib_module_names}
    assert not others - allowed - {"llmviewer", "numpy", "yaml", "reports", "calibrate"}


def test_one_answer_imports_nothing_heavy() -> None:
    code = (
        "import sys, llmviewer as lv; lv.analyze('llama-2-7b', 'a6000').to_json();"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "[]"
