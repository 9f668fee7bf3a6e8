"""The verdict on a request: fit with remedies, rate, bottleneck, best single change by trying, certainty."""

from __future__ import annotations

import re

import pytest

import llmviewer as lv
from llmviewer import api
from llmviewer.api.trials import verdict
from llmviewer.cli import main
from llmviewer.simulation.limits import limit


def judged(model: str, hardware: str, batch: int = 1, **options: str):
    one = api.configuration(model, hardware, **options)
    request = api.request(batch, 1024, 128)
    return verdict(one, request, one.answer(request))


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def run(*words: str, status: int = 0) -> list[str]:
        monkeypatch.setenv("COLUMNS", "160")
        assert main(["analyze", *words]) == status
        return capsys.readouterr().out.splitlines()

    return run


def test_the_best_change_is_the_fastest_of_those_tried():
    found = judged("llama-2-7b", "h100", efficiency="ideal")
    assert {"--quantization w4a16", "--quantization fp8", "--kv-cache-dtype fp8", "-tp 2"} <= {
        change.option for change in found.changes
    }
    same_chip = [change for change in found.changes if change.devices == 1]
    assert found.best.result.e2e_s == min(change.result.e2e_s for change in same_chip) < found.result.e2e_s
    again = lv.analyze("llama-2-7b", "h100", efficiency="ideal", quantization="w4a16")
    (tried,) = [change for change in found.changes if change.option == "--quantization w4a16"]
    assert tried.result.e2e_s == again.e2e_s
    assert found.best_with_more_devices.option == "-tp 2"


def test_a_chip_is_offered_only_formats_that_it_multiplies():
    """An A100 has int8 and no fp8 or fp4 units; a B200 has fp4 and little int8."""
    offered = {change.option for change in judged("llama-2-7b", "a100").changes}
    assert "--quantization w8a8" in offered and not {"--quantization fp8", "--quantization nvfp4"} & offered
    assert "--quantization nvfp4" in {change.option for change in judged("llama-2-7b", "b200").changes}


def test_remedies_are_the_least_changes_that_fit():
    """Llama-3.1-70B in bf16 needs 136 GiB: two H100 hold it, and 4-bit weights fit one."""
    found = judged("llama-3.1-70b", "h100", 8)
    assert [change.option for change in found.remedies] == ["-tp 2", "--quantization w4a16"]
    assert not found.result.fits and all(change.result.fits for change in found.remedies)
    assert not lv.analyze("llama-3.1-70b", "h100", batch_size=8, quantization="w8a16").fits


def test_a_smaller_batch_is_a_remedy():
    found = judged("llama-2-7b", "a6000", 512)
    (change,) = [change for change in found.remedies if change.option.startswith("--batch-size")]
    batch = int(change.option.split()[1])
    assert change.result.fits and not lv.analyze("llama-2-7b", "a6000", batch_size=batch + 1).fits


def test_analyze_opens_with_five_lines(printed):
    lines = printed("llama-3.1-8b", "--hardware", "h100", "--batch-size", "8")
    heads = [line.split("  ")[0] for line in lines[: lines.index("")] if not line.startswith(" ")]
    assert heads == ["Fits", "Speed", "Bottleneck", "Best change", "Certainty"]
    result = lv.analyze("llama-3.1-8b", "h100", batch_size=8)
    speed = next(line for line in lines if line.startswith("Speed"))
    assert f"{1.0 / result.tpot_s:.0f} tokens/s per user by its kernels (80 % interval" in speed
    assert f"{8.0 / result.tpot_s:,.0f} for the batch" in speed
    found = re.search(r"([\d.]+) tokens/s per user by its kernels \(80 % interval ([\d.]+) to ([\d.]+)\)", speed)
    assert found is not None and float(found[2]) < float(found[1]) < float(found[3])
    low, high = result.to_dict()["metrics"]["intervals"]["tpot_s"]["80"]
    told = re.search(r"TPOT lies between −([\d.]+) % and \+([\d.]+) % of this one in 80 %", "\n".join(lines))
    assert told is not None and float(told[1]) / 100 == pytest.approx((result.tpot_s - low) / result.tpot_s, abs=1e-3)
    assert float(told[2]) / 100 == pytest.approx((high - result.tpot_s) / result.tpot_s, abs=1e-3)


def test_idle_slots_of_a_static_batch_generate_nothing(printed):
    """Answers of 16 tokens in a batch that runs for 31 steps: 15 of 31 steps of a slot."""
    request = ("--batch-size", "4", "--input-len", "64", "--output-len", "16")
    plain, padded = (
        next(line for line in printed("llama-3.2-1b", "--hardware", "l4", *request, *more) if "Speed" in line)
        for more in ((), ("--batching", "static,longest=32"))
    )
    rates = [float(re.findall(r"([\d,.]+) for the batch", line)[0].replace(",", "")) for line in (plain, padded)]
    assert rates[1] / rates[0] == pytest.approx(15.0 / 31.0, rel=0.02)


def test_a_model_that_does_not_fit_says_so_on_the_first_line(printed):
    first = printed("llama-3.1-70b", "--hardware", "h100", status=1)[0]
    assert re.match(r"DOES NOT FIT +1\d\d GiB needed, budget 72 GiB; it fits with -tp 2 or --quantization", first)


def test_a_model_too_large_for_every_tensor_group_fits_a_pipeline(printed):
    """810 GB of 16-bit weights on cards of 24 GB: 16 of them hold 384 GB."""
    first = printed("llama-3.1-405b", "--hardware", "rtx-4090", status=1)[0]
    devices = re.search(r"it fits with --spatial on \((\d+) devices\)$", first)
    chosen = lv.analyze("llama-3.1-405b", "rtx-4090", spatial="on")
    assert devices and int(devices[1]) == chosen.analysis.system.parallelism.devices > 810 / 24 and chosen.fits
    advice = lv.advise("llama-3.1-405b", "rtx-4090")
    assert any(change.option == "--spatial on" for change in advice.more_devices)


def test_ideal_times_are_called_bounds(printed):
    lines = printed("llama-2-7b", "--hardware", "h100", "--efficiency", "ideal")
    assert "at most " in lines[1] and "interval" not in lines[1]
    assert any(line.startswith("Certainty") and "lower bounds" in line for line in lines)


def test_a_report_opens_with_the_verdict_and_its_command(tmp_path, monkeypatch):
    words = ["report", "llama-2-7b", "--hardware", "h100,a6000", "-o", str(tmp_path / "report.md")]
    monkeypatch.setattr("sys.argv", ["/usr/bin/llmviewer", *words])
    assert main(words) == 0
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "**Command**: llmviewer report llama-2-7b --hardware h100,a6000" in text
    assert text.count("**Best change**") == 2 and text.index("**Best change**") < text.index("| Operator")


def test_brief_is_the_five_lines_and_a_terminal_leaves_out_the_shorter_stage(
    printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("llama-3.2-1b", "--hardware", "l4")
    piped = printed(*words)
    assert printed(*words, "--brief") == piped[: piped.index("")]
    assert [line.split()[0] for line in piped[: piped.index("")] if line[0] != " "] == [
        *("Fits", "Speed", "Bottleneck", "Best", "Certainty")
    ]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    seen = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in printed(*words)]
    at = next(row for row, line in enumerate(seen) if line.startswith("Prefill "))
    assert seen[at + 1] == "Operators  --full lists them"
    assert sum(line.startswith("  q_proj") for line in seen) == 1  # those of decode, which takes 95 % of the request
    full = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in printed(*words, "--full")]
    assert sum(line.startswith("  q_proj") for line in full) == 2
    assert main(["analyze", *words, "--brief", "--format", "json"]) == 2


def test_a_command_a_statistic_and_a_size_are_understood_as_people_type_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["analyse", "llama-3.2-1b", "--hardware", "2xl4", "--input-len", "4096+512", "--brief"]) == 0
    one, other = (limit("ttft", text) for text in ("p99=1s", "p99:1s"))
    assert one == other
    assert main(["analyse"]) == 2
    capsys.readouterr()
