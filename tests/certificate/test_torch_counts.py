"""The PyTorch side of the certificate: numbers calculated by hand, and relations that validate it."""

from __future__ import annotations

from typing import Any

import pytest

from .errors import UnavailableError, UncountedProductError
from .families import FAMILIES
from .meta_model import build, model_class
from .reductions import narrowed
from .torch_counts import count_decode, count_prefill, count_step, parameter_count, reduced

LLAMA_2_7B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
}
MIXTRAL: dict[str, Any] = {
    **LLAMA_2_7B,
    "model_type": "mixtral",
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
WEIGHTS_PER_LAYER = 4 * 4096**2 + 3 * 4096 * 11008


@pytest.fixture(autouse=True)
def library() -> None:
    """Skips with the reason if torch or transformers is missing."""
    try:
        model_class(FAMILIES["llama"])
    except UnavailableError as reason:
        pytest.skip(str(reason))


def test_llama_prefill_is_two_flops_per_weight_and_token() -> None:
    counts = count_prefill(LLAMA_2_7B, batch=2, tokens=48)
    assert counts.linear == 2 * (2 * 48) * 32 * WEIGHTS_PER_LAYER
    assert counts.attention == 2 * 32 * 4 * 48 * 48 * 4096
    assert counts.lm_head == 2 * 2 * 4096 * 32000


def test_llama_parameters_are_the_published_number() -> None:
    assert parameter_count(LLAMA_2_7B) == 6_738_415_616


def test_decode_attends_to_the_cache_and_the_new_token() -> None:
    assert count_decode(LLAMA_2_7B, batch=1, cached=64).attention == 32 * 4 * 65 * 4096


def test_window_limits_the_keys_of_a_chunk() -> None:
    windowed = narrowed({**LLAMA_2_7B, "model_type": "mistral", "sliding_window": 4096}, window=16)
    counts = count_step(windowed, batch=1, new=5, cached=64)
    assert counts.attention == 32 * 4 * 5 * (15 + 5) * 4096


def test_only_chosen_experts_are_counted() -> None:
    counts = count_prefill(reduced(MIXTRAL), batch=1, tokens=48)
    assert counts.routed_experts == 2 * 48 * 2 * 2 * (3 * 4096 * 14336)


def test_grouped_kernel_is_refused_because_its_flops_would_vanish() -> None:
    import torch

    from .product_filing import ProductFiling

    tokens, experts = (torch.empty(size, dtype=torch.bfloat16, device="meta") for size in ((64, 32), (4, 32, 16)))
    ends = torch.empty(4, dtype=torch.int32, device="meta")
    with ProductFiling(build(reduced(MIXTRAL))), pytest.raises(UncountedProductError):
        torch.nn.functional.grouped_mm(tokens, experts, offs=ends)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_library_has_the_class(family: Any) -> None:
    try:
        assert model_class(family)
    except UnavailableError as reason:
        pytest.skip(str(reason))
