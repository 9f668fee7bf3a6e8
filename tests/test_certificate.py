"""The certificate: our matmul FLOPs and parameters equal those of the library's own code, as integers."""

from __future__ import annotations

import pytest

from llmviewer import models
from tests.certificate.errors import UnavailableError
from tests.certificate.meta_model import family_of
from tests.certificate.our_counts import our_decode, our_parameters, our_prefill, published_config
from tests.certificate.reductions import narrowed
from tests.certificate.torch_counts import TorchCounts, count_decode, count_prefill, parameter_count, reduced

PROMPT, CACHED, BATCH = 48, 40, 2
#: Shorter than a cache of CACHED tokens.
WINDOW = 16


def headings(counts: TorchCounts) -> tuple[int, int, int]:
    return counts.linear, counts.attention, counts.lm_head


#: Models of decoders and encoders; encoder-decoders are compared by architecture, in `test_seq2seq_defaults.py`.
STEMS = [name for name in models.names() if not published_config(name).get("is_encoder_decoder")]


@pytest.fixture(params=STEMS)
def stem(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_prefill_and_decode_flops_equal_those_of_pytorch(stem: str) -> None:
    """An encoder has no decode."""
    try:
        config = reduced(published_config(stem))
        prefill = count_prefill(config, BATCH, PROMPT)
        decode = None if family_of(config).encoder else count_decode(config, BATCH, CACHED)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    ours = our_prefill(config, BATCH, PROMPT)
    assert (ours.linear, ours.attention, ours.lm_head) == headings(prefill)
    if decode:
        ours = our_decode(config, BATCH, CACHED)
        assert (ours.linear, ours.attention, ours.lm_head) == headings(decode)


def test_windows_shorter_than_the_context_match_pytorch(stem: str) -> None:
    config = published_config(stem)
    if narrowed(config, WINDOW) == config:
        pytest.skip("no window")
    try:
        config = narrowed(reduced(config), WINDOW)
        decode = count_decode(config, BATCH, CACHED)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    ours = our_decode(config, BATCH, CACHED)
    assert (ours.linear, ours.attention, ours.lm_head) == headings(decode)


def test_parameters_equal_those_of_the_full_module(stem: str) -> None:
    try:
        counted = parameter_count(published_config(stem))
    except UnavailableError as reason:
        pytest.skip(str(reason))
    assert our_parameters(stem) == counted
