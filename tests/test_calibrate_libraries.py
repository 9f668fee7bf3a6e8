"""Kernels of engines that can be imported: called as their sources say, at the shapes asked, under the engine's name.

The fakes have the parameters of the functions that were read (calibrate/libraries.py names files and commits), and
check the shapes that those state.
"""

# ruff: noqa: A002, E501, FBT001, FBT002, N803, PLR0917  # the parameters are those of the sources

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="measuring needs torch")
import pandas as pd
import torch

import llmviewer as lv
from llmviewer.calibrate import collectives, libraries, model_plan, plan, profile_file, record, sizes
from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.fit import fit_key
from llmviewer.calibrate.kernel_case import KernelCase
from llmviewer.calibrate.kernels import KERNELS, flex
from llmviewer.calibrate.kernels.dtypes import UnsupportedError
from llmviewer.calibrate.kernels.library import CALLS
from llmviewer.calibrate.shapes import ExpertLayer, Heads, RecurrentHeads
from llmviewer.calibrate.tables import TABLES, RowGroup, row_groups
from llmviewer.calibrate.usable import usable_rows
from llmviewer.hardware import specs
from llmviewer.ops.gemm import GemmShape
from llmviewer.timing import profile as profiles
from llmviewer.timing.kernels.families import FAMILIES
from tests.imports import ROOT

VERSIONS = {"vllm": "0.24.0", "sglang": "0.5.14", "flashinfer": "0.6.1", "aiter": "0.1.9"}
FP8, BF16, F32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
T = torch.Tensor


def has(tensor: T, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)


class VllmOps:
    """vllm/_custom_ops.py."""

    @staticmethod
    def scaled_fp8_quant(
        input: T, scale: T | None = None, num_token_padding: int | None = None, scale_ub: T | None = None,
        use_per_token_if_dynamic: bool = False, output: T | None = None, group_shape: tuple[int, int] | None = None,
    ) -> tuple[T, T]:  # fmt: skip
        assert input.ndim == 2
        assert use_per_token_if_dynamic
        return input.to(FP8), torch.ones(len(input), 1)

    @staticmethod
    def cutlass_scaled_mm(
        a: T, b: T, scale_a: T, scale_b: T, out_dtype: torch.dtype, bias: T | None = None
    ) -> T:  # fmt: skip
        assert b.stride() == (1, a.shape[1])
        assert b.shape[0] % 16 == b.shape[1] % 16 == 0
        assert scale_a.numel() == len(a)
        assert scale_b.numel() == b.shape[1]
        return torch.empty(len(a), b.shape[1], dtype=out_dtype)

    @staticmethod
    def scaled_fp4_quant(
        input: T, input_global_scale: T, is_sf_swizzled_layout: bool = True, backend: str = "none"
    ) -> tuple[T, T]:
        rows, columns = -(-len(input) // 128) * 128, -(-(input.shape[1] // 16) // 4) * 4
        return input.new_zeros(len(input), input.shape[1] // 2, dtype=torch.uint8), torch.zeros(rows, columns).to(FP8)

    @staticmethod
    def cutlass_scaled_fp4_mm(
        a: T, b: T, block_scale_a: T, block_scale_b: T, alpha: T, out_dtype: torch.dtype
    ) -> T:  # fmt: skip
        has(b, (len(b), a.shape[1]), torch.uint8)
        has(block_scale_b, (-(-len(b) // 128) * 128, block_scale_a.shape[1]), FP8)
        has(alpha, (1,), F32)
        return torch.empty(len(a), len(b), dtype=out_dtype)

    @staticmethod
    def marlin_gemm(
        a: T, c: T | None, b_q_weight: T, b_bias: T | None, b_scales: T, a_scales: T | None, global_scale: T | None,
        b_zeros: T | None, workspace: T, b_q_type: Any, size_m: int, size_n: int, size_k: int,
        use_atomic_add: bool = False, use_fp32_reduce: bool = False, is_zp_float: bool = False,
    ) -> T:  # fmt: skip
        assert b_q_type == "uint4b8"
        has(a, (size_m, size_k), BF16)
        has(b_q_weight, (size_k // 16, size_n * 16 // 8), torch.int32)  # as gptq_marlin_repack shapes it
        has(b_scales, (size_k // 128, size_n), BF16)
        return torch.empty(size_m, size_n)

    @staticmethod
    def rms_norm(out: T, input: T, weight: T | None, epsilon: float) -> None:
        out.copy_(torch.nn.functional.rms_norm(input, input.shape[1:], weight, epsilon))

    @staticmethod
    def rotary_embedding(
        positions: T, query: T, key: T | None, head_size: int, cos_sin_cache: T, is_neox: bool,
        rope_dim_offset: int = 0, inverse: bool = False,
    ) -> None:  # fmt: skip
        assert key is not None
        assert query.shape[1] % head_size == key.shape[1] % head_size == 0
        assert query.shape[1] == 3 * key.shape[1]

    @staticmethod
    def reshape_and_cache_flash(
        key: T, value: T, key_cache: T, value_cache: T, slot_mapping: T, kv_cache_dtype: str, k_scale: T, v_scale: T
    ) -> None:
        assert key.shape == value.shape
        assert key.shape[1:] == key_cache.shape[2:]
        assert kv_cache_dtype == ("fp8" if key_cache.dtype == torch.uint8 else "auto")
        assert slot_mapping.numel() == len(key)


def flash_attn_varlen_func(
    q: T, k: T, v: T, max_seqlen_q: int, cu_seqlens_q: T, max_seqlen_k: int, cu_seqlens_k: T | None = None,
    seqused_k: T | None = None, q_v: Any = None, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: list[int] | None = None, softcap: float = 0.0, alibi_slopes: Any = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: T | None = None,
    return_softmax_lse: bool = False, out: T | None = None, scheduler_metadata: Any = None, q_descale: T | None = None,
    k_descale: T | None = None, v_descale: T | None = None, num_splits: int = 0, output_scale: Any = None,
    fa_version: int = 2, s_aux: T | None = None,
) -> T:  # fmt: skip
    """vllm/vllm_flash_attn/flash_attn_interface.py, with its assertions."""
    assert (cu_seqlens_k is None) != (seqused_k is None)
    assert block_table is None or seqused_k is not None
    assert fa_version == 3 or (s_aux is None and q.dtype == BF16)
    assert q.dtype == k.dtype
    if block_table is not None:
        assert sorted(block_table.flatten().tolist()) == [*range(len(k))]
        assert k.shape[1] * block_table.shape[1] >= max_seqlen_k
    assert window_size is None or len(window_size) == 2
    return q


class Paged:
    """BatchDecodeWithPagedKVCacheWrapper of flashinfer/decode.py."""

    def __init__(
        self, float_workspace_buffer: T, kv_layout: str = "NHD", use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
    ) -> None:  # fmt: skip
        assert use_tensor_cores

    def plan(
        self, indptr: T, indices: T, last_page_len: T, num_qo_heads: int, num_kv_heads: int, head_dim: int,
        page_size: int, *, window_left: int = -1, q_data_type: Any = None, kv_data_type: Any = None,
    ) -> None:  # fmt: skip
        assert int(indptr[-1]) == indices.numel()
        assert 1 <= int(last_page_len.min()) <= int(last_page_len.max()) <= page_size
        self.pages, self.kind, self.window = indices.numel(), kv_data_type, window_left

    def run(self, q: T, paged_kv_cache: tuple[T, T]) -> T:
        assert all(len(part) == self.pages and part.dtype == self.kind for part in paged_kv_cache)
        return q


class Ragged:
    """BatchPrefillWithRaggedKVCacheWrapper of flashinfer/prefill.py."""

    def __init__(self, float_workspace_buffer: T, kv_layout: str = "NHD") -> None: ...

    def plan(
        self, qo_indptr: T, kv_indptr: T, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
        head_dim_vo: int | None = None, custom_mask: Any = None, packed_custom_mask: Any = None, causal: bool = False,
        pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, window_left: int = -1,
        logits_soft_cap: float | None = None, sm_scale: float | None = None, rope_scale: float | None = None,
        rope_theta: float | None = None, q_data_type: Any = "float16", kv_data_type: Any = None,
    ) -> None:  # fmt: skip
        assert causal
        self.rows = int(qo_indptr[-1])

    def run(self, q: T, k: T, v: T) -> T:
        assert len(q) == len(k) == len(v) == self.rows
        return q


class Latent:
    """BatchMLAPagedAttentionWrapper of flashinfer/mla.py."""

    def __init__(self, float_workspace_buffer: T, use_cuda_graph: bool = False) -> None: ...

    def plan(
        self, qo_indptr: T, kv_indptr: T, kv_indices: T, kv_len_arr: T, num_heads: int, head_dim_ckv: int,
        head_dim_kpe: int, page_size: int, causal: bool, sm_scale: float, q_data_type: Any, kv_data_type: Any,
        use_profiler: bool = False,
    ) -> None:  # fmt: skip
        assert (head_dim_ckv, head_dim_kpe) == (512, 64)
        assert int(kv_indptr[-1]) == kv_indices.numel()
        self.pages, self.size = kv_indices.numel(), page_size

    def run(self, q_nope: T, q_pe: T, ckv_cache: T, kpe_cache: T) -> T:
        has(ckv_cache, (self.pages, self.size, 512), BF16)
        has(kpe_cache, (self.pages, self.size, 64), BF16)
        assert q_pe.shape == (*q_nope.shape[:2], 64)
        return q_nope


def fused_experts(
    hidden_states: T, w1: T, w2: T, topk_weights: T, topk_ids: T, inplace: bool = False, activation: str = "silu",
    quant_config: Any = None,
) -> T:  # fmt: skip
    """vllm/model_executor/layers/fused_moe/fused_moe.py, with its assertions."""
    assert hidden_states.shape[1] == w1.shape[2]
    assert w2.shape == (len(w1), w1.shape[2], w1.shape[1] // 2)
    assert topk_weights.shape == topk_ids.shape
    assert int(topk_ids.max()) < len(w1)
    assert (quant_config is not None) == (w1.dtype == FP8)
    return hidden_states


def fp8_w8a8_moe_quant_config(
    w1_scale: T, w2_scale: T, a1_scale: T | None = None, a2_scale: T | None = None, w1_bias: T | None = None,
    w2_bias: T | None = None, per_act_token_quant: bool = False, per_out_ch_quant: bool = False,
    block_shape: list[int] | None = None,
) -> Any:  # fmt: skip
    assert (w1_scale.ndim == 3) == (block_shape == [128, 128])
    return "config"


def selective_state_update(
    state: T, x: T, dt: T, A: T, B: T, C: T, D: T | None = None, z: T | None = None, dt_bias: T | None = None,
    dt_softplus: bool = False, state_batch_indices: T | None = None, out: T | None = None,
) -> None:  # fmt: skip
    """vllm/model_executor/layers/mamba/ops/mamba_ssm.py, with its assertions."""
    _, heads, dim = x.shape
    assert state.shape[:3] == dt.shape == x.shape
    assert A.shape == state.shape[1:]
    assert B.shape == C.shape
    assert heads % B.shape[1] == 0
    assert D is not None
    assert dt_bias is not None
    assert D.shape == dt_bias.shape == (heads, dim)
    assert A.stride()[-2:] == (0, 0)  # one decay per head
    assert dt.stride(-1) == dt_bias.stride(-1) == 0
    assert out is not None
    assert out.shape == x.shape


class SglKernel:
    """sgl-kernel/python/sgl_kernel/gemm.py."""

    @staticmethod
    def sgl_per_token_quant_fp8(input: T, output_q: T, output_s: T) -> None:
        has(output_q, tuple(input.shape), FP8)
        has(output_s, (len(input), 1), F32)

    @staticmethod
    def fp8_scaled_mm(
        mat_a: T, mat_b: T, scales_a: T, scales_b: T, out_dtype: torch.dtype, bias: T | None = None
    ) -> T:  # fmt: skip
        return VllmOps.cutlass_scaled_mm(mat_a, mat_b, scales_a, scales_b, out_dtype, bias)

    scaled_fp4_quant = VllmOps.scaled_fp4_quant
    cutlass_scaled_fp4_mm = VllmOps.cutlass_scaled_fp4_mm


def flash_attn_with_kvcache(
    q: T, k_cache: T, v_cache: T, k: Any = None, v: Any = None, qv: Any = None, rotary_cos: Any = None,
    rotary_sin: Any = None, cache_seqlens: Any = None, cache_batch_idx: Any = None, cache_leftpad: Any = None,
    page_table: T | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
) -> T:  # fmt: skip
    """sgl-kernel/python/sgl_kernel/flash_attn.py."""
    assert page_table is not None
    assert q.ndim == 4
    assert page_table.numel() == len(k_cache)
    return q


def sgl_varlen(
    q: T, k: T, v: T, cu_seqlens_q: T, cu_seqlens_k: T, max_seqlen_q: int, max_seqlen_k: int, seqused_q: Any = None,
    seqused_k: Any = None, softmax_scale: Any = None, causal: bool = False, qv: Any = None, q_descale: Any = None,
    k_descale: Any = None, v_descale: Any = None, window_size: tuple[int, int] = (-1, -1),
) -> T:  # fmt: skip
    return q


def rmsnorm(input: T, weight: T, eps: float = 1e-6, out: T | None = None, enable_pdl: bool | None = None) -> T:
    return torch.nn.functional.rms_norm(input, input.shape[1:], weight, eps)


def silu_and_mul(input: T, out: T | None = None, enable_pdl: bool | None = None) -> T:
    assert out is not None
    assert input.shape[-1] == 2 * out.shape[-1]
    return out


def top_p_sampling_from_probs(probs: T, top_p: float, indices: T | None = None, deterministic: bool = True) -> T:
    assert probs.dtype == F32
    assert torch.allclose(probs.sum(-1), torch.ones(len(probs)), atol=1e-3)
    return probs.argmax(-1)


class Aiter:
    """aiter/ops/gemm_op_a8w8.py."""

    @staticmethod
    def gemm_a8w8(
        XQ: T, WQ: T, x_scale: T, w_scale: T, bias: T | None = None, dtype: torch.dtype = BF16, splitK: int | None = None
    ) -> T:  # fmt: skip
        assert (x_scale.numel(), w_scale.numel()) == (len(XQ), len(WQ))
        return XQ

    @staticmethod
    def gemm_a8w8_blockscale(
        XQ: T, WQ: T, x_scale: T, w_scale: T, dtype: torch.dtype = BF16, isBpreshuffled: bool = False
    ) -> T:  # fmt: skip
        assert x_scale.shape == (len(XQ), XQ.shape[1] // 128)
        assert w_scale.shape == (-(-len(WQ) // 128), XQ.shape[1] // 128)
        return XQ


def rmsnorm2d_fwd(input: T, weight: T, epsilon: float, use_model_sensitive_rmsnorm: int = 0) -> T:
    return rmsnorm(input, weight, epsilon)


_MOE = "vllm.model_executor.layers.fused_moe"
MODULES: dict[str, Any] = {
    "vllm._custom_ops": VllmOps,
    "vllm.scalar_type": SimpleNamespace(scalar_types=SimpleNamespace(uint4b8="uint4b8")),
    "vllm.vllm_flash_attn.flash_attn_interface": SimpleNamespace(
        flash_attn_varlen_func=flash_attn_varlen_func, is_fa_version_supported=lambda version: version <= 3
    ),
    f"{_MOE}.fused_moe": SimpleNamespace(fused_experts=fused_experts),
    f"{_MOE}.config": SimpleNamespace(fp8_w8a8_moe_quant_config=fp8_w8a8_moe_quant_config),
    "vllm.model_executor.layers.mamba.ops.mamba_ssm": SimpleNamespace(selective_state_update=selective_state_update),
    "sgl_kernel.gemm": SglKernel,
    "sgl_kernel.flash_attn": SimpleNamespace(
        flash_attn_with_kvcache=flash_attn_with_kvcache, flash_attn_varlen_func=sgl_varlen
    ),
    "sgl_kernel.elementwise": SimpleNamespace(rmsnorm=rmsnorm, silu_and_mul=silu_and_mul),
    "flashinfer.decode": SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Paged),
    "flashinfer.prefill": SimpleNamespace(BatchPrefillWithRaggedKVCacheWrapper=Ragged),
    "flashinfer.mla": SimpleNamespace(BatchMLAPagedAttentionWrapper=Latent),
    "flashinfer.norm": SimpleNamespace(rmsnorm=rmsnorm),
    "flashinfer.activation": SimpleNamespace(silu_and_mul=silu_and_mul),
    "flashinfer.sampling": SimpleNamespace(top_p_sampling_from_probs=top_p_sampling_from_probs),
    "flashinfer.mamba": SimpleNamespace(selective_state_update=selective_state_update),
    "aiter": SimpleNamespace(dtypes=SimpleNamespace(fp8=FP8)),
    "aiter.ops.gemm_op_a8w8": Aiter,
    "aiter.ops.rmsnorm": SimpleNamespace(rmsnorm2d_fwd=rmsnorm2d_fwd),
}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, content in MODULES.items():
        for end in range(1, len(name.split(".")) + 1):
            parent = ".".join(name.split(".")[:end])
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        for attribute in (found for found in dir(content) if not found.startswith("__")):
            monkeypatch.setattr(sys.modules[name], attribute, getattr(content, attribute), raising=False)
    yield


HEADS = plan.heads_of(Heads(8, 2, 16, 16), "bfloat16")
#: Planned rows of every table, small.
PLANNED = [
    plan.linear("bfloat16", 6, 256, 384),
    plan.decode("sdpa_flash", HEADS, 3, 40),
    plan.decode("mla_sdpa_flash", plan.heads_of(Heads(4, 1, 576, 512), "bfloat16"), 2, 40),
    plan.prefill("sdpa_flash", HEADS, 2, 24),
    plan.expert_layer(ExpertLayer(128, 256, 2, 8), 5, 2, 1, "balanced"),
    *(plan.elementwise(op, kernel, "bfloat16", 5, 512) for op, kernel in plan.ELEMENTWISE_KERNELS),
    *(case for case in plan._cache_writes(replace(sizes.GPU, tokens=(5,), attention_models=("llama-3.2-1b",)))),
    *plan.samplers(replace(sizes.GPU, vocabularies=(300,), sequences=(3,))),
    plan.recurrence(RecurrentHeads("mamba2", 8, 16, 32, 2), "bfloat16", 3),
]
CASES = list(libraries.cases(PLANNED, VERSIONS, windows=(16,)))


def name_of(case: KernelCase) -> str:
    columns = case.columns
    return f"{columns['engine'].partition(' ')[0]}.{columns['kernel'].partition(' ')[0]}"


def test_every_kernel_of_every_library_has_a_call_and_a_row() -> None:
    assert {*CALLS} == {*libraries.KERNELS} == {name_of(case) for case in CASES}
    assert {name.partition(".")[0] for name in CALLS} == {*libraries.LIBRARIES} == {*VERSIONS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{name_of(case)} {case.columns.get('window', '')}")
def test_kernels_are_called_as_their_sources_say(fakes: None, case: KernelCase) -> None:
    work = KERNELS[case.kernel](case.columns, Buffers("cpu", 1024))
    with torch.inference_mode():
        work.run(0)
        work.run(work.copies - 1)
    assert work.rotated_bytes > 2048


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{name_of(case)} {case.columns.get('window', '')}")
def test_rows_are_fitted_as_the_kernels_of_their_engine(case: KernelCase) -> None:
    """Samplers alone are evidence: no family prices them."""
    row = {"device": "h100-sxm", "source": "llmviewer", "latency_us": 9.0, **case.columns}
    clean, reasons = usable_rows(pd.DataFrame([row]), case.table)
    assert list(reasons) == []
    if case.table == "serving":
        return
    (group,) = row_groups(clean)
    assert isinstance(group, RowGroup)
    engine = name_of(case).partition(".")[0]
    assert group.engine.partition("-")[0] == engine
    family, variant, _ = fit_key(group)
    known = {"gemm": "gemm", "moe": "experts", "elementwise": "streaming", "recurrence": "streaming"}
    assert family == known.get(case.table, case.table)
    assert variant


def rows_of(name: str, **columns: Any) -> RowGroup:
    case = next(case for case in CASES if name_of(case) == name)
    row = {"device": "h100-sxm", "source": "llmviewer", "latency_us": 9.0, **case.columns, **columns}
    (group,) = row_groups(usable_rows(pd.DataFrame([row]), case.table)[0])
    assert isinstance(group, RowGroup)
    return group


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("vllm.cutlass_scaled_mm", "gemm/fp8/vllm"),
        ("vllm.cutlass_scaled_fp4_mm", "gemm/fp4/vllm"),
        ("vllm.marlin_gemm", "gemm/w4a16/vllm"),
        ("vllm.flash_attn", "attention_decode/bf16/vllm"),
        ("vllm.flash_attn_fp8", "attention_decode/bf16-kv8/vllm"),
        ("vllm.flash_attn_sinks", "attention_decode/bf16/vllm-sinks"),
        ("vllm.fused_experts_triton", "experts/bf16/vllm"),
        ("vllm.fused_experts_triton_fp8", "experts/fp8/vllm-triton"),
        ("vllm.rms_norm", "streaming/norm/vllm-custom"),
        ("vllm.rotary_embedding", "streaming/rope/vllm"),
        ("vllm.reshape_and_cache_flash", "streaming/add/vllm-cache"),
        ("vllm.selective_state_update", "streaming/recurrence/vllm"),
        ("flashinfer.mla_paged", "attention_decode/bf16-mla/flashinfer"),
        ("aiter.gemm_a8w8_blockscale", "gemm/fp8-block/aiter"),
    ],
)
def test_fits_have_the_names_that_predictions_look_for(name: str, key: str) -> None:
    """Norms that vLLM runs only uncompiled, kernels of sinks and second kernels of a format have fits of their own."""
    assert "/".join(fit_key(rows_of(name))) == key


def test_conversion_of_the_input_is_in_rows_of_engines_that_convert() -> None:
    for name, converts in (("vllm.cutlass_scaled_mm", 1.0), ("sglang.fp8_scaled_mm", 1.0), ("aiter.gemm_a8w8", 0.0)):
        shape = rows_of(name).operators[-1].shape
        assert isinstance(shape, GemmShape)
        assert shape.converts == converts


def test_an_older_flash_attention_refuses_what_it_lacks(fakes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["vllm.vllm_flash_attn.flash_attn_interface"]
    monkeypatch.setattr(module, "is_fa_version_supported", lambda version: version == 2)
    for name in ("vllm.flash_attn_fp8", "vllm.flash_attn_sinks"):
        case = next(case for case in CASES if name_of(case) == name)
        with pytest.raises(UnsupportedError, match="FlashAttention-3"):
            KERNELS["library"](case.columns, Buffers("cpu", 1024))


def test_a_version_without_the_function_is_named(fakes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["vllm._custom_ops"], "marlin_gemm")
    case = next(case for case in CASES if name_of(case) == "vllm.marlin_gemm")
    with pytest.raises(UnsupportedError, match=r"vllm 0\.24\.0 has no marlin_gemm in vllm\._custom_ops"):
        KERNELS["library"](case.columns, Buffers("cpu", 1024))


def test_a_run_takes_the_libraries_that_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is installed beside these tests; a GPU's plan adds those that are, a processor's never."""
    assert libraries.installed() == {}
    monkeypatch.setattr(libraries, "installed", lambda: {"flashinfer": "0.6.1"})
    for kind, engines in (("cuda", {"flashinfer 0.6.1"}), ("cpu", set())):
        found = plan.cases(sizes.size_named(kind, "quick"))
        assert {case.columns["engine"] for case in found if case.kernel == libraries.KERNEL} == engines


@pytest.mark.parametrize(
    ("model", "products", "windows"),
    [
        ("llama-3.1-8b", set(), {0}),
        ("deepseek-v3", {"fp8_block"}, {0}),
        ("gemma-3-4b", set(), {0, 1024}),
    ],
)
def test_a_model_gets_its_own_formats_and_windows(
    monkeypatch: pytest.MonkeyPatch, model: str, products: set[str], windows: set[int]
) -> None:
    monkeypatch.setattr(libraries, "installed", lambda: VERSIONS)
    size = replace(sizes.size_named("cuda", "quick"), block_caches=((8, 2048),))
    found = [case for case in model_plan.plan_of(model, 1, size).cases if case.kernel == libraries.KERNEL]
    assert {case.columns["dtype"] for case in found if case.table == "gemm"} == products
    assert {case.columns["window"] for case in found if case.table.startswith("attention")} == windows


def test_what_a_model_lacks_names_the_libraries_that_may_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    size = sizes.size_named("cuda", "quick")
    (alone,) = (line for line in model_plan.plan_of("deepseek-v3", 1, size).missing if line.startswith("experts"))
    assert alone.endswith("vllm or sglang may, where they can be imported")
    monkeypatch.setattr(libraries, "installed", lambda: {"vllm": "0.24.0"})
    assert not any(line.startswith("experts") for line in model_plan.plan_of("deepseek-v3", 1, size).missing)


def test_an_older_torch_and_one_without_exchanges_measure_the_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """flex_attention came with torch 2.5; torch can be built without torch.distributed."""
    monkeypatch.setitem(sys.modules, "torch.nn.attention.flex_attention", None)
    monkeypatch.setattr(flex, "need_compiler", lambda kind: None)
    with pytest.raises(UnsupportedError, match="has no flex_attention"):
        KERNELS["flex"]({}, Buffers("cpu", 1024))
    for name in ("all_gather_single", "all_gather_into_tensor", "reduce_scatter_single", "reduce_scatter_tensor"):
        monkeypatch.delattr(torch.distributed, name, raising=False)
    found = runpy.run_path(str(ROOT / "calibrate" / "kernels" / "exchange.py"))
    assert {*found["EXCHANGES"]} == {*collectives.OPS}


with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(ROOT / "docs"))
    MEASURED = runpy.run_path(str(ROOT / "docs" / "measured.py"))


def planned() -> list[KernelCase]:
    found = [case for kind in ("cuda", "cpu") for case in plan.cases(sizes.size_named(kind, "full"), gpus=2)]
    return [*found, *collectives.cases("cuda", 2, sizes.GPU, "nccl 2.27.5"), *CASES]


def test_the_page_lists_every_kernel_that_is_measured() -> None:
    """`make docs` writes both tables."""
    page = (ROOT / "docs" / "guide" / "calibration.md").read_text(encoding="utf-8")
    for mark, table in ((MEASURED["KERNELS_MARK"], "measured"), (MEASURED["LIBRARIES_MARK"], "read")):
        assert f"<!-- {mark} -->\n\n{MEASURED[table]()}\n" in page
    entries = MEASURED["ENTRIES"]
    assert {name for entry in entries for name in entry.torch} == {*KERNELS} - {libraries.KERNEL}
    assert {name for entry in entries for name in entry.engines} == {*libraries.KERNELS}
    assert {name for entry in entries for name in entry.families} == {*FAMILIES}
    assert all(entry.torch or entry.engines or entry.needs for entry in entries)


def test_the_page_names_the_family_and_the_table_of_every_planned_kernel() -> None:
    """A kernel's rows are fitted as one of the families that the page names for it, or its table is evidence."""
    named: dict[str, set[str]] = {}
    tables: dict[str, set[str]] = {}
    for entry in MEASURED["ENTRIES"]:
        for name in (*entry.torch, *entry.engines):
            named.setdefault(name, set()).update(entry.families)
            tables.setdefault(name, set()).add(entry.table)
    samples: dict[tuple[str, str], KernelCase] = {}
    for case in planned():
        name = name_of(case) if case.kernel == libraries.KERNEL else case.kernel
        samples.setdefault((name, case.table), case)
    for (name, table), case in samples.items():
        if table not in TABLES:
            assert not named[name] or name == "serving"  # it also writes to the cache
            continue
        row = {"device": "h100-sxm", "source": "llmviewer", "engine": "torch 2.13.0", "latency_us": 9.0, **case.columns}
        (group,) = row_groups(usable_rows(pd.DataFrame([row]), table)[0])
        assert isinstance(group, RowGroup), (name, group)
        assert fit_key(group)[0] in named[name], name
    assert {name for name, _ in samples} == {*named}


@pytest.mark.parametrize(
    ("own", "like", "changes"),
    [
        ("attention_decode/bf16/vllm", "attention_decode/bf16/torch", True),
        ("attention_decode/bf16/vllm-sinks", "attention_decode/bf16/torch", False),
        ("attention_decode/bf16/flashinfer", "attention_decode/bf16/torch", False),
        ("streaming/norm/vllm-custom", "streaming/norm/torch", False),
        ("streaming/add/vllm-cache", "streaming/add/torch", False),
        ("gemm/bf16/torch-adapters", "gemm/bf16/torch", False),
        ("attention_prefill/bf16/torch-flex", "attention_prefill/bf16/torch", False),
    ],
)
def test_only_the_engine_s_usual_kernels_replace_what_is_known_of_it(
    tmp_path: Path, own: str, like: str, changes: bool
) -> None:
    """A user's profile of an H100 beside the shipped one: second kernels, and those of others, leave vLLM as it is."""
    shipped = profiles.shipped("h100-sxm")
    assert shipped is not None
    _, variant, engine = own.split("/")
    fit = replace(shipped.fit(like), variant=variant, engine=engine)
    path = tmp_path / "own.yaml"
    path.write_text(profile_file.text_of(specs.load("h100-sxm"), "own", {"origin": "a test"}, [fit]), encoding="utf-8")
    plain, mine = (
        lv.analyze("llama-3.1-8b", "h100-sxm", engine="vllm", input_len=2048, batch_size=8, profile=one).to_dict()
        for one in ("", str(path))
    )
    assert (plain["metrics"] != mine["metrics"]) == changes


def test_exchanges_in_a_graph_are_fitted_as_those_of_nccl() -> None:
    found = {}
    for case in collectives.cases("cuda", 8, sizes.GPU, "nccl 2.27.5"):
        row = {"device": "h100-sxm", "source": "llmviewer", "latency_us": 9.0, **case.columns}
        (group,) = row_groups(usable_rows(pd.DataFrame([row]), "allreduce")[0])
        assert isinstance(group, RowGroup)
        found["/".join(fit_key(group))] = case.columns["impl"]
    assert found == dict.fromkeys(
        (f"collective/{op}/nccl" for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")), "nccl_graph"
    )


@pytest.mark.slow
def test_two_processes_time_exchanges_together(tmp_path: Path) -> None:
    """gloo between two processes; both run as many calls, or they would wait for each other for ever."""
    words = ["--nproc-per-node", "2", "--standalone", "-m", "llmviewer.calibrate.collectives", str(tmp_path)]
    command = [sys.executable, "-m", "torch.distributed.run", *words, "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    _, tables = record.read(tmp_path)
    rows = tables["allreduce"]
    assert set(rows["op"]) == {*collectives.OPS}
    assert len(rows) == len(collectives.OPS) * len(collectives.CPU_BYTES)
    assert (rows["latency_us"] > 0.0).all()


def test_exchanges_need_one_process_per_device(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        collectives.main([str(tmp_path)])
    assert "torchrun --nproc-per-node N" in capsys.readouterr().err
