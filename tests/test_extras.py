"""Extras: a command that misses a package names its extra, for the index and for a checkout."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.cli import main, rows
from llmviewer.core.errors import missing_extra
from tests.imports import FILES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LINE = "sweep llama-3.2-1b --hardware h100 --batch-size 1,8"
SPECIAL = "--speculative none;draft=tinyllama-1.1b,tokens=2,acceptance=0.5"


def distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[><=;\[]", one)[0].strip().lower().replace("_", "-") for one in requirements}


def third_party() -> Iterator[tuple[str, str]]:
    """Module of ours and module of others that it imports, wherever the import stands."""
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in {name.split(".")[0] for name in names}:
                if name not in sys.stdlib_module_names and name != "llmviewer":
                    yield module, name


def test_every_package_that_we_import_is_declared() -> None:
    known = packages_distributions()
    stated = set().union(*map(distributions, [PROJECT["dependencies"], *EXTRAS.values()]))
    brought = {"anyio", "markupsafe", "shellingham", "werkzeug"}  # by mcp, jinja2, typer and flask
    found = {name: known.get(name, [name])[0].lower().replace("_", "-") for _, name in third_party()}
    assert {name for name, wanted in found.items() if wanted not in stated} <= brought
    assert "networkx" not in found


def test_the_message_names_the_extra_for_the_index_and_for_a_checkout() -> None:
    text = str(missing_extra("this needs that", "web"))
    assert "pip install 'llmviewer[web]'" in text and "pip install -e '.[web]'" in text


def test_every_extra_that_a_message_names_exists() -> None:
    calls = [re.findall(r"missing_extra\(.*, \"(\w+)\"\)", Path(path).read_text("utf-8")) for path in FILES.values()]
    named = {extra for found in calls for extra in found}
    assert named <= set(EXTRAS) and {"web", "mcp", "scale", "trace", "offload", "calibrate"} <= named
    assert distributions(EXTRAS["all"]) == {"llmviewer"}
    assert set(re.findall(r"\w+", EXTRAS["all"][0])) - {"llmviewer"} == set(EXTRAS) - {"all", "dev"}


def test_the_documentation_lists_every_extra() -> None:
    text = (ROOT / "docs" / "guide" / "examples.md").read_text(encoding="utf-8").partition("## Extras\n")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)) == set(EXTRAS) - {"all", "dev"}


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


def test_a_sweep_without_arrow_is_the_same_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With texts that need quotes, and without."""
    for words in ([], SPECIAL.split()):
        said = []
        for hidden in (False, True):
            with monkeypatch.context() as patch:
                if hidden:
                    hide(patch, "pyarrow")
                assert main([*LINE.split(), *words, "--format", "csv"]) == 0
            said.append(capsys.readouterr().out)
        assert said[0] == said[1] and said[0].count("\n") == (5 if words else 3)


@given(values=st.lists(st.floats() | st.floats(1e-8, 1e12) | st.integers(-(10**12), 10**12).map(float), min_size=1))
def test_numbers_without_arrow_have_its_text(values: list[float]) -> None:
    pytest.importorskip("pyarrow")
    columns: dict[str, Any] = {"a": np.array(values), "b": np.arange(len(values))}
    assert rows._plain_lines(columns, quotes=False) == rows._arrow_lines(columns, quotes=False)


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("pyarrow", [*LINE.split(), "-o", "points.parquet"], "parquet"),
        ("pyarrow", ["calibrate", "validate", "measured.parquet"], "parquet"),
        ("plotly", "report llama-3.2-1b --hardware h100 -o report.html".split(), "report"),
    ],
)
def test_a_command_that_misses_a_package_names_its_extra(
    package: str,
    words: list[str],
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("measured.parquet").write_bytes(b"PAR1")
    hide(monkeypatch, package)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"pip install 'llmviewer[{extra}]', in a checkout pip install -e '.[{extra}]'" in error
    assert error.count("\n") == 1 and [path.name for path in tmp_path.iterdir()] == ["measured.parquet"]


def test_a_report_without_plotly_is_still_written_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    hide(monkeypatch, "plotly")
    for name in ("report.md", "report.xlsx"):
        assert main(f"report llama-3.2-1b --hardware h100 -o {name}".split()) == 0
        assert Path(name).stat().st_size > 0
