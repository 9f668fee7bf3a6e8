"""FlashAttention-1's traffic: blocks of keys outside, so that queries and outputs move once per block."""

from __future__ import annotations

from typing import Any

import pytest

import llmviewer as lv
from llmviewer.core.errors import UserError


def attention(kernel: str, stage: str = "prefill", **sizes: Any) -> dict[str, Any]:
    found = lv.analyze("gpt2", "a100", attention=kernel, efficiency="ideal", dtype="fp16", **sizes).to_dict()
    named = {one["name"]: one for one in found["stages"][stage]["operators"]}
    if kernel != "eager":
        return named["attention"]
    parts = [named[name] for name in ("qk_matmul", "softmax", "sv_matmul")]
    return {"traffic_bytes": sum(one["traffic_bytes"] for one in parts)}


def test_traffic_by_hand() -> None:
    """GPT-2: 12 heads of 64; an A100 has 164 KiB per unit, 83,968 numbers of 16 bit, 328 keys per block.

    1,024 keys make four blocks.  Per head: K and V once, four times Q, O twice, and four fp32 statistics per row.
    """
    found = attention("flash-1", input_len=1024)
    n, d, blocks = 1024, 64, 4
    per_head = 2 * n * d * 2 + blocks * (3 * n * d * 2 + 4 * n * 4)
    assert found["traffic_bytes"] == 12 * per_head


def test_it_is_between_flash_and_eager() -> None:
    """Figure 2 of arXiv 2205.14135: 4.4 GB instead of 40.3 GB forward and backward, 64 sequences of 1,024 tokens."""
    moved = {
        name: attention(name, batch_size=64, input_len=1024)["traffic_bytes"] for name in ("flash", "flash-1", "eager")
    }
    assert moved["flash"] < moved["flash-1"] < moved["eager"]
    assert 4 < moved["eager"] / moved["flash-1"] < 40.3 / 4.4


def test_traffic_grows_with_the_square_of_the_length() -> None:
    """Theta(N^2 d^2 / M): twice the tokens, about four times the bytes."""
    short, long = (attention("flash-1", input_len=n)["traffic_bytes"] for n in (328 * 16, 328 * 32))
    assert long / short == pytest.approx(4.0, rel=0.04)


def test_it_multiplies_the_same_pairs() -> None:
    for stage in ("prefill", "decode"):
        one, other = (attention(name, stage, input_len=900) for name in ("flash", "flash-1"))
        assert one["matmul_flops"] == other["matmul_flops"]


def test_it_has_no_measured_kernels() -> None:
    with pytest.raises(UserError, match="efficiency ideal"):
        lv.analyze("gpt2", "a100", attention="flash-1")
    with pytest.raises(UserError, match="on-chip memory per unit of groq-lpu is unknown"):
        lv.analyze("gpt2", "groq-lpu", attention="flash-1", efficiency="ideal", max_num_batched_tokens=64)
