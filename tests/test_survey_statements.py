"""Statements of the survey (LLM Inference Unveiled, arXiv 2402.16363) outside its figures or at other settings.

Relations of its figures at its own settings are in reports/survey/ and tested by test_survey.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .answers import analyze, answer


def decode_time(batch: int, quantization: str, **options: Any) -> float:
    """Time of one decode step of Llama-2-13B on an A6000, 1024 tokens in the cache [s] (Fig. 8)."""
    found = answer(
        "llama-2-13b", "a6000", batch_size=batch, input_len=1024, output_len=1, quantization=quantization, **options
    )
    return float(found["stages"]["decode"]["time_s"])


class TestFigure7:
    """Activations are small compared with weights and cache in decode, because they are short-lived."""

    @pytest.mark.parametrize(("batch", "length"), [(1, 1024), (1, 4096), (16, 1024), (64, 4096)])
    @pytest.mark.parametrize("quantization", ["none", "w8a8kv8", "w4a16kv4"])
    def test_activations_are_below_two_percent_of_weights_and_cache(
        self, batch: int, length: int, quantization: str
    ) -> None:
        """One decode step: the prefill has at most one token, so the peak is in the decode step."""
        found = answer(
            "llama-2-13b",
            "a6000",
            batch_size=batch,
            input_len=1,
            output_len=length,
            quantization=quantization,
        )["memory"]
        assert found["activations_bytes"] < 0.02 * (found["weights_bytes"] + found["kv_cache_bytes"])


class TestFigure8:
    """Decode of Llama-2-13B on an A6000, sequence length 1024: lower-bit weights help only a small batch."""

    @pytest.mark.parametrize("after", ["w2a16", "w1a16"])
    def test_the_gain_of_a_step_falls_with_the_batch_size(self, after: str) -> None:
        gains = [decode_time(batch, "w4a16") / decode_time(batch, after) for batch in (1, 8, 64, 512)]
        assert gains == sorted(gains, reverse=True)
        assert gains[0] > 1.5 and gains[-1] == pytest.approx(1.0, abs=1e-3)


class TestFigure19:
    """A larger batch raises throughput in decode, response latency and memory (Llama-2-13B, section 5.3)."""

    BATCHES = (1, 2, 4, 8, 16, 32)

    @pytest.mark.parametrize("batching", ["static", "continuous", "chunked"])
    def test_batch_size_raises_throughput_latency_and_memory(self, batching: str) -> None:
        found = analyze(
            "llama-2-13b", "h200", batch_size=self.BATCHES, input_len=1024, output_len=128, batching=batching
        )
        rates, tpot, memory = (
            np.asarray(column)
            for column in (
                found.output_tokens_per_s,
                found.analysis.tpot_s,
                found.analysis.memory.total_bytes,
            )
        )
        for column in (rates, tpot, memory):
            assert (np.diff(column) > 0.0).all()


def test_w4a16_stops_paying_at_large_batch_even_on_the_data_sheet() -> None:
    """A100, Llama-2-7B, 128 tokens in the cache: W4A16 is 3 times faster at batch 1; at batch 4096 both run at the
    16-bit peak and nothing is gained.  (A slowdown would be due to kernels, which `ideal` ignores.)"""
    batches = [1, 16, 128, 1024, 4096]

    def times(quantization: str) -> Any:
        found = analyze(
            "llama-2-7b", "a100", batch_size=batches, input_len=128, output_len=2, quantization=quantization
        )
        return np.asarray(found.analysis.tpot_s)

    gain = times("none") / times("w4a16")
    assert gain[0] > 3.0 and gain[-1] < 1.02
    assert list(gain) == sorted(gain, reverse=True)


def test_distillation_from_70b_to_7b_saves_in_proportion_to_size() -> None:
    """Section 3.4: a student is a separate model; at batch 1 decode time follows weight bytes."""
    teacher, student = (answer(name, "h100", output_len=2) for name in ("llama-2-70b", "llama-2-7b"))
    sizes = teacher["memory"]["weights_bytes"] / student["memory"]["weights_bytes"]
    speeds = teacher["metrics"]["tpot_s"] / student["metrics"]["tpot_s"]
    assert sizes == pytest.approx(10.2, abs=0.1) and speeds == pytest.approx(sizes, rel=0.06)
