"""Collectives: ring and switch algorithms of a library, an engine's own kernels, latency and host launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from llmviewer.core.counts import Count
from llmviewer.core.ir import Operator
from llmviewer.hardware.chip import Chip
from llmviewer.ops.collective import Collective, CollectiveShape
from llmviewer.timing.kernels.family import Constant, Constants, Family, constant
from llmviewer.timing.kernels.power import clock_hz
from llmviewer.timing.roofline import AlgorithmRates, Rates, ideal

#: Chunks that each device of a ring copies locally in addition to those it sends: 2 devices reach 0.64 of an A100's
#: links and 0.57 to 0.72 of an H100's, 4 devices 0.72 and 0.68 to 0.79, 8 devices 0.74 of both (NCCL timed by
#: aiconfigurator).
LOCAL_CHUNKS = 0.35
#: Exponent for the sum of latency and sending: messages are cut into chunks, and each pays a part of the latency.  Two
#: hundred sizes on H100 (NCCL) and A100 (vidur) agree within 0.02.
OVERLAP = 0.6
#: Minimum number of devices for which NCCL reduces in the switch (NVLS), and generations whose switch supports it.
#: Source: https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc
MIN_SWITCH_DEVICES, SWITCH_GENERATIONS = 8.0, ("hopper", "blackwell")
#: Ending of the variants of cards without peer-to-peer access.
HOST_ENDING = "-host"
#: Links from each device to every other one: fewer devices use fewer of them (2 MI300X one of seven).
#: Source: https://rocm.blogs.amd.com/software-tools-optimization/mi300x-rccl-xgmi/README.html
MESH_LINKS = ("xgmi", "ethernet")
#: Latency of a message over PCIe and over a network relative to NVLink: 1.0 and 2.7 us to 0.6 (NCCL's ring, LL).
#: Source: https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc
PCIE_HOP, NETWORK_HOP = 1.0 / 0.6, 2.7 / 0.6
#: Fraction of a network port's rate: NCCL reaches 370 to 390 of 400 Gb/s between nodes of 8 ports.
#: Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
NETWORK_SHARE = 0.92
#: Share of a PCIe link's rate that two cards reach through the host's memory.  No group takes less time than a pair, as
#: few boxes are as good as 4 RTX 4090 (0.57, https://github.com/NVIDIA/nccl/issues/1603) or 5090 (0.56; 8 of them 0.44,
#: https://github.com/NVIDIA/nccl/issues/1639).  Pairs: RTX 5070 Ti 0.06 (https://github.com/sgl-project/sglang/pull/39605),
#: RTX 2080 Ti 0.25 (https://gist.github.com/Anthony-Hoo/5b407716011b3b74df0ddbd7688d6562); prompts on two RTX 5090 take
#: 1.34 times as long as with access, on two RTX 3090 1.35 to 1.49 times as long as over NVLink: 0.19 and 0.12
#: (https://github.com/noonghunna/club-3090/blob/master/docs/PCIE_P2P.md).  L40S: 4 cards 0.15, 8 0.06 (aiconfigurator).
PAIR_THROUGH_HOST = 0.2
#: Half the 80 % interval of log(measured / predicted) that these boxes need.
BOX_ERROR = 1.0
MIB = 2.0**20


def rates(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """Algorithms of the library and of the engine's own kernels, the fastest of which runs, and the host launch."""
    shape = operator.shape
    assert isinstance(shape, CollectiveShape)
    kind = shape.pattern, shape.devices, shape.near, shape.through_host
    try:
        algorithms = _cached_algorithms(kind, chip, tuple(constants.items()))
    except TypeError:  # terms of an explanation cannot be cached
        algorithms = _algorithms(kind, chip, constants)
    return replace(
        ideal(operator, chip),
        l2_bytes_per_s=None,
        algorithms=algorithms,
        host_launch_s=(constants["host"] + constants["host_device"] * shape.devices) * 1e-6,
    )


@lru_cache(maxsize=64)
def _cached_algorithms(kind: Any, chip: Chip, constants: tuple[tuple[str, float], ...]) -> tuple[AlgorithmRates, ...]:
    """`_algorithms` of plain numbers, cached, as they do not depend on the size."""
    return _algorithms(kind, chip, dict(constants))


def _algorithms(
    kind: tuple[Collective, float, float, bool], chip: Chip, constants: Constants
) -> tuple[AlgorithmRates, ...]:
    """All algorithms.  kind: all fields of the shape but the size."""
    pattern, devices, near, through_host = kind
    shape = CollectiveShape(pattern=pattern, devices=devices, size_bytes=0.0, near=near, through_host=through_host)
    return (*_library(shape, chip, constants), *_engine_kernels(shape, chip, constants))


def _library(shape: CollectiveShape, chip: Chip, constants: Constants) -> Iterator[AlgorithmRates]:
    """Algorithms of NCCL, RCCL and similar libraries; within one fast link they use rings."""
    cycle = 1e3 / clock_hz(chip)
    for algorithm in shape.algorithms():
        if algorithm.name == "one-shot" or (algorithm.name == "tree" and not algorithm.network):
            continue
        far = algorithm.network / max(algorithm.link + algorithm.network, 1e-9)
        near = PCIE_HOP if uses_host_bridge(chip) else 1.0
        hops = algorithm.steps * (near + (NETWORK_HOP - near) * far)
        yield AlgorithmRates(
            latency_s=(constants["start"] + constants["hop"] * hops) * cycle,
            link=algorithm.link / _link_share(algorithm.steps, shape, chip, constants),
            network=algorithm.network / NETWORK_SHARE,
            overlap=OVERLAP,
        )


def _link_share(steps: float, shape: CollectiveShape, chip: Chip, constants: Constants) -> float:
    """Fraction of the link's rate that the library reaches."""
    if shape.pattern is Collective.ALL_REDUCE and shape.devices >= MIN_SWITCH_DEVICES and has_reducing_switch(chip):
        return constants["switch"]
    reached = 1.0 if uses_host_bridge(chip) else constants["link"] * steps / (steps + LOCAL_CHUNKS)
    return reached * _topology_share(shape, chip, constants)


def _topology_share(shape: CollectiveShape, chip: Chip, constants: Constants) -> float:
    """Fraction of the link's rate that the topology provides to this many devices; 1 behind a switch.

    Over PCIe it includes the share of the link that the library reaches.
    """
    devices = max(2.0, min(shape.devices, shape.near))
    if uses_host_bridge(chip):
        two, far = constants["bus"], constants["far"]
        if shape.through_host:
            many = constants["crossing"] * (4.0 / devices) ** constants["crowding"]
            return float(min(PAIR_THROUGH_HOST * 2.0 * (devices - 1.0) / devices, many))
        return two * (far + (1.0 - far) * (2.0 / devices) * (2.0 / devices))
    return min((devices - 1.0) / (chip.near - 1.0), 1.0) if chip.default_link in MESH_LINKS and chip.near > 1.0 else 1.0


def _engine_kernels(shape: CollectiveShape, chip: Chip, constants: Constants) -> Iterator[AlgorithmRates]:
    """All-reduce kernels of an engine: one-shot, each device reads all data, and two-shot, first parts, then sums.

    They need peer-to-peer access, and engines turn them off between more than two PCIe cards.  Source:
    https://docs.vllm.ai/en/v0.9.2/api/vllm/distributed/device_communicators/custom_all_reduce.html.
    """
    n = shape.devices
    bridged = shape.through_host or (uses_host_bridge(chip) and n > 2.0)
    if shape.pattern is not Collective.ALL_REDUCE or shape.near < n or bridged or not constants["own_most"]:
        return
    latency, most = constants["own_start"] * 1e3 / clock_hz(chip), constants["own_most"] * MIB
    topology = _topology_share(shape, chip, constants)
    for rounds, sent, share in ((1.0, n - 1.0, "one_shot"), (2.0, 2.0 * (n - 1.0) / n, "two_shot")):
        yield AlgorithmRates(latency_s=latency * rounds, link=sent / (constants[share] * topology), largest_bytes=most)


def uses_host_bridge(chip: Chip) -> bool:
    """Whether devices communicate over the host's bridges: PCIe cards without links of their own."""
    return chip.default_link == "pcie" or chip.through_host


def has_reducing_switch(chip: Chip) -> bool:
    """Whether the devices are connected by a switch that can reduce data in transit."""
    return chip.default_link == "nvlink" and chip.generation in SWITCH_GENERATIONS


def quantities(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Number of devices, and bytes of the whole tensor."""
    shape = operator.shape
    assert isinstance(shape, CollectiveShape)
    return {"devices": shape.devices, "bytes": shape.size_bytes}


def variant(operator: Operator) -> str:
    """Pattern of the collective, such as `all_reduce`, or `all_reduce-host` without peer-to-peer access."""
    shape = operator.shape
    assert isinstance(shape, CollectiveShape)
    return f"{shape.pattern.value}{HOST_ENDING}" if shape.through_host else str(shape.pattern.value)


def limits(operator: Operator) -> Mapping[str, Count]:
    """Number of devices: what pairs reach says little of larger groups."""
    assert isinstance(operator.shape, CollectiveShape)
    return {"devices": operator.shape.devices}


#: Pattern -> patterns whose constants serve it if it was not measured, nearest first.
SUBSTITUTES = {
    "all_gather": ("reduce_scatter",), "reduce_scatter": ("all_gather",), "send": ("all_gather", "all_reduce"),
    "all_to_all": ("all_gather",), "all_reduce": ("all_gather",),
}  # fmt: skip
FAMILY = Family(
    name="collective",
    constants=(
        constant("start", "kcycle", 9.5, 0.0, 100.0, "the library's kernel before its first message"),
        constant("hop", "kcycle", 1.4, 0.0, 50.0, "one message of the library"),
        constant("link", "1", 0.8, 0.02, 1.0, "share of the link's rate that its chunks reach"),
        constant("bus", "1", 0.62, 0.02, 1.0, "share of a PCIe link's rate that two cards reach, with peer access"),
        constant("far", "1", 0.6, 0.0, 1.0, "share of that left to many cards"),
        constant("crossing", "1", 0.3, 0.01, 1.0, "share of a PCIe link's rate of four cards without peer access"),
        constant("crowding", "1", 1.0, 0.0, 3.0, "exponent of 4 / cards in the share of more"),
        constant("switch", "1", 0.95, 0.02, 1.0, "share of the link's rate with reduction in the switch"),
        constant("own_start", "kcycle", 6.0, 0.0, 50.0, "one round of the engine's own kernels"),
        constant("one_shot", "1", 0.6, 0.02, 1.0, "share of the link's rate, one-shot all-reduce"),
        constant("two_shot", "1", 0.6, 0.02, 1.0, "share of the link's rate, two-shot all-reduce"),
        Constant(
            name="own_most", unit="MiB", meaning="largest tensor of the engine's own kernels",
            start=0.0, low=0.0, high=1024.0, choices=(0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
        ),
        constant("host", "us", 20.0, 0.0, 200.0, "launch by the host, without a CUDA graph"),
        constant("host_device", "us", 0.1, 0.0, 20.0, "further launch time per device"),
    ),
    rates=rates,
    quantities=quantities,
    variant=variant,
    substitutes=SUBSTITUTES
    | {name + HOST_ENDING: tuple(near + HOST_ENDING for near in others) for name, others in SUBSTITUTES.items()},
    limits=limits,
    of_box=("crossing", "crowding"),
    box_error=lambda variant: BOX_ERROR if variant.endswith(HOST_ENDING) else 0.0,
)  # fmt: skip
