"""Timing: samples, spread, cold copies; with a fake clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="measuring needs torch")
import torch

from llmviewer.calibrate import environment
from llmviewer.calibrate.buffers import Buffers, TooLargeError
from llmviewer.calibrate.kernels.experts import row_ends
from llmviewer.calibrate.stopwatch import CpuStopwatch
from llmviewer.calibrate.timer import (
    DeviceReading,
    Limits,
    PreparedKernel,
    Samples,
    TooLongError,
    copies,
    measure,
    spread,
)

KIB = 2**10


class FakeStopwatch:
    """A fake clock on which successive calls take the given times [s]."""

    cache_bytes = 100.0

    def __init__(self, *seconds: float) -> None:
        self.seconds = cycle(seconds)
        self.calls: list[int] = []

    def prepare(self, work: PreparedKernel, calls: int) -> tuple[str, Callable[[], float]]:
        self.calls.append(calls)
        return "clock", lambda: next(self.seconds) * calls

    def reading(self, sample: Callable[[], float], power_s: float = 0.0) -> DeviceReading:
        return DeviceReading(clock_mhz=1000.0, power_w=300.0 if power_s else None, power_s=power_s)


def timed(*seconds: float, work: PreparedKernel | None = None, **limits: float) -> tuple[Samples, FakeStopwatch]:
    watch = FakeStopwatch(*seconds)
    return measure(work or PreparedKernel(run=lambda i: None), watch, Limits(**limits)), watch  # type: ignore[arg-type]


def test_the_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((4.0 - 2.0) / 3.0)
    assert spread([0.0, 0.0]) == math.inf


def test_a_steady_kernel_takes_twenty_samples_and_is_stable() -> None:
    timing, _ = timed(50e-6)
    assert len(timing.samples_us) == 20
    assert timing.latency_us == pytest.approx(50.0)
    assert timing.spread == pytest.approx(0.0)
    assert timing.stable


def test_a_kernel_with_a_large_spread_is_sampled_longer_and_marked_unstable() -> None:
    timing, _ = timed(50e-6, 100e-6)
    assert len(timing.samples_us) == 40
    assert timing.spread == pytest.approx((100.0 - 50.0) / 75.0)
    assert not timing.stable


def test_one_slow_sample_in_ten_changes_nothing() -> None:
    timing, _ = timed(*[50e-6] * 9, 500e-6)
    assert timing.latency_us == pytest.approx(50.0)
    assert timing.stable


def test_a_sample_contains_enough_calls_for_its_duration() -> None:
    _, watch = timed(50e-6, sample_s=1e-3)
    assert watch.calls == [1, 20]


def test_copies_that_fit_the_cache_are_used_once_per_sample() -> None:
    """Eight copies of 10 bytes stay in a cache of 100 bytes, so no copy is read twice within a sample."""
    _, watch = timed(50e-6, work=PreparedKernel(run=lambda i: None, copies=8, rotated_bytes=80.0), sample_s=1e-3)
    assert watch.calls[-1] == 8


def test_a_kernel_that_is_too_slow_is_aborted_before_sampling() -> None:
    with pytest.raises(TooLongError):
        timed(1.0, max_s=10.0)


@pytest.mark.parametrize("each", [1.0, 7.0, 99.0, 100.0, 200.0, 5000.0])
def test_all_copies_are_just_larger_than_twice_the_cache(each: float) -> None:
    count = copies(each, cache_bytes=100.0)
    assert count * each > 200.0
    assert (count - 1) * each <= 200.0


def test_rotating_inputs_are_larger_than_twice_the_cache_and_do_not_overlap() -> None:
    rotation = Buffers("cpu", 64 * KIB).rotating(torch.float32, (16, 32), (100,))
    assert rotation.total_bytes > 2 * 64 * KIB
    starts = [tensor.data_ptr() for pair in rotation.tensors for tensor in pair]
    ends = [tensor.data_ptr() + 4 * tensor.numel() for pair in rotation.tensors for tensor in pair]
    assert starts == sorted(starts)
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert all(tensor.isfinite().all() for pair in rotation.tensors for tensor in pair)


def test_buffers_that_do_not_fit_are_rejected_before_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmviewer.calibrate.buffers.free_bytes", lambda: 1e6)
    with pytest.raises(TooLargeError, match=r"out of memory: needs 4\.0 GiB"):
        Buffers("cpu", 64 * KIB).empty(torch.float32, (2**30,))


def test_the_cpu_rotates_through_all_copies_across_samples() -> None:
    seen: list[int] = []
    _, sample = CpuStopwatch(10.0).prepare(PreparedKernel(run=seen.append, copies=3), 2)
    assert sample() > 0.0
    sample()
    assert seen == [0, 1, 2, 0]


def test_every_last_level_cache_is_counted_once(tmp_path: Path) -> None:
    """Four cores, two of them under each L3 of 32 MiB."""
    for core, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        for index, (level, size, kind, cores) in enumerate(
            ((1, "32K", "Data", str(core)), (1, "32K", "Instruction", str(core)), (3, "32M", "Unified", shared))
        ):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", str(level)), ("size", size), ("type", kind), ("shared_cpu_list", cores)):
                (folder / name).write_text(text, encoding="utf-8")
    assert environment.cpu_cache_bytes(tmp_path) == 2 * 32 * 2**20


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA Something 9", "nvidia-something-9"),
    ],
)
def test_device_titles_map_to_chip_names(title: str, name: str) -> None:
    assert environment.chip_name(title) == name


def test_the_active_experts_have_equal_shares_of_the_rows() -> None:
    assert row_ends(8, 4, 4) == [2, 4, 6, 8]
    assert row_ends(8, 4, 2) == [4, 4, 8, 8]
    assert row_ends(8, 4, 1) == [8, 8, 8, 8]


def test_sustained_work_is_timed_after_power_has_settled() -> None:
    """The clock of a card falls under load, so the first calls are discarded."""
    timing, _ = timed(1e-3, settle_s=0.02)
    assert timing.settled_s >= 0.02
    assert timed(1e-3)[0].settled_s == 0.0
