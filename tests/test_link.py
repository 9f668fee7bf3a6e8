"""The link between devices: the chip's default, another of its links, or PCIe without peer-to-peer access."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import llmviewer as lv
from llmviewer.calibrate import tables
from llmviewer.core.errors import UserError
from llmviewer.hardware.specs import load
from llmviewer.ops.collective import CollectiveShape
from llmviewer.techniques.parallel.sizes import linked_by

SIZES = {"input_len": 512, "output_len": 2}


def prefill_s(chip: str, **options: str | int) -> float:
    return float(lv.analyze("llama-2-7b", chip, **SIZES, **options).metrics()["ttft_s"])


def test_peer_to_peer_access_is_the_default() -> None:
    default = prefill_s("l40s", tensor_parallel_size=4)
    assert default == prefill_s("l40s", tensor_parallel_size=4, link="pcie")
    assert prefill_s("l40s", tensor_parallel_size=4, link="pcie-host") > 1.5 * default


@pytest.mark.parametrize(
    "split",
    [
        {"tensor_parallel_size": 4},
        {"context_parallel_size": 4},
        {"pipeline_parallel_size": 4},
        {"tensor_parallel_size": 2, "data_parallel_size": 2, "expert_parallel_size": 4},
    ],
    ids=str,
)
def test_every_exchange_between_devices_uses_the_link(split: dict[str, int]) -> None:
    def collectives(**options: str | int) -> set[str]:
        found = lv.analyze("qwen1.5-moe-a2.7b", "l40s", **SIZES, **split, **options).to_dict()
        return {"/".join(name.split("/")[:2]) for name in found["efficiency"]["kernels"] if "collective/" in name}

    assert collectives(link="pcie-host") == {f"{name}-host" for name in collectives()}


def test_a_bridge_is_chosen_by_its_link() -> None:
    a40 = linked_by(load("a40"), "nvlink")
    assert (a40.default_link, a40.link_rate, a40.near) == ("nvlink", 56.25e9, 2.0)


def test_pcie_through_the_host_has_the_rate_of_pcie() -> None:
    chip = linked_by(load("l40s"), "pcie-host")
    assert chip.through_host
    assert chip.link_rate == load("l40s").link_rate == 31.5e9


def test_a_slot_has_its_lanes_and_the_access_of_the_card() -> None:
    """8 lanes of PCIe 4 are half of 31.5 GB/s, between cards and to the host."""
    for name, slot, link in (
        ("l40s", "pcie-4-x8", "pcie"), ("l40s", "pcie-4-x8-host", "pcie-host"), ("rtx-3090", "pcie-4-x8", "pcie-host"),
    ):  # fmt: skip
        chip = linked_by(load(name), slot)
        assert (chip.default_link, chip.link_rate, chip.host_link_rate) == (link, 15.75e9, 15.75e9)
    assert linked_by(load("rtx-5090"), "pcie-5-x16").link_rate == load("rtx-5090").link_rate
    with pytest.raises(UserError, match=r"link pcie-5-x16: 63 GB/s each way, but l40s has 31\.5"):
        linked_by(load("l40s"), "pcie-5-x16")


@pytest.mark.parametrize(
    ("model", "chip", "form", "tokens", "access", "longer"),
    [
        ("qwen3.5-35b-a3b", "rtx-5090", "nvfp4", 90_000, "pcie", 1.34),
        ("qwen3.5-27b", "rtx-3090", "awq", 30_000, "nvlink", 1.35),
    ],
)
def test_prompts_of_pairs_without_peer_access(
    model: str, chip: str, form: str, tokens: int, access: str, longer: float
) -> None:
    """Pairs of cards with and without it: https://github.com/noonghunna/club-3090/blob/master/docs/PCIE_P2P.md."""
    options: dict[str, Any] = {"quantization": form, "tensor_parallel_size": 2, "engine": "vllm", "output_len": 2}
    ttft = [
        float(lv.analyze(model, chip, input_len=tokens, **options, **link).metrics()["ttft_s"])
        for link in ({}, {"link": access})
    ]
    assert ttft[0] / ttft[1] == pytest.approx(longer, rel=0.1)


def test_an_unknown_link_is_refused_with_those_of_the_chip() -> None:
    with pytest.raises(UserError, match="unknown link of l40s 'nvlink'; allowed: pcie, pcie-host, pcie-"):
        linked_by(load("l40s"), "nvlink")
    with pytest.raises(UserError, match="m4-max publishes no link between devices"):
        linked_by(load("m4-max"), "pcie")


def reads_through_host(gpus: int = 4, **columns: str) -> bool:
    row = {"device": "l40s", "source": "aiconfigurator", "engine": "vllm 0.22.0", "op": "all_reduce", **columns}
    frame = tables.with_default_columns(pd.DataFrame([{**row, "gpus": gpus, "bytes": 1024, "latency_us": 10.0}]))
    (group,) = tables.row_groups(frame)
    assert isinstance(group, tables.RowGroup)
    shape = group.operators[-1].shape
    assert isinstance(shape, CollectiveShape)
    return shape.through_host


def test_rows_of_a_box_without_peer_access_are_read_as_such() -> None:
    assert reads_through_host()
    assert not reads_through_host(gpus=2), "pairs of this box have access"
    assert not reads_through_host(device="rtx_pro_6000_server")
    assert not reads_through_host(source="another lab")
    assert not reads_through_host(link="pcie"), "the column overrides what is known of the box"
    assert reads_through_host(device="a40", link="pcie-host")
