"""An installed copy holds every file that the program reads."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
DATA: dict[str, list[str]] = SETUPTOOLS["package-data"]


@pytest.mark.parametrize("package", DATA)
def test_every_data_file_of_a_package_is_installed(package: str) -> None:
    files = [path.relative_to(ROOT / package).as_posix() for path in (ROOT / package).rglob("*.yaml")]
    assert files
    left = [
        name for name in files if not any(fnmatch(name, p) and name.count("/") == p.count("/") for p in DATA[package])
    ]
    assert not left, "named nowhere in [tool.setuptools.package-data]"
