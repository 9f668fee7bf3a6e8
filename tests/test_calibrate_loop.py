"""The whole loop on this CPU: measure torch's kernels, fit them, predict a layer and a small torch model.

The test machine is noisy: errors are printed and only checked for plausibility.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="measuring needs torch")
pytest.importorskip("scipy", reason="fitting needs scipy")

from llmviewer.calibrate import sizes
from llmviewer.cli import main

SMALL = sizes.RunSize(
    samples=3, sample_s=2e-4, warmup_s=1e-4, graphs=False, compiled=False, max_flops=2e8,
    models=("qwen2.5-0.5b",), dtypes=("float32",), tokens=(1, 4, 16, 64), attention_models=("qwen2.5-0.5b",),
    attention_dtypes=("float32",), backends=("sdpa_flash", "sdpa_math"), latent_models=(),
    prompts=sizes.grid((1, 2), (8, 16, 32, 64, 128), 128), caches=sizes.grid((1, 2), (64, 128, 256, 512, 1024), 2048),
    widths=(512, 2048), copy_bytes=(2**18, 2**20), blocks=(("qwen2.5-0.5b", 1),),
    whole_models=(("tinyllama-1.1b", 1),), block_dtypes=("float32",), block_prompts=((1, 4), (1, 2)),
    block_caches=((1, 64), (2, 256)),
)  # fmt: skip


@pytest.mark.slow
def test_a_torch_model_is_predicted_from_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("llmviewer.calibrate.environment.cpu_cache_bytes", lambda: 2**22)
    monkeypatch.setattr("llmviewer.calibrate.environment.physical_cores", lambda: 1)
    monkeypatch.setitem(sizes.SIZES, ("cpu", "quick"), SMALL)
    assert main(["calibrate", "run", "--quick", "--device", "cpu", "-o", str(tmp_path / "samples")]) == 0
    capsys.readouterr()

    profile = str(tmp_path / "profile.yaml")
    # on a busy machine errors may be absurd
    words = [str(tmp_path / "samples"), "-o", profile, "--format", "json", "--force"]
    assert main(["calibrate", "fit", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    fits = {fit["fit"] for fit in document["fits"]}
    assert {"gemm/fp32/torch", "attention_prefill/fp32/torch", "attention_decode/fp32/torch"} <= fits
    assert {"streaming/norm/torch", "streaming/softmax/torch"} <= fits
    assert {"streaming/act/torch-unfused", "streaming/rope/torch-unfused"} <= fits
    assert {row["stage"] for row in document["whole"]} == {"prefill", "decode"}
    assert {row["table"] for row in document["whole"]} == {"block", "model"}
    for row in document["whole"]:
        assert 0.1 < row["predicted_us"] / row["measured_us"] < 10.0

    hardware = str(tmp_path / "cpu.yaml")
    words = ["--hardware", hardware, "--profile", profile, "--format", "json"]
    assert main(["calibrate", "validate", str(tmp_path / "samples"), *words]) == 0
    total = json.loads(capsys.readouterr().out)["total"]
    assert total["mape"] < 3.0
    assert main(["analyze", "llama-3.2-1b", *words, "--dtype", "fp32"]) == 0
    kernels = json.loads(capsys.readouterr().out)["efficiency"]["kernels"]
    assert kernels["gemm/fp32"]["chip"] == "cpu"
