"""The Python entry point: wrong input is a one-line error that states what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; allowed: whole numbers from 1"),
        ({"batch_size": -3}, "batch_size is -3; allowed"),
        ({"input_len": 1.5}, "input_len is 1.5; allowed"),
        ({"input_len": float("nan")}, "input_len is nan; allowed"),
        ({"output_len": 10**10}, "output_len is 10000000000; allowed"),
        ({"output_len": 10**30}, "output_len is 10{30}; allowed: whole numbers from 1"),
        ({"batch_size": "four"}, "batch_size is 'four'; allowed: whole numbers"),
        ({"batch_size": []}, "batch_size is a list; allowed: a whole number, or a flat"),
        ({"batch_size": [1, 2], "input_len": [1, 2, 3]}, "one length are needed: batch_size has 2, input_len has 3"),
        ({"max_num_batched_tokens": -5}, "max_num_batched_tokens is -5; allowed: whole numbers"),
        ({"max_num_batched_tokens": 0.5}, "max_num_batched_tokens is 0.5; allowed: whole numbers"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization is 0.0; allowed: above 0"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5; allowed: above 0, at most 1"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization is nan; allowed"),
        (
            {"attention": "flsh"},
            "allowed: eager, flash, flash-1, flash-decoding, .*did you mean 'flash'",
        ),
        ({"dtype": "int8"}, "unknown dtype 'int8'; allowed: auto, bf16, fp16, fp32"),
        ({"dtype": "fp61"}, "unknown dtype 'fp61'; .*did you mean 'fp16'"),
        ({"quantization": "w8a9"}, "w8a9"),
        ({"kv_cache_dtype": "fp9"}, "unknown KV cache dtype 'fp9'"),
        ({"efficiency": "measured"}, "unknown efficiency 'measured'"),
        ({"batchsize": 4}, "unknown option 'batchsize'"),
    ],
)
def test_an_invalid_option_names_the_value_and_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(lv.UserError, match=message) as error:
        lv.analyze("llama-2-7b", "a6000", **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "chip", "message"),
    [
        ("lama-2-7b", "a6000", "unknown model 'lama-2-7b'; did you mean 'llama-2-7b'"),
        ("llama-2-7b", "a600", "unknown chip 'a600'; did you mean 'a6000'"),
        ("", "a6000", "unknown model ''"),
        ("x" * 5000, "a6000", "unknown model 'xxx"),
        ("llama-2-7b", "h" * 5000, "unknown chip 'hhh"),
        ("a\0b", "a6000", "unknown model 'a\\?b'"),
        ("~nobody-of-this-name/config.json", "a6000", "cannot read '~nobody-of-this-name/config.json'"),
        ("llama-2-7b", "~nobody-of-this-name", "cannot read '~nobody-of-this-name'"),
        ("..", "a6000", "'..' is a directory"),
        ("aliases", "a6000", "unknown model 'aliases'"),
        ("../hardware_specs/a6000", "a6000", "cannot read"),
        ("meta-llama/Llama-9-1b", "a6000", "pass the path"),
    ],
    ids=lambda value: str(value)[:20].replace("\0", "?"),
)
def test_an_unknown_name_is_a_one_line_error_with_the_nearest_name(
    model: str, chip: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")  # its parent holds no model
    with pytest.raises(lv.UserError, match=message) as error:
        lv.analyze(model, chip)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_context_beyond_the_models_maximum_is_a_warning() -> None:
    found = lv.analyze("llama-2-7b", "a100", input_len=4000, output_len=200)
    assert any("4200 is beyond the model's maximum of 4096" in warning for warning in found.warnings)
    assert not lv.analyze("llama-2-7b", "a100", input_len=4000, output_len=96).warnings


def test_names_objects_and_sequences_give_the_same_answer() -> None:
    from llmviewer import models
    from llmviewer.hardware import specs

    by_name = lv.analyze("llama-2-7b", "a6000", batch_size=[1, 8, 64], input_len=2048)
    by_object = lv.analyze(models.load("llama-2-7b"), specs.load("a6000"), batch_size=(1, 8, 64), input_len=2048)
    assert len(by_name) == 3
    assert by_name.to_dict(2) == by_object.to_dict(2)
    assert list(by_name.to_frame()["batch_size"]) == [1, 8, 64]
