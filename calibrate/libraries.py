"""Kernels of serving engines and of the libraries that they call: which are measured where these can be imported.

A row has the owner's name and version in `engine`, and the kernel's name and version in `kernel`; it is fitted as that
engine's.  How each is called: calibrate/kernels/library.py, by the same names.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from llmviewer.calibrate.kernel_case import KernelCase
from llmviewer.core.frozen import frozen

#: Name in `calibrate.kernels` of all of these.
KERNEL = "library"
#: Narrowest matrices that these kernels take: one block of scales.
MIN_WIDTH = 128


@frozen
class Library:
    """A package that is imported, the distributions that state its version, and where its calls were read.

    site: its repository.  read: file -> commit at which its signatures were read.
    """

    package: str
    distributions: tuple[str, ...]
    site: str
    read: Mapping[str, str]


@frozen
class LibraryKernel:
    """A kernel: where it is, and its rows.

    function: `module:attribute`.  base, like: kernel (any if empty) and columns of the planned rows of its table whose
    shapes it gets.  columns: what its rows have instead.  windows: whether it also runs with sliding windows.
    """

    function: str
    table: str
    base: str = ""
    like: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    windows: bool = False

    def is_like(self, case: KernelCase) -> bool:
        """Whether a planned row has a shape for this kernel: no prefix or window, no matrix narrower than a block."""
        columns = case.columns
        plain = not columns.get("prefix") and not columns.get("window") and case.kernel != KERNEL
        wide = min(columns.get("n", MIN_WIDTH), columns.get("k", MIN_WIDTH)) >= MIN_WIDTH
        named = case.table == self.table and self.base in ("", case.kernel)
        return named and plain and wide and all(columns.get(name) == value for name, value in self.like.items())


_MOE = "model_executor/layers/fused_moe"
#: Name in the column `engine` -> library.
LIBRARIES = {
    "vllm": Library(
        package="vllm",
        distributions=("vllm",),
        site="https://github.com/vllm-project/vllm",
        read={
            "vllm/_custom_ops.py": "0002bde560dd9adcabb28b0da32f47d4c020e799",
            "vllm/vllm_flash_attn/flash_attn_interface.py": "01420e05a809e4fe986b0cb76d405b0b75f97c9b",
            f"vllm/{_MOE}/fused_moe.py": "000d1458098ebf47491dad470d164d443ab18a9c",
            f"vllm/{_MOE}/config.py": "002d6073aa034d4f5545d45021b0e56d1f3c3593",
            "vllm/model_executor/layers/mamba/ops/mamba_ssm.py": "007ad216374b82a5ecf3bd54176100216d6d0422",
        },
    ),
    "sglang": Library(
        package="sgl_kernel",
        distributions=("sglang", "sgl-kernel"),
        site="https://github.com/sgl-project/sglang",
        read={
            "sgl-kernel/python/sgl_kernel/gemm.py": "02c75809c6bc517224e7e84c32cb7c3848d68bff",
            "sgl-kernel/python/sgl_kernel/flash_attn.py": "01d2a3d0d57bc35da92de3833d72412c0b448210",
            "sgl-kernel/python/sgl_kernel/elementwise.py": "0069435677d95625d237acda2468c01930d8de9d",
        },
    ),
    "flashinfer": Library(
        package="flashinfer",
        distributions=("flashinfer-python", "flashinfer"),
        site="https://github.com/flashinfer-ai/flashinfer",
        read={
            "flashinfer/decode.py": "002752ae3615318e75b95e2eeb716242233c0fdd",
            "flashinfer/prefill.py": "c91093d3abf362c0e9f8296c0290ac249d2eddf6",
            "flashinfer/mla.py": "00e3d683c3b58850f0678159d6cf7adf96479615",
            "flashinfer/sampling.py": "01c897d7075594003c411c0aa5e3befdf0bcae94",
            "flashinfer/mamba/selective_state_update.py": "01c2527fe3335a55a4f2a2d2480242e48f7f740a",
            "flashinfer/activation.py": "0daa58bf3f1acec070b9467df640bc12664dc1db",
            "flashinfer/norm/__init__.py": "0040d23e6a5d7b1fc3c2cc1a1dc4a159a2e525e1",
        },
    ),
    "aiter": Library(
        package="aiter",
        distributions=("amd-aiter", "aiter"),
        site="https://github.com/ROCm/aiter",
        read={
            "aiter/ops/gemm_op_a8w8.py": "0006ebde8a078bb8bef51dd28db28dc2822f9c62",
            "aiter/ops/rmsnorm.py": "0bc300f740e8ac412deb6bc68c23f7a9e582413c",
        },
    ),
}
_DENSE = {"experts": 1}
_BF16 = {"dtype": "bfloat16", "kv_dtype": "bfloat16"}
_CACHE8 = {"dtype": "bfloat16", "kv_dtype": "fp8"}
_ROUTED = {"ep": 1, "dtype": "bfloat16"}


def _product(function: str, dtype: str, **columns: Any) -> LibraryKernel:
    return LibraryKernel(function=function, table="gemm", like=_DENSE, columns={"dtype": dtype, **columns})


def _attention(function: str, table: str, columns: Mapping[str, Any], *, windows: bool = True) -> LibraryKernel:
    return LibraryKernel(function=function, table=table, base="attention", columns=columns, windows=windows)


def _rows(function: str, op: str, dtype: str = "bfloat16", moved: int = 2) -> LibraryKernel:
    columns = {"dtype": dtype, "kernels": 1, "moved": moved}
    return LibraryKernel(function=function, table="elementwise", like={"op": op}, columns=columns)


def _experts(dtype: str) -> LibraryKernel:
    function = f"vllm.{_MOE.replace('/', '.')}.fused_moe:fused_experts"
    return LibraryKernel(function=function, table="moe", like=_ROUTED, columns={"dtype": dtype})


def _state(function: str) -> LibraryKernel:
    return LibraryKernel(function=function, table="recurrence", like={"op": "mamba2"}, columns={"dtype": "bfloat16"})


_VLLM_OPS, _VLLM_ATTENTION = "vllm._custom_ops", "vllm.vllm_flash_attn.flash_attn_interface:flash_attn_varlen_func"
_SGLANG_ATTENTION, _PAGED = "sgl_kernel.flash_attn", "flashinfer.decode:BatchDecodeWithPagedKVCacheWrapper"
#: Engine, and the word in the column `kernel`, joined by a dot -> kernel.
KERNELS = {
    "vllm.cutlass_scaled_mm": _product(f"{_VLLM_OPS}:cutlass_scaled_mm", "fp8", converts=1),
    "vllm.cutlass_scaled_fp4_mm": _product(f"{_VLLM_OPS}:cutlass_scaled_fp4_mm", "nvfp4", converts=1),
    "vllm.marlin_gemm": _product(f"{_VLLM_OPS}:marlin_gemm", "int4_wo"),
    "vllm.flash_attn": _attention(_VLLM_ATTENTION, "attention_decode", _BF16),
    "vllm.flash_attn_fp8": _attention(_VLLM_ATTENTION, "attention_decode", _CACHE8, windows=False),
    "vllm.flash_attn_sinks": _attention(_VLLM_ATTENTION, "attention_decode", _BF16),
    "vllm.flash_attn_prompt": _attention(_VLLM_ATTENTION, "attention_prefill", _BF16),
    "vllm.fused_experts_triton": _experts("bfloat16"),
    "vllm.fused_experts_triton_fp8": _experts("fp8"),
    "vllm.fused_experts_triton_block": _experts("fp8_block"),
    "vllm.rms_norm": _rows(f"{_VLLM_OPS}:rms_norm", "input_layernorm"),
    "vllm.scaled_fp8_quant": _rows(f"{_VLLM_OPS}:scaled_fp8_quant", "scale_matrix", "fp8"),
    "vllm.rotary_embedding": _rows(f"{_VLLM_OPS}:rotary_embedding", "attn_rope"),
    "vllm.reshape_and_cache_flash": _rows(f"{_VLLM_OPS}:reshape_and_cache_flash", "cache_write"),
    "vllm.selective_state_update": _state("vllm.model_executor.layers.mamba.ops.mamba_ssm:selective_state_update"),
    "sglang.fp8_scaled_mm": _product("sgl_kernel.gemm:fp8_scaled_mm", "fp8", converts=1),
    "sglang.cutlass_scaled_fp4_mm": _product("sgl_kernel.gemm:cutlass_scaled_fp4_mm", "nvfp4", converts=1),
    "sglang.flash_attn": _attention(f"{_SGLANG_ATTENTION}:flash_attn_with_kvcache", "attention_decode", _BF16),
    "sglang.flash_attn_prompt": _attention(f"{_SGLANG_ATTENTION}:flash_attn_varlen_func", "attention_prefill", _BF16),
    "sglang.rmsnorm": _rows("sgl_kernel.elementwise:rmsnorm", "input_layernorm"),
    "sglang.silu_and_mul": _rows("sgl_kernel.elementwise:silu_and_mul", "mlp_act", moved=3),
    "flashinfer.paged": _attention(_PAGED, "attention_decode", _BF16),
    "flashinfer.paged_fp8": _attention(_PAGED, "attention_decode", _CACHE8, windows=False),
    "flashinfer.ragged": _attention(
        "flashinfer.prefill:BatchPrefillWithRaggedKVCacheWrapper", "attention_prefill", _BF16
    ),
    "flashinfer.mla_paged": LibraryKernel(
        function="flashinfer.mla:BatchMLAPagedAttentionWrapper", table="attention_decode", base="mla", columns=_BF16
    ),
    "flashinfer.rmsnorm": _rows("flashinfer.norm:rmsnorm", "input_layernorm"),
    "flashinfer.silu_and_mul": _rows("flashinfer.activation:silu_and_mul", "mlp_act", moved=3),
    "flashinfer.top_p": LibraryKernel(
        function="flashinfer.sampling:top_p_sampling_from_probs", table="serving", like={"op": "top_p"}
    ),
    "flashinfer.selective_state_update": _state("flashinfer.mamba:selective_state_update"),
    "aiter.gemm_a8w8": _product("aiter.ops.gemm_op_a8w8:gemm_a8w8", "fp8"),
    "aiter.gemm_a8w8_blockscale": _product("aiter.ops.gemm_op_a8w8:gemm_a8w8_blockscale", "fp8_block"),
    "aiter.rmsnorm2d_fwd": _rows("aiter.ops.rmsnorm:rmsnorm2d_fwd", "input_layernorm"),
}  # fmt: skip


def installed() -> dict[str, str]:
    """Engine -> version of every library that can be imported here; empty for one of no known distribution."""
    found = (name for name, library in LIBRARIES.items() if importlib.util.find_spec(library.package) is not None)
    return {name: _version(LIBRARIES[name].distributions) for name in found}


def _version(distributions: Iterable[str]) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def cases(
    planned: Iterable[KernelCase],
    found: Mapping[str, str],
    windows: tuple[int, ...] = (),
    formats: Collection[tuple[str, str]] | None = None,
) -> Iterator[KernelCase]:
    """Every kernel of the libraries `found` (engine -> version), at the shapes of the planned rows that it is like.

    windows: sliding windows beside none.  formats: (gemm or moe, dtype) to measure of products and experts; None: all.
    """
    bases = list(planned)
    for name, kernel in KERNELS.items():
        engine, _, word = name.partition(".")
        form = kernel.table, kernel.columns.get("dtype", "bfloat16")
        if engine not in found or (formats is not None and kernel.table in ("gemm", "moe") and form not in formats):
            continue
        own = {**kernel.columns, "engine": f"{engine} {found[engine]}".strip()}
        own["kernel"] = f"{word} {found[engine]}".strip()
        shapes: dict[Hashable, KernelCase] = {}
        for case in filter(kernel.is_like, bases):
            columns = {**case.columns, **own}
            shapes.setdefault(tuple(sorted(columns.items())), replace(case, kernel=KERNEL, columns=columns))
        for case in shapes.values():
            yield case
            length = case.columns.get("context", case.columns.get("seq", 0))
            for window in windows if kernel.windows else ():
                if window < length:
                    yield replace(case, columns={**case.columns, "window": window})
