"""GGUF mixes: embedding and head are stored as llama.cpp stores them, not in 16 bit."""

import pytest

from tests.answers import answer


def weights(model: str, quantization: str) -> float:
    return float(answer(model, "rtx-4090", quantization=quantization)["memory"]["weights_bytes"])


def test_q4_0_keeps_only_the_head_in_6_bits() -> None:
    """Llama-2-7B: 6,476 M weights of layers and the table of tokens in 4.5 bits, the head in 6.5625, norms in 16."""
    layers, table = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 32000 * 4096
    norms = (2 * 32 + 1) * 4096
    assert weights("llama-2-7b", "gguf-q4_0") == (layers + table) * 4.5 / 8 + table * 6.5625 / 8 + norms * 2


def test_q4_k_m_mixes_4_and_6_bits() -> None:
    """Half of the value and down projections in 6.5625 bits, the rest of the layers in 4.5: 4.80 to 4.82 on average."""
    layer, wide = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336, 4096 * 1024 + 4096 * 14336
    mixed = 32 * (4.5 * layer + 0.5 * (6.5625 - 4.5) * wide)
    table = 128256 * 4096
    expected = (mixed + table * (4.5 + 6.5625)) / 8
    assert weights("llama-3-8b", "gguf-q4_k_m") == pytest.approx(expected, rel=0.004)


def test_a_tied_table_has_the_format_of_the_head() -> None:
    """Llama-3.2-1B: one table of 128,256 x 2,048 in 6.5625 bits beside layers in 4.81."""
    layers = 16 * (2048 * (2 * 2048 + 2 * 512) + 3 * 2048 * 8192)
    expected = (layers * 4.81 + 128256 * 2048 * 6.5625) / 8
    assert weights("llama-3.2-1b", "q4_k_m") == pytest.approx(expected, rel=1e-3)


def test_q8_0_stores_everything_in_8_bits() -> None:
    norms = (2 * 32 + 1) * 4096
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 2 * 32000 * 4096
    assert weights("llama-2-7b", "q8_0") == matrices * 8.5 / 8 + norms * 2


@pytest.mark.parametrize(("model", "gib"), [("gpt-oss-120b", 59.02), ("gpt-oss-20b", 11.27)])
def test_files_of_gpt_oss_hold_experts_in_4_bits_and_all_else_in_8(model: str, gib: float) -> None:
    """Sizes that llama-bench prints for them (https://github.com/ggml-org/llama.cpp/pull/19922), within 0.3 %."""
    assert weights(model, "mxfp4_moe") / 2**30 == pytest.approx(gib, rel=3e-3)
    assert weights(model, "none") / 2**30 > 1.02 * gib


@pytest.mark.parametrize("chip", ["h100-sxm", "m2-ultra", "a6000", "mi300x"])
def test_mixes_run_on_chips_without_6_bit_units(chip: str) -> None:
    for quantization in ("q4_k_m", "q4_k_m-a16", "q4_0"):
        assert answer("llama-2-7b", chip, quantization=quantization)["metrics"]["tpot_s"] > 0
