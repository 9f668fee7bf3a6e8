"""From the fields of a Serving to the flags of one engine, by the engine's own tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.planning.manifests.serving import Serving
from llmviewer.techniques.quantization.presets import OF_GGUF

#: Fields of Serving that are one flag with one value, and the value that needs none.
SCALARS: dict[str, Any] = {
    "tensor": 1,
    "pipeline": 1,
    "data": 1,
    "expert": 1,
    "dtype": "auto",
    "max_model_len": None,
    "max_num_seqs": None,
    "max_num_batched_tokens": None,
    "gpu_memory_utilization": None,
    "kv_fraction": None,
    "kv_block_size": None,
    "enforce_eager": False,
    "mixed": False,
}
OPTION = {"kv_fraction": "kv_cache_free_gpu_memory_fraction", "mixed": "batching chunked"}
#: Names of --quantization -> what an engine multiplies; a name that is missing has no kernels in any engine.
METHODS = {
    "fp16": "16-bit", "bf16": "16-bit", "w16a16": "16-bit",
    "fp8": "fp8", "fp8-dynamic": "fp8", "w8a8-fp8": "fp8", "fp8-block": "fp8-block", "fbgemm-fp8": "fbgemm-fp8",
    "fbgemm_fp8": "fbgemm-fp8", "int8": "int8", "w8a8": "int8", "w8a8-int8": "int8", "smoothquant": "int8",
    "w8a16": "w8a16", "w8a16-int8": "w8a16", "w8a16-fp8": "w8a16-fp8", "awq": "int4", "awq_marlin": "int4",
    "gptq": "int4", "gptq_marlin": "int4", "gptq_gemm": "gptq", "awq_gemm": "awq",
    "w4a16": "int4", "w4a16-int4": "int4", "w4a8": "w4a8", "w4a8-int4": "w4a8",
    "w4a8-fp8": "w4a8-fp8", "w4a8-int4-fp8": "w4a8-fp8", "mxfp4": "mxfp4", "w4a16-mxfp4": "mxfp4", "nvfp4": "nvfp4",
    "w4a4-nvfp4": "nvfp4", "bitsandbytes": "nf4", "bitsandbytes-nf4": "nf4",
    **dict.fromkeys((name for name in OF_GGUF if "tq" not in name and "mxfp4" not in name), "gguf"),
}  # fmt: skip


#: Methods whose flag chooses kernels for a checkpoint that is stored so.
STORED = ("gptq", "awq")


@frozen
class Launch:
    """One server process.  program: words before the flags.  files: name -> text.  notes: what a person must know.

    flags: each flag with its value, if it has one.
    """

    program: tuple[str, ...]
    flags: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The whole command."""
        return (*self.program, *self.flags)


class Expression(str):
    """A word that the shell expands, such as `$HEAD_ADDRESS`: printed in double quotes, all others are quoted."""

    __slots__ = ()


@frozen
class Cluster:
    """Names of the shell's variables on the computers of one replica: the first one's address, and the own number."""

    address: str = "HEAD_ADDRESS"
    rank: str = "NODE_RANK"

    def head(self, port: int | None = None) -> Expression:
        """The address of the first computer, with a port."""
        return Expression(f"${self.address}{f':{port}' if port else ''}")


@frozen
class Tables:
    """Facts of one version of an engine.

    scalars: field of Serving -> flag.  methods: method of quantization -> flags; none: the checkpoint must have it.
    caches: --kv-cache-dtype -> the engine's name, empty for its default.  dtypes: --dtype -> the engine's name.
    """

    engine: str
    title: str
    version: str
    scalars: Mapping[str, str]
    methods: Mapping[str, tuple[str, ...]]
    caches: Mapping[str, str]

    def flags(self, serving: Serving, changed: Mapping[str, Any] | None = None) -> list[str]:
        """The flags of the scalar fields.  changed: fields with other values.  Raises UserError for one without."""
        found = []
        for name, default in SCALARS.items():
            value = (changed or {}).get(name, getattr(serving, name))
            if value == default:
                continue
            if name not in self.scalars:
                raise UserError(f"{self.title} {self.version} has no flag for {OPTION.get(name, name)} {value}")
            found += [self.scalars[name]] if value is True else [self.scalars[name], DTYPES.get(str(value), str(value))]
        return found

    def quantized(self, serving: Serving) -> tuple[list[str], list[str]]:
        """Flags and notes of the weights' formats.  Raises UserError for a method without kernels."""
        scheme = split(serving.quantization)[0]
        if scheme == "none":
            return [], []
        method = scheme if scheme in self.methods else METHODS.get(scheme, "")
        if method not in self.methods:
            allowed = ", ".join(sorted(name for name, one in METHODS.items() if one in self.methods))
            raise UserError(
                f"{self.title} {self.version} has no kernels for quantization {quoted(scheme)}; allowed: {allowed}"
            )
        flags = list(self.methods[method])
        if flags and method not in STORED:
            return flags, [f"quantization {scheme}: a 16-bit checkpoint is quantized while it is loaded"]
        return flags, [
            f"quantization {scheme}: MODEL must be a checkpoint stored so; no flag quantizes {serving.model}"
        ]

    def cache(self, serving: Serving) -> str:
        """The engine's name of the KV cache's format, empty for its default.  Raises UserError."""
        own = serving.kv_cache_dtype
        name = split(serving.quantization)[1] if own == "auto" else own
        if name in ("", "auto", "kv16"):
            return ""
        if name not in self.caches:
            allowed = ", ".join(("auto", *self.caches))
            raise UserError(f"{self.title} {self.version} has no KV cache in {quoted(name)}; allowed: {allowed}")
        return self.caches[name]


DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def split(quantization: str) -> tuple[str, str]:
    """The scheme without the format of its KV cache, and that format: w8a8kv8-fp8 is w8a8-fp8 and fp8."""
    name = quantization.strip().lower()
    found = re.fullmatch(r"(w\d+a\d+)kv(\d+)((?:-[a-z0-9]+)*)", name, re.ASCII)
    if found is None:
        return name or "none", ""
    bits, formats = found[2], [word for word in found[3].split("-") if word]
    own = [word for word in formats if word == f"fp{bits}"]
    kept = [word for word in formats if re.sub(r"\D", "", word) in re.findall(r"\d+", found[1])]
    return "-".join((found[1], *kept)), own[0] if own else f"kv{bits}"
