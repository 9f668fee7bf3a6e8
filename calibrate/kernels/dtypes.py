"""torch dtypes by their names in the tables, and capability checks."""

from __future__ import annotations

import torch

DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


class UnsupportedError(Exception):
    """Raised when this device or this torch lacks the kernel; the message says what is missing."""


def need_capability(kind: str, major: int, minor: int, what: str) -> None:
    """Raise UnsupportedError on a CUDA device below compute capability major.minor."""
    if kind == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability() < (major, minor):
        raise UnsupportedError(f"{what} needs compute capability {major}.{minor}")
