"""Collectives as kernels: latency, chunks, topology, an engine's own kernels, and host launches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.ir import Operator, Tensor, whole
from llmviewer.hardware.chip import NETWORK, Chip, Link
from llmviewer.hardware.specs import load, names
from llmviewer.ops.collective import Collective, CollectiveShape, collective
from llmviewer.timing import roofline
from llmviewer.timing.calibrated import Calibrated
from llmviewer.timing.kernels import collective as kernels
from llmviewer.timing.kernels.family import Constants
from llmviewer.timing.profile import Profile
from llmviewer.timing.roofline import AlgorithmRates, Rates, collective_time, ideal

#: Close to the fit of NCCL on an H100: no engine kernels, no host launch.
NCCL: dict[str, float] = {
    "start": 9.9, "hop": 1.386, "link": 0.8, "bus": 0.62, "far": 0.6, "crossing": 0.14, "crowding": 1.3, "switch": 0.95,
    "host": 0.0, "host_device": 0.0, "own_start": 5.94, "one_shot": 0.7, "two_shot": 0.6, "own_most": 0.0,
}  # fmt: skip
ENGINE = NCCL | {"own_most": 16.0}


def exchanged(
    pattern: Collective, devices: float, size: Count, near: float = np.inf, *, through_host: bool = False
) -> Operator:
    x = Tensor(name="x", elements=size / 2.0, dtype=DTYPES["bf16"])
    shape = CollectiveShape(pattern=pattern, devices=devices, size_bytes=size, near=near, through_host=through_host)
    return collective("sum", (whole(x),), (whole(x.called("y")),), 1.0, shape)


def seconds(constants: Constants, operator: Operator, chip: Chip) -> Count:
    timing = roofline.time_operator(
        operator, chip, lambda o, c: kernels.rates(o, c, constants), operator.traffic_bytes
    )  # fmt: skip
    return timing.time_s


def all_reduce(constants: Constants, devices: float, size: Count, chip: str = "h100-sxm") -> Count:
    loaded = load(chip)
    operator = exchanged(Collective.ALL_REDUCE, devices, size, loaded.near)
    return seconds(constants, operator, loaded)


def test_latency_is_a_start_time_plus_sequential_messages() -> None:
    """H100 at 1.98 GHz: 9,900 cycles 5 us, 1,386 cycles 0.7 us; rings of 2, 4, 8 send 2, 6, 14 messages."""
    for devices, expected in ((2.0, 6.4e-6), (4.0, 9.2e-6), (8.0, 14.8e-6)):
        assert all_reduce(NCCL, devices, 1e-3) == pytest.approx(expected, rel=1e-3)


def test_latency_is_counted_in_cycles() -> None:
    """An A100 runs at 1.41 GHz: 1.98 / 1.41 of the H100's 6.4 us; measured 10 us."""
    assert all_reduce(NCCL, 2.0, 1e-3, "a100-80gb-sxm") == pytest.approx(6.4e-6 * 1.98 / 1.41, rel=1e-3)


def test_a_ring_adds_a_copy_of_part_of_its_own_chunk() -> None:
    """1 GB: n = 2 sends 1 GB in 2 chunks of 2.35, n = 4 1.5 GB in 6 of 6.35; latency then counts little (0.6)."""
    for devices, sent in ((2.0, 1.0 * 2.35 / 2.0), (4.0, 1.5 * 6.35 / 6.0)):
        sending = sent * 1e9 / (0.8 * 450e9)
        latency = 5e-6 + 0.7e-6 * 2.0 * (devices - 1.0)
        expected = (sending**0.6 + latency**0.6) ** (1.0 / 0.6)
        assert all_reduce(NCCL, devices, 1e9) == pytest.approx(expected)


def test_a_switch_with_in_network_reduction_speeds_up_eight_devices() -> None:
    """H100: 1.75 GB at 0.95 of 450 GB/s; an A100's switch only forwards: 14 chunks of 14.35 at 0.8 of 300 GB/s."""
    far = 1e15
    assert all_reduce(NCCL, 8.0, far) == pytest.approx(1.75 * far / (0.95 * 450e9), rel=1e-2)
    expected = 1.75 * far * 14.35 / 14.0 / (0.8 * 300e9)
    assert all_reduce(NCCL, 8.0, far, "a100-80gb-sxm") == pytest.approx(expected, rel=1e-2)


def bus_rates(chip: str, *, through_host: bool = False) -> list[float]:
    """GB/s that each of 2, 4 and 8 cards sends in a long all-reduce, 2 (n - 1) / n of its bytes."""
    size, loaded = 1e15, load(chip)
    operators = {
        n: exchanged(Collective.ALL_REDUCE, n, size, loaded.near, through_host=through_host) for n in (2.0, 4.0, 8.0)
    }
    return [2.0 * (n - 1.0) / n * size / float(seconds(NCCL, op, loaded)) / 1e9 for n, op in operators.items()]


def test_many_cards_keep_a_share_of_what_two_reach_over_pcie() -> None:
    """RTX PRO 6000, 63 GB/s: 0.62 of it, then 0.6 + 0.4 / 4 and 0.6 + 0.4 / 16 of that; measured 39, 26, 24."""
    expected = [0.62 * 63.0 * share for share in (1.0, 0.7, 0.625)]
    assert bus_rates("rtx-pro-6000-server") == pytest.approx(expected, rel=1e-2)
    assert bus_rates("a40") == pytest.approx([half / 2.0 for half in expected], rel=1e-2), "PCIe 4 has half the rate"


def test_cards_without_peer_access_share_the_hosts_memory() -> None:
    """L40S, 31.5 GB/s: 0.2 of it with 2, 0.14 with 4, 0.14 / 2^1.3 with 8; measured 4 to 5 and 1.5 to 2.2."""
    assert bus_rates("l40s", through_host=True) == pytest.approx([6.3, 4.41, 1.79], rel=1e-2)
    assert bus_rates("l40s")[2] == pytest.approx(0.625 * 19.5, rel=1e-2), "peer-to-peer access is the default"


@given(st.floats(2.0, 8.0), st.floats(1.0, 2.0**30), st.floats(0.01, 1.0), st.floats(0.0, 3.0))
def test_the_way_through_the_host_is_the_longest(n: float, size: float, crossing: float, crowding: float) -> None:
    """More cards never take less time than a pair, and none less than with peer-to-peer access of many cards."""
    chip, box = load("rtx-4090"), NCCL | {"crossing": crossing, "crowding": crowding}

    def taken(devices: float, *, through_host: bool = True) -> float:
        operator = exchanged(Collective.ALL_REDUCE, devices, size, through_host=through_host)
        return float(seconds(box, operator, chip))

    assert taken(n) >= taken(2.0) * (1.0 - 1e-9)
    assert taken(2.0) > taken(2.0, through_host=False)


def test_engines_kernels_need_peer_access() -> None:
    chip = load("l40s")
    near, far = (exchanged(Collective.ALL_REDUCE, 2.0, 65536.0, through_host=through) for through in (False, True))
    assert seconds(ENGINE, near, chip) < seconds(NCCL, near, chip)
    assert seconds(ENGINE, far, chip) == seconds(NCCL, far, chip)


def test_two_devices_of_a_mesh_have_one_of_its_links() -> None:
    """Two MI300X have one link: 64 of 448 GB/s."""
    size = 1e13
    expected = size * 2.35 / 2.0 / (0.8 * 448e9 / 7.0)
    assert all_reduce(NCCL, 2.0, size, "mi300x") == pytest.approx(expected, rel=1e-2)


def test_an_engines_own_all_reduce_is_one_shot_for_small_tensors() -> None:
    """4 devices, 64 KiB: one round of 3 us, 3 x 64 KiB at 0.7 of 450 GB/s; a NCCL ring would take over 9.2 us."""
    expected = 3e-6 + 3.0 * 65536.0 / (0.7 * 450e9)
    assert all_reduce(ENGINE, 4.0, 65536.0) == pytest.approx(expected)
    assert all_reduce(NCCL, 4.0, 65536.0) > 9.2e-6


def test_larger_tensors_use_two_shot_and_the_largest_nccl() -> None:
    """8 devices: two rounds of 3 us, 1.75 x 4 MiB at 0.6 of 450 GB/s; beyond 16 MiB as NCCL."""
    size = 4.0 * 2.0**20
    assert all_reduce(ENGINE, 8.0, size) == pytest.approx(6e-6 + 1.75 * size / (0.6 * 450e9))
    assert all_reduce(ENGINE, 8.0, 17.0 * 2.0**20) == all_reduce(NCCL, 8.0, 17.0 * 2.0**20)


def test_engine_kernels_apply_only_to_all_reduces_within_one_link() -> None:
    h100 = load("h100-sxm")
    gather = exchanged(Collective.ALL_GATHER, 8.0, 1e5, h100.near)
    assert seconds(ENGINE, gather, h100) == seconds(NCCL, gather, h100)
    assert all_reduce(ENGINE, 4.0, 1e5, "l40s") == all_reduce(NCCL, 4.0, 1e5, "l40s"), "engines turn them off"


def test_host_launched_exchanges_take_at_least_the_launch_time() -> None:
    """20 us plus 1 us per device; longer exchanges hide it."""
    eager = NCCL | {"host": 20.0, "host_device": 1.0}
    assert all_reduce(eager, 2.0, 1e3) == pytest.approx(22e-6)
    assert all_reduce(eager, 2.0, 1e9) == all_reduce(NCCL, 2.0, 1e9)


def test_a_network_has_its_own_latency_and_share() -> None:
    """A stage's output to another node: 5 us + 0.7 us x 4.5, and 1 GB at 0.92 of 50 GB/s."""
    h100 = load("h100-sxm")
    links = {**h100.links, NETWORK: Link(name=NETWORK, bandwidth_bytes_per_s=50e9)}
    chip = replace(h100, links=links)
    small, large = (exchanged(Collective.SEND, 2.0, size, 1.0) for size in (1e-6, 1e12))
    assert seconds(NCCL, small, chip) == pytest.approx(5e-6 + 0.7e-6 * 4.5, rel=1e-3)
    assert seconds(NCCL, large, chip) == pytest.approx(1e12 / (0.92 * 50e9), rel=1e-3)


def test_the_fastest_algorithm_is_used() -> None:
    shape = CollectiveShape(pattern=Collective.ALL_REDUCE, devices=4.0, size_bytes=np.array([1e3, 1e6]))
    sheet = ideal(exchanged(Collective.ALL_REDUCE, 4.0, 1.0), load("h100-sxm"))
    algorithms = (AlgorithmRates(latency_s=9e-6, link=1.5), AlgorithmRates(latency_s=3e-6, link=3.0, largest_bytes=1e4))
    rates: Rates = replace(sheet, algorithms=algorithms)
    expected = [3e-6 + 3e3 / 450e9, 9e-6 + 1.5e6 / 450e9]
    assert collective_time(shape, rates) == pytest.approx(expected)


@pytest.mark.parametrize("constants", [NCCL, ENGINE], ids=["library", "engine"])
@pytest.mark.parametrize("pattern", Collective)
def test_no_exchange_is_faster_than_the_data_sheet(pattern: Collective, constants: Constants) -> None:
    sizes = np.geomspace(1.0, 1e10, 60)
    for name in names():
        chip = load(name)
        for devices in (2.0, 4.0, 8.0):
            if chip.link_rate is None or chip.near < devices:
                continue
            operator = exchanged(pattern, devices, sizes, chip.near)
            least = roofline.time_operator(operator, chip, ideal, operator.traffic_bytes).time_s
            assert (np.asarray(seconds(constants, operator, chip)) >= np.asarray(least) * (1.0 - 1e-12)).all(), name


@pytest.mark.parametrize("devices", [2.0, 4.0, 8.0])
def test_more_bytes_never_take_less_time(devices: float) -> None:
    found = np.asarray(all_reduce(NCCL, devices, np.geomspace(1.0, 1e10, 200)))
    assert (np.diff(found) >= 0.0).all()


def profile(chip: str, *keys: str) -> Profile:
    constants = ", ".join(f"{name}: {value}" for name, value in kernels.FAMILY.start_values().items())
    text = f"constants: {{{constants}}}\nrange: {{}}\nresiduals: {{}}\n"
    return Profile(chip=chip, title=chip, generation="", provenance={}, texts=dict.fromkeys(keys, text), path="test")


def test_host_launched_measurements_are_not_used_for_cuda_graphs() -> None:
    """It is found by name; otherwise another chip's graph kernels are preferred."""
    own = profile("a100-80gb-sxm", "collective/all_reduce/vidur-host")
    lent = profile("h100-sxm", "collective/all_reduce/nccl", "collective/all_reduce/vllm-eager")
    operator = exchanged(Collective.ALL_REDUCE, 2.0, 1e6)
    served = Calibrated(sources=(own, lent), engine="vllm", chip="a100-80gb-sxm").select_fit("collective", operator)
    assert (served.fit.engine, served.basis) == ("nccl", "transferred, other engine")
    requested = Calibrated(sources=(own, lent), engine="vidur-host", chip="a100-80gb-sxm").select_fit(
        "collective", operator
    )
    assert (requested.fit.engine, requested.basis) == ("vidur-host", "measured")


def test_an_unmeasured_pattern_uses_the_nearest() -> None:
    lent = profile("h100-sxm", "collective/all_reduce/nccl", "collective/all_gather/nccl")
    found = Calibrated(sources=(lent,), chip="h100-sxm").select_fit("collective", exchanged(Collective.SEND, 2.0, 1e6))
    assert (found.fit.variant, found.basis) == ("all_gather", "assumed")
