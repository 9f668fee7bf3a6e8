"""Rows of latent and encoder attention are recognized by their columns and become the operators their engines run."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pandas")
import pandas as pd

from llmviewer.calibrate.fit import fit_key
from llmviewer.calibrate.predict import PredictionOptions, predict
from llmviewer.calibrate.tables import RowGroup, row_groups, table_of, with_default_columns
from llmviewer.core.ir import Place
from llmviewer.ops.attention import AttentionShape

COMMON = {"device": "h100_sxm", "source": "aiconfigurator", "dtype": "bfloat16", "latency_us": 100.0}
LATENT = COMMON | {
    "engine": "trtllm 1.3",
    "kv_dtype": "bfloat16",
    "phase": "decode",
    "batch": 8,
    "seq": 4096,
    "heads": 16,
}
TOWER = COMMON | {"engine": "vllm 0.24", "batch": 2, "seq": 576, "heads": 16, "head_dim": 64}


def rows_of(**cells: Any) -> RowGroup:
    (part,) = row_groups(with_default_columns(pd.DataFrame([cells])))
    assert isinstance(part, RowGroup)
    return part


def shape_of(rows: RowGroup) -> AttentionShape:
    shape = rows.operators[-1].shape
    assert isinstance(shape, AttentionShape)
    return shape


def test_tables_are_told_apart_by_their_columns() -> None:
    prompt = TOWER | {"kv_heads": 4}
    assert [table_of(row) for row in (LATENT, TOWER, prompt)] == ["mla", "attention_encoder", "attention_prefill"]


def test_every_token_of_an_encoder_sees_all_tokens() -> None:
    rows = rows_of(**TOWER)
    (operator,) = rows.operators
    assert fit_key(rows) == ("attention_prefill", "bf16-encoder", "vllm")
    # 2 sequences x 576 x 576 pairs x 16 heads x 2 x (64 + 64) FLOP
    assert operator.matmul_flops == pytest.approx(2 * 576 * 576 * 16 * 256)
    # reads Q, K and V and writes the output: 2 x 576 tokens x 16 heads x 64 elements of 2 bytes each
    assert operator.traffic_bytes == pytest.approx(4 * 2 * 576 * 16 * 64 * 2)


def test_decode_of_latent_attention_reads_one_latent_for_keys_and_values() -> None:
    rows = rows_of(**LATENT)
    (operator,) = rows.operators
    shape = shape_of(rows)
    assert (shape.qk_dim, shape.v_dim, shape.kv_heads) == (576.0, 512.0, 1.0)
    assert fit_key(rows) == ("attention_decode", "bf16-mla", "trtllm")
    # 8 sequences x 4096 keys x 576 elements of 2 bytes are 38 MB, between half and all of an H100's 52 MB of L2:
    # what the cache does not hold comes from memory, the rest from the L2, and nothing is read twice
    latent = 8 * 4096 * 576 * 2
    queries = 8 * 16 * (576 + 512) * 2
    assert operator.traffic_bytes + operator.moved_bytes(Place.L2) == pytest.approx(latent + queries)
    assert 0.0 < operator.moved_bytes(Place.L2) < latent


def test_an_8_bit_latent_cache_has_constants_of_its_own() -> None:
    assert fit_key(rows_of(**LATENT | {"kv_dtype": "fp8"}))[1] == "bf16-kv8-mla"


@pytest.mark.parametrize(
    ("engine", "device", "dims"),
    [
        ("trtllm 1.3", "h100_sxm", (192.0, 128.0)),
        ("sglang 0.5", "b200_sxm", (192.0, 128.0)),
        ("sglang 0.5", "h100_sxm", (576.0, 512.0)),
    ],
)
def test_prompts_are_expanded_except_in_sglang_before_blackwell(
    engine: str, device: str, dims: tuple[float, float]
) -> None:
    shape = shape_of(rows_of(**LATENT | {"phase": "prefill", "engine": engine, "device": device}))
    assert (float(shape.qk_dim), float(shape.v_dim)) == dims


def test_rows_that_hold_the_hosts_launches_serve_no_other_engine() -> None:
    assert fit_key(rows_of(**LATENT | {"engine": "vllm 0.14.0"}))[2] == "vllm-host"
    assert fit_key(rows_of(**LATENT | {"engine": "vllm 0.24.0"}))[2] == "vllm"


def test_another_phase_is_named_and_the_other_rows_are_predicted() -> None:
    found = predict(pd.DataFrame([LATENT, LATENT | {"phase": "verify"}]), PredictionOptions())
    assert found["reason"].tolist() == ["", "phase is neither prefill nor decode"]
    assert found["predicted_us"].notna().tolist() == [True, False]


PROMPTS = COMMON | {"kv_dtype": "bfloat16", "heads": 16, "kv_heads": 4, "head_dim": 128, "window": 0, "batch": 4}


@pytest.mark.parametrize(
    ("engine", "kernel", "families"),
    [
        ("vllm 0.24.0", "vllm_flash_attn_fa3", ["attention_prefill/bf16/vllm", "attention_decode/bf16/vllm"]),
        ("sglang 0.5.14", "fa3", ["attention_prefill/bf16/sglang"] * 2),
    ],
)
def test_vllm_runs_prompts_of_one_token_by_its_kernel_of_decoding(
    engine: str, kernel: str, families: list[str]
) -> None:
    rows = [PROMPTS | {"engine": engine, "kernel": kernel, "prefix": 0, "seq": seq} for seq in (512, 1)]
    parts = list(row_groups(with_default_columns(pd.DataFrame(rows))))
    found = {part.index[0]: "/".join(fit_key(part)) for part in parts if isinstance(part, RowGroup)}
    assert [found[at] for at in (0, 1)] == families


def test_flash_attention_4_is_a_kernel_of_its_own() -> None:
    row = PROMPTS | {"engine": "vllm 0.24.0", "kernel": "vllm_flash_attn_fa4", "head_dim": 512, "context": 100}
    assert rows_of(**row).engine == "vllm-fa4"
