"""The table of architectures names existing functions and maps multimodal configs to their language model."""

from __future__ import annotations

import pytest

from llmviewer.core import data
from llmviewer.models.architectures import ARCHITECTURES, MULTIMODAL, known_model_types
from llmviewer.models.load import parse
from llmviewer.models.wrappers import parser


@pytest.mark.parametrize("model_type", known_model_types())
def test_every_model_type_has_a_parser(model_type: str) -> None:
    assert callable(parser(model_type))


def test_every_multimodal_config_leads_to_a_language_model() -> None:
    assert set(MULTIMODAL.values()) <= set(ARCHITECTURES)


def test_command_r7b_may_state_its_qk_norm() -> None:
    """False adds nothing; true is a LayerNorm weight over each of 32 + 8 heads of 128, in 32 layers."""
    config = dict(data.read_yaml(data.folder("model_configs") / "command-r7b.yaml")["config"])
    plain, without, with_norm = (
        parse({**config, **fields}, "r7b").parameters for fields in ({}, {"use_qk_norm": False}, {"use_qk_norm": True})
    )
    assert plain == without == with_norm - 32 * (32 + 8) * 128
