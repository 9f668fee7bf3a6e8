"""Pipelines and replicas: counts of the largest stage, times of the whole system."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmviewer import models
from llmviewer.analysis.pipeline import fullest, layers_of, stages_of
from llmviewer.analysis.system import Parallelism, System
from llmviewer.core.errors import UserError
from llmviewer.core.ir import check
from llmviewer.core.workload import decode
from llmviewer.hardware.specs import load
from llmviewer.serving.batching import RequestTimes
from tests.representative import REPRESENTATIVE

from .answers import analyze, answer, operators

REQUEST = {"batch_size": 8, "input_len": 512, "output_len": 4}


def metrics(**options: Any) -> dict[str, float]:
    found: dict[str, float] = answer("llama-2-70b", "h100-sxm", **(REQUEST | options))["metrics"]
    return found


def on_stages(count: int) -> System:
    return System(chip=load("h100-sxm"), parallelism=Parallelism(pipeline=count))


def test_layers_are_assigned_to_stages_like_in_vllm() -> None:
    """Remaining layers go to the stages before the last, which has the head."""
    assert layers_of(4, 32) == [8, 8, 8, 8]
    assert layers_of(4, 30) == [7, 8, 8, 7]
    assert layers_of(3, 80) == [27, 27, 26]
    with pytest.raises(UserError, match="33: the model has 32 layers"):
        layers_of(33, 32)


@pytest.mark.parametrize("stages", [2, 3, 5, 8])
@pytest.mark.parametrize("layers", [8, 31, 80])
def test_the_largest_stage_has_layers_over_stages_rounded_up(stages: int, layers: int) -> None:
    dealt = layers_of(stages, layers)
    assert sum(dealt) == layers
    assert max(dealt) == -(-layers // stages)
    assert min(dealt) == layers // stages


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_all_stages_add_up_to_the_model_plus_sends(name: str) -> None:
    graph = models.load(name).graph(decode(4.0, 100.0))
    stages = stages_of(graph, on_stages(3))
    work = [float(sum(np.max(op.flops) * block.repeats for block, op in g)) for g in (graph, *stages)]
    assert work[0] == pytest.approx(sum(work[1:]), rel=1e-12)
    stored = [sum(float(t.elements) * times for t, times in g.stored_weights()) for g in (graph, *stages)]
    tied = stored[0] < sum(float(t.elements) * b.repeats for b in graph.blocks for t in b.weights().values())
    assert sum(stored[1:]) == pytest.approx(stored[0]) or tied  # a tied table is stored on the first and the last stage
    for stage in stages:
        check(stage)
    assert [stage.blocks[-1].name for stage in stages[:-1]] == ["send", "send"]
    assert stages[0].blocks[0].name == "embedding" and stages[-1].blocks[-1].name == "head"


def test_layers_of_two_kinds_keep_their_order() -> None:
    """DeepSeek-V3: three dense layers first, so of four stages of 15, 15, 16 and 15 layers only the first has them."""
    graph = models.load("deepseek-v3").graph(decode(1.0, 10.0))
    stages = stages_of(graph, on_stages(4))
    kinds = [{b.name: b.repeats for b in stage.blocks if b.is_layer} for stage in stages]
    assert [sum(kind.values()) for kind in kinds] == [15, 15, 16, 15]
    assert sorted(kinds[0].values()) == [3, 12] and all(len(kind) == 1 for kind in kinds[1:])
    assert fullest(stages, on_stages(4)) == 2


def test_a_pipeline_adds_only_sends_to_the_time_of_one_token() -> None:
    """Llama-2-70b, 4 stages: 3 sends of 8 x 8192 x 2 bytes at 450 GB/s plus the same layers.

    The prefill adds only sends where it is asked for in one uncut pass.
    """
    one, four = metrics(), metrics(pipeline_parallel_size=4, max_num_batched_tokens=0)
    assert four["tpot_s"] - one["tpot_s"] == pytest.approx(3 * 8 * 8192 * 2 / 450e9, rel=1e-6)
    assert four["ttft_s"] - one["ttft_s"] == pytest.approx(3 * 8 * 512 * 8192 * 2 / 450e9, rel=1e-6)


def test_micro_batches_reduce_the_pipeline_bubble() -> None:
    """Equal stages, uncut prompts: (m + p - 1) / (m p) of the time of one device; the head makes the last stage longer;
    the bubble of 3/7 at m = 4 and 3/11 at m = 8 is the rest."""
    one = metrics(input_len=4096)["ttft_s"]
    for parts in (4, 8):
        piped = metrics(input_len=4096, pipeline_parallel_size=f"4,microbatches={parts}", max_num_batched_tokens=0)[
            "ttft_s"
        ]
        assert piped / one == pytest.approx((parts + 3) / (parts * 4), rel=0.01)


def test_as_many_micro_batches_as_stages_multiply_the_throughput() -> None:
    """4 stages, 4 micro-batches of 8 sequences: nearly four times the tokens per second of one device with 8."""
    one = metrics(output_len=64, input_len=64)
    four = metrics(output_len=64, input_len=64, batch_size=32, pipeline_parallel_size="4,microbatches=4")
    assert 3.8 < four["output_tokens_per_s"] / one["output_tokens_per_s"] <= 4.0
    assert four["tpot_s"] >= one["tpot_s"]


def test_a_batch_has_no_more_micro_batches_than_sequences() -> None:
    eight = metrics(batch_size=2, pipeline_parallel_size="4,microbatches=8")
    assert eight == metrics(batch_size=2, pipeline_parallel_size="4,microbatches=2")


def test_counts_are_those_of_the_largest_stage() -> None:
    """Llama-2-70b, 4 stages of 20 layers; the last has the head of 32000 x 8192 as well."""
    found = answer("llama-2-70b", "h100-sxm", pipeline_parallel_size=4)
    layer = 8192 * 8192 * 2 + 8192 * 1024 * 2 + 3 * 8192 * 28672 + 2 * 8192
    assert found["memory"]["weights_bytes"] == 2 * (20 * layer + 32000 * 8192 + 8192)
    assert operators(found, "decode")["q_proj"]["layers"] == 20
    assert found["parallelism"]["devices"] == 4
    rate = found["metrics"]["output_tokens_per_s"]
    assert found["metrics"]["output_tokens_per_s_per_device"] == rate / 4
    stage = found["stages"]["decode"]
    assert stage["flops"] == pytest.approx(sum(op["flops"] * op["layers"] for op in stage["operators"]), rel=1e-12)


def test_replicas_divide_the_batch_rounded_up() -> None:
    whole = answer("llama-2-7b", "h100-sxm", batch_size=9, data_parallel_size=4)
    one = answer("llama-2-7b", "h100-sxm", batch_size=3)
    assert whole["stages"]["decode"] == one["stages"]["decode"]
    assert whole["memory"]["kv_cache_bytes"] == one["memory"]["kv_cache_bytes"]
    assert whole["metrics"]["ttft_s"] == one["metrics"]["ttft_s"]
    assert whole["metrics"]["output_tokens_per_s"] == 3 * one["metrics"]["output_tokens_per_s"]
    assert whole["memory"]["max_batch_size"] == 4 * one["memory"]["max_batch_size"]
    assert whole["memory"]["max_concurrent_requests"] == 4 * one["memory"]["max_concurrent_requests"]


def test_the_largest_batch_of_a_pipeline_fits_and_one_more_does_not() -> None:
    for options in ({"pipeline_parallel_size": "4,microbatches=4"}, {"data_parallel_size": 3}):
        most = answer("llama-2-13b", "h100-sxm", **options)["memory"]["max_batch_size"]
        assert analyze("llama-2-13b", "h100-sxm", batch_size=most, output_len=1, **options).fits
        fits = [analyze("llama-2-13b", "h100-sxm", batch_size=most + more, **options).fits for more in (0, 1)]
        assert fits == [True, False]


@pytest.mark.parametrize("options", [{"pipeline_parallel_size": "3,microbatches=4"}, {"data_parallel_size": 2}])
def test_a_single_point_equals_the_point_of_a_sweep(options: dict[str, Any]) -> None:
    batches, prompts = [1, 5, 64], [100, 2000, 33]
    together = analyze("llama-2-13b", "h100-sxm", batch_size=batches, input_len=prompts, **options)
    for at, (batch, prompt) in enumerate(zip(batches, prompts, strict=True)):
        single = analyze("llama-2-13b", "h100-sxm", batch_size=batch, input_len=prompt, **options)
        assert single.to_dict() == together.to_dict(at) | {"memory": single.to_dict()["memory"]}


def test_chunks_of_a_prompt_are_pipelined() -> None:
    """A pipeline overlaps the chunks of one prompt, which one device runs in turn."""
    chunked = {"input_len": 8192, "batch_size": 1, "max_num_batched_tokens": 512}
    whole, parts = metrics(**chunked), metrics(**chunked, pipeline_parallel_size=4)
    assert whole["ttft_s"] / 4 < parts["ttft_s"] < whole["ttft_s"] / 2


def test_sends_between_groups_use_the_network() -> None:
    """16 devices in two groups of 8, 4 stages of 4: of three sends only the second crosses."""
    system = System(chip=load("h100-sxm"), parallelism=Parallelism(pipeline=4, tensor=4))
    stages = stages_of(models.load("llama-2-70b").graph(decode(1.0, 10.0)), system)
    assert [stage.blocks[-1].operators[0].shape.near == 1.0 for stage in stages[:-1]] == [False, True, False]  # type: ignore[attr-defined]


def test_wrong_numbers_of_stages_are_rejected_with_a_reason() -> None:
    wrong = {
        "81: the model has 80 layers": "81",
        "unknown parameter of pipeline_parallel_size 'microbatch'": "4,microbatch=2",
        "a whole number from 1": "0",
    }
    for reason, text in wrong.items():
        with pytest.raises(UserError, match=reason):
            metrics(pipeline_parallel_size=text, network="infiniband-ndr")


TOGETHER: list[dict[str, Any]] = [
    {"tensor_parallel_size": 2, "sequence_parallel": "on", "fusion": "all", "quantization": "w4a16"},
    {"tensor_parallel_size": 2, "pipeline_parallel_size": "2,microbatches=2", "kv_cache_dtype": "fp8", "fusion": "all"},
    {"tensor_parallel_size": 2, "prune": "depth=0.75", "pipeline_parallel_size": "2", "lora": "rank=16"},
    {"tensor_parallel_size": 2, "context_parallel_size": 2, "attention": "flash-decoding"},
]
SEVERAL = ("llama-2-7b", "qwen3-4b", "gemma-4-26b-a4b", "deepseek-v2-lite", "mixtral-8x7b", "gpt-oss-20b", "bloom")


@pytest.mark.parametrize("options", TOGETHER, ids="+".join)
@pytest.mark.parametrize("name", [name for name in SEVERAL if name in models.names()])
def test_techniques_compose_and_single_points_equal_the_sweep(name: str, options: dict[str, Any]) -> None:
    two = analyze(name, "h100-sxm", batch_size=[1, 6], input_len=[300, 40], output_len=3, **options)
    for at, (batch, prompt) in enumerate(((1, 300), (6, 40))):
        single = analyze(name, "h100-sxm", batch_size=batch, input_len=prompt, output_len=3, **options)
        assert single.to_dict()["metrics"] == two.to_dict(at)["metrics"]
        assert single.to_dict()["stages"] == two.to_dict(at)["stages"]


def test_replicas_that_share_experts_match_single_requests() -> None:
    options = {"tensor_parallel_size": 2, "data_parallel_size": 2, "expert_parallel_size": 4, "quantization": "w8a8"}
    two = analyze("deepseek-v2-lite", "h100-sxm", batch_size=[1, 6], output_len=3, **options)
    for at, batch in enumerate((1, 6)):
        single = analyze("deepseek-v2-lite", "h100-sxm", batch_size=batch, output_len=3, **options)
        assert single.to_dict()["stages"] == two.to_dict(at)["stages"]
    names = [op["name"] for op in two.to_dict()["stages"]["decode"]["operators"]]
    assert "dispatch_all_to_all" in names and "combine_all_to_all" in names


def served_13b(**options: Any) -> dict[str, float]:
    """Metrics of a model whose sequences fit on one device too."""
    found: dict[str, float] = answer("llama-2-13b", "h100-sxm", **(REQUEST | options))["metrics"]
    return found


@pytest.mark.parametrize("batching", ["continuous", "chunked"])
def test_sequences_that_start_one_by_one_fill_the_pipeline(batching: str) -> None:
    """32 sequences on 4 stages are 4 micro-batches of 8; a short prompt leaves decode steps only.

    A step takes as long as one device with 8 sequences and 3 sends; so 4 stages make at most 4 times its tokens.
    """
    served = {"batching": batching, "input_len": 1, "output_len": 64}
    one, four = served_13b(**served), served_13b(**served, batch_size=32, pipeline_parallel_size=4)
    idle = served_13b(**served, batch_size=32, pipeline_parallel_size="4,microbatches=1")
    assert 3.7 < four["output_tokens_per_s"] / one["output_tokens_per_s"] <= 4.0
    assert one["tpot_s"] <= four["tpot_s"] < 1.1 * one["tpot_s"]
    assert idle["output_tokens_per_s"] < four["output_tokens_per_s"]


def test_a_filled_pipeline_is_no_faster_than_its_slowest_stage() -> None:
    """2 stages of one layer-step s1 and s2 > s1 (the head): 2 micro-batches take 2 s2 a round, not s1 + s2."""
    request = {"batch_size": 64, "input_len": 64, "output_len": 64, "pipeline_parallel_size": 2}
    served = analyze("llama-2-13b", "h100-sxm", **request, batching="continuous").analysis
    busiest, whole = (served.schedule.decode(times)[0] for times in (served.passes.busiest_s, served.passes.time_s))
    assert whole < 2 * busiest
    assert served.token_s[0] == pytest.approx(2 * busiest)
    assert served.in_flight[0] == 2
    assert served.tpot_s[0] >= served.decode_s[0] / 63


def test_prompts_of_others_follow_on_the_slowest_stage() -> None:
    """4 running, prefill 0.4 s through 4 stages, the next one 0.1 s later: 3 others take 0.3 s, not 1.2 s."""
    times = RequestTimes(
        prefill_s=np.array([0.4]), next_s=np.array([0.1]), decode_s=np.array([1.0]), steps=np.array([10.0]),
        users=4.0, running=4.0,
    )  # fmt: skip
    assert times.others_s[0] == pytest.approx(0.3)
    assert times.generation_s[0] + times.ahead_s[0] == pytest.approx(1.0 + 0.3)
    assert times.ttft_s[0] - times.ahead_s[0] == pytest.approx(0.4)


def test_fewer_sequences_than_stages_are_one_micro_batch_each() -> None:
    """3 sequences on 8 stages: a step is one sequence through all stages, as long as the whole model takes for it."""
    served = {"batching": "continuous", "input_len": 1, "output_len": 64, "pipeline_parallel_size": 8}
    alone, three = served_13b(**served, batch_size=1), served_13b(**served, batch_size=3)
    assert three["tpot_s"] == pytest.approx(alone["tpot_s"], rel=0.05)


def test_each_micro_batch_has_its_own_chunked_steps() -> None:
    """33 sequences of which one is in prefill are 32 decodes in a mixed step; 4 micro-batches of 9 have 8 each."""
    served = {"batching": "chunked,tokens=512", "batch_size": 33, "input_len": 512, "output_len": 512}
    one = answer("llama-2-13b", "h100-sxm", **REQUEST | served)["serving"]
    four = answer("llama-2-13b", "h100-sxm", **REQUEST | served, pipeline_parallel_size=4)["serving"]
    assert one["decodes_in_mixed_step"] == pytest.approx(32.0)
    assert four["decodes_in_mixed_step"] == pytest.approx(8.0)


def test_a_static_batch_leaves_the_pipeline_as_it_was_asked_for() -> None:
    assert metrics(pipeline_parallel_size=4) == metrics(pipeline_parallel_size="4,microbatches=1")
