"""Names of --engine that are no presets: programs that run a preset's code, or to which one is the nearest."""

from __future__ import annotations

from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.planning.contract_line import _option
from llmviewer.timing import engine
from llmviewer.timing.engine_names import Named, named

PROGRAMS = [pytest.param(one, id=name) for name, one in named().items()]
MAKERS = {specs.load(name).maker for name in specs.names()}
#: A chip of each maker that a program is asked on.
CHIPS = {"Apple": "m4-max", "Google": "tpu-v6e", "Huawei": "ascend-910b", "NVIDIA": "rtx-4090"}


def answered(name: str, chip: str, **options: Any) -> dict[str, Any]:
    return lv.analyze("llama-3.2-3b", chip, engine=name, **options).to_dict()


@pytest.mark.parametrize("one", PROGRAMS)
def test_a_program_has_a_preset_a_source_and_chips(one: Named) -> None:
    assert one.preset in engine.names() and one.name not in engine.names()
    assert one.source.startswith("https://") and set(one.makers) <= MAKERS
    assert not (one.nearest and one.same_versions)
    assert "https://" in one.slots_source or not (one.max_num_seqs or one.logical_batch or one.slots_source)


@pytest.mark.parametrize("one", PROGRAMS)
def test_it_has_the_times_of_its_preset_and_says_whose_they_are(one: Named) -> None:
    chip = CHIPS[one.makers[0] if one.makers else "NVIDIA"]
    options = {"input_len": 256}  # one pass, whatever their limits
    own, preset = answered(one.name, chip, **options), answered(one.preset, chip, **options)
    for metric in ("ttft_s", "tpot_s"):
        assert own["metrics"][metric] == preset["metrics"][metric]
        (low, high), (lower, higher) = [found["metrics"]["intervals"][metric]["80"] for found in (preset, own)]
        assert lower < low < high < higher if one.nearest else (lower, higher) == (low, high)
    nearest = "nearest: " if one.nearest else ""
    assert own["efficiency"]["engine_title"] == f"{one.title} ({nearest}{preset['efficiency']['engine_title']})"
    own_notes = [note for note in own["warnings"] if note.startswith(f"engine {one.name}:")]
    assert [note for note in own_notes if "is allocated" not in note] == [one.note] * bool(one.nearest)
    assert len(own_notes) == bool(one.nearest) + bool(one.contexts)


@pytest.mark.parametrize(("name", "preset"), [("llama-cpp", "llama.cpp"), ("llamacpp==b7000", "llama.cpp==b7000")])
def test_other_spellings_are_the_preset(name: str, preset: str) -> None:
    assert engine.load(name) == engine.load(preset)


def test_versions_of_a_program_are_those_of_its_preset_or_none() -> None:
    assert engine.load("vllm-ascend==0.18").version == "0.18"
    with pytest.raises(UserError, match=r"engine ollama==0\.5: its versions are not told apart; give ollama alone"):
        engine.load("ollama==0.5")


def test_a_program_is_refused_on_chips_of_other_makers() -> None:
    with pytest.raises(UserError, match="engine mlx-lm: MLX LM runs on chips of Apple, h100-sxm is of NVIDIA"):
        answered("mlx-lm", "h100")


def test_an_unknown_program_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown engine 'exlamav2'; did you mean 'exllamav2'\?"):
        engine.load("exlamav2")


@pytest.mark.parametrize(
    ("name", "chip", "words"),
    [
        ("ollama", "rtx-4090", "as Ollama (llama.cpp with CUDA) serves"),
        ("mlx-lm", "m4-max", "as MLX LM serves it"),
        ("exllamav3", "rtx-4090", "as ExLlamaV3 (nearest: ExLlamaV2) serves it"),
    ],
)
def test_the_verdict_names_the_program(name: str, chip: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "llama-3.1-8b", "--hardware", chip, "--engine", name, "-q", "w4a16"]) == 0
    assert words in " ".join(capsys.readouterr().out.split())


def test_a_line_of_a_contract_takes_the_names() -> None:
    assert _option("ollama") == ("engine", "ollama") and _option("llama-cpp==b7000") == ("engine", "llama-cpp==b7000")


@pytest.mark.parametrize(
    ("chip", "eager_us"), [("tpu-v5e", 64.0), ("tpu-v6e", 64.0), ("tpu-v7", 64.0), ("ascend-910b", 80.0)]
)
def test_vllm_launches_kernel_by_kernel_on_tpus_and_ascend(chip: str, eager_us: float) -> None:
    """No constants of CUDA graphs there: a token of a small model takes the time in which the host launches it."""
    found = engine.load("vllm").on(specs.load(chip))
    assert (found.graph_tokens, found.constants["eager"]) == (0.0, eager_us)
    assert answered("vllm", chip)["metrics"]["tpot_s"] > answered("kernels", chip)["metrics"]["tpot_s"]


@pytest.mark.parametrize(
    ("model", "chip", "bits", "per_second"),
    [
        ("llama-2-7b", "rtx-4090", "w4a16", 207.0),
        ("llama-2-7b", "rtx-3090-ti", "w5a16", 159.0),
        ("tinyllama-1.1b", "rtx-4090", "w4a16", 643.0),
        ("codellama-34b", "rtx-3090-ti", "w4a16", 44.0),
    ],
)
def test_exllamav2_decodes_as_its_readme_says(model: str, chip: str, bits: str, per_second: float) -> None:
    """https://github.com/turboderp/exllamav2/blob/01d01a14feb2a3dc40a9c3a9aafbf581984bab36/README.md; w4a16 is EXL2."""
    found = lv.analyze(model, chip, engine="exllamav2", quantization=bits, input_len=8, output_len=128)
    assert 1.0 / found.tpot_s == pytest.approx(per_second, rel=0.05)
    stored = lv.analyze(model, chip, engine="exllamav2", quantization=f"exl2-{bits[1]}bit", input_len=8, output_len=128)
    assert stored.tpot_s == found.tpot_s


@pytest.mark.parametrize("size", ["off", "1.5", "0"])
def test_a_wrong_number_of_devices_is_one_line_to_a_program_too(size: str) -> None:
    with pytest.raises(UserError, match=f"tensor_parallel_size: devices is '{size}'"):
        lv.analyze("llama-3.1-8b", "h100", engine="ollama", tensor_parallel_size=size)
    staged = lv.analyze("llama-3.1-8b", "h100", engine="ollama", pipeline_parallel_size="2,microbatches=1")
    assert staged.tpot_s == lv.analyze("llama-3.1-8b", "h100", engine="ollama", pipeline_parallel_size=2).tpot_s


@pytest.mark.parametrize(("engine", "noted"), [("deepspeed-mii", True), ("ollama", True), ("vllm", False)])
def test_graphs_that_an_engine_is_not_timed_by_are_noted(engine: str, *, noted: bool) -> None:
    told = lv.analyze("llama-3.1-8b", "h100", engine=engine, enforce_eager=True).warnings
    assert any(line.startswith("--enforce-eager: ") for line in told) is noted
