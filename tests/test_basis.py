"""The words for the origin of times are earned kernel by kernel, weighted by their time."""

from __future__ import annotations

import pytest

from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.result.provenance import WORDS
from llmviewer.timing.lending import ASSUMED, MEASURED, OTHER_ENGINE

from .answers import analyze


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_every_chip_says_what_share_of_the_time_was_measured_on_it(engine: str) -> None:
    """`measured on` stands only before the share of kernels whose fit is of this chip and engine."""
    told = 0
    for chip in specs.names():
        try:
            found = analyze(
                "llama-3.1-8b", chip, efficiency="calibrated", engine=engine, quantization="w8a16"
            ).to_dict()
        except UserError:  # the engine does not run there, or the chip has no units
            continue
        shares, times = found["efficiency"]["time_by_basis"], found["provenance"]["times"]
        kernels = found["efficiency"]["kernels"].values()
        assert sum(shares.values()) == pytest.approx(1.0), chip
        assert {WORDS.get(one["basis"], "transferred") for one in kernels} >= set(shares), chip
        own = round(100.0 * shares.get("measured", 0.0))
        if shares.get("measured", 0.0) >= 0.005:
            assert f"kernels measured on {chip}" in times
            assert all(one["chip"] == chip for one in kernels if one["basis"] == MEASURED)
            assert own == 100 or f" for {own} % of their time" in times
        elif shares.get(WORDS[OTHER_ENGINE], 0.0) >= 0.005:
            assert times.startswith(f"kernels measured on {chip}, those of another engine")
        else:
            assert times.startswith("kernels not measured on this chip")
        for name in ("transferred", "assumed"):
            assert (name in times) == (shares.get(name, 0.0) >= 0.005), (chip, times)
        told += 1
    assert told > 30


def test_a_chip_of_assumed_kernels_alone_has_none_that_were_measured() -> None:
    found = analyze(
        "llama-3.1-8b", "m4-max", efficiency="calibrated", engine="llama.cpp", quantization="q4_0"
    ).to_dict()
    assert {one["basis"] for one in found["efficiency"]["kernels"].values()} == {ASSUMED}
    assert found["provenance"]["times"] == "kernels not measured on this chip: assumed; intervals widened"


def test_shares_weigh_kernels_by_the_time_of_the_request() -> None:
    """With one token there is no decode; its attention does not count, though its fit is selected."""
    found = analyze("llama-3.1-8b", "h100", efficiency="calibrated", engine="vllm", output_len=1)
    stage = found.stage("prefill")
    kernels, answer = found.to_dict()["efficiency"]["kernels"], found.to_dict()
    gemms = sum(one["time_s"] * one["layers"] for one in stage["operators"] if one["kind"] == "gemm")
    attention = sum(one["time_s"] * one["layers"] for one in stage["operators"] if one["kind"] == "attention")
    everything = sum(one["time_s"] * one["layers"] for one in stage["operators"])
    assert kernels["gemm/bf16"]["basis"] == kernels["attention_prefill/bf16"]["basis"] == MEASURED
    measured = answer["efficiency"]["time_by_basis"]["measured"]
    assert measured == pytest.approx((gemms + attention) / everything, rel=1e-6)
