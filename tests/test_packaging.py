"""An installed package has every file that the program reads, and its licence."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from llmviewer import __version__
from llmviewer.core import data

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


@pytest.mark.parametrize("name", [*LINKED, "calibrate/ledger", "calibrate/ledger_record.yaml", "planning"])
def test_data_are_read_inside_the_package(name: str) -> None:
    """Installed, nothing stands beside it; a visitor of a server may not read there."""
    assert data.folder(name).exists() and data.folder(name).is_relative_to(data.ROOT)


def without_links(folder: Path) -> Path:
    """A checkout as `git -c core.symlinks=false clone` makes it: a text file with its target in place of each link."""
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "llmviewer", folder / "llmviewer", ignore=unwanted, symlinks=True)
    for name in LINKED:
        (folder / "llmviewer" / name).unlink()
        (folder / "llmviewer" / name).write_text(f"../{name}", encoding="utf-8")
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def test_a_clone_without_symbolic_links_answers_and_installs_the_same_packages(tmp_path: Path) -> None:
    def said(folder: Path, *words: str) -> str:
        outside = {**os.environ, "PYTHONPATH": str(folder)}
        return subprocess.run(
            [sys.executable, *words], cwd=folder, env=outside, capture_output=True, text=True, check=True
        ).stdout

    clone = without_links(tmp_path)
    script = (
        "import json, sys, types, setuptools; setuptools.setup = lambda **found: print(json.dumps(found)); "
        "exec(open('setup.py').read())"
    )
    ours, theirs = (json.loads(said(folder, "-c", script)) for folder in (ROOT, clone))
    assert theirs["packages"] == ours["packages"] and len(theirs["packages"]) > 40
    assert (ours["package_dir"], theirs["package_dir"]) == ({}, {f"llmviewer.{name}": name for name in LINKED})
    words = ("-m", "llmviewer", "analyze", "llama-3.1-8b", "--hardware", "h100", "--engine", "vllm", "--format", "json")
    assert said(clone, *words) == said(ROOT, *words)
    reads = (
        "from llmviewer.core import data, files\n"
        "with files.only_package_data(): print(data.find('hardware_specs', 'a6000', 'chip')[0], "
        "len(data.read_yaml(data.folder('model_configs') / 'llama-2-7b.yaml')))"
    )
    assert said(clone, "-c", reads).startswith(str(clone / "hardware_specs" / "a6000.yaml"))


def test_licence_and_citation_agree_with_the_metadata() -> None:
    project = PYPROJECT["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["license"] == citation["license"] == "MIT"
    assert (ROOT / project["license-files"][0]).read_text(encoding="utf-8").startswith("MIT License")
    assert citation["version"] == __version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", changes, flags=re.MULTILINE)[0] == f"{__version__}, {citation['date-released']}"
    assert citation["authors"] == [{"name": "llmviewer contributors"}]
    assert "2402.16363" in citation["references"][0]["url"]


def test_ci_runs_our_script_with_every_python_that_is_supported() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    stated = [name.rpartition(" ")[2] for name in PYPROJECT["project"]["classifiers"]]
    assert job["strategy"]["matrix"]["python"] == stated
    assert PYPROJECT["project"]["requires-python"] == f">={stated[0]}"
    assert ".ci/run" in [step.get("run") for step in job["steps"]] and os.access(ROOT / ".ci" / "run", os.X_OK)
