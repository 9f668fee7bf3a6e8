"""Samples of a short or disturbed run: kinds with too few rows, absurd held-out errors, rates of a busy machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.calibrate import record
from llmviewer.cli import main
from llmviewer.hardware import specs
from llmviewer.timing import profile as profiles
from tests.test_calibrate_fit import NOISE, add_rows, cpu_samples, gemm_rows, rows_of, timed, write_samples

pytest.importorskip("scipy", reason="fitting needs scipy")


def absurd_rows() -> Any:
    """Residual sums of 1 us and 10 ms in turn, whatever their shape: no formula can predict them."""
    frame = add_rows()
    return frame.assign(latency_us=[1.0 if at % 2 else 1e4 for at in range(len(frame))])


def fit(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any], str]:
    """Exit status, JSON document and stderr of a fit."""
    status = main(["calibrate", "fit", *map(str, words), "--format", "json"])
    printed = capsys.readouterr()
    return status, json.loads(printed.out) if printed.out else {}, printed.err


def test_an_absurd_fit_is_left_out_of_the_profile_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half the rows are predicted 1e4 times too long or too short: the mean error is far above 100 %."""
    folder = write_samples(
        tmp_path / "s", *rows_of(timed(gemm_rows(), NOISE), "gemm"), *rows_of(absurd_rows(), "elementwise")
    )
    output = tmp_path / "profile.yaml"
    status, document, _ = fit(capsys, folder, "-o", output)
    assert status == 0
    (reason,) = document["left_out"]
    assert reason.startswith("streaming/add/torch: mean error on held-out rows above 100 %, that of predicting zero, ")
    assert document["left_out"][reason] == 32
    assert set(profiles.load(output).texts) == {"gemm/bf16/torch"}
    assert profiles.load(output).provenance["rows"]["fitted"] == len(gemm_rows())
    status, document, _ = fit(capsys, folder, "-o", output, "--force")
    assert (status, document["left_out"]) == (0, {})
    assert set(profiles.load(output).texts) == {"gemm/bf16/torch", "streaming/add/torch"}


def test_what_replaces_a_fit_that_was_left_out_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped profile of the same chip has residual sums; an answer says that they are used."""
    folder = write_samples(
        tmp_path / "s", *rows_of(timed(gemm_rows(), NOISE), "gemm"), *rows_of(absurd_rows(), "elementwise")
    )
    profile = str(tmp_path / "profile.yaml")

    def replaced(*words: str) -> set[str]:
        """Kernels for which an analysis names constants of other profiles."""
        assert fit(capsys, folder, "-o", profile, *words)[0] == 0
        found = lv.analyze("llama-3.2-1b", "h100-sxm", profile=profile).to_dict()["provenance"]["assumed"]
        (line,) = [line for line in found if line.startswith(f"kernels without a fit in {profile}: ")]
        return set(line.partition("constants of shipped profiles for ")[2].split(", "))

    without, forced = replaced(), replaced("--force")
    assert without - forced == {"streaming/add"} and "attention_decode/bf16" in forced


def test_a_profile_of_absurd_fits_alone_is_refused_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = write_samples(tmp_path / "s", *rows_of(absurd_rows(), "elementwise")), tmp_path / "profile.yaml"
    status, _, message = fit(capsys, folder, "-o", output)
    assert status == 2
    assert message.count("\n") == 1
    assert "no profile is written: mean error on held-out rows above 100 %" in message
    assert "--force" in message
    assert not output.exists()
    assert fit(capsys, folder, "-o", output, "--force")[0] == 0
    assert profiles.load(output).fit("streaming/add/torch").error["all"]["mape"] > 1.0


def test_a_fit_below_the_bound_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows alternately 1.5 times faster and slower than the formula are off by about a half."""
    frame = timed(add_rows(), NOISE)
    frame["latency_us"] *= [1.5 if at % 2 else 1 / 1.5 for at in range(len(frame))]
    folder, output = write_samples(tmp_path / "s", *rows_of(frame, "elementwise")), tmp_path / "profile.yaml"
    assert fit(capsys, folder, "-o", output)[0] == 0
    assert 0.2 < profiles.load(output).fit("streaming/add/torch").error["all"]["mape"] < 1.0


def test_too_few_rows_name_what_lacks_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seven GEMMs and three residual sums: eight of a kind are needed."""
    gemms, sums = timed(gemm_rows(), NOISE)[:7], timed(add_rows(), NOISE)[:3]
    folder = write_samples(tmp_path / "s", *rows_of(gemms, "gemm"), *rows_of(sums, "elementwise"))
    status, _, message = fit(capsys, folder, "-o", tmp_path / "profile.yaml")
    assert status == 2
    assert message == (
        "error: nothing to fit for h100-sxm: a kind of kernel needs 8 rows, and gemm/bf16/torch has 7, "
        f"streaming/add/torch has 3; `llmviewer calibrate run -o {tmp_path / 's'}` adds rows to these\n"
    )


def test_a_fit_of_some_kinds_says_how_to_get_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gemms, sums = timed(gemm_rows(), NOISE), timed(add_rows(), NOISE)[:3]
    folder = write_samples(tmp_path / "s", *rows_of(gemms, "gemm"), *rows_of(sums, "elementwise"))
    status, document, _ = fit(capsys, folder, "-o", tmp_path / "profile.yaml")
    assert (status, document["more_rows"]) == (0, f"llmviewer calibrate run -o {folder}")
    assert main(["calibrate", "fit", str(folder), "-o", str(tmp_path / "profile.yaml")]) == 0
    assert "adds rows to kinds with too few" in " ".join(capsys.readouterr().out.split())


def changed(folder: Path, change: Any) -> Path:
    """The samples with every row changed, without those for which the change returns None."""
    header, *rows = [json.loads(line) for line in (folder / record.FILE).read_text(encoding="utf-8").splitlines()]
    kept = [row for row in map(change, rows) if row is not None]
    (folder / record.FILE).write_text("".join(json.dumps(row) + "\n" for row in (header, *kept)), encoding="utf-8")
    return folder


def test_the_peak_of_a_busy_machine_is_its_fastest_product(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only products of one row are stable: 100 GFLOP/s are reached by the others, and a fit bounded by the stable ones'
    rate, which reading weights limits to 10 GFLOP/s, would be ten times too slow."""
    folder = changed(cpu_samples(tmp_path / "s"), lambda row: row | {"stable": row.get("m") == 1})
    output = tmp_path / "profile.yaml"
    status, document, _ = fit(capsys, folder, "-o", output)
    assert status == 0
    assert float(specs.load(str(tmp_path / "cpu.yaml")).matrix_rate("fp32")) == pytest.approx(1e11, rel=0.01)
    assert all(row["mape"] < 0.3 for row in document["fits"])


def test_a_dtype_without_a_measured_rate_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Attention in fp32 of a device with GEMMs in bf16 alone has no peak to be a fraction of."""
    folder = changed(
        cpu_samples(tmp_path / "s"), lambda row: None if row.get("dtype") == "float32" and "m" in row else row
    )
    common = {
        "table": "attention_prefill", "device": "cpu", "source": "llmviewer", "engine": "torch 2.9", "dtype": "float32",
        "kv_dtype": "float32", "kernel": "sdpa_flash", "batch": 1, "heads": 16, "kv_heads": 8, "head_dim": 64,
        "v_head_dim": 64, "window": 0, "prefix": 0, "stable": True, "latency_us": 100.0,
    }  # fmt: skip
    with (folder / record.FILE).open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps({**common, "seq": 16 * at}) + "\n" for at in range(1, 11))
    status, document, _ = fit(capsys, folder, "-o", tmp_path / "profile.yaml")
    assert status == 0
    assert document["left_out"] == {"cpu has no matrix rate for 'fp32' nor a wider one; it has: bf16": 10}


def test_a_profile_of_unstable_rows_alone_is_refused_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All 84 products are unstable: nothing is fitted, and the message says what to do."""
    folder = write_samples(tmp_path / "s", *rows_of(timed(gemm_rows(), NOISE), "gemm", stable=False))
    output = tmp_path / "profile.yaml"
    status, _, message = fit(capsys, folder, "-o", output)
    assert (status, output.exists()) == (2, False)
    assert message == (
        "error: no profile is written: all 84 rows are unstable, their times spread by more than 10%; measure again on "
        f"an idle machine, and longer: `llmviewer calibrate run --full -o {folder}-again`; --force fits them as they "
        "are\n"
    )
    assert fit(capsys, folder, "-o", output, "--force")[0] == 0


def test_a_fit_of_unstable_rows_that_is_far_off_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sums 1.5 times faster and slower in turn, 24 of 32 unstable, are off by 41 %: above 30 %, below 100 %."""
    sums = timed(add_rows(), NOISE)
    sums["latency_us"] *= [1.5 if at % 2 else 1 / 1.5 for at in range(len(sums))]
    shaky = [{**row, "stable": at % 4 == 0} for at, row in enumerate(rows_of(sums, "elementwise"))]
    folder = write_samples(tmp_path / "s", *rows_of(timed(gemm_rows(), NOISE), "gemm"), *shaky)
    status, document, _ = fit(capsys, folder, "-o", tmp_path / "profile.yaml")
    assert (status, set(profiles.load(tmp_path / "profile.yaml").texts)) == (0, {"gemm/bf16/torch"})
    (reason,) = document["left_out"]
    assert reason.startswith("streaming/add/torch: most of its rows are unstable, and mean error on held-out")
    assert document["next"] == f"llmviewer analyze MODEL --hardware h100-sxm --profile {tmp_path / 'profile.yaml'}"


def test_a_fit_of_an_unknown_device_ends_with_the_command_that_names_its_chip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "profile.yaml"
    status, document, _ = fit(capsys, cpu_samples(tmp_path / "s"), "-o", output)
    assert status == 0
    assert document["next"] == f"llmviewer analyze MODEL --hardware {document['chip_file']} --profile {output}"
