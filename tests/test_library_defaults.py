"""Default configs of every decoder of transformers: read, with the parameters and matmul FLOPs of its own code."""

from __future__ import annotations

from typing import Any

import pytest

from llmviewer.core.errors import UserError
from llmviewer.models.load import from_fields
from tests.certificate.errors import UnavailableError
from tests.certificate.library_defaults import LEFT_OUT, default_config
from tests.certificate.meta_model import causal_classes, text_config
from tests.certificate.our_counts import our_decode, our_prefill
from tests.certificate.torch_counts import TorchCounts, count_decode, count_prefill, parameter_count, reduced

PROMPT, CACHED, BATCH = 48, 40, 2
DECODERS = [model_type for model_type in causal_classes() if model_type not in LEFT_OUT]
#: Decoders that are refused -> why.
REFUSED: dict[str, str] = {
    "blt": "its large part runs on patches of bytes, whose number depends on the text",
    "gemma4_unified_assistant": "a draft head without a cache of its own: it reads that of its target model",
    "inkling2_text": "convolutions with weights made per token, and attention over outputs of earlier groups of layers",
    "qwen4_exp": "its text part is qwen4_exp_text",
    "qwen4_exp_text": "a hybrid that is not read yet",
    "zaya": "attention over compressed and convolved queries and keys",
}
#: Decoders whose code does not run without data -> why; only their parameters are compared.
NOT_RUN: dict[str, str] = {
    "bamba": "no layer of the default has attention, which the library's cache demands; see test_hybrid_configs.py",
    "cpmant": "its code puts 32 prompt tokens before every text",
    "granitemoehybrid": "no layer of the default has attention; see test_hybrid_configs.py",
    "openai-gpt": "its code keeps no cache; its prefill is compared in test_dense.py",
    "rwkv": "the library mixes the sequences of a batch in decoding; one sequence in test_hybrid_configs.py",
    "zamba": "the library multiplies copies of two weights, which are not known as weights; see test_hybrid_configs.py",
}
#: Decoders whose default config the library itself cannot build -> why.
NOT_BUILT: dict[str, str] = {
    "gemma4_assistant": "its class refuses the inputs per layer of its default text config",
    "lfm2_moe": "layer_types has no default, and the class needs it",
}


@pytest.fixture(params=DECODERS)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param in REFUSED or request.param in NOT_BUILT:
        pytest.skip(REFUSED.get(request.param) or NOT_BUILT[request.param])
    return default_config(request.param)


def test_parameters_equal_those_of_the_library(config: dict[str, Any]) -> None:
    assert from_fields(text_config(config)).parameters == parameter_count(config)


def test_matmul_flops_equal_those_of_the_library(config: dict[str, Any]) -> None:
    if config["model_type"] in NOT_RUN:
        pytest.skip(NOT_RUN[config["model_type"]])
    try:
        small = reduced(config)
        prefill, decode = count_prefill(small, BATCH, PROMPT), count_decode(small, BATCH, CACHED)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    small = text_config(small)
    for ours, theirs in ((our_prefill(small, BATCH, PROMPT), prefill), (our_decode(small, BATCH, CACHED), decode)):
        assert (ours.linear, ours.attention, ours.lm_head) == _headings(theirs)


@pytest.mark.parametrize("model_type", REFUSED)
def test_refused_decoders_are_refused(model_type: str) -> None:
    """Nothing stands in the list that is read by now."""
    with pytest.raises(UserError):
        from_fields(default_config(model_type))


def test_nineteen_of_twenty_decoders_are_read() -> None:
    """Seven of 154 decoders are not read: the refused ones, and one whose default cannot be built either."""
    assert len({*REFUSED, "gemma4_assistant"}) <= len(DECODERS) / 20


@pytest.mark.parametrize("model_type", ["gemma4_assistant", "gemma4_unified_assistant"])
def test_assistants_are_not_read_as_the_text_model_inside(model_type: str) -> None:
    """An assistant has two more projections and no keys and values of its own, so its text section is not its count."""
    with pytest.raises(UserError, match="is a draft head"):
        from_fields({"model_type": model_type, "text_config": {"model_type": "gemma4_text"}})


def _headings(counts: TorchCounts) -> tuple[int, int, int]:
    return counts.linear, counts.attention, counts.lm_head
