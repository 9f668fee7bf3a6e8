"""Hot neurons (PowerInfer): work and memory of device and host, their overlap, and the transfers."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from llmviewer import models
from llmviewer.analysis import memory
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Operator, Pass, Place, check
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.hardware import specs
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from llmviewer.techniques.sparsity.neurons import HotNeurons, hot_neurons

from .answers import analyze

load = functools.cache(models.load)
flash: Pass = flash_attention(specs.load("rtx-4090"))
#: 26 % of the neurons have 80 % of the activations (the paper, OPT-30B).
PAPER = HotNeurons(gpu=0.26, active=0.1, predictor=0)
#: OPT-30B: hidden 7168, 28672 neurons, 48 layers, 2 bytes per weight.
MATRIX = 7168 * 28672 * 2
DENSE = [
    name for name in models.names() if any(op.role is OperatorRole.FEED_FORWARD_INPUT for _, op in load(name)._graph())
]


def split(name: str, step: Step, neurons: HotNeurons = PAPER) -> Graph:
    return hot_neurons(neurons)(load(name).graph(step))


def operator(graph: Graph, name: str) -> Operator:
    return next(op for _, op in graph if op.name == name)


def row(answer: Any, name: str) -> dict[str, Any]:
    return next(row for row in answer.stage("decode")["operators"] if row["name"] == name)


def opt(hot: str = "", **options: Any) -> Any:
    requested = {"hot_neurons": hot} if hot else {}
    return analyze("opt-30b", "rtx-4090", output_len=2, **{"batch_size": 1, **requested, **options})


def test_a_quarter_of_the_neurons_has_four_fifths_of_the_activations() -> None:
    """The curve goes through the paper's point for OPT-30B and through (1, 1)."""
    assert PAPER.hot_use * 0.26 == pytest.approx(0.8 * 0.1)
    assert PAPER.cold_use * 0.74 == pytest.approx(0.2 * 0.1)
    both = HotNeurons(gpu=0.43, active=0.1, hit=0.8)
    assert both.hot_use * 0.43 + both.cold_use * 0.57 == pytest.approx(0.1)


def test_hot_neurons_have_activation_probability_at_most_one() -> None:
    """A tenth on the device, half active: all hot ones and 0.4 / 0.9 of the cold ones."""
    neurons = HotNeurons(gpu=0.1, active=0.5)
    assert neurons.hot_use == 1.0 and neurons.cold_use == pytest.approx(0.4 / 0.9)


def test_the_device_stores_its_share_of_the_feed_forward_weights() -> None:
    """OPT-30B: 0.74 of 96 matrices of 411 MB less."""
    plain, found = load("opt-30b")._graph(), split("opt-30b", decode(1.0, 9.0))
    less = memory.weights_bytes(plain) - memory.weights_bytes(found)
    assert less == pytest.approx(0.74 * 96 * MATRIX, rel=1e-9)


def test_a_token_reads_8_percent_on_the_device_and_2_percent_on_the_host() -> None:
    before, found = (
        operator(g, "up_proj") for g in (load("opt-30b").graph(decode(1.0, 9.0)), split("opt-30b", decode(1.0, 9.0)))
    )
    assert found.moved_bytes(Place.HOST) == pytest.approx(0.02 * MATRIX)
    assert before.traffic_bytes - found.traffic_bytes == pytest.approx(0.92 * MATRIX)
    assert found.matmul_flops == pytest.approx(0.08 * before.matmul_flops)


@pytest.mark.parametrize("tokens", [1.0, 8.0, 1024.0])
def test_the_host_reads_the_union_of_the_cold_neurons(tokens: float) -> None:
    """0.74 (1 - (1 - 0.02 / 0.74)^T): 2 %, 14.6 %, all 74 %."""
    for name in ("up_proj", "down_proj"):
        found = operator(split("opt-30b", decode(tokens, 9.0)), name)
        assert found.moved_bytes(Place.HOST) == pytest.approx(0.74 * (1 - (1 - 0.02 / 0.74) ** tokens) * MATRIX)


def test_the_slower_of_host_and_device_sets_the_time() -> None:
    """One token, DDR5 of 96 GB/s: 8.22 MB in 85.6 us on the host and 32.9 MB in 32.6 us on the device; on an EPYC
    of 460.8 GB/s the host needs 17.8 us, and the device decides."""
    text = "gpu=0.26,active=0.1,predictor=0"
    slow, fast = row(opt(text), "up_proj"), row(opt(f"{text},host=epyc-9654-ddr5"), "up_proj")
    assert slow["bound"] == "host" and slow["time_s"] == pytest.approx(0.02 * MATRIX / 96e9)
    assert fast["bound"] == "memory" and fast["time_s"] == pytest.approx(0.08 * MATRIX / 1008e9, rel=0.01)


def test_a_token_crosses_the_link_once_each_way() -> None:
    """7168 fp16 values each way, with two matrices and with three; both are counted at the last."""
    for name, hidden in (("opt-30b", 7168), ("llama-2-7b", 4096)):
        crossing = {op.name: op.moved_bytes(Place.LINK) for _, op in split(name, decode(3.0, 9.0))}
        assert {k: v for k, v in crossing.items() if np.any(v)} == {"down_proj": 2 * 3 * hidden * 2}


def test_transfers_take_time_on_pcie() -> None:
    """One token: 14.3 kB each way at 31.5 GB/s, in parallel with compute."""
    rows = opt("gpu=0.26,active=0.1").analysis.evaluation.rows
    resources = next(dict(row.timing.resources) for row in rows if row.operator.name == "down_proj")
    assert resources["link"][-1] == pytest.approx(2 * 7168 * 2 / 31.5e9)


def test_a_host_with_known_rates_multiplies_no_faster_than_they_allow() -> None:
    """A prefill of 1024 tokens uses all cold neurons: 2 x 1024 x 0.74 x 7168 x 28672 FLOP at the EPYC's bf16 rate."""
    answer = opt("gpu=0.26,active=0.1,predictor=0,host=epyc-9654-ddr5", input_len=1024)
    found = next(r for r in answer.stage("prefill")["operators"] if r["name"] == "up_proj")
    rate = specs.load("epyc-9654").matrix_rate("fp16")
    assert found["bound"] == "host"
    assert found["time_s"] == pytest.approx(1024 * 0.74 * MATRIX / rate, rel=1e-6)


def test_all_neurons_on_the_device_equals_contextual_sparsity() -> None:
    both = [opt(hot_neurons="gpu=1,active=0.1"), opt(contextual_sparsity="mlp=0.1")]
    assert both[0].stage("decode") == both[1].stage("decode") and both[0].metrics() == both[1].metrics()


def test_all_neurons_on_the_device_and_active_changes_nothing() -> None:
    assert opt("gpu=1,active=1").to_dict() == opt().to_dict()


def test_a_larger_device_share_is_never_slower_on_the_host() -> None:
    """A larger batch reduces the gain, because the host reads more."""
    step = decode(np.array([1.0, 4.0, 16.0, 64.0]), 9.0)
    read = [
        operator(split("opt-30b", step, HotNeurons(gpu=gpu, active=0.1)), "up_proj").moved_bytes(Place.HOST)
        for gpu in (0.1, 0.3, 0.5, 0.9)
    ]
    assert all(np.all(more >= less) for more, less in pairwise(read))
    assert all(np.all(np.diff(each) > 0) for each in read)


def test_a_point_of_a_sweep_is_bit_identical_to_the_single_point() -> None:
    text, batches = "gpu=0.3,active=0.1", [1, 3, 64]
    sweep = opt(text, batch_size=batches)
    for at, batch in enumerate(batches):
        single = opt(text, batch_size=batch)
        assert sweep.metrics(at) == single.metrics() and sweep.stage("decode", at) == single.stage("decode")


@pytest.mark.parametrize("name", DENSE)
def test_host_and_device_together_store_and_compute_the_original_work(name: str) -> None:
    """With every neuron active; later passes accept the graph, and cold weights have the format of hot ones."""
    for step in (decode(2.0, 300.0), prefill(1.0, 64.0)):
        plain = load(name).graph(step)
        found = hot_neurons(HotNeurons(gpu=0.25, active=1.0))(plain)
        stored = [sum(t.elements * n for t, n in g.stored_weights()) for g in (plain, found)]
        assert stored[0] == pytest.approx(stored[1], rel=1e-12)
        for (_, before), (_, after) in zip(plain, found, strict=True):
            share = 0.25 if before.role in (OperatorRole.FEED_FORWARD_INPUT, OperatorRole.FEED_FORWARD_OUTPUT) else 1.0
            assert after.matmul_flops == pytest.approx(share * before.matmul_flops)
    for scheme in ("w4a16", "w8a8"):
        low = flash(quantize(parse_scheme(scheme))(split(name, decode(2.0, 300.0))))
        check(low)
        for op in (op for _, op in low if op.moved_bytes(Place.HOST)):
            hot, cold = (a.tensor for a in op.reads if a.tensor.name.endswith(".weight"))
            assert hot.dtype == cold.dtype and cold.place is Place.HOST


@pytest.mark.parametrize("devices", [2, 4])
def test_devices_divide_hot_neurons_and_the_host(devices: int) -> None:
    """Each has 1/n of hot and cold neurons and 1/n of the host's bandwidth: the cold part takes as long as before, and
    bounds what the devices alone would make n times as fast."""
    hot = "gpu=0.26,active=0.1,predictor=0"
    one, several = (row(opt(hot, tensor_parallel_size=n), "up_proj") for n in (1, devices))
    assert several["matmul_flops"] == pytest.approx(one["matmul_flops"] / devices)
    assert several["weight_read_bytes"] == pytest.approx(one["weight_read_bytes"] / devices)
    assert several["bound"] == "host"
    cold = split("opt-30b", decode(1.0, 1023.0), HotNeurons(gpu=0.26, active=0.1, predictor=0))
    moved = float(operator(cold, "up_proj").moved_bytes(Place.HOST))
    assert several["time_s"] == pytest.approx(moved / specs.host("desktop-ddr5-6000")[0].bandwidth_bytes_per_s)
    hosts = [opt(hot, tensor_parallel_size=n).to_dict()["memory"]["host_bytes"] for n in (1, devices)]
    assert hosts[1] == pytest.approx(hosts[0] / devices)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mixtral-8x7b", {}, "no dense feed-forward part"),
        ("opt-30b", {"hot_neurons": "gpu=0.3"}, "active is missing"),
        ("opt-30b", {"hot_neurons": "gpu=0.3,active=0.1,host=desktop"}, "host"),
        ("opt-30b", {"hot_neurons": "gpu=0.3,active=0.1,host=samsung-990-pro"}, "host"),
        ("opt-30b", {"hot_neurons": "gpu=0.3,active=0.6,hit=0.8"}, "allowed: 0.3 .gpu. to 0.5"),
        ("opt-30b", {"hot_neurons": "gpu=0.3,active=0.1,hit=0.2"}, "allowed: 0.3 .gpu. to 1"),
        ("opt-30b", {"low_rank": "512"}, "low_rank"),
        ("opt-30b", {"contextual_sparsity": "mlp=0.1"}, "remove mlp"),
    ],
)
def test_invalid_options_are_rejected_with_a_reason(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        analyze(name, "rtx-4090", **{"hot_neurons": "gpu=0.3,active=0.1", **options})


def test_a_chip_without_a_host_link_is_rejected() -> None:
    with pytest.raises(UserError, match="no link to a host"):
        analyze("opt-30b", "tpu-v5e", hot_neurons="gpu=0.3,active=0.1")


@pytest.mark.parametrize(
    "options",
    [
        {"prune": "width=0.75"},
        {"matformer": "0.5"},
        {"prune": "2:4"},
        {"fusion": "all"},
        {"lora": "rank=16"},
        {"skip_layers": "0.5"},
        {"contextual_sparsity": "attention=0.5"},
    ],
)
def test_hot_neurons_compose_with_other_techniques(options: dict[str, str]) -> None:
    """The device stores less than without it, and decode still waits for the host."""
    text = {"hot_neurons": "gpu=0.1,active=0.3,predictor=0"}
    both, other = (analyze("llama-2-7b", "rtx-4090", output_len=2, **{**options, **more}) for more in (text, {}))
    assert both.memory["weights_bytes"] < other.memory["weights_bytes"]
    assert "host" in both.stage("decode")["time_by_bound_s"]


@pytest.mark.parametrize(("options", "kept"), [({"matformer": "0.5"}, 0.5), ({"quantization": "w8a16"}, 0.5)])
def test_smaller_matrices_reduce_host_work_but_not_link_traffic(options: dict[str, str], kept: float) -> None:
    """Llama-2-7B, half of the channels or bits (plus scales per group): input and sum stay 4096 elements of 2 bytes."""
    for name in ("gate_proj", "up_proj", "down_proj"):
        both = [
            next(row.operator for row in answer.analysis.evaluation.rows if row.operator.name == name)
            for answer in (
                analyze("llama-2-7b", "rtx-4090", output_len=2, hot_neurons="gpu=0.1,active=0.3", **more)
                for more in ({}, options)
            )
        ]
        plain, found = (op.moved_bytes(Place.HOST) for op in both)
        assert found == pytest.approx(kept * plain, rel=0.05)
        assert both[0].moved_bytes(Place.LINK) == pytest.approx(both[1].moved_bytes(Place.LINK))
