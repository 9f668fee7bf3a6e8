"""`make docs`: writes the tables of measured kernels and of libraries in docs/guide/calibration.md."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pages import rewrite

from llmviewer.calibrate import libraries, plan, sizes
from llmviewer.calibrate.tables import TABLES

PAGE = Path(__file__).resolve().parent / "guide" / "calibration.md"
#: Comments before the tables.
KERNELS_MARK, LIBRARIES_MARK = "table of measured kernels", "table of libraries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Kernels that are priced, or whose rates are used, and what measures them.

    families: those of timing/kernels that price them; none for rates of the chip, the host and the engine.
    torch: names in calibrate/kernels.  engines: names in calibrate/libraries.py.  table: that of their rows.
    dtypes: those of its rows, where the kernel has others too.
    """

    what: str
    dtypes: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    table: str = ""
    needs: str = ""


_DECODE, _PROMPT = ("attention_decode",), ("attention_prefill",)
_PROMPTS = ("vllm.flash_attn_prompt", "sglang.flash_attn_prompt", "flashinfer.ragged")
ENTRIES = (
    Entry(what="products in 16 and 32 bits", families=("gemm",), torch=("linear",), table="gemm"),
    Entry(
        what="fp8 products, scales of tensors and of rows", dtypes=("fp8", "fp8_rows"), families=("gemm",),
        torch=("fp8",), table="gemm",
        engines=("vllm.cutlass_scaled_mm", "sglang.fp8_scaled_mm", "aiter.gemm_a8w8"), needs="Ada or later",
    ),
    Entry(
        what="fp8 products, scales of 1 x 128 and 128 x 128 blocks", dtypes=("fp8_block",), families=("gemm",),
        torch=("fp8",), table="gemm",
        engines=("aiter.gemm_a8w8_blockscale",), needs="Hopper or later; DeepGEMM of vLLM and SGLang: no call here yet",
    ),
    Entry(
        what="nvfp4 and mxfp8 products", dtypes=("nvfp4", "mxfp8"), families=("gemm",), torch=("fp8",), table="gemm",
        engines=("vllm.cutlass_scaled_fp4_mm", "sglang.cutlass_scaled_fp4_mm"), needs="Blackwell, torch 2.8",
    ),
    Entry(
        what="mxfp4 products", families=("gemm",),
        needs="an MI355X ([tables of aiter](#tables-of-aiter)); torch's for Blackwell depends on how it was built",
    ),
    Entry(what="int8 products", families=("gemm",), torch=("int8",), table="gemm"),
    Entry(
        what="products with 4-bit weights", families=("gemm",), torch=("int4",), table="gemm",
        engines=("vllm.marlin_gemm",), needs="Machete and AWQ: no call here yet",
    ),
    Entry(
        what="products with 2:4-sparse weights", families=("gemm",), torch=("sparse",), table="gemm",
        needs="Ampere or later, cuSPARSELt",
    ),
    Entry(
        what="low-rank adapters, one and several at once", families=("gemm",), table="gemm",
        torch=("linear", "experts"),
        needs="the engines' own (Punica): no call here yet",
    ),
    Entry(
        what="routed experts in 16 bits; their products alone", families=("experts",), torch=("moe", "experts"),
        table="moe", engines=("vllm.fused_experts_triton",),
    ),
    Entry(
        what="routed experts in fp8", dtypes=("fp8",), families=("experts",), torch=("moe",), table="moe",
        engines=("vllm.fused_experts_triton_fp8", "vllm.fused_experts_triton_block"), needs="Hopper or later",
    ),
    Entry(
        what="routed experts in mxfp4, nvfp4, int4", families=("experts",),
        needs="weights that vLLM, SGLang or TensorRT-LLM shuffle when they load them; fitted from others' tables",
    ),
    Entry(
        what="attention of prompts", families=_PROMPT, torch=("attention",), table="attention_prefill",
        engines=_PROMPTS,
    ),
    Entry(
        what="prompts with sliding windows", families=_PROMPT, torch=("flex",), table="attention_prefill",
        engines=_PROMPTS, needs="torch's: a compiler, and `--full` or `--model`",
    ),
    Entry(
        what="attention with sinks", families=(*_PROMPT, *_DECODE), torch=("flex",), table="attention_prefill",
        engines=("vllm.flash_attn_sinks",), needs="torch's: CUDA, `--full`; vLLM's: Hopper",
    ),
    Entry(what="vision towers", families=_PROMPT, torch=("encoder",), table="attention_encoder"),
    Entry(what="latent attention of prompts, expanded", families=_PROMPT, torch=("mla",), table="attention_prefill"),
    Entry(what="decode over a whole cache", families=_DECODE, torch=("attention", "varlen"), table="attention_decode"),
    Entry(
        what="decode over pages, with sliding windows", families=_DECODE, torch=("varlen",), table="attention_decode",
        engines=("vllm.flash_attn", "sglang.flash_attn", "flashinfer.paged"), needs="pages in torch: 2.13",
    ),
    Entry(
        what="decode over an 8-bit cache", families=_DECODE, table="attention_decode",
        engines=("vllm.flash_attn_fp8", "flashinfer.paged_fp8"), needs="vllm on Hopper, or flashinfer",
    ),
    Entry(
        what="decode of latent attention, absorbed", families=_DECODE, torch=("mla",), table="attention_decode",
        engines=("flashinfer.mla_paged",),
        needs="FlashMLA: no call here yet; torch's takes three to eight times as long",
    ),
    Entry(
        what="products of eager attention, scores of an indexer", families=("batched",),
        needs="DeepGEMM's scores; start values until then",
    ),
    Entry(
        what="norms, activations, RoPE, sums, softmax, embeddings, conversions", families=("streaming",),
        torch=("elementwise",), table="elementwise",
        engines=(
            "vllm.rms_norm", "vllm.rotary_embedding", "vllm.scaled_fp8_quant", "sglang.rmsnorm", "sglang.silu_and_mul",
            "flashinfer.rmsnorm", "flashinfer.silu_and_mul", "aiter.rmsnorm2d_fwd",
        ),
    ),
    Entry(
        what="writes to the KV cache", families=("streaming",), torch=("serving",), table="elementwise",
        engines=("vllm.reshape_and_cache_flash",),
    ),
    Entry(
        what="one token of Mamba-2 and of the gated delta rule", families=("streaming",), torch=("recurrence",),
        table="recurrence", engines=("vllm.selective_state_update", "flashinfer.selective_state_update"),
        needs="a compiler",
    ),
    Entry(
        what="scans of prompts, Mamba-1, short convolutions", families=("streaming",),
        needs="mamba_ssm, fla, causal_conv1d",
    ),
    Entry(
        what="all-reduce, launched by the host", families=("collective",), torch=("allreduce",), table="allreduce",
        needs="several GPUs",
    ),
    Entry(
        what="all-reduce, all-gather, reduce-scatter, all-to-all in a CUDA graph", families=("collective",),
        torch=("exchange",), table="allreduce", needs="several GPUs, `torchrun` ([below](#exchanges-between-devices))",
    ),
    Entry(
        what="the engines' own all-reduce", families=("collective",),
        needs="the engine's process group; fitted from others' tables",
    ),
    Entry(what="launch of an operator, by the host and in a graph", torch=("launch",), table="launch"),
    Entry(what="the chip's memory", torch=("copy",), table="copy"),
    Entry(what="links to the host, its memory and disk", torch=("host",), table="host"),
    Entry(what="choice of the next token", torch=("serving",), table="serving", engines=("flashinfer.top_p",)),
    Entry(what="layers and whole models", torch=("block",), table="block"),
    Entry(what="whole models", torch=("model",), table="model"),
)  # fmt: skip


@cache
def on_cpu() -> frozenset[tuple[str, str]]:
    """(kernel, dtype) that a processor's plan has; "" for any dtype."""
    planned = plan.cases(sizes.size_named("cpu", "full"))
    found = {(case.kernel, dtype) for case in planned for dtype in ("", str(case.columns.get("dtype", "")))}
    return frozenset(found | {("exchange", "")})  # gloo


def measured() -> str:
    """The table of entries in Markdown."""
    lines = ["| kernels | priced by | torch's, in `calibrate/kernels` | of engines, where installed | rows | needs |"]
    lines.append("|---|---|---|---|---|---|")
    for entry in ENTRIES:
        here = {name for name in entry.torch for dtype in entry.dtypes or ("",) if (name, dtype) in on_cpu()}
        torch = ", ".join(f"`{name}`{' +' * (name in here)}" for name in entry.torch)
        engines = ", ".join(f"`{name}`" for name in entry.engines)
        rows = ("fitted" if entry.table in TABLES else "evidence") if entry.table else "none"
        families = ", ".join(f"`{name}`" for name in entry.families)
        lines.append(f"| {entry.what} | {families} | {torch} | {engines} | {rows} | {entry.needs} |")
    return "\n".join(lines) + "\n"


def read() -> str:
    """The table of files whose signatures were read, in Markdown."""
    lines = ["| library | files, at the commit that was read |", "|---|---|"]
    for name, library in libraries.LIBRARIES.items():
        files = (f"[{file}]({library.site}/blob/{commit}/{file})" for file, commit in library.read.items())
        lines.append(f"| `{name}` | {', '.join(files)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Rewrite both tables."""
    rewrite(PAGE, {KERNELS_MARK: measured(), LIBRARIES_MARK: read()})


if __name__ == "__main__":
    main()
