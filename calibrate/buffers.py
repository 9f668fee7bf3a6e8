"""Inputs of kernels: views of one large random allocation for each format, taken in turn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from llmviewer.calibrate.environment import free_bytes
from llmviewer.calibrate.timer import copies

#: Size of weights and activations: sums over thousands of them stay within 16 bit, and none is denormal.
DEVIATION = 0.05
#: Random numbers drawn; longer allocations repeat them (a prime, so that rows of a matrix differ).
DRAWN = 1048573
#: Larger allocations are given back after each kernel.
KEPT_BYTES = 2**30
#: Share of the free host memory that a kernel may take: the system ends a process that takes more.
SHARE_OF_HOST = 0.6
#: Views begin at multiples of this many elements, as an allocator's would.
ALIGNMENT = 256

Shape = tuple[int, ...]
INTEGERS = {torch.int8: (-127, 128), torch.uint8: (0, 256), torch.int32: (-(2**31), 2**31 - 1)}


class TooLargeError(Exception):
    """The tensors do not fit; says how much was needed."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """tensors[copy]: the tensors of one call.  total_bytes: of all copies."""

    tensors: list[tuple[torch.Tensor, ...]]
    total_bytes: float

    def __len__(self) -> int:
        return len(self.tensors)


class Buffers:
    """Tensors on a device (`cuda` or `cpu`) with a last cache of so many bytes."""

    def __init__(self, kind: str, cache_bytes: float) -> None:
        self.kind = kind
        self.cache_bytes = cache_bytes
        self._arenas: dict[torch.dtype, torch.Tensor] = {}

    def rotating(self, dtype: torch.dtype, *shapes: Shape) -> Rotation:
        """Copies of tensors of these shapes that are together larger than twice the cache."""
        each = sum(_aligned(math.prod(shape)) for shape in shapes)
        count = copies(each * dtype.itemsize, self.cache_bytes)
        arena = self._arena(dtype, each * count)
        return Rotation([_views(arena, copy * each, shapes) for copy in range(count)], each * count * dtype.itemsize)

    def random(self, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
        """A tensor of one's own to read from or write to."""
        self._check(math.prod(shape) * dtype.itemsize)
        tensor = torch.empty(shape, dtype=dtype, device=self.kind)
        _fill(tensor.view(-1))
        return tensor

    def empty(self, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
        """A tensor to write to."""
        self._check(math.prod(shape) * dtype.itemsize)
        return torch.empty(shape, dtype=dtype, device=self.kind)

    def release(self, *, everything: bool = False) -> None:
        """Give large allocations back, or all of them."""
        for dtype, arena in list(self._arenas.items()):
            if everything or arena.numel() * dtype.itemsize > KEPT_BYTES:
                del self._arenas[dtype]
        if everything and self.kind == "cuda":
            torch.cuda.empty_cache()

    def _arena(self, dtype: torch.dtype, elements: int) -> torch.Tensor:
        found = self._arenas.get(dtype)
        if found is None or found.numel() < elements:
            self._arenas.pop(dtype, None)
            found = self._arenas[dtype] = self.random(dtype, (elements,))
        return found

    def _check(self, needed: float) -> None:
        free = SHARE_OF_HOST * free_bytes() if self.kind == "cpu" else torch.cuda.get_device_properties(0).total_memory
        if needed > free:
            raise TooLargeError(f"out of memory: needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB may be taken")


def _aligned(elements: int) -> int:
    return math.ceil(elements / ALIGNMENT) * ALIGNMENT


def _views(arena: torch.Tensor, start: int, shapes: tuple[Shape, ...]) -> tuple[torch.Tensor, ...]:
    views = []
    for shape in shapes:
        elements = math.prod(shape)
        views.append(arena[start : start + elements].view(shape))
        start += _aligned(elements)
    return tuple(views)


def _fill(flat: torch.Tensor) -> None:
    """Random numbers: power, and with it the clock, depends on the bits that toggle."""
    drawn = min(flat.numel(), DRAWN)
    if flat.dtype in INTEGERS:
        low, high = INTEGERS[flat.dtype]
        flat[:drawn] = torch.randint(low, high, (drawn,), device=flat.device).to(flat.dtype)
    else:
        flat[:drawn] = (torch.randn(drawn, device=flat.device) * DEVIATION).to(flat.dtype)
    while drawn < flat.numel():
        more = min(drawn, flat.numel() - drawn)
        flat[drawn : drawn + more] = flat[:more]
        drawn += more
