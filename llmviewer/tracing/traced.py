"""A model from one traced pass of transformers' own class, held to the class's parameters and matmul FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.models.config import QUANTIZATION_FIELDS, Config, max_context
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.ops.attention import SOFT_CAP_FLOPS
from llmviewer.ops.gemm import Linear
from llmviewer.tracing import layer, library, parts
from llmviewer.tracing.parts import Trace

if TYPE_CHECKING:
    from llmviewer.tracing.recorder import Call, Recorder

#: Prompts whose passes are compared; two lengths tell what grows with the square from what does not.
LENGTHS = (5, 11)


def traced(fields: Mapping[str, Any], name: str, dtype: Dtype) -> Model:
    """The model of a config by transformers' class, in the checkpoint's formats.  Raises UserError with the module."""
    where = f"model '{name}'"
    whole, source = library.library_model(fields, where)
    from llmviewer.tracing.recorder import Recorder

    counted: dict[int, Recorder] = {}
    cache = None
    for length in LENGTHS:
        counted[length] = Recorder(whole)
        with counted[length].following():
            cache = library.run(whole, where, length)
    cached = LENGTHS[-1]
    if window := _longest_window(whole.config):
        cached = window + 3  # a layer with a window that its attention was not told is seen by its cache
        cache = library.run(whole, where, cached)
    decoded = Recorder(whole)
    with decoded.following():
        library.run(whole, where, 1, cache)
    trace = Trace(
        recorder=counted[LENGTHS[-1]], config=whole.config, dtype=dtype, hidden=_hidden(whole, where), where=where
    )
    config = Config(fields, name)
    built = _model(trace, whole, max_context(config))
    _check_parameters(trace, whole, built)
    for length, recorder in counted.items():
        _check_flops(trace, built, recorder, prefill(1.0, float(length)))
    _check_flops(trace, built, decoded, decode(1.0, float(cached)))
    if any(config.has(one) for one in QUANTIZATION_FIELDS):
        from llmviewer.models.quantization import with_checkpoint_formats

        built = with_checkpoint_formats(built, config)
    return replace(built, name=name, architecture=type(whole).__name__, notes=(_note(trace, source),))


def _longest_window(config: Any) -> int:
    """Tokens of the longest window or chunk that the config states; 0 if it states none."""
    found = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size"))
    return max((one for one in found if isinstance(one, int)), default=0)


def _hidden(whole: Any, where: str) -> int:
    """Width of the residual stream: that of the embedding."""
    table = whole.get_input_embeddings()
    if table is None or whole.get_output_embeddings() is None:
        raise UserError(f"{where}: {type(whole).__name__} has no embedding or no lm_head that the library names")
    return int(table.weight.shape[1])


def _note(trace: Trace, source: str) -> str:
    """The words for which part was read from which class."""
    recorder = trace.recorder
    attention = sorted({type(recorder.model.get_submodule(name)).__name__ for name in recorder.attention})
    others = sorted({type(call.module).__name__ for call in recorder.calls if _is_part(call)})
    return (
        f"read from {source} by --trace-model: attention from {', '.join(attention)}, feed-forward part from "
        f"{', '.join(others) or 'linear layers'}; parameters and matmul FLOPs equal the class's"
    )


def _is_part(call: Call) -> bool:
    return type(call.module).__name__.lower().endswith(("mlp", "moe", "experts", "moeblock", "feedforward"))


def _model(trace: Trace, whole: Any, context: float) -> Model:
    """Embedding, layers and head of the traced class."""
    stack = _stack(trace, whole)
    count = len(whole.get_submodule(stack))
    built = layer.layers(trace, stack, count)
    outside = [call for call in trace.recorder.calls if call.name and not call.name.startswith(f"{stack}.")]
    first = next(at for at, call in enumerate(trace.recorder.calls) if call.name.startswith(f"{stack}."))
    early = {id(call) for call in trace.recorder.calls[:first]}
    norms = [call for call in outside if parts.is_norm(call)]
    before, after = ([one for one in norms if (id(one) in early) is wanted] for wanted in (True, False))
    if len(before) > 1 or len(after) > 1:
        trace.refuse(norms[-1].name, "more than one norm before the first or after the last layer")
    return Model(
        name="",
        architecture="",
        hidden=trace.hidden,
        dtype=trace.dtype,
        embedding=_embedding(trace, whole, outside, before),
        layers=built,
        head=_head(trace, whole, after),
        max_context=context,
    )


def _stack(trace: Trace, whole: Any) -> str:
    """Name of the list of decoder layers."""
    if not trace.recorder.attention:
        trace.refuse("", f"{type(whole).__name__} never calls the library's attention function")
    inside = {name.rsplit(".", 2)[0] for name in trace.recorder.attention}
    lists = [
        name
        for name, module in whole.named_modules()
        if type(module).__name__ == "ModuleList" and any(one == name or one.startswith(f"{name}.") for one in inside)
    ]
    if len(lists) != 1:
        trace.refuse("", f"its layers with attention stand in {len(lists)} lists of modules")
    return str(lists[0])


def _embedding(trace: Trace, whole: Any, outside: list[Call], norms: list[Call]) -> Embedding:
    """Token table, learned positions, factor and norm."""
    table = whole.get_input_embeddings()
    tables = {id(call.module): call for call in outside if hasattr(call.module, "num_embeddings")}
    others = [call for key, call in tables.items() if key != id(table)]
    if len(others) > 1 or any(call.module.weight.shape[1] != trace.hidden for call in others):
        trace.refuse(others[-1].name, "a table that is no position table")
    trace.claim(table, *(call.module for call in others))
    named = next(call.name for call in outside if call.module is table)
    scopes = (named, named.rpartition(".")[0])
    return Embedding(
        vocabulary=int(table.weight.shape[0]),
        width=trace.hidden,
        dtype=trace.dtype,
        positions=int(others[0].module.weight.shape[0]) if others else 0,
        scaled=any(trace.recorder.operations[scope, "mul"] for scope in scopes),
        norm=parts.norm(trace, norms[0], "embedding_norm") if norms else None,
    )


def _head(trace: Trace, whole: Any, norms: list[Call]) -> Head:
    """The final norm and lm_head; a tanh of the outermost module caps the logits."""
    module = whole.get_output_embeddings()
    trace.claim(module)
    linear = Linear(
        name="lm_head",
        in_features=int(module.weight.shape[1]),
        out_features=int(module.weight.shape[0]),
        dtype=trace.dtype,
        bias=getattr(module, "bias", None) is not None,
    )
    capped = trace.recorder.operations["", "tanh"] > 0
    return Head(
        lm_head=linear,
        tied=module.weight is whole.get_input_embeddings().weight,
        norm=parts.norm(trace, norms[0], "final_norm") if norms else None,
        logit_flops=SOFT_CAP_FLOPS * capped,
        logit_special=1.0 * capped,
    )


def _check_parameters(trace: Trace, whole: Any, built: Model) -> None:
    """Refuse a parameter that no part accounts for, and a sum that differs from the class's."""
    unread = [name for name, one in whole.named_parameters() if id(one) not in trace.claimed]
    if unread:
        trace.refuse(unread[0].rpartition(".")[0], f"parameters that no part reads: {', '.join(unread[:4])}")
    wanted = sum(one.numel() for one in whole.parameters())
    if int(built.parameters) != wanted:
        trace.refuse("", f"the parts store {int(built.parameters)} parameters, the class {wanted}")


def _check_flops(trace: Trace, built: Model, recorder: Recorder, step: Step) -> None:
    """Refuse matmul FLOPs of a pass that differ from those of the class, rotary angles and unasked logits aside."""
    if recorder.uncounted:
        module, operation = next(iter(recorder.uncounted.items()))
        trace.refuse(module, f"the operation {operation} has no FLOP formula")
    head = next(call for call in recorder.calls if call.module is recorder.model.get_output_embeddings())
    rows = head.shapes[0][-2]
    flops = {name: one for name, one in recorder.flops.items() if "rotary" not in name.rpartition(".")[2]}
    wanted = sum(flops.values()) - flops[head.name] + flops[head.name] // rows
    found = sum(float(op.matmul_flops) * block.repeats for block, op in built.graph(step))
    if found != wanted:
        trace.refuse("", f"the parts take {found:.0f} matmul FLOPs in a pass, the class {wanted}")
