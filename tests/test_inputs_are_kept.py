"""Nothing that a command has read is written over, by whatever name the output reaches it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llmviewer.cli import main
from llmviewer.core import data, files

from .answers import refusal

pd = pytest.importorskip("pandas")

REFUSED = "refusing to overwrite the input file"
GEMM = "device,dtype,m,n,k,latency_us\n" + "h100_sxm,bfloat16,64,4096,4096,12\n" * 9


def copied(folder: str, name: str, target: str) -> None:
    Path(target).write_bytes((data.folder(folder) / f"{name}.yaml").read_bytes())


def config(name: str, target: str) -> None:
    Path(target).write_text(json.dumps(data.read_yaml(data.folder("model_configs") / f"{name}.yaml")["config"]))


@pytest.fixture(autouse=True)
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with an input of every kind."""
    monkeypatch.chdir(tmp_path)
    config("llama-3.2-1b", "model.json")
    config("llama-3.2-1b", "draft.json")
    copied("hardware_specs", "h100-sxm", "chip.yaml")
    copied("hardware_specs/networks", "ethernet-100g", "net.yaml")
    copied("hardware_specs/hosts", "epyc-9654-ddr5", "host.yaml")
    copied("calibrate/profiles", "h100-sxm", "profile.yaml")
    Path("gemm.csv").write_text(GEMM)


ANALYZE = "analyze llama-3.1-8b --hardware h100-sxm"


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("analyze model.json --hardware chip.yaml", "model.json"),
        ("analyze model.json --hardware chip.yaml", "chip.yaml"),
        ("sweep model.json --hardware chip.yaml --format csv", "chip.yaml"),
        ("trace model.json --hardware chip.yaml", "model.json"),
        (f"{ANALYZE} --profile profile.yaml", "profile.yaml"),
        (f"{ANALYZE} --network net.yaml -tp 16", "net.yaml"),
        (f"{ANALYZE} --offload weights=0.5,host=host.yaml", "host.yaml"),
        (f"{ANALYZE} --speculative draft=draft.json,tokens=3,acceptance=0.8", "draft.json"),
        ("report llama-3.1-8b --hardware h100-sxm --profile profile.yaml --format json", "profile.yaml"),
        ("models show model.json", "model.json"),
        ("hardware show chip.yaml", "chip.yaml"),
        ("calibrate validate gemm.csv", "gemm.csv"),
        ("calibrate validate gemm.csv --profile profile.yaml", "profile.yaml"),
        ("calibrate fit gemm.csv --hardware chip.yaml", "gemm.csv"),
        ("calibrate fit gemm.csv --hardware chip.yaml", "chip.yaml"),
    ],
)
@pytest.mark.parametrize("by", [str, os.path.abspath, "link"])
def test_no_command_writes_over_what_it_reads(
    line: str, file: str, by: Callable[[str], str] | str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(file).read_bytes()
    output = by(file) if callable(by) else by
    if output == "link":
        Path(output).symlink_to(file)
    assert REFUSED in refusal([*line.split(), "-o", output], capsys)
    assert Path(file).read_bytes() == before
    assert not [name for name in os.listdir() if name.startswith(".")]  # noqa: PTH208


def test_a_shipped_spec_that_was_read_by_its_name_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "folder", lambda name: tmp_path / name)
    shipped = tmp_path / "hardware_specs"
    shipped.mkdir()
    (shipped / data.ALIASES).write_text("mine: [other]\n")
    (shipped / "mine.yaml").write_bytes(Path("chip.yaml").read_bytes())
    assert REFUSED in refusal(["hardware", "show", "other", "-o", str(shipped / "mine.yaml")], capsys)


def test_another_file_is_written_and_a_later_command_may_replace_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", "model.json", "--hardware", "chip.yaml", "--format", "json", "-o", "answer.json"]
    assert [main(words), main(words)] == [0, 0]
    assert (
        main(["hardware", "show", "h100-sxm", "-o", "chip.yaml"]) == 0
    )  # read by the commands before, not by this one
    assert capsys.readouterr().err == "wrote answer.json\nwrote answer.json\nwrote chip.yaml\n"


def test_only_files_read_by_the_running_command_count() -> None:
    assert data.read_yaml(Path("chip.yaml"))
    assert not files.is_input(Path("chip.yaml"))
    with files.remembering_inputs():
        assert not files.is_input(Path("chip.yaml"))
        assert data.read_yaml(Path("chip.yaml"))
        os.link("chip.yaml", "same.yaml")
        assert files.is_input(Path("chip.yaml")) and files.is_input(Path("same.yaml"))
        assert not files.is_input(Path("model.json"))
        files.forget_input(Path("same.yaml"))
        assert not files.is_input(Path("chip.yaml"))
    assert not files.is_input(Path("chip.yaml"))
