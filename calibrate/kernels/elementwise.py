"""Memory-bound operations between GEMMs: eager torch kernels, and chains compiled into one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from llmviewer.calibrate.buffers import Buffers, Shape
from llmviewer.calibrate.kernels import llama
from llmviewer.calibrate.kernels.dtypes import DTYPES, UnsupportedError
from llmviewer.calibrate.timer import PreparedKernel

#: Rows of the embedding table.
VOCABULARY_SIZE = 32000
#: Token lists that embedding lookups rotate through.
TOKEN_LISTS = 64
#: Largest head dimension for RoPE.
MAX_HEAD_DIM = 128

Tensors = tuple[torch.Tensor, ...]


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """Inputs are cold; `moved` of the row counts tensors of tokens x width read and written."""
    tokens, width = columns["tokens"], columns["width"]
    dtype = torch.bfloat16 if columns["dtype"] == "fp8" else DTYPES[columns["dtype"]]
    return OPERATIONS[columns["op"], columns["kernel"]](buffers, dtype, (tokens, width))


def _rotating(make: MakeKernel, inputs: int) -> Callable[[Buffers, torch.dtype, Shape], PreparedKernel]:
    """Builder of a kernel over `inputs` rotating tensors of tokens x width."""

    def work(buffers: Buffers, dtype: torch.dtype, shape: Shape) -> PreparedKernel:
        rotation = buffers.rotating(dtype, *[shape] * inputs)
        run = make(buffers, dtype, shape)
        return rotation.kernel(lambda i: run(rotation.tensors[i]))

    return work


MakeKernel = Callable[[Buffers, torch.dtype, Shape], Callable[[Tensors], object]]


def _norm(buffers: Buffers, dtype: torch.dtype, shape: Shape) -> Callable[[Tensors], object]:
    weight = buffers.random(dtype, shape[1:])
    return lambda x: F.rms_norm(x[0], shape[1:], weight, 1e-5)


def _add(buffers: Buffers, dtype: torch.dtype, shape: Shape) -> Callable[[Tensors], object]:
    y = buffers.empty(dtype, shape)
    return lambda x: torch.add(x[0], x[1], out=y)


def _softmax(buffers: Buffers, dtype: torch.dtype, shape: Shape) -> Callable[[Tensors], object]:
    y = buffers.empty(dtype, shape)
    return lambda x: torch.softmax(x[0], -1, out=y)


def _to_fp8(buffers: Buffers, dtype: torch.dtype, shape: Shape) -> Callable[[Tensors], object]:
    y = buffers.empty(torch.float8_e4m3fn, shape)
    return lambda x: y.copy_(x[0])


def _swiglu(buffers: Buffers, dtype: torch.dtype, shape: Shape) -> Callable[[Tensors], object]:
    return lambda x: F.silu(x[0]).mul_(x[1])


def _rope(buffers: Buffers, dtype: torch.dtype, shape: Shape) -> Callable[[Tensors], object]:
    """RoPE on queries and keys, and cache writes of keys and values, with the eager kernels of a layer.

    A quarter of each row are keys; values of the same size are a separate tensor.
    """
    tokens, width = shape
    keys = width // 4
    head = min(MAX_HEAD_DIM, keys)
    cos, sin = (buffers.random(dtype, (tokens, head)) for _ in range(2))
    cache = buffers.empty(dtype, (2, 1, keys // head, tokens, head))
    values = buffers.random(dtype, (1, tokens, keys))

    def run(x: Tensors) -> torch.Tensor:
        row = x[0][None]
        cache[0][:] = llama.apply_rope(llama.split(row[..., :keys], head), cos, sin)
        cache[1][:] = llama.split(values, head)
        return llama.apply_rope(llama.split(row[..., keys:], head), cos, sin)

    return run


def _compiled(plain: Callable[..., torch.Tensor], rows: int) -> MakeKernel:
    """Compile `plain` into one kernel; it has `rows` further inputs of half a row."""

    def make(buffers: Buffers, dtype: torch.dtype, shape: Shape) -> Callable[[Tensors], object]:
        need_compiler(buffers.kind)
        extra = [buffers.random(dtype, (shape[1] // 2,)) for _ in range(rows)]
        compiled = torch.compile(plain, dynamic=True)
        return lambda x: compiled(*x, *extra)

    return make


def need_compiler(kind: str) -> None:
    """Raise UnsupportedError where torch.compile has no compiler."""
    import importlib.util
    import shutil

    if not (importlib.util.find_spec("triton") if kind == "cuda" else shutil.which("g++")):
        raise UnsupportedError("torch.compile needs Triton (CUDA) or a C++ compiler")


def _swiglu_plain(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def _rope_plain(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _embedding(buffers: Buffers, dtype: torch.dtype, shape: Shape) -> PreparedKernel:
    """Embedding lookup, each call with the next of TOKEN_LISTS token lists."""
    tokens, width = shape
    tables = buffers.rotating(dtype, (VOCABULARY_SIZE, width))
    lists = [torch.randint(0, VOCABULARY_SIZE, (tokens,), device=buffers.kind) for _ in range(TOKEN_LISTS)]
    y = buffers.empty(dtype, (tokens, width))
    return PreparedKernel(
        run=lambda i: torch.index_select(tables.tensors[i % len(tables)][0], 0, lists[i], out=y),
        copies=TOKEN_LISTS,
        rotated_bytes=float(TOKEN_LISTS * tokens * width * dtype.itemsize),
    )


#: (op, kernel) -> builder of the kernel over tokens x width.
OPERATIONS: dict[tuple[str, str], Callable[[Buffers, torch.dtype, Shape], PreparedKernel]] = {
    ("input_layernorm", "rms_norm"): _rotating(_norm, 1),
    ("mlp_act", "eager"): _rotating(_swiglu, 2),
    ("mlp_act", "compiled"): _rotating(_compiled(_swiglu_plain, 0), 2),
    ("attn_rope", "eager"): _rotating(_rope, 1),
    ("attn_rope", "compiled"): _rotating(_compiled(_rope_plain, 2), 1),
    ("add", "add"): _rotating(_add, 2),
    ("softmax", "softmax"): _rotating(_softmax, 1),
    ("emb", "index_select"): _embedding,
    ("scale_matrix", "copy"): _rotating(_to_fp8, 1),
}
