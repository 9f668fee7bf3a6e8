"""`calibrate all`: a card is detected, measured in its time, fitted, and shown before and after; its power too."""

from __future__ import annotations

import ctypes
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch", reason="measuring needs torch")
pytest.importorskip("scipy", reason="fitting needs scipy")

import llmviewer as lv
from llmviewer.calibrate import card, environment, measured_chip, nvml, power_samples, record, sizes
from llmviewer.calibrate.deadline import Budget, OutOfTimeError, within
from llmviewer.calibrate.kernels import KERNELS
from llmviewer.calibrate.run import Progress
from llmviewer.calibrate.sources import TableSource
from llmviewer.cli import main
from llmviewer.hardware import specs
from llmviewer.reports import card_page, terminal
from tests.test_calibrate_fit import NOISE, add_rows, gemm_rows, rows_of, timed, write_samples
from tests.test_calibrate_model import SIZE, measured_rows, power_rows, write

#: An H100 as torch and NVML describe it.
H100 = {"device": "h100-sxm", "device_name": "NVIDIA H100 80GB HBM3", "gpus": 1, "torch": "2.9", "driver": "580.1"}
WANTED = card.Wanted(models=("llama-3.1-8b",), kind="cuda", minutes=2.0)


# --- time ---


def test_a_budget_is_what_is_left_of_a_share() -> None:
    now = iter((100.0, 130.0, 130.0, 190.0))
    budget = Budget(60.0, lambda: next(now))
    assert (budget.left_s(0.75), budget.left_s(), budget.left_s()) == (15.0, 30.0, 0.0)


def test_an_alarm_ends_the_phase_and_nothing_after_it() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(OutOfTimeError), within(1e6):
        signal.raise_signal(signal.SIGALRM)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    assert not issubclass(OutOfTimeError, Exception)  # kernels that fail are skipped; this one must not be


# --- plan ---


def test_shapes_of_the_models_are_measured_before_the_common_ones() -> None:
    size, plan = card.planned(replace(WANTED, models=("llama-3.1-8b", "qwen3-30b-a3b")))
    gemm = [(case.columns["n"], case.columns["k"]) for case in plan.cases if case.table == "gemm"]
    own = {(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (128256, 4096), (2048, 4096), (4096, 2048)}
    own |= {(512, 2048), (128, 2048), (151936, 2048)}
    assert set(gemm[: len(own)]) <= own
    assert set(gemm) > own
    keys = [record.row_key({"table": case.table, **case.columns}) for case in plan.cases]
    assert len(keys) == len(set(keys))
    whole = {(case.table, case.columns["model"]) for case in plan.cases if case.table in ("block", "model")}
    assert whole == {(table, model) for table in ("block", "model") for model in ("llama-3.1-8b", "qwen3-30b-a3b")}
    experts = {case.columns["experts"] for case in plan.cases if case.table == "moe"}
    assert (experts, size.power_s) == ({128}, 0.0)
    assert {case.columns["experts"] for case in card.planned(replace(WANTED, minutes=60.0))[1].cases if case.table == "moe"} > {128}  # fmt: skip  # noqa: E501


def test_a_processor_runs_layers_in_the_format_of_its_products() -> None:
    _, plan = card.planned(card.Wanted(models=("qwen3-0.6b",), kind="cpu", minutes=2.0))
    layers = [case for case in plan.cases if case.table in ("block", "model")]
    assert {case.columns["dtype"] for case in layers} == {"bfloat16"}
    assert {case.columns["stage"] for case in layers if case.table == "model"} == {"prefill", "decode"}
    assert card.planned(replace(WANTED, power=True))[0].power_s == 0.5


# --- the card ---


class FakeNvml:
    """NVML of two H100 with 18 NVLinks each; functions that are not named are not supported (status 3)."""

    VALUES: ClassVar[dict[str, int]] = {
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetEnforcedPowerLimit": 650_000,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetNvLinkState": 1,
        "nvmlDeviceGetTopologyCommonAncestor": 50,
    }

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name not in self.VALUES:
                return 3
            arguments[-1]._obj.value = self.VALUES[name]
            return 0

        return call

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:
        text.value = b"580.1"
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total = 81_559 * 2**20
        return 0


def test_facts_of_a_card_are_what_its_driver_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_library", FakeNvml)
    monkeypatch.setattr(nvml, "_handle", lambda library, device: ctypes.c_void_p(device + 1))
    assert nvml.facts(0, 2) == {
        "driver": "580.1", "max_clock_mhz": 1980.0, "power_limit_w": 650.0, "pcie_generation": 5, "pcie_width": 16,
        "reported_memory_bytes": 81_559 * 2.0**20, "nvlinks": 18, "topology": ["SYS x1"],
    }  # fmt: skip
    monkeypatch.setattr(FakeNvml, "VALUES", {})
    assert nvml.facts(0, 2) == {"driver": "580.1", "reported_memory_bytes": 81_559 * 2.0**20}
    monkeypatch.setattr(nvml, "_library", lambda: None)
    assert nvml.facts(0) == {}


def test_an_unknown_card_gets_a_spec_of_what_the_driver_reports(tmp_path: Path) -> None:
    """PCIe 5.0 x16 is 16 lanes x 32 GT/s x 128/130 / 8 = 63.0 GB/s; compute capability 9.0 is Hopper."""
    facts = {"power_limit_w": 650.0, "pcie_generation": 5, "pcie_width": 16, "compute_capability": "9.0"}
    facts |= {"device_name": "NVIDIA H999", "driver": "580.1", "kind": "cuda", "memory_bytes": 80e9}
    source = TableSource(path=tmp_path, tables={"gemm": timed(gemm_rows(), 0.0)}, environment=facts)
    chip = measured_chip.chip(measured_chip.text_of("h999", [source]), "h999")
    assert (chip.maker, chip.generation, chip.tdp_w) == ("NVIDIA", "hopper", 650.0)
    assert chip.link_rate == pytest.approx(63.015e9, rel=1e-3)
    older = replace(source, environment=facts | {"compute_capability": "3.5", "pcie_generation": 2})
    chip = measured_chip.chip(measured_chip.text_of("k40", [older]), "k40")
    assert (chip.generation, chip.links) == ("unknown", {})


def test_extensions_of_a_processor_are_those_of_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_text", lambda path: "model name\t: A\nflags\t\t: fpu avx2 avx512f amx_bf16\n")
    assert environment.cpu_isa() == ["amx_bf16", "avx512f", "avx2"]
    monkeypatch.setattr(environment, "_text", lambda path: "Features\t: fp asimd sve\n")
    assert environment.cpu_isa() == ["sve", "asimd"]


def test_threads_are_pinned_on_idle_machines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(environ={}, getloadavg=lambda: (0.1, 0.1, 0.1))
    monkeypatch.setattr(environment, "os", fake)
    monkeypatch.setattr(environment, "sys", SimpleNamespace(modules={}))
    environment.pin_threads()
    assert fake.environ == {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    fake.environ, fake.getloadavg = {}, lambda: (900.0, 9.0, 9.0)
    environment.pin_threads()
    assert fake.environ["OMP_WAIT_POLICY"] == "passive"
    assert "OMP_PROC_BIND" not in fake.environ
    assert environment.busy().startswith("load 900.0 on ")


# --- before and after ---


def h100(monkeypatch: pytest.MonkeyPatch, *, out_of_time: bool = False, **facts: object) -> None:
    """A machine with an H100 whose kernels take the times of known constants; its layers take 100 us."""
    described = H100 | facts
    monkeypatch.setattr(environment, "choose_device", lambda device: "cuda")
    monkeypatch.setattr(environment, "describe", lambda kind: described)
    monkeypatch.setattr(environment, "busy", lambda: "")

    def run(folder: Path, kind: str, size: object, on_progress: Callable[[Progress], None], **_: object) -> None:
        device = str(described["device"])
        kernels = (*rows_of(timed(gemm_rows(device), NOISE, specs.load("h100-sxm")), "gemm"),
                   *rows_of(timed(add_rows(device), NOISE, specs.load("h100-sxm")), "elementwise"))  # fmt: skip
        common = {"device": device, "source": "llmviewer", "engine": "torch 2.9", "stable": True}
        layers = [{**common, **row} for row in measured_rows() if row["table"] == "block"]
        write_samples(folder, *kernels, *layers, **described)
        on_progress(Progress(done=9, total=10, left_s=0.0, now="gemm", missing={"gemm": 1}))
        if out_of_time:
            raise OutOfTimeError

    monkeypatch.setattr(card.running, "run", run)


def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    """The JSON document of the command."""
    profile = str(tmp_path / "mine.yaml")
    words = ("calibrate", "all", "--model", "llama-3.1-8b", "-o", profile, "--format", "json", *words)
    assert main([*words]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("out_of_time", [False, True])
def test_a_known_card_is_shown_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, out_of_time: bool
) -> None:
    """Noise of 4 % leaves a median error of 0.6745 x 4 % = 2.7 % held out; the constants are far from torch's own.

    Rows that were measured when the time was over serve like those of a whole run.
    """
    h100(monkeypatch, out_of_time=out_of_time)
    found = asked(tmp_path, capsys)
    kernels = {one["fit"]: one for one in found["kernels"]}
    assert set(kernels) == {"gemm/bf16/torch", "streaming/add/torch"}
    for one in kernels.values():
        assert one["after"]["median"] == pytest.approx(0.027, abs=0.012)
        assert one["before"]["median"] > 2.0 * one["after"]["median"]
    assert kernels["gemm/bf16/torch"]["rows"] == 84
    assert {(row["stage"], row["graph"]) for row in found["layers"]} == {
        (stage, graph) for stage in ("prefill", "decode") for graph in (True, False)
    }
    for row in found["layers"]:
        assert row["after"]["error"] == pytest.approx(row["after"]["predicted_us"] / 100.0 - 1.0, abs=1e-3)
        assert (row["after"]["predicted_us"] != row["before"]["predicted_us"]) or not row["graph"]
    assert found["median_error"]["kernels"]["after"] < found["median_error"]["kernels"]["before"]
    profile = str(tmp_path / "mine.yaml")
    assert found["next"] == [f"llmviewer analyze llama-3.1-8b --hardware h100-sxm --profile {profile}"]
    assert (found["left"], found["chip_file"], found["profile"]) == ({"gemm": 1}, None, profile)
    assert main(found["next"][0].split()[1:]) == 0


def test_the_page_says_it_in_words_at_any_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    h100(monkeypatch, power_limit_w=650.0, pcie_generation=5, topology=["SYS x1"])
    monkeypatch.setattr(environment, "busy", lambda: "load 9.0 on 2 cores")
    page = card_page.page(asked(tmp_path, capsys))
    for width in (80, 160):
        text = terminal.text(page, replace(terminal.FILE, width=width))
        assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= width
        flat = " ".join(text.split())
        assert "NVIDIA H100 80GB HBM3 (h100-sxm), at most 650 W, PCIe 5, SYS x1" in flat
        assert "products, bf16" in flat and "1 row not measured for lack of time" in flat
        assert "load 9.0 on 2 cores by other programs: 0 of these rows are unstable" in flat
        assert "median, before -> after: kernels that were held out" in flat
        assert flat.endswith(f"--profile {tmp_path / 'mine.yaml'}")


def test_an_unknown_card_gets_its_spec_beside_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    h100(monkeypatch, device="h999", device_name="NVIDIA H999", memory_bytes=80e9, compute_capability="9.0")
    found = asked(tmp_path, capsys)
    assert found["chip_file"] == str(tmp_path / "h999.yaml")
    assert found["next"][0].split()[4] == found["chip_file"]
    assert main(found["next"][0].split()[1:]) == 0


def test_without_a_fit_the_table_has_what_there_is_and_the_status_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Time that ends before the first fit leaves errors before, a reason, and no profile."""
    h100(monkeypatch)
    monkeypatch.setattr(card.profiling.fit_tables, "fit_all", lambda samples: _over())
    found = asked(tmp_path, capsys, status=1)
    assert all(one["after"] is None and one["before"]["rows"] for one in found["kernels"])
    assert all(row["after"]["predicted_us"] is None and row["before"]["predicted_us"] for row in found["layers"])
    assert any("the time for fits was over" in reason for reason in found["not_fitted"])
    assert (found["profile"], found["next"], found["median_error"]["layers"]) == (None, [], {})
    assert not (tmp_path / "mine.yaml").exists()
    assert "no profile could be fitted" in terminal.text(card_page.page(found), replace(terminal.FILE, width=100))


def _over() -> Any:
    raise OutOfTimeError
    yield


def test_fits_that_were_made_in_time_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    samples = write_samples(
        tmp_path / "s", *rows_of(timed(gemm_rows(), NOISE), "gemm"), *rows_of(timed(add_rows(), NOISE), "elementwise")
    )
    inputs = card.profiling.prepare([samples], "")
    first = next(card.profiling.fit_tables.fit_all(inputs.gathered.samples))

    def fit_all(samples: Any) -> Any:
        yield first
        raise OutOfTimeError

    monkeypatch.setattr(card.profiling.fit_tables, "fit_all", fit_all)
    found = card.profiling.fit_profile(inputs, "")
    assert [fit.key for fit in found.fits] == ["streaming/add/torch"]
    assert inputs.gathered.left_out[f"gemm/bf16/torch: {card.profiling.NO_TIME}"] == 84


# --- refusals and interrupts ---


def test_what_cannot_be_done_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(card.running, "run", lambda *_, **__: pytest.fail("it measures"))
    words = ["calibrate", "all", "--model", "qwen3-0.6b", "-o", str(tmp_path / "p.yaml")]
    for wrong, why in (
        (["--device", "cpu", "--power"], "a processor has no such counter"),
        (["--device", "cpu", "--hardware", "h100"], "h100-sxm is no processor; what is measured is "),
        (["--device", "cpu", "--minutes", "0"], "minutes is 0"),
        (["--device", "cpu", "--model", "llama-3.1-8b", "-tp", "3"], "3"),
        (["--device", "cpu", "--model", "qwen3-0.7b"], "qwen3-0.7b"),
    ):
        assert main([*words, *wrong]) == 2
        assert why in capsys.readouterr().err
    assert main(["calibrate", "all"]) == 2
    assert "--model" in capsys.readouterr().err
    assert not list(tmp_path.glob("**/*.jsonl")) or not record.rows_kept(tmp_path / "p-samples")


def test_an_interrupt_keeps_the_rows_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(monkeypatch)

    def interrupted(columns: object, buffers: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(KERNELS, "linear", interrupted)
    words = ["calibrate", "all", "--model", "qwen3-0.6b", "--device", "cpu", "-o", str(tmp_path / "p.yaml")]
    assert main(words) == 130
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("interrupted")]
    assert len(told) == 1
    assert "the same command continues after them" in told[0]
    assert f"`llmviewer calibrate fit {tmp_path / 'p-samples'} -o profile.yaml` uses them" in told[0]
    assert record.rows_kept(tmp_path / "p-samples") > 0


def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with a small cache, of which few and short rows are measured."""
    size = replace(
        sizes.size_named("cpu", "quick"), samples=3, sample_s=1e-5, warmup_s=0.0, max_flops=1e7, samplers=(),
        dtypes=("bfloat16",), widths=(64, 128), tokens=(1, 2, 3, 4), copy_bytes=(2**18,), attention_models=(),
        block_prompts=(), block_caches=((1, 8),), expert_models=(), encoder_models=(), latent_models=(), launches=(),
    )  # fmt: skip
    monkeypatch.setattr(environment, "cpu_cache_bytes", lambda: 2**16)
    monkeypatch.setattr(environment, "physical_cores", lambda: 1)
    monkeypatch.setattr(card, "MAX_PASS_FLOPS", 1e8)
    for name in ("quick", "default"):
        monkeypatch.setitem(sizes.SIZES, ("cpu", name), size)


def test_a_real_processor_ends_with_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times of a busy machine may refuse every fit; the rows and layers are shown all the same."""
    tiny(monkeypatch)
    words = ["calibrate", "all", "--model", "qwen3-0.6b", "--device", "cpu", "-o", str(tmp_path / "p.yaml")]
    assert main([*words, "--format", "json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert {one["fit"] for one in found["kernels"]} >= {"streaming/norm/torch", "streaming/add/torch"}
    assert all(one["before"]["rows"] >= 8 for one in found["kernels"])
    assert {(row["table"], row["stage"]) for row in found["layers"]} == {("block", "decode")}
    assert found["chip_file"] == str(tmp_path / "cpu.yaml")
    assert specs.load(found["chip_file"]).generation == "cpu"


# --- power ---


def test_power_of_a_card_is_fitted_into_its_profile_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies of an H100 (700 W) that draw 0.2 + 0.6 x their share of the bandwidth, beside its products."""
    rows = [{**row, "device": "h100_sxm", "source": "llmviewer", "engine": "torch 2.9", "stable": True} for row in power_rows(0.2, 0.6)]  # fmt: skip  # noqa: E501
    samples = write_samples(tmp_path / "s", *rows_of(timed(gemm_rows(), NOISE), "gemm"), *rows)
    profile = str(tmp_path / "p.yaml")
    assert main(["calibrate", "fit", str(samples), "-o", profile, "--format", "json"]) == 0
    power = json.loads(capsys.readouterr().out)["power"]
    assert (power["idle"], power["memory"], power["rows"]) == pytest.approx((0.2, 0.6, 20), abs=0.01)
    assert power["most"] < 0.01
    plain, own = (lv.analyze("llama-3.1-8b", "h100", **words) for words in ({}, {"profile": profile}))
    shares = power_samples.shares_of(own.analysis.system.chip, own.analysis.system.efficiency)
    assert shares is not None
    assert (shares.idle, shares.memory, shares.basis) == (power["idle"], power["memory"], "measured on this card")
    assert own.figures["watts"] != plain.figures["watts"]
    other = lv.analyze("llama-3.1-8b", "h200", profile=profile).analysis.system
    assert power_samples.shares_of(other.chip, other.efficiency) == power_samples.shares_of(other.chip)


def test_rows_at_the_limit_of_a_card_say_no_more_than_the_limit(tmp_path: Path) -> None:
    """At 350 of 700 W, rows that ask for more draw half: 0.2 + 0.6 x share is found from those below."""
    rows = [{**row, "power_w": min(row["power_w"], 350.0)} for row in power_rows(0.2, 0.6)]
    _, tables = record.read(write(tmp_path / "s", rows))
    found = power_samples.own_shares(tables, specs.load("h100-sxm"), 350.0)
    assert found is not None
    assert (found[0].idle, found[0].memory, found[1]["most"]) == pytest.approx((0.2, 0.6, 0.0), abs=0.01)
    assert power_samples.own_shares({}, specs.load("h100-sxm")) is None
    assert SIZE.power_s == 0.0
