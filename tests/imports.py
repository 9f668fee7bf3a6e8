"""The import graph of the package, read from its files, including registries of module names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Folders of the checkout with code of the package; `llmviewer/reports` and `llmviewer/calibrate` are links.
FOLDERS = ("llmviewer", "reports", "calibrate")


#: It names modules of all rooms as texts, and imports the one that is asked for.
QUESTIONS = "llmviewer.questions"


def module_of(path: Path) -> str:
    """Module name of a file: `llmviewer.reports.page` for reports/page.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    named = parts if parts[0] == "llmviewer" else ("llmviewer", *parts)
    return ".".join(named).removesuffix(".__init__")


#: Every module of the package and its file; `rglob` does not follow links, so each file occurs once.
FILES: dict[str, Path] = {module_of(path): path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))}


def room_of(module: str) -> str:
    """Room of a module: `timing` for llmviewer.timing.roofline; `llmviewer` for the package itself."""
    return module.split(".")[1] if "." in module else module


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def _named(node: ast.AST) -> Iterator[str]:
    """Dotted names that one node may mean: modules, or names within them."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value and node.value in FILES:
        yield node.value


def _prefixes(tree: ast.Module) -> list[str]:
    """Package prefixes of dynamic imports: `llmviewer.techniques` for import_module(f"llmviewer.techniques.{name}")."""
    calls = (
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func)
    )
    texts = (call.args[0].values[0] for call in calls if isinstance(call.args[0], ast.JoinedStr))
    return [text.value.removesuffix(".") for text in texts if isinstance(text, ast.Constant)]


@cache
def imports(module: str) -> frozenset[str]:
    """Modules that a file imports, anywhere in it, by a statement or through a registry of names."""
    tree = tree_of(module)
    words = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = [name for node in ast.walk(tree) for name in _named(node)]
    found = {name if name in FILES else name.rpartition(".")[0] for name in named}
    entries = {word.partition(":")[0] for word in words}  # `kv_cache.contents:DTYPE` names an entry within a module
    listed = [f"{prefix}.{entry}" for prefix in _prefixes(tree) for entry in entries if entry.strip(".")]
    found |= {name if name in FILES else name.rpartition(".")[0] for name in listed} - set(_prefixes(tree))
    return frozenset((found & FILES.keys()) - {module})


def circles() -> list[list[str]]:
    """Groups of files that import each other, by Tarjan's algorithm."""
    import networkx

    found = networkx.strongly_connected_components(networkx.DiGraph(_edges()))
    return [sorted(group) for group in found if len(group) > 1]


def _edges() -> Iterator[tuple[str, str]]:
    return ((module, other) for module in FILES if module != QUESTIONS for other in imports(module))


def longest_chain() -> list[str]:
    """The longest chain of files in which each imports the next."""
    import networkx

    return list(networkx.dag_longest_path(networkx.DiGraph(_edges())))
