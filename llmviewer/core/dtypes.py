"""Number formats: how many bits are stored (scales included) and which matrix units can multiply them."""

from __future__ import annotations

from llmviewer.core.errors import unknown
from llmviewer.core.frozen import frozen


@frozen
class Dtype:
    """A stored number format.

    name: as printed.  bits: stored bits per element, including scales and zero points.
    compute: the class of matrix units that multiply it without conversion (`fp16`, `int8`, `fp8` ...).
    """

    name: str
    bits: float
    compute: str

    @property
    def bytes(self) -> float:
        """Stored bytes per element."""
        return self.bits / 8.0


def _plain(name: str, bits: float) -> Dtype:
    return Dtype(name=name, bits=bits, compute=name)


DTYPES: dict[str, Dtype] = {
    "fp64": _plain("fp64", 64),
    "fp32": _plain("fp32", 32),
    "bf16": _plain("bf16", 16),
    "fp16": _plain("fp16", 16),
    "fp8": _plain("fp8", 8),
    "int8": _plain("int8", 8),
    # OCP Microscaling v1.0: 32 elements share one 8-bit scale; NVFP4: 16 elements share one e4m3 scale.
    "mxfp4": Dtype(name="mxfp4", bits=4.25, compute="fp4"),
    "nvfp4": Dtype(name="nvfp4", bits=4.5, compute="fp4"),
}

#: Other names of the same formats in configs, data sheets and vLLM.
SPELLINGS: dict[str, str] = {
    "float64": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "e4m3": "fp8",
}

#: One 16-bit scale per group of this many weights, the usual choice of AWQ and GPTQ (arXiv 2306.00978, 2210.17323).
WEIGHT_GROUP_SIZE = 128


def get_dtype(name: str) -> Dtype:
    """The dtype called `name`, in any of its usual spellings."""
    key = str(name).lower().removeprefix("torch.")
    key = SPELLINGS.get(key, key)
    if key not in DTYPES:
        raise unknown("dtype", name, DTYPES)
    return DTYPES[key]


def scaled(compute: str, bits: float, *, group: float, scale_bits: float = 16.0, name: str = "") -> Dtype:
    """Numbers of `bits` with one scale of `scale_bits` (may include a zero point) per `group` elements."""
    return Dtype(name=name or f"{compute}-g{group:g}", bits=bits + scale_bits / group, compute=compute)


def grouped_int(bits: float, *, group: int = WEIGHT_GROUP_SIZE, zero_point_bits: float = 0.0) -> Dtype:
    """Integer weights with one 16-bit scale (and an optional zero point) per `group` elements."""
    return scaled(f"int{bits:g}", bits, group=group, scale_bits=16.0 + zero_point_bits)


def plain_int(bits: float) -> Dtype:
    """Integers with one scale per row or channel; these scales are too few to count."""
    return DTYPES.get(f"int{bits:g}") or Dtype(name=f"int{bits:g}", bits=bits, compute=f"int{bits:g}")


def cache_int(bits: float, head_dim: float) -> Dtype:
    """KV-cache entries below 16 bit, with a 16-bit scale and zero point per head and token (KIVI, arXiv 2402.02750)."""
    return Dtype(name=f"kv{bits:g}", bits=bits + 32.0 / head_dim, compute=f"int{bits:g}")


def operand_class(left: Dtype, right: Dtype) -> str:
    """The compute class of a product: the operands' common class, else that of the wider operand."""
    if left.compute == right.compute:
        return left.compute
    return left.compute if left.bits >= right.bits else right.compute
