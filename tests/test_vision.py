"""Vision towers: their parameters are those that the models' cards state, and they count as memory."""

import pytest

import llmviewer as lv
from llmviewer import models
from llmviewer.models.vision import vision_parameters


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("gemma-3-12b", 12187325040),
        ("mistral-small-3.1-24b", 24011361280),
        ("gemma-4-31b", 31273088876 - 60),  # a scalar per layer is no parameter
        ("gemma-4-26b-a4b", 25805936206 - 30),
    ],
)
def test_language_model_and_vision_tower_are_the_whole_checkpoint(name: str, whole: int) -> None:
    """The number of parameters that the card of the checkpoint states."""
    model = models.load(name)
    assert model.parameters + model.vision_parameters == whole


def test_a_tower_is_stored_in_16_bit_and_said() -> None:
    found = lv.analyze("gemma-3-12b", "h100-sxm")
    model = models.load("gemma-3-12b")
    assert found.memory["weights_bytes"] == pytest.approx(2 * (model.parameters + model.vision_parameters), rel=1e-6)
    assert any("0.42 B parameters of the vision tower count as memory" in text for text in found.warnings)


def test_tensor_parallelism_splits_the_tower() -> None:
    def tower(size: int) -> float:
        memory = lv.analyze("gemma-3-12b", "h100-sxm", tensor_parallel_size=size).memory
        return next(item["bytes"] for item in memory["items"] if item["name"] == "vision tower")

    assert tower(2) == pytest.approx(tower(1) / 2)


@pytest.mark.parametrize("fields", [{}, {"vision_config": {"model_type": "new"}}, {"vision_config": 3}])
def test_a_tower_without_known_fields_is_not_guessed(fields: dict[str, object]) -> None:
    assert vision_parameters(fields, 4096) == 0.0
