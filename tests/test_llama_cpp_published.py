"""Figures that users of llama.cpp published, of the kernels that differ from those of serving engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.calibrate.e2e_rows import RequestCase
from llmviewer.calibrate.e2e_runs import evaluate_group


def metrics(model: str, hardware: str, **options: Any) -> dict[str, float]:
    """Metrics of a run of llama.cpp."""
    found: dict[str, float] = lv.analyze(model, hardware, engine="llama.cpp", **options).to_dict()["metrics"]
    return found


@pytest.mark.parametrize(("tokens", "published"), [(1, 62.56), (4, 132.67), (8, 177.12), (128, 838.4), (512, 1464.33)])
def test_metal_reads_experts_for_each_token_of_a_short_prompt(tokens: int, published: float) -> None:
    """GLM-4.7-Flash in q8_0 on an M2 Ultra: https://github.com/ggml-org/llama.cpp/pull/19390.

    The matrix-vector kernel serves up to 31 tokens, and tiles have 32 columns; with one read of every expert and tiles
    of 128 columns, 8 tokens were 1.57 times as fast as published, and 128 tokens 0.4 times.
    """
    ttft = metrics("glm-4.7-flash", "m2-ultra", quantization="q8_0", input_len=tokens, output_len=1)["ttft_s"]
    assert tokens / ttft == pytest.approx(published, rel=0.35)


@pytest.mark.parametrize(("budget", "published"), [(128, 1617.77), (256, 1697.92), (512, 1448.12)])
def test_prompts_after_a_long_context_wait_for_attention_on_a_3090(budget: int, published: float) -> None:
    """512 tokens of Llama 8B q4_0 after 32,768: 1.59 times as fast was predicted in micro-batches of 512.

    https://github.com/ggml-org/llama.cpp/pull/17505
    """
    sizes: dict[str, Any] = {"input_len": 33280, "output_len": 1, "prefix_cache": str(32768 / 33280)}
    ttft = metrics("llama-3.1-8b", "rtx-3090", quantization="q4_0", max_num_batched_tokens=budget, **sizes)["ttft_s"]
    assert 512.0 / ttft == pytest.approx(published, rel=0.36)


def test_latent_attention_divides_its_keys_on_every_chip() -> None:
    """DeepSeek-V2-Lite q4_0 on a V100 at a context of 32,768: 89.2 tokens/s, of which a tenth was predicted.

    https://github.com/ggml-org/llama.cpp/pull/17505; a Mac of three quarters of the bandwidth and no fewer units is
    not ten times slower.
    """
    sizes: dict[str, Any] = {"quantization": "q4_0", "input_len": 32768, "output_len": 16}
    v100 = metrics("deepseek-v2-lite", "v100-32gb-pcie", **sizes)["tpot_s"]
    assert v100 == pytest.approx(1.0 / 89.23, rel=0.5)
    assert metrics("deepseek-v2-lite", "m3-ultra", **sizes)["tpot_s"] < 2.0 * v100


def case(device: str, batch: float = 1.0, metric: str = "decode_tok_s") -> RequestCase:
    return RequestCase(
        hardware=device,
        model="qwen2.5-7b",
        engine="llama.cpp",
        batching="static",
        options=(("quantization", "q8_0"), ("kv_cache_dtype", "auto")),
        batch=batch,
        input_len=8192.0,
        output_len=32.0,
        metric=metric,
    )


def test_a_published_batch_is_not_cut_to_the_slots_of_the_server() -> None:
    """32 sequences on a DGX Spark: 268.2 tokens/s, although llama-server has 4 slots of its own.

    https://github.com/ggml-org/llama.cpp/blob/master/benches/dgx-spark.md
    """
    group = evaluate_group([case("gb10", 32.0)], [0])
    assert np.asarray(group.analysis.request.batch_size) == pytest.approx(32.0)
    assert group.values(group.analysis.times)[0] == pytest.approx(268.2, rel=0.15)
