"""Names of the tables' formats -> torch's."""

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
    """This device or this torch has no such kernel; says what is missing."""


def need_capability(kind: str, major: int, minor: int, what: str) -> None:
    """Raise on a CUDA device older than compute capability major.minor."""
    if kind == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability() < (major, minor):
        raise UnsupportedError(f"{what} needs compute capability {major}.{minor}")
