"""What the survey (LLM Inference Unveiled, arXiv 2402.16363) states of its figures, as relations of our numbers.

Its tables count eager attention; where a statement depends on that, the test asks for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from llmviewer import hardware
from tests.answers import answer, operators

from .answers import analyze


def decode_time(batch: int, quantization: str, **options: Any) -> float:
    """One decode step of Llama-2-13B on an A6000, 1024 tokens in the cache [s] (Fig. 8)."""
    found = answer(
        "llama-2-13b", "a6000", batch_size=batch, input_len=1024, output_len=1, quantization=quantization, **options
    )
    return float(found["stages"]["decode"]["time_s"])


def prefill_time(length: int, quantization: str) -> float:
    """Prefill of one sequence of Llama-2-13B on an A6000 [s] (Fig. 9)."""
    found = answer("llama-2-13b", "a6000", input_len=length, output_len=1, quantization=quantization)
    return float(found["stages"]["prefill"]["time_s"])


class TestFigure6:
    """INT8 raises the compute roof only when all operands are int8."""

    def test_the_int8_roof_of_an_a6000_is_twice_the_fp16_one(self) -> None:
        """155 and 310 TOP/s in the survey; the sheet prints 154.8 and 309.7."""
        chip = hardware.load("a6000")
        assert chip.matrix_rate("fp16") == pytest.approx(155e12, rel=2e-3)
        assert chip.matrix_rate("int8") == pytest.approx(310e12, rel=2e-3)

    @pytest.mark.parametrize(
        ("quantization", "units"), [("none", "fp16"), ("w8a16", "fp16"), ("w16a8", "fp16"), ("w8a8", "int8")]
    )
    def test_only_int8_weights_times_int8_inputs_reach_it(self, quantization: str, units: str) -> None:
        found = operators(answer("llama-2-13b", "a6000", input_len=8192, quantization=quantization), "prefill")
        for name in ("q_proj", "up_proj", "down_proj"):
            assert found[name]["compute_dtype"] == units
            rate = found[name]["matmul_flops"] / found[name]["time_s"]
            assert rate <= hardware.load("a6000").matrix_rate(units) * (1 + 1e-12)
        assert found["up_proj"]["bound"] == "compute"

    def test_an_h100_has_no_int4_units_and_converts_to_int8(self) -> None:
        """Section 3.1.1: the H100 does not support INT4; operands are converted to a wider format."""
        found = operators(answer("llama-2-13b", "h100", quantization="w4a4"), "prefill")
        assert found["q_proj"]["compute_dtype"] == "int8"


class TestFigure7:
    """Temporary activations are small beside weights and cache in decode: their life is short."""

    @pytest.mark.parametrize(("batch", "length"), [(1, 1024), (1, 4096), (16, 1024), (64, 4096)])
    @pytest.mark.parametrize("quantization", ["none", "w8a8kv8", "w4a16kv4"])
    def test_they_are_below_two_percent_of_both_together(self, batch: int, length: int, quantization: str) -> None:
        """One decode step alone: a prefill of one token at most, so the worst step is the decode step."""
        found = answer(
            "llama-2-13b",
            "a6000",
            batch_size=batch,
            input_len=1,
            output_len=length,
            quantization=quantization,
        )["memory"]
        assert found["activations_bytes"] < 0.02 * (found["weights_bytes"] + found["kv_cache_bytes"])

    def test_the_weights_of_llama_13b_take_26_gigabytes_in_fp16(self) -> None:
        assert answer("llama-2-13b", "a6000")["memory"]["weights_bytes"] == pytest.approx(26e9, rel=5e-3)


class TestFigure8:
    """Decode of Llama-2-13B on an A6000, sequence length 1024: fewer bits of weights help a small batch only."""

    @pytest.mark.parametrize(("before", "after"), [("w16a16", "w8a16"), ("w8a16", "w4a16"), ("w4a16", "w2a16")])
    def test_at_batch_1_every_halving_of_the_weights_helps(self, before: str, after: str) -> None:
        assert decode_time(1, after) < 0.65 * decode_time(1, before)

    @pytest.mark.parametrize("after", ["w2a16", "w1a16"])
    def test_from_4_bits_to_2_or_1_a_linear_layer_gains_nothing_at_batch_512(self, after: str) -> None:
        """512 rows: 2 x 512 FLOP per weight in 154.8e12 FLOP/s take 6.6 ps, its 4.125 bits in 768e9 byte/s 0.67 ps."""
        layers = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        times = []
        for quantization in ("w4a16", after):
            found = operators(
                answer("llama-2-13b", "a6000", batch_size=512, input_len=1024, quantization=quantization), "decode"
            )
            times.append(sum(found[name]["time_s"] for name in layers))
        assert times[1] == times[0]

    @pytest.mark.parametrize("after", ["w2a16", "w1a16"])
    def test_the_whole_step_gains_less_the_larger_the_batch_is(self, after: str) -> None:
        gains = [decode_time(batch, "w4a16") / decode_time(batch, after) for batch in (1, 8, 64, 512)]
        assert gains == sorted(gains, reverse=True)
        assert gains[0] > 1.5 and gains[-1] == pytest.approx(1.0, abs=1e-3)


class TestFigure9:
    """Prefill of Llama-2-13B: fewer bits of weights help short prompts, not long ones."""

    def test_short_prompts_gain(self) -> None:
        assert prefill_time(16, "w4a16") < 0.4 * prefill_time(16, "w16a16")
        assert prefill_time(16, "w2a16") < 0.7 * prefill_time(16, "w4a16")

    @pytest.mark.parametrize("length", [2048, 8192])
    def test_long_prompts_gain_nothing(self, length: int) -> None:
        assert prefill_time(length, "w2a16") >= 0.995 * prefill_time(length, "w4a16")
        assert prefill_time(length, "w4a16") >= 0.99 * prefill_time(length, "w16a16")


class TestFigure11:
    """Beyond 50,000 tokens the cache is most of the memory of Llama-2-13B."""

    def test_the_cache_passes_half_of_the_memory_before_50_thousand_tokens(self) -> None:
        """819,200 bytes a token: 50,000 of them are 41 GB beside 26 GB of weights."""
        found = answer("llama-2-13b", "a6000", input_len=1, output_len=50_000)["memory"]
        assert found["kv_cache_bytes"] == 819_200 * 50_000
        assert found["kv_cache_bytes"] > 0.5 * found["total_bytes"]
        shorter = answer("llama-2-13b", "a6000", input_len=1, output_len=10_000)["memory"]
        assert shorter["kv_cache_bytes"] < 0.5 * shorter["total_bytes"]

    def test_quantizing_it_decreases_the_memory_significantly(self) -> None:
        totals = [
            answer("llama-2-13b", "a6000", input_len=1, output_len=100_000, quantization=f"w16a16kv{bits}")["memory"][
                "total_bytes"
            ]
            for bits in (16, 8, 4)
        ]
        assert totals[1] < 0.65 * totals[0] and totals[2] < 0.75 * totals[1]


class TestFigure19:
    """A larger batch raises throughput in decode, response latency and memory (Llama-2-13B, section 5.3)."""

    BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

    @pytest.mark.parametrize("batching", ["static", "continuous", "chunked"])
    def test_batch_raises_throughput_latency_and_memory(self, batching: str) -> None:
        found = analyze(
            "llama-2-13b", "h200", batch_size=self.BATCHES[:6], input_len=1024, output_len=128, batching=batching
        )
        rates, tpot, memory = (
            np.asarray(column)
            for column in (
                found.analysis.output_tokens_per_s,
                found.analysis.tpot_s,
                found.analysis.memory.total_bytes,
            )
        )
        for column in (rates, tpot, memory):
            assert (np.diff(column) > 0.0).all()

    def test_decode_throughput_grows_nearly_with_the_batch_while_weights_dominate_and_levels_off_behind(self) -> None:
        """A6000, 1024 tokens in the cache: 26 GB of weights against 0.84 GB of cache a sequence."""
        seconds = [decode_time(batch, "none") for batch in self.BATCHES]
        rates = [batch / time for batch, time in zip(self.BATCHES, seconds, strict=True)]
        gains = [after / before for before, after in pairwise(rates)]
        assert gains[0] > 1.9 and gains[-1] < 1.2
        assert rates == sorted(rates) and seconds == sorted(seconds)


def test_w4a16_stops_paying_at_large_batch_even_on_the_data_sheet() -> None:
    """A100, Llama-2-7B, 128 tokens in the cache: W4A16 is 3 times faster at batch 1; at batch 4096 both run at the
    16-bit peak and nothing is gained.  (That it becomes slower is a matter of kernels, which `ideal` leaves out.)"""
    batches = [1, 16, 128, 1024, 4096]

    def times(quantization: str) -> Any:
        found = analyze(
            "llama-2-7b", "a100", batch_size=batches, input_len=128, output_len=2, quantization=quantization
        )
        return np.asarray(found.analysis.tpot_s)

    gain = times("none") / times("w4a16")
    assert gain[0] > 3.0 and gain[-1] < 1.02
    assert list(gain) == sorted(gain, reverse=True)


def test_distillation_from_70_to_7_billion_saves_what_their_sizes_say() -> None:
    """Section 3.4: a student is a model of its own; at batch 1 decode follows the bytes of the weights."""
    teacher, student = (answer(name, "h100", output_len=2) for name in ("llama-2-70b", "llama-2-7b"))
    sizes = teacher["memory"]["weights_bytes"] / student["memory"]["weights_bytes"]
    speeds = teacher["metrics"]["tpot_s"] / student["metrics"]["tpot_s"]
    assert sizes == pytest.approx(10.2, abs=0.1) and speeds == pytest.approx(sizes, rel=0.06)
