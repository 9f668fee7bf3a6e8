"""Published quantization methods by name: every preset has a source and the bits of its paper."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from llmviewer import models
from llmviewer.core.ir import Graph, Role, check
from llmviewer.core.workload import decode
from llmviewer.hardware import specs
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.presets import PRESETS, PUBLISHED_SCHEMES
from llmviewer.techniques.quantization.quantize import quantize
from tests.answers import answer

ROOT = Path(__file__).resolve().parent.parent
#: Methods the survey names (arXiv 2402.16363, section 3.1), and the formats engines serve.
SURVEY = """llm-int8 smoothquant zeroquant zeroquant-fp fptq rptq olive gptq awq owq spqr quip quantease lut-gemm pb-llm
billm llm-qat tsld fp8 fp8-dynamic fp8-block mxfp4 nvfp4 q4_k_m q8_0 kivi kvquant wkvquant qlora peqa qa-lora lq-lora
loftq"""
#: Weights of the matrices of the 32 layers of Llama-2-7B.
MATRICES = 32 * (4 * 4096**2 + 3 * 4096 * 11008)


def weight_bytes(graph: Graph) -> float:
    """Bytes of the layers' matrices, without norms."""
    block = graph.blocks[1]
    matrices = [t for name, t in block.weights().items() if not name.endswith("norm.weight")]
    return float(sum(t.elements * t.dtype.bytes for t in matrices)) * block.repeats


@pytest.mark.parametrize("name", SURVEY.split())
def test_a_method_of_the_survey_is_a_preset(name: str) -> None:
    assert name in PRESETS
    assert parse_scheme(name.upper()) == PRESETS[name]


@pytest.mark.parametrize("method", PUBLISHED_SCHEMES, ids=lambda method: str(method.names[0]))
def test_a_preset_names_its_source_and_names_are_unique(method: object) -> None:
    names = [name for row in PUBLISHED_SCHEMES for name in row.names]
    assert len(names) == len(set(names)) == len(PRESETS)
    assert method in PUBLISHED_SCHEMES and next(row for row in PUBLISHED_SCHEMES if row is method).source


def test_spqr_stores_3_945_bits_per_weight() -> None:
    """3-bit weights, 3-bit scale and zero per 16, 64 bits of statistics per 16 groups of those, 1 % outliers of 32
    bits: 3 + 6/16 + 64/256 + 0.32 = 3.945 bits, the 3.94 of its tables.  6.476e9 weights take 3.19 GB."""
    low = quantize(parse_scheme("spqr"))(models.load("llama-2-7b").graph(decode(1.0, 9.0)))
    assert weight_bytes(low) == pytest.approx(MATRICES * 3.945 / 8) == pytest.approx(3.19e9, rel=2e-3)


def test_qlora_stores_4_bits_and_0_127_of_scales() -> None:
    """arXiv 2305.14314, section 3: double quantization brings 0.5 bits of scales down to 8/64 + 32/(64 x 256)."""
    weights = PRESETS["qlora"].weights
    assert weights is not None and weights.bits == pytest.approx(4 + 0.127, abs=1e-3)


def test_a_cache_preset_states_its_own_scales() -> None:
    """KIVI: 2 bits and 32 bits per 32 elements are 3 bits for any head width; nothing else changes."""
    low = quantize(parse_scheme("KIVI"))(models.load("llama-2-7b").graph(decode(1.0, 9.0)))
    assert {state.dtype.bits for state in low.blocks[1].states} == {3.0}
    assert weight_bytes(low) == 2 * MATRICES
    plain = quantize(parse_scheme("w16a16kv2"))(models.load("llama-2-7b").graph(decode(1.0, 9.0)))
    assert {state.dtype.bits for state in plain.blocks[1].states} == {2 + 32 / 128}


def test_the_formats_of_kvquant_differ_by_their_outliers() -> None:
    """arXiv 2401.18079: 3 bits with 1 % of outliers of 32 bits; appendix A and table 17: 2 bits (2.00 to 2.02)."""
    bits = [parse_scheme(name).cache for name in ("kvquant", "kvquant-nuq3", "kvquant-nuq2")]
    assert [dtype.bits for dtype in bits if dtype is not None] == [3 + 0.01 * 32, 3 + 0.01 * 32, 2]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_on_moe_and_latent_attention(name: str) -> None:
    graph = models.load("deepseek-v2-lite").graph(decode(2.0, 9.0))
    low = quantize(PRESETS[name])(graph)
    check(low)
    before, after = (sum(op.read_bytes(Role.WEIGHT) * b.repeats for b, op in g) for g in (graph, low))
    assert after <= before


def test_smoothquant_runs_in_int8_units_and_awq_in_16_bit() -> None:
    int8, w4 = (answer("llama-2-7b", "a100", quantization=name) for name in ("SmoothQuant", "awq"))
    prefill = {name: row["compute_dtype"] for found in (int8,) for row in found["stages"]["prefill"]["operators"]
               for name in [row["name"]]}  # fmt: skip
    assert prefill["q_proj"] == "int8" and prefill["lm_head"] != "int8"
    assert {row["compute_dtype"] for row in w4["stages"]["prefill"]["operators"]}.isdisjoint({"int8", "int4"})
    assert int8["passes"][0] == "quantize(smoothquant)"


def test_the_default_path_reads_no_preset() -> None:
    code = (
        "import sys, llmviewer as lv; lv.analyze('llama-2-7b', 'a6000', quantization='w4a16').to_json();"
        "print('llmviewer.techniques.quantization.presets' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "False"


@cache
def formats_of_products() -> set[str]:
    """Formats in which the products of any preset multiply."""
    graph = models.load("llama-2-7b").graph(decode(1.0, 9.0))
    operators = [op for scheme in PRESETS.values() for _, op in quantize(scheme)(graph)]
    found = {op.compute for op in operators if isinstance(op.matmul_flops, float) and op.matmul_flops}
    assert found >= {"fp16", "fp8", "int8"}
    return found


@pytest.mark.parametrize("name", specs.names())
def test_every_chip_has_units_for_every_preset(name: str) -> None:
    for dtype in formats_of_products():
        assert specs.load(name).compute_dtype(dtype)
