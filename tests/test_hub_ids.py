"""Hub ids: suffixes lead to a model of model_configs/ and a stored format by rule, and the local cache is looked up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer import models
from llmviewer.api.build import HUB_VARIABLES
from llmviewer.cli import main
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.core.workload import decode
from llmviewer.models import aliases, hub
from llmviewer.models.gguf_config import ARCHITECTURES
from llmviewer.models.model import Model
from llmviewer.result.describe import cache_growth

REVISION = "89abcdef0123456789abcdef0123456789abcdef"


def bits(model: Model, operator: str) -> tuple[float, float]:
    """Stored bits of an operator's matrix, and bits of its inputs."""
    op = next(op for _, op in model.graph(decode(1.0, 0.0)) if op.name == operator)
    inputs, weights = op.reads[0].tensor, op.reads[1].tensor
    return weights.dtype.bits, inputs.dtype.bits


@pytest.mark.parametrize(
    ("name", "stem", "weights", "inputs"),
    [
        ("Qwen/Qwen2.5-32B-Instruct-AWQ", "qwen2.5-32b", 4 + 20 / 128, 16),  # a 16-bit scale and a 4-bit zero per 128
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "llama-3.1-8b", 4 + 20 / 128, 16),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b", 4 + 20 / 128, 16),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "qwen2.5-7b", 8 + 24 / 128, 16),
        ("TheBloke/Llama-2-7B-Chat-GPTQ", "llama-2-7b", 4 + 20 / 128, 16),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b", 4 + 16 / 128, 16),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b", 8, 8),
        ("RedHatAI/gemma-3-27b-it-FP8-dynamic", "gemma-3-27b", 8, 8),
        ("Qwen/Qwen3-8B-FP8", "qwen3-8b", 8 + 32 / 128**2, 8 + 32 / 128),  # an fp32 scale per block of 128 x 128
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b", 8, 8),
        ("nvidia/Llama-3.3-70B-Instruct-NVFP4", "llama-3.3-70b", 4.5, 4.5),
        ("Intel/Qwen3-8B-int4-AutoRound", "qwen3-8b", 4 + 20 / 128, 16),
        ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit", "llama-3.2-1b", 4 + (8 + 32 / 256) / 64, 16),  # double quantization
        ("unsloth/Llama-3.2-1B-Instruct", "llama-3.2-1b", 16, 16),
        ("my-lab/qwen3-8b-it", "qwen3-8b", 16, 16),
        ("deepseek-ai/DeepSeek-V3-BF16", "deepseek-v3", 16, 16),  # stored in fp8 blocks without the suffix
        ("llama-2-7b_AWQ", "llama-2-7b", 4 + 20 / 128, 16),
    ],
)
def test_suffixes_lead_to_a_model_and_its_stored_bits(name: str, stem: str, weights: float, inputs: float) -> None:
    loaded = models.load(name)
    assert loaded.parameters == models.load(stem).parameters
    assert loaded.notes[-1].startswith(f"'{name}' is read as {stem}")
    assert bits(loaded, "o_proj") == (weights, inputs)
    assert bits(loaded, "lm_head") == (16, 16)


def test_a_makers_habits() -> None:
    """NVIDIA's checkpoints state an fp8 cache, half of 2 x 80 layers x 8 heads x 128 x 2 bytes; others do not."""
    names = [f"{maker}/Llama-3.3-70B-Instruct-{word}" for maker in ("nvidia", "my-lab") for word in ("NVFP4", "FP8")]
    cache = [cache_growth(models.load(name).graph(decode(1.0, 0.0)))["kv_cache_bytes_per_token"] for name in names]
    assert cache == [163840, 163840, 327680, 327680]


@pytest.mark.parametrize(("name", "stored"), [("mlx-community/Qwen3-8B-4bit", 4.5), ("my-lab/Qwen3-8B-MLX-6bit", 6.5)])
def test_mlx_stores_the_embedding_in_few_bits_too(name: str, stored: float) -> None:
    """Qwen3-8B: all but the norms, 36 x (2 x 4096 + 2 x 128) + 4096, at 4 or 6 bits and 32 per 64 weights."""
    loaded, norms = models.load(name), 36 * (2 * 4096 + 2 * 128) + 4096
    weights = sum(t.elements * t.dtype.bytes * n for t, n in loaded.graph(decode(1.0, 0.0)).stored_weights())
    assert weights == (loaded.parameters - norms) * stored / 8 + norms * 2


def test_nvidias_gemma_keeps_attention_in_16_bit_and_does_not_fit() -> None:
    """60 layers of 3 x 5376 x 21504 weights at 4.5 bits, all else in 16: 30.4 GiB with the vision tower."""
    own, plain = models.load("nvidia/Gemma-4-31B-IT-NVFP4"), models.load("gemma-4-31b")
    sizes = [
        sum(t.elements * t.dtype.bytes * n for t, n in m.graph(decode(1.0, 0.0)).stored_weights()) for m in (plain, own)
    ]
    assert sizes[0] - sizes[1] == 60 * 3 * 5376 * 21504 * (16 - 4.5) / 8
    answer = lv.analyze("nvidia/Gemma-4-31B-IT-NVFP4", "rtx-5090", engine="vllm")
    assert not answer.fits and 30.3 < float(answer.analysis.memory.weights_bytes) / 2**30 < 30.7
    assert not any("unsure" in warning for warning in answer.warnings)


def test_a_fit_within_the_doubt_of_a_name_is_unsure() -> None:
    """Attention in 16 bit would take 11.3 GiB more where 6.7 are free; a larger card has room for it."""

    def unsure(name: str, chip: str, **options: Any) -> bool:
        return any("unsure whether it fits" in warning for warning in lv.analyze(name, chip, **options).warnings)

    assert unsure("my-lab/gemma-4-31B-it-NVFP4", "rtx-5090")
    assert not unsure("my-lab/gemma-4-31B-it-NVFP4", "h100")
    assert not unsure("my-lab/gemma-4-31B-it-NVFP4", "rtx-5090", quantization="w4a16")
    assert not unsure("gemma-4-31b", "rtx-5090")


@pytest.mark.parametrize(("chip", "is_unsure"), [("rtx-5090", True), ("h100", False)])
def test_the_verdict_on_a_fit_within_the_doubt_says_so(
    chip: str, is_unsure: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "my-lab/gemma-4-31B-it-NVFP4", "--hardware", chip]) == 0
    assert ("unsure, as a warning says" in " ".join(capsys.readouterr().out.split())) is is_unsure


def test_llama_405b_in_fp8_keeps_attention_and_two_layers_in_16_bit() -> None:
    """124 of 126 layers have 8-bit feed-forward parts, 3 x 16384 x 53248 weights (arXiv 2407.21783, section 6.2)."""
    plain, found = (models.load(f"meta-llama/Llama-3.1-405B-Instruct{suffix}") for suffix in ("", "-FP8"))
    stored = [
        sum(t.elements * t.dtype.bytes * n for t, n in m.graph(decode(1.0, 0.0)).stored_weights())
        for m in (plain, found)
    ]
    assert stored[0] - stored[1] == 124 * 3 * 16384 * 53248


def test_the_name_of_a_result_resolves_to_the_same_model() -> None:
    loaded = models.load("Qwen/Qwen3-8B-FP8")
    assert loaded.name == "qwen3-8b-fp8-block"
    assert bits(models.load(loaded.name), "q_proj") == bits(loaded, "q_proj")


@pytest.mark.parametrize("word", sorted(aliases.FORMATS))
def test_every_format_is_read_without_another_note(word: str) -> None:
    assert len(models.load(f"my-lab/Llama-3.1-8B-{word}").notes) == 1


def test_every_spelling_names_a_format() -> None:
    assert set(aliases.SPELLINGS.values()) <= set(aliases.FORMATS)
    assert not set(aliases.UNKNOWN_BITS) & (set(aliases.FORMATS) | set(aliases.SPELLINGS))


@pytest.mark.parametrize("word", [*aliases.FORMATS, *ARCHITECTURES])
def test_every_format_and_architecture_is_in_the_docs(word: str) -> None:
    page = " ".join((data.ROOT.parent / "docs" / "reference" / "models.md").read_text(encoding="utf-8").split())
    assert f"-{word}`" in page.lower() or f".{word}`" in page.lower() or f" {word}" in page.split("**GGUF**")[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("turboderp/Llama-3.1-8B-exl2", "no stored bits are known for 'exl2': none are published"),
        ("unsloth/Llama-3.2-1B-Instruct-unsloth-bnb-4bit", "only its config.json lists the layers kept in 16 bit"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", "only its config.json lists the layers kept in 16 bit"),
        ("my-lab/Llama-3.1-8B-AWQ-FP8", "names 2 formats: fp8, awq"),
        ("Qwen/Qwen2.5-32B-Instruct-AWX", "did you mean 'Qwen/Qwen2.5-32B-Instruct'?"),
        ("my-lab/Llama-3.1-8C-AWQ", "unknown model 'my-lab/Llama-3.1-8C-AWQ'"),
        ("my-lab/-AWQ", "unknown model"),
        ("AWQ", "unknown model"),
    ],
)
def test_nothing_is_guessed(name: str, message: str) -> None:
    with pytest.raises(UserError, match=r"^(unknown )?model") as error:
        models.load(name)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_users_quantization_takes_precedence_and_is_said() -> None:
    name = "Qwen/Qwen2.5-7B-Instruct-AWQ"
    own, plain = lv.analyze(name, "l40s"), lv.analyze("qwen2.5-7b", "l40s", quantization="fp8")
    asked = lv.analyze(name, "l40s", quantization="fp8")
    assert asked.analysis.memory.weights_bytes == plain.analysis.memory.weights_bytes
    assert own.analysis.memory.weights_bytes < asked.analysis.memory.weights_bytes
    assert "--quantization fp8 takes precedence over awq of the model's name" in asked.warnings
    assert not any("precedence" in warning for warning in (*own.warnings, *plain.warnings))


def cached(folder: Path, name: str, stem: str, revision: str = REVISION) -> Path:
    """Write a snapshot with the config of `stem` to a cache, as huggingface_hub lays it out."""
    repository = folder / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(revision)
    config = data.read_yaml(data.folder("model_configs") / f"{stem}.yaml")["config"]
    (snapshot / "config.json").write_text(json.dumps(config))
    return snapshot


def test_an_id_is_read_from_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cached(tmp_path, "my-lab/tuned", "qwen3-0.6b", "0" * 40)
    cached(tmp_path, "my-lab/tuned", "qwen3-4b")  # refs/main now refers to this one
    loaded = models.load("my-lab/tuned")
    assert (loaded.name, loaded.parameters) == ("tuned", models.load("qwen3-4b").parameters)
    assert loaded.notes == ("my-lab/tuned is read from the Hugging Face cache, revision 89abcdef",)


def test_the_cache_is_more_exact_than_a_suffix_and_less_than_an_alias(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in ("Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3-8B"):
        cached(tmp_path, name, "qwen3-0.6b")
    assert models.load("Qwen/Qwen3-8B-AWQ").parameters == models.load("qwen3-0.6b").parameters
    assert models.load("Qwen/Qwen3-8B").parameters == models.load("qwen3-8b").parameters


@pytest.mark.parametrize("reference", ["", "../../../other", "main", "0" * 40, "0" * 5000])
def test_a_cache_without_the_snapshot_is_an_unknown_model(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cached(tmp_path, "my-lab/tuned", "qwen3-4b")
    (tmp_path / "models--my-lab--tuned" / "refs" / "main").write_text(reference)
    with pytest.raises(UserError, match=r"unknown model|larger than"):
        models.load("my-lab/tuned")


def test_the_cache_stands_where_huggingface_hub_puts_it() -> None:
    home = Path("~").expanduser() / ".cache"
    assert hub.folder({}) == home / "huggingface" / "hub"
    assert hub.folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
    assert hub.folder({"HF_HOME": "/h", "XDG_CACHE_HOME": "/x"}) == Path("/h/hub")
    assert hub.folder({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}) == Path("/c")


@pytest.mark.parametrize("variable", HUB_VARIABLES)
def test_an_id_is_looked_up_again_after_the_cache_has_moved(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in HUB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    counts = []
    for stem in ("qwen3-4b", "qwen3-8b"):
        monkeypatch.setenv(variable, str(tmp_path / stem))
        cached(hub.folder(), "my-lab/tuned", stem)
        counts.append(lv.analyze("my-lab/tuned", "h100-sxm").to_dict()["model"]["parameters"])
    assert counts[0] < counts[1]
