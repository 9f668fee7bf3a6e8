"""Shapes to measure: (n, k) and attention heads of real models, over token counts and lengths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from llmviewer import models
from llmviewer.calibrate import libraries, shapes
from llmviewer.calibrate.fit import MIN_ROWS
from llmviewer.calibrate.kernel_case import KernelCase
from llmviewer.calibrate.rows.gemm import ADAPTER_OP
from llmviewer.calibrate.rows.routing import busiest_device
from llmviewer.calibrate.sizes import RunSize
from llmviewer.calibrate.tables import TABLES

#: Share of a run's time for each table; unused time goes to later tables.
SHARES = {
    "launch": 0.02,
    "copy": 0.07,
    "block": 0.08,
    "model": 0.11,
    "gemm": 0.27,
    "attention_prefill": 0.10,
    "attention_decode": 0.12,
    "attention_encoder": 0.04,
    "moe": 0.06,
    "elementwise": 0.11,
    "recurrence": 0.02,
    "serving": 0.03,
    "host": 0.03,
    "allreduce": 0.02,
}
#: config.json fields that define a block or model.
CONFIG_FIELDS = (
    "model_type",
    "architectures",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
)
#: (op, kernel) of elementwise rows -> (kernels launched, tensors of tokens x width read and written).
ELEMENTWISE_KERNELS: dict[tuple[str, str], tuple[int, int]] = {
    ("input_layernorm", "rms_norm"): (1, 2),
    ("add", "add"): (1, 3),
    ("mlp_act", "eager"): (2, 5),  # silu: in, out; multiply: in, in, out
    ("mlp_act", "compiled"): (1, 3),
    ("attn_rope", "eager"): (12, 11),  # five each for queries and keys (2, 1, 2, 2, 3), and two cache writes
    ("attn_rope", "compiled"): (1, 2),
    ("softmax", "softmax"): (1, 2),
    ("emb", "index_select"): (1, 2),
    ("scale_matrix", "copy"): (1, 2),  # 16 bit in, 8 bit out
}
#: torch's grouped product, which experts and several adapters take.
GROUPED = "torch._grouped_mm"
#: Bytes from which the host's own memory and disk are timed.
MIN_HOST_BYTES = 2**28
#: Formats of a cache that new keys and values are written to.
CACHE_DTYPES = ("bfloat16", "fp8")


def cases(size: RunSize, gpus: int = 1) -> list[KernelCase]:
    """All cases of a size, arranged; kernels of libraries that can be imported."""
    found = list(_all(size, gpus))
    if size.libraries:
        found += libraries.cases(found, libraries.installed(), size.windows)
    return arranged([case for case in found if case.flops <= size.max_flops])


def arranged(found: list[KernelCase]) -> list[KernelCase]:
    """Cases table by table; within a table, any prefix of the list is spread over all shapes.

    Each kind of kernel gets the shapes that a fit needs before the next kind: a run that ends early has whole kinds.
    Attention kernels of one shape follow each other: a fit takes the fastest.
    """
    order = {table: i for i, table in enumerate(SHARES)}
    kinds = list(dict.fromkeys(map(_kind, found)))
    first: dict[Hashable, int] = {}
    starts = [first.setdefault(_shape(case, i), i) for i, case in enumerate(found)]
    shapes_of: Counter[Hashable] = Counter()
    places: dict[int, tuple[int, int, int]] = {}
    for i in sorted(range(len(found)), key=lambda i: ((starts[i] * GOLDEN) % 1.0, i)):
        kind = _kind(found[i])
        shapes_of[kind] += starts[i] == i
        places[i] = (order[found[i].table], (shapes_of[kind] - 1) // MIN_ROWS, kinds.index(kind))
    return [found[i] for i in sorted(places, key=places.__getitem__)]


def _shape(case: KernelCase, at: int) -> Hashable:
    """Key of cases that are measured one after another: attention of one shape with every kernel of one fit."""
    columns = (value for name, value in case.columns.items() if name != "kernel")
    return (case.table, case.kernel, *columns) if case.table.startswith("attention") else at


def _kind(case: KernelCase) -> Hashable:
    """Cases that one fit describes: of one kernel and dtype; for other tables, all of the table."""
    if case.table not in TABLES:
        return case.table
    columns = case.columns
    chain = columns["kernel"] if case.table == "elementwise" or case.kernel == libraries.KERNEL else ""
    return (case.table, case.kernel, columns["dtype"], columns.get("op"), chain)


#: Any number of its multiples, modulo 1, are evenly spread over [0, 1).
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def _all(size: RunSize, gpus: int) -> Iterator[KernelCase]:
    yield from _launches(size)
    yield from _copies(size)
    yield from _blocks(size)
    yield from _linears(size)
    yield from _experts(size)
    yield from _attention(size)
    yield from _compiled(size)
    yield from _latent(size)
    yield from _encoders(size)
    yield from _expert_layers(size)
    yield from _elementwise(size)
    yield from _cache_writes(size)
    yield from samplers(size)
    yield from _recurrences(size)
    yield from _hosts(size)
    yield from _allreduces(size, gpus)


def _launches(size: RunSize) -> Iterator[KernelCase]:
    pairs = [("kernel", False), ("kernel_and_wait", False), *((("kernel", True),) if size.graphs else ())]
    pairs += [(op, graph) for op in size.launches for graph in ((False, True) if size.graphs else (False,))]
    for op, graph in pairs:
        yield KernelCase(table="launch", kernel="launch", columns={"op": op, "graph": graph, "dtype": "float32"})


def _copies(size: RunSize) -> Iterator[KernelCase]:
    for op, arrays in (("copy", 2), ("triad", 3), ("read", 1)):
        for each in size.copy_bytes:
            columns = {"op": op, "dtype": "float32", "bytes": each, "moved_bytes": arrays * each}
            yield KernelCase(table="copy", kernel="copy", columns=columns)


def _linears(size: RunSize) -> Iterator[KernelCase]:
    for shape in shapes.linears(size.models):
        for dtype in size.dtypes:
            for m in size.tokens:
                yield linear(dtype, m, shape.n, shape.k)
    for rank in size.adapter_ranks:
        for n, k in adapters(size.models[:1], rank):
            yield from (linear(size.dtypes[0], m, n, k) for m in size.tokens)
            yield from (several_adapters(size.dtypes[0], m, n, k) for m in size.tokens if m >= ADAPTERS)


def adapters(names: tuple[str, ...], rank: int) -> list[tuple[int, int]]:
    """(n, k) of the products with both factors of low-rank adapters of these models' layers."""
    shaped = [(shape.n, shape.k) for shape in shapes.linears(names)]
    return sorted({pair for n, k in shaped for pair in ((rank, k), (n, rank))})


def several_adapters(dtype: str, m: int, n: int, k: int) -> KernelCase:
    """Rows of ADAPTERS adapters, sorted by adapter, each times its factor [k, n]."""
    case = linear(dtype, m, n, k)
    columns = {**case.columns, "kernel": GROUPED, "op": ADAPTER_OP, "experts": ADAPTERS, "active": ADAPTERS}
    return replace(case, kernel="experts", columns=columns)


#: Adapters whose rows are in one product.
ADAPTERS = 8
#: dtype of gemm rows with a special kernel -> (name in calibrate.kernels, name in the table).
PRODUCTS = {
    "int8": ("int8", "torch._int_mm"),
    "fp8": ("fp8", "torch._scaled_mm"),
    "w4a16": ("int4", "torch._weight_int4pack_mm"),
    "fp8_rows": ("fp8", "torch._scaled_mm"),
    "fp8_block": ("fp8", "torch._scaled_mm"),
    "mxfp8": ("fp8", "torch._scaled_mm"),
    "nvfp4": ("fp8", "torch._scaled_mm"),
    "bfloat16_2of4": ("sparse", "torch._cslt_sparse_mm"),
    "fp8_2of4": ("sparse", "torch._cslt_sparse_mm"),
}
#: Weights per scale and zero point in w4a16.
GROUP = 128


def linear(dtype: str, m: int, n: int, k: int) -> KernelCase:
    """One linear layer, out[m, n] = in[m, k] x weight[k, n]."""
    kernel, name = PRODUCTS.get(dtype, ("linear", "torch.mm"))
    columns = {"dtype": dtype, "kernel": name, "m": m, "n": n, "k": k, "experts": 1, "active": 1}
    if dtype == "w4a16":
        columns["group"] = GROUP
    return KernelCase(table="gemm", kernel=kernel, columns=columns, flops=2.0 * m * n * k)


def _experts(size: RunSize) -> Iterator[KernelCase]:
    for shape in shapes.experts(size.expert_models):
        for m in size.expert_rows:
            for active in sorted({min(shape.experts, m), max(min(shape.experts // 4, m), 1)}):
                columns = {"dtype": "bfloat16", "kernel": GROUPED, "m": m, "n": shape.n, "k": shape.k}
                columns |= {"experts": shape.experts, "active": active}
                yield KernelCase(table="gemm", kernel="experts", columns=columns, flops=2.0 * m * shape.n * shape.k)


def heads_of(shape: shapes.Heads, dtype: str) -> dict[str, Any]:
    """Columns of attention heads without a window."""
    named = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
    return {"dtype": dtype, "kv_dtype": dtype, **named, "v_head_dim": shape.v_head_dim, "window": 0}


def prefill(kernel: str, columns: Mapping[str, Any], batch: int, seq: int, prefix: int = 0) -> KernelCase:
    """Causal attention of `seq` tokens over themselves and a cached prefix: a prompt, or draft tokens to verify.

    `sdpa_math` computes the full score matrix, so its FLOP count includes masked scores.
    """
    widths = columns["head_dim"] + columns["v_head_dim"]
    pairs = seq * (prefix + seq) if kernel.endswith("math") else seq * (prefix + (seq + 1) / 2)
    flops = 2.0 * batch * columns["heads"] * pairs * widths
    family = next((name for name in ("mla", "flex") if kernel.startswith(name)), "attention")
    named = {**columns, "kernel": kernel, "batch": batch, "seq": seq, "prefix": prefix}
    return KernelCase(table="attention_prefill", kernel=family, columns=named, flops=flops)


def decode(kernel: str, columns: Mapping[str, Any], batch: int, context: int) -> KernelCase:
    """Attention of one new token per sequence over `context` tokens, including itself."""
    widths = columns["head_dim"] + columns["v_head_dim"]
    flops = 2.0 * batch * columns["heads"] * context * widths
    family = next((name for name in ("mla", "varlen") if kernel.startswith(name)), "attention")
    named = {**columns, "kernel": kernel, "batch": batch, "context": context}
    return KernelCase(table="attention_decode", kernel=family, columns=named, flops=flops)


def _attention(size: RunSize) -> Iterator[KernelCase]:
    for shape in shapes.heads(size.attention_models):
        for dtype in size.attention_dtypes:
            for backend in size.backends:
                yield from (prefill(backend, heads_of(shape, dtype), b, s) for b, s in size.prompts)
                yield from (decode(backend, heads_of(shape, dtype), b, c) for b, c in size.caches)
                yield from (prefill(backend, heads_of(shape, dtype), b, n, c) for b, n, c in size.verified)
            for kernel in size.packed:
                for window in (0, *size.windows):
                    columns = heads_of(shape, dtype) | {"window": window}
                    yield from (decode(kernel, columns, b, c) for b, c in size.caches if c > window)


def _compiled(size: RunSize) -> Iterator[KernelCase]:
    """Prompts with sliding windows, and with sinks, of the first model alone: each shape is compiled."""
    for shape in shapes.heads(size.attention_models[:1]):
        columns = heads_of(shape, size.attention_dtypes[0])
        for window in size.prompt_windows:
            yield from (prefill("flex", columns | {"window": window}, b, s) for b, s in size.prompts if s > window)
        if size.prompt_windows:
            yield from (prefill("flex_sinks", columns, b, s) for b, s in size.prompts)


def _latent(size: RunSize) -> Iterator[KernelCase]:
    expanded, absorbed = shapes.latent_heads(size.latent_models)
    for backend in size.latent_backends:
        for shape in expanded:
            yield from (prefill(f"mla_{backend}", heads_of(shape, "bfloat16"), b, s) for b, s in size.prompts)
        for shape in absorbed:
            yield from (decode(f"mla_{backend}", heads_of(shape, "bfloat16"), b, c) for b, c in size.caches)


def _encoders(size: RunSize) -> Iterator[KernelCase]:
    for shape in shapes.encoder_heads(size.encoder_models):
        for dtype in size.attention_dtypes:
            for backend in size.backends:
                for batch, seq in size.images:
                    columns = {"dtype": dtype, "kernel": backend, "batch": batch, "seq": seq}
                    columns |= {"heads": shape.heads, "head_dim": shape.head_dim}
                    flops = 4.0 * batch * shape.heads * seq * seq * shape.head_dim
                    yield KernelCase(table="attention_encoder", kernel="encoder", columns=columns, flops=flops)


def _expert_layers(size: RunSize) -> Iterator[KernelCase]:
    for shape in shapes.expert_layers(size.expert_models):
        for tp, ep in size.expert_splits:
            for tokens in size.expert_tokens:
                for routing in size.routings:
                    for dtype in size.expert_dtypes:
                        yield expert_layer(shape, tokens, tp, ep, routing, dtype)


def expert_layer(
    shape: shapes.ExpertLayer, tokens: int, tp: int, ep: int, routing: str, dtype: str = "bfloat16"
) -> KernelCase:
    """Routed experts of one layer on the busiest of `ep` devices, each expert divided over `tp` devices."""
    kernel = "torch._scaled_grouped_mm" if dtype == "fp8" else GROUPED
    columns = {"dtype": dtype, "kernel": kernel, "tokens": tokens, "hidden": shape.hidden}
    columns |= {"inter": shape.inter, "topk": shape.topk, "experts": shape.experts}
    columns |= {"tp": tp, "ep": ep, "routing": routing}
    rows, _ = busiest_device(tokens, shape.experts, shape.topk, ep, routing)
    flops = 6.0 * rows * shape.hidden * shape.inter / tp
    return KernelCase(table="moe", kernel="moe", columns=columns, flops=flops)


def _elementwise(size: RunSize) -> Iterator[KernelCase]:
    for op, kernel in ELEMENTWISE_KERNELS:
        if kernel == "compiled" and not size.compiled:
            continue
        dtype = "fp8" if op == "scale_matrix" else size.dtypes[0]
        for width in size.widths:
            yield from (elementwise(op, kernel, dtype, tokens, width) for tokens in size.tokens)


def elementwise(op: str, kernel: str, dtype: str, tokens: int, width: int) -> KernelCase:
    """One memory-bound operation over tokens x width."""
    kernels, tensors = ELEMENTWISE_KERNELS[op, kernel]
    columns = {"op": op, "kernel": kernel, "dtype": dtype, "tokens": tokens, "width": width}
    columns |= {"kernels": kernels, "moved": tensors}
    return KernelCase(table="elementwise", kernel="elementwise", columns=columns)


def _cache_writes(size: RunSize) -> Iterator[KernelCase]:
    """Writes of new keys and values, both of a layer in one row, for every number of tokens."""
    for width in sorted({2 * shape.kv_heads * shape.head_dim for shape in shapes.heads(size.attention_models)}):
        for dtype in CACHE_DTYPES:
            for tokens in size.tokens if size.compiled else ():
                columns = {"op": "cache_write", "kernel": "index_copy", "dtype": dtype, "tokens": tokens}
                columns |= {"width": width, "kernels": 1 if dtype == "bfloat16" else 2, "moved": 2}
                yield KernelCase(table="elementwise", kernel="serving", columns=columns)


def samplers(size: RunSize) -> Iterator[KernelCase]:
    """Choice of the next token of `tokens` sequences from logits over `width` words."""
    for op in size.samplers:
        for width in size.vocabularies:
            for tokens in size.sequences:
                columns = {"op": op, "kernel": "eager", "dtype": "bfloat16", "tokens": tokens, "width": width}
                yield KernelCase(table="serving", kernel="serving", columns=columns)


def _recurrences(size: RunSize) -> Iterator[KernelCase]:
    """One token of `batch` sequences."""
    for shape in shapes.recurrences(size.recurrent_models) if size.compiled else ():
        yield from (recurrence(shape, size.dtypes[0], batch) for batch in size.recurrent_batches)


def recurrence(shape: shapes.RecurrentHeads, dtype: str, batch: int) -> KernelCase:
    """One token of each of `batch` sequences through a recurrence, compiled."""
    columns = {"op": shape.op, "kernel": "compiled", "dtype": dtype, "batch": batch, "heads": shape.heads}
    columns |= {"head_dim": shape.head_dim, "state": shape.state, "groups": shape.groups}
    return KernelCase(table="recurrence", kernel="recurrence", columns=columns)


def _hosts(size: RunSize) -> Iterator[KernelCase]:
    for each in size.host_bytes:
        for op in ("h2d", "d2h") if size.graphs else ():
            for pinned in (True, False):
                columns = {"op": op, "pinned": pinned, "bytes": each, "moved_bytes": each}
                yield KernelCase(table="host", kernel="host", columns=columns)
        for op, arrays in (("memory_copy", 2), ("memory_read", 1), ("disk_write", 1), ("disk_read", 1)):
            if each >= MIN_HOST_BYTES:  # smaller ones stay in the caches of the processor and the disk
                columns = {"op": op, "pinned": False, "bytes": each, "moved_bytes": arrays * each}
                yield KernelCase(table="host", kernel="host", columns=columns)


def _allreduces(size: RunSize, gpus: int) -> Iterator[KernelCase]:
    for count in (n for n in (2, 4, 8) if n <= gpus):
        for each in size.allreduce_bytes:
            columns = {"op": "all_reduce", "dtype": "bfloat16", "impl": "nccl", "gpus": count, "bytes": each}
            yield KernelCase(table="allreduce", kernel="allreduce", columns=columns)


def _blocks(size: RunSize) -> Iterator[KernelCase]:
    for table, named in (("block", size.blocks), ("model", size.whole_models)):
        for name, layers in named:
            for dtype in size.block_dtypes:
                config = llama_config(name, layers, dtype)
                yield from pass_cases(table, {"model": name, "dtype": dtype, "config": config}, size)


def pass_cases(table: str, columns: Mapping[str, Any], size: RunSize) -> Iterator[KernelCase]:
    """Prefill and decode of the model in `columns`, with and without a CUDA graph."""
    config = columns["config"]
    q = config["num_attention_heads"] * (
        config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    )
    wide = config["intermediate_size"] * config.get("num_experts_per_tok", 1)
    weights = config["num_hidden_layers"] * config["hidden_size"] * (3 * wide + 2 * q)
    passes: Iterable[tuple[str, str, int, int]] = (
        *(("prefill", "seq", b, s) for b, s in size.block_prompts),
        *(("decode", "context", b, c) for b, c in size.block_caches),
    )
    for stage, length, batch, tokens in passes:
        for graph in (True, False) if size.graphs else (False,):
            kernel = "cuda_graph" if graph else "eager"
            named = {**columns, "kernel": kernel, "graph": graph, "stage": stage, "batch": batch, length: tokens}
            new = tokens if stage == "prefill" else 1
            yield KernelCase(table=table, kernel=table, columns=named, flops=2.0 * batch * new * weights)


def llama_config(name: str, layers: int, dtype: str) -> dict[str, Any]:
    """config.json of a Llama-type model with the widths of `name` and `layers` layers."""
    card = models.read(name).config
    config = {field: card[field] for field in CONFIG_FIELDS if card.get(field) is not None}
    config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": layers}
    config.setdefault("tie_word_embeddings", False)
    return config | {"torch_dtype": dtype}
