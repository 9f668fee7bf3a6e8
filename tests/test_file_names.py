"""Names of quantized files: GGUF repositories with a tag and Ollama's names are a model and its --quantization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer import models
from llmviewer.core import files
from llmviewer.core.errors import UserError
from llmviewer.models import aliases, file_names
from llmviewer.models.file_names import named_file
from llmviewer.planning.manifests import options as manifests
from llmviewer.techniques.quantization.presets import OF_GGUF
from tests.answers import answer
from tests.gguf_files import MATRICES, NORMS, OUTSIDE, tensors, written
from tests.test_hub_ids import REVISION


@pytest.mark.parametrize(
    ("name", "stem", "quantization"),
    [
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", "llama-3.1-8b", "q4_k_m"),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "llama-3.1-8b", "q4_k_m"),
        ("unsloth/Qwen3-30B-A3B-GGUF:UD-Q4_K_XL", "qwen3-30b-a3b", "ud-q4_k_xl"),
        ("lmstudio-community/Qwen3-8B-GGUF:Q8_0", "qwen3-8b", "q8_0"),
        ("bartowski/Qwen_Qwen3-8B-GGUF:IQ4_XS", "qwen3-8b", "iq4_xs"),
        ("google/gemma-3-4b-it-qat-q4_0-gguf", "gemma-3-4b", "q4_0"),
        ("Manel/Meta-Llama-3.1-8B-Instruct-Q5_K_M-GGUF", "llama-3.1-8b", "q5_k_m"),
        ("hf.co/unsloth/gemma-4-31B-it-GGUF:q5_k_m", "gemma-4-31b", "q5_k_m"),
        ("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b", "mxfp4_moe"),
        ("unsloth/gpt-oss-20b-GGUF:Q4_K_M", "gpt-oss-20b", "mxfp4_moe"),  # the experts are MXFP4 in every file
        ("unsloth/gpt-oss-20b-GGUF:F16", "gpt-oss-20b", "none"),
        ("llama3.1:8b", "llama-3.1-8b", "q4_k_m"),
        ("llama3.2:3b-instruct-q8_0", "llama-3.2-3b", "q8_0"),
        ("llama3.2:1b", "llama-3.2-1b", "q8_0"),
        ("llama3:8b", "llama-3-8b", "q4_0"),
        ("llama3.1:8b-text-fp16", "llama-3.1-8b", "fp16"),
        ("gemma3:4b", "gemma-3-4b", "q4_k_m"),
        ("gemma3:4b-it-qat", "gemma-3-4b", "q4_0"),
        ("qwen3:30b-a3b", "qwen3-30b-a3b", "q4_k_m"),
        ("qwen3:30b", "qwen3-30b-a3b", "q4_k_m"),
        ("gpt-oss:20b", "gpt-oss-20b", "mxfp4_moe"),
        ("deepseek-r1:14b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "q4_k_m"),
        ("phi4", "phi-4", "q4_k_m"),
        ("mistral:7b", "mistral-7b-v0.3", "q4_k_m"),
        ("mistral:latest", "mistral-7b-v0.3", "q4_k_m"),
    ],
)
def test_a_name_is_a_model_and_its_format(name: str, stem: str, quantization: str) -> None:
    found = named_file(name)
    assert found is not None and found.known == stem
    loaded = models.load(name)
    assert loaded.parameters == models.load(stem).parameters and loaded.quantization == quantization
    assert loaded.notes[-1].startswith(f"'{name}', ") and f" is read as {stem} " in loaded.notes[-1]


@pytest.mark.parametrize("name", ["llama3.1:8b", "unsloth/Qwen3-8B-GGUF:UD-Q5_K_XL", "gpt-oss:20b"])
def test_the_name_answers_as_its_model_with_the_format_stated(name: str) -> None:
    loaded, options = models.load(name), {"efficiency": "calibrated", "engine": "llama.cpp"}
    own = answer(name, "rtx-4090", **options)
    stated = answer(loaded.name, "rtx-4090", **options, quantization=loaded.quantization)
    for part in ("model", "metrics", "memory", "stages"):
        assert own[part] == stated[part]


def test_a_stated_format_takes_precedence() -> None:
    own, plain = (lv.analyze(name, "rtx-4090", quantization="fp8") for name in ("llama3.1:8b", "llama-3.1-8b"))
    assert own.analysis.memory.weights_bytes == plain.analysis.memory.weights_bytes
    assert "--quantization fp8 takes precedence over Q4_K_M of 'llama3.1:8b'" in own.warnings


def test_a_draft_model_has_the_format_of_its_name() -> None:
    def weights(draft: str) -> float:
        options: dict[str, Any] = {"speculative": f"draft={draft},tokens=2,acceptance=0.7"}
        return float(lv.analyze("llama-3.1-8b", "h100-sxm", **options).analysis.memory.weights_bytes)

    assert weights("llama3.2:1b") == weights("llama-3.2-1b,quantization=q8_0") < weights("llama-3.2-1b")


def test_a_server_of_the_catalogue_takes_the_names() -> None:
    with files.only_package_data():
        assert lv.analyze("gemma3:4b", "rtx-4090").techniques["quantization"] == "q4_k_m"


def test_every_name_of_ollamas_leads_to_a_model() -> None:
    assert not [model for model in file_names.OLLAMA_MODELS.values() if aliases.resolve(model) is None]
    for family, size in file_names.OLLAMA_LATEST.items():
        found, full = named_file(family), named_file(f"{family}:{size}")
        assert found is not None and full is not None and found.known == full.known
    assert {file_names.USUAL, file_names.OF_MXFP4, *file_names.OLLAMA_FORMATS.values()} <= set(OF_GGUF)


@pytest.mark.parametrize("stem", models.names())
def test_every_model_is_found_by_the_name_of_a_gguf_repository(stem: str) -> None:
    found = named_file(f"my-lab/{stem}-GGUF:Q8_0")
    assert found is not None and aliases.resolve(stem) == aliases.resolve(found.known.rpartition("/")[2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bartowski/Foo-7B-GGUF:Q4_K_M", "no model here is called 'Foo-7B'"),
        ("llama3.1:9b", "no model here is called 'llama3.1-9b'; did you mean 'llama3.1-8b'?"),
        ("my-lab/Llama-3.1-8B-AWQ-GGUF", "names two formats: GGUF and awq"),
        ("unsloth/Qwen3-8B-GGUF:Q4_K_Q", "unknown format 'q4_k_q'; did you mean 'q4_k_s'? (of files: q2_k ..."),
        ("unsloth/Qwen3-8B-GGUF:w4a16", "unknown format 'w4a16'"),
    ],
)
def test_nothing_is_guessed(name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        lv.analyze(name, "rtx-4090")
    assert message in str(error.value) and f"'{name}'" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["mamba", "my-lab/model", "Qwen/Qwen3-8B-AWQ", "llama3.1-8b"])
def test_other_names_are_none_of_these(name: str) -> None:
    assert named_file(name) is None


def test_a_cached_file_is_read_by_its_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--my-lab--Tuned-GGUF"
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    shapes = tensors({**MATRICES, **NORMS}, OUTSIDE)
    for kind in ("Q4_0", "Q8_0"):
        written(snapshot / f"Tuned-{kind}.gguf", shapes, lambda name, kind=kind: "F32" if "norm" in name else kind)  # type: ignore[misc]
    loaded = models.load("my-lab/Tuned-GGUF:q8_0")
    assert loaded.name == "Tuned-Q8_0" and not loaded.quantization
    with pytest.raises(UserError, match="no model here is called 'Tuned'"):
        models.load("my-lab/Tuned-GGUF:Q6_K")


def test_a_command_of_an_engine_asks_for_the_hub_id() -> None:
    with pytest.raises(UserError, match=r"'llama3\.1:8b' is a name of Ollama's"):
        manifests.hub_id("llama3.1:8b")
