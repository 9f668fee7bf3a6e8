"""Diagnosis of samples of `calibrate run`: rows of a model's shapes, and kernels that are slower than predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmviewer as lv
from llmviewer.calibrate.diagnosis.samples import is_own
from llmviewer.calibrate.predict import PredictionOptions, predict
from llmviewer.cli import main
from llmviewer.core.errors import UserError

MODEL, CHIP = "llama-3.1-8b", "h100-sxm"
PLACE = {"device": CHIP, "source": "llmviewer", "engine": "torch 2.9"}
#: Products of a Llama of 8B: q_proj and o_proj have one shape, k_proj and v_proj, gate_proj and up_proj too.
PRODUCTS = {"q_proj, o_proj": (4096, 4096), "down_proj": (4096, 14336), "gate_proj, up_proj": (14336, 4096)}
HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128, "window": 0}


def _rows() -> dict[str, pd.DataFrame]:
    """Samples of products, another model's product, attention, and norms, each as long as predicted."""
    product = {**PLACE, "dtype": "bfloat16", "kernel": "torch.mm", "experts": 1, "active": 1, "latency_us": 1.0}
    shapes = [*PRODUCTS.values(), (5120, 5120)]
    tables = {
        "gemm": [{**product, "m": m, "n": n, "k": k} for m in (1, 64, 4096) for n, k in shapes],
        "attention_decode": [
            {**PLACE, "dtype": "bfloat16", "kv_dtype": "bfloat16", "kernel": "sdpa_flash", **HEADS}
            | {"batch": batch, "context": 2048, "latency_us": 1.0}
            for batch in (1, 32)
        ],
        "elementwise": [
            {**PLACE, "op": "input_layernorm", "kernel": "rms_norm", "dtype": "bfloat16", "tokens": 4096}
            | {"width": width, "kernels": 1, "moved": 2, "latency_us": 1.0}
            for width in (4096, 8192)
        ],
    }
    found = {}
    for name, rows in tables.items():
        frame = predict(pd.DataFrame(rows), PredictionOptions(hardware=CHIP))
        assert (frame["reason"] == "").all()
        found[name] = pd.DataFrame(rows).assign(latency_us=frame["predicted_us"], stable=True)
    return found


def _written(folder: Path, tables: dict[str, pd.DataFrame], device: str = CHIP) -> Path:
    lines: list[dict[str, Any]] = [{"schema": "llmviewer.samples/1", "environment": {"device": device}}]
    lines += [{"table": name, **row} for name, frame in tables.items() for row in frame.to_dict("records")]
    folder.mkdir()
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_samples_as_long_as_predicted_differ_nowhere(tmp_path: Path) -> None:
    found = lv.diagnose(_written(tmp_path / "s", _rows()), MODEL, CHIP).to_dict()
    names = {one["name"]: sum(one["kernels"].values()) for one in found["operators"]}
    assert names == {**dict.fromkeys(PRODUCTS, 3), "attention": 2, "attn_norm, mlp_norm, final_norm": 1}
    assert found["difference_s"] == pytest.approx(0.0, abs=1e-12)
    assert {one["verdict"] for one in found["operators"]} == {"fine"}
    assert found["suspects"] == []
    assert found["note"] == "12 of 16 sampled kernels have the shapes of llama-3.1-8b"


@pytest.mark.parametrize("operator", PRODUCTS)
def test_a_kernel_of_half_the_speed_is_blamed(tmp_path: Path, operator: str) -> None:
    tables = _rows()
    n, k = PRODUCTS[operator]
    gemm = tables["gemm"]
    slow = (gemm["n"] == n) & (gemm["k"] == k)
    lost = gemm.loc[slow, "latency_us"].sum() * 1e-6
    gemm.loc[slow, "latency_us"] *= 2.0
    found = lv.diagnose(_written(tmp_path / "s", tables), MODEL, CHIP)
    assert found.parts[0].name == operator
    assert found.parts[0].amount_s == pytest.approx(lost)
    assert found.measured_s - found.predicted_s == pytest.approx(sum(part.amount_s for part in found.parts))
    assert found.suspects[0].text.startswith(f"{operator} takes 2 times its predicted time")
    assert "calibrate fit" in found.suspects[0].remedy


def test_formats_that_the_model_does_not_have_are_left_out(tmp_path: Path) -> None:
    folder = _written(tmp_path / "s", {"gemm": _rows()["gemm"]})
    with pytest.raises(UserError, match=r"none of the 12 sampled kernels .* formats of llama-3.1-8b"):
        lv.diagnose(folder, MODEL, CHIP, quantization="fp8")


def test_samples_of_another_chip_are_refused(tmp_path: Path) -> None:
    folder = _written(tmp_path / "s", _rows())
    with pytest.raises(UserError, match="samples are of h100-sxm, and hardware is a100"):
        lv.diagnose(folder, MODEL, "a100")
    other = _written(tmp_path / "t", _rows(), "my card")
    with pytest.raises(UserError, match="samples are of my card, of which `calibrate fit` writes a chip"):
        lv.diagnose(other, MODEL, CHIP)


def test_unstable_samples_are_said(tmp_path: Path) -> None:
    tables = _rows()
    tables["gemm"]["stable"] = False
    found = lv.diagnose(_written(tmp_path / "s", tables), MODEL, CHIP)
    assert found.warnings[0].startswith("9 of the samples compared are unstable")


def test_the_command_shows_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _written(tmp_path / "s", _rows())
    assert is_own(folder)
    assert is_own(folder / "samples.jsonl")
    assert main(["diagnose", str(folder), MODEL, "--hardware", CHIP, "--format", "markdown"]) == 0
    page = capsys.readouterr().out
    assert "12 of 16 sampled kernels" in page
    assert "Operators, over all samples" in page


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "its first line is missing"),
        ('{"schema": "llmviewer.samples/9"}\n', "schema"),
        ('{"schema": "llmviewer.samples/1", "environment": {}}\n', "none of the 0 sampled kernels"),
    ],
)
def test_a_bad_samples_file_is_one_line(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(lines)
    with pytest.raises(UserError, match=said):
        lv.diagnose(path, MODEL, CHIP)
