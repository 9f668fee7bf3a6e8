"""Calls of the kernels in calibrate/libraries.py, with tensors as their engines pass them.

A version whose call differs raises an error, and its row is recorded as skipped with that error.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels import fp8, moe
from llmviewer.calibrate.kernels.dtypes import DTYPES, UnsupportedError
from llmviewer.calibrate.kernels.serving import SLOTS, TOP_P
from llmviewer.calibrate.kernels.varlen import page_table, pages, starts
from llmviewer.calibrate.libraries import KERNELS
from llmviewer.calibrate.rows.routing import busiest_loads
from llmviewer.calibrate.timer import PreparedKernel

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
#: Elements that share a scale, and tokens of a page, of each engine's default.
BLOCK, PAGE, SGLANG_PAGE = 128, 16, 1
#: Bytes that FlashInfer's wrappers take as workspace.
WORKSPACE = 128 * 2**20
#: Query heads of a key from which FlashInfer's decoding uses tensor cores, as SGLang chooses.
GROUPED = 4
HEAD_DIM, EPSILON = 128, 1e-6
#: Elements of a latent without its rotated part (DeepSeek-V3, arXiv 2412.19437).
RANK, QUERY_WIDTH = 512, 192

Columns = Mapping[str, Any]


def build(columns: Columns, buffers: Buffers) -> PreparedKernel:
    """The kernel that the columns `engine` and `kernel` name."""
    name = f"{columns['engine'].partition(' ')[0]}.{columns['kernel'].partition(' ')[0]}"
    module, _, attribute = KERNELS[name].function.partition(":")
    owner = importlib.import_module(module)
    if not hasattr(owner, attribute):
        raise UnsupportedError(f"{columns['engine']} has no {attribute} in {module}")
    return CALLS[name](owner, getattr(owner, attribute), columns, buffers)


def _product(
    multiply: Callable[[torch.Tensor, torch.Tensor], Any], columns: Columns, buffers: Buffers,
    stored: torch.dtype, shape: tuple[int, ...], taken: torch.dtype = BF16,
) -> PreparedKernel:  # fmt: skip
    """Cold weights of a shape and a warm input, which `multiply` converts first where the engine does."""
    weights = buffers.rotating(stored, shape)
    x = buffers.random(taken, (columns["m"], columns["k"]))
    return weights.kernel(lambda i: multiply(x, weights.tensors[i][0]))


def _vllm_fp8(ops: Any, product: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    """Scales of rows, found for every input."""
    scales = torch.ones((1, columns["n"]), device=buffers.kind)

    def multiply(x: torch.Tensor, weight: torch.Tensor) -> Any:
        narrow, of_rows = ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
        return product(narrow, weight.t(), of_rows, scales, BF16)

    return _product(multiply, columns, buffers, FP8, (columns["n"], columns["k"]))


def _sglang_fp8(ops: Any, product: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    narrow = buffers.empty(FP8, (columns["m"], columns["k"]))
    of_rows, scales = (torch.ones((columns[name], 1), device=buffers.kind) for name in "mn")

    def multiply(x: torch.Tensor, weight: torch.Tensor) -> Any:
        ops.sgl_per_token_quant_fp8(x, narrow, of_rows)
        return product(narrow, weight.t(), of_rows, scales, BF16)

    return _product(multiply, columns, buffers, FP8, (columns["n"], columns["k"]))


def _fp4(ops: Any, product: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    """Scales of 16 elements in tiles of 128 x 4, and one of the tensor; the input's are found for every input."""
    n, k = columns["n"], columns["k"]
    one = torch.ones(1, device=buffers.kind)
    scales = fp8.tiles("nvfp4", n, k, buffers.kind)

    def multiply(x: torch.Tensor, weight: torch.Tensor) -> Any:
        narrow, of_blocks = ops.scaled_fp4_quant(x, one)
        return product(narrow, weight, of_blocks, scales, one, BF16)

    return _product(multiply, columns, buffers, torch.uint8, (n, k // 2))


def _marlin(ops: Any, product: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    """Weights in tiles of 16 along k, eight to a word; a 16-bit scale per 128 of them."""
    m, n, k = (columns[name] for name in "mnk")
    kind = importlib.import_module("vllm.scalar_type").scalar_types.uint4b8
    units = torch.cuda.get_device_properties(0).multi_processor_count if buffers.kind == "cuda" else 1
    workspace = torch.zeros(units, dtype=torch.int32, device=buffers.kind)
    scales = buffers.random(BF16, (k // BLOCK, n))

    def multiply(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return product(
            x, None, weight, None, scales, None, None, None, workspace, kind, m, n, k, use_fp32_reduce=True
        )  # fmt: skip

    return _product(multiply, columns, buffers, torch.int32, (k // 16, n * 2))


def _aiter_fp8(ops: Any, product: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    """Inputs are quantized before, as in aiter's own tables; the fp8 of MI300 has another zero."""
    stored = importlib.import_module("aiter").dtypes.fp8
    m, n, k = (columns[name] for name in "mnk")
    blocks = columns["dtype"] == "fp8_block"
    shapes = ((m, k // BLOCK), (-(-n // BLOCK), k // BLOCK)) if blocks else ((m, 1), (n, 1))
    one, other = (torch.ones(shape, device=buffers.kind) for shape in shapes)
    return _product(
        lambda x, weight: product(x, weight, one, other, dtype=BF16), columns, buffers, stored, (n, k), stored
    )


def _heads(columns: Columns) -> tuple[int, ...]:
    return tuple(columns[name] for name in ("batch", "heads", "kv_heads", "head_dim"))


def _vllm_version(owner: Any, columns: Columns) -> int:
    """FlashAttention-3 where it runs, as vLLM chooses; Raises UnsupportedError for what earlier ones lack."""
    version = 3 if owner.is_fa_version_supported(3) else 2
    if version == 2 and (columns["kv_dtype"] == "fp8" or "sinks" in columns["kernel"]):
        raise UnsupportedError("an 8-bit cache and sinks need FlashAttention-3, which needs compute capability 9.x")
    return version


def _vllm_decode(owner: Any, attend: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    """Pages of 16 tokens; queries of an 8-bit cache are converted as vLLM does; `sinks`: one more score per head."""
    batch, heads, kv_heads, dim = _heads(columns)
    stored = DTYPES[columns["kv_dtype"]]
    options: dict[str, Any] = {"fa_version": _vllm_version(owner, columns), "causal": True}
    if columns["window"]:
        options["window_size"] = [columns["window"] - 1, 0]
    if stored is FP8:
        one = torch.ones((batch, kv_heads), device=buffers.kind)
        options |= {"q_descale": one, "k_descale": one, "v_descale": one}
    if "sinks" in columns["kernel"]:
        options["s_aux"] = buffers.random(BF16, (heads,))
    cache, table, used = pages(columns, buffers, PAGE, stored)
    q, first = buffers.random(BF16, (batch, heads, dim)), starts(batch, 1, buffers.kind)

    def run(i: int) -> Any:
        k, v = cache.tensors[i]
        return attend(
            q.to(stored), k, v, max_seqlen_q=1, cu_seqlens_q=first, max_seqlen_k=columns["context"],
            seqused_k=used, block_table=table, **options,
        )  # fmt: skip

    return cache.kernel(run)


def _sglang_decode(owner: Any, attend: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    batch, heads, _, dim = _heads(columns)
    window = (columns["window"] - 1, 0) if columns["window"] else (-1, -1)
    cache, table, used = pages(columns, buffers, SGLANG_PAGE, BF16)
    q = buffers.random(BF16, (batch, 1, heads, dim))
    options = {"cache_seqlens": used, "page_table": table, "causal": True, "window_size": window}
    return cache.kernel(lambda i: attend(q, *cache.tensors[i], **options))


def _prompt(owner: Any, attend: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    """Packed sequences; vLLM's call and SGLang's differ in the version that the former takes."""
    batch, heads, kv_heads, dim = _heads(columns)
    seq = columns["seq"]
    window = [columns["window"] - 1, 0] if columns["window"] else [-1, -1]
    keys = buffers.rotating(BF16, *[(batch * seq, kv_heads, dim)] * 2)
    q, first = buffers.random(BF16, (batch * seq, heads, dim)), starts(batch, seq, buffers.kind)
    options = {"fa_version": _vllm_version(owner, columns)} if columns["engine"].startswith("vllm") else {}

    def run(i: int) -> Any:
        k, v = keys.tensors[i]
        return attend(
            q, k, v, cu_seqlens_q=first, cu_seqlens_k=first, max_seqlen_q=seq, max_seqlen_k=seq, causal=True,
            window_size=window, **options,
        )  # fmt: skip

    return keys.kernel(run)


def _flashinfer(wrapper: Any, buffers: Buffers, *layout: str, **options: Any) -> Any:
    return wrapper(torch.zeros(WORKSPACE, dtype=torch.uint8, device=buffers.kind), *layout, **options)


def _flashinfer_decode(owner: Any, wrapper: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    batch, heads, kv_heads, dim = _heads(columns)
    stored = DTYPES[columns["kv_dtype"]]
    cache, table, used = pages(columns, buffers, PAGE, stored)
    made = _flashinfer(wrapper, buffers, "NHD", use_tensor_cores=heads >= GROUPED * kv_heads)
    made.plan(
        starts(batch, table.shape[1], buffers.kind), table.flatten(), (used - 1) % PAGE + 1, heads, kv_heads, dim, PAGE,
        window_left=columns["window"] - 1, q_data_type=BF16, kv_data_type=stored,
    )  # fmt: skip
    q = buffers.random(BF16, (batch, heads, dim))
    return cache.kernel(lambda i: made.run(q, cache.tensors[i]))


def _flashinfer_prompt(owner: Any, wrapper: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    batch, heads, kv_heads, dim = _heads(columns)
    seq, first = columns["seq"], starts(batch, columns["seq"], buffers.kind)
    keys = buffers.rotating(BF16, *[(batch * seq, kv_heads, dim)] * 2)
    made = _flashinfer(wrapper, buffers, "NHD")
    made.plan(
        first, first, heads, kv_heads, dim, causal=True, window_left=columns["window"] - 1, q_data_type=BF16,
        kv_data_type=BF16,
    )  # fmt: skip
    q = buffers.random(BF16, (batch * seq, heads, dim))
    return keys.kernel(lambda i: made.run(q, *keys.tensors[i]))


def _flashinfer_latent(owner: Any, wrapper: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    """All heads attend to one latent and its rotated part, which are stored apart; pages of 16 tokens."""
    batch, heads, _, width = _heads(columns)
    rotated = width - RANK
    table, used = page_table(batch, columns["context"], PAGE, buffers.kind)
    latent = buffers.rotating(BF16, *((table.numel(), PAGE, part) for part in (RANK, rotated)))
    made = _flashinfer(wrapper, buffers)
    made.plan(
        starts(batch, 1, buffers.kind), starts(batch, table.shape[1], buffers.kind), table.flatten(), used, heads,
        RANK, rotated, PAGE, False, QUERY_WIDTH**-0.5, BF16, BF16,
    )  # fmt: skip
    q, rope = (buffers.random(BF16, (batch, heads, part)) for part in (RANK, rotated))
    return latent.kernel(lambda i: made.run(q, rope, *latent.tensors[i]))


def _vllm_experts(owner: Any, layer: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    """Every token and the experts that it chose; conversions of inputs in 8 bits are in the call."""
    experts, hidden, inner = columns["experts"], columns["hidden"], columns["inter"] // columns["tp"]
    loads = busiest_loads(columns["tokens"], experts, columns["topk"], 1, columns["routing"])
    chosen = moe.choice(loads, columns["tokens"], BF16, buffers)
    stored = BF16 if columns["dtype"] == "bfloat16" else FP8
    weights = buffers.rotating(stored, (experts, 2 * inner, hidden), (experts, hidden, inner))
    x = buffers.random(BF16, (columns["tokens"], hidden))
    scores, ids = chosen.scores.squeeze(1).float(), chosen.experts.to(torch.int32)
    options = {}
    if stored is FP8:
        config = importlib.import_module("vllm.model_executor.layers.fused_moe.config")
        blocks = columns["dtype"] == "fp8_block"
        shapes = [(experts, -(-rows // BLOCK), -(-depth // BLOCK)) if blocks else (experts,)
                  for rows, depth in ((2 * inner, hidden), (hidden, inner))]  # fmt: skip
        one, other = (torch.ones(shape, device=buffers.kind) for shape in shapes)
        options["quant_config"] = config.fp8_w8a8_moe_quant_config(
            w1_scale=one, w2_scale=other, **({"block_shape": [BLOCK, BLOCK]} if blocks else {})
        )
    return PreparedKernel(
        run=lambda i: layer(x, *weights.tensors[i], scores, ids, **options),
        copies=len(weights),
        rotated_bytes=weights.total_bytes * sum(load > 0 for load in loads) / len(loads),
    )


def _rows(columns: Columns, buffers: Buffers, call: Callable[[torch.Tensor], Any], parts: int = 1) -> PreparedKernel:
    """Cold rows of `parts` widths."""
    x = buffers.rotating(BF16, (columns["tokens"], parts * columns["width"]))
    return x.kernel(lambda i: call(x.tensors[i][0]))


def _norm(owner: Any, norm: Any, columns: Columns, buffers: Buffers, *, into: bool = False) -> PreparedKernel:
    """into: the output is the first argument."""
    weight = buffers.random(BF16, (columns["width"],))
    y = buffers.empty(BF16, (columns["tokens"], columns["width"]))
    return _rows(columns, buffers, lambda x: norm(*((y,) if into else ()), x, weight, EPSILON))


def _act(owner: Any, act: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    y = buffers.empty(BF16, (columns["tokens"], columns["width"]))
    return _rows(columns, buffers, lambda x: act(x, y), parts=2)


def _quantize(owner: Any, quantize: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    return _rows(columns, buffers, lambda x: quantize(x, use_per_token_if_dynamic=True))


def _rope(owner: Any, rotate: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    """In place; a quarter of each row are keys."""
    tokens, keys = columns["tokens"], columns["width"] // 4
    positions = torch.arange(tokens, device=buffers.kind)
    table = buffers.random(BF16, (tokens, HEAD_DIM))
    return _rows(
        columns, buffers, lambda x: rotate(positions, x[:, keys:], x[:, :keys], min(HEAD_DIM, keys), table, True)
    )


def _cache_write(owner: Any, write: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    """Keys and values of a row are its halves; pages of 16 tokens."""
    tokens, heads = columns["tokens"], max(columns["width"] // 2 // HEAD_DIM, 1)
    dim = columns["width"] // 2 // heads
    stored = torch.uint8 if columns["dtype"] == "fp8" else BF16
    count = -(-SLOTS * tokens // PAGE)
    keys, values = (buffers.empty(stored, (count, PAGE, heads, dim)) for _ in range(2))
    slots = torch.randperm(count * PAGE, device=buffers.kind)[:tokens]
    one = torch.ones(1, device=buffers.kind)
    name = "fp8" if stored is torch.uint8 else "auto"

    def call(x: torch.Tensor) -> Any:
        k, v = (part.view(tokens, heads, dim) for part in x.view(tokens, 2, -1).unbind(1))
        return write(k, v, keys, values, slots, name, one, one)

    return _rows(columns, buffers, call)


def _sample(owner: Any, choose: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    return _rows(columns, buffers, lambda x: choose(torch.softmax(x, -1, dtype=torch.float32), TOP_P))


def _state_update(owner: Any, update: Any, columns: Columns, buffers: Buffers) -> PreparedKernel:
    """One token of each sequence; time steps, decay and skip are one number of a head, as engines expand them."""
    batch, heads, dim, state, groups = (columns[name] for name in ("batch", "heads", "head_dim", "state", "groups"))
    states = buffers.rotating(BF16, (batch, heads, dim, state))
    x, y = buffers.random(BF16, (batch, heads, dim)), buffers.empty(BF16, (batch, heads, dim))
    steps = buffers.random(BF16, (batch, heads, 1)).expand(-1, -1, dim)
    decay = (-torch.rand((heads, 1, 1), device=buffers.kind)).expand(-1, dim, state)
    skip, bias = (torch.rand((heads, 1), device=buffers.kind).expand(-1, dim) for _ in range(2))
    b, c = (buffers.random(BF16, (batch, groups, state)) for _ in range(2))

    def run(i: int) -> Any:
        return update(
            states.tensors[i][0], x, steps, decay, b, c, skip, z=None, dt_bias=bias, dt_softplus=True, out=y
        )  # fmt: skip

    return states.kernel(run)


#: Name in calibrate/libraries.py -> (its module, the function, columns, buffers) -> prepared kernel.
CALLS: dict[str, Callable[[Any, Any, Columns, Buffers], PreparedKernel]] = {
    "vllm.cutlass_scaled_mm": _vllm_fp8,
    "vllm.cutlass_scaled_fp4_mm": _fp4,
    "vllm.marlin_gemm": _marlin,
    "vllm.flash_attn": _vllm_decode,
    "vllm.flash_attn_fp8": _vllm_decode,
    "vllm.flash_attn_sinks": _vllm_decode,
    "vllm.flash_attn_prompt": _prompt,
    "vllm.fused_experts_triton": _vllm_experts,
    "vllm.fused_experts_triton_fp8": _vllm_experts,
    "vllm.fused_experts_triton_block": _vllm_experts,
    "vllm.rms_norm": partial(_norm, into=True),
    "vllm.scaled_fp8_quant": _quantize,
    "vllm.rotary_embedding": _rope,
    "vllm.reshape_and_cache_flash": _cache_write,
    "vllm.selective_state_update": _state_update,
    "sglang.fp8_scaled_mm": _sglang_fp8,
    "sglang.cutlass_scaled_fp4_mm": _fp4,
    "sglang.flash_attn": _sglang_decode,
    "sglang.flash_attn_prompt": _prompt,
    "sglang.rmsnorm": _norm,
    "sglang.silu_and_mul": _act,
    "flashinfer.paged": _flashinfer_decode,
    "flashinfer.paged_fp8": _flashinfer_decode,
    "flashinfer.ragged": _flashinfer_prompt,
    "flashinfer.mla_paged": _flashinfer_latent,
    "flashinfer.rmsnorm": _norm,
    "flashinfer.silu_and_mul": _act,
    "flashinfer.top_p": _sample,
    "flashinfer.selective_state_update": _state_update,
    "aiter.gemm_a8w8": _aiter_fp8,
    "aiter.gemm_a8w8_blockscale": _aiter_fp8,
    "aiter.rmsnorm2d_fwd": _norm,
}
