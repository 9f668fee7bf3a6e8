"""An installed package has every file that the program reads, and its licence."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from llmviewer import __version__

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DATA: dict[str, list[str]] = PYPROJECT["tool"]["setuptools"]["package-data"]
#: Folders of the package that are symbolic links, which `rglob` does not follow.
LINKED = ("calibrate", "hardware_specs", "model_configs", "reports")


def data_files() -> Iterator[str]:
    """Paths below llmviewer/ of all files that are not code."""
    for folder in (ROOT / "llmviewer", *((ROOT / name) for name in LINKED)):
        inside = ROOT / "llmviewer" if folder.name == "llmviewer" else ROOT
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                yield path.relative_to(inside).as_posix()


def installed_by(package: str, path: str) -> bool:
    """True if a pattern of the package matches a path below llmviewer/, folder by folder."""
    before = package.replace(".", "/").removeprefix("llmviewer").lstrip("/")
    rest = path.removeprefix(f"{before}/")
    inside = not before or rest != path
    return inside and any(fnmatch(rest, p) and rest.count("/") == p.count("/") for p in DATA[package])


def test_every_data_file_is_installed() -> None:
    files = list(data_files())
    assert len(files) > 200
    missing = [path for path in files if not any(installed_by(package, path) for package in DATA)]
    assert not missing, "matched by nothing in [tool.setuptools.package-data]"


@pytest.mark.parametrize("package", DATA)
def test_every_package_with_data_exists_and_its_patterns_match(package: str) -> None:
    folder = ROOT / package.replace(".", "/")
    assert (folder / "__init__.py").is_file()
    assert all(any(folder.glob(pattern)) for pattern in DATA[package])


def test_links_of_the_package_point_to_folders_of_the_checkout() -> None:
    for name in LINKED:
        assert (ROOT / "llmviewer" / name).resolve() == ROOT / name


def test_licence_and_citation_agree_with_the_metadata() -> None:
    project = PYPROJECT["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["license"] == citation["license"] == "MIT"
    assert (ROOT / project["license-files"][0]).read_text(encoding="utf-8").startswith("MIT License")
    assert citation["version"] == __version__
    assert citation["authors"] == [{"name": "llmviewer contributors"}]
    assert "2402.16363" in citation["references"][0]["url"]
