"""Places of kernels in a forward pass, layer by layer, with the kinds of kernels (kernels.yaml) that may run there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Graph, Operator
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.language import record

TABLE = Path(__file__).with_name("kernels.yaml")
#: Kind of a kernel whose name no pattern knows.
UNKNOWN = ""
EVIDENCE = ("trace", "source", "table", "unverified")


def _pattern(value: Any) -> str:
    """A regular expression; one that begins with (?i) makes all of its row ignore upper and lower case."""
    try:
        re.compile(text := record.filled(value))
    except re.error as error:
        raise UserError(f"{quoted(value)} is no regular expression: {error}") from error
    return text


_ROW = record.keyed(
    kind=record.filled,
    engines=record.filled,
    evidence=record.choice("evidence", EVIDENCE),
    names=record.listed(_pattern, least=1),
)
#: The rows of the table.
ROWS = record.keyed(kernels=record.listed(_ROW))


@cache
def patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Kind and pattern of every row of the table, in order.  Raises UserError for a row that cannot be read."""
    found = []
    for row in record.of_file(TABLE.name, ROWS, data.read_yaml(TABLE))["kernels"]:
        flags = re.IGNORECASE if any(name.startswith("(?i)") for name in row["names"]) else 0
        found.append((row["kind"], re.compile("|".join(name.removeprefix("(?i)") for name in row["names"]), flags)))
    return tuple(found)


@lru_cache(maxsize=65536)
def kind_of(name: str) -> str:
    """Kind of a kernel; UNKNOWN if no pattern is found in its name."""
    return next((kind for kind, pattern in patterns() if pattern.search(name)), UNKNOWN)


#: Names of the places before and after the model's own operators: inputs of the pass, from logits to tokens, and other
#: models that run in the same pass, such as an encoder of images or a draft.
PREPARE, SAMPLING, OTHER_MODELS = "prepare", "sampling", "other models"
#: End of the name of an operator that also normalizes the input of the next layer.
NEXT_NORM = "+attn_norm"
#: Beginning of the names of operators of experts that every token goes to.
SHARED = "shared_"
#: Products that one kernel may run at once -> the name of both together.
TWINS = {f"{of}{half}_proj": f"{of}gate_up_proj" for of in ("", "expert_", SHARED) for half in ("gate", "up")}
#: Orders of the products of queries, keys and values in llama.cpp, before and since it writes keys to the cache with
#: rope, each followed by its norm and by rope: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-graph.cpp.
PRODUCTS = ("q_proj", "k_proj", "v_proj")
QUERIES, KEYS, VALUES = ("q_proj", "q_norm", "rope"), ("k_proj", "k_norm", "rope"), ("v_proj",)
KEYS_FIRST, KEYS_LAST = (*QUERIES, *KEYS, *VALUES), (*QUERIES, *VALUES, *KEYS)


@frozen(eq=False)
class SlotKind:
    """Kernels that may run an operator.

    main: kind -> score of the kernel that does its work, once per operator.  parts: kind -> score of kernels beside
    it, any number.  missing: cost if no kernel runs it, high if no engine fuses it into another.
    """

    main: Mapping[str, float]
    parts: Mapping[str, float]
    missing: float


@frozen
class Slot:
    """One operator in one layer.  layer: number of the layer in the model, -1 outside of layers."""

    operator: str
    block: str
    layer: int
    kind: SlotKind


def _kind(missing: float, main: dict[str, float], **parts: float) -> SlotKind:
    return SlotKind(main=main, parts=parts, missing=missing)


MATMUL = _kind(2.5, {"matmul": 4.0}, matmul_part=1.0, lora=0.5)
ADAPTER = _kind(0.5, {"lora": 3.0})
EXPANSION = _kind(0.5, {"matmul": 3.8}, matmul_part=1.0)
ROUTER = _kind(1.9, {"matmul": 4.2}, matmul_part=1.0)
SHARED_EXPERTS = _kind(1.5, {"matmul": 4.0}, matmul_part=1.0, lora=0.5)
#: llama.cpp's products of experts have the names of dense ones:
#: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-cuda/mmq.cu.
EXPERTS = _kind(1.5, {"experts": 5.0, "matmul": 1.5}, permute=0.6, matmul=-3.5, matmul_part=1.0, quantize=0.6, lora=0.5)
ATTENTION = _kind(
    4.0, {"attention": 6.0}, attention_part=2.0, attention=1.0, kv_write=0.5, rope_kv_write=0.5, matmul_part=0.2
)
SCORES = _kind(2.5, {"matmul": 3.0, "attention": 3.0}, matmul_part=1.0, elementwise=0.2)
SOFTMAX = _kind(0.6, {"sampling": 3.0}, elementwise=0.4)
NORM = _kind(0.6, {"norm": 3.0, "add_norm": 3.0, "all_reduce_norm": 2.0}, norm_part=2.0, elementwise=0.5, residual=0.3)
QK_NORM = _kind(
    0.3, {"qk_norm": 3.2, "norm": 2.5, "add_norm": 2.3, "norm_rope": 3.0}, norm_part=1.8, elementwise=0.4, norm=0.2
)
ROPE = _kind(
    0.5,
    {"rope": 3.0, "rope_kv_write": 3.0, "norm_rope": 2.5},
    **{"rope_part": 2.0, "elementwise": 0.5, "residual": 0.4, "rope": 1.0, "kv_write": 0.8},
)
KV_WRITE = _kind(0.4, {"kv_write": 3.0, "rope_kv_write": 1.5}, elementwise=0.3)
POINTWISE = _kind(0.4, {"activation": 1.5, "residual": 1.0}, elementwise=0.8)
ACTIVATION = _kind(0.5, {"activation": 3.0, "expert_activation": 3.0}, elementwise=0.6)
QUANTIZE = _kind(0.3, {"quantize": 3.0}, elementwise=0.2, quantize=0.3)
RESIDUAL = _kind(0.5, {"residual": 2.5, "add_norm": 1.0}, elementwise=0.7)
ROUTE = _kind(0.5, {"route": 3.0, "sampling": 1.0}, route=2.0, permute=2.0, elementwise=0.4, sampling=0.4, prepare=0.3)
COMBINE = _kind(0.5, {"combine": 3.0}, elementwise=0.5, residual=0.5, permute=0.3)
RECURRENCE = _kind(2.0, {"recurrence": 4.0}, recurrence=2.0, elementwise=0.4, norm=0.3)
CONV = _kind(1.0, {"conv": 4.0}, elementwise=0.3)
INDEX = _kind(1.0, {"index": 4.0}, index=1.5, matmul=0.4, quantize=0.3)
COLLECTIVES = {
    "all_gather": _kind(1.2, {"all_gather": 4.0, "collective": 3.0, "all_to_all": 2.0}),
    "reduce_scatter": _kind(1.2, {"reduce_scatter": 4.0, "collective": 3.0, "all_to_all": 2.0, "all_reduce": 1.0}),
    "all_to_all": _kind(
        1.2, {"all_to_all": 4.0, "collective": 3.0, "all_gather": 2.0, "reduce_scatter": 2.0}, all_to_all=1.5
    ),
    "all_reduce": _kind(
        1.2, {"all_reduce": 4.0, "all_reduce_norm": 4.0, "collective": 3.0, "reduce_scatter": 2.0}, all_gather=0.5
    ),
}
#: Kinds of kernels that move data between devices.
COMMUNICATION = (*COLLECTIVES, "collective", "send_recv")
INPUTS = _kind(
    0.0, {}, prepare=2.0, copy=1.0, elementwise=0.3, embedding=0.2, attention_part=0.5, sampling=0.2, rope_part=0.2
)
OUTPUTS = _kind(
    0.0, {}, sampling=3.0, prepare=1.5, copy=0.8, elementwise=0.5, rope_part=0.3, embedding=0.3, all_gather=0.3
)
#: Any kernel may belong to another model, for less than the score of an operator of this one.
ALIEN = 0.4

BY_ROLE = {
    OperatorRole.ROUTER: ROUTER,
    OperatorRole.LATENT_EXPANSION: EXPANSION,
    OperatorRole.ROPE: ROPE,
    OperatorRole.ACTIVATION: ACTIVATION,
    OperatorRole.QUANTIZE: QUANTIZE,
    OperatorRole.RESIDUAL: RESIDUAL,
    OperatorRole.QK_NORM: QK_NORM,
    OperatorRole.SCORES: SCORES,
    OperatorRole.WEIGHTED_VALUES: SCORES,
    OperatorRole.SOFTMAX: SOFTMAX,
    OperatorRole.EXPERT_COMBINE: COMBINE,
    OperatorRole.INDEX_SCORES: INDEX,
}
#: Places of operators whose kind has more than its recorded kernel, and elementwise kernels beside it.
BY_KIND = {
    Kind.GEMM: MATMUL,
    Kind.ATTENTION: ATTENTION,
    Kind.NORM: NORM,
    Kind.SOFTMAX: ROUTE,
    Kind.RECURRENCE: RECURRENCE,
    Kind.CONV: CONV,
    Kind.ELEMENTWISE: POINTWISE,
    Kind.COPY: _kind(0.3, {"copy": 2.0}, copy=0.5),
}
#: Kind of an operator, its name, and the kernels that may run it; the first row counts.
BY_NAME = (
    (Kind.GEMM, re.compile(r"_lora_[ab]$"), ADAPTER),
    (Kind.GEMM, re.compile(r"^expert_"), EXPERTS),
    (Kind.GEMM, re.compile(f"^{SHARED}"), SHARED_EXPERTS),
    (Kind.ELEMENTWISE, re.compile(r"cache_write$"), KV_WRITE),
    (Kind.NORM, re.compile(r"\+rope$"), QK_NORM),
)
#: End of the name of an operator that others are fused into -> kernels of a share of it that may run by themselves.
FUSED: dict[str, dict[str, float]] = {
    "quantize": {"quantize": 1.0, "elementwise": 0.3},
    "rope": {"rope": 1.5, "rope_kv_write": 1.5, "norm_rope": 1.5, "rope_part": 1.0, "kv_write": 1.0},
    "attention": {"attention_part": 2.0},
    "norm": {"norm": 0.6, "add_norm": 0.6, "norm_part": 1.0},
    "add": {"residual": 0.6, "elementwise": 0.3},
}


def slots_of(graph: Graph) -> list[Slot]:
    """Operators in the order in which a device runs them, every layer by itself, between inputs and sampling.

    Where the graph fuses the norm of the next layer into the last operator of a layer, the last layer's runs before the
    first layer: a device normalizes the embedding first, and the sum of the last layer with the final norm.
    """
    slots = list(_unrolled(graph))
    layers = [position for position, slot in enumerate(slots) if slot.layer >= 0]
    if layers and NEXT_NORM in slots[layers[-1]].operator:
        slots.insert(layers[0], slots.pop(layers[-1]))
    return [
        Slot(operator=PREPARE, block="step", layer=-1, kind=INPUTS),
        *slots,
        Slot(operator=SAMPLING, block="step", layer=-1, kind=OUTPUTS),
    ]


def _unrolled(graph: Graph) -> Iterator[Slot]:
    """Layers in the order of their numbers; blocks without layers stay where they stand."""
    layers = [(number, block) for block in graph.blocks if block.is_layer for number in _numbers(block)]
    layers.sort(key=lambda item: item[0])
    seen = False
    for block in graph.blocks:
        if not block.is_layer:
            yield from _slots(block, -1)
        elif not seen:
            seen = True
            for number, own in layers:
                yield from _slots(own, number)


def _numbers(block: Block) -> tuple[int, ...]:
    return block.numbers or tuple(range(block.repeats))


def _slots(block: Block, layer: int) -> Iterator[Slot]:
    """Operators of a layer; the expansion of a latent cache may also run around rope and after attention.

    Where it is absorbed, one product maps queries into the latent space and another one maps the output back.
    """
    expansion = next((one for one in block.operators if one.role is OperatorRole.LATENT_EXPANSION), None)
    for operator in block.operators:
        own = Slot(operator=operator.name, block=block.name, layer=layer, kind=slot_kind(operator))
        again = None if expansion is None else replace(own, operator=expansion.name, kind=EXPANSION)
        if again is not None and operator.role is OperatorRole.ROPE:
            yield again
        yield own
        if again is not None and operator.role in (OperatorRole.ROPE, OperatorRole.ATTENTION):
            yield again


def slot_kind(operator: Operator) -> SlotKind:
    """Kernels that may run an operator; one that is fused of several may also have kernels for its shares."""
    kind = _main_kind(operator)
    shares = operator.name.split("+")
    extra = {
        name: score
        for ending, more in FUSED.items()
        if sum(share.endswith(ending) for share in shares) > (ending == "norm")
        for name, score in more.items()
    }
    return SlotKind(main=kind.main, parts=extra | dict(kind.parts), missing=kind.missing) if shares[1:] else kind


def _main_kind(operator: Operator) -> SlotKind:
    if operator.kind is Kind.COLLECTIVE:
        return next((kind for name, kind in COLLECTIVES.items() if name in operator.name), COLLECTIVES["all_reduce"])
    named = (kind for of, matches, kind in BY_NAME if operator.kind is of and matches.search(operator.name))
    of_kind = BY_KIND.get(operator.kind) or _kind(0.6, {operator.kind.facts.recorded: 3.0}, elementwise=0.4)
    return next(named, None) or BY_ROLE.get(operator.role, of_kind)


def with_others(slots: Sequence[Slot], kinds: Iterable[str]) -> list[Slot]:
    """The places of a pass with other models before and after this one.  kinds: of the kernels."""
    kind = _kind(0.0, {}, **dict.fromkeys(set(kinds) - {""}, ALIEN))
    other = Slot(operator=OTHER_MODELS, block="step", layer=-1, kind=kind)
    return [other, *slots, other]


def orders(slots: Sequence[Slot]) -> list[list[Slot]]:
    """The orders in which engines run the operators: both norms of latent attention before queries are expanded; shared
    experts after the routed ones, or before or after the router; rope after all three products, or after each as
    llama.cpp runs them."""
    found = [list(slots)]
    for changes in CHANGES:
        changed = (_in_layers(one, change) for one in tuple(found) for change in changes)
        found += [one for one in changed if one not in found]
    return found


def _in_layers(slots: Sequence[Slot], change: Callable[[list[Slot]], list[Slot]]) -> list[Slot]:
    return [slot for _, own in groupby(slots, key=lambda slot: slot.layer) for slot in change(list(own))]


def _norms_first(slots: list[Slot]) -> list[Slot]:
    """The operators of a layer with the norm of its latent cache before the expansion of queries."""
    names = [slot.operator for slot in slots]
    norm = next((at for at, name in enumerate(names) if name.startswith("kv_a_norm")), -1)
    if norm < 0 or "q_b_proj" not in names[:norm]:
        return slots
    queries = names.index("q_b_proj")
    return [*slots[:queries], slots[norm], *slots[queries:norm], *slots[norm + 1 :]]


def _rope_at(slots: list[Slot], order: Sequence[str]) -> list[Slot]:
    """The operators of a layer with its products in another order, each with its norm and with rope after it."""
    own = {slot.operator: at for at, slot in enumerate(slots) if slot.operator in order}
    if not {"rope", *PRODUCTS} <= own.keys():
        return slots
    turned = [slots[own[name]] for name in order if name in own]
    first, last = min(own.values()), max(own.values())
    between = [slot for slot in slots[first : last + 1] if slot.operator not in own]
    return [*slots[:first], *turned, *between, *slots[last + 1 :]]


def _shared_at(slots: list[Slot], past: int) -> list[Slot]:
    """The operators of a layer with its shared experts before its router, or `past` operators later."""
    router = next((at for at, slot in enumerate(slots) if slot.kind is ROUTER), None)
    shared = [slot for slot in slots if slot.operator.startswith(SHARED) and not slot.operator.endswith("_add")]
    if router is None or not shared:
        return slots
    first, rest = slots[: router + past], slots[router + past :]
    return [*first, *shared, *(slot for slot in rest if slot not in shared)]


#: Changes of the order of a layer's operators that engines combine, one of each group or none.
CHANGES: tuple[tuple[Callable[[list[Slot]], list[Slot]], ...], ...] = (
    (_norms_first,),
    (partial(_shared_at, past=0), partial(_shared_at, past=1)),
    (partial(_rope_at, order=KEYS_FIRST), partial(_rope_at, order=KEYS_LAST)),
)
