"""Orderings over all chips and profiles: more bandwidth, and fewer bits where memory is the bound, are never slower."""

from __future__ import annotations

from functools import cache
from itertools import permutations, product
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.hardware import specs
from llmviewer.timing.kernels.power import UNIT_FLOPS_PER_CLOCK, clock_hz

CHIPS = specs.names()
#: Chips of NVIDIA whose tensor cores are known; the H20 publishes no units.
TENSOR_CORES = [
    name for name in CHIPS if specs.load(name).generation in UNIT_FLOPS_PER_CLOCK and specs.load(name).units is not None
]
ENGINES = ("kernels", "vllm", "sglang", "trtllm")
MODEL = "llama-3.2-3b"  # 6.4 GB in 16 bit: more than any cache of a GPU


#: Chips that people own: with less bandwidth than the host's work for a token of llama.cpp takes to outweigh.
OWNED = [name for name in CHIPS if specs.load(name).bandwidth_bytes_per_s < 6e11]


@cache
def result(chip: str, engine: str, **options: Any) -> lv.Result:
    return lv.analyze(MODEL, chip, engine=engine, input_len=512, output_len=16, **options)


def times(chip: str, engine: str, **options: Any) -> tuple[float, float]:
    found = result(chip, engine, **options)
    return float(found.tpot_s), float(found.ttft_s)


@pytest.mark.parametrize("chip", CHIPS)
def test_more_bandwidth_with_all_else_equal_is_never_slower(chip: str) -> None:
    for engine in ENGINES:
        for batch in (1, 16):
            before = times(chip, engine, batch_size=batch)
            after = times(chip, engine, batch_size=batch, set="bandwidth=x1.3")
            assert all(new <= old * (1.0 + 1e-9) for new, old in zip(after, before, strict=True)), (engine, batch)
        if chip in TENSOR_CORES and engine != "kernels":
            assert times(chip, engine, set="bandwidth=x1.3")[0] < times(chip, engine)[0], engine


def test_of_two_chips_of_a_generation_the_one_with_more_bandwidth_decodes_no_slower() -> None:
    """A GeForce RTX 3090 reads 936 GB/s and an RTX A6000 768, whatever rate their tensor cores are sold at."""
    pairs = [
        (fast, slow)
        for fast, slow in permutations(TENSOR_CORES, 2)
        if specs.load(fast).generation == specs.load(slow).generation
        and specs.load(fast).bandwidth_bytes_per_s > 1.1 * specs.load(slow).bandwidth_bytes_per_s
    ]
    assert ("rtx-3090", "a6000") in pairs and len(pairs) > 80
    for fast, slow in pairs:
        cycles = [specs.load(chip).units * clock_hz(specs.load(chip)) for chip in (fast, slow)]
        formats = ("none", "w4a16") if cycles[0] >= cycles[1] else ("none",)  # small 4-bit products wait for clocks
        for engine, quantization in product(ENGINES, formats):
            tpot = [times(chip, engine, quantization=quantization)[0] for chip in (fast, slow)]
            assert tpot[0] <= tpot[1], (fast, slow, engine, quantization)


@pytest.mark.parametrize("chip", CHIPS)
def test_four_bits_are_no_slower_than_sixteen_where_memory_is_the_bound(chip: str) -> None:
    for engine in ENGINES:
        plain = result(chip, engine)
        if plain.stage("decode")["bound"] == "memory" and specs.load(chip).bandwidth_bytes_per_s < 1e13:
            four = times(chip, engine, quantization="w4a16")[0]
            assert four < float(plain.tpot_s) or plain.stage("decode")["served_s"].get("host"), engine


@pytest.mark.parametrize("chip", TENSOR_CORES)
def test_eight_bits_are_between_four_and_sixteen(chip: str) -> None:
    for engine in ENGINES:
        four, eight, sixteen = (times(chip, engine, quantization=name)[0] for name in ("w4a16", "w8a16", "none"))
        assert four < eight < sixteen, engine


@pytest.mark.parametrize("chip", OWNED)
def test_llama_cpp_reads_the_weights_at_a_plausible_share_of_the_bandwidth(chip: str) -> None:
    """7.505B of 8.03B weights have 4.5 bits in q4_0, and 525M (the output) 6.5625 in q6_k: 4.65 GB for each token."""
    found = lv.analyze("llama-3.1-8b", chip, engine="llama.cpp", quantization="q4_0", input_len=64, output_len=16)
    read = 7.505e9 * 4.5 / 8 + 525.3e6 * 6.5625 / 8
    share = read / float(found.tpot_s) / float(specs.load(chip).bandwidth_bytes_per_s)
    assert 0.4 < share < 0.95
