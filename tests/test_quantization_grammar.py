"""Names of quantization schemes and of cache formats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer import analyze
from llmviewer.core.errors import UserError
from llmviewer.techniques.quantization.grammar import (
    BITS,
    CACHE_DTYPES,
    parse_cache_dtype,
    parse_scheme,
)
from llmviewer.techniques.quantization.presets import PRESETS


def described(text: str) -> tuple[object, ...]:
    """(name and stored bits) of weights, inputs, cache."""
    scheme = parse_scheme(text)
    parts = (scheme.weights, scheme.activations, scheme.cache)
    return tuple(None if part is None else (part.compute, part.bits) for part in parts)


SIXTEEN = ("fp16", 16)


@pytest.mark.parametrize(
    ("text", "weights", "activations", "cache"),
    [
        ("none", None, None, None),
        ("w16a16", SIXTEEN, SIXTEEN, None),
        ("bf16", SIXTEEN, SIXTEEN, None),
        ("w8a8", ("int8", 8), ("int8", 8), None),
        ("int8", ("int8", 8), ("int8", 8), None),
        ("fp8", ("fp8", 8), ("fp8", 8), None),
        ("w8a8-fp8", ("fp8", 8), ("fp8", 8), None),
        ("w8a8-int8", ("int8", 8), ("int8", 8), None),
        ("W4A16", ("int4", 4.125), SIXTEEN, None),
        ("w3a16", ("int3", 3 + 16 / 128), SIXTEEN, None),
        ("w6a16", ("int6", 6.125), SIXTEEN, None),
        ("w4a16-fp4", ("fp4", 4.125), SIXTEEN, None),
        ("w4a8-fp8", ("int4", 4.125), ("fp8", 8), None),
        ("w4a8kv8-int4-fp8", ("int4", 4.125), ("fp8", 8), ("fp8", 8)),
        ("w8a8kv4", ("int8", 8), ("int8", 8), ("int4", 4)),
        ("w8a8kv8-fp8", ("fp8", 8), ("fp8", 8), ("fp8", 8)),
        ("w4a4-nvfp4", ("fp4", 4.5), ("fp4", 4.5), None),
        ("nvfp4", ("fp4", 4.5), ("fp4", 4.5), None),
        ("mxfp4", ("fp4", 4.25), SIXTEEN, None),
        ("awq", ("int4", 4 + 20 / 128), SIXTEEN, None),
        ("gptq_marlin", ("int4", 4 + 20 / 128), SIXTEEN, None),
        ("bitsandbytes", ("nf4", 4 + 32 / 64), SIXTEEN, None),
        ("bitsandbytes-8bit", ("int8", 8), ("int8", 8), None),
    ],
)
def test_a_scheme_name_sets_stored_bits_and_units(
    text: str, weights: object, activations: object, cache: object
) -> None:
    assert described(text) == (weights, activations, cache)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("awqq", r"unknown quantization 'awqq'.*did you mean 'awq'\?"),
        ("w4a15", r"quantization 'w4a15' asks for 15 bits; allowed: 16, 8, 6, 4, 3, 2, 1"),
        ("w4a16-fp8", r"suffix 'fp8' is for 8-bit parts and there is none"),
        ("w8a8-fp8-int8", r"two suffixes for 8 bits"),
        ("w8a8-fp9", r"quantization 'w8a8-fp9': unknown suffix 'fp9'.*did you mean 'fp8'\?"),
        ("w4", r"unknown quantization 'w4'"),
        ("", r"unknown quantization ''"),
        ("w99999999999a8", r"unknown quantization"),
    ],
)
def test_a_misspelled_scheme_is_a_one_line_error_that_states_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_scheme(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_scheme_or_a_user_error(text: str) -> None:
    for parse in (parse_scheme, parse_cache_dtype):
        try:
            parse(text)
        except UserError as error:
            assert "\n" not in str(error)


@given(weights=st.sampled_from(BITS), activations=st.sampled_from(BITS), cache=st.sampled_from(BITS))
def test_every_combination_of_bits_is_a_scheme(weights: int, activations: int, cache: int) -> None:
    scheme = parse_scheme(f"w{weights}a{activations}kv{cache}")
    assert scheme.weights is not None and scheme.activations is not None and scheme.cache is not None
    assert scheme.weights.bits == weights + (16 / 128 if weights < 8 else 0)
    assert (scheme.activations.bits, scheme.cache.bits) == (activations, cache)


def test_presets_keep_their_own_name() -> None:
    assert all(parse_scheme(name.upper()).name == name for name in PRESETS)


def test_vllm_names_of_cache_formats_are_accepted() -> None:
    assert parse_cache_dtype("auto") is None
    for name in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        found = parse_cache_dtype(name)
        assert found is not None and (found.compute, found.bits) == ("fp8", 8)
    assert parse_cache_dtype("int8") == parse_cache_dtype("kv8")
    with pytest.raises(UserError, match=r"unknown KV cache dtype 'fp7'.*did you mean 'fp8'"):
        parse_cache_dtype("fp7")
    assert set(CACHE_DTYPES) > {"auto", "fp8", "fp8_e4m3", "int8", "kv4"}


def test_the_option_for_the_cache_wins_over_the_scheme() -> None:
    """A byte per element: 2 x 32 layers x 4096 per token, for 1,151 tokens."""
    own, other = (analyze("llama-2-7b", "h100", quantization="w8a8kv4", kv_cache_dtype=one) for one in ("auto", "fp8"))
    assert other.memory["kv_cache_bytes"] == 2 * 32 * 4096 * 1151 > own.memory["kv_cache_bytes"]
