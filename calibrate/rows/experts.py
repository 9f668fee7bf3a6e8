"""Operators for rows of measured experts: the routed part of one layer of a mixture of experts on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.rows import tuned
from llmviewer.calibrate.rows.gemm import MXFP8, SHARED_FORMATS
from llmviewer.calibrate.rows.routing import BALANCED, busiest_device, is_known
from llmviewer.calibrate.rows.table import Table, column, divided
from llmviewer.core import dtypes
from llmviewer.core.counts import Array, Count, total
from llmviewer.core.ir import Access, Block, Operator, Role, Tensor, whole
from llmviewer.formats.linear import Format, with_formats
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.layers.feed_forward import weighted_sum
from llmviewer.ops.elementwise import activation, gated
from llmviewer.ops.gemm import EXPERT_PREFIX, GemmShape, Linear, is_routed
from llmviewer.timing.kernels.power import held_share

if TYPE_CHECKING:
    import pandas as pd

BF16 = dtypes.get_dtype("bf16")
NVFP4, MXFP4, FP8 = (dtypes.get_dtype(name) for name in ("nvfp4", "mxfp4", "fp8"))
#: Column `dtype` -> formats of weights and inputs; other names are 16-bit formats.
FORMATS: dict[str, Format] = {
    "fp8": Format(weights=FP8, activations=FP8),
    **SHARED_FORMATS,
    "nvfp4": Format(weights=NVFP4, activations=NVFP4),
    "mxfp4": Format(weights=MXFP4, activations=MXFP4),
    "w4a16_mxfp4": Format(weights=MXFP4),
    "w4a8_mxfp4_mxfp8": Format(weights=MXFP4, activations=MXFP8),
}
#: Words in the column `kernel` -> kernel.  vLLM's modular experts in MXFP4 route, quantize and sort in kernels of their
#: own; gpt-oss runs the monolithic ones, which hold all that.
WORDS = ("deepgemm", "marlin", "cutlass", "triton")
KERNELS = {"mxfp4expertsmodular": "modular", "trtllm_": "trtllm-gen"} | {word: word for word in WORDS}
#: Kernels of several tactics that the timings ran without tuning -> generation on which their first tactic takes 3 to 6
#: times as long as other kernels for the same weights, and the format that has one tactic only.  An engine tunes them
#: when it starts (https://github.com/vllm-project/vllm/pull/27904), and then they are as fast as others
#: (https://github.com/vllm-project/vllm/pull/54742); TensorRT-LLM, whose kernels they are, was timed tuned.
UNTUNED = {"flashinfer_cutlass": ("hopper", "fp8_block")}
#: Engine -> generation ("" = any other) -> kernel that it runs by default, and for dtypes that it lists.  Taken from
#: vLLM 0.24, SGLang 0.5.14 and TensorRT-LLM 1.3; vLLM runs CUTLASS for block scales only with expert parallelism.
#: SGLang's own Triton kernel for MXFP4 multiplies weights that were widened to 16 bits when they were loaded; it serves
#: gpt-oss by OpenAI's (triton_kernels), which no row timed
#: (https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/layers/quantization/mxfp4.py).
USUAL: dict[str, dict[str, dict[str, str]]] = {
    "vllm": {
        "hopper": {"": "triton", "fp8": "cutlass", "int4_wo": "marlin"},
        "blackwell": {"": "trtllm-gen", "int4_wo": "marlin"},
        "blackwell-gb20x": {"": "cutlass", "int4_wo": "marlin", "w4a16_mxfp4": "marlin"},
        "": {"": "triton", "int4_wo": "marlin", "w4a16_mxfp4": "marlin"},
    },
    "sglang": {
        "blackwell": {"": "trtllm-gen"},
        "blackwell-gb20x": {"": "triton", "nvfp4": "cutlass", "int4_wo": "marlin", "w4a16_mxfp4": "marlin"},
        "": {"": "triton", "int4_wo": "marlin", "w4a16_mxfp4": "triton-kernels"},
    },
}
#: Hidden size, intermediate size, experts and choice of the Nemotron-3 models, whose experts have no gate.
UNGATED = {(2688, 1856, 128, 6), *((h, i, 512, 22) for h in (1024, 2048, 4096, 8192) for i in (2688, 5120))}
#: Engine -> version from which its experts without a gate were timed as such; earlier ones were timed with a gate.
FIRST_UNGATED = {"vllm": (0, 20), "sglang": (0, 5, 12)}
#: Engine -> version from which a device skips the experts of other devices; earlier ones computed every chosen expert
#: of each token that reached the device: SGLang 0.5.10 on an A100 takes the time of tokens x topk rows.
FIRST_MASKED = {"sglang": (0, 5, 12)}
#: Largest share of data in the L2: some of it must come from memory.
MOST_CACHED = 0.98


def _layer(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Activation and weighted sum, then both products: gate and up as one, and down.

    Timings by others repeat one layer, so what fits in the L2 is read from it.
    """
    tokens, hidden, chosen = (column(group, name) for name in ("tokens", "hidden", "topk"))
    inner = column(group, "inter") / column(group, "tp")
    rows, active = _loads(group, first)
    width = inner * np.where(_has_no_gate(group, first), 1.0, 2.0)
    wide, stored = _wide(first), float(group["experts"].max())  # only the active experts matter
    x = Tensor(name="x", elements=np.minimum(tokens, rows) * hidden, dtype=wide)
    into, out = (
        Linear(name=EXPERT_PREFIX + name, in_features=a, out_features=b, dtype=wide, experts=stored)  # type: ignore[arg-type]
        for name, a, b in (("gate_up_proj", hidden, width), ("down_proj", inner, hidden))
    )
    up = into.operator(x, rows, active=active)
    y = Tensor(name=EXPERT_PREFIX + "act", elements=rows * inner, dtype=wide)
    act = gated(y.name, (whole(up.output),), y, rows, activation("silu"))
    down = out.operator(act.output, rows, active=active)
    scores = Access(Tensor(name="scores", elements=tokens * chosen, dtype=wide), rows)
    combine = weighted_sum(whole(down.output), scores, tokens, hidden, chosen)
    block = Block(name="row", operators=(up, act, down, combine))
    if str(first["dtype"]) in FORMATS:
        block = with_formats(block, lambda _: FORMATS[str(first["dtype"])])
    operators = tuple(_with_all_rows(op, tokens * chosen) for op in _products_last(block.operators))
    source = str(first.get("source", ""))
    if source == tuned.NAME:  # its inputs are quantized before
        return tuple(operator for operator in operators if is_routed(operator))
    return _as_cached(operators, chip) if source == "aiconfigurator" else operators


def _wide(first: Any) -> dtypes.Dtype:
    """The 16-bit format of rows that are not quantized."""
    return BF16 if str(first["dtype"]) in FORMATS else dtypes.get_dtype(str(first["dtype"]))


def _loads(group: pd.DataFrame, first: Any) -> tuple[Array, Array]:
    """Rows and active experts of the timed device."""
    names = ("tokens", "experts", "topk", "ep", "routing")
    found = [
        busiest_device(int(t), int(e), int(k), int(d), str(routing))
        for t, e, k, d, routing in zip(*(group[name] for name in names), strict=True)
    ]
    rows, active = np.array(found).T
    if _is_before(first, FIRST_MASKED):
        reached = np.minimum(column(group, "tokens"), rows)
        rows = np.where(column(group, "ep") > 1.0, reached * column(group, "topk"), rows)
    return rows, active


def _has_no_gate(group: pd.DataFrame, first: Any) -> Array:
    sizes = zip(*(group[name] for name in ("hidden", "inter", "experts", "topk")), strict=True)
    gated_then = _is_before(first, FIRST_UNGATED)
    return np.array([tuple(map(int, size)) in UNGATED and not gated_then for size in sizes])


def _is_before(first: Any, versions: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the engine of the rows states a version before the listed one."""
    engine, _, version = str(first.get("engine", "")).partition(" ")
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    return bool(numbers) and numbers < versions.get(engine, ())


def _products_last(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    return tuple(sorted(operators, key=lambda operator: isinstance(operator.shape, GemmShape)))


def _with_all_rows(operator: Operator, rows: Count) -> Operator:
    """The product with the number of rows that all devices of the group compute."""
    shape = operator.shape
    return replace(operator, shape=replace(shape, routed=rows)) if isinstance(shape, GemmShape) else operator


def _as_cached(operators: tuple[Operator, ...], chip: Chip) -> tuple[Operator, ...]:
    """The operators with data in the L2: weights if those of the whole layer fit, and what each moves if that fits."""
    weights = held_share(total(operator.read_bytes(Role.WEIGHT) for operator in operators), chip)

    def placed(listed: tuple[Access, ...], moved: Count) -> tuple[Access, ...]:
        found: list[Access] = []
        for access in listed:
            kept = weights if access.tensor.role is Role.WEIGHT else held_share(moved, chip)
            found += divided(access, np.minimum(kept, MOST_CACHED))
        return tuple(found)

    moved = [operator.traffic_bytes - operator.read_bytes(Role.WEIGHT) for operator in operators]
    return tuple(
        replace(operator, reads=placed(operator.reads, size), writes=placed(operator.writes, size))
        for operator, size in zip(operators, moved, strict=True)
    )


def _engine(engine: str, first: Any) -> str:
    """The engine; with the name of its kernel as suffix if it runs another one by default: `sglang-triton`."""
    text, dtype = str(first.get("kernel", "")).lower(), str(first["dtype"])
    kernel = next((name for word, name in KERNELS.items() if word in text), "")
    by_generation = USUAL.get(engine, {})
    generation = specs.load(str(first["device"]).replace("_", "-")).generation if by_generation and kernel else ""
    if any(word in text and generation == on and dtype != but for word, (on, but) in UNTUNED.items()):
        return f"{engine}-untuned"
    usual = by_generation.get(generation, by_generation.get("", {}))
    return engine if not kernel or not usual or kernel == usual.get(dtype, usual[""]) else f"{engine}-{kernel}"


def _contradictions(rows: pd.DataFrame) -> list[tuple[Any, str]]:
    return [
        (rows["topk"] > rows["experts"], "topk is larger than experts"),
        (rows["experts"] % rows["ep"] != 0, "ep does not divide experts"),
        (~rows["routing"].map(is_known), "routing is none of balanced, uniform, power_law_<exponent>"),
    ]


MOE = Table(
    shape=("tokens", "hidden", "inter", "topk", "experts", "tp", "ep"),
    formula=("dtype", "kernel"),
    needed=("dtype",),
    build=_layer,
    defaults={"tp": 1, "ep": 1, "routing": BALANCED, "kernel": ""},
    engine=_engine,
    contradictions=_contradictions,
)
