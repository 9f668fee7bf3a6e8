"""`llmviewer models fetch`: a model's config.json from a Hub, here one on this machine, and every reason to refuse."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from llmviewer import models
from llmviewer.cli import main
from llmviewer.core import data
from llmviewer.core.workload import decode

pytest.importorskip("huggingface_hub")

REVISION = "0123456789abcdef0123456789abcdef01234567"
#: Error that the Hub states in a header -> status.
ERRORS = {
    "gated": ("GatedRepo", 403),
    "missing": ("RepoNotFound", 404),
    "bare": ("EntryNotFound", 404),
    "down": ("", 503),
}
CONFIG = json.dumps(data.read_yaml(data.folder("model_configs") / "qwen3-8b.yaml")["config"]).encode()
#: Models with a file of formats beside their config.json.
QUANTIZED = {"eight-bit-8b"}
FORMATS = json.dumps({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}).encode()


class Hub(BaseHTTPRequestHandler):
    """The part of the Hub that serves /ORGANISATION/NAME/resolve/main/config.json, and ModelOpt's file beside it."""

    #: Names of the models asked for.
    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        name, file = self.path.split("/")[2], self.path.rpartition("/")[2]
        if file == "hf_quant_config.json" and name not in QUANTIZED:
            name = "bare"
        self.asked.append(name)
        code, status = ERRORS.get(name, ("", 200))
        content = b"" if status != 200 else CONFIG if file == "config.json" else FORMATS
        self.send_response(status)
        self.send_header("X-Error-Code", code) if code else self.send_header("ETag", f'"{file}"')
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing for each request."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a Hub on this machine."""
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    own = f"http://127.0.0.1:{server.server_port}"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, own)
    monkeypatch.setattr(constants, "ENDPOINT", own)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    Hub.asked.clear()
    yield tmp_path
    server.shutdown()
    server.server_close()


def test_a_fetched_model_is_found_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "fetch", "my-lab/tuned-8b"]) == 0
    found = capsys.readouterr()
    assert Path(found.out.strip()).read_bytes() == CONFIG
    assert found.err == "llmviewer analyze my-lab/tuned-8b --hardware NAME\n"
    loaded = models.load("my-lab/tuned-8b")
    assert loaded.parameters == models.load("qwen3-8b").parameters
    assert loaded.notes == (f"my-lab/tuned-8b is read from the Hugging Face cache, revision {REVISION[:8]}",)


def test_a_config_is_fetched_to_a_folder(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cache / "new" / "tuned"
    assert main(["models", "fetch", "my-lab/tuned-8b", "-o", str(folder)]) == 0
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert models.load(str(folder)).parameters == models.load("qwen3-8b").parameters
    capsys.readouterr()
    assert main(["models", "fetch", "my-lab/tuned-8b", "-o", str(folder)]) == 2
    assert "it contains other files (config.json)" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["cache", "folder"])
def test_the_formats_beside_a_config_are_fetched_too(where: str, cache: Path) -> None:
    """Qwen3-8B in 8 bits: 36 x (2 x 4096 x 4096 + 2 x 4096 x 1024 + 3 x 4096 x 12288) weights in one byte."""
    name, folder = "my-lab/eight-bit-8b", str(cache / "new")
    assert main(["models", "fetch", name, *(["-o", folder] if where == "folder" else [])]) == 0
    loaded = models.load(folder if where == "folder" else name)
    stored = sum(t.elements * t.dtype.bytes * n for t, n in loaded.graph(decode(1.0, 0.0)).stored_weights())
    assert 2 * loaded.parameters - stored == 36 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-lab/gated", "model 'my-lab/gated' is gated: accept its terms"),
        ("my-lab/missing", "model 'my-lab/missing' is not on the Hub, or private"),
        ("my-lab/bare", "model 'my-lab/bare' has no config.json on the Hub"),
        ("tuned", "'tuned' is not a Hub id; expected ORGANISATION/NAME"),
        ("../../etc/passwd", "is not a Hub id"),
    ],
)
def test_every_refusal_is_one_line_and_leaves_nothing(
    name: str, message: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "fetch", name, "-o", str(cache / "new")]) == 2
    found = capsys.readouterr()
    assert message in found.err and found.err.count("\n") == 1 and found.out == ""
    assert not (cache / "new").exists()


def test_a_hub_that_does_not_answer_is_asked_once(capsys: pytest.CaptureFixture[str]) -> None:
    """By itself the library repeats such a request for half a minute."""
    assert main(["models", "fetch", "my-lab/down"]) == 2
    assert Hub.asked == ["down"]
    error = capsys.readouterr().err
    assert "model 'my-lab/down' is not in the local cache, and the Hub cannot be reached: " in error
    assert "503" in error and error.count("\n") == 1


def test_without_network_a_cached_model_is_found_and_another_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    assert main(["models", "fetch", "my-lab/tuned-8b"]) == 0
    cached = capsys.readouterr().out
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["models", "fetch", "my-lab/tuned-8b"]) == 0
    assert capsys.readouterr().out == cached
    assert main(["models", "fetch", "my-lab/other-8b"]) == 2
    error = capsys.readouterr().err
    assert "the Hub cannot be reached: " in error and "HF_HUB_OFFLINE" in error and error.count("\n") == 1


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    assert main(["models", "fetch", "my-lab/tuned-8b"]) == 2
    assert "pip install huggingface_hub" in capsys.readouterr().err


def test_the_error_of_an_unknown_id_names_fetch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "my-lab/unknown-9b", "--hardware", "a6000"]) == 2
    assert "`llmviewer models fetch ID`" in capsys.readouterr().err
