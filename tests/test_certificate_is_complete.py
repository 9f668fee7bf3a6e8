"""Every architecture is listed in the certificate with a test that exists."""

from __future__ import annotations

import re

import pytest

from llmviewer.models.architectures import ARCHITECTURES, MULTIMODAL
from tests.imports import ROOT

pytest.importorskip("transformers")
pytest.importorskip("torch")

from tests.certificate.evidence import BESIDE, OTHER_CONFIGS, evidence
from tests.test_library_defaults import DECODERS, NOT_BUILT, NOT_RUN, REFUSED

PAGE = (ROOT / "docs" / "evidence" / "certificate.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_every_architecture_has_a_test_that_exists(model_type: str) -> None:
    """A new entry of the registry needs a row of a test's list, or one in BESIDE."""
    file, _, function = evidence(model_type).test.partition("::")
    text = (ROOT / file.partition(",")[0]).read_text(encoding="utf-8")
    assert not function or f"def {function}(" in text


@pytest.mark.parametrize("model_type", [*ARCHITECTURES, *REFUSED])
def test_every_architecture_is_in_the_certificate(model_type: str) -> None:
    assert f"\n| {model_type} | " in PAGE.partition("## Architectures")[2]


def test_every_wrapper_is_in_the_certificate() -> None:
    listed = re.split(r"[,|] ?", PAGE.partition("## Multimodal wrappers")[2])
    assert set(MULTIMODAL) <= {name.strip() for name in listed}


def test_no_reason_outlives_its_architecture() -> None:
    assert set(BESIDE) <= set(ARCHITECTURES)
    assert set(OTHER_CONFIGS) <= {*NOT_RUN, *NOT_BUILT} <= set(DECODERS)
