"""Copies between a device and its host or the host's disk."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from llmviewer.core.counts import Count, total
from llmviewer.core.dtypes import Dtype, get_dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Place, Role, Tensor
from llmviewer.core.kinds import Kind

#: Copies count bytes, without regard to the number format.
BYTE: Dtype = get_dtype("int8")


class Direction(Enum):
    """The direction of a copy; a link carries both directions at once."""

    IN = "in"
    OUT = "out"


@frozen
class TransferShape:
    """A copy that does not depend on the layer's results, so it can overlap with other layers.

    over_link: whether it uses the link to the host; false if device and host share one memory.  request_bytes: of each
    scattered read from the disk; None for sequential ones.
    """

    direction: Direction
    over_link: bool = True
    request_bytes: float | None = None


def load(name: str, stored: Iterable[Access], shape: TransferShape, buffers: float = 2.0) -> Operator:
    """A copy to the device of tensors that a layer needs, from host memory, or from disk through host memory.

    stored: accesses to tensors on the host or disk.  buffers: number of buffers on the device; with 2, the buffer of
    the next layer is filled while a layer works from the other.
    """
    reads = tuple(stored)
    moved, disk = _bytes(reads), _bytes(a for a in reads if a.tensor.place is Place.DISK)
    buffer = Tensor(name=name, elements=moved * buffers, dtype=BYTE)
    if shape.over_link:
        reads = (*reads, *_host_buffer(name, disk))
    return _copy(name, reads, (Access(buffer, moved), *_over_link(name, moved, shape)), shape)


def store(name: str, results: Iterable[Access], shape: TransferShape) -> Operator:
    """A copy of a layer's results to the host or its disk.  results: accesses to tensors there."""
    writes = tuple(results)
    moved, disk = _bytes(writes), _bytes(a for a in writes if a.tensor.place is Place.DISK)
    # role CACHE: the results are part of the cache on the device
    source = Tensor(name=f"{name}.source", elements=moved, dtype=BYTE, role=Role.CACHE)
    if shape.over_link:
        writes = (*writes, *_host_buffer(name, disk))
    return _copy(name, (Access(source, moved),), (*writes, *_over_link(name, moved, shape)), shape)


def stage(name: str, on_disk: Iterable[Access], direction: Direction) -> Operator:
    """A copy between the disk and the memory of a host that computes with the tensors.  on_disk: accesses there."""
    accesses = tuple(on_disk)
    buffer = _host_buffer(name, _bytes(accesses))
    reads, writes = (accesses, buffer) if direction is Direction.IN else (buffer, accesses)
    return _copy(name, reads, writes, TransferShape(direction=direction, over_link=False))


def blocking_copy(name: str, tensors: Iterable[Tensor]) -> Operator:
    """A copy of `tensors` between device and host that the receiver waits for."""
    sent = _bytes(Access(tensor, tensor.elements) for tensor in tensors)
    return _copy(name, (), _over_link(name, sent, TransferShape(direction=Direction.IN)), None)


def _host_buffer(name: str, disk: Count) -> tuple[Access, ...]:
    """The host-memory buffer that `disk` bytes to or from a disk pass through."""
    staged = Tensor(name=f"{name}.staged", elements=disk, dtype=BYTE, role=Role.CACHE, place=Place.HOST)
    return (Access(staged, disk),)


def _over_link(name: str, moved: Count, shape: TransferShape) -> tuple[Access, ...]:
    if not shape.over_link:
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
    """The direction of a copy that can overlap with layers; None for every other operator."""
    return operator.shape.direction if isinstance(operator.shape, TransferShape) else None
