"""Backends of llama.cpp: how they are chosen and refused, what each is fitted to, and where results state theirs."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.calibrate.e2e_rows import case_of
from llmviewer.calibrate.readers.llama_bench import llama_bench, of_markdown
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.timing import engine, engine_backends

STRIX_HALO, CARD = "ryzen-ai-max-plus-395", "rtx-3090"
LLAMA_CPP = {"engine": "llama.cpp", "quantization": "q4_0"}


@functools.cache
def run(model: str = "llama-2-7b", chip: str = STRIX_HALO, **options: Any) -> Any:
    return lv.analyze(model, chip, **{**LLAMA_CPP, "input_len": 512, "output_len": 128, **options})


def title(chip: str, name: str = "llama.cpp", backend: str = "") -> str:
    """The engine as an answer on this chip names it."""
    return str(run(chip=chip, engine=name, backend=backend).to_dict()["efficiency"]["engine_title"])


@pytest.mark.parametrize(
    ("chip", "name", "said"),
    [
        (CARD, "llama.cpp", "llama.cpp with CUDA"),
        (STRIX_HALO, "llama.cpp", "llama.cpp with ROCm"),
        ("m3-max", "llama.cpp", "llama.cpp with Metal"),
        ("arc-b580", "llama.cpp", "llama.cpp with SYCL"),
        ("epyc-9654", "llama.cpp", "llama.cpp with its CPU code"),
        (CARD, "llama.cpp==b7000", "llama.cpp 7000 with CUDA"),
        ("arc-b580", "ollama", "Ollama (llama.cpp with Vulkan)"),
        (STRIX_HALO, "koboldcpp", "KoboldCpp (llama.cpp with Vulkan)"),
        (STRIX_HALO, "lm-studio", "LM Studio (llama.cpp with ROCm)"),
    ],
)
def test_without_the_option_a_chip_runs_the_build_of_its_maker_and_the_answer_names_it(
    chip: str, name: str, said: str
) -> None:
    version = {"quantization": "q4_0"}
    found = lv.analyze("llama-3.2-1b", chip, engine=name, **version).to_dict()["efficiency"]["engine_title"]
    assert found.replace("b7000", "7000") == said


@pytest.mark.parametrize(
    ("typed", "chip", "same"),
    [("hip", STRIX_HALO, "rocm"), ("Vulkan", CARD, "vulkan"), ("HIPBLAS", "mi50-32gb", "rocm"), ("mtl", "m4", "metal")],
)
def test_spellings_of_a_backend_answer_alike(typed: str, chip: str, same: str) -> None:
    assert run(chip=chip, backend=typed).columns()["tpot_s"] == run(chip=chip, backend=same).columns()["tpot_s"]


@pytest.mark.parametrize(("chip", "backend"), [(STRIX_HALO, "rocm"), (CARD, "cuda"), ("m4", "metal")])
def test_the_default_backend_may_be_stated(chip: str, backend: str) -> None:
    assert run(chip=chip, backend=backend).to_dict()["metrics"] == run(chip=chip).to_dict()["metrics"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--engine", "llama.cpp", "--backend", "metal"],
            "--backend metal: llama.cpp has it not on rtx-3090; allowed:",
        ),
        (["--engine", "ollama", "--backend", "rocm"], "--backend rocm: ollama has it not on rtx-3090; allowed: cuda,"),
        (["--engine", "vllm", "--backend", "cuda"], "--backend is an option of llama.cpp; --engine vllm has none"),
        (["--backend", "vulkan"], "--backend is an option of llama.cpp; state its engine"),
        (["--engine", "llama.cpp", "--backend", "vulcan"], "did you mean 'vulkan'?"),
    ],
)
def test_a_backend_that_is_not_there_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["analyze", "llama-2-7b", "--hardware", CARD, *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_chip_without_known_backends_says_so() -> None:
    with pytest.raises(UserError, match="has it not on tpu-v5e; none is known here"):
        engine_backends.chosen("vulkan", engine.load("llama.cpp").backends, specs.load("tpu-v5e"), "llama.cpp")


def test_a_backend_that_was_not_measured_takes_the_times_of_another_and_says_so() -> None:
    """Vega has rows with ROCm alone, RDNA 2 none: its nearest is RDNA 3."""
    vega, card = run(chip="mi50-32gb", backend="vulkan"), run(chip="rx-6800", backend="vulkan")
    assert any("not measured on gcn5: times are those of --backend rocm" in note for note in vega.warnings)
    assert any("not measured on rdna2: times are those of rdna3" in note for note in card.warnings)
    assert vega.columns()["tpot_s"] == run(chip="mi50-32gb").columns()["tpot_s"]
    assert not any("--backend" in note for note in run(backend="vulkan").warnings)


def test_tables_tell_backends_apart() -> None:
    frame = lv.sweep("llama-2-7b", STRIX_HALO, **LLAMA_CPP, backend=["rocm", "vulkan"]).to_frame()
    assert list(frame["engine"]) == ["llama.cpp", "llama.cpp/vulkan"]


# Published figures


@pytest.mark.parametrize(
    ("model", "chip", "options", "prompts", "answers"),
    [
        # https://github.com/visorcraft/strix-halo-llm-perf/blob/main/BENCHMARKS.md, build b8038, and
        # https://github.com/kyuz0/amd-strix-halo-toolboxes/tree/main/benchmark/results, build b8577
        ("llama-2-7b", STRIX_HALO, {"backend": "vulkan", "quantization": "q4_k_m"}, 1074.4, 47.25),
        ("qwen3-30b-a3b", STRIX_HALO, {"backend": "rocm", "quantization": "q4_k_m"}, 1149.3, 67.72),
        # https://github.com/ggml-org/llama.cpp/pull/21024 (before)
        ("llama-3.1-8b", CARD, {"backend": "vulkan", "quantization": "q4_0"}, 4753.5, 146.7),
    ],
)
def test_measured_rates_are_met(model: str, chip: str, options: dict[str, str], prompts: float, answers: float) -> None:
    """pp512 and tg128 of llama-bench [tokens/s], within 14 %."""
    prompt = run(model, chip, **options, output_len=1, attention="flash").to_dict()["metrics"]
    answer = run(model, chip, **options, input_len=1, attention="flash").to_dict()["metrics"]
    assert 512.0 / prompt["ttft_s"] == pytest.approx(prompts, rel=0.14)
    assert 1.0 / answer["tpot_s"] == pytest.approx(answers, rel=0.14)


def test_on_strix_halo_vulkan_generates_faster_and_rocm_reads_prompts_faster() -> None:
    """As measured on all models that both ran: https://github.com/visorcraft/strix-halo-llm-perf."""
    rocm, vulkan = (run(backend=name).to_dict()["metrics"] for name in ("rocm", "vulkan"))
    assert vulkan["tpot_s"] < rocm["tpot_s"] and rocm["ttft_s"] < vulkan["ttft_s"]


# Results and tables


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        *(("CUDA", "cuda"), ("ROCm", "rocm"), ("HIP", "rocm"), ("Vulkan", "vulkan"), ("MTL,BLAS", "metal")),
        *(("SYCL", "sycl"), ("CUDA,RPC", "cuda"), ("BLAS", ""), ("CANN", ""), ("", "")),
    ],
)
def test_results_of_llama_bench_state_their_backend(text: str, backend: str) -> None:
    record = {
        "model_filename": "llama-2-7b.Q4_0.gguf", "n_prompt": 512, "n_gen": 0, "avg_ts": 1100.0, "backends": text,
        "gpu_info": "NVIDIA GeForce RTX 3090", "n_gpu_layers": 99,
    }  # fmt: skip
    found = llama_bench(record)
    assert found is not None and found.backend == backend
    on_host = llama_bench({**record, "n_gpu_layers": 0})
    assert on_host is not None and not on_host.backend


def test_the_markdown_of_llama_bench_has_it_in_a_column() -> None:
    text = (
        "| model | size | params | backend | ngl | fa | test | t/s |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| llama 7B Q4_0 | 3.56 GiB | 6.74 B | Vulkan | 99 | 1 | pp512 | 1135.49 ± 4.16 |\n"
    )
    assert [record["backends"] for record in of_markdown(text)] == ["Vulkan"]


def test_a_row_of_figures_states_its_backend() -> None:
    row = {
        "device": STRIX_HALO, "model": "llama-2-7b", "engine": "llama.cpp", "backend": "HIP", "input_len": 0,
        "output_len": 128, "metric": "decode_tok_s", "value": 50.6, "quantization": "q4_0", "batch": 1.0,
    }  # fmt: skip
    assert case_of(row).backend == "rocm" and case_of({**row, "backend": ""}).backend == ""
    assert len({case_of(row).run, case_of({**row, "backend": "vulkan"}).run}) == 2


# The preset


def test_every_chip_of_a_known_maker_has_backends_and_fields_are_of_those() -> None:
    preset = engine.load("llama.cpp")
    chips = [specs.load(name) for name in specs.names()]
    usual = {chip.name: engine_backends.of_chip(preset.backends, chip)[:1] for chip in chips}
    assert {chip.maker for chip in chips if not usual[chip.name]}.isdisjoint({"NVIDIA", "AMD", "Apple"})
    kinds = {word for chip in chips for word in (chip.name, chip.generation, chip.maker)}
    for name in preset.generations:
        kind, _, backend = name.partition("/")
        assert kind in kinds and (not backend or backend in engine_backends.SPELLINGS)
    assert "https://" in preset.backends_source


def test_graphics_chips_and_processors_of_a_maker_have_other_backends() -> None:
    known = engine.load("llama.cpp").backends
    assert [tuple(engine_backends.of_chip(known, specs.load(name))) for name in ("epyc-9654", "mi300x", "gaudi-3")] == [
        ("cpu",),
        ("rocm", "vulkan"),
        (),
    ]
