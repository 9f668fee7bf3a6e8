"""The table of architectures names existing functions and maps multimodal configs to their language model."""

from __future__ import annotations

import pytest

from llmviewer.models.architectures import ARCHITECTURES, known_model_types
from llmviewer.models.model_types import parser
from llmviewer.models.multimodal import MULTIMODAL


@pytest.mark.parametrize("model_type", known_model_types())
def test_every_model_type_has_a_parser(model_type: str) -> None:
    assert callable(parser(model_type))


def test_every_multimodal_config_leads_to_a_language_model() -> None:
    assert set(MULTIMODAL.values()) <= set(ARCHITECTURES)
