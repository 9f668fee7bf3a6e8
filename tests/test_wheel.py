"""A wheel built from a clean tree works next to user folders with the names of ours."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from llmviewer.cli import COMMANDS
from llmviewer.core.version import __version__
from tests.imports import FILES, ROOT

pytestmark = pytest.mark.slow
#: A user module that must neither be imported as ours nor break ours.
HOSTILE = "raise ImportError('this is the user\\'s own module')\n"
MODEL = "llama-3.2-1b --hardware h100"
LINES = {
    "analyze": f"analyze {MODEL} --quantization awq --speculative eagle3,tokens=3,acceptance=0.7",
    "sweep": f"sweep {MODEL} --batch-size 1,8",
    "size": "size llama-3.1-8b --hardware h100 --request-rate 2 --requests 50 --ttft 1s",
    "why": f"why '{MODEL}' '{MODEL} --quantization fp8'",
    "advise": f"advise {MODEL}",
    "simulate": "simulate llama-3.1-8b --hardware h100 --request-rate 2 --requests 50",
    "compare": f"compare {MODEL},a100",
    "crossover": f"crossover {MODEL} --quantization none,w4a16 --batch-size 1,8 --context 64,512",
    "check": f"check {ROOT}/docs/contract.yaml",
    "diagnose": f"diagnose {ROOT}/docs/profile.json.gz llama-3.1-8b --hardware h100",
    "require": "require llama-3.1-8b --vary bandwidth --tpot 5ms",
    "explain": f"explain tpot_s {MODEL}",
    "elasticity": f"elasticity {MODEL} --format json",
    "fit": "fit --hardware a100-80gb-sxm --models llama-3.2-1b --context 1k",
    "train": f"train {MODEL} --lora rank=8",
    "plot": f"plot roofline {MODEL} -o picture.png",
    "survey": "survey -o survey",
    "report": f"report {MODEL} -o report.html",
    "page": f"page {MODEL} -o page.html",
    "trace": f"trace {MODEL} -o trace.json",
    "serve": "serve --help",  # the packages of these two come with extras
    "mcp": "mcp --help",
    "calibrate": "calibrate ledger --format json",
    "models": "models list",
    "hardware": "hardware list",
    "techniques": "techniques list",
}


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(words, cwd=folder, env=outside, capture_output=True, text=True, check=False)


def run_checked(*words: str, folder: Path) -> str:
    ran = run(*words, folder=folder)
    assert ran.returncode == 0, f"{shlex.join(words)}\n{ran.stderr[-2000:]}"
    return ran.stdout


def clean_tree(folder: Path) -> Path:
    """Copy of the files that git tracks or would track; symbolic links stay links."""
    listed = run_checked("git", "ls-files", "--cached", "--others", "--exclude-standard", folder=ROOT).splitlines()
    for name in filter(lambda name: (ROOT / name).exists(), listed):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        else:
            target.write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = clean_tree(tmp_path_factory.mktemp("tree"))
    made = tmp_path_factory.mktemp("wheel")
    run_checked(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(made), ".", folder=tree
    )
    (found,) = made.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment with the wheel, its dependencies, and the extra that `report` asks for."""
    home = tmp_path_factory.mktemp("environment")
    run_checked(sys.executable, "-m", "venv", ".", folder=home)
    run_checked("bin/python", "-m", "pip", "install", "--quiet", str(wheel), folder=home)
    refused = run("bin/llmviewer", *shlex.split(LINES["report"]), folder=home)
    assert refused.returncode == 2 and "pip install 'llmviewer[report]'" in refused.stderr
    run_checked("bin/python", "-m", "pip", "install", "--quiet", f"{wheel}[report]", folder=home)
    return home / "bin"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A working directory with user packages named like our folders."""
    for name in ("reports", "calibrate", "hardware_specs", "model_configs", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(HOSTILE, encoding="utf-8")
    return tmp_path


def test_all_code_is_under_one_import_name(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {"llmviewer"}
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names if name[-3:] == ".py"
    }
    assert set(FILES) <= modules
    assert "llmviewer/py.typed" in names


def test_every_command_has_an_example_line() -> None:
    assert set(LINES) == set(COMMANDS)


@pytest.mark.parametrize("command", LINES)
def test_a_command_of_the_wheel_runs_next_to_conflicting_folders(command: str, installed: Path, hostile: Path) -> None:
    run_checked(str(installed / "llmviewer"), *shlex.split(LINES[command]), folder=hostile)
    run_checked(str(installed / "python"), "-m", "llmviewer", *shlex.split(LINES[command]), folder=hostile)


def test_a_notebook_result_is_drawn_next_to_conflicting_folders(installed: Path, hostile: Path) -> None:
    code = (
        "import llmviewer as lv; r = lv.analyze('llama-2-7b', 'a6000');"
        "print(lv.__version__, len(r._repr_html_()) > 1000)"
    )
    assert run_checked(str(installed / "python"), "-c", code, folder=hostile) == f"{__version__} True\n"
