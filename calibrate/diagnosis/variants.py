"""Kernels that an engine fused in a recording where a configuration has them apart, or the reverse: attention, gate and
up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from llmviewer.api.configuration import Configuration
from llmviewer.calibrate.diagnosis.patterns import kind_of
from llmviewer.calibrate.diagnosis.recording import Kernel
from llmviewer.calibrate.diagnosis.slots import ATTENTION, SCORES, SOFTMAX, TWINS, Slot
from llmviewer.calibrate.diagnosis.times import Comparison, OperatorTimes
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import decode
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.technique import add_pass

FLASH = add_pass("flash_attention", flash_attention)
NOTE = "attention ran as one kernel, and is predicted so: without recorded kernels the engine's preset has three"

#: Kinds of kernels of attention on an unfused backend; samplers have softmax too.
PRODUCT, NORMALIZED = "matmul", "sampling"
#: Kinds of kernels that may stand between those of unfused attention: scaling, masks, conversions.
BETWEEN = ("", "elementwise", "copy", "prepare", "residual", "matmul_part")


def as_recorded(chosen: Configuration, kernels: Sequence[Kernel]) -> tuple[Configuration, tuple[str, ...]]:
    """The configuration with attention as one kernel if the recording has it so, and a note.

    The preset of llama.cpp has the three kernels of 2024; builds since run one (`-fa`, flash_attn_ext_...).
    """
    graph = chosen.system.prepared(chosen.model.graph(decode(1.0, 1.0)))
    eager = any(operator.role is OperatorRole.SCORES for _, operator in graph)
    if eager and any(kind_of(kernel.name) == "attention" for kernel in kernels):
        return replace(chosen, system=FLASH(chosen.system)), (NOTE,)
    return chosen, ()


def with_unfused_attention(slots: Sequence[Slot], kinds: Sequence[str]) -> list[Slot]:
    """The places of a pass, with three for attention if its scores, softmax and weighted values are recorded apart.

    Known by a softmax alone between two products for each attention, where no kernel of attention runs; a router's
    is followed by its choice of experts.
    """
    attending = sum(attends(slot) for slot in slots)
    heavy = [kind for kind in kinds if kind not in BETWEEN]
    apart = sum(triple == (PRODUCT, NORMALIZED, PRODUCT) for triple in zip(heavy, heavy[1:], heavy[2:], strict=False))
    if not attending or "attention" in kinds or apart < attending:
        return list(slots)
    three = (SCORES, SOFTMAX, SCORES)
    return [
        place for slot in slots for place in ([replace(slot, kind=kind) for kind in three] if attends(slot) else [slot])
    ]


def attends(slot: Slot) -> bool:
    """Whether attention of one kernel runs at a place."""
    return "attention" in slot.kind.main and slot.kind.missing >= ATTENTION.missing


def of_unfused_attention(names: Collection[str]) -> bool:
    """Whether kernels of attention with these names are those of an unfused backend."""
    kinds = {kind_of(name) for name in names}
    return {PRODUCT, NORMALIZED} <= kinds and "attention" not in kinds


def join_gate_and_up(found: Comparison) -> None:
    """Make one operator of gate and up where one kernel ran both, as llama.cpp does; it has the time of both.

    https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-cuda/ggml-cuda.cu.
    """
    for joined in dict.fromkeys(TWINS.values()):
        twins = [found.operators[name] for name, both in TWINS.items() if both == joined and name in found.operators]
        ran = [one for one in twins if one.kernels]
        if len(twins) == len(ran) + 1 == 2:
            _join(found, ran[0], twins, joined)


def _join(found: Comparison, ran: OperatorTimes, twins: Sequence[OperatorTimes], joined: str) -> None:
    """Make one operator of two.  ran: the one whose kernel ran both.  joined: the name of both together."""
    low, planned, high = (sum(getattr(one, name) for one in twins) for name in ("low_s", "predicted_s", "high_s"))
    both = replace(ran, name=joined, low_s=low, predicted_s=planned, high_s=high)
    kept = [both if one is ran else one for one in found.operators.values() if one is ran or one not in twins]
    found.operators = {one.name: one for one in kept}
    found.unplanned = {
        where.replace(f" beside {ran.name}", f" beside {joined}"): seconds for where, seconds in found.unplanned.items()
    }
    runs = found.runs.items()
    found.runs = {(name, kind, joined if of == ran.name else of): run for (name, kind, of), run in runs}
