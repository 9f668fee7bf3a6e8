"""Kernel inputs: views of one large random allocation per dtype, used in rotation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from llmviewer.calibrate.environment import free_bytes
from llmviewer.calibrate.timer import PreparedKernel, copies
from llmviewer.core.frozen import frozen

#: Standard deviation of weights and activations: sums over thousands of them fit 16 bits, and none is denormal.
STANDARD_DEVIATION = 0.05
#: Distinct random values; longer allocations repeat them (a prime, so that rows of a matrix differ).
UNIQUE_VALUES = 1048573
#: Larger allocations are freed after each kernel.
MAX_KEPT_BYTES = 2**30
#: Share of the free host memory that a kernel may use: the system kills a process that uses more.
MAX_HOST_SHARE = 0.6
#: Views start at multiples of this many elements, like tensors from an allocator.
ALIGNMENT = 256

Shape = tuple[int, ...]
INTEGERS = {torch.int8: (-127, 128), torch.uint8: (0, 256), torch.int32: (-(2**31), 2**31 - 1)}


class TooLargeError(Exception):
    """Raised when the tensors do not fit; the message says how much memory they need."""


@frozen(kw_only=False)
class Rotation:
    """Copies of a kernel's input tensors.  tensors[copy]: those of one call.  total_bytes: of all copies."""

    tensors: list[tuple[torch.Tensor, ...]]
    total_bytes: float

    def __len__(self) -> int:
        return len(self.tensors)

    def kernel(self, run: Callable[[int], object], **options: Any) -> PreparedKernel:
        """A kernel that takes the copies in turn.  run, options: see PreparedKernel."""
        return PreparedKernel(run=run, copies=len(self), rotated_bytes=self.total_bytes, **options)


class Buffers:
    """Tensors on a device (`cuda` or `cpu`) whose last-level cache has `cache_bytes` bytes."""

    def __init__(self, kind: str, cache_bytes: float) -> None:
        self.kind = kind
        self.cache_bytes = cache_bytes
        self._arenas: dict[torch.dtype, torch.Tensor] = {}

    def rotating(self, dtype: torch.dtype, *shapes: Shape) -> Rotation:
        """Copies of tensors of these shapes, together larger than twice the cache."""
        each = sum(_aligned(math.prod(shape)) for shape in shapes)
        count = copies(each * dtype.itemsize, self.cache_bytes)
        arena = self._arena(dtype, each * count)
        return Rotation([_views(arena, copy * each, shapes) for copy in range(count)], each * count * dtype.itemsize)

    def random(self, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
        """A new random tensor, outside the rotation."""
        self._check(math.prod(shape) * dtype.itemsize)
        tensor = torch.empty(shape, dtype=dtype, device=self.kind)
        _fill_randomly(tensor.view(-1))
        return tensor

    def empty(self, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
        """A new uninitialized tensor for output."""
        self._check(math.prod(shape) * dtype.itemsize)
        return torch.empty(shape, dtype=dtype, device=self.kind)

    def release(self, *, everything: bool = False) -> None:
        """Free large allocations, or all of them."""
        for dtype, arena in list(self._arenas.items()):
            if everything or arena.numel() * dtype.itemsize > MAX_KEPT_BYTES:
                del self._arenas[dtype]
        if everything and self.kind == "cuda":
            torch.cuda.empty_cache()

    def _arena(self, dtype: torch.dtype, elements: int) -> torch.Tensor:
        arena = self._arenas.get(dtype)
        if arena is None or arena.numel() < elements:
            self._arenas.pop(dtype, None)
            arena = self._arenas[dtype] = self.random(dtype, (elements,))
        return arena

    def _check(self, needed: float) -> None:
        free = MAX_HOST_SHARE * free_bytes() if self.kind == "cpu" else torch.cuda.get_device_properties(0).total_memory
        if needed > free:
            raise TooLargeError(f"out of memory: needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB may be used")


def _aligned(elements: int) -> int:
    return math.ceil(elements / ALIGNMENT) * ALIGNMENT


def _views(arena: torch.Tensor, start: int, shapes: tuple[Shape, ...]) -> tuple[torch.Tensor, ...]:
    views = []
    for shape in shapes:
        elements = math.prod(shape)
        views.append(arena[start : start + elements].view(shape))
        start += _aligned(elements)
    return tuple(views)


def _fill_randomly(flat: torch.Tensor) -> None:
    """Fill with random numbers: power, and with it the clock, depends on the bits that toggle."""
    drawn = min(flat.numel(), UNIQUE_VALUES)
    if flat.dtype in INTEGERS:
        low, high = INTEGERS[flat.dtype]
        flat[:drawn] = torch.randint(low, high, (drawn,), device=flat.device).to(flat.dtype)
    else:
        flat[:drawn] = (torch.randn(drawn, device=flat.device) * STANDARD_DEVIATION).to(flat.dtype)
    while drawn < flat.numel():
        more = min(drawn, flat.numel() - drawn)
        flat[drawn : drawn + more] = flat[:more]
        drawn += more
