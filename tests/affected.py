"""`make check`: the test files of what differs from a commit, as arguments of pytest: `python -m tests.affected HEAD`.

Tests of a module are those that import it; where none does, those with its name and those that import what imports it.
House rules and one run of every feature are always among them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.imports import FILES, ROOT, imports, module_of

ALWAYS = ("tests/test_layering.py", "tests/test_size.py", "tests/test_language.py", "tests/test_smoke.py")
#: Modules that name all others, and tell nothing.
NAMES = ("llmviewer", "llmviewer.questions")


def changed(commit: str) -> list[Path]:
    """Files that differ from a commit, those that git does not know yet included."""
    lines: list[str] = []
    for words in (["diff", "--name-only", commit], ["ls-files", "--others", "--exclude-standard"]):
        listed = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        lines += listed.stdout.splitlines()
    return [ROOT / line for line in lines if line]


def of_files(files: Iterable[Path]) -> list[str]:
    """Test files to run for changed files, by their paths in the checkout."""
    existing = [path for path in files if path.exists()]
    own = {str(path.relative_to(ROOT)) for path in existing if path.match("tests/test_*.py")}
    modules = {module_of(path) for path in existing if path in FILES.values()}
    read = {path: _imported(path) for path in sorted((ROOT / "tests").glob("test_*.py"))}
    found = {path for path, names in read.items() if names & modules}
    untested = modules - {name for names in read.values() for name in names}
    above = {name for name in FILES if imports(name) & untested and name not in NAMES}
    found |= {path for path, names in read.items() if names & above}
    found |= {path for name in untested for path in read if path.stem.startswith(f"test_{name.rpartition('.')[2]}")}
    return sorted({*ALWAYS, *own, *(str(path.relative_to(ROOT)) for path in found)})


def _imported(path: Path) -> set[str]:
    """Modules of the package that a test file imports by a statement."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & FILES.keys()


if __name__ == "__main__":
    print(*of_files(changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD")))  # noqa: T201
