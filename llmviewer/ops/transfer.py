"""Copies between a device and the host or disk beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from llmviewer.core.counts import Count, total
from llmviewer.core.dtypes import Dtype, get_dtype
from llmviewer.core.ir import Access, Operator, Place, Role, Tensor
from llmviewer.core.kinds import Kind

#: Bytes as they are copied, whatever they mean.
BYTE: Dtype = get_dtype("int8")


class Direction(Enum):
    """Which way a copy goes; links carry both ways at once."""

    IN = "in"
    OUT = "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferShape:
    """A copy that waits for nothing the layer computes, so that it may run while other layers do.

    crosses: it goes over the link to the host; where device and host share a memory there is none.
    """

    direction: Direction
    crosses: bool = True


def load(name: str, stored: Iterable[Access], shape: TransferShape, buffers: float = 2.0) -> Operator:
    """Bring what a layer needs to the device: from the memory of the host, or from its disk through that memory.

    stored: accesses to tensors on the host or disk.  buffers: how often the device has room for it; 2: while a layer
    works from one buffer, the next layer's is filled.
    """
    reads = tuple(stored)
    moved, disk = _bytes(reads), _bytes(a for a in reads if a.tensor.place is Place.DISK)
    buffer = Tensor(name=name, elements=moved * buffers, dtype=BYTE)
    if shape.crosses:
        reads = (*reads, *_host_buffer(name, disk))
    return _copy(name, reads, (Access(buffer, moved), *_over_link(name, moved, shape)), shape)


def store(name: str, made: Iterable[Access], shape: TransferShape) -> Operator:
    """Take to the host or its disk what a layer has made.  made: accesses to tensors there."""
    writes = tuple(made)
    moved, disk = _bytes(writes), _bytes(a for a in writes if a.tensor.place is Place.DISK)
    left = Tensor(name=f"{name}.source", elements=moved, dtype=BYTE, role=Role.CACHE)  # already in the cache's memory
    if shape.crosses:
        writes = (*writes, *_host_buffer(name, disk))
    return _copy(name, (Access(left, moved),), (*writes, *_over_link(name, moved, shape)), shape)


def blocking_copy(name: str, tensors: Iterable[Tensor]) -> Operator:
    """Send what one side has made to the other, which waits for it."""
    sent = _bytes(Access(tensor, tensor.elements) for tensor in tensors)
    return _copy(name, (), _over_link(name, sent, TransferShape(direction=Direction.IN)), None)


def _host_buffer(name: str, disk: Count) -> tuple[Access, ...]:
    """What a disk holds passes through the memory of the host."""
    staged = Tensor(name=f"{name}.staged", elements=disk, dtype=BYTE, role=Role.CACHE, place=Place.HOST)
    return (Access(staged, disk),)


def _over_link(name: str, moved: Count, shape: TransferShape) -> tuple[Access, ...]:
    if not shape.crosses:
        return ()
    return (Access(Tensor(name=f"{name}.link", elements=moved, dtype=BYTE, place=Place.LINK), moved),)


def _copy(name: str, reads: tuple[Access, ...], writes: tuple[Access, ...], shape: TransferShape | None) -> Operator:
    moved = _bytes(a for a in writes if a.tensor.place is not Place.DISK)
    return Operator(
        name=name, kind=Kind.COPY, reads=reads, writes=writes, output_shape=(1.0, moved), shape=shape
    )  # fmt: skip


def _bytes(accesses: Iterable[Access]) -> Count:
    return total(a.elements * a.tensor.dtype.bytes for a in accesses)


def copy_direction(operator: Operator) -> Direction | None:
    """Which way a copy goes that may run beside the layers; None of every other operator."""
    return operator.shape.direction if isinstance(operator.shape, TransferShape) else None
