"""Dataflow systems: number of chips whose on-chip memory fits a model, and the time of a token."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from llmviewer.core.errors import UserError

from .answers import answer

#: Prompts are chunked: on-chip memory does not fit the activations of a long one.
PIECES = {"max_num_batched_tokens": 64}


@cache
def on_chips(model: str, hardware: str, **options: Any) -> dict[str, Any]:
    return answer(model, hardware, **(PIECES | {"spatial": "on"} | options))


def test_the_chips_store_all_weights() -> None:
    """Llama-2-70b: 138 GB over 864 chips of 230 MB x 0.9, in stages of 32 chips with three layers each."""
    found = on_chips("llama-2-70b", "groq-lpu")
    sizes, memory = found["parallelism"], found["memory"]
    assert sizes["devices"] == sizes["tensor"] * sizes["pipeline"] == 32 * 27
    assert memory["fits"]
    assert 138e9 / sizes["devices"] < memory["weights_bytes"] < memory["budget_bytes"]
    with pytest.raises(UserError, match="chooses the pipeline stages itself"):
        on_chips("llama-2-70b", "groq-lpu", pipeline_parallel_size="2")


def test_groqs_reported_speed_is_within_the_bounds() -> None:
    """Over 300 tokens/s per user on Llama-2-70b (survey, section 6.1).  Read from one chip after another, 137.95 GB
    at 80 TB/s allow 580; from chips in parallel more, because a bound has no latency."""
    found = on_chips("llama-2-70b", "groq-lpu")
    one_after_another = 80e12 / 137.95e9
    assert one_after_another == pytest.approx(580, rel=0.01)
    per_user = found["metrics"]["output_tokens_per_s_per_user"]
    assert 300 < one_after_another < per_user < one_after_another * found["parallelism"]["tensor"]


def test_a_floor_plan_is_between_the_bound_and_the_published_speed() -> None:
    """722 ns a message, and 409,600 bytes of weights in 40 cycles of 900 MHz, 9.2 TB/s into the matrix units.

    160 all-reduces of 16,384 bytes among 32 chips, each one message of every chip to all others, and 26 sends.
    """
    plain = on_chips("llama-2-70b", "groq-lpu")["metrics"]
    found = on_chips("llama-2-70b", "groq-lpu", spatial="on,hop_ns=722,load_gb_per_s=9216")
    loaded = 137.95e9 / 32 / 9.216e12
    collectives = 160 * (722e-9 + 31 * 16_384 / 240e9)
    sends = 26 * (722e-9 + 16_384 / 240e9)
    assert found["metrics"]["tpot_s"] == pytest.approx(loaded + collectives + sends, rel=0.08)  # and attention
    per_user = found["metrics"]["output_tokens_per_s_per_user"]
    assert 300 < per_user < plain["output_tokens_per_s_per_user"] / 8
    assert any(name.startswith("floor_plan") for name in found["passes"])


def test_nodes_exchange_directly_over_the_ports_that_groq_publishes() -> None:
    """SHIP (MLSys 2026): 300 ns a hop; 8 chips of a node are joined one to one by 7 ports of 10.66 GB/s each, 4 more
    lead to other nodes.  An all-reduce of 16,384 bytes among 32 chips: three hops, 2 x 7/8 of it over the ports of the
    node beside 3/8 over those to three other nodes.  Within one node: two hops."""
    options = {"spatial": "on,hop_ns=300,load_gb_per_s=9216", "link": "node", "network": "groq-quadfour"}
    found = on_chips("llama-2-70b", "groq-lpu", **options)
    reduced = 3 * 300e-9 + max(2 * 7 / 8 * 16_384 / 74.6e9, 3 / 8 * 16_384 / 42.6e9)
    sends = 26 * (300e-9 + 16_384 / 74.6e9)
    expected = 137.95e9 / 32 / 9.216e12 + 160 * reduced + sends
    assert found["metrics"]["tpot_s"] == pytest.approx(expected, rel=0.08)  # and attention


@pytest.mark.parametrize(("scheme", "width"), [("w8a16", 2), ("w8a8", 1)])
def test_weights_in_8_bit_enter_matrix_units_as_wide_as_their_products(scheme: str, width: int) -> None:
    """A layer of 855.7 M weights in each node of 8 chips: 23.2 us per layer in 16 bits, two all-reduces of two hops.

    In 16 bits, 480 tokens/s; reported is over 300 (ISCA 2022, https://doi.org/10.1145/3470496.3527405: half as many
    numbers of 16 bits as of 8 in every dimension of a product)."""
    options = {"spatial": "on,hop_ns=300,load_gb_per_s=9216", "link": "node", "network": "groq-quadfour"}
    found = on_chips("llama-2-70b", "groq-lpu", **options, tensor_parallel_size=8, quantization=scheme)
    assert found["parallelism"]["pipeline"] == 80
    reduced = 2 * 300e-9 + 2 * 7 / 8 * 16_384 / 74.6e9
    loaded = (80 * 855.7e6 * width + 32_000 * 8_192 * 2) / 8 / 9.216e12
    expected = loaded + 160 * reduced + 79 * (300e-9 + 16_384 / 74.6e9)
    assert found["metrics"]["tpot_s"] == pytest.approx(expected, rel=0.03)
    assert width == 1 or 300 < found["metrics"]["output_tokens_per_s_per_user"] < 300 * 1.7


@pytest.mark.parametrize("chip", ["rtx-5080", "mi350x", "groq-lpu", "a100"])
@pytest.mark.parametrize("scheme", ["nvfp4", "w4a4", "fp8", "w8a8", "none"])
def test_matrix_units_of_every_format_receive_operands(chip: str, scheme: str) -> None:
    """A rate above that of the memory changes nothing for formats that the chip computes as they are stored."""
    plain = answer("llama-2-7b", chip, **PIECES, quantization=scheme, spatial="on")["metrics"]["tpot_s"]
    loads = answer("llama-2-7b", chip, **PIECES, quantization=scheme, spatial="on,load_gb_per_s=1e6")["metrics"][
        "tpot_s"
    ]
    assert loads == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize("model", ["llama-2-7b", "jamba-v0.1"])
def test_one_stage_fewer_does_not_hold_the_weights(model: str) -> None:
    sizes = on_chips(model, "groq-lpu")["parallelism"]
    fewer = {"tensor_parallel_size": str(sizes["tensor"]), "pipeline_parallel_size": str(sizes["pipeline"] - 1)}
    assert not answer(model, "groq-lpu", **PIECES, **fewer)["memory"]["fits"]


def test_a_token_reads_all_weights_and_passes_all_stages() -> None:
    """TPOT: (weights + collectives of 80 layers + 26 sends), each stage after the other."""
    found = on_chips("llama-2-70b", "groq-lpu")
    stages, tensor = found["parallelism"]["pipeline"], found["parallelism"]["tensor"]
    streamed = 137.95e9 / tensor / 80e12
    collectives = 160 * 2 * (tensor - 1) / tensor * 8192 * 2 / 240e9
    sends = (stages - 1) * 8192 * 2 / 240e9
    assert found["metrics"]["tpot_s"] == pytest.approx(streamed + collectives + sends, rel=0.06)


def test_fewer_bits_need_fewer_chips_and_more_cache_needs_more() -> None:
    chips = [on_chips("llama-2-70b", "groq-lpu", **options)["parallelism"]["devices"]
             for options in ({}, {"quantization": "w8a16"}, {"spatial": "100000"})]  # fmt: skip
    assert chips[1] < chips[0] < chips[2]


def test_a_model_that_fits_one_chip_needs_one() -> None:
    """44 GB of a wafer fit the 26 GB of Llama-2-13b; the result is that of the single wafer."""
    assert (
        on_chips("llama-2-13b", "cerebras-wse-3")["metrics"]
        == answer("llama-2-13b", "cerebras-wse-3", **PIECES)["metrics"]
    )


def test_a_given_tensor_parallel_size_is_kept() -> None:
    assert on_chips("llama-2-7b", "graphcore-bow", tensor_parallel_size=4)["parallelism"]["tensor"] == 4


def test_a_full_pipeline_serves_as_many_users_as_stages() -> None:
    """With a micro-batch in every stage, tokens are produced once per stage time."""
    single = on_chips("llama-2-7b", "graphcore-bow", output_len=512)
    stages = single["parallelism"]["pipeline"]
    full = on_chips("llama-2-7b", "graphcore-bow", batch_size=stages, output_len=512, input_len=64,
                    spatial=f"4096,microbatches={stages}")  # fmt: skip
    assert full["metrics"]["output_tokens_per_s"] > 0.8 * stages * single["metrics"]["output_tokens_per_s"]


def test_a_layer_too_large_for_any_tensor_parallel_size_is_an_error() -> None:
    with pytest.raises(UserError, match=r"spatial: .*more memory or weights in fewer bits"):
        on_chips("falcon-7b", "groq-lpu")


def test_tensor_parallelism_over_pcie_gives_a_warning() -> None:
    found = answer("llama-2-7b", "a6000", tensor_parallel_size=2)
    assert "2 devices exchange data over pcie, 31.5 GB/s each way; nvlink would join 2" in found["warnings"]
    assert not answer("llama-2-7b", "h100-sxm", tensor_parallel_size=2)["warnings"]
