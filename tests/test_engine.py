"""Engine times in addition to kernels: terms calculated by hand; continuous against static batching."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer import api, models
from llmviewer.analysis import analysis
from llmviewer.analysis.analysis import Analysis
from llmviewer.core.errors import UserError
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Request, Step, decode, prefill, verify
from llmviewer.hardware import specs
from llmviewer.serving.batching import RequestTimes, rest_of_pass
from llmviewer.timing import engine
from llmviewer.timing.engine import Engine
from llmviewer.timing.engine_fit import CONSTANTS, NOT_OF_PASSES
from llmviewer.timing.engine_work import TERMS_PER_STEP

H100 = specs.load("h100-sxm")
GRAPH = api.configuration("llama-2-7b", "h100-sxm").model.graph(decode(4.0, 100.0))


def file(**changes: Any) -> dict[str, Any]:
    """A valid preset file with `changes`."""
    return {"title": "x", "kernels": "vllm", "constants": {"step": 100.0}, "source": "x"} | changes


def terms(preset: Engine, tokens: float = 4.0, kernels_s: float = 0.0) -> dict[str, float]:
    """Terms of a decode step of `tokens` sequences whose kernels take kernels_s."""
    step = decode(tokens, 100.0)
    found = preset.terms(GRAPH, step, H100, lambda kinds: kernels_s)
    return {name: float(np.max(seconds)) for name, seconds in found}


def answer(batching: str = "static", batch: float = 16.0, **changes: Any) -> Analysis:
    """Llama-2 7B on an H100, prompts of 1024 tokens and answers of 128, with the constants of a test engine."""
    configuration = api.configuration("llama-2-7b", "h100-sxm", batching=batching)
    preset = Engine(name="x", constants={"step": 1000.0}, **changes)
    request = Request(batch_size=np.array([batch]), input_len=np.array([1024.0]), output_len=np.array([128.0]))
    return analysis.analyze(configuration.model, replace(configuration.system, engine=preset), request)


def test_each_engine_constant_is_counted_by_its_definition() -> None:
    # 32 layers of 12 kernels, plus embedding, norm and head; 4 sequences, 4 rows of logits
    kernels = sum(block.repeats * len(block.operators) for block in GRAPH.blocks)
    paid = {"launch": kernels, "layer": 32, "step": 1, "sequence": 4, "sampling": 4}
    found = terms(Engine(name="x", constants=dict.fromkeys(paid, 2.0)))
    assert found == pytest.approx({name: count * 2e-6 for name, count in paid.items()})


def test_a_single_device_has_no_broadcast_or_synchronization_time() -> None:
    assert not terms(Engine(name="x", constants={"group": 5.0, "collective": 5.0}))


def test_tensor_parallel_devices_pay_one_broadcast_and_every_exchange() -> None:
    found = api.configuration("llama-2-7b", "h100-sxm", tensor_parallel_size=2)
    shared = found.system.prepared(found.model.graph(decode(1.0, 100.0)))
    preset = Engine(name="x", constants={"group": 5.0, "collective": 1.0})
    seconds = dict(preset.terms(shared, decode(1.0, 100.0), H100, lambda kinds: 0.0))
    # the embedding, two in each of 32 layers, and the all-gather of logits
    assert seconds == pytest.approx({"group": 5e-6, "collective": (1 + 2 * 32 + 1) * 1e-6})


def test_slow_kernel_launches_of_the_host_are_the_bound() -> None:
    kernels = sum(block.repeats * len(block.operators) for block in GRAPH.blocks)
    slow = Engine(name="x", constants={"eager": 10.0}, graph_tokens=0.0)
    assert terms(slow, kernels_s=1e-3) == pytest.approx({"host": kernels * 10e-6 - 1e-3})
    assert not terms(slow, kernels_s=1.0)
    assert not terms(replace(slow, graph_tokens=512.0), kernels_s=1e-3)


def test_enforce_eager_launches_every_kernel_from_python() -> None:
    """Every kernel takes 50 us; a fit's larger `eager` stays, and so do presets without."""
    kernels = sum(block.repeats * len(block.operators) for block in GRAPH.blocks)
    preset = engine.parse("x", file(constants={"step": 100.0, "eager": 10.0}, graph_tokens=512, uncompiled=50))
    assert "host" not in terms(preset)
    assert terms(preset.without_graphs())["host"] == pytest.approx(kernels * 50e-6)
    slower = engine.parse("x", file(constants={"step": 100.0, "eager": 60.0}, uncompiled=50))
    assert slower.without_graphs().constants["eager"] == 60.0
    assert engine.parse("x", file()).without_graphs().constants == {"step": 100.0}


@pytest.mark.parametrize(
    ("model", "hardware", "tokens", "published_ms"),
    [("gpt2", "h200", (128, 32), 4.8), ("qwen2.5-7b", "a800-80gb-sxm", (256, 256), 22.0)],
)
def test_vllm_without_graphs_is_near_published_times(
    model: str, hardware: str, tokens: tuple[int, int], published_ms: float
) -> None:
    """https://github.com/deepspeedai/DeepSpeed/pull/8352, https://github.com/vllm-project/vllm-omni/issues/7960"""
    options = {"engine": "vllm", "input_len": tokens[0], "output_len": tokens[1]}
    eager, graphs = (lv.analyze(model, hardware, enforce_eager=switch, **options) for switch in (True, False))
    assert 0.65 < 1e3 * float(eager.tpot_s) / published_ms < 1.35
    assert eager.tpot_s > 1.25 * graphs.tpot_s
    assert any("enforce_eager" in text for text in eager.to_dict()["provenance"]["assumed"])
    low, high = eager.metrics()["intervals"]["tpot_s"]["80"]
    assert low < 1e-3 * published_ms < high


def test_experts_that_run_one_by_one_are_launched_one_by_one() -> None:
    """Gate, up, activation and down of Mixtral's 32 layers: two experts of a token, one further than one."""
    found = api.configuration("mixtral-8x7b", "h100-sxm", efficiency="calibrated", engine="torch")
    graph = found.system.prepared(found.model.graph(decode(1.0, 100.0)))
    kernels = sum(block.repeats * len(block.operators) for block in graph.blocks)
    preset = Engine(name="x", constants={"eager": 10.0, "expert": 20.0}, graph_tokens=0.0)
    seconds = dict(preset.terms(graph, decode(1.0, 100.0), H100, lambda kinds: 0.0))
    assert seconds == pytest.approx({"host": kernels * 10e-6 + 32 * 4 * (2 - 1) * 20e-6})


def test_the_loop_over_experts_ends_with_transformers_5() -> None:
    presets = {
        text: engine.load(text).on(H100).constants for text in ("torch-eager==4.51", "torch-eager", "torch-eager==5.3")
    }
    assert [constants.get("expert", 0.0) for constants in presets.values()] == [57.1, 0.0, 0.0]


def test_engine_kernels_are_scaled_by_their_factor() -> None:
    found = terms(Engine(name="x", factors={"gemm": 1.5}), kernels_s=2e-3)
    assert found == pytest.approx({"own gemm kernels": 1e-3})


def test_an_engines_matrix_vector_kernel_is_bound_by_units_or_bandwidth() -> None:
    # 132 units x 1.83 GHz x 2 bytes = 483 GB/s are less than 0.9 x 3350 GB/s
    preset = Engine(name="x", unit_bytes=2.0, share=0.9)
    weights = sum(
        block.repeats
        * float(operator.read_bytes(*(a.tensor.role for a in operator.reads if a.tensor.role.name == "WEIGHT")))
        for block in GRAPH.blocks
        for operator in block.operators
        if operator.kind is Kind.GEMM
    )
    assert H100.units is not None and H100.clock_hz is not None
    assert terms(preset)["own matrix-vector kernels"] == pytest.approx(weights / (H100.units * H100.clock_hz * 2.0))
    fast = terms(replace(preset, unit_bytes=1e6))["own matrix-vector kernels"]
    assert fast == pytest.approx(weights / (0.9 * 3.35e12))


def test_ideal_times_have_no_engine_terms() -> None:
    ideal = api.configuration("llama-2-7b", "h100-sxm", efficiency="ideal").answer(api.request(4, 128, 16)).analysis
    assert not ideal.evaluation.served
    with pytest.raises(UserError, match="it needs efficiency calibrated"):
        api.configuration("llama-2-7b", "h100-sxm", engine="vllm", efficiency="ideal")


def test_calibrated_results_list_engine_terms_by_name() -> None:
    found = api.configuration("llama-2-7b", "h100-sxm", engine="vllm", efficiency="calibrated")
    served = dict(found.answer(api.request(4, 128, 16)).analysis.evaluation.served)
    assert {name for name in engine.load("vllm").constants if name not in NOT_OF_PASSES} <= set(served)


def test_the_kernels_preset_adds_no_time() -> None:
    found = api.configuration("llama-2-7b", "h100-sxm", engine="kernels", efficiency="calibrated")
    assert not found.answer(api.request(4, 128, 16)).analysis.evaluation.served


def test_an_engine_sets_the_default_fusions() -> None:
    own = api.configuration("llama-2-7b", "h100-sxm", engine="vllm", efficiency="calibrated").system
    assert any("gate-up" in applied.name for applied in own.passes)
    requested = api.configuration("llama-2-7b", "h100-sxm", engine="vllm", efficiency="calibrated", fusion="qkv").system
    assert not any("gate-up" in applied.name for applied in requested.passes)


@pytest.mark.parametrize("name", engine.names())
def test_every_preset_loads_and_its_constants_are_defined(name: str) -> None:
    preset = engine.load(name)
    assert preset.title
    assert set(preset.constants) <= set(CONSTANTS)
    for bases in preset.residuals.values():
        for bounds in bases.values():
            assert list(bounds) == sorted(bounds) and len(bounds) == 4


def test_an_unknown_engine_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'vllm'"):
        engine.load("vlllm")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constants": {"step": "long"}}, "engine x: constants.step: expected a finite number from 0, got 'long'"),
        ({"constants": {"stepp": 1.0}}, "unknown key 'stepp'"),
        ({"factors": {"gem": 1.0}}, "unknown key 'gem'"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"graph_tokens": "many"}, "engine x: graph_tokens: expected a finite number from 0, got 'many'"),
    ],
)
def test_a_wrong_preset_file_is_a_one_line_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        engine.parse("x", file(**changes))


def test_prompts_of_others_run_between_tokens_or_before_the_first_one() -> None:
    """4 users; a prompt takes 10 ms, 9 steps of 5 ms: a cycle has 10 + 3 x 10 + 45 = 85 ms however it is divided.

    The others' prompts take b = 3 x 10 / 85 of the time; the pass that one meets has (b 10 + (1 - b) 5) / (1 - b^2) ms.
    3 of 85 ms times that are 0.273 prompts in the pass of one's own, fewer than the 3 / 9 that end with a step.
    """
    times = RequestTimes(
        prefill_s=np.array([0.010]), decode_s=np.array([0.045]), steps=np.array([9.0]), users=4.0, running=4.0
    )
    busy = 30 / 85
    met_ms = (busy * 10 + (1 - busy) * 5) / (1 - busy**2)
    together = 3 / 85 * met_ms
    assert times.together == pytest.approx(together) == pytest.approx(0.273, abs=5e-4)
    assert times.ttft_s == pytest.approx(0.010 + together * 0.010)
    assert times.tpot_s == pytest.approx((0.045 + 0.030 - together * 0.010) / 9)
    assert times.ttft_s + times.generation_s == pytest.approx(0.085)


def test_users_who_begin_together_wait_for_each_other_once() -> None:
    """4 prompts of 10 ms, one after another, end after 10, 20, 30, 40 ms: 25 in the mean; in pairs after 20 and 40."""
    times = RequestTimes(
        prefill_s=np.array([0.010]), decode_s=np.array([0.045]), steps=np.array([9.0]), users=4.0, running=4.0
    )
    assert times.burst_s == pytest.approx(0.025)
    assert replace(times, most_prompts=2.0).burst_s == pytest.approx(0.030)
    assert replace(times, most_prompts=9.0).burst_s == pytest.approx(0.040)
    first_s, after_s = times.begun_together(1.0)
    assert first_s == pytest.approx(0.025)
    assert first_s + after_s == pytest.approx(0.085)
    first_s, _ = times.begun_together(10.0)
    assert first_s == pytest.approx(0.9 * times.ttft_s + 0.1 * 0.025)
    assert times.begun_together(np.inf)[0] == times.ttft_s


@pytest.mark.parametrize(
    ("host_ms", "rest_ms"),
    # mean over half, three quarters, ... one and a half of the host's time; steps of 10 ms, of which each has 90 ms of
    # prompts more with the chance 0.5: a prompt that comes during the first step waits 100 or 10 ms less its own time
    [(4.0, 0.5 * (100 + 10) - 4.0), (1.0, 0.5 * (100 + 10) - 1.0)],
)
def test_a_prompt_waits_for_the_rest_of_the_pass_that_it_meets(host_ms: float, rest_ms: float) -> None:
    ones = np.ones(1)
    found = rest_of_pass(host_ms * 1e-3, 0.010 * ones, 0.090 * ones, np.log(2.0), ones, between=False)
    assert found == pytest.approx(rest_ms * 1e-3)
    # prompts in a pass of their own, before the step: it ends 90 ms after the last step
    apart = rest_of_pass(host_ms * 1e-3, 0.010 * ones, 0.090 * ones, np.log(2.0), ones, between=True)
    assert apart == pytest.approx((rest_ms - 0.5 * 10) * 1e-3)


def test_after_a_pass_with_prompts_the_moment_is_any() -> None:
    """Every step has prompts, 10 ms in all: after 1 s, 64 or more steps later, it may be any moment of a pass."""
    ones = np.ones(1)
    assert rest_of_pass(1.0, 0.002 * ones, 0.008 * ones, 50.0, 0.005 * ones, between=False) == pytest.approx(0.005)
    assert rest_of_pass(1.0, 0.002 * ones, 0.008 * ones, 0.0, 0.001 * ones, between=False) == pytest.approx(0.001)


def test_attention_that_does_not_share_kv_heads_reads_them_once_per_query_head() -> None:
    # vLLM of 2024 on an MI300X; four query heads of Llama-3-8B share a KV head
    own = {"constants": {}, "factors": {"attention": 1.5}, "ungrouped": 1.0}
    preset = engine.parse("x", file(generations={"cdna3": own})).of_generation("cdna3")
    model = models.load("llama-3-8b")

    def term(step: Step) -> float:
        chip = specs.load("mi300x")
        terms = dict(preset.terms(model.graph(step), step, chip, lambda kinds: 2.0, lambda kinds: 0.5))
        return float(terms["own attention kernels"])

    # of 2 s of kernels 0.5 s are bytes at the full bandwidth: three more reads take 1.5 s, a launch is paid once
    assert term(decode(8.0, 100.0)) == pytest.approx(1.5 * (2.0 + 3 * 0.5) - 2.0)
    assert term(prefill(8.0, 100.0)) == pytest.approx((1.5 - 1) * 2.0)


def test_fields_of_a_generation_end_with_the_version_that_changes_its_kernels() -> None:
    own = {"constants": {"step": 3.0}, "ungrouped": 1.0, "before": "0.6.2", "changed": "a page"}
    preset = engine.parse("x", file(constants={"step": 1.0}, generations={"cdna3": own}))
    for version, step in {"0.6.1": 3.0, "0.5": 3.0, "0.6.2": 1.0, "0.6.10": 1.0, "0.7": 1.0, "": 1.0}.items():
        on = replace(preset, version=version).on(specs.load("mi300x"))
        assert (on.constants["step"], on.ungrouped) == (step, 1.0 if step == 3.0 else 0.0), version


def test_vllm_of_late_2024_serves_llama_3_1_405b_on_eight_mi300x() -> None:
    """Oracle, 10 October 2024: seconds of 128 prompt tokens and 128 answered ones by batch size
    (https://blogs.oracle.com/cloud-infrastructure/post/serving-llama-31-405b-model-with-amd-mi300x-gpus)."""
    published = np.array([3.530, 3.974, 5.130, 10.340])
    words = {"tensor_parallel_size": 8, "quantization": "fp8", "input_len": 128, "output_len": 128}

    def told(name: str) -> Any:
        return lv.analyze("llama-3.1-405b", "mi300x", batch_size=[1, 8, 32, 128], engine=name, **words).e2e_s

    assert told("vllm-v0") == pytest.approx(published, rel=0.2)
    assert np.all(told("vllm-v0==0.6.1") > 1.5 * published), "a kernel that reads a KV head for each query head"


def test_a_generation_without_rows_takes_the_constants_of_the_one_before_but_not_its_errors() -> None:
    own = {"constants": {"step": 3.0}, "residuals": {"tpot_ms": {"afar": [0.9, 0.95, 1.05, 1.1]}}}
    of_others = {"tpot_ms": {"afar": [0.6, 0.8, 1.2, 1.4]}}
    preset = engine.parse("x", file(constants={"step": 1.0}, residuals=of_others, generations={"gaudi2": own}))
    assert preset.of_generation("gaudi2").residuals["tpot_ms"]["afar"] == (0.9, 0.95, 1.05, 1.1)
    later = preset.of_generation("gaudi3")
    assert later.constants == {"step": 3.0}
    assert later.residuals["tpot_ms"]["afar"] == (0.6, 0.8, 1.2, 1.4)


def test_the_host_time_of_a_request_delays_its_first_token_only() -> None:
    times = RequestTimes(
        prefill_s=np.array([0.010]), decode_s=np.array([0.045]), steps=np.array([9.0]), request_s=0.050
    )
    assert times.ttft_s == pytest.approx(0.060)
    assert times.tpot_s == pytest.approx(0.005)
    assert engine.parse("x", file(constants={"request": 5e4})).request_s == pytest.approx(0.050)


def test_requests_beyond_the_cache_capacity_wait() -> None:
    # 6 users share 2 slots: each waits two cycles per cycle of service, which is 20 ms prefill and 40 ms of steps
    times = RequestTimes(
        prefill_s=np.array([0.010]), decode_s=np.array([0.040]), steps=np.array([8.0]), users=6.0, running=2.0
    )
    assert times.queue_s == pytest.approx(2 * 0.060)
    assert times.ttft_s + times.generation_s == pytest.approx(3 * 0.060)


def test_a_continuous_batch_takes_no_less_per_token_than_a_static_one() -> None:
    assert (answer("continuous").tpot_s >= answer("static").tpot_s).all()


def test_prefill_interference_grows_with_the_batch() -> None:
    gaps = [
        float((answer("continuous", batch).tpot_s - answer("static", batch).tpot_s)[0]) for batch in (1.0, 4.0, 16.0)
    ]
    assert gaps[0] == 0.0 < gaps[1] < gaps[2]


def test_a_single_user_is_served_like_a_static_batch_of_one() -> None:
    single, one = answer("continuous", 1.0), answer("static", 1.0)
    assert single.ttft_s == pytest.approx(one.ttft_s)
    assert single.tpot_s == pytest.approx(one.tpot_s)


def test_users_beyond_the_cache_capacity_share_its_slots() -> None:
    crowd = answer("continuous", 4096.0)
    assert crowd.running is not None and crowd.running.request.batch_size[0] < 4096.0  # type: ignore[index]
    assert float(crowd.times.queue_s[0]) > 0.0
    few = answer("continuous", 4096.0, max_num_seqs=8.0)
    assert few.running is not None and few.running.request.batch_size[0] == 8.0  # type: ignore[index]


def test_an_unknown_batching_policy_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"unknown method of batching 'dynamic'.*continuous"):
        api.configuration("llama-2-7b", "h100-sxm", batching="dynamic")


def test_a_prefill_pays_the_overheads_of_its_own_pass() -> None:
    configuration = api.configuration("llama-2-7b", "h100-sxm")
    step = prefill(2.0, 128.0)
    found = dict(
        Engine(name="x", constants={"sequence": 3.0}).terms(configuration.model.graph(step), step, H100, lambda _: 0.0)
    )
    assert found == pytest.approx({"sequence": 6e-6})


def test_draft_passes_belong_to_the_models_step() -> None:
    """The host schedules a step once; draft passes pay only launches and per-layer time."""
    preset = engine.load("vllm")
    inside = preset.without_step_terms()
    assert "step" in preset.constants
    assert inside.constants == {k: v for k, v in preset.constants.items() if k not in TERMS_PER_STEP}
    assert engine.KERNELS_ONLY.without_step_terms() is engine.KERNELS_ONLY


def test_limits_are_those_of_the_chip() -> None:
    """vLLM: 2,048 tokens and 256 sequences below 70 GiB and on an A100 (github.com/vllm-project/vllm/pull/17885)."""
    limits = {
        chip: (found.max_num_batched_tokens, found.max_num_seqs)
        for chip in ("a100-80gb-sxm", "l40s", "h100-sxm", "mi300x")
        for found in [engine.load("vllm").on(specs.load(chip))]
    }
    small, large = (2048.0, 256.0), (8192.0, 1024.0)
    assert limits == {"a100-80gb-sxm": small, "l40s": small, "h100-sxm": large, "mi300x": large}


def test_graphs_of_a_server_are_smaller_on_small_chips() -> None:
    """SGLang 0.5.6: 24 sequences below 35 GiB, 80 with four devices; benchmarks of static batches capture their own."""
    preset = engine.load("sglang")
    held = {(chip, n): preset.serving(specs.load(chip), n) for chip in ("rtx-4090", "l40s", "h100-sxm") for n in (1, 4)}
    assert [one.graph_tokens for one in held.values()] == [24.0, 80.0, 32.0, 160.0, 256.0, 256.0]
    assert [one.max_num_batched_tokens for one in held.values()] == [2048.0, 2048.0, 4096.0, 4096.0, 8192.0, 8192.0]
    static, served = (
        api.configuration("qwen2.5-0.5b", "l40s", engine="sglang", **more).system.engine
        for more in ({}, {"batching": "continuous"})
    )
    assert (static.graph_tokens, served.graph_tokens) == (256.0, 32.0)


def test_a_graph_holds_no_longer_context() -> None:
    """vLLM 0.7 captures sequences of up to 8,192 tokens: beyond, its host launches each kernel of a decode step."""
    configuration, preset = api.configuration("llama-2-7b", "h100-sxm"), engine.load("vllm==0.7")
    terms = {
        length: dict(preset.terms(configuration.model.graph(step), step, H100, lambda _: 0.0))
        for length in (8191.0, 8192.0)
        for step in [decode(1.0, length)]
    }
    assert "host" not in terms[8191.0]
    assert terms[8192.0]["host"] > 0.0


def test_prompts_run_outside_graphs_that_hold_decode_steps_alone() -> None:
    """A prompt of 8 tokens and a chunk of one launch every kernel; a decode step and drafts to verify launch none."""
    preset = Engine(name="x", constants={"eager": 10.0}, graph_tokens=64.0, graphs="decode")
    passes = {"prompt": prefill(1.0, 8.0), "decode": decode(8.0, 100.0), "drafts": verify(1.0, 100.0, 4.0)}
    found = {
        name: dict(preset.terms(GRAPH, step, H100, lambda kinds: 1e-3)).get("host", 0.0)
        for name, step in passes.items()
    }
    kernels = sum(block.repeats * len(block.operators) for block in GRAPH.blocks)
    assert found == pytest.approx({"prompt": kernels * 10e-6 - 1e-3, "decode": 0.0, "drafts": 0.0})
    assert not replace(preset, graphs="all").terms(GRAPH, passes["prompt"], H100, lambda kinds: 1e-3)


def test_vllm_0_6_and_0_7_show_tokens_a_step_late() -> None:
    """The output of a step is processed while the next one runs, but for drafts."""
    options = {"input_len": 256, "output_len": 350}
    first = {
        version: lv.analyze("llama-3-8b", "h200", engine=f"vllm-v0=={version}", **options) for version in ("0.5", "0.7")
    }
    assert float(first["0.7"].ttft_s - first["0.5"].ttft_s) == pytest.approx(float(first["0.7"].tpot_s))
    assert float(first["0.7"].tpot_s) == pytest.approx(float(first["0.5"].tpot_s))
    drafts = [
        lv.analyze("llama-3-8b", "h200", engine=f"vllm-v0=={version}", speculative="ngram,tokens=3", **options)
        for version in ("0.5", "0.7")
    ]
    assert float(drafts[0].ttft_s) == pytest.approx(float(drafts[1].ttft_s))


@pytest.mark.parametrize(
    ("model", "devices", "prompt", "token_ms", "first_ms"),
    [("llama-3-70b", 8, 256, 67.8, 151.0), ("mixtral-8x7b", 8, 305, 32.0, 73.4)],
)
def test_vllm_on_ascend_launches_every_kernel(
    model: str, devices: int, prompt: int, token_ms: float, first_ms: float
) -> None:
    """Models that the 80 us of a launch were not taken from: https://github.com/FreedomIntelligence/AccelMark."""
    options = {"engine": "vllm", "tensor_parallel_size": devices, "input_len": prompt, "output_len": 350}
    found = lv.analyze(model, "ascend-910b", **options)
    assert 1e3 * float(found.tpot_s) == pytest.approx(token_ms, rel=0.25)
    assert 1e3 * float(found.ttft_s) == pytest.approx(first_ms, rel=0.25)
    assert float(found.ttft_s) > 2.0 * float(found.tpot_s)  # the next step is launched before the first token is read
