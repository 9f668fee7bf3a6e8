"""Files every matrix product under a heading by the module that issued it.

The FLOPs of an operation come from `torch.utils.flop_counter.flop_registry`, the table FlopCounterMode itself uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .errors import UncountedProductError, UnfiledProductError
from .headings import Filed, Heading

aten = torch.ops.aten
WITHOUT_FORMULA = {"mv", "addmv", "dot", "vdot", "addbmm", "addr", "_grouped_mm", "grouped_mm_fallback", "linear"}
"""Operations that multiply matrices (or vectors) and that the counter would pass over in silence."""

RECURRENT_CLASSES = ("Mixer", "MambaLayer", "GatedDeltaNet", "LightningAttention", "DeltaAttention", "xLSTMBackend")
ATTENTION_CLASSES = ("Attention", "MLA")
EXPERT_CLASSES = ("Experts", "ExpertGLU")
ROTARY_CLASSES = ("RotaryEmbedding",)
MIXING_CLASSES = ("Gemma3nTextDecoderLayer", "V4DecoderLayer")
"""Mix a few residual streams element by element or by tiny matrices made per token: work of our vector units, left out
of any comparison."""


class ProductFiling(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, adds each counted operation to `filed`."""

    def __init__(self, model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.filed: Filed = Counter()
        self._head = model.get_output_embeddings()
        self._weights = {_storage(parameter) for parameter in model.parameters()}
        self._stack: list[tuple[str, nn.Module]] = [("", model)]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet.__name__ in WITHOUT_FORMULA:
            raise UncountedProductError(f"{packet} in {self._stack[-1][0]} has no FLOP formula in PyTorch's counter")
        if packet in flop_registry:
            heading = self._heading(packet, args)
            self.filed[heading, self._stack[-1][0]] += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        return out

    def _heading(self, packet: Any, args: tuple[Any, ...]) -> Heading:
        """Heading of a product by the first rule that applies."""
        if packet in (aten.convolution, aten._convolution):
            return Heading.CONVOLUTION
        if self._inside(ROTARY_CLASSES):
            return Heading.ROTARY
        if self._stack[-1][1] is self._head:
            return Heading.HEAD
        if self._inside(EXPERT_CLASSES):
            return Heading.EXPERTS
        if any(_storage(operand) in self._weights for operand in args if isinstance(operand, torch.Tensor)):
            return Heading.LINEAR
        return self._heading_without_weight(packet)

    def _heading_without_weight(self, packet: Any) -> Heading:
        """A product of two activations belongs to the mixer that issued it."""
        if self._inside(RECURRENT_CLASSES):
            return Heading.RECURRENCE
        if self._inside(ATTENTION_CLASSES):
            return Heading.ATTENTION
        if self._inside(MIXING_CLASSES):
            return Heading.MIXING
        path = " > ".join(type(module).__name__ for _, module in self._stack)
        raise UnfiledProductError(f"{packet} issued by {path}")

    def _inside(self, endings: tuple[str, ...]) -> bool:
        return any(type(module).__name__.endswith(endings) for _, module in self._stack)

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Tracks the stack of running modules by hooks, which are removed on exit."""
        handles = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(partial(self._enter, name)))
            handles.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str, module: nn.Module, _: Any) -> None:
        self._stack.append((name, module))

    def _leave(self, *_: Any) -> None:
        self._stack.pop()


def _storage(tensor: torch.Tensor) -> int:
    """Identity of a tensor's memory; a transposed or sliced weight has that of its parameter."""
    return int(tensor.untyped_storage()._cdata)
