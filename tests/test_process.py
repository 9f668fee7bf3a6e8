"""The command line as a process: signals, closed pipes and full disks leave one line and no half-written file."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and pipes of POSIX")

ROOT = Path(__file__).resolve().parent.parent
FULL = Path("/dev/full")
#: A command that runs for minutes; its file appears as a temporary one at once.
LONG = "sweep llama-2-7b --hardware a6000 --batch-size 1:250000 --output-len 512 --format csv".split()
#: Sends the process a signal when it imports a module.
AT_IMPORT = """
import os, signal, sys
from llmviewer import cli
class Finder:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
cli.run(["analyze", "llama-2-7b", "--hardware", "a6000"])
"""


def start(
    words: list[str], folder: Path, prepare: Callable[[], object] | None = None, **given: object
) -> subprocess.Popen[str]:
    """A process of the command line, in a folder, with the signals of a terminal."""

    def in_child() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest may run with them ignored, as under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if prepare is not None:
            prepare()

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **given}
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        preexec_fn=in_child,  # noqa: PLW1509
        **given,
    )


def command(*words: str) -> list[str]:
    return ["-m", "llmviewer", *words]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_removes_temporary_files(sent: signal.Signals, tmp_path: Path) -> None:
    """128 + number is the status that a shell reports for a signal."""
    process = start(command(*LONG, "-o", "big.csv"), tmp_path)
    until = time.monotonic() + 300
    while not os.listdir(tmp_path) and time.monotonic() < until:  # noqa: PTH208
        time.sleep(0.02)
    assert [name[:9] for name in os.listdir(tmp_path)] == [".big.csv."]  # noqa: PTH208
    process.send_signal(sent)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + sent
    assert "Traceback" not in err
    assert not os.listdir(tmp_path)  # noqa: PTH208


def test_a_signal_that_was_ignored_stays_ignored(tmp_path: Path) -> None:
    """nohup starts a command with SIGHUP ignored."""
    code = (
        "import signal; from llmviewer.cli import process; process.set_up(); "
        "print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    )
    process = start(["-c", code], tmp_path, lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert process.communicate(timeout=300)[0].strip() == "True"


@pytest.mark.parametrize("module", ["llmviewer.core.errors", "typer", "numpy"])
def test_ctrl_c_while_modules_load_is_one_line(module: str, tmp_path: Path) -> None:
    process = start(["-c", AT_IMPORT, module], tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_the_package_starts_without_typing() -> None:
    """Its import takes as long as the package's, and Ctrl-C during it cannot be handled yet."""
    code = "import sys; known = set(sys.modules); import llmviewer; print(*(set(sys.modules) - known))"
    found = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "typing" not in found.stdout.split()


@pytest.mark.parametrize(
    "words", [LONG, ["sweep", "--help"], ["--help"], ["models", "list", "--format", "json"]], ids=lambda words: words[0]
)
def test_a_reader_that_exits_is_no_error(words: list[str], tmp_path: Path) -> None:
    """`sweep ... | head -1`: status 1 would mean that the model does not fit."""
    process = start(command(*words), tmp_path)
    assert process.stdout is not None
    process.stdout.close() if words[-1] == "--help" else (process.stdout.readline(), process.stdout.close())
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait(timeout=300)) == ("", 0)


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", ["--help", "--version", "models list"])
def test_a_full_disk_behind_stdout_is_one_line(words: str, tmp_path: Path) -> None:
    with FULL.open("w") as full:
        process = start(command(*words.split()), tmp_path, stdout=full)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 2
    assert err.startswith("error: cannot write ") and err.endswith("No space left on device\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize("most_bytes", [1024, 20 * 1024])
def test_a_full_disk_under_an_excel_file_is_one_line(most_bytes: int, tmp_path: Path) -> None:
    """A limit on file sizes acts like a full disk: on the workbook, or on the temporary files of its sheets."""
    pytest.importorskip("openpyxl")
    words = command(*"report llama-2-7b --hardware a6000 --batch-size 1 -o report.xlsx".split())
    process = start(words, tmp_path, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)))
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (2, "error: -o: cannot write 'report.xlsx': File too large\n")
    assert not os.listdir(tmp_path)  # noqa: PTH208


@pytest.mark.parametrize("backend", ["module://none.such", "nonsense"])
def test_the_backend_of_a_notebook_does_not_matter_to_plots(backend: str, tmp_path: Path) -> None:
    words = command(*"plot roofline llama-2-7b --hardware a6000 -o plot.png".split())
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": backend}
    found = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"wrote plot.png\n")


def test_settings_and_fonts_of_matplotlib_are_not_reported(tmp_path: Path) -> None:
    """An unknown setting, a folder for caches that cannot be made, a name in letters that the font lacks."""
    (tmp_path / "matplotlibrc").write_text("no.such: 3\n")
    (tmp_path / "模型").mkdir()
    (tmp_path / "模型" / "config.json").write_text(_llama())
    words = command(*"plot roofline 模型 --hardware a6000 -o plot.png".split())
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLCONFIGDIR": "/proc/none"}
    found = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"wrote plot.png\n")


def _llama() -> str:
    import json

    from llmviewer.core import data

    return json.dumps(data.read_yaml(data.folder("model_configs") / "llama-2-7b.yaml")["config"])


def test_an_error_leaves_no_progress_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A bar that began before the error is removed, so that the error is the only line."""
    from llmviewer.cli.progress import progress

    monkeypatch.setattr("time.monotonic", iter([0.0, *[2.0] * 1000]).__next__)
    with pytest.raises(ValueError, match="wrong"), progress(3) as advance:
        advance(1)
        raise ValueError("wrong")
    assert "━" not in capsys.readouterr().err
