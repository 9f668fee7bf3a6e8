"""Tab completion: the replies to the shells' scripts, and installation of the scripts."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from llmviewer.cli import COMMANDS, main
from llmviewer.techniques.registry import TECHNIQUES


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llmviewer", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def bash(*words: str) -> list[str]:
    """Completions of the last word, requested like bash does: all words in one variable; one reply per line."""
    line = {"COMP_WORDS": "\n".join(("llmviewer", *words)), "COMP_CWORD": str(len(words))}
    replies, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(replies), redirect_stderr(errors):
        for name, value in {"_LLMVIEWER_COMPLETE": "complete_bash", **line}.items():
            patch.setenv(name, value)
        assert main([]) == 0
    assert errors.getvalue() == ""
    return replies.getvalue().split()


def test_bash_completes_every_command() -> None:
    assert bash("") == list(COMMANDS)
    assert bash("comp") == ["compare"]


def test_bash_completes_options_models_and_chips_of_analyze() -> None:
    offered = bash("analyze", "--")
    assert {"--hardware", "--batch-size", "--tensor-parallel-size", "--batch", "--tp", "--block-size"} <= set(offered)
    assert {"--" + name.replace("_", "-") for name in TECHNIQUES} <= set(offered)
    assert "llama-3.1-8b" in bash("analyze", "llama-3.1")
    assert bash("analyze", "llama-3.1-8b", "--hardware", "h200")[0] == "h200"
    assert bash("analyze", "llama-3.1-8b", "--speculative", "eagle") == ["eagle", "eagle3"]


@pytest.mark.parametrize("command", COMMANDS)
def test_bash_completes_options_or_subcommands_of(command: str) -> None:
    first = bash(command, "")
    options = bash(command, *first[:1], "--") if {"list", "run"} & set(first) else bash(command, "--")
    assert "--help" in options and len(options) > 1


def test_the_last_name_of_a_comma_list_is_completed() -> None:
    assert bash("compare", "llama-3.1-8b", "--hardware", "a100,l40")[:2] == ["a100,l40", "a100,l40s"]


@pytest.mark.parametrize(("shell", "sign"), [("zsh", '"llama-2-7b"'), ("fish", "llama-2-7b")])
def test_other_shells_get_the_same_names_in_their_own_format(shell: str, sign: str) -> None:
    line = {"_TYPER_COMPLETE_ARGS": "llmviewer analyze llama-2", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = run(_LLMVIEWER_COMPLETE=f"complete_{shell}", **line)
    assert done.returncode == 0 and sign in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_shown_and_installed(shell: str, tmp_path: Path) -> None:
    script = run("--show-completion", shell).stdout
    assert f"_LLMVIEWER_COMPLETE=complete_{shell}" in script
    done = run("--install-completion", shell, HOME=str(tmp_path))
    assert done.returncode == 0 and str(tmp_path) in done.stdout
    installed = Path(done.stdout.split(" installed in ")[1].split(";")[0])
    assert installed.read_text(encoding="utf-8").strip() == script.strip()


def test_an_unknown_shell_is_a_one_line_error_with_status_2() -> None:
    done = run("--install-completion", "tcsh")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: unknown shell 'tcsh'; allowed: bash, fish, zsh")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_the_script_completes_in_a_real_bash(tmp_path: Path) -> None:
    """COMPREPLY of the function that the script registers, for `llmviewer analyze llama-3.2-`."""
    program = tmp_path / "llmviewer"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llmviewer "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = (
        'eval "$(llmviewer --show-completion bash)"\n'
        "COMP_WORDS=(llmviewer analyze llama-3.2-) COMP_CWORD=2\n"
        '_llmviewer_completion llmviewer\necho "${COMPREPLY[@]}"\n'
    )
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, **path}, check=True
    )
    assert {"llama-3.2-1b", "llama-3.2-3b"} <= set(done.stdout.split())


def test_an_ordinary_command_imports_nothing_for_completion() -> None:
    code = (
        "import sys; from llmviewer.cli import main; main(['models', 'list']); "
        "print({'llmviewer.cli.completion', 'llmviewer.reports.plots'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
