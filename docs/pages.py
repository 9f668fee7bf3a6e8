"""Replacement of generated tables in a page that is written by hand otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def rewrite(page: Path, tables: Mapping[str, str]) -> None:
    """Replace each table of a page, which stands behind a comment with its name."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = re.sub(rf"(<!-- {name} -->\n\n)(?:\|.*\n)*", lambda found, new=table: found[1] + new, text)
    page.write_text(text, encoding="utf-8")
