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
REFUSED: dict[str, str] = {}
#: Decoders whose code does not run without data -> why; only their parameters are compared.
NOT_RUN: dict[str, str] = {}
#: Decoders whose default config the library itself cannot build -> why.
NOT_BUILT: dict[str, str] = {}


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
    assert len(REFUSED) <= 0.05 * len(DECODERS)


def _headings(counts: TorchCounts) -> tuple[int, int, int]:
    return counts.linear, counts.attention, counts.lm_head
