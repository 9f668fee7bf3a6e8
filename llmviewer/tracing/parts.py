"""Attention, norms and linear layers of a traced pass; every parameter is claimed by the part that reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.layers.attention import Attention, Projections, QkNorm
from llmviewer.ops.elementwise import Activation, Norm, NormKind, activation

if TYPE_CHECKING:
    from llmviewer.tracing.recorder import Call, Recorder

#: Options of an attention call that are understood or change no work.
_UNDERSTOOD = {"scaling", "dropout", "sliding_window", "is_causal", "softcap", "s_aux", "position_ids", "use_cache"}
_UNDERSTOOD |= {
    "output_attentions",
    "cache_position",
    "position_embeddings",
    "logits_to_keep",
    "return_dict",
    "output_router_logits",
}


@frozen
class Trace:
    """A recorded pass and what has been read of it.  claimed: parameters that a part accounts for, by id."""

    recorder: Recorder
    config: Any
    dtype: Dtype
    hidden: int
    where: str
    claimed: set[int] = field(default_factory=set)

    def refuse(self, module: str, why: str) -> NoReturn:
        """Raise the line that names the module which the trace cannot classify."""
        raise UserError(f"{self.where}: --trace-model cannot classify {module or 'the model'}: {why}")

    def under(self, name: str) -> list[Call]:
        """Calls of a module and of those inside it, in the order in which they ended."""
        return [call for call in self.recorder.calls if call.name == name or call.name.startswith(f"{name}.")]

    def claim(self, *modules: Any) -> None:
        """Account for the own parameters of modules."""
        self.claimed.update(id(one) for module in modules for one in module.parameters(recurse=False))

    def act(self) -> Activation:
        """The activation that the config names."""
        names = ("hidden_activation", "hidden_act", "activation_function")
        name = next((getattr(self.config, one) for one in names if getattr(self.config, one, None)), None)
        return activation(name) if name else self.refuse("", f"the config has none of {', '.join(names)}")


def sizes(call: Call) -> tuple[int, int] | None:
    """Elements that a linear layer reads and makes per token; None for another module."""
    name, weight = type(call.module).__name__, getattr(call.module, "weight", None)
    if name == "Conv1D":
        return int(weight.shape[0]), int(weight.shape[1])  # type: ignore[union-attr]
    return (int(weight.shape[1]), int(weight.shape[0])) if name == "Linear" else None  # type: ignore[union-attr]


def linears(trace: Trace, calls: Iterable[Call]) -> list[tuple[Call, tuple[int, int]]]:
    """The linear layers among calls, claimed, with their sizes."""
    found = [(call, size) for call in calls if (size := sizes(call))]
    trace.claim(*(call.module for call, _ in found))
    return found


def biased(calls: Sequence[Call]) -> list[bool]:
    """Whether each linear layer has a bias."""
    return [getattr(call.module, "bias", None) is not None for call in calls]


def is_norm(call: Call) -> bool:
    """Whether a module is a norm: by its class, with vectors as its only parameters."""
    return "Norm" in type(call.module).__name__ and not any(True for _ in call.module.children())


def norm(trace: Trace, call: Call, name: str) -> Norm:
    """The norm of a call, claimed."""
    trace.claim(call.module)
    stored = sum(one.numel() for one in call.module.parameters())
    return Norm(name=name, kind=kind(call), width=call.shapes[0][-1], parameters=stored, dtype=trace.dtype)


def kind(call: Call) -> NormKind:
    """LayerNorm or RMSNorm, by the class."""
    name = type(call.module).__name__
    return NormKind.LAYER if "LayerNorm" in name and "RMS" not in name else NormKind.RMS


def attention(trace: Trace, name: str) -> Attention:
    """The attention of a module, from the call of the attention function and its linear layers."""
    calls = trace.recorder.attention[name]
    if len(calls) != 1:
        trace.refuse(name, f"it calls the attention function {len(calls)} times")
    one, inside = calls[0], trace.under(name)
    extra = sorted(set(one.options) - _UNDERSTOOD)
    if extra or not one.causal:
        trace.refuse(name, f"attention with {', '.join(extra)}" if extra else "attention without a causal mask")
    found, widths = (
        linears(trace, inside),
        (one.heads * one.qk_dim, one.kv_heads * one.qk_dim, one.kv_heads * one.v_dim),
    )
    made = [size[1] for _, size in found]
    fused = made == [sum(widths), trace.hidden]
    if not fused and made != [*widths, trace.hidden]:
        trace.refuse(name, f"linear layers make {made}, for q, k, v of {list(widths)} and {trace.hidden}")
    biases = biased([call for call, _ in found])
    if len(set(biases[:-1])) > 1:
        trace.refuse(name, "only some of q, k and v have a bias")
    sinks = one.options.get("s_aux")
    if sinks is not None:
        trace.claimed.add(id(sinks))
    norms = _qk_norm(trace, name, [call for call in inside if is_norm(call)], (one.heads, one.kv_heads, one.qk_dim))
    return Attention(
        hidden=trace.hidden,
        heads=one.heads,
        kv_heads=one.kv_heads,
        head_dim=one.qk_dim,
        v_dim=0 if one.v_dim == one.qk_dim else one.v_dim,
        rotary_dim=trace.recorder.rotary.get(name, 0),
        dtype=trace.dtype,
        projections=Projections(fused=fused, qkv_bias=biases[0], out_bias=biases[-1]),
        qk_norm=norms[0],
        norm_kind=norms[1],
        window=float(one.window) if one.window else np.inf,
        soft_cap=one.options.get("softcap") is not None,
        sinks=sinks is not None,
    )


def _qk_norm(trace: Trace, name: str, found: list[Call], shape: tuple[int, int, int]) -> tuple[QkNorm, NormKind]:
    """The norms of queries and keys inside an attention module."""
    heads, kv_heads, width = shape
    if not found:
        return QkNorm.NONE, NormKind.RMS
    stored = [[tuple(one.shape) for one in call.module.parameters()] for call in found]
    forms = {
        QkNorm.WEIGHTLESS: [[], []],
        QkNorm.PER_HEAD: [[(width,)], [(width,)]],
        QkNorm.WHOLE: [[(heads * width,)], [(kv_heads * width,)]],
        QkNorm.EACH_HEAD: [[(heads, width)], [(kv_heads, width)]],
    }
    form = next((form for form, shapes in forms.items() if shapes == stored), None)
    if form is None:
        trace.refuse(name, f"norms inside attention with weights {stored}")
    trace.claim(*(call.module for call in found))
    return form, kind(found[0])
