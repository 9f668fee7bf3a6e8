"""Models that fit: a row is the answer of its command, in the widest format that fits; no model is lost."""

from __future__ import annotations

import shlex
from functools import cache

import pytest

import llmviewer as lv
from llmviewer import models
from llmviewer.api.configuration import configuration
from llmviewer.cli import main
from llmviewer.core.ir import Role
from llmviewer.core.workload import decode
from llmviewer.planning.accuracy import risk
from llmviewer.planning.fitting import (
    GGUF,
    MEMORY,
    NOT_FOR_CHAT,
    REFUSED,
    SHORT,
    SLOW,
    Fitting,
    FittingModel,
    formats_of,
    weight_floor,
)
from llmviewer.techniques.quantization.presets import PRESETS
from tests.answers import refusal

DESK, SERVER = "rtx-4090", "h100-sxm"


@cache
def found_on(hardware: str, **options: object) -> Fitting:
    return lv.fit(hardware, top=1000, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("hardware", [DESK, SERVER])
def test_every_model_runs_or_is_left_out_with_a_reason(hardware: str) -> None:
    found = found_on(hardware)
    decoders = {name for name in models.names() if not models.load(name).is_encoder and not models.load(name).encoder}
    listed = [one.name for one in found.found] + [name for one in found.found for name in one.also]
    left = [one.model for one in found.left_out]
    assert len({*listed, *left}) == len(listed) + len(left)
    assert {*listed, *left} <= decoders - {*NOT_FOR_CHAT} and {*NOT_FOR_CHAT} <= {*models.names()}
    assert all(one.text for one in found.left_out)
    assert {one.kind for one in found.left_out} <= {MEMORY, SHORT, SLOW, REFUSED}
    sizes = [one.model.parameters for one in found.found]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("hardware", [DESK, SERVER])
def test_names_in_one_row_have_the_same_work_and_cache(hardware: str) -> None:
    def work(name: str) -> tuple[float, float]:
        graph = models.load(name).graph(decode(1.0, 1000.0))
        cached = (
            access.tensor.elements * block.repeats
            for block, op in graph
            for access in op.reads
            if access.tensor.role is Role.CACHE
        )
        return float(sum(op.flops * block.repeats for block, op in graph)), float(sum(cached))

    rows = [one for one in found_on(hardware).found if one.also]
    assert rows and all({work(other) for other in one.also} == {work(one.name)} for one in rows)


def row(found: Fitting, name: str) -> FittingModel:
    return next(one for one in found.found if one.name == name)


@pytest.mark.parametrize(("hardware", "name"), [(DESK, "qwen3-14b"), (DESK, "gpt-oss-20b"), (SERVER, "llama-3.3-70b")])
def test_a_row_is_the_answer_of_its_command_in_the_widest_format_that_fits(
    hardware: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = found_on(hardware, context="32k")
    one = row(found, name)
    assert main([*shlex.split(one.command)[1:], "--format", "json"]) == 0
    assert f'"tpot_s": {one.to_dict()["tpot_s"]!r}' in capsys.readouterr().out
    tried = list(formats_of(one.result.analysis.system.engine.name, one.model, one.result.analysis.system.chip))
    wider = tried[: tried.index(one.format)]
    sizes = {
        "engine": one.result.analysis.system.engine.name,
        "input_len": found.input_len,
        "output_len": found.output_len,
    }
    assert one.result.fits
    assert not any(lv.analyze(name, hardware, quantization=text, **sizes).fits for text in wider)  # type: ignore[arg-type]


def test_the_longest_context_fits_and_a_token_more_does_not() -> None:
    one = row(found_on(DESK, context="32k"), "qwen3-14b")
    assert one.max_context == one.model.max_context == 40960  # the model's own
    one = row(found_on(DESK), "gemma-3-27b")
    assert one.max_context is not None
    answer = found_on(DESK).output_len
    fits = [
        lv.analyze(
            one.name, DESK, quantization=one.format, engine="llama.cpp", output_len=answer, input_len=tokens - answer
        ).fits
        for tokens in (one.max_context, one.max_context + 1)
    ]
    assert fits == [True, False]


def test_a_least_speed_takes_narrower_formats_or_leaves_models_out() -> None:
    free, fast = found_on(DESK), found_on(DESK, min_speed=100)
    assert all(one.tokens_per_s >= 100 for one in fast.found)
    assert {one.name for one in fast.found} < {one.name for one in free.found}
    narrowed = [one for one in fast.found if one.format != row(free, one.name).format]
    assert narrowed and all(row(free, one.name).tokens_per_s < 100 for one in narrowed)
    assert all(GGUF.index(one.format) > GGUF.index(row(free, one.name).format) for one in narrowed)
    slow = {one.model for one in fast.left_out if one.kind == SLOW}
    assert slow and slow <= {one.name for one in free.found}


def test_weights_take_at_least_the_floor_by_which_models_are_left_out() -> None:
    """Each model in one format, another one for the next model."""
    formats = ("none", "w4a16", "fp8", *(name for name in (*GGUF, "mxfp4_moe") if name in PRESETS))
    sizes = lv.analyze("llama-3.2-1b", DESK).analysis.request
    names = [name for name in models.names() if not models.load(name).is_encoder]
    for at, name in enumerate(names):
        text = formats[at % len(formats)]
        model = models.load(name)
        stored = configuration(model, "mi355x", quantization=text, efficiency="ideal").memory_columns(sizes)
        assert 0.0 < weight_floor(model, text) <= stored["weights_bytes"][0] * (1.0 + 1e-12), (name, text)


def test_options_that_no_engine_covers_are_timed_by_kernels_alone_with_a_note() -> None:
    found = lv.fit(DESK, models=["llama-3.2-1b"], offload="weights=0.5")
    assert found.found[0].result.analysis.system.engine.name == "kernels"
    assert "the preset of llama.cpp" in found.warnings[0] and "--offload weights=0.5" in found.warnings[0]
    assert float(found.found[0].result.tpot_s) == lv.analyze(
        "llama-3.2-1b", DESK, quantization=found.found[0].format, offload="weights=0.5",
        input_len=found.input_len, output_len=found.output_len,
    ).tpot_s  # fmt: skip


def test_the_perplexity_of_a_format_is_that_of_the_published_scoreboard() -> None:
    """llama.cpp's tools/perplexity/README.md prints the ratios 1.000425, 1.003490, 1.028160 and 1.564849."""
    ratios = {"q8_0": 1.000425, "q6_k": 1.003490, "q4_k_m": 1.028160, "q2_k": 1.564849}
    for name, ratio in ratios.items():
        assert 1.0 + (risk("quantization", name).perplexity_increase or 0.0) == pytest.approx(ratio, abs=6e-6)
    assert all(risk("quantization", name).source for name in GGUF)


def test_the_exit_status_says_whether_any_model_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["fit", "--hardware", "rtx-3060-12gb", "--models", "llama-3.1-405b,llama-3.2-1b", "--context", "4k"]) == 0
    )
    assert "1 of 2 models run" in capsys.readouterr().out
    assert main(["fit", "--hardware", "rtx-3060-12gb", "--models", "llama-3.1-405b"]) == 1
    assert "none of 1 models runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--context 1", "context is 1; allowed: whole numbers from 4"),
        ("--min-speed 0", "min-speed is 0; allowed: a number above 0"),
        ("--quantization q4_k_m,q4_typo", "unknown quantization 'q4_typo'"),
        ("--formats q4_k_m,", "formats has an empty value"),
        ("--models llama-3.1-8bx", "unknown model 'llama-3.1-8bx'; did you mean 'llama-3.1-8b'?"),
        ("-dp 2", "fit asks for one request, of one replica"),
        ("--engine nosuch", "unknown engine 'nosuch'"),
    ],
)
def test_wrong_input_is_told_in_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(["fit", "--hardware", DESK, *words.split()], capsys)


@pytest.mark.parametrize("columns", [80, 160])
def test_the_table_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["fit", "--hardware", DESK, "--models", "qwen3-14b,gpt-oss-20b,llama-3.1-70b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if "https://" not in line) <= columns
    assert sum("tok/s" in line for line in lines) == 1


def test_two_cards_hold_what_one_does_not() -> None:
    """Qwen2.5-72B in q4_k_m has 44 GB: layers on two cards of 24 GiB, at the speed of a run with as many stages."""
    words = {"models": "qwen2.5-72b", "context": 4096, "quantization": "q4_k_m"}
    assert not lv.fit("rtx-3090", **words).holds  # type: ignore[arg-type]
    both = lv.fit("2x3090", **words)  # type: ignore[arg-type]
    assert (both.devices, len(both.found)) == (2, 1)
    run = {"engine": "llama.cpp", "quantization": "q4_k_m", "input_len": 3968, "output_len": 128}
    stages = lv.analyze("qwen2.5-72b", "rtx-3090", pipeline_parallel_size=2, **run)  # type: ignore[arg-type]
    assert both.found[0].tokens_per_s == pytest.approx(1.0 / float(stages.tpot_s))
