"""calibrate fit: constants are recovered, errors come from held-out rows, and excluded rows are reported."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy", reason="fitting needs scipy")
import pandas as pd

from llmviewer.calibrate import conformal, record
from llmviewer.calibrate.e2e_rows import REQUEST_COLUMNS
from llmviewer.calibrate.fit import fit, fit_key, predicted_seconds
from llmviewer.calibrate.fit_tables import gather
from llmviewer.calibrate.tables import (
    SLOWER_KERNEL,
    UNMEASURED_KERNEL,
    RowGroup,
    SkippedRows,
    row_groups,
    with_default_columns,
)
from llmviewer.cli import main
from llmviewer.core.errors import missing_extra
from llmviewer.core.ir import Operator, Role
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.timing import profile as profiles
from llmviewer.timing.kernels.families import FAMILIES, families_of
from llmviewer.timing.roofline import Rates, ideal

#: Known constants from which the rows below are generated.
TRUE: dict[str, Mapping[str, float]] = {
    "streaming": FAMILIES["streaming"].start_values()
    | {"floor": 3.0, "memory": 0.7, "warm": 1.0, "unit": 30.0, "along": 0.0},
    "gemm": FAMILIES["gemm"].start_values() | {"floor": 5.0, "compute": 0.9, "memory": 0.85},
}
NOISE = 0.04
Row = dict[str, Any]


def known_times(operator: Operator, chip: Chip) -> Rates:
    name = families_of(operator)[0]
    return FAMILIES[name].rates(operator, chip, TRUE[name]) if name in TRUE else ideal(operator, chip)


def timed(frame: pd.DataFrame, noise: float, chip: Chip | str = "") -> pd.DataFrame:
    """The rows with latencies by the known constants, plus noise."""
    rng = np.random.default_rng(7)
    answered = frame.assign(latency_us=1.0)
    for part in row_groups(answered, chip):
        assert isinstance(part, RowGroup)
        latency, _ = predicted_seconds(part, known_times)
        answered.loc[part.index, "latency_us"] = latency * 1e6 * np.exp(noise * rng.standard_normal(len(part.index)))
    return answered


def gemm_rows(device: str = "h100_sxm", dtype: str = "bfloat16") -> pd.DataFrame:
    shapes = [(n, k) for n in (1024, 4096, 6144, 14336) for k in (2048, 4096, 8192)]
    rows = [
        {"m": m, "n": n, "k": k, "experts": 1, "active": 1} for m in (1, 8, 64, 200, 512, 2048, 8192) for n, k in shapes
    ]
    common = {"device": device, "source": "llmviewer", "engine": "torch 2.9", "dtype": dtype, "kernel": "torch.mm"}
    return pd.DataFrame(rows).assign(**common)


def add_rows(device: str = "h100_sxm") -> pd.DataFrame:
    rows = [{"tokens": t, "width": w} for t in (1, 4, 16, 64, 256, 1024, 4096, 16384) for w in (1024, 2048, 4096, 8192)]
    common = {"device": device, "source": "llmviewer", "engine": "torch 2.9", "op": "add", "kernel": "add"}
    return pd.DataFrame(rows).assign(**common, dtype="bfloat16")


def rows_of(frame: pd.DataFrame, table: str, *, stable: bool = True) -> Iterator[Row]:
    for row in frame.to_dict("records"):
        yield {"table": table, **row, "samples_us": [row["latency_us"]], "spread": 0.01, "stable": stable}


def write_samples(folder: Path, *rows: Row, device: str = "h100_sxm", **environment: object) -> Path:
    """Writes a samples file."""
    folder.mkdir(parents=True, exist_ok=True)
    message = {"device": device, "device_name": "A device", "torch": "2.9", "driver": "580.1", "date": "2026-01-02"}
    header = {"schema": record.SCHEMA, "environment": message | environment}
    lines = [json.dumps(line) for line in (header, *rows)]
    (folder / record.FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("h100") / "samples"
    return write_samples(
        folder, *rows_of(timed(gemm_rows(), NOISE), "gemm"), *rows_of(timed(add_rows(), NOISE), "elementwise")
    )


@pytest.fixture(scope="module")
def fitted(samples: Path) -> tuple[Path, dict[str, Any]]:
    """A fitted profile and the output of the command."""
    path = samples.parent / "profile.yaml"
    return path, fit_json(samples, path)


def fit_json(folder: Path, output: Path) -> dict[str, Any]:
    """JSON output of the fit command."""
    message = io.StringIO()
    with contextlib.redirect_stdout(message):
        assert main(["calibrate", "fit", str(folder), "-o", str(output), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(message.getvalue())
    return found


def error_line(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one-line error of a wrong input."""
    assert main([str(word) for word in words]) == 2
    message = capsys.readouterr().err.strip()
    assert "\n" not in message
    assert message.startswith("error: ")
    assert "fault" not in message
    return message


def test_the_constants_that_generated_the_rows_are_recovered(fitted: tuple[Path, dict[str, Any]]) -> None:
    profile = profiles.load(fitted[0])
    stream = profile.fit("streaming/add/torch").constants
    assert stream["floor"] == pytest.approx(3.0, rel=0.05)
    assert stream["memory"] == pytest.approx(0.7, rel=0.05)
    assert profile.fit("gemm/bf16/torch").constants["floor"] == pytest.approx(5.0, rel=0.25)


def test_the_held_out_error_equals_the_noise(fitted: tuple[Path, dict[str, Any]]) -> None:
    """Noise of 4 % makes a mean error of 0.04 x sqrt(2 / pi) = 3.2 %."""
    fits = {(fit["fit"], fit["regime"]): fit for fit in fitted[1]["fits"]}
    for key in ("gemm/bf16/torch", "streaming/add/torch"):
        assert 0.02 < fits[key, "all"]["mape"] < 0.055
        assert abs(fits[key, "all"]["bias"]) < 0.02


def test_about_80_percent_of_held_out_rows_are_in_the_80_percent_interval(fitted: tuple[Path, dict[str, Any]]) -> None:
    fits = {(fit["fit"], fit["regime"]): fit for fit in fitted[1]["fits"]}
    assert 0.7 <= fits["gemm/bf16/torch", "all"]["covered80"] <= 0.92


def test_a_profile_states_its_provenance(fitted: tuple[Path, dict[str, Any]]) -> None:
    message = profiles.load(fitted[0]).provenance
    assert message["kind"] == "fitted"
    assert message["by"].endswith("calibrate fit")
    assert message["rows"] == {"fitted": 84 + 32, "unstable_among_them": 0}
    (source,) = message["sources"]
    assert (source["device"], source["engine"], source["date"]) == (["h100_sxm"], ["torch 2.9"], "2026-01-02")
    assert source["environment"]["driver"] == "580.1"
    assert profiles.load(fitted[0]).chip == "h100-sxm"


def test_analyze_uses_a_user_profile(fitted: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", "llama-3.2-1b", "--hardware", "h100", "--profile", str(fitted[0]), "--format", "json"]
    assert main(words) == 0
    assert str(fitted[0]) in capsys.readouterr().out


def test_a_profile_of_another_chip_yields_to_nearer_fits_and_says_so(
    fitted: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "llama-3.2-1b", "--hardware", "l40s", "--profile", str(fitted[0])]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "kernels measured on l40s" in text and "gemm/bf16/torch (assumed, ±90%) is no nearer" in text


def test_coverage_uses_the_interval_of_the_other_folds() -> None:
    """Fold 0 has 1 to 9; of fold 1, 5 is inside and 100 outside; of fold 0, all but 1..4 are in 5 to 100."""
    ratio = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 5.0, 100.0])
    folds = np.array([0.0] * 9 + [1.0, 1.0])
    assert conformal.coverage(ratio, folds) == {"covered80": round(6 / 11, 4)}
    assert conformal.coverage(ratio, np.zeros(11)) == {}


def test_unstable_rows_are_excluded_if_most_rows_are_stable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = timed(add_rows(), NOISE)
    rows = [*rows_of(frame[:20], "elementwise"), *rows_of(frame[20:], "elementwise", stable=False)]
    document = fit_of(write_samples(tmp_path / "s", *rows), capsys)
    assert document["left_out"] == {"streaming/add/torch: marked unstable": 12}
    assert document["fits"][0]["rows"] == 20


def test_unstable_rows_are_fitted_with_a_warning_if_most_rows_are_unstable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = timed(add_rows(), NOISE)
    rows = [*rows_of(frame[:10], "elementwise"), *rows_of(frame[10:], "elementwise", stable=False)]
    document = fit_of(write_samples(tmp_path / "s", *rows), capsys)
    assert document["left_out"] == {}
    assert document["unstable"] == {"streaming/add/torch": 22}
    assert document["fits"][0]["rows"] == 32


def fit_of(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Summary of one fit."""
    output = str(folder.parent / "profile.yaml")
    assert main(["calibrate", "fit", str(folder), "-o", output, "--format", "json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_rows_without_a_formula_are_named_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = timed(add_rows(), NOISE)
    strange = {**next(rows_of(frame, "elementwise")), "op": "fft"}
    w4a16 = {**next(rows_of(timed(gemm_rows(), 0.0), "gemm")), "dtype": "w4a16"}
    document = fit_of(write_samples(tmp_path / "s", *rows_of(frame, "elementwise"), strange, strange, w4a16), capsys)
    counts = {reason.partition(";")[0]: rows for reason, rows in document["left_out"].items()}
    assert counts["unknown elementwise op 'fft'"] == 2
    assert counts["rows of w4a16 without `group`, the number of weights per scale"] == 1


def test_the_fastest_torch_backend_is_used_at_each_shape() -> None:
    common = {"device": "h100_sxm", "engine": "torch 2.9", "dtype": "bfloat16", "kv_dtype": "bfloat16", "window": 0}
    shape = {"batch": 1, "context": 512, "heads": 32, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128}
    rows = [
        {**common, **shape, "kernel": kernel, "latency_us": latency}
        for kernel, latency in (("sdpa_flash", 9.0), ("sdpa_math", 40.0), ("sdpa_cudnn", 7.0))
    ]
    slower, fastest = row_groups(pd.DataFrame(rows))
    assert isinstance(slower, SkippedRows)
    assert list(slower.index) == [0, 1]
    assert isinstance(fastest, RowGroup)
    assert (fastest.engine, list(fastest.index)) == ("torch", [2])


def test_attention_counts_only_where_torch_s_usual_kernel_was_measured() -> None:
    """A run that ended early: cuDNN beats flash at both shapes with both, so flash alone is not what torch runs.

    Kernels are compared among heads of one width only: cuDNN may not run 256 elements at all.
    """
    common = {
        "device": "h100_sxm", "engine": "torch 2.11", "dtype": "bfloat16", "kv_dtype": "bfloat16", "v_head_dim": 128,
        "window": 0, "prefix": 0, "batch": 1, "heads": 32, "kv_heads": 8, "head_dim": 128,
    }  # fmt: skip
    measured = [
        (128, "sdpa_flash", 9.0), (128, "sdpa_cudnn", 8.0), (512, "sdpa_flash", 22.0), (512, "sdpa_cudnn", 13.0),
        (2048, "sdpa_flash", 150.0), (4096, "sdpa_cudnn", 250.0), (8192, "sdpa_math", 60000.0),
    ]  # fmt: skip
    rows = [{**common, "seq": seq, "kernel": kernel, "latency_us": us} for seq, kernel, us in measured]
    wide = {**common, "head_dim": 256, "v_head_dim": 256, "seq": 512, "kernel": "sdpa_flash", "latency_us": 40.0}
    parts = [*row_groups(pd.DataFrame([*rows, wide]))]
    left_out = {part.reason: [*part.index] for part in parts if isinstance(part, SkippedRows)}
    assert left_out == {SLOWER_KERNEL: [0, 2], UNMEASURED_KERNEL: [4]}
    fitted = sorted(label for part in parts if isinstance(part, RowGroup) for label in part.index)
    assert fitted == [1, 3, 5, 6, 7]  # sdpa_math was never beside another kernel: nothing says that it is slower


def operator_of(row: Row) -> Operator:
    common = {"device": "h100_sxm", "source": "llmviewer", "engine": "torch 2.9", "latency_us": 1.0}
    (part,) = row_groups(pd.DataFrame([common | row]))
    assert isinstance(part, RowGroup)
    return part.operators[-1]


def test_only_active_experts_are_read() -> None:
    row = {"dtype": "bfloat16", "kernel": "torch._grouped_mm", "m": 64, "n": 10, "k": 20, "experts": 16, "active": 4}
    operator = operator_of(row)
    assert float(operator.read_bytes(Role.WEIGHT)[0]) == 4 * 10 * 20 * 2
    assert float(operator.matmul_flops[0]) == 2 * 64 * 10 * 20
    assert families_of(operator) == ("experts",) and FAMILIES["experts"].variant(operator) == "bf16"


def test_grouped_products_alone_are_no_rows_of_layers_of_experts() -> None:
    """A layer also sorts its rows and sums them: one fit of both was off by 17 %, each alone by 6 % (H100, torch)."""
    common = {"device": "h100_sxm", "source": "llmviewer", "engine": "torch 2.11", "dtype": "bfloat16"}
    product = {**common, "kernel": "torch._grouped_mm", "m": 64, "n": 10, "k": 20, "latency_us": 1.0}
    layer = {
        **common, "kernel": "torch._grouped_mm", "tokens": 64, "hidden": 20, "inter": 10, "topk": 2, "experts": 8,
        "tp": 1, "ep": 1, "routing": "balanced", "latency_us": 1.0,
    }  # fmt: skip
    rows = ({**product, "experts": 16, "active": 4}, {**product, "experts": 1, "active": 1}, product, layer)
    groups = [next(iter(row_groups(pd.DataFrame([row])))) for row in rows]
    assert [fit_key(group) for group in groups if isinstance(group, RowGroup)] == [
        ("experts", "bf16", "torch-products"),
        ("gemm", "bf16", "torch"),
        ("gemm", "bf16", "torch"),
        ("experts", "bf16", "torch"),
    ]


def test_weights_of_four_bits_share_a_scale_and_a_zero_point() -> None:
    row = {"dtype": "w4a16", "kernel": "torch._weight_int4pack_mm", "m": 1, "n": 256, "k": 128, "group": 128}
    operator = operator_of(row)
    assert float(operator.read_bytes(Role.WEIGHT)[0]) == 256 * 128 * (4 + 32 / 128) / 8
    assert FAMILIES["gemm"].variant(operator) == "w4a16"


def test_tf32_is_stored_in_32_bits_and_multiplied_by_its_own_units() -> None:
    operator = operator_of({"dtype": "tf32", "kernel": "torch.mm", "m": 1, "n": 8, "k": 16})
    assert float(operator.read_bytes(Role.WEIGHT)[0]) == 8 * 16 * 4
    assert operator.compute == "tf32"


def test_absorbed_latent_attention_reads_its_latent_once() -> None:
    row = {
        "dtype": "bfloat16", "kv_dtype": "bfloat16", "kernel": "mla_sdpa_math", "window": 0,
        "batch": 2, "context": 100, "heads": 16, "kv_heads": 1, "head_dim": 576, "v_head_dim": 512,
    }  # fmt: skip
    operator = operator_of(row)
    assert float(operator.read_bytes(Role.CACHE)[0]) == 2 * 100 * 576 * 2
    assert FAMILIES["attention_decode"].variant(operator) == "bf16-mla"


def test_samples_of_several_devices_need_a_device_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_samples(tmp_path / "a", *rows_of(timed(add_rows(), NOISE), "elementwise"))
    other = write_samples(
        tmp_path / "b", *rows_of(timed(add_rows("a100_sxm"), NOISE), "elementwise"), device="a100_sxm"
    )
    output = tmp_path / "profile.yaml"
    message = error_line(capsys, "calibrate", "fit", one, other, "-o", output)
    assert message == (
        "error: samples of several devices: h100_sxm (32 rows), a100_sxm (32 rows); choose one with --hardware"
    )
    assert not output.exists()
    words = ["calibrate", "fit", str(one), str(other), "-o", str(output), "--hardware", "a100", "--format", "json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["chip"] == "a100-80gb-sxm"
    assert document["left_out"] == {"measured on h100_sxm, not on a100-80gb-sxm": 32}
    assert "no rows of l40s" in error_line(capsys, "calibrate", "fit", one, "-o", output, "--hardware", "l40s")


def cpu_samples(folder: Path) -> Path:
    """Samples of a device without a spec file: 100 GFLOP/s, 20 GB/s, up to 4 % slower.

    Rows without any noise take four times as long to fit: the cost falls towards zero and no step is small beside it.
    """
    rng, rows = np.random.default_rng(7), list[Row]()
    for dtype, rate in (("float32", 1e11), ("bfloat16", 5e10)):
        width = 4 if dtype == "float32" else 2
        frame = gemm_rows("cpu", dtype).query("n < 5000")
        work, moved = 2.0 * frame["m"] * frame["n"] * frame["k"], width * frame["n"] * frame["k"]
        seconds = (work / rate + moved / 2e10) * rng.uniform(1.0, 1.04, len(frame))
        rows += rows_of(frame.assign(latency_us=seconds * 1e6 + 3.0), "gemm")
    copy = {
        "table": "copy", "device": "cpu", "source": "llmviewer", "engine": "torch 2.9", "op": "read",
        "dtype": "float32", "bytes": 2**24, "moved_bytes": 2**24, "latency_us": 2**24 / 2e10 * 1e6, "stable": True,
        "rotated_bytes": 2**27,
    }  # fmt: skip
    launch = {"table": "launch", "device": "cpu", "op": "kernel", "graph": False, "latency_us": 1.5, "stable": True}
    config = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
        "num_key_value_heads": 8, "num_hidden_layers": 1, "vocab_size": 32000, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "tie_word_embeddings": False,
        "architectures": ["LlamaForCausalLM"], "torch_dtype": "float32",
    }  # fmt: skip
    block = {
        "table": "block", "device": "cpu", "source": "llmviewer", "engine": "torch 2.9", "model": "small",
        "config": config, "dtype": "float32", "kernel": "eager", "graph": False, "stage": "prefill", "batch": 1,
        "seq": 64, "latency_us": 2.2e4, "stable": True,
    }  # fmt: skip
    message = {"kind": "cpu", "threads": 2, "cache_bytes": 2**25, "memory_bytes": 2**34, "clock_mhz": 2500.0}
    return write_samples(folder, *rows, copy, launch, block, device="cpu", **message)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of samples of such a device, its profile, and the output of the fit."""
    folder = cpu_samples(tmp_path_factory.mktemp("cpu") / "samples")
    return folder, fit_json(folder, folder.parent / "profile.yaml")


def test_a_device_without_a_data_sheet_gets_a_spec_of_measured_figures(
    measured: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder, document), tmp_path = measured, measured[0].parent
    assert folder.is_dir()
    path = tmp_path / "cpu.yaml"
    assert document["chip_file"] == str(path)
    chip = specs.load(str(path))
    assert chip.name == "cpu"
    assert float(chip.matrix_rate("fp32")) == pytest.approx(1e11, rel=0.01)
    assert float(chip.bandwidth_bytes_per_s) == pytest.approx(2e10, rel=0.01)
    assert (chip.memory_bytes, chip.l2_bytes, chip.units) == (2.0**34, 2.0**25, 2.0)
    assert "measured" in chip.figures["bandwidth_bytes_per_s"].source
    profile = profiles.load(tmp_path / "profile.yaml")
    assert profile.provenance["measured"] == {"bandwidth_gb_per_s": {"read": 20.0}, "launch_us": {"kernel": 1.5}}
    words = ["analyze", "llama-3.2-1b", "--hardware", str(path), "--profile", str(tmp_path / "profile.yaml")]
    assert main(words) == 0
    assert "kernels measured on cpu" in " ".join(capsys.readouterr().out.split())


def test_layers_and_models_are_predicted_but_not_fitted(measured: tuple[Path, dict[str, Any]]) -> None:
    """A prefill of 64 tokens: 2 x 64 x 15.7 M weights at 100 GFLOP/s is 20 ms, reading 63 MB at 20 GB/s 3 ms."""
    (row,) = measured[1]["whole"]
    assert (row["table"], row["layers"], row["stage"], row["tokens"]) == ("block", 1, "prefill", 64)
    assert row["predicted_us"] == pytest.approx(2.33e4, rel=0.2)
    assert row["error"] == pytest.approx(row["predicted_us"] / row["measured_us"] - 1.0, abs=1e-3)
    low, high = row["interval_80_us"]
    assert low < row["predicted_us"] < high


def test_validate_accepts_samples_with_layers_and_models(
    measured: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = measured[0]
    words = ["--hardware", str(folder.parent / "cpu.yaml"), "--profile", str(folder.parent / "profile.yaml")]
    rows = tmp_path / "rows.csv"
    assert main(["calibrate", "validate", str(folder), *words, "--format", "json", "-o", str(rows)]) == 0
    document = json.loads(capsys.readouterr().out)
    kernels = {score["kernel"]: score for score in document["scores"]}
    assert kernels["block small float32 prefill"]["rows"] == 1
    assert kernels["gemm torch 2.9 float32"]["mape"] < 0.2
    assert sum(document["not_predicted"].values()) == 2  # copy, launch
    assert {"predicted_us", "low80_us", "high80_us"} <= set(pd.read_csv(rows).columns)


def test_a_user_file_is_never_replaced_by_measured_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, output = cpu_samples(tmp_path / "s"), tmp_path / "profile.yaml"
    (tmp_path / "cpu.yaml").write_text("name: mine\n", encoding="utf-8")
    assert "no fit wrote it" in error_line(capsys, "calibrate", "fit", folder, "-o", output)
    assert (tmp_path / "cpu.yaml").read_text(encoding="utf-8") == "name: mine\n"
    assert not output.exists()
    assert "choose another name" in error_line(capsys, "calibrate", "fit", folder, "-o", tmp_path / "cpu.yaml")


def test_third_party_tables_can_be_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "elementwise.csv"
    timed(add_rows(), NOISE).assign(engine="vllm 0.9").to_csv(table, index=False)
    document = fit_of(table, capsys, "--title", "By others")
    assert document["fits"][0]["fit"] == "streaming/add/vllm"
    assert profiles.load(tmp_path / "profile.yaml").title == "By others"


def test_an_extended_profile_keeps_its_other_fits_and_its_provenance(
    fitted: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torch's products and sums of 84 + 32 rows, extended by 32 sums of vLLM and 32 newer ones of torch."""
    table = tmp_path / "elementwise.csv"
    slower = timed(add_rows(), NOISE).eval("latency_us = 1.3 * latency_us")
    pd.concat([slower.assign(engine=engine) for engine in ("vllm 0.9", "torch 2.9")]).to_csv(table, index=False)
    document = fit_of(table, capsys, "--extend", str(fitted[0]), "--origin", "Two engines")
    before, after = profiles.load(fitted[0]), profiles.load(tmp_path / "profile.yaml")
    assert document["kept"] == ["gemm/bf16/torch"]
    assert [*after.texts] == ["gemm/bf16/torch", "streaming/add/torch", "streaming/add/vllm"]
    assert after.fit("gemm/bf16/torch") == before.fit("gemm/bf16/torch")
    assert after.fit("streaming/add/torch").constants != before.fit("streaming/add/torch").constants
    assert after.provenance["rows"] == {"fitted": 84 + 32 + 32, "unstable_among_them": 0}
    assert [source["file"] for source in after.provenance["sources"]] == ["samples", "elementwise.csv"]
    assert (after.title, after.provenance["origin"]) == (before.title, "Two engines")


def test_a_profile_that_cannot_be_extended_is_refused_before_the_fit(
    fitted: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "elementwise.csv"
    timed(add_rows("l40s"), NOISE, "l40s").assign(device="l40s").to_csv(table, index=False)
    words = ("calibrate", "fit", table, "-o", tmp_path / "new.yaml", "--extend")
    assert "has fits of h100-sxm; rows of l40s cannot extend it" in error_line(capsys, *words, fitted[0])
    assert "no such file" in error_line(capsys, *words, tmp_path / "missing.yaml").lower()
    old = tmp_path / "old.yaml"
    text = fitted[0].read_text(encoding="utf-8").replace("chip: h100-sxm", "chip: l40s")
    old.write_text(with_renamed_constant(text, "floor"), encoding="utf-8")
    assert "lacks floor" in error_line(capsys, *words, old)
    assert not (tmp_path / "new.yaml").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace("samples/1", "samples/9", 1), "has schema a text; expected 'llmviewer.samples/1'"),
        (lambda text: text[:40], "its first line is missing or truncated"),
        (lambda text: text.replace('"latency_us": ', '"latency_us": -', 1), "expected a positive number"),
        (lambda text: text.replace('"latency_us": ', '"latency_us": NaN, "x": ', 1), "latency_us is nan"),
        (lambda text: text.replace('"table": "gemm"', '"table": "gem"', 1), "did you mean 'gemm'"),
        (lambda text: text.splitlines()[0] + "\n", "no measured rows"),
    ],
)
def test_wrong_samples_are_a_one_line_error(
    spoil: Any, message: str, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (samples / record.FILE).read_text(encoding="utf-8")
    file = tmp_path / record.FILE
    file.write_text(spoil(text), encoding="utf-8")
    output = tmp_path / "profile.yaml"
    assert message in error_line(capsys, "calibrate", "fit", file, "-o", output)
    assert not output.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "device,m,n,k,dtype,latency_us\nh100_sxm,1,2,x,fp16,3\n",
            "no row can be used: 1 rows: k is missing or no number",
        ),
        ("device,m,n,k,dtype,latency_us\nh100_sxm,1,2,3,fp16,nan\n", "1 rows: latency_us is missing or no number"),
        ("a,b\n1,2\n", "2 columns match no measured table"),
        ("device,m,k,latency_us\nh100_sxm,1,2,3\n", "nearest: gemm, missing n"),
        ("device,m,n,k,latency_us\n", "has no rows"),
        (
            "device,m,n,k,dtype,latency_us\nh100_sxm,1e300,2,3,fp16,3\n",
            "m is out of range; allowed: positive numbers up to",
        ),
        (
            "device,op,gpus,bytes,dtype,latency_us\nh100_sxm,all_reduce,1,8,fp16,3\n",
            "gpus is out of range; allowed: 2 or more",
        ),
        ("device,m,n,k,dtype,engine,latency_us\nh100_sxm,8,64,64,float16,x,3\n", "nothing to fit for h100-sxm"),
        ("device,m,n,k,dtype,engine,latency_us\nh100_sxm,8,64,64,fp99,x,3\n", "unknown dtype 'fp99'"),
    ],
)
def test_wrong_tables_are_a_one_line_error(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "gemm.csv"
    table.write_text(text, encoding="utf-8")
    assert message in error_line(capsys, "calibrate", "fit", table, "-o", tmp_path / "profile.yaml")
    assert "no file" in error_line(capsys, "calibrate", "fit", tmp_path / "none.csv", "-o", tmp_path / "p.yaml")


def test_an_unwritable_profile_path_is_rejected_before_fitting(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmviewer.calibrate.profiling.fit_profile", None)  # a call would raise TypeError
    for output in (tmp_path, tmp_path / "nowhere" / "profile.yaml"):
        assert "cannot write" in error_line(capsys, "calibrate", "fit", samples, "-o", output)


def test_end_to_end_tables_are_not_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "e2e.csv"
    table.write_text(f"{','.join(REQUEST_COLUMNS)}\n{','.join('1' for _ in REQUEST_COLUMNS)}\n", encoding="utf-8")
    line = error_line(capsys, "calibrate", "fit", table, "-o", tmp_path / "profile.yaml")
    assert "contains whole requests" in line


def test_an_empty_table_is_not_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "gemm.csv"
    table.write_text("device,m,n,k,latency_us\n", encoding="utf-8")
    assert "has no rows" in error_line(capsys, "calibrate", "validate", table)


def test_rows_of_an_unknown_chip_are_not_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "sums.csv"
    timed(add_rows(), NOISE).assign(engine="vllm 0.9").to_csv(table, index=False)
    rows = tmp_path / "rows.csv"
    line = error_line(capsys, "calibrate", "validate", table, "--hardware", "nope", "-o", rows)
    assert "unknown chip 'nope'" in line
    assert not rows.exists()


def test_a_truncated_last_line_is_reported_and_the_rest_fitted(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / record.FILE
    file.write_text((samples / record.FILE).read_text(encoding="utf-8")[:-30], encoding="utf-8")
    assert main(["calibrate", "fit", str(file), "-o", str(tmp_path / "profile.yaml")]) == 0
    assert "truncated" in capsys.readouterr().err


def with_renamed_constant(text: str, name: str) -> str:
    """The text of a profile with one constant renamed."""
    return text.replace(f"{name}: ", f"not_{name}: ")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace("profile/1", "profile/7"), "has schema 'llmviewer.profile/7'"),
        (
            lambda text: text.replace("{floor: ", "{floor: .nan, x: "),
            "constants.floor: expected a finite number from 0",
        ),
        (lambda text: text.replace("{floor: ", "{floor: -"), "constants.floor: expected a finite number from 0, got -"),
        (
            lambda text: text.replace("{floor: ", "{floor: word, x: "),
            "constants.floor: expected a finite number from 0",
        ),
        (lambda text: with_renamed_constant(text, "sharpness"), "lacks sharpness"),
        (lambda text: text.replace("{floor: ", "{flor: 1, floor: "), "unknown constant of streaming/add/torch 'flor'"),
        (lambda text: text.replace("{floor: ", "{floor: 99"), "allowed: 0 to"),
        (lambda text: text.replace("fit: gemm/", "fit: gem/"), "unknown kernel family 'gem'"),
        (lambda text: text.replace("  all: [", "  all: [9, "), "residuals.all: expected 4 numbers, got 5"),
        (lambda text: text.replace("  all: [0", "  all: [7"), "expected ascending values"),
        (lambda text: text[: text.rindex("\n---\n")] + "\n", "is truncated: 1 of 2 fits are present"),
        (lambda text: text[:-20], "is truncated"),
        (lambda text: text[: text.index("provenance")], "missing provenance"),
        (lambda text: "", "expected a mapping"),
        (lambda text: text.replace("fit: gemm/bf16/torch", "fit: gemm"), "expected fit: family/variant/engine"),
    ],
)
def test_wrong_profiles_are_a_one_line_error(
    spoil: Any,
    message: str,
    fitted: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(spoil(fitted[0].read_text(encoding="utf-8")), encoding="utf-8")
    words = ("analyze", "llama-3.2-1b", "--hardware", "h100", "--profile", profile)
    assert message in error_line(capsys, *words)


def test_a_rewritten_profile_is_reloaded(fitted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    text = fitted[0].read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    assert profiles.load(path).chip == "h100-sxm"
    path.write_text(text.replace("chip: h100-sxm", "chip: another"), encoding="utf-8")
    assert profiles.load(path).chip == "another"


def test_without_scipy_the_error_names_the_extra(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    message = error_line(capsys, "calibrate", "fit", samples, "-o", tmp_path / "profile.yaml")
    assert message == f"error: {missing_extra('fitting needs scipy', 'calibrate')}"


def test_a_device_name_cannot_escape_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cpu_samples(tmp_path / "s")
    text = (folder / record.FILE).read_text(encoding="utf-8").replace('"cpu"', '"../../Big One"')
    (folder / record.FILE).write_text(text, encoding="utf-8")
    (tmp_path / "big-one.yaml").write_text("name: mine\n", encoding="utf-8")
    message = error_line(capsys, "calibrate", "fit", folder, "-o", tmp_path / "profile.yaml")
    assert "would be overwritten by the chip spec, and no fit wrote it" in message


def test_launches_that_stalled_for_a_session_do_not_raise_the_floor_of_the_others() -> None:
    """All-reduces that take 20 us whatever their size, but 60 in the session of 4 devices; soft L1 finds 21.2 us."""
    sizes = [2.0**at for at in range(9, 17)]
    rows = pd.DataFrame(
        [{"op": "all_reduce", "gpus": gpus, "bytes": size, "latency_us": 60.0 if gpus == 4 else 20.0}
         for gpus in (2, 4, 8) for size in sizes]
    ).assign(device="h100_sxm", source="aiconfigurator", engine="vllm 0.24.0", impl="vllm_eager")  # fmt: skip
    chip = specs.load("h100-sxm")
    (sample,) = gather([with_default_columns(rows)], chip).samples
    found = fit(sample, ideal)
    times, _ = predicted_seconds(
        sample.rows[0], lambda operator, on: FAMILIES["collective"].rates(operator, on, found.constants)
    )
    assert times * 1e6 == pytest.approx(20.0, rel=0.01)
