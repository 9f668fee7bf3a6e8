"""The documentation: its examples run, and it names every command, model, chip and technique."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmviewer import analyze, models
from llmviewer.cli import COMMANDS, main
from llmviewer.hardware import specs
from llmviewer.techniques.quantization.presets import PRESETS
from tests.certificate.our_counts import published_config
from tests.imports import FILES, room_of

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
START = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
EXAMPLES = (ROOT / "docs" / "guide" / "examples.md").read_text(encoding="utf-8")


def blocks(language: str, *pages: str) -> list[str]:
    """Fenced blocks of the README, the start of the docs and the examples, or of the given pages."""
    text = "\n".join(pages or (README, START, EXAMPLES))
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [text for kind, text in fenced if kind == language]


def command_lines() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    # test_survey.py runs the survey and reads what it writes; servers run until they are stopped, in their own tests
    elsewhere = ("llmviewer survey", "llmviewer serve", "llmviewer mcp")
    return [line for line in lines if line.startswith("llmviewer ") and not line.startswith(elsewhere)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that commands of the docs read: a config.json, a contract and a profile."""
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "config.json").write_text(json.dumps(published_config("mistral-7b")), encoding="utf-8")
    (tmp_path / "docs").mkdir()
    for name in ("contract.yaml", "profile.json.gz"):
        for target in (tmp_path, tmp_path / "docs"):
            (target / name).write_bytes((ROOT / "docs" / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", dict.fromkeys(command_lines()))
def test_a_command_of_the_docs_runs(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line)[1:]
    assert main(words) == 0
    written = words[words.index("-o") + 1] if "-o" in words else ""
    assert (folder / written).stat().st_size > 0 if written else capsys.readouterr().out


@pytest.mark.parametrize("code", blocks("python"))
def test_python_of_the_docs_runs(
    code: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()
    assert "savefig" not in code or [*tmp_path.iterdir()]


#: Page -> columns of the terminal that its outputs are of; 100 if it is not here.
COLUMNS_OF_PAGES = {"README.md": 120, "docs/guide/explain.md": 120}


def shown_outputs() -> Iterator[tuple[int, str, list[str]]]:
    """Width, command and lines of its output in every block that begins with a command of ours."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        width = COLUMNS_OF_PAGES.get(path.relative_to(ROOT).as_posix(), 100)
        for first, *lines in (block.splitlines() for block in blocks("", path.read_text(encoding="utf-8"))):
            # test_contract.py checks the contract of the block itself
            if first.startswith("$ llmviewer ") and first != "$ llmviewer check contract.yaml":
                yield width, first.removeprefix("$ llmviewer "), lines


@pytest.mark.parametrize(("width", "command", "lines"), [*shown_outputs()], ids=lambda value: str(value)[:30])
def test_outputs_of_the_docs_match_the_command(
    width: int, command: str, lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines occur in the real output in order; `...` and bars at the end of a line are ignored."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert lines and main(shlex.split(command)) == 0
    printed = iter(capsys.readouterr().out.splitlines())
    for line in lines:
        assert line.strip() == "..." or any(real.startswith(line) for real in printed), line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_examples(name: str) -> None:
    assert any(line.startswith(f"llmviewer {name} ") for line in EXAMPLES.splitlines())


@pytest.mark.parametrize("name", models.names())
def test_every_model_is_in_the_docs(name: str) -> None:
    assert f"| {name} |" in (ROOT / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
    assert f"| {name} |" in (ROOT / "docs" / "evidence" / "certificate.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", specs.names())
def test_every_chip_is_in_the_docs(name: str) -> None:
    assert f"| {name} |" in (ROOT / "docs" / "reference" / "hardware.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PRESETS)
def test_every_quantization_name_is_in_the_docs(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "reference" / "quantization.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("batch_size", "options"),
    [
        (1, {"speculative": "draft=tinyllama-1.1b,tokens=4,acceptance=0.8"}),
        (1, {"branches": "apar,branches=3"}),
        (8, {"batching": "static,longest=512"}),
        (8, {"batching": "continuous"}),
        (8, {"batching": "chunked"}),
        (8, {"batching": "disaggregated"}),
        (1, {"offload": "weights=0.5"}),
    ],
)
def test_every_field_of_rounds_batching_and_the_host_is_documented(batch_size: int, options: dict[str, str]) -> None:
    page = (ROOT / "docs" / "reference" / "conventions.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_]+)`", page.partition("## Fields of an answer")[2]))
    answer = analyze("llama-2-7b", "a100", batch_size=batch_size, efficiency="ideal", **options).to_dict()
    generation = {**(answer["generation"] or {"drafts": ()})}
    drafts = {name for draft in generation["drafts"] for name in draft}
    methods = {"branches", "parallel", "outline_tokens", "branch_prompt_tokens", "shared"}  # facts of one method
    found = {*generation, *drafts, *answer["serving"], *(name for name in answer["memory"] if "host" in name)}
    assert found - methods <= documented


@pytest.mark.parametrize("room", sorted({room_of(module) for module in FILES} - {"llmviewer", "__main__", "api"}))
def test_the_architecture_names_every_room(room: str) -> None:
    page = (ROOT / "docs" / "reference" / "architecture.md").read_text(encoding="utf-8")
    assert f"`llmviewer/{room}/`" in page or f"`{room}/`" in page or f"`llmviewer/{room}.py`" in page
