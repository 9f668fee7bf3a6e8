"""llama.cpp's own options, the placement of layers and experts that they state, and its memory."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.api.configuration import configuration
from llmviewer.cli import main
from llmviewer.core.ir import Place
from llmviewer.reports import analysis_page, terminal, verdict
from llmviewer.reports.terminal import Screen
from llmviewer.techniques.llama_cpp import EXPERTS, translated
from llmviewer.techniques.options import LLAMA_CPP_OPTIONS

MIB, GIB = 2.0**20, 2.0**30
#: A dense model and a mixture of experts with all layers alike.
DENSE, EXPERT = "llama-3.1-8b", "qwen3-30b-a3b"
OPTIONS = {"engine": "llama.cpp", "quantization": "q4_k_m"}


@functools.cache
def run(model: str, chip: str = "rtx-3090", **options: Any) -> Any:
    return lv.analyze(model, chip, **{**OPTIONS, **options})


def metrics(found: Any) -> dict[str, Any]:
    answer: dict[str, Any] = found.to_dict()["metrics"]
    return answer


def place_of(model: str, **options: Any) -> str:
    """The text of `--offload` that options of llama.cpp stand for."""
    return configuration(model, "rtx-3090", **OPTIONS, **options).options.techniques.get("offload", "")


# Spellings


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        (["-c", "4096"], ["--max-model-len", "4096"]),
        (["--ctx-size", "4096"], ["--max-model-len", "4096"]),
        (["-ub", "256"], ["--max-num-batched-tokens", "256"]),
        (["-b", "256"], ["--max-num-batched-tokens", "256"]),
        (["-b", "300", "-ub", "256"], ["--max-num-batched-tokens", "256"]),
        (["-np", "2"], ["--max-num-seqs", "2"]),
        (["-fa", "on"], ["--attention", "flash"]),
        (["-fa", "off"], ["--attention", "eager"]),
        (["-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on"], ["--kv-cache-dtype", "q8_0", "-fa", "auto"]),
        (["-ctk", "q8_0"], ["--kv-cache-dtype", "kq8_0vf16"]),
        (["-ts", "1,1"], ["--pipeline-parallel-size", "2"]),
        (["-ts", "1,1", "-sm", "tensor"], ["-tp", "2"]),
        (["-ngl", "all"], []),
        (["-ngl", "99"], []),
        (["-ngl", "20"], ["--offload", "llama.cpp,cpu_layers=13"]),
        (["-ngl", "0"], ["--offload", "llama.cpp,cpu_layers=all"]),
    ],
)
def test_a_spelling_of_llama_cpp_answers_as_ours(
    capsys: pytest.CaptureFixture[str], typed: list[str], ours: list[str]
) -> None:
    """Every figure of every operator is the same."""
    texts = []
    for words in (typed, ours):
        line = ["analyze", DENSE, "--hardware", "rtx-3090", "--engine", "llama.cpp", "-q", "q4_k_m", "--format", "csv"]
        assert main([*line, *words, "--no-fit-check"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "vllm", "-ngl", "20"], "-ngl is an option of llama.cpp"),
        (["--engine", "sglang", "-ctk", "q8_0"], "-ctk is an option of llama.cpp"),
        (["-ngl", "many"], "-ngl is 'many'; allowed: a whole number, all, auto"),
        (["-ctv", "q4_0", "-fa", "off"], "-ctv q4_0 needs FlashAttention"),
        (["--engine", "llama.cpp==b6000", "-ctv", "q4_0"], "-ctv q4_0 needs FlashAttention"),
        (["-ctk", "q9_0"], "unknown value of -ctk 'q9_0'"),
        (["-ts", "3,1", "-sm", "tensor"], "-ts is '3,1'; -sm tensor takes equal shares"),
        (["-ts", "0,0"], "-ts is '0,0'; allowed: shares of the GPUs"),
        (["-ts", "1,1", "-sm", "row"], "-sm row divides matrices alone"),
        (["-sm", "layer"], "-sm layer divides nothing on one GPU"),
        (["-ngl", "9", "-tp", "2"], "-ngl and --n-cpu-moe beside a tensor group"),
        (["-ngl", "9", "--offload", "weights=0.4"], "--offload weights and options of llama.cpp"),
        (["--n-cpu-moe", "9"], "--n-cpu-moe: llama-3.1-8b has no routed experts"),
        (["-ctk", "q8_0", "--kv-cache-dtype", "fp8"], "--kv-cache-dtype fp8 and options of llama.cpp"),
        (["-ot", "(a+)+=CPU"], "none of groups"),
        (["-ot", "([=CPU"], "none of groups"),
        (["-ot", ".*.*.*.*.*exps=CPU"], "with few repetitions"),
        (["-ot", "exps=CUDA1"], "allowed: PATTERN=CPU"),
        (["-ot", "ffn_up_exps=CPU"], "a part of a layer's experts"),
        (["-ot", ".*=CPU"], "more than routed experts"),
        (["-ot", "nothing=CPU"], "matches no expert, such as blk.0.ffn_gate_exps.weight"),
    ],
)
def test_what_llama_cpp_or_we_do_not_have_is_refused_by_the_word_that_was_typed(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    engine = [] if "--engine" in words else ["--engine", "llama.cpp"]
    assert main(["analyze", DENSE, "--hardware", "rtx-3090", *engine, *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_options_that_change_nothing_are_named_in_a_note() -> None:
    assert any("-b: the micro-batch is smaller" in one for one in run(DENSE, logical_batch=2048).warnings)
    assert any("-sm: one device" in one for one in run(DENSE, split_mode="none").warnings)
    assert not any("-b:" in one for one in run(DENSE, logical_batch=64).warnings)


def test_translation_leaves_options_without_any_of_llama_cpp_alone_and_ends_after_once() -> None:
    plain = configuration(DENSE, "rtx-3090", **OPTIONS)
    assert translated(plain.model, plain.options) is plain.options
    given = configuration(DENSE, "rtx-3090", **OPTIONS, gpu_layers=20, cache_type_k="q8_0", attention="on")
    assert translated(given.model, given.options) == given.options
    assert {getattr(given.options, name) for name in LLAMA_CPP_OPTIONS} == {0, "0", "", None}


@pytest.mark.parametrize(
    ("name", "bits"),
    [("f16", 16), ("q8_0", 8.5), ("q5_1", 6), ("q5_0", 5.5), ("q4_1", 5), ("q4_0", 4.5), ("iq4_nl", 4.5)],
)
def test_formats_of_the_cache_take_their_blocks_of_32_values(name: str, bits: float) -> None:
    """Llama-3.1-8B stores 2 x 8 x 128 values per layer and token: 131,072 byte a token of 32 layers in 16 bit."""
    both = run(DENSE, input_len=1024, output_len=1, cache_type_k=name, cache_type_v=name, attention="on")
    keys = run(DENSE, input_len=1024, output_len=1, cache_type_k=name, attention="on")
    assert both.memory["kv_cache_bytes"] == 131072 * 1024 * bits / 16
    assert keys.memory["kv_cache_bytes"] == 131072 * 1024 * (bits + 16) / 32


# Placement


@pytest.mark.parametrize(
    ("patterns", "layers"),
    [
        ("exps=CPU", "0-47"),
        (r"\.ffn_.*_exps\.=CPU", "0-47"),
        (r"ffn_(gate|up|down)_exps=CPU", "0-47"),
        (r"blk\.([0-9]|1[0-9])\.ffn_.*_exps\.=CPU", "0-19"),
        (r"blk\.4\..*exps=CPU,blk\.7\..*exps=CPU", "4/7"),
    ],
)
def test_patterns_of_tensors_choose_layers(patterns: str, layers: str) -> None:
    assert place_of(EXPERT, override_tensor=patterns) == f"llama.cpp,cpu_experts={layers}"


def test_the_first_layers_are_on_the_host_and_the_head_is_the_last_to_leave_the_gpu() -> None:
    """-ngl counts the head, of 32 layers and itself, from the end: 33 is everything, 1 the head alone."""
    assert [place_of(DENSE, gpu_layers=one) for one in (33, 32, 1)] == [
        "",
        "llama.cpp,cpu_layers=1",
        "llama.cpp,cpu_layers=32",
    ]
    assert place_of(EXPERT, n_cpu_moe=10) == "llama.cpp,cpu_experts=0-9"
    assert place_of(EXPERT, n_cpu_moe="all") == place_of(EXPERT, override_tensor="exps=CPU")


@pytest.mark.parametrize(("gpu_layers", "head"), [(1, Place.DEVICE), (0, Place.HOST)])
def test_the_head_follows_the_last_layer(gpu_layers: int, head: Place) -> None:
    graph = run(DENSE, gpu_layers=gpu_layers).analysis.passes.graph
    found = {op.runs_on for block, op in graph if op.name == "lm_head" and "streamed" not in block.name}
    assert found == {head}


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (DENSE, {"gpu_layers": 20}),
        (DENSE, {"gpu_layers": 0}),
        (EXPERT, {"n_cpu_moe": 10}),
        (EXPERT, {"gpu_layers": 9, "n_cpu_moe": 45}),
    ],
)
def test_placement_conserves_weights_cache_and_work(model: str, more: dict[str, Any]) -> None:
    plain, placed = run(model, "b200"), run(model, "b200", **more)
    before, after = plain.memory, placed.memory
    assert after["host_bytes"] + after["weights_bytes"] + after["kv_cache_bytes"] == pytest.approx(
        before["weights_bytes"] + before["kv_cache_bytes"] + (after["host_bytes"] > 0) * table(model), rel=1e-9
    )
    for name in ("prefill", "decode"):
        one, other = (
            sum(row["flops"] * row["layers"] for row in found.stage(name)["operators"]) for found in (plain, placed)
        )
        assert one == pytest.approx(other, rel=1e-9)


def table(model: str) -> float:
    """Bytes of the table of tokens, which the host stores in both cases."""
    return -float(run(model, "b200").analysis.memory.parts["table of tokens"])


def test_decode_reads_weights_on_the_host_and_a_prompt_copies_them_once_per_micro_batch() -> None:
    """13 layers over 31.5 GB/s, twice for 1024 tokens: their weights, and keys and values of 2 x 1024 x 2 byte a token,
    512 of which the second micro-batch finds, and which both add."""
    placed = run(DENSE, gpu_layers=20, efficiency="ideal", engine="kernels", max_num_batched_tokens=512)
    rows = {name: placed.stage(name)["operators"] for name in ("prefill", "decode")}
    copied = next(row for row in rows["prefill"] if row["name"] == "load_weights")
    weights = sum(
        float(t.elements) * t.dtype.bytes
        for block in placed.analysis.passes.graph.blocks
        if block.name.endswith("on host")
        for t in block.weights().values()
    )
    cache = 2 * 1024 * 2 * (512 + 1024)
    assert copied["layers"] == 13
    assert copied["time_s"] == pytest.approx((2 * weights + cache) / 31.5e9, rel=1e-9)
    assert not any(row["name"] == "load_weights" for row in rows["decode"])
    assert any(row["block"].endswith("on host") for row in rows["decode"])
    assert not any(row["block"].endswith("on host") for row in rows["prefill"])


@pytest.mark.parametrize(("tokens", "streamed"), [(31, False), (32, True)])
def test_a_pass_of_32_tokens_runs_on_the_device(tokens: int, *, streamed: bool) -> None:
    rows = run(EXPERT, n_cpu_moe=10, input_len=tokens).stage("prefill")["operators"]
    assert any(row["name"] == "load_weights" for row in rows) is streamed


@pytest.mark.parametrize(
    ("model", "chip"), [("llama-3.1-70b", "rtx-4090"), ("gpt-oss-120b", "rtx-3090"), ("llama-2-13b", "rtx-4060")]
)
def test_auto_is_the_most_that_fits(model: str, chip: str) -> None:
    """One layer more, or the experts of one more, would not fit."""
    found = run(model, chip, gpu_layers="auto", max_model_len=8192)
    hosted = found.memory["host_layers"]
    assert found.memory["fits"] and hosted["whole"] + hosted["part"] > 0
    experts, layers = hosted["part"], hosted["all"] + 1 - hosted["whole"]
    same, more = [{"n_cpu_moe": experts - by} if experts else {"gpu_layers": layers + by} for by in (0, 1)]
    assert not run(model, chip, max_model_len=8192, **more).memory["fits"]
    stated = run(model, chip, max_model_len=8192, **same)
    assert metrics(stated) == metrics(found)
    told = str(verdict.at_once(found.to_dict()))
    assert f"{hosted['whole'] or hosted['part']} of {hosted['all']} layers" in told


def test_auto_leaves_everything_on_a_gpu_that_holds_it() -> None:
    assert metrics(run(DENSE, gpu_layers="auto")) == metrics(run(DENSE))


@pytest.mark.parametrize("other", ["rtx-4090", "a100-80gb-sxm"])
def test_a_layer_more_on_the_host_is_slower_in_decode_and_smaller_on_the_device(other: str) -> None:
    found = [run(DENSE, other, gpu_layers=count) for count in (33, 32, 20, 1, 0)]
    times, sizes = [metrics(one)["tpot_s"] for one in found], [one.memory["weights_bytes"] for one in found]
    assert times == sorted(times) and sizes == sorted(sizes, reverse=True)
    assert len(set(times)) == len(set(sizes)) == 5


# Memory


@pytest.mark.parametrize(
    ("model", "mib", "options"),
    [
        ("llama-3-8b", 560.0, {"max_model_len": 8192, "attention": "off"}),
        ("llama-3-8b", 640.0, {"max_model_len": 8192, "pipeline_parallel_size": 2, "attention": "off"}),
        ("llama-3.1-8b", 258.5, {"max_model_len": 512, "input_len": 256, "attention": "off"}),
        ("llama-3.1-8b", 296.0, {"max_model_len": 4096, "attention": "off"}),
        (EXPERT, 304.75, {"max_model_len": 32768, "attention": "on"}),
    ],
)
def test_compute_buffers_are_those_of_logs(model: str, mib: float, options: dict[str, Any]) -> None:
    """https://github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference, https://github.com/ikawrakow/ik_llama.cpp/pull/370

    Llama-3-8B at 8192: 32 heads x 512 x 8192 scores of 4 byte are 512 MiB, the mask 16, four hidden states 8 each.
    """
    assert run(model, **options).memory["activations_bytes"] / MIB == pytest.approx(mib, rel=0.02)


def test_the_budget_is_the_reported_memory_but_a_gibibyte_that_has_the_context_of_cuda() -> None:
    found = run(DENSE, "rtx-4090").memory
    assert found["budget_bytes"] - found["framework_bytes"] == pytest.approx((23.55 - 1.0) * GIB)
    assert run(DENSE, "m4-max").memory["budget_bytes"] == pytest.approx((96.0 - 1.0) * GIB)
    assert run(DENSE, "rtx-4090", gpu_memory_utilization=0.5).memory["budget_bytes"] == pytest.approx(0.5 * 23.55 * GIB)


@pytest.mark.parametrize(("figure", "gib"), [("iogpu.wired_limit_mb=114688", 112), ("reported_capacity=100GiB", 100)])
def test_the_share_of_a_mac_that_its_gpu_takes_can_be_set(figure: str, gib: float) -> None:
    assert run(DENSE, "m4-max", set=figure).memory["budget_bytes"] == (gib - 1.0) * GIB


def test_the_table_of_tokens_is_on_the_host_of_a_card_unless_the_head_reads_it() -> None:
    """128,256 x 4096 values in Q4_K, 4.5 bits: 281.8 MiB, as logged."""
    card, mac = run(DENSE).memory, run(DENSE, "m4-max").memory
    assert mac["weights_bytes"] - card["weights_bytes"] == 128256 * 4096 * 4.5 / 8
    assert run("llama-3.2-1b").memory["weights_bytes"] == run("llama-3.2-1b", "m4-max").memory["weights_bytes"]


def test_cells_of_the_context_are_allocated_whatever_the_requests_take_and_shared_by_slots() -> None:
    full = run(DENSE, max_model_len=8192, input_len=100, output_len=10).memory
    assert full["kv_cache_bytes"] == 8192 * 131072
    assert full["max_model_len"] == 8192
    assert run(DENSE, max_model_len=8192, max_num_seqs=4).memory["max_model_len"] == 2048
    assert run(DENSE, "b200", max_model_len=0).memory["kv_cache_bytes"] == 131072 * 131072
    longer = run(DENSE, max_model_len=512, input_len=1000, output_len=10)
    assert longer.memory["kv_cache_bytes"] == 1009 * 131072
    assert any("refuses a request of 1010 tokens" in one for one in longer.warnings)


@pytest.mark.parametrize(
    "name", ["total_bytes", "budget_bytes", "weights_bytes", "kv_cache_bytes", "kv_cache_budget_bytes"]
)
def test_explanations_of_its_memory_add_up(name: str) -> None:
    found = lv.explain(f"memory.{name}", DENSE, "rtx-3090", **OPTIONS, max_model_len=8192, gpu_layers=20)
    assert found.value == pytest.approx(found.evaluated(), rel=1e-9)
    assert found.value == run(DENSE, max_model_len=8192, gpu_layers=20).memory[name]


def test_names_of_experts_are_those_of_gguf_files() -> None:
    assert EXPERTS[2].format(7) == "blk.7.ffn_down_exps.weight"


def test_two_machines_with_a_gb10_exchange_everything_over_their_ports() -> None:
    """An all-reduce of 1024 x 8192 values of 2 byte sends half of them each way, twice, at 25 GB/s and their share."""
    found = lv.analyze("llama-3.1-70b", "gb10", tensor_parallel_size=2, quantization="w4a16", engine="vllm")
    row = next(one for one in found.stage("prefill")["operators"] if one["name"] == "attn_all_reduce")
    assert row["time_s"] > 1024 * 8192 * 2 / 25e9
    ideal = lv.analyze("llama-3.1-70b", "gb10", tensor_parallel_size=2, efficiency="ideal")
    row = next(one for one in ideal.stage("prefill")["operators"] if one["name"] == "attn_all_reduce")
    assert row["time_s"] == pytest.approx(1024 * 8192 * 2 / 25e9)


def test_a_run_that_does_not_fit_is_sent_to_an_option_of_llama_cpp_that_makes_it_fit() -> None:
    weights = {"model": "llama-3.1-70b", "chip": "rtx-4090"}
    assert any("-ngl auto" in one for one in verdict_lines(run(**weights)))
    assert run(**weights, gpu_layers="auto").memory["fits"]
    assert any("-fa on -ctk q8_0" in one for one in verdict_lines(run(DENSE, "rtx-4090", max_model_len=262144)))


def verdict_lines(found: Any) -> list[str]:
    return terminal.text(analysis_page.page(found), Screen(width=400, colour=False)).splitlines()
