"""Number formats: stored bits with scales, spellings, and the units that multiply two operands."""

from __future__ import annotations

import pytest

from llmviewer.core import dtypes
from llmviewer.core.dtypes import DTYPES, Dtype
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs


@pytest.mark.parametrize(("name", "bits"), [("fp32", 32), ("bf16", 16), ("fp16", 16), ("fp8", 8), ("int8", 8)])
def test_plain_formats_store_their_bits(name: str, bits: float) -> None:
    assert dtypes.get_dtype(name).bits == bits
    assert dtypes.get_dtype(name).bytes == bits / 8


def test_scales_are_stored_too() -> None:
    """One 16-bit scale per group of 128: 4 + 16/128 = 4.125; with a 4-bit zero point 4 + 20/128 = 4.15625."""
    assert dtypes.grouped_int(4).bits == 4.125
    assert dtypes.grouped_int(4, zero_point_bits=4).bits == 4.15625
    assert dtypes.grouped_int(4, group=32).bits == 4.5
    assert DTYPES["mxfp4"].bits == 4 + 8 / 32
    assert DTYPES["nvfp4"].bits == 4 + 8 / 16


def test_an_integer_cache_keeps_a_scale_and_a_zero_point_per_head() -> None:
    """4 + 32/128 bits at heads of 128, 4 + 32/64 at heads of 64."""
    assert dtypes.cache_int(4, 128).bits == 4.25
    assert dtypes.cache_int(4, 64).bits == 4.5


@pytest.mark.parametrize("spelling", ["bfloat16", "torch.bfloat16", "BF16", "bf16"])
def test_spellings_of_number_formats_are_accepted(spelling: str) -> None:
    assert dtypes.get_dtype(spelling) is DTYPES["bf16"]


def test_an_unknown_format_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"unknown dtype 'fp17'.*did you mean 'fp1?6?"):
        dtypes.get_dtype("fp17")


@pytest.mark.parametrize(
    ("left", "right", "units"),
    [
        (DTYPES["fp16"], DTYPES["fp16"], "fp16"),
        (DTYPES["int8"], DTYPES["int8"], "int8"),
        (DTYPES["fp8"], DTYPES["fp8"], "fp8"),
        (DTYPES["bf16"], dtypes.grouped_int(4), "bf16"),
        (dtypes.grouped_int(4), DTYPES["bf16"], "bf16"),
        (DTYPES["int8"], dtypes.grouped_int(4), "int8"),
        (DTYPES["bf16"], DTYPES["fp8"], "bf16"),
        (DTYPES["bf16"], DTYPES["mxfp4"], "bf16"),
        (DTYPES["nvfp4"], DTYPES["nvfp4"], "fp4"),
    ],
    ids=lambda value: value.name if isinstance(value, Dtype) else value,
)
def test_a_matmul_runs_on_the_units_of_its_wider_operand(left: Dtype, right: Dtype, units: str) -> None:
    assert dtypes.operand_class(left, right) == units


@pytest.mark.parametrize(
    ("chip", "wanted", "runs_as"),
    [
        ("a100", "int8", "int8"),
        ("a100", "fp8", "bf16"),
        ("a100", "fp4", "bf16"),
        ("h100", "fp8", "fp8"),
        ("h100", "int4", "int8"),
        ("b200", "fp4", "fp4"),
        ("v100", "bf16", "fp16"),
        ("v100", "int8", "fp16"),
        ("t4", "bf16", "fp16"),
        ("tpu-v5e", "fp16", "bf16"),
        ("m2-ultra", "bf16", "fp16"),
        ("m2-ultra", "int8", "fp16"),
        ("gaudi-3", "int8", "bf16"),
        ("a100", "fp32", "fp32"),
        ("v100", "fp32", "fp32"),
        ("mi300x", "fp32", "fp32"),
    ],
)
def test_an_unsupported_width_runs_at_a_wider_one_never_faster(chip: str, wanted: str, runs_as: str) -> None:
    assert specs.load(chip).compute_dtype(wanted) == runs_as


@pytest.mark.parametrize("name", specs.names())
def test_no_chip_multiplies_a_format_faster_than_its_own_units(name: str) -> None:
    chip = specs.load(name)
    bits = {"int4": 4, "fp4": 4, "fp6": 6, "int8": 8, "fp8": 8, "fp16": 16, "bf16": 16, "tf32": 19, "fp32": 32}
    for wanted in ("int4", "int8", "fp4", "fp8", "fp16", "bf16"):
        used = chip.compute_dtype(wanted)
        assert used == wanted or bits[used] > bits[wanted] or {used, wanted} == {"fp16", "bf16"}
        assert chip.matrix_rate(wanted) == chip.matrix_flops_per_s[used]


def test_fp32_runs_on_the_vector_units_not_as_tf32() -> None:
    """A100: 19.5 TFLOP/s; tf32 (19 bits) would be 156."""
    assert specs.load("a100").matrix_rate("fp32") == 19.5e12


def test_a_width_without_a_wider_substitute_is_an_error() -> None:
    with pytest.raises(UserError, match=r"cerebras-wse-3 has no matrix rate for 'fp32' nor a wider one; it has: fp16"):
        specs.load("cerebras-wse-3").matrix_rate("fp32")
