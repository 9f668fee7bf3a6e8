"""GGUF mixes: embedding and head are stored as llama.cpp stores them, not in 16 bit."""

import pytest

import llmviewer as lv
from llmviewer.techniques.quantization.presets import PUBLISHED_SCHEMES
from llmviewer.timing import engine
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


#: Llama-3.1-8B in GiB: https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md; of q3_k_m and of the
#: four with one scale per block the sizes of Llama-3-8B, of the same shapes, that `llama-quantize --help` prints.
SIZES = {
    **{"iq1_s": 1.87, "iq1_m": 2.01, "iq2_xxs": 2.23, "iq2_xs": 2.42, "iq2_s": 2.56, "iq2_m": 2.74, "iq3_xxs": 3.04},
    **{"iq3_xs": 3.27, "iq3_s": 3.42, "iq3_m": 3.52, "iq4_xs": 4.17, "iq4_nl": 4.38, "q2_k_s": 2.78, "q2_k": 2.95},
    **{"q3_k_s": 3.41, "q3_k_m": 3.74, "q3_k_l": 4.02, "q4_k_s": 4.36, "q4_k_m": 4.58, "q5_k_s": 5.21, "q5_k_m": 5.33},
    **{"q6_k": 6.14, "q8_0": 7.95, "f16": 14.96, "q4_0": 4.34, "q4_1": 4.78, "q5_0": 5.21, "q5_1": 5.65},
}


@pytest.mark.parametrize(("quantization", "gib"), SIZES.items())
def test_every_type_of_llama_cpp_is_as_large_as_its_published_file(quantization: str, gib: float) -> None:
    assert weights("llama-3.1-8b", quantization) / 2**30 == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(
    ("model", "quantization", "size"),
    [  # bytes of files of the Hub: unsloth/Mistral-Small-3.2-24B-Instruct-2506-GGUF, unsloth/Qwen3-0.6B-GGUF less 6 MB
        # of its vocabulary, which the file of Q8_0 has beyond 8.5 bits per weight
        ("mistral-small-24b", "ud-q4_k_xl", 14_548_880_928),
        ("qwen3-0.6b", "q4_k_m", 396_705_472 - 6_100_000),
        ("qwen3-0.6b", "q5_k_s", 436_616_896 - 6_100_000),
        ("qwen3-0.6b", "iq4_xs", 367_804_096 - 6_100_000),
        ("qwen3-0.6b", "q6_k", 495_107_776 - 6_100_000),
    ],
)
def test_other_models_have_nearly_the_bits_of_the_table(model: str, quantization: str, size: float) -> None:
    """Within 5 %: the share of value and down projections differs."""
    assert weights(model, quantization) == pytest.approx(size, rel=0.05)


def test_llama_cpp_has_kernels_for_every_format_of_its_files() -> None:
    serves = engine.load("llama.cpp").serves
    for preset in PUBLISHED_SCHEMES:
        if preset.names[0].startswith(("gguf-", "ud-")):
            scheme = preset.scheme
            formats = [one.name for one in (scheme.weights, scheme.embedding, scheme.head) if one]
            assert set(formats) <= set(serves.formats["weight"]), preset.names


def test_a_mix_chosen_by_model_states_its_spread() -> None:
    found = lv.analyze("llama-3.1-8b", "rtx-4090", engine="llama.cpp", quantization="UD-Q4_K_XL")
    assert "from 4.5 (DeepSeek-V3.1) to 5.4 (Qwen3-0.6B) bits" in str(found.to_dict()["provenance"])


@pytest.mark.parametrize(
    ("model", "quantization", "size"),
    [  # huggingface.co/unsloth/DeepSeek-R1-GGUF (three files), unsloth.ai/blog/deepseekr1-dynamic, docs.unsloth.ai
        ("deepseek-r1", "ud-iq1_s", 49.3e9 + 49.4e9 + 41.5e9),
        ("deepseek-r1", "ud-iq1_m", 158 * 2**30),
        ("kimi-k2", "ud-tq1_0", 245e9),
    ],
)
def test_dynamic_mixes_of_one_bit_have_the_bytes_of_their_files(model: str, quantization: str, size: float) -> None:
    assert weights(model, quantization) == pytest.approx(size, rel=0.002)
