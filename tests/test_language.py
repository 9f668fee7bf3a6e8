"""Checks of language: docstrings start with a plain English sentence or noun phrase; the glossary is consistent."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.imports import ROOT

FOLDERS = ("llmviewer", "reports", "calibrate", "tests", "docs", "benchmarks", "hardware_specs", "model_configs")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
#: First words of fragments and riddles.
FORBIDDEN = re.compile(r"(Of|What|Whatever|Those|That|Where|How often|The same)\b")
MIN_WORDS = 3

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def first_lines(path: Path) -> Iterator[str]:
    """The first line of every docstring in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        text = ast.get_docstring(node) if isinstance(node, Documented) else None
        if text:
            yield text.splitlines()[0]


def test_docstrings_begin_with_a_plain_sentence() -> None:
    lines = [(str(path.relative_to(ROOT)), line) for path in FILES for line in first_lines(path)]
    assert [at for at in lines if FORBIDDEN.match(at[1]) or len(re.findall(r"\w+", at[1])) < MIN_WORDS] == []


def test_the_glossary_lists_every_noun_once() -> None:
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    nouns = re.findall(r"^\| ([^|]+) \|", page, flags=re.MULTILINE)
    nouns = [noun.strip() for noun in nouns if noun.strip() not in ("noun", "---")]
    assert len(nouns) > 50
    assert sorted(set(nouns)) == sorted(nouns)


def test_places_of_the_glossary_exist() -> None:
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    for place in re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", page):
        assert (ROOT / place).exists() or (ROOT / "llmviewer" / place).exists(), place
