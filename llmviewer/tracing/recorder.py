"""Records one forward pass: calls of modules, attention, matmul FLOPs by module, and which tensor goes where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from llmviewer.core.frozen import frozen

#: Operations that multiply matrices and that PyTorch's counter has no formula for.
WITHOUT_FORMULA = {"mv", "addmv", "dot", "vdot", "addbmm", "addr", "_grouped_mm", "linear"}


@frozen
class AttentionCall:
    """One call of the attention function.  window: tokens, None = none; options: what else it was asked for."""

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    causal: bool
    window: int | None
    options: dict[str, Any]


@frozen
class Call:
    """One call of a module, with the storages of what it reads and makes.  shapes: of the tensors that it reads."""

    name: str
    module: Any
    reads: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    makes: int


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, records a pass of `model`; `flops` are by module name, `uncounted` are refused by the caller."""

    def __init__(self, model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.calls: list[Call] = []
        self.flops: Counter[str] = Counter()
        self.operations: Counter[tuple[str, str]] = Counter()
        self.attention: dict[str, list[AttentionCall]] = {}
        self.rotary: dict[str, int] = {}
        self.uncounted: dict[str, str] = {}
        self._stack = [""]
        self._angles: dict[str, tuple[int, int]] = {}
        self._alive: list[Any] = []  # a storage that is freed could be taken for another

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of an operation, noted under the module that runs."""
        out = func(*args, **(kwargs or {}))
        packet, name = func._overloadpacket, self._stack[-1]
        self.operations[name, packet.__name__] += 1
        if packet.__name__ in WITHOUT_FORMULA:
            self.uncounted[name] = packet.__name__
        if packet in flop_registry:
            self.flops[name] += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        if packet.__name__ == "mul" and name in self._angles:
            cosines, width = self._angles[name]
            if any(isinstance(one, torch.Tensor) and storage(one) == cosines for one in args):
                self.rotary[name] = width
        return out

    @contextmanager
    def following(self) -> Iterator[None]:
        """Hooks that follow the running module, removed on exit."""
        handles = []
        for name, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True))
            handles.append(module.register_forward_hook(partial(self._leave, name), with_kwargs=True))
        Recorder.running = self
        try:
            with self:
                yield
        finally:
            Recorder.running = None
            for handle in handles:
                handle.remove()

    running: Recorder | None = None

    def note_attention(self, call: AttentionCall) -> None:
        """Note a call of the attention function under the module that runs."""
        self.attention.setdefault(self._stack[-1], []).append(call)

    def _enter(self, name: str, _: Any, __: Any, words: dict[str, Any]) -> None:
        self._stack.append(name)
        angles = words.get("position_embeddings")
        if isinstance(angles, tuple) and isinstance(angles[0], torch.Tensor):
            self._angles[name] = storage(angles[0]), int(angles[0].shape[-1])

    def _leave(self, name: str, module: Any, args: Any, words: dict[str, Any], out: Any) -> None:
        self._stack.pop()
        given = [*args, words.get("hidden_states"), words.get("input_ids")]
        tensors = [one for one in given if isinstance(one, torch.Tensor)]
        made = next((one for one in (out if isinstance(out, tuple) else (out,)) if isinstance(one, torch.Tensor)), None)
        self._alive += [*tensors, made]
        self.calls.append(
            Call(
                name=name,
                module=module,
                reads=tuple(map(storage, tensors)),
                shapes=tuple(tuple(one.shape) for one in tensors),
                makes=0 if made is None else storage(made),
            )
        )


def storage(tensor: torch.Tensor) -> int:
    """Identity of a tensor's memory, the same for its views."""
    return int(tensor.untyped_storage()._cdata)


def recorded_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any
) -> tuple[Any, None]:
    """Eager attention over the full new x keys square, as transformers calls it; notes heads, widths and window."""
    heads, kv_heads = query.shape[1], key.shape[1]
    if Recorder.running is not None:
        call = AttentionCall(
            heads=heads,
            kv_heads=kv_heads,
            qk_dim=query.shape[-1],
            v_dim=value.shape[-1],
            causal=bool(options.get("is_causal", getattr(module, "is_causal", True))),
            window=options.get("sliding_window"),
            options={name: one for name, one in options.items() if one is not None},
        )
        Recorder.running.note_attention(call)
    repeated_k, repeated_v = (one.repeat_interleave(heads // kv_heads, dim=1) for one in (key, value))
    scores = torch.softmax(query @ repeated_k.transpose(2, 3), dim=-1)
    return (scores @ repeated_v).transpose(1, 2).contiguous(), None
